"""The types of what an engine release does, every fact with the line that says so.

The facts themselves are in `eagle3lab.engines.atlas`, read from the releases by `eagle3lab.engines.extract`.

Nothing in eagle3lab compares release numbers; the code asks the facts.
"""

from __future__ import annotations

from eagle3lab.engines.facts.config_classes import config_class
from eagle3lab.engines.facts.model import (
    Acceptance,
    Capture,
    ConstructionRule,
    DrafterClass,
    DrafterKind,
    DrafterRules,
    EngineFacts,
    FromTarget,
    Parameter,
    ParameterKind,
    Size,
    Switch,
    VocabularyPadding,
    sources,
)
from eagle3lab.engines.facts.names import (
    Joined,
    NameRules,
    Pattern,
    Prefix,
    Rename,
    Special,
    Stacked,
    Translation,
)
from eagle3lab.engines.facts.source import Source

__all__ = [
    "Acceptance",
    "Capture",
    "ConstructionRule",
    "DrafterClass",
    "DrafterKind",
    "DrafterRules",
    "EngineFacts",
    "FromTarget",
    "Joined",
    "NameRules",
    "Parameter",
    "ParameterKind",
    "Pattern",
    "Prefix",
    "Rename",
    "Size",
    "Source",
    "Special",
    "Stacked",
    "Switch",
    "Translation",
    "VocabularyPadding",
    "config_class",
    "sources",
]
