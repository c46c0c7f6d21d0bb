"""The boundary between target and drafter: what comes in at each pass of the drafter, and what becomes of it.

SGLang calls `model.forward` itself, past torch's hooks, so the method is replaced on the drafter's instance. What runs
inside a CUDA graph is Python only while the graph is captured: such a pass is reported as a rehearsal. A graph may hold
the whole forward pass, or (breakable prefill graphs, the default of newer releases on CUDA) only that of the inner
model: then the outer one still runs for every prompt, with the inner `forward` replaced by the replay. Whether fc ran
cannot be seen in such a pass, and it is reported as not known.
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
from eagle3lab.serving.hooks import FailSafe
from eagle3lab.serving.probe.recorder import Recorder, now

_WHERE = "boundary"
_MOST_ROWS = 256
_MOST_BYTES = 2**28
_TOP = 4


@dataclass(slots=True)
class _Pass:
    """One pass under way; a rehearsal has no step, and nothing of it is read or kept."""

    phase: Phase
    hidden: torch.Tensor  # [rows, width], the last of them perhaps padding
    rows: int  # those that are tokens
    step: int = -1
    entered: bool = False  # whether the inner model's own forward was called
    fc_out: torch.Tensor | None = None
    embeds: torch.Tensor | None = None
    kept: dict[str, torch.Tensor] | None = None

    @property
    def rehearsal(self) -> bool:
        return self.step < 0


@dataclass(slots=True)
class BoundaryWatch:
    """Watches the passes of the drafters of one rank.

    Attributes:
        recorder: Where events go.
        safe: Runs the watching.
        full_steps: Passes reported one by one.
        tensors: Passes of which the tensors are kept.
        prefix: Path of the tensors' files without their number: `events/boundary-0-4711`.
        passes: Passes so far by phase, rehearsals not counted.
        widths: The same by `phase:width`.
        ready: Whether the server is ready: earlier passes are rehearsals.
    """

    recorder: Recorder
    safe: FailSafe
    full_steps: int
    tensors: int
    prefix: Path
    passes: Counter[str] = field(default_factory=Counter)
    widths: Counter[str] = field(default_factory=Counter)
    ready: bool = False
    _step: int = 0
    _current: _Pass | None = None
    _rehearsed: set[tuple[str, int, bool]] = field(default_factory=set)
    _looked_into: set[tuple[str, int]] = field(default_factory=set)
    _handles: list[Any] = field(default_factory=list)

    def install(self, model: torch.nn.Module) -> None:
        """Watch this drafter from now on."""
        inner: torch.nn.Module | None = None
        for name, module in model.named_modules():
            parent, _, leaf = name.rpartition(".")
            if leaf == "fc":
                self._handles.append(module.register_forward_hook(self._on_fc))
                inner = model.get_submodule(parent) if parent else None
            elif leaf == "embed_tokens":
                self._handles.append(module.register_forward_hook(self._on_embed))
        model.forward = self._outer(model, model.forward, has_inner=inner is not None)
        if inner is not None:
            inner.forward = self._inner(model, inner.forward)

    def _outer(self, model: Any, original: Callable[..., Any], has_inner: bool) -> Callable[..., Any]:
        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            self.safe.run(_WHERE, self._begin, args, kwargs)
            if self._current is not None:
                self._current.entered = not has_inner
            result = original(*args, **kwargs)
            self.safe.run(_WHERE, self._end, model, result)
            return result

        return forward

    def _inner(self, model: Any, original: Callable[..., Any]) -> Callable[..., Any]:
        """The inner model's forward; called by itself only while a graph of it is captured."""

        @functools.wraps(original)
        def forward(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(*args, **kwargs)
            alone = self._current is None and self._is_rehearsal()
            if alone:
                self.safe.run(_WHERE, self._begin, args, kwargs)
            if self._current is not None:
                self._current.entered = True
            result = original(*args, **kwargs)
            if alone:
                self.safe.run(_WHERE, self._end, model, None)
            return result

        return forward

    def _is_rehearsal(self) -> bool:
        return not self.ready or _capturing()

    def _on_fc(self, module: Any, args: Any, output: Any) -> None:
        if self._current is not None:  # a parallel layer answers with its bias beside its output
            self._current.fc_out = output[0] if isinstance(output, tuple) else output

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
        if self._is_rehearsal():
            self._current = _Pass(phase, hidden, len(hidden))
            return
        self.passes[phase] += 1
        self.widths[f"{phase}:{hidden.shape[-1]}"] += 1
        step, self._step = self._step, self._step + 1
        if step >= self.full_steps:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()
            return
        self._current = _Pass(phase, hidden, _tokens(batch, hidden), step)
        if step < self.tensors and hidden.nbytes < _MOST_BYTES:
            self._current.kept = _inputs(args, kwargs, batch, hidden)

    def _end(self, model: Any, result: Any) -> None:
        current, self._current = self._current, None
        if current is None:
            return
        width, ran = (
            int(current.hidden.shape[-1]),
            None if not current.entered else current.fc_out is not None,
        )
        if current.rehearsal:
            kind = (current.phase, width, bool(ran))
            if kind in self._rehearsed:
                return
            self._rehearsed.add(kind)
        norms, drafts, tokens = _Norms(), list[int](), list[int]()
        if not current.rehearsal:
            norms = self._norms(current)
            if (current.phase, width) not in self._looked_into:
                self._looked_into.add((current.phase, width))
                drafts, tokens = _first_drafts(model, result)
        embeds = current.embeds
        self.recorder.emit(
            Boundary(
                time=now(),
                step=current.step,
                phase=current.phase,
                hidden_shape=[current.rows, width],
                embeds_shape=[] if embeds is None else list(embeds.shape),
                fc_ran=ran,
                hidden_norm=norms.hidden,
                embeds_norm=norms.embeds,
                fc_norm=norms.fc,
                aux_norms=norms.layers,
                drafts=drafts,
                tokens=tokens,
                tensors=None if current.kept is None else self._keep(current, result),
                rehearsal=current.rehearsal,
            )
        )

    def _norms(self, current: _Pass) -> _Norms:
        """The norms of a pass, read from the device at once; those of the layers for the first pass of a kind only."""
        hidden, fused, embeds = current.hidden, current.fc_out, current.embeds
        parts: list[torch.Tensor] = []
        if fused is not None and (current.phase, int(hidden.shape[-1])) not in self._looked_into:
            count, rest = divmod(hidden.shape[-1], fused.shape[-1])
            parts = list(hidden.chunk(count, dim=-1)) if not rest else []
        rows = [some for some in (hidden, embeds, fused, *parts) if some is not None]
        if not current.rows:
            return _Norms()
        values = [value if value < float("inf") else None for value in _norms(rows, current.rows)]
        taken = iter(values)
        return _Norms(
            next(taken),
            None if embeds is None else next(taken),
            None if fused is None else next(taken),
            [value for value in taken if value is not None],
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


@dataclass(frozen=True, slots=True)
class _Norms:
    """Of one pass; see `Boundary`."""

    hidden: float | None = None
    embeds: float | None = None
    fc: float | None = None
    layers: list[float] = field(default_factory=list)


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


def _tokens(batch: Any, hidden: torch.Tensor) -> int:
    """Rows that are tokens: a graph's buffer is padded, and only the lengths of the requests tell."""
    lengths = getattr(batch, "extend_seq_lens_cpu", None)
    rows = len(hidden)
    if not isinstance(lengths, list) or not lengths or not batch.forward_mode.name.startswith("EXTEND"):
        return rows
    return min(rows, sum(int(length) for length in lengths))


def _norms(tensors: list[torch.Tensor], rows: int) -> list[float]:
    """The mean Euclidean norm of some of the first `rows` rows of each, with one look at the device."""
    every = max(1, rows // _MOST_ROWS)
    means = [some.detach()[:rows:every].float().norm(dim=-1).mean() for some in tensors]
    found: list[float] = torch.stack(means).tolist()
    return found


def _first_drafts(model: Any, result: Any) -> tuple[list[int], list[int]]:
    """What the drafter ranks first after the last row, likeliest first: ids of its vocabulary, and of the target's."""
    logits = getattr(result, "next_token_logits", None)
    if not isinstance(logits, torch.Tensor) or logits.dim() != 2 or not len(logits):
        return [], []
    drafts: list[int] = logits[-1].topk(min(_TOP, logits.shape[-1])).indices.tolist()
    hot = getattr(model, "hot_token_id", None)
    if hot is None:
        return drafts, drafts
    return drafts, [int(hot[draft]) for draft in drafts if draft < len(hot)]


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
