"""A recording computed again by the engine's side: what it says is checked against what a real server returned.

Passes of one request at a time are replayed, chains only: the prompt, the draft steps, what was accepted, and so on,
with one cache, as the server had it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from lab.parity.difference import difference
from lab.parity.model import Difference, Replayed
from lab.parity.recording import Pass
from lab.reference import Drafter
from lab.reference.llama import Cache, Place

#: A server's kernels add in another order than torch does here, and in its own dtype: largest relative difference
#: that counts as equal, by the dtype of the states.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}


def replay(drafter: Drafter, passes: Sequence[Pass]) -> tuple[tuple[Replayed, ...], tuple[str, ...]]:
    """Each pass computed again and compared, and notes on those that are left out.

    Args:
        drafter: As served.
        passes: From `read_passes`, in their order.
    """
    found: list[Replayed] = []
    request: _Request | None = None
    left_out = room = 0
    for number, one in enumerate(passes):
        if one.positions is None or not _single(one):
            request = None
        elif one.phase == "extend":
            first = int(one.positions[0])
            room = sum(len(later.tokens) for later in passes[number:])
            begins = one.starts(0, 0)
            request = _Request(drafter, first, drafter.caches(1, room + 1)) if begins else None
        elif number and one.step != passes[number - 1].step + 1:
            request = None
        if request is None or one.positions is None or int(one.positions.max()) - request.first >= room:
            request = None
            left_out += 1
        else:
            found.append(request.replayed(one, passes[number + 1] if number + 1 < len(passes) else None))
    notes = (f"{left_out} recorded passes hold several requests, or begin in the middle",) if left_out else ()
    return tuple(found), notes


@dataclass(slots=True)
class _Request:
    """One request under way.

    Attributes:
        drafter: As served.
        first: Rotary position of its first token.
        caches: Its keys and values.
        slot: Where the next pass of the drafter on its own belongs; None where only its position tells.
        returned: The state that the last pass handed on, `[1, H]`, if it was recorded.
    """

    drafter: Drafter
    first: int
    caches: list[Cache]
    slot: int | None = None
    returned: Tensor | None = field(default=None)

    def replayed(self, one: Pass, after: Pass | None) -> Replayed:
        """Compute a pass; `after` tells how many of the accepted tokens stand."""
        assert one.positions is not None
        own, wiring, count = one.phase == "decode", self.drafter.wiring, len(one.tokens)
        start = int(one.positions[0]) - self.first - (wiring.position_gap if own else 0)
        expected = self.slot if own else (0 if one.phase == "extend" else None)
        slots = max(0, start if expected is None else expected) + torch.arange(count)[None]
        seen = torch.arange(int(slots.max()) + 1) <= slots[:, :, None]
        place = Place(slots, slots + self.first + (wiring.position_gap if own else 0), seen)
        if wiring.accepted_twice and one.phase == "draft_extend":
            place = place.doubled(torch.tensor([count]))
        with torch.inference_mode():
            logits, states = self.drafter.forward(
                one.tokens[None], one.states[None], place, self.caches, own=own
            )
        tolerance = TOLERANCES.get(one.dtype, TOLERANCES[torch.bfloat16])
        given = None
        if own and self.returned is not None and self.returned.shape == one.states.shape:
            given = difference(self.returned, one.states, 0.0)
        kept = self._kept(one, after, int(slots[0, 0]))
        self.slot = int(slots[0, 0]) + kept
        self.returned = None
        if one.output is not None:
            self.returned = one.output[kept - 1 : kept] if len(one.output) == count else one.output[-1:]
        return Replayed(
            step=one.step,
            phase=one.phase,
            tokens=count,
            first_position=int(one.positions[0]),
            expected_position=int(place.positions[0, 0]),
            logits=_against(one.logits, logits[0], tolerance),
            states=_against(one.output, states[0], tolerance),
            given=given,
        )

    def _kept(self, one: Pass, after: Pass | None, start: int) -> int:
        """Tokens of the pass that stand: newer servers pad what was accepted to the length of a chain."""
        count = len(one.tokens)
        if one.phase != "draft_extend" or after is None or after.phase != "decode":
            return count
        if after.positions is None or len(after.positions) != 1:
            return count
        follows = int(after.positions[0]) - self.first - self.drafter.wiring.position_gap
        return min(max(follows - start, 1), count)


def _single(one: Pass) -> bool:
    """Whether the pass holds one request, and one branch of it."""
    if one.phase == "decode":
        return len(one.tokens) == 1
    return len(one.tokens) > 0 and (one.lengths is None or len(one.lengths) == 1)


def _against(recorded: Tensor | None, here: Tensor, tolerance: float) -> Difference | None:
    """The recorded rows held against those computed here: all of them, or the last."""
    if recorded is None:
        return None
    return difference(recorded, here if len(recorded) == len(here) else here[-len(recorded) :], tolerance)
