"""Call a function when a module has just been imported, without importing it: how a release without hooks is reached.

A server's processes are spawned, so whatever is to be changed must be arranged before the module is imported, in
each of them. `sitecustomize` on the PYTHONPATH runs first in every Python process; it registers callbacks here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

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
        if (
            module.__spec__ is not None
        ):  # pickling, inspect and reload look at the loader: give them the real one
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
