"""The names that SGLang 0.5.23 imports from `sgl_kernel` on its CPU path, bound to this package's functions.

The server finds it as `sgl_kernel` through a one-line package on its PYTHONPATH. `convert_weight_packed` is absent
on purpose: SGLang takes its presence for a machine with AMX and would then call packed kernels everywhere.
"""

from __future__ import annotations

import torch

from eagle3lab.serving.cpu_kernels import attention, cache_locations, tree

assign_draft_cache_locs_contiguous_cpu = cache_locations.assign_draft_cache_locs_contiguous
assign_extend_cache_locs_cpu = cache_locations.assign_extend_cache_locs
assign_req_to_token_pool_cpu = cache_locations.assign_req_to_token_pool
build_draft_decode_metadata_cpu = cache_locations.build_draft_decode_metadata
build_tree_kernel_efficient_cpu = tree.build_tree
copy_all_layer_kv_cache_cpu = cache_locations.copy_all_layer_kv_cache
fill_accept_out_cache_loc_cpu = cache_locations.fill_accept_out_cache_loc
fill_bonus_tokens_cpu = cache_locations.fill_bonus_tokens
rotate_input_ids_cpu = cache_locations.rotate_input_ids
verify_tree_greedy_cpu = tree.verify_tree_greedy

__all__ = [name for name in globals() if name.endswith("_cpu")]

_operators = torch.library.Library("sgl_kernel", "FRAGMENT")
_operators.define(
    "extend_attention_cpu(Tensor query, Tensor? key, Tensor? value, Tensor(a!) out, Tensor key_buffer, "
    "Tensor value_buffer, float key_scale, float value_scale, Tensor table, Tensor slots, Tensor lengths, "
    "Tensor new_lengths, Tensor new_start, int max_new, float scale, float logit_cap, bool cross, int window, "
    "Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask, bool causal) -> ()"
)
_operators.define(
    "decode_attention_cpu(Tensor query, Tensor(a!) key_buffer, Tensor(b!) value_buffer, float key_scale, "
    "float value_scale, Tensor(c!) out, Tensor? key, Tensor? value, Tensor location, Tensor workspace, Tensor table, "
    "Tensor slots, Tensor lengths, float scale, float logit_cap, bool cross, int window, Tensor? encoder_lens, "
    "Tensor? sinks) -> ()"
)
_operators.impl("extend_attention_cpu", attention.extend_attention, "CPU")
_operators.impl("decode_attention_cpu", attention.decode_attention, "CPU")
