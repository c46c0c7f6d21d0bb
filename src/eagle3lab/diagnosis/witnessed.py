"""What the probe saw inside a server, as evidence: not what must follow from the files, but what happened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3lab.diagnosis.model import Observed

if TYPE_CHECKING:
    from eagle3lab.acceptance.run import Counts
    from eagle3lab.runs.events import Boundary
    from eagle3lab.runs.judgement import Start


@dataclass(frozen=True, slots=True)
class Witnessed:
    """The events of one run.

    Attributes:
        path: The folder.
        start: What was seen until the server was ready, of each thing what the first rank says that says something.
        prompts: Passes of the drafter over prompts and accepted tokens, where fused states should arrive.
        counters: Verify steps and accepted drafts, the replicas together; None without a verify step.
        notes: What the reader remarks.
    """

    path: str
    start: Start
    prompts: tuple[Boundary, ...]
    counters: Counts | None
    notes: tuple[str, ...]

    @property
    def observed(self) -> Observed | None:
        """Acceptance as the server's own verifications count it; None where there were none."""
        from eagle3lab.acceptance.signature import judge_counts

        total = self.counters
        if total is None:
            return None
        mean = 1 + total.accepted / total.verify_steps
        positions = total.positions or ()
        shares = tuple(count / total.verify_steps for count in positions)
        found = judge_counts(total.verify_steps, total.accepted, positions, total.draft_tokens)
        drafts = total.verify_steps * max(1, (total.draft_tokens or 2) - 1)
        reason = f"{total.accepted} of {drafts} drafts were accepted in {total.verify_steps} verify steps"
        return Observed(found.name, found.confidence, reason, mean, total.accepted / drafts, shares)


def read_witnessed(path: Path) -> Witnessed:
    """Read an events folder.

    Raises:
        InputError: It is none, or a file is damaged.
    """
    from eagle3lab.acceptance.run import pooled_counters
    from eagle3lab.runs.events import Boundary, read_events
    from eagle3lab.runs.judgement import Start

    ranks = read_events(path)
    events = [event for rank in ranks for event in rank.events]
    return Witnessed(
        path=str(path),
        start=Start.of(events),
        prompts=tuple(
            event
            for event in events
            if isinstance(event, Boundary) and event.phase in ("extend", "draft_extend")
        ),
        counters=pooled_counters(ranks),
        notes=tuple(note for rank in ranks for note in rank.notes),
    )
