"""Hooks on an engine's functions from outside: wrapped as their module is imported, and never in the server's way.

A server's processes are spawned, so whatever is to be changed must be arranged in each of them before the module is
imported: a `sitecustomize` on the PYTHONPATH runs first and registers callbacks here. The standard library alone is
used: an SGLang environment has no wrapt.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec, TypeVar

from eagle3lab.text import printable

_P = ParamSpec("_P")
_R = TypeVar("_R")
Callback = Callable[[ModuleType], None]


class _Announcing(Loader):
    """A loader that hands the module to the callbacks once the real loader has executed it."""

    def __init__(self, loader: Loader, callbacks: list[Callback]) -> None:
        self._loader = loader
        self._callbacks = callbacks

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        # Pickling, inspect and reload look at the loader: give them the real one.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        for callback in self._callbacks:
            callback(module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


class _Finder(MetaPathFinder):
    def __init__(self) -> None:
        self.callbacks: dict[str, list[Callback]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        callbacks = self.callbacks.get(fullname)
        if callbacks is None:
            return None
        for finder in sys.meta_path:
            if finder is self or (find := getattr(finder, "find_spec", None)) is None:
                continue
            spec: ModuleSpec | None = find(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Announcing(spec.loader, callbacks)
                return spec
        return None


_finder = _Finder()


def after_import(module: str, callback: Callback) -> None:
    """Call `callback(module)` each time the module of that name has been executed, or now if it already was."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.callbacks.setdefault(module, []).append(callback)
    if module in sys.modules:
        callback(sys.modules[module])


class Refused(Exception):
    """The guard stops the server: the one exception of ours that is meant to reach it.

    An ordinary `Exception`: SGLang ends the whole server when a scheduler fails with one, and only then.
    """


class FailSafe:
    """Runs functions; one that fails is reported once and never run again, and the server goes on.

    Args:
        report: Told where and what; may fail itself.
    """

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self._report = report
        self._failed: set[str] = set()

    def run(self, where: str, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        """What the function returns; None once the part `where` has failed."""
        if where in self._failed:
            return None
        try:
            return function(*args, **kwargs)
        except Refused:
            raise
        except Exception as error:
            self._failed.add(where)
            problem = printable(f"{type(error).__name__}: {error}")
            with contextlib.suppress(Exception):  # stderr or the disk may be full
                print(
                    f"eagle3lab probe: {where} is switched off after an error, the server goes on ({problem})",
                    file=sys.stderr,
                    flush=True,
                )
                self._report(where, problem)
            return None


@dataclass(slots=True)
class Hook:
    """A function of an engine, and what is called around it.

    Attributes:
        module: `sglang.srt.managers.scheduler`.
        path: `Scheduler.__init__`, or a function's name.
        after: Called with the arguments, those by name, and the result, unless the function failed.
        before: Called with the arguments and those by name.
        attached: Whether the function was there and is wrapped.
    """

    module: str
    path: str
    after: Callable[[tuple[Any, ...], dict[str, Any], Any], None]
    before: Callable[[tuple[Any, ...], dict[str, Any]], None] | None = None
    attached: bool = False
    _undo: Callable[[], None] | None = field(default=None, repr=False)

    def install(self, safe: FailSafe) -> None:
        """Wrap the function as soon as its module is imported."""
        after_import(self.module, lambda module: safe.run(self.path, self._wrap, module, safe))

    def remove(self) -> None:
        """Put the function back as it was."""
        if self._undo is not None:
            self._undo()
            self._undo, self.attached = None, False

    def _wrap(self, module: ModuleType, safe: FailSafe) -> None:
        *owners, name = self.path.split(".")
        owner: Any = module
        for part in owners:
            owner = getattr(owner, part, None)
        original = None if owner is None else getattr(owner, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            if self.before is not None:
                safe.run(self.path, self.before, args, kwargs)
            result = original(*args, **kwargs)
            safe.run(self.path, self.after, args, kwargs, result)
            return result

        inherited = name not in vars(owner)
        setattr(owner, name, wrapper)
        self.attached = True

        def undo() -> None:
            if vars(owner).get(name) is not wrapper:
                return  # somebody else wrapped it again: taking ours out would take theirs out too
            if inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

        self._undo = undo
