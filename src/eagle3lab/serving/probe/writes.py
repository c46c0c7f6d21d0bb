"""Which parameters a loader writes, and from which checkpoint name: seen at the parameters themselves.

A loader's code cannot be trusted to say what it did, and comparing values before and after cannot either: a norm is
1.0 before and may be 1.0 after, and memory that was never initialised holds NaNs, which equal nothing. So a *sentinel*
is put into a few hundred elements of every parameter before loading: the element's own value with its lowest bit
turned over, which no later reader could tell from the value. Where the sentinel is still there after loading, nothing
was written; it is then turned back.

Where a name went is seen by looking again after each name. A loader may hold a tensor back and write it with a later
one (MLA's q_a_proj with kv_a_proj), or leave the writing to a thread. Hence each tensor is handed out as an alias of
its own, and looked after once more when the loader lets go of that alias; one that was let go of just before a write
that is larger than the one tensor being written is taken to be in it.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

_SAMPLES = 512
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Below this share of unwritten elements a parameter counts as written: single values may equal their sentinel.
_PART = 0.04
# A write this much larger than its tensor holds others too.
_MORE = 1.2
# Looking after each name stops when it has taken this long altogether: a loader of thousands of names.
_LOOKING_S = 2.0
_GOLDEN = 0.6180339887498949


def plain(name: str) -> str:
    """A name from a checkpoint as text that JSON can carry: a lone surrogate becomes its escape."""
    return name.encode("utf-8", "backslashreplace").decode("utf-8")


@dataclass(slots=True)
class _Sample:
    """Some elements of a parameter, as bit patterns."""

    name: str
    parameter: torch.Tensor
    where: tuple[torch.Tensor, ...]
    original: torch.Tensor
    sentinel: torch.Tensor
    last: torch.Tensor
    replaced: bool = False

    def changed(self) -> float:
        """About how many elements differ from what they were when last asked."""
        if self.replaced:
            return 0.0
        if self.parameter.dim() != len(self.where) or self.parameter.is_meta:
            self.replaced = True  # given other storage altogether: that is a write
            return float(self.parameter.numel())
        current = _bits(self.parameter)[self.where]
        if torch.equal(current, self.last):
            return 0.0
        share = float((current != self.last).double().mean())
        self.last = current
        size: int = self.parameter.numel()
        return share * size

    def unwritten(self) -> float:
        """The share of elements that still hold the sentinel; puts their values back."""
        if self.replaced:
            return 0.0
        bits = _bits(self.parameter)
        current = bits[self.where]
        untouched = current == self.sentinel
        share = float(untouched.double().mean())
        if share > 0:
            bits[self.where] = torch.where(untouched, self.original, current)
        return share


def _bits(parameter: torch.Tensor) -> torch.Tensor:
    """A parameter's elements as integers of the same width, in its own storage."""
    data = parameter.data
    return data.view(_INTEGERS[data.element_size()])


def _sample(name: str, parameter: torch.Tensor) -> _Sample | None:
    """Put the sentinel into a parameter; None for one that cannot be watched: a scalar, a lazy one."""
    size = parameter.numel() if not isinstance(parameter, torch.nn.parameter.UninitializedParameter) else 0
    if size == 0 or parameter.dim() == 0 or parameter.is_meta or parameter.dtype == torch.bool:
        return None
    if parameter.layout != torch.strided or parameter.element_size() not in _INTEGERS:
        return None
    # One element from each of equal stretches, so that a part that is not written shows by its share.
    count = min(size, _SAMPLES)
    steps = torch.arange(count, dtype=torch.float64)
    flat = ((steps + (steps * _GOLDEN) % 1.0) * (size / count)).long().clamp_(max=size - 1)
    where = torch.unravel_index(flat.to(parameter.device), parameter.shape)
    bits = _bits(parameter)
    original = bits[where]
    sentinel = original ^ 1
    bits[where] = sentinel
    return _Sample(name, parameter, where, original, sentinel, sentinel)


@dataclass(frozen=True, slots=True)
class LoadResult:
    """What became of the names and parameters; see `eagle3lab.runs.events.Loaded`."""

    offered: int
    placed: dict[str, list[str]]
    dropped: list[str]
    never_written: list[str]
    partly_written: list[str]
    untraced: list[str]


