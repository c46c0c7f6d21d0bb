"""The other side of `test_raised`: a release's own code made to stop itself, its tracebacks handed back.

Started as a script in a process of its own; speaks the language of the ground truth's `worker.py`. A request names what
is tried: `{"commands": [words, …], "drafters": [{"module", "class", "config", "tensors"}, …], "asked": [[module, class,
attribute], …]}`; the reply holds a traceback for each, in that order, or "" where nothing was raised.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).resolve().parents[2] / "src/eagle3lab/engines/ground_truth")
worker: Any = importlib.import_module("worker")
del sys.path[0]


def raised(attempt: Callable[[], Any]) -> str:
    """The traceback of an attempt as Python prints it, or the last line of a parser that refuses."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(sys.stderr), contextlib.redirect_stderr(said):
            attempt()
    except SystemExit:
        return said.getvalue().strip().rpartition("\n")[2]
    except Exception:
        return traceback.format_exc()
    return ""


def resolve(words: list[str]) -> None:
    """Arguments resolved and checked as a start does."""
    from sglang.srt.server_args import prepare_server_args

    arguments = prepare_server_args(words)
    if hasattr(arguments, "resolve_once"):
        arguments.resolve_once()
    arguments.check_server_args()


def load(one: dict[str, Any]) -> None:
    """A drafter built from a config, and tensors of zeros loaded into it."""
    import torch

    cls = getattr(importlib.import_module(one["module"]), one["class"])
    torch.set_default_dtype(torch.bfloat16)
    model = cls(worker.read_config(one["config"]))
    model.load_weights(
        [(name, torch.zeros(shape, dtype=torch.bfloat16)) for name, shape in one["tensors"].items()]
    )


def ask(module: str, name: str, attribute: str) -> None:
    """An attribute of a model, as the speculative worker asks for it."""
    import torch

    cls = getattr(importlib.import_module(module), name)
    model = cls.__new__(cls)
    torch.nn.Module.__init__(model)
    getattr(model, attribute)()


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request."""
    return {
        "commands": [raised(lambda words=words: resolve(words)) for words in request["commands"]],
        "drafters": [raised(lambda one=one: load(one)) for one in request["drafters"]],
        "asked": [raised(lambda one=one: ask(*one)) for one in request["asked"]],
    }


def main() -> None:
    """Import the release, then answer one request a line."""
    requests, replies = worker.requests_and_replies()
    worker.stand_in_for_missing_packages()
    worker.let_models_be_registered_again()
    import sglang
    import sglang.srt.models.llama_eagle3

    worker.send(replies, {"ready": sglang.__version__, "file": sglang.__file__})
    worker.initialise_layout(1, 0)
    worker.answer_each(requests, replies, answer)


if __name__ == "__main__":
    main()
