"""eagle3lab: find out why an EAGLE-3 drafter is not accepted.

Three ways in, one library underneath: the rendered book, the notebooks on the GPU box, papermill in CI.
Importing this package imports neither torch nor an engine.
"""

from __future__ import annotations

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """`__version__`, looked up when asked for: reading package metadata takes longer than reading a checkpoint."""
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("eagle3lab")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0+unknown"
