"""How long a context the drafter is run with: the target's, if its own config reaches that far."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3lab.engines.arguments.rules import DraftContextRule
from eagle3lab.engines.target import read_target

VARIABLE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_TRUE = ("1", "true", "yes", "y")


@dataclass(frozen=True, slots=True)
class DraftContext:
    """The drafter's context.

    Attributes:
        target: Tokens that the target is served with.
        own: Tokens that the drafter's config comes to.
        length: Tokens that the drafter is run with; None where the release refuses.
        exception: Type of the exception with which it refuses; empty where it does not.
        message: How that begins.
        source: `file:line` in the release.
    """

    target: int
    own: int
    length: int | None
    exception: str
    message: str
    source: str


def draft_context(
    rule: DraftContextRule,
    target: Mapping[str, Any],
    drafter: Mapping[str, Any],
    context_length: int | None,
    environment: Mapping[str, str],
) -> DraftContext | None:
    """The drafter's context, or None where a config does not state its longest position.

    Args:
        rule: The release's.
        target: The target's config.json.
        drafter: The drafter's.
        context_length: `--context-length`; None where it is not given.
        environment: Variables set for the command.
    """
    own = read_target(drafter).context
    served = context_length if context_length is not None else read_target(target).context
    if own is None or served is None:
        return None
    stated = environment.get(VARIABLE)
    allowed = rule.allowed if stated is None else stated.lower() in _TRUE
    if served <= own or allowed:
        return DraftContext(served, own, served, "", "", rule.handed_at)
    message = f"Target model's context_length ({served}) is greater than the derived context_length ({own})"
    return DraftContext(served, own, None, "ValueError", message, rule.refused_at)
