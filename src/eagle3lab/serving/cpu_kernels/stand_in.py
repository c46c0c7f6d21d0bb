"""The names that SGLang 0.5.23 imports from `sgl_kernel` on its CPU path, bound to this package's functions.

The server finds it as `sgl_kernel` through a one-line package on its PYTHONPATH. `convert_weight_packed` is absent
on purpose: SGLang takes its presence for a machine with AMX and would then call packed kernels everywhere.
"""

from __future__ import annotations

import torch

from eagle3lab.serving.cpu_kernels import attention
from eagle3lab.serving.cpu_kernels.cache_locations import (
    assign_draft_cache_locs_contiguous as assign_draft_cache_locs_contiguous_cpu,
)
from eagle3lab.serving.cpu_kernels.cache_locations import (
    assign_extend_cache_locs as assign_extend_cache_locs_cpu,
)
from eagle3lab.serving.cpu_kernels.cache_locations import (
    assign_req_to_token_pool as assign_req_to_token_pool_cpu,
)
from eagle3lab.serving.cpu_kernels.cache_locations import (
    build_draft_decode_metadata as build_draft_decode_metadata_cpu,
)
from eagle3lab.serving.cpu_kernels.cache_locations import (
    copy_all_layer_kv_cache as copy_all_layer_kv_cache_cpu,
)
from eagle3lab.serving.cpu_kernels.cache_locations import (
    fill_accept_out_cache_loc as fill_accept_out_cache_loc_cpu,
)
from eagle3lab.serving.cpu_kernels.cache_locations import fill_bonus_tokens as fill_bonus_tokens_cpu
from eagle3lab.serving.cpu_kernels.cache_locations import rotate_input_ids as rotate_input_ids_cpu
from eagle3lab.serving.cpu_kernels.tree import build_tree as build_tree_kernel_efficient_cpu
from eagle3lab.serving.cpu_kernels.tree import verify_tree_greedy as verify_tree_greedy_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

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
