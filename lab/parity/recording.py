"""What a probe recorded at the boundary: the passes of a drafter with their tensors, and the sequences in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from eagle3lab.errors import InputError

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
    from safetensors import SafetensorError, safe_open

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
