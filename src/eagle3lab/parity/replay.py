"""A recording computed again by the engine's side: what it says is checked against what a real server returned.

Passes of one request at a time are replayed, chains only: the prompt, the draft steps, what was accepted, and so on,
with one cache, as the server had it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from eagle3lab.parity.difference import difference
from eagle3lab.parity.model import Difference, Replayed
from eagle3lab.parity.recording import Pass
from eagle3lab.specimen.reference import Drafter
from eagle3lab.specimen.reference.llama import Place

#: A server's kernels add in another order than torch does here, and in its own dtype: largest relative difference
#: that counts as equal, by the dtype of the states.
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}


def replay(drafter: Drafter, passes: Sequence[Pass]) -> tuple[tuple[Replayed, ...], tuple[str, ...]]:
    """Each pass computed again and compared, and notes on those that are left out.

    Args:
        drafter: As served.
        passes: From `read_passes`, in their order.
    """
    room = sum(len(one.tokens) for one in passes) + 1
    found: list[Replayed] = []
    caches = drafter.caches(1, room)
    length = drafted = first = 0
    following = left_out = 0
    last: Tensor | None = None
    for number, one in enumerate(passes):
        begins = one.phase == "extend" and one.positions is not None and int(one.positions[0]) <= 1
        if not _single(one) or not (begins or following) or (following and one.step != following):
            left_out, following = left_out + 1, 0
            continue
        following, count = one.step + 1, len(one.tokens)
        wiring = drafter.wiring
        if one.phase == "decode":
            slots = torch.tensor([[length + drafted]])
            positions = slots + first + wiring.position_gap
            drafted += 1
        else:
            if begins:
                first, length = _first(one), 0
            slots = length + torch.arange(count)[None]
            positions, drafted = slots + first, 0
        seen = torch.arange(int(slots.max()) + 1) <= slots[:, :, None]
        place = Place(slots, positions, seen)
        with torch.inference_mode():
            logits, states = drafter.forward(
                one.tokens[None], one.states[None], place, caches, own=one.phase == "decode"
            )
        tolerance = TOLERANCES.get(one.dtype, TOLERANCES[torch.bfloat16])
        kept = _valid(one, passes[number + 1 :], count)
        given = None
        if one.phase == "decode" and last is not None:
            given = difference(last[None], one.states, 0.0)
        found.append(
            Replayed(
                one.step,
                one.phase,
                count,
                None if one.positions is None else int(one.positions[0]),
                _against(one.logits, logits[0], kept, tolerance),
                _against(one.output, states[0], kept, tolerance),
                given,
            )
        )
        if one.phase != "decode":
            length += kept
        last = None if one.output is None else one.output[min(kept, len(one.output)) - 1]
    notes = (f"{left_out} recorded passes hold more than one request, or not from its start",) if left_out else ()
    return tuple(found), notes


def _single(one: Pass) -> bool:
    """Whether the pass holds one request, and one branch of it."""
    if one.phase == "decode":
        return len(one.tokens) == 1
    return one.lengths is None or len(one.lengths) == 1


def _first(one: Pass) -> int:
    return 0 if one.positions is None else int(one.positions[0])


def _valid(one: Pass, later: Sequence[Pass], count: int) -> int:
    """How many of the tokens stand: a server may pad what was accepted to the length of a chain."""
    return count


def _against(recorded: Tensor | None, here: Tensor, kept: int, tolerance: float) -> Difference | None:
    if recorded is None:
        return None
    same = here[:kept] if len(recorded) == len(here) else here[kept - 1 : kept]
    return difference(recorded[: len(same)], same, tolerance)
