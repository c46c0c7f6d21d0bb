"""The other side of the comparison: a release's own target classes, and their own `set_eagle3_layers_to_capture`.

Started as a script in a process of its own, never imported by eagle3lab. It reads one JSON request on stdin,
`{"targets": [{"module", "class", "config", "ids"}, …]}`, builds each target without memory for its weights (on
torch's meta device), calls the method once for each entry of `ids` (null for a call without), and writes one JSON
reply on stdout.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

METHOD = "set_eagle3_layers_to_capture"
MOST_DEPTH = 4
GPU_PACKAGES = ("sgl_kernel", "flashinfer", "deep_gemm", "triton_kernels")
MOST_STAND_INS = 20
# What the model runner adds to a config before it builds the class.
SET_BY_THE_RUNNER = ("encoder_only", "language_only")


def marked(model: Any) -> tuple[str, list[int]] | None:
    """The innermost object that holds what is captured, as a path of attributes, and what it holds."""
    found = None
    waiting: list[tuple[str, Any, int]] = [("", model, 0)]
    while waiting:
        path, here, depth = waiting.pop(0)
        layers = getattr(here, "layers_to_capture", None)
        if isinstance(layers, list | tuple) and layers:
            found = path, [int(layer) for layer in layers]
        for name in ("language_model", "model"):
            inner = getattr(here, name, None)
            if inner is not None and depth < MOST_DEPTH:
                waiting.append((f"{path}.{name}".strip("."), inner, depth + 1))
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
    found = marked(model)
    return {"path": found[0], "layers": found[1]} if found else {"path": "", "layers": []}


def imported(module: str) -> Any:
    """A module of the release; GPU packages that it imports and that are not here get a stand-in each."""
    worker = importlib.import_module("worker")
    for _ in range(MOST_STAND_INS):
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name is None or not error.name.startswith(GPU_PACKAGES):
                raise
            missing = error.name
        made = worker._StandIn(missing)
        made.__path__ = []
        made.__spec__ = importlib.machinery.ModuleSpec(missing, None, is_package=True)
        sys.modules[missing] = made
    raise ImportError(f"{module} asks for more than {MOST_STAND_INS} packages that are not here")


def target(request: dict[str, Any]) -> dict[str, Any]:
    """One target: its chain, and what each call captures."""
    import torch

    config = importlib.import_module("worker").read_config(request["config"])
    for name in SET_BY_THE_RUNNER:
        setattr(config, name, False)
    cls = getattr(imported(request["module"]), request["class"])
    with torch.device("meta"):
        model = cls(config)
    replies = [called_with(model, ids) for ids in request["ids"]]
    return {"chain": passed(model) if hasattr(model, METHOD) else [], "replies": replies}


def main() -> None:
    """Answer the request on stdin."""
    request = json.loads(sys.stdin.read())
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print while they are imported
    # This folder's modules have plain names, which must not stand in front of installed ones.
    sys.path[0] = str(Path(__file__).resolve().parents[1] / "ground_truth")
    worker = importlib.import_module("worker")
    del sys.path[0]
    worker.stand_in_for_missing_packages()
    worker.initialise_layout(1, 0)
    replies = []
    for one in request["targets"]:
        try:
            replies.append(target(one))
        except Exception as error:
            replies.append(
                {"failure": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
            )
    json.dump(replies, out)
    out.close()


if __name__ == "__main__":
    main()
