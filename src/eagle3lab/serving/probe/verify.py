"""Accepted drafts per verify step, from the counts that SGLang keeps in its requests.

The counts are those that end in a request's `meta_info`: what is reported here and what a client is told is one number.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from eagle3lab.runs.events import Verified
from eagle3lab.serving.probe.recorder import Recorder, now

# The count of accepted drafts in managers/schedule_batch.py: of 0.5.16 and 0.5.23, of 0.5.11, of 0.5.6 and 0.5.9.
_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accepted_tokens")
_SEEN = "_eagle3lab_seen"
_WRITE_EVERY_S = 1.0


@dataclass(slots=True)
class VerifyWatch:
    """Counts what the verifications of one rank accept.

    Attributes:
        recorder: Where events go.
        full_steps: Verify steps reported one by one.
        draft_tokens: D.
        write_counters: Called when the counters should be written: when no request is left, at most once a second
            otherwise.
        verifications: Requests verified, each in each step.
        accepted: Drafts accepted.
        per_position: How often the draft at position 1, 2, … was.
    """

    recorder: Recorder
    full_steps: int
    draft_tokens: int
    write_counters: Callable[[], None]
    verifications: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)
    _step: int = 0
    _written_at: float = 0.0
    _dirty: bool = False

    def on_results(self, requests: list[Any]) -> None:
        """A batch was processed: see what its requests count now."""
        accepted, ids = [], []
        for request in requests:
            steps, total = request.spec_verify_ct, _accepted(request)
            before = getattr(request, _SEEN, (0, 0))
            if (steps, total) == before:
                continue
            setattr(request, _SEEN, (steps, total))
            if steps == before[0] + 1:
                accepted.append(total - before[1])
                ids.append(str(request.rid))
        if accepted:
            self._count(accepted, ids)
        if self._dirty and (
            time.monotonic() - self._written_at > _WRITE_EVERY_S
            or all(request.finished() for request in requests)
        ):
            self._dirty, self._written_at = False, time.monotonic()
            self.write_counters()

    def _count(self, accepted: list[int], ids: list[str]) -> None:
        self._dirty = True
        self.verifications += len(accepted)
        self.accepted += sum(accepted)
        longest = max(accepted)
        self.per_position.extend([0] * (longest - len(self.per_position)))
        for count in accepted:
            for position in range(count):
                self.per_position[position] += 1
        step, self._step = self._step, self._step + 1
        if step < self.full_steps:
            self.recorder.emit(
                Verified(
                    time=now(), step=step, draft_tokens=self.draft_tokens, accepted=accepted, requests=ids
                )
            )


def _accepted(request: Any) -> int:
    """Drafts that this request had accepted so far."""
    for name in _ACCEPTED:
        if (count := getattr(request, name, None)) is not None:
            return int(count)
    # 0.4.6 to 0.5.5 count verifications only; each adds its accepted drafts and one more to what prefill began.
    return max(0, len(request.output_ids) - 1 - int(request.spec_verify_ct))
