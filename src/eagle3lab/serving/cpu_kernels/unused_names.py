"""Stand-ins for kernels that are imported by name and never called on a CPU (host cache transfers of 0.5.8/0.5.9)."""

from __future__ import annotations

from typing import Any, NoReturn


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel's {name} needs a GPU")

    return missing
