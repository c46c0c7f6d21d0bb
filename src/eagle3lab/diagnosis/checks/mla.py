"""MLA: names of heads with low-rank attention, where the load by SGLang's class for them cannot be simulated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from eagle3lab.diagnosis.checks.base import Found, SkipCheck, check, listed, seen
from eagle3lab.diagnosis.evidence.investigation import Investigation
from eagle3lab.engines.release import store

_CHANCE = (
    "Those parameters keep what they were initialised with; nothing the drafter says is better than chance."
)
_FILES = ("files.unindexed-shard", "files.stale-safetensors", "files.unreadable", "files.missing")


@check("E3L-N07", "names.dropped", needs=("drafter", "config"), engine="sglang", effect=_CHANCE)
def dropped(case: Investigation) -> Iterator[Found]:
    """Tensors of an MLA head carry names that its class skips.

    Seen: Names of an MLA head begin with a prefix that Eagle3DeepseekV2ForCausalLM does not take away, and the
        parameters they were made for get nothing.
    Why: The class knows `midlayer.*` and `layers.0.*` and puts `model.` in front itself, so `model.*` reaches nothing.
    Effect: A warning a tensor ("skipping unexpected weight"), and uninitialised parameters: acceptance at chance.
    Repair: Remove the prefix from the names.
    Sources: SGLang 0.5.12 and 0.5.23 `models/kimi_k25_eagle3.py:428-501`.
    """
    rule = _rule(case)
    lost = tuple(name for name in case.names if not _reaches(name, rule) and _meant(name, rule))
    if lost:
        yield Found(
            f"The MLA class skips {len(lost)} of {len(case.names)} tensors because of their names",
            (
                *(seen("the class has no parameter of this name", tensor=name) for name in lost[:3]),
                seen(f"skipped: {listed(lost, 12)} ({rule['source']})"),
            ),
            "Rename the layer's tensors to midlayer.* or layers.0.*, and fc and norm without a prefix.",
            confidence=0.95,
        )


@check("E3L-N08", "names.missing", needs=("drafter", "config"), engine="sglang", after=_FILES, effect=_CHANCE)
def missing(case: Investigation) -> Iterator[Found]:
    """A parameter of an MLA head gets no tensor.

    Seen: A tensor that the MLA layer needs is in the checkpoint under no name.
    Why: A conversion lost it; q_a_proj and kv_a_proj_with_mqa are fused, so that one without the other is lost too.
    Effect: An uninitialised matrix; the class reports no parameter without a tensor.
    Repair: Export the drafter again with that tensor.
    Sources: SGLang 0.5.12 and 0.5.23 `models/kimi_k25_eagle3.py:428-501`.
    """
    rule = _rule(case)
    absent = tuple(part for part in (*rule["layer"], *rule["top"]) if case.tensor(part) is None)
    if absent:
        yield Found(
            f"{len(absent)} tensors of the MLA head are missing: {listed(absent)}",
            tuple(seen(f"no tensor is called {part}, with or without a prefix") for part in absent[:6]),
            f"Export the drafter again with {listed(absent)}.",
            confidence=0.95,
        )


def _rule(case: Investigation) -> dict[str, Any]:
    if not case.is_mla:
        raise SkipCheck("the head's attention is not MLA")
    if case.load is not None:
        raise SkipCheck("the load is simulated, and looked at by the checks for every head")
    table: dict[str, Any] = store()["mla"]
    return table


def _reaches(name: str, rule: dict[str, Any]) -> bool:
    """Whether a name reaches a parameter of the class, or is consumed in another way."""
    if name in (*rule["top"], "lm_head.weight", "embed_tokens.weight", "d2t", "t2d"):
        return True
    return any(
        name.startswith(prefix) and name.removeprefix(prefix) in rule["layer"] for prefix in rule["prefixes"]
    )


def _meant(name: str, rule: dict[str, Any]) -> bool:
    """Whether a name that reaches nothing looks made for a parameter."""
    parts = (*rule["layer"], *rule["top"], "lm_head.weight")
    return any(name == part or name.endswith(f".{part}") for part in parts)
