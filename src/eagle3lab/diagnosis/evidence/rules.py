"""What a release does, from `release_rules.toml`: with the atlas, the only place where releases are told apart."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eagle3lab.errors import InputError


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine and its release; `release` is empty where only the engine is known."""

    kind: str
    release: str = ""

    def __str__(self) -> str:
        return f"{self.kind}=={self.release}" if self.release else self.kind

    @property
    def name(self) -> str:
        """As it is written in a sentence."""
        return {"sglang": "SGLang", "vllm": "vLLM"}.get(self.kind, self.kind)


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).parents[1].joinpath("release_rules.toml").read_text("utf-8"))


def _within(row: dict[str, Any], release: str) -> bool:
    from eagle3lab.acceptance.formulas import release_key

    try:
        key = release_key(release)
    except InputError:
        return False
    first, end = row.get("since"), row.get("until")
    return (not first or release_key(first) <= key) and (not end or key < release_key(end))


def _rows(rule: str, kind: str) -> list[dict[str, Any]]:
    return [row for row in _table().get(kind, ()) if row["rule"] == rule]


def holds(rule: str, engine: Engine) -> bool:
    """Whether `rule` holds in this release; False too where the release is not known."""
    return bool(engine.release) and any(_within(row, engine.release) for row in _rows(rule, engine.kind))


def source(rule: str, engine: Engine) -> str:
    """Where a rule was read; empty for a rule that is not written down."""
    return str(next((row["source"] for row in _rows(rule, engine.kind)), ""))


def since(rule: str, engine: Engine) -> str:
    """The first release in which a rule holds; empty where it always did."""
    return str(next((row.get("since", "") for row in _rows(rule, engine.kind)), ""))


def mla() -> dict[str, Any]:
    """What is known of SGLang's MLA drafter class: its name, the tensors it needs, the prefixes it knows."""
    table: dict[str, Any] = _table()["mla"]
    return table


def vllm_drafter() -> dict[str, Any]:
    """What is known of vLLM's drafter: default capture points, and the names that its loader takes."""
    table: dict[str, Any] = _table()["vllm_drafter"]
    return table
