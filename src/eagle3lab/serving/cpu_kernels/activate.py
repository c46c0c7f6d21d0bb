"""What each process of a CPU server runs first: the pieces that a release's CPU path lacks.

`startup` and `startup_interpreted` are called by `sitecustomize`, `plugin` by SGLang's own plugin loader.
"""

from __future__ import annotations

import logging
from types import ModuleType

from eagle3lab.serving.after_import import after_import


def startup() -> None:
    """For every release: names for torchvision, and answers to CUDA's housekeeping calls."""
    from eagle3lab.serving.cpu_kernels import no_torchvision

    after_import("transformers.utils.import_utils", no_torchvision.install)
    after_import("torch", _without_cuda)


def startup_interpreted() -> None:
    """For 0.5.8 and 0.5.9, whose CPU path does not speculate: also the tree, its verification, and attention."""
    startup()
    after_import("sglang.srt.speculative.eagle_utils", _with_tree)
    for phase in ("extend", "decode"):
        after_import(f"sglang.srt.layers.attention.triton_ops.{phase}_attention", _with_attention)


def plugin() -> None:
    """Say in the log of every process that this is the CPU profile."""
    logging.getLogger("eagle3lab").warning("eagle3lab CPU profile: kernels in plain torch, exact but slow")


def _without_cuda(torch: ModuleType) -> None:
    """Setting a drafter's embedding ends with `empty_cache` and `synchronize`, which raise without a GPU."""
    torch.cuda.empty_cache = _nothing
    torch.cuda.synchronize = _nothing


def _nothing(*args: object, **kwargs: object) -> None:
    """There is no device to wait for."""


def _with_tree(eagle_utils: ModuleType) -> None:
    """On a CPU the release defines no tree builder, and its greedy verification falls through unchanged."""
    from eagle3lab.serving.cpu_kernels.tree import build_tree, verify_tree_greedy

    def verify_tree_greedy_func(
        predicts: object, accept_index: object, accept_token_num: object, topk: int = -1, **tree: object
    ) -> tuple[object, object, object]:
        verify_tree_greedy(
            predicts=predicts,
            accept_index=accept_index,
            accept_token_num=accept_token_num,
            **tree,
        )
        return predicts, accept_index, accept_token_num

    eagle_utils.sgl_build_tree_kernel_efficient = build_tree  # type: ignore[attr-defined]
    eagle_utils.verify_tree_greedy_func = verify_tree_greedy_func  # type: ignore[attr-defined]


def _with_attention(triton_ops: ModuleType) -> None:
    """Triton's interpreter runs the release's kernels a thousand times slower than torch does the same."""
    from eagle3lab.serving.cpu_kernels import indexed_attention

    for name in ("extend_attention_fwd", "decode_attention_fwd"):
        if hasattr(triton_ops, name):
            setattr(triton_ops, name, getattr(indexed_attention, name))
