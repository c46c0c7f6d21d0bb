"""The facts of an engine release read from its source: as text and syntax tree, never imported.

SGLang is read by the modules of `sglang/`, vLLM by those of `vllm/`; those here serve both.
"""

from __future__ import annotations

from pathlib import Path

from eagle3lab.engines.extract.model import (
    Algorithms,
    CaptureWiring,
    DecodeLog,
    Drafter,
    Reading,
    ReleaseFacts,
    Shift,
    Target,
    Unknown,
)

__all__ = [
    "Algorithms",
    "CaptureWiring",
    "DecodeLog",
    "Drafter",
    "Reading",
    "ReleaseFacts",
    "Shift",
    "Target",
    "Unknown",
    "extract",
]


def extract(path: Path) -> ReleaseFacts:
    """The facts of the SGLang or vLLM source tree at `path`, read as text and syntax tree.

    Args:
        path: A checkout, an installed package, the folder that holds one, a wheel, or vLLM's source distribution.

    Returns:
        For vLLM, `eagle3lab.engines.extract.vllm.VllmFacts`.

    Raises:
        InputError: There is neither there.
    """
    # The readers are of no use to those who only need the types.
    from eagle3lab.engines.extract.tree import is_vllm

    if is_vllm(path):
        from eagle3lab.engines.extract.vllm.read import read_vllm

        return read_vllm(path)
    from eagle3lab.engines.extract.sglang.read import read_tree

    return read_tree(path)
