"""Which trainer wrote a drafter, with the evidence: traits seen in the folder, weighed by a table.

What each trainer leaves behind is data (`provenance.toml`); here is only how each trait is established and
how the evidence adds up. The result ranks every trainer and says "unknown" when none stands out.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from math import exp
from pathlib import Path
from typing import Any

from eagle3lab.checkpoint.config import MODELOPT_KEYS
from eagle3lab.checkpoint.store import Checkpoint
from eagle3lab.errors import InputError

# The score of "some other trainer, or an edited checkpoint": what evidence must outweigh.
UNKNOWN_SCORE = 2.0
# Share of the odds below which no trainer is named.
CONFIDENT = 0.5


@dataclass(frozen=True, slots=True)
class Evidence:
    """One trait that was seen, and what it says about one trainer.

    Attributes:
        trait: The trait's key in `provenance.toml`.
        text: The trait as a sentence.
        weight: Log-odds it adds; negative when it speaks against the trainer.
    """

    trait: str
    text: str
    weight: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """One trainer, and how well it explains the folder.

    Attributes:
        trainer: Its key: safeailab, specforge, speculators, modelopt, angelslim, torchspec, automodel.
        title: Its name for people.
        version: Version or range, where the folder says so; None otherwise.
        confidence: Share of the odds among all trainers and "unknown", 0 to 1.
        evidence: What speaks for and against it, strongest first.
    """

    trainer: str
    title: str
    version: str | None
    confidence: float
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Who wrote a drafter.

    Attributes:
        trainer: Key of the likely trainer, or "unknown".
        title: Its name for people.
        version: Version or range of the likely trainer, where it can be told.
        confidence: How likely, 0 to 1; for "unknown", how little the best candidate explains.
        evidence: Sentences that speak for the likely trainer; for "unknown", what was seen at all.
        candidates: All trainers, most likely first.
    """

    trainer: str
    title: str
    version: str | None
    confidence: float
    evidence: tuple[str, ...]
    candidates: tuple[Candidate, ...]


def find_provenance(checkpoint: Checkpoint) -> Provenance:
    """Rank the trainers that may have written `checkpoint`.

    A config.json that is missing or damaged only means less evidence.
    """
    table = trainer_table()
    traits = find_traits(checkpoint)
    scored = []
    for key, entry in table["trainers"].items():
        evidence = [
            Evidence(trait, table["traits"][trait], weight)
            for trait, weight in entry["weights"].items()
            if trait in traits
        ]
        scored.append((sum(item.weight for item in evidence), key, entry["title"], evidence))
    scored.sort(key=lambda item: (-item[0], item[1]))
    top = max(UNKNOWN_SCORE, scored[0][0])
    odds = [exp(score - top) for score, *_ in scored]
    total = sum(odds) + exp(UNKNOWN_SCORE - top)
    candidates = tuple(
        Candidate(
            key,
            title,
            _version(key, traits, checkpoint, table),
            share / total,
            tuple(sorted(evidence, key=lambda item: -abs(item.weight))),
        )
        for share, (_, key, title, evidence) in zip(odds, scored, strict=True)
    )
    best = candidates[0]
    if best.confidence < CONFIDENT:
        seen = tuple(table["traits"][trait] for trait in table["traits"] if trait in traits)
        return Provenance("unknown", "unknown", None, 1 - best.confidence, seen, candidates)
    pro = tuple(item.text for item in best.evidence if item.weight > 0)
    return Provenance(best.trainer, best.title, best.version, best.confidence, pro, candidates)


@cache
def trainer_table() -> dict[str, Any]:
    """`provenance.toml`: traits, trainers with their weights, versions."""
    return tomllib.loads(Path(__file__).with_name("provenance.toml").read_text("utf-8"))


def find_traits(checkpoint: Checkpoint) -> frozenset[str]:
    """The keys of `[traits]` in `provenance.toml` that hold for `checkpoint`."""
    return frozenset(_name_traits(checkpoint) | _config_traits(checkpoint) | _map_traits(checkpoint))


