"""What the probe saw inside a server, as evidence: not what must follow from the files, but what happened."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from eagle3lab.diagnosis.model import Observed

if TYPE_CHECKING:
    from eagle3lab.runs.events import Boundary, Built, Captured, Counters, Loaded, RankEvents, TokenMap

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Witnessed:
    """The events of one run.

    Attributes:
        path: The folder.
        built: The drafter as the engine built it.
        loaded: What became of the checkpoint's names on the first rank that loaded it.
        token_map: hot_token_id as the engine holds it.
        captured: The call that asked the target for auxiliary hidden states; None if there was none.
        prompts: Passes of the drafter over prompts and accepted tokens, where fused states should arrive.
        counters: Verify steps and accepted drafts, the replicas together; None without a verify step.
        notes: What the reader remarks.
    """

    path: str
    built: Built | None
    loaded: Loaded | None
    token_map: TokenMap | None
    captured: Captured | None
    prompts: tuple[Boundary, ...]
    counters: Counters | None
    notes: tuple[str, ...]

    @property
    def observed(self) -> Observed | None:
        """Acceptance as the server's own verifications count it; None where there were none."""
        from eagle3lab.acceptance.counts import PerPosition
        from eagle3lab.acceptance.signature import Evidence, signature
        from eagle3lab.acceptance.statistics import Estimate

        total = self.counters
        if total is None or not total.verify_steps:
            return None
        mean = 1 + total.accepted / total.verify_steps
        shares = tuple(count / total.verify_steps for count in total.per_position)
        positions = PerPosition.from_unconditional(shares, total.verify_steps) if shares else None
        unknown = Estimate(mean, float("-inf"), float("inf"), 0.95, 1, 1.0)
        found = signature(Evidence(unknown, per_position=positions, draft_tokens=total.draft_tokens))
        drafts = total.verify_steps * max(1, total.draft_tokens - 1)
        reason = f"{total.accepted} of {drafts} drafts were accepted in {total.verify_steps} verify steps"
        return Observed(found.name, found.confidence, reason, mean, total.accepted / drafts, shares)


def read_witnessed(path: Path) -> Witnessed:
    """Read an events folder.

    Raises:
        InputError: It is none, or a file is damaged.
    """
    from eagle3lab.runs.events import Boundary, Built, Captured, Loaded, TokenMap, read_events

    ranks = read_events(path)
    events = [event for rank in ranks for event in rank.events]
    return Witnessed(
        path=str(path),
        built=_first(event for event in events if isinstance(event, Built) and event.role == "drafter"),
        loaded=_first(event for event in events if isinstance(event, Loaded)),
        token_map=_first(event for event in events if isinstance(event, TokenMap)),
        captured=_first(event for event in events if isinstance(event, Captured)),
        prompts=tuple(
            event
            for event in events
            if isinstance(event, Boundary) and event.phase in ("extend", "draft_extend")
        ),
        counters=_pooled(ranks),
        notes=tuple(note for rank in ranks for note in rank.notes),
    )


def _first(found: Iterable[_T]) -> _T | None:
    return next(iter(found), None)


def _pooled(ranks: tuple[RankEvents, ...]) -> Counters | None:
    """The last counters of one rank of each replica: the ranks of a replica verify the same steps."""
    from eagle3lab.runs.events import Counters

    replicas: dict[int | None, Counters] = {}
    for rank in ranks:
        last = rank.last(Counters)
        if last is not None:
            replicas.setdefault(rank.attached.dp_rank, last)
    found = list(replicas.values())
    if not found:
        return None
    longest = max(len(one.per_position) for one in found)
    padded = [[*one.per_position, *([0] * (longest - len(one.per_position)))] for one in found]
    return Counters(
        time=max(one.time for one in found),
        verify_steps=sum(one.verify_steps for one in found),
        accepted=sum(one.accepted for one in found),
        per_position=[sum(column) for column in zip(*padded, strict=True)],
        draft_tokens=max(one.draft_tokens for one in found),
        boundaries=found[0].boundaries,
        widths=found[0].widths,
    )
