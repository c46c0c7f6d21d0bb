"""The other side of the comparison: a release's own target classes, and their own `set_eagle3_layers_to_capture`.

Started as a script in a process of its own, never imported by eagle3lab. It speaks the language of the ground truth's
`worker.py`. A request is `{"targets": [{"module", "class", "config", "ids"}, …]}`: each target is built without memory
for its weights (on torch's meta device), and the method called once for each entry of `ids` (null for a call without).
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

# This folder's modules have plain names, which must not stand in front of installed ones.
sys.path[0] = str(Path(__file__).resolve().parents[2] / "src" / "eagle3lab" / "engines" / "ground_truth")
worker: Any = importlib.import_module("worker")
del sys.path[0]

METHOD = "set_eagle3_layers_to_capture"
MOST_DEPTH = 4
GPU_PACKAGES = ("sgl_kernel", "flashinfer", "deep_gemm", "triton_kernels")
MOST_STAND_INS = 20
# What the model runner adds to a config before it builds the class.
SET_BY_THE_RUNNER = ("encoder_only", "language_only")


def marked(model: Any) -> list[int]:
    """What is captured, as the innermost object that says so holds it; [] where none does."""
    found: list[int] = []
    waiting: list[tuple[Any, int]] = [(model, 0)]
    while waiting:
        here, depth = waiting.pop(0)
        layers = getattr(here, "layers_to_capture", None)
        if isinstance(layers, list | tuple) and layers:
            found = [int(layer) for layer in layers]
        for name in ("language_model", "model"):
            inner = getattr(here, name, None)
            if inner is not None and depth < MOST_DEPTH:
                waiting.append((inner, depth + 1))
    return found


def passed(model: Any) -> list[str]:
    """The classes that a call of the method goes through, told by their own methods being called."""
    chain: list[str] = []
    before = {}
    for cls in {type(model), type(getattr(model, "language_model", None))}:
        own = getattr(cls, METHOD, None)
        if own is not None:

            def noted(self: Any, *args: Any, _own: Any = own, **kwargs: Any) -> Any:
                chain.append(type(self).__name__)
                return _own(self, *args, **kwargs)

            before[cls] = cls.__dict__.get(METHOD)
            setattr(cls, METHOD, noted)
    try:
        getattr(model, METHOD)()
    finally:
        for cls, own in before.items():
            if own is None:
                delattr(cls, METHOD)
            else:
                setattr(cls, METHOD, own)
    return chain


def called_with(model: Any, ids: list[int] | None) -> dict[str, Any]:
    """What is captured after one call, or what it raises."""
    try:
        setter = getattr(model, METHOD)
        setter() if ids is None else setter(list(ids))
    except Exception as error:
        return {"exception": type(error).__name__, "message": str(error)}
    return {"layers": marked(model)}


def imported(module: str) -> Any:
    """A module of the release; GPU packages that it imports and that are not here get a stand-in each."""
    for _ in range(MOST_STAND_INS):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith(GPU_PACKAGES):
                raise
            worker.stand_in(error.name)
    raise ImportError(f"{module} asks for more than {MOST_STAND_INS} packages that are not here")


def target(request: dict[str, Any]) -> dict[str, Any]:
    """One target: its chain, and what each call captures."""
    import torch

    config = worker.read_config(request["config"])
    for name in SET_BY_THE_RUNNER:
        setattr(config, name, False)
    cls = getattr(imported(request["module"]), request["class"])
    with torch.device("meta"):
        model = cls(config)
    replies = [called_with(model, ids) for ids in request["ids"]]
    return {"chain": passed(model) if hasattr(model, METHOD) else [], "replies": replies}


def replied(request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request: what each target does, or why it cannot be built."""
    found = []
    for one in request["targets"]:
        try:
            found.append(target(one))
        except Exception as error:
            found.append({"failure": f"{type(error).__name__}: {error}"})
    return {"targets": found}


def main() -> None:
    """Import the release, then answer one request a line."""
    requests, replies = worker.requests_and_replies()
    worker.stand_in_for_missing_packages()
    import sglang

    worker.initialise_layout(1, 0)
    worker.send(replies, {"ready": sglang.__version__, "file": sglang.__file__})
    worker.answer_each(requests, replies, replied)


if __name__ == "__main__":
    main()