_LAYER_PREFIXES = (
    (r"(module|draft_model)\.", "prefix:wrapped"),
    (r"midlayer\.\d+\.", "prefix:midlayer.N"),
    (r"(model\.)?midlayer\.", "prefix:midlayer"),
    (r"layers\.\d+\.", "prefix:layers"),
    (r"model\.layers\.\d+\.", "prefix:model.layers"),
)


def _name_traits(checkpoint: Checkpoint) -> set[str]:
    names = list(checkpoint.tensors)
    if not names:
        return set()
    traits = {trait for pattern, trait in _LAYER_PREFIXES if any(re.match(pattern, name) for name in names)}
    if "prefix:midlayer.N" in traits:
        traits.discard("prefix:midlayer")
    if not any(trait.startswith("prefix:") for trait in traits):
        traits.add("prefix:none")
    traits.add(f"file:{checkpoint.files.format}")
    last = {part for name in names for part in name.split(".")}
    traits.add("tensor:embed" if "embed_tokens" in last else "tensor:no-embed")
    if "fc" not in last:
        traits.add("tensor:no-fc")
    if "t2d" in last:
        traits.add("tensor:t2d")
    elif "d2t" in last:
        traits.add("tensor:d2t-without-t2d")
    else:
        traits.add("tensor:no-map")
    if "mask_hidden" in last:
        traits.add("tensor:mask_hidden")
    if {"q_norm", "k_norm"} <= last:
        traits.add("tensor:qk-norm")
    if any(tensor.dtype == "F16" for tensor in checkpoint.tensors.values()):
        traits.add("dtype:F16")
    return traits


def _config_traits(checkpoint: Checkpoint) -> set[str]:
    try:
        raw = checkpoint.raw_config
    except InputError:
        return set()
    traits: set[str] = set()
    architectures = raw.get("architectures")
    if isinstance(architectures, list):
        known = {f"arch:{name}" for name in architectures if isinstance(name, str)} & set(
            trainer_table()["traits"]
        )
        traits |= known or {"arch:other"}
    nested = raw.get("eagle_config")
    nested = nested if isinstance(nested, dict) else {}
    if "speculators_version" in raw or "speculators_model_type" in raw:
        traits.add("config:speculators")
    for key in ("transformer_layer_config", "embed_requires_grad"):
        if key in raw:
            traits.add(f"config:{key}")
    if MODELOPT_KEYS & set(nested):
        traits.add("config:modelopt")
    if "draft_vocab_size" not in raw:
        traits.add("config:no-draft_vocab_size")
    ids = "eagle_aux_hidden_state_layer_ids"
    if nested.get(ids) is not None:
        traits.add("ids:nested")
    if raw.get(ids) is not None:
        traits.add("ids:top-level")
    if nested.get(ids) is None and raw.get(ids) is None:
        traits.add("ids:none")
    if raw.get("max_position_embeddings") == 2048:
        traits.add("position:2048")
    draft, layer = raw.get("draft_vocab_size"), raw.get("transformer_layer_config")
    vocabulary = raw.get("vocab_size", layer.get("vocab_size") if isinstance(layer, dict) else None)
    if isinstance(vocabulary, int):
        reduced = isinstance(draft, int) and draft < vocabulary
        traits.add("vocab:reduced" if reduced else "vocab:full")
    return traits


def _map_traits(checkpoint: Checkpoint) -> set[str]:
    """Whether d2t, read as offsets, lists target ids in ascending order."""
    d2t = next((info for name, info in checkpoint.tensors.items() if name.split(".")[-1] == "d2t"), None)
    if d2t is None or d2t.dtype not in ("I64", "I32") or len(d2t.shape) != 1 or d2t.shape[0] < 2:
        return set()
    import numpy as np

    ids = checkpoint.read(d2t.name) + np.arange(d2t.shape[0])
    return {"d2t:sorted" if bool((np.diff(ids) > 0).all()) else "d2t:unsorted"}


def _version(key: str, traits: frozenset[str], checkpoint: Checkpoint, table: dict[str, Any]) -> str | None:
    if key == "speculators" and "config:speculators" in traits:
        version = checkpoint.raw_config.get("speculators_version")
        return version if isinstance(version, str) else None
    ranges: dict[str, str] = table.get("versions", {}).get(key, {})
    return next((text for trait, text in ranges.items() if trait in traits), None)
