"""The boundary between target and drafter: what comes in at each pass of the drafter, and whether fc is applied.

SGLang calls `model.forward` itself, past torch's hooks, so the method is replaced on the drafter's instance. What runs
inside a CUDA graph is Python only while the graph is captured; those passes are reported as rehearsals.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from eagle3lab.runs.events import Boundary, Phase
from eagle3lab.serving.probe.careful import Careful
from eagle3lab.serving.probe.recorder import Recorder, now

_WHERE = "boundary"
_MOST_ROWS = 256
_MOST_BYTES = 2**28


@dataclass(slots=True)
class _Pass:
    """One pass under way; a rehearsal has no step, and nothing of it is read or kept."""

    phase: Phase
    hidden: torch.Tensor
    step: int = -1
    hidden_norm: float | None = None
    kept: dict[str, torch.Tensor] | None = None
    fc_ran: bool = False
    embeds: torch.Tensor | None = None

    @property
    def rehearsal(self) -> bool:
        return self.step < 0


@dataclass(slots=True)
class BoundaryWatch:
    """Watches the passes of the drafters of one rank.

    Attributes:
        recorder: Where events go.
        careful: Runs the watching.
        full_steps: Passes reported one by one.
        tensors: Passes of which the tensors are kept.
        prefix: Path of the tensors' files without their number: `events/boundary-0-4711`.
        passes: Passes so far by phase, rehearsals not counted.
        widths: The same by `phase:width`.
        ready: Whether the server is ready: earlier passes are rehearsals.
    """

    recorder: Recorder
    careful: Careful
    full_steps: int
    tensors: int
    prefix: Path
    passes: Counter[str] = field(default_factory=Counter)
    widths: Counter[str] = field(default_factory=Counter)
    ready: bool = False
    _step: int = 0
    _current: _Pass | None = None
    _rehearsed: set[tuple[str, int, bool]] = field(default_factory=set)
    _handles: list[Any] = field(default_factory=list)

    def install(self, model: torch.nn.Module) -> None:
        """Watch this drafter from now on."""
        original = model.forward
        model.forward = self._watched(original)
        for name, module in model.named_modules():
            leaf = name.rpartition(".")[2]
            if leaf == "fc":
                self._handles.append(module.register_forward_hook(self._on_fc))
            elif leaf == "embed_tokens":
                self._handles.append(module.register_forward_hook(self._on_embed))

    def _watched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            self.careful.run(_WHERE, self._begin, args, kwargs)
            result = original(*args, **kwargs)
            self.careful.run(_WHERE, self._end, result)
            return result

        return forward

    def _on_fc(self, module: Any, args: Any, output: Any) -> None:
        if self._current is not None:
            self._current.fc_ran = True

    def _on_embed(self, module: Any, args: Any, output: Any) -> None:
        if self._current is not None and isinstance(output, torch.Tensor):
            self._current.embeds = output

    def _begin(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._current = None
        batch = kwargs.get("forward_batch")
        if batch is None:
            batch = next(value for value in args if hasattr(value, "forward_mode"))
        phase = _phase(batch.forward_mode.name)
        hidden = getattr(batch.spec_info, "hidden_states", None)
        if phase is None or hidden is None:
            return
        if not self.ready or _capturing():
            self._current = _Pass(phase, hidden)
            return
        self.passes[phase] += 1
        self.widths[f"{phase}:{hidden.shape[-1]}"] += 1
        step, self._step = self._step, self._step + 1
        if step >= self.full_steps:
            self._forget_hooks()
            return
        keep = step < self.tensors and hidden.nbytes < _MOST_BYTES
        kept = _inputs(args, kwargs, batch, hidden) if keep else None
        self._current = _Pass(phase, hidden, step, _norm(hidden), kept)

    def _end(self, result: Any) -> None:
        current, self._current = self._current, None
        if current is None:
            return
        if current.rehearsal:
            kind = (current.phase, int(current.hidden.shape[-1]), current.fc_ran)
            if kind in self._rehearsed:
                return
            self._rehearsed.add(kind)
        embeds = current.embeds
        self.recorder.emit(
            Boundary(
                time=now(),
                step=current.step,
                phase=current.phase,
                hidden_shape=list(current.hidden.shape),
                embeds_shape=[] if embeds is None else list(embeds.shape),
                fc_ran=current.fc_ran,
                hidden_norm=current.hidden_norm,
                embeds_norm=None if embeds is None or current.rehearsal else _norm(embeds),
                tensors=None if current.kept is None else self._keep(current, result),
                rehearsal=current.rehearsal,
            )
        )

    def _keep(self, current: _Pass, result: Any) -> str:
        from safetensors.torch import save_file

        assert current.kept is not None
        tensors = current.kept
        if current.embeds is not None:
            tensors["embeds"] = current.embeds
        for key, name in (("logits", "next_token_logits"), ("output_states", "hidden_states")):
            if isinstance(value := getattr(result, name, None), torch.Tensor):
                tensors[key] = value
        path = self.prefix.with_name(f"{self.prefix.name}-{current.step}.safetensors")
        save_file(
            {key: value.detach().cpu().contiguous().clone() for key, value in tensors.items()},
            path,
            metadata={"phase": current.phase, "step": str(current.step)},
        )
        return path.name

    def _forget_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _capturing() -> bool:
    """Whether a CUDA graph is being captured, where reading a number back from the device is an error."""
    return torch.cuda.is_available() and bool(torch.cuda.is_current_stream_capturing())


def _phase(mode: str) -> Phase | None:
    """The phase that a forward mode of SGLang belongs to; None for a pass without tokens."""
    if mode == "IDLE":
        return None
    if mode.startswith("DRAFT_EXTEND"):
        return "draft_extend"
    return "decode" if mode == "DECODE" else "extend"


def _norm(rows: torch.Tensor) -> float | None:
    """Mean Euclidean norm of some rows; see `Boundary.hidden_norm`."""
    if rows.shape[0] == 0:
        return None
    some = rows.detach()[:: max(1, rows.shape[0] // _MOST_ROWS)]
    value = float(some.float().norm(dim=-1).mean())
    return value if value < float("inf") else None


def _inputs(
    args: tuple[Any, ...], kwargs: dict[str, Any], batch: Any, hidden: torch.Tensor
) -> dict[str, torch.Tensor]:
    """What the pass was given, copied before anything can change it."""
    given = dict(zip(("input_ids", "positions"), args, strict=False)) | kwargs
    tensors = {"hidden_states": hidden}
    for name in ("input_ids", "positions"):
        if isinstance(value := given.get(name), torch.Tensor):
            tensors[name] = value
    for name in ("seq_lens", "extend_seq_lens", "extend_start_loc"):
        if isinstance(value := getattr(batch, name, None), torch.Tensor):
            tensors[name] = value
    return {name: value.detach().clone() for name, value in tensors.items()}
