"""What a probe recorded at the boundary: the passes of a drafter with their tensors, and the sequences in them.

The passes are computed again as well: what the engine's side says is held against what a real server returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from eagle3lab.errors import InputError
from lab.parity.report import Difference, Replayed, difference
from lab.reference import Drafter
from lab.reference.forward import Cache, Place

_SUFFIX = ".safetensors"


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of the drafter in a server.

    Attributes:
        path: The file.
        step: Its number in the process.
        phase: extend, draft_extend or decode.
        states: `[N, width]` float32, the hidden states that came in.
        tokens: `[N]` int64, the token after each.
        positions: `[N]` int64 rotary positions; None if not recorded.
        lengths: Tokens of each request in this pass; None if not recorded.
        before: Tokens of each request that came before them, from a cache or an earlier chunk; None if not recorded.
        logits: `[N or requests, D]` float32; None if not recorded.
        output: `[N or requests, H]` float32, the states it returned; None if not recorded.
        dtype: Of the states as recorded.
    """

    path: Path
    step: int
    phase: str
    states: Tensor
    tokens: Tensor
    positions: Tensor | None
    lengths: tuple[int, ...] | None
    before: tuple[int, ...] | None
    logits: Tensor | None
    output: Tensor | None
    dtype: torch.dtype

    def starts(self, request: int, row: int) -> bool:
        """Whether a request begins in this pass, at this row; positions alone cannot tell 1 from one token cached."""
        if self.phase != "extend":
            return False
        if self.before is not None:
            return self.before[request] == 0
        return self.positions is None or int(self.positions[row]) <= 1


@dataclass(frozen=True, slots=True)
class Given:
    """One sequence on which both sides are run.

    Attributes:
        tokens: `[T]` int64, the token after each state.
        trained_states: `[T, k × Ht]` float32, for the trainer's side.
        served_states: `[T, k' × Ht]` float32, for the engine's.
        positions: `[T]` int64, the server's own rotary positions; None where no server gave them.
    """

    tokens: Tensor
    trained_states: Tensor
    served_states: Tensor
    positions: Tensor | None


def read_passes(folder: Path) -> tuple[Pass, ...]:
    """The passes whose tensors lie in a folder, in the order in which they were made.

    Args:
        folder: The events of a probe, a run's folder that has them, or any folder of safetensors files with
            `hidden_states` and `input_ids` (`positions`, `extend_seq_lens`, `logits` and `output_states` if there).

    Raises:
        InputError: There is none, or a file is not what it should be.
    """
    inner = folder / "events"
    place = inner if inner.is_dir() else folder
    if not place.is_dir():
        raise InputError("there is no such folder", path=folder, advice="Give the events folder of a run.")
    files = sorted(path for path in place.iterdir() if path.suffix == _SUFFIX and path.is_file())
    if not files:
        raise InputError(
            "holds no recorded tensors",
            path=place,
            advice="Run the server with a probe that keeps them: probe_overlay(…, tensors=60).",
        )
    # Ranks see the same states: one of them is enough.
    stem = files[0].stem.rpartition("-")[0]
    passes = [
        _read(path, number) for number, path in enumerate(files) if path.stem.rpartition("-")[0] == stem
    ]
    return tuple(sorted(passes, key=lambda one: one.step))


def _read(path: Path, number: int) -> Pass:
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InputError(f"cannot be read: {error}", path=path, advice="Record it again.") from None
    for name, rank in (("hidden_states", 2), ("input_ids", 1)):
        if name not in tensors:
            raise InputError("is not in this recording", path=path, tensor=name)
        if tensors[name].ndim != rank:
            shape = list(tensors[name].shape)
            raise InputError(f"has shape {shape}, where {rank} dimensions were meant", path=path, tensor=name)
    states, tokens = tensors["hidden_states"], tensors["input_ids"].to(torch.int64)
    positions, lengths, whole = (tensors.get(name) for name in ("positions", "extend_seq_lens", "seq_lens"))
    if lengths is not None and (bool((lengths <= 0).any()) or int(lengths.sum()) != len(tokens)):
        lengths = None  # those of another pass: a decode does not renew them
    before = None
    if lengths is not None and whole is not None and lengths.shape == whole.shape:
        before = tuple(int(one) for one in (whole - lengths).flatten())
    if len(states) != len(tokens) or (positions is not None and positions.shape != tokens.shape):
        raise InputError("its tensors are of different lengths", path=path, tensor="input_ids")
    step = about.get("step", "")
    return Pass(
        path,
        int(step) if step.isascii() and step.isdigit() else number,
        about.get("phase", "extend"),
        states.to(torch.float32),
        tokens,
        None if positions is None else positions.to(torch.int64),
        None if lengths is None else tuple(int(one) for one in lengths.flatten()),
        before,
        _as_float(tensors.get("logits")),
        _as_float(tensors.get("output_states")),
        states.dtype,
    )


def _as_float(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.to(torch.float32)


def sequences(passes: Sequence[Pass], most: int, longest: int) -> tuple[tuple[Given, ...], tuple[str, ...]]:
    """The prompts in the recorded passes, and notes on what is left out.

    Args:
        passes: From `read_passes`.
        most: Prompts taken at most.
        longest: Tokens of each at most; the rest is cut off.

    Raises:
        InputError: No pass over a prompt was recorded from its beginning.
    """
    found: list[Given] = []
    notes: list[str] = []
    headless = cut = 0
    for one in passes:
        if one.phase != "extend":
            continue
        counts = one.lengths or (len(one.tokens),)
        start = 0
        for request, count in enumerate(counts):
            rows, row, start = slice(start, start + min(count, longest)), start, start + count
            positions = None if one.positions is None else one.positions[rows]
            if count and not one.starts(request, row):
                headless += 1
            elif count > 1:
                cut += count > longest
                found.append(Given(one.tokens[rows], one.states[rows], one.states[rows], positions))
    if headless:
        notes.append(f"{headless} recorded prompts begin after their first token and were left out")
    if cut:
        notes.append(f"{cut} prompts were cut to {longest} tokens")
    if len(found) > most:
        notes.append(f"{most} of {len(found)} recorded prompts are compared")
    if not found:
        raise InputError(
            "no pass over a whole prompt was recorded",
            path=passes[0].path.parent,
            advice="Keep the tensors of the first passes, with prompts that are not in the server's cache.",
        )
    return tuple(found[:most]), tuple(notes)


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
    returned: Tensor | None = None

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
            computed = self.drafter.forward(one.tokens[None], one.states[None], place, self.caches, own=own)
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
            logits=_against(one.logits, computed["logits"][0], tolerance),
            states=_against(one.output, computed["recurrence"][0], tolerance),
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
