"""The other side of the comparison: a release's own parser and `ServerArgs`, told that it runs on a machine with GPUs.

Started as a script in a process of its own, never imported by eagle3lab. It speaks the language of the ground truth's
`worker.py`. A request is
`{"commands": [{"words", "machine", "environment"}, …], "contexts": [{"drafter", "context_length", "environment"}, …]}`,
its reply for each command the arguments as the release resolves them, or the exception that it raises; for each context
the tokens that a drafter is run with, or the exception's text.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# This folder's modules have plain names, which must not stand in front of installed ones.
sys.path[0] = str(Path(__file__).resolve().parents[2] / "src" / "eagle3lab" / "engines" / "ground_truth")
worker: Any = importlib.import_module("worker")
del sys.path[0]

MEMORY_MB = 80_000
# The modules that ask about the machine while arguments are resolved, and those to be imported while the machine is
# still the real one: what they import depends on it, and no GPU library is there.
ASK = ("sglang.srt.server_args", "sglang.srt.arg_groups", "sglang.srt.utils")
IMPORTED_BEFORE = (
    "sglang.srt.server_args",
    "sglang.srt.configs.model_config",
    "sglang.srt.layers.quantization",
    "sglang.srt.layers.moe.utils",
    "sglang.srt.layers.attention.fla.chunk_delta_h",
    "sglang.srt.models.registry",
)
# Names under which releases ask about other vendors' devices; the request says the rest.
OTHERS = ("is_hip", "is_npu", "is_xpu", "is_hpu", "is_mps", "is_musa")


def answers(machine: dict[str, Any]) -> dict[str, Any]:
    """What the release's probes are made to say."""
    major, minor = machine["capability"] or (0, 0)
    cuda = machine["capability"] is not None
    device = "cuda" if cuda else "cpu"
    return dict.fromkeys(OTHERS, False) | {
        "is_cuda": cuda,
        "get_device": device,
        "get_device_sm": major * 10 + minor,
        "get_device_memory_capacity": MEMORY_MB if cuda else None,
        "get_device_core_count": 132,
        "is_hopper_with_cuda_12_3": major == 9,
        "is_sm90_supported": major == 9,
        "is_sm100_supported": major == 10,
        "is_sm120_supported": major == 12,
        "is_blackwell_supported": major in (10, 12),
        "is_blackwell": major in (10, 12),
        "is_flashinfer_available": machine["flashinfer"] and cuda,
        "cpu_has_amx_support": machine["amx"],
    }


@contextlib.contextmanager
def machine_of(machine: dict[str, Any]) -> Iterator[None]:
    """Every probe of the release answers for `machine`, wherever it was imported to."""
    known = answers(machine)
    changed: list[tuple[Any, str, Any]] = []
    for name, module in list(sys.modules.items()):
        if not name.startswith(ASK) or module is None:
            continue
        for probe, answer in known.items():
            before = module.__dict__.get(probe)
            if callable(before):
                changed.append((module, probe, before))
                setattr(module, probe, lambda *args, _answer=answer, **kwargs: _answer)
    try:
        yield
    finally:
        for module, probe, before in reversed(changed):
            setattr(module, probe, before)


@contextlib.contextmanager
def variables(given: dict[str, str]) -> Iterator[None]:
    """Environment variables, and all of them as they were afterwards: the release sets some itself."""
    before = dict(os.environ)
    os.environ.update(given)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def resolved(words: list[str]) -> dict[str, Any]:
    """The arguments of a command, resolved and checked."""
    from sglang.srt import server_args as module

    arguments = module.prepare_server_args(words)
    if hasattr(arguments, "resolve_once"):
        arguments.resolve_once()
        values = arguments.resolved_dict()
    else:
        values = {name: getattr(arguments, name) for name in arguments.__dataclass_fields__}
    arguments.check_server_args()
    return {name: value for name, value in values.items() if plain(value)}


def plain(value: Any) -> bool:
    """Whether a value can be compared across processes."""
    return value is None or isinstance(value, str | int | float | bool)


def answer(command: dict[str, Any]) -> dict[str, Any]:
    """One command's reply; what it prints is kept out of ours."""
    said = io.StringIO()
    try:
        with (
            variables(command["environment"]),
            machine_of(command["machine"]),
            contextlib.redirect_stderr(said),
            contextlib.redirect_stdout(said),
        ):
            return {"values": resolved(command["words"])}
    except SystemExit:
        return {"exception": "SystemExit", "message": said.getvalue().strip().splitlines()[-1:]}
    except Exception as error:
        import traceback

        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.filename}:{frame.lineno}"
        return {"exception": type(error).__name__, "message": str(error), "where": where}


def context(request: dict[str, Any]) -> dict[str, Any]:
    """The context that the release gives a drafter in a folder, told the target's."""
    from sglang.srt.configs.model_config import ModelConfig

    try:
        with variables(request["environment"]):
            config = ModelConfig(
                request["drafter"], context_length=request["context_length"], is_draft_model=True
            )
        return {"length": config.context_len}
    except ValueError as error:
        return {"message": str(error)}


def replied(request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request."""
    return {
        "commands": [answer(command) for command in request["commands"]],
        "contexts": [context(one) for one in request["contexts"]],
    }


def main() -> None:
    """Import the release, then answer one request a line."""
    requests, replies = worker.requests_and_replies()
    worker.stand_in_for_missing_packages()
    import sglang

    for name in IMPORTED_BEFORE:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    worker.send(replies, {"ready": sglang.__version__, "file": sglang.__file__})
    worker.answer_each(requests, replies, replied)


if __name__ == "__main__":
    main()
