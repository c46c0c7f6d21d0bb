"""The draft vocabulary: what d2t holds, which tokens the head's rows stand for, what they reach of a text.

The names below are loaded when first used: importing the package does not import numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle3lab.vocabulary.coverage import CoverageReport, measure_coverage
    from eagle3lab.vocabulary.kinds import MapKind
    from eagle3lab.vocabulary.readings import Reading
    from eagle3lab.vocabulary.report import Repair, T2dComparison, TokenMapReport
    from eagle3lab.vocabulary.source import TokenMap, read_token_map, target_vocab_size
    from eagle3lab.vocabulary.token_map import analyse_token_map
    from eagle3lab.vocabulary.tokens import TargetTokenizer

__all__ = [
    "CoverageReport",
    "MapKind",
    "Reading",
    "Repair",
    "T2dComparison",
    "TargetTokenizer",
    "TokenMap",
    "TokenMapReport",
    "analyse_token_map",
    "measure_coverage",
    "read_token_map",
    "target_vocab_size",
]

_MODULES = {
    "coverage": ("CoverageReport", "measure_coverage"),
    "kinds": ("MapKind",),
    "readings": ("Reading",),
    "report": ("Repair", "T2dComparison", "TokenMapReport"),
    "source": ("TokenMap", "read_token_map", "target_vocab_size"),
    "token_map": ("analyse_token_map",),
    "tokens": ("TargetTokenizer",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