class LoadWatch:
    """Watches one `load_weights` call. Use `names` in place of its weights, then `finish`.

    Attributes:
        maps: d2t and t2d as they were offered, on the CPU, by `d2t` and `t2d`.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._hot = getattr(model, "hot_token_id", None)
        self._lock = threading.RLock()
        self._placed: dict[str, set[str]] = {}
        self._shapes: dict[str, torch.Size] = {}
        # Since the last name: elements written by place, and the names whose tensors were let go of.
        self._interval: dict[str, float] = {}
        self._released: set[str] = set()
        # Names kept while something was written, by whom cannot be told: their own turn was over.
        self._writes, self._offered_at = 0, dict[str, int]()
        self._kept: set[str] = set()
        self._aliases: dict[str, weakref.ref[torch.Tensor]] = {}
        self._looked_s = 0.0
        self._blind_from: str | None = None
        self._traced_all = True
        self.maps: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            samples = (_sample(plain(name), parameter) for name, parameter in model.named_parameters())
            self._samples = [sample for sample in samples if sample is not None]

    def names(self, weights: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
        """The names and tensors of `weights`, each looked after when the loader comes back for the next."""
        previous: str | None = None
        for name, tensor in weights:
            if previous is not None:
                self._settle(previous)
            previous = plain(name)
            self._placed.setdefault(previous, set())
            self._offered_at[previous] = self._writes
            leaf = previous.rpartition(".")[2]
            if leaf in ("d2t", "t2d") and isinstance(tensor, torch.Tensor):
                self.maps[leaf] = tensor.detach().cpu().clone()
            if type(tensor) is torch.Tensor:
                tensor = tensor.detach()
                self._shapes[previous] = tensor.shape
                self._aliases[previous] = weakref.ref(tensor, self._on_release(previous))
            handed, tensor = tensor, None
            yield name, handed
            del handed
        if previous is not None:
            self._settle(previous)
        # A loader that has taken all names and written nothing keeps them in a list: no name can be followed.
        self._traced_all = any(self._placed.values()) or not self._placed

    def finish(self) -> LoadResult:
        """What happened; every parameter is as the loader left it."""
        with self._lock, torch.no_grad():
            self._look()
            shares = {sample.name: sample.unwritten() for sample in self._samples}
            self._samples = []
        nowhere = [name for name, places in self._placed.items() if not places]
        names = list(self._placed)
        if not self._traced_all and any(share <= 1 - _PART for share in shares.values()):
            untraced, nowhere, placed = names, [], {}
        else:
            blind = set(names[names.index(self._blind_from) :] if self._blind_from is not None else [])
            blind |= self._kept
            untraced = [name for name in nowhere if name in blind]
            nowhere = [name for name in nowhere if name not in blind]
            placed = {name: sorted(places) for name, places in self._placed.items() if places}
        return LoadResult(
            len(names),
            placed,
            nowhere,
            [name for name, share in shares.items() if share > 1 - _PART],
            [name for name, share in shares.items() if _PART < share <= 1 - _PART],
            untraced,
        )

    def _on_release(self, name: str) -> Any:
        """Called when the loader lets go of a tensor: what was written since the last look may be that tensor's."""

        def released(_: weakref.ref[torch.Tensor]) -> None:
            if not self._placed[name] and self._samples:
                with self._lock:
                    self._look()
                    self._placed[name] |= self._interval.keys()
                    self._released.add(name)
                    if not self._placed[name] and self._writes != self._offered_at[name]:
                        self._kept.add(name)

        return released

    def _settle(self, name: str) -> None:
        with self._lock:
            self._look()
            self._placed[name] |= self._interval.keys()
            shape = self._shapes.get(name, torch.Size([0]))
            if sum(self._interval.values()) > _MORE * shape.numel() > 0:
                for earlier in self._released:
                    if self._shapes[earlier][1:] == shape[1:]:  # rows that can stand under its rows
                        self._placed[earlier] |= self._interval.keys()
            self._interval, self._released = {}, set()
            if self._looked_s > _LOOKING_S and self._blind_from is None:
                self._blind_from = name

    def _look(self) -> None:
        """Note what was written since the last look."""
        if self._blind_from is not None:
            return
        began = time.perf_counter()
        with torch.no_grad():
            written = {sample.name: sample.changed() for sample in self._samples}
            seen = {name: size for name, size in written.items() if size}
            self._interval |= seen
            self._writes += bool(seen)
        hot = getattr(self._model, "hot_token_id", None)
        if hot is not self._hot:
            self._hot = hot
            self._interval["hot_token_id"] = 0.0
        self._looked_s += time.perf_counter() - began
