"""Names in place of torchvision, which SGLang imports for images even to serve text.

transformers must have answered "no torchvision" before these names appear, or it would try to use them; so they
are installed as soon as its availability checks are loaded, and asked.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class _Absent(type):
    """A class whose every attribute is such a class again: enough for annotations, defaults and `Mode.BICUBIC`."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name, (), {})

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        raise NotImplementedError(
            f"{cls.__name__}: torchvision is not installed; this server takes no images"
        )


class _Names(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name, (), {})


class _Finder(MetaPathFinder, Loader):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "torchvision":
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def install(import_utils: ModuleType) -> None:
    """Have `transformers.utils.import_utils` settle that torchvision is missing, then offer its names."""
    if PathFinder.find_spec("torchvision") is None:
        import_utils.is_torchvision_available()  # remembered for the life of the process
        sys.meta_path.append(_Finder())
