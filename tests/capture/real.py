"""The release's own target classes asked what they capture, in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3lab.engines.capture import Points
from eagle3lab.engines.ground_truth.process import ask_release
from eagle3lab.errors import Eagle3labError

_WORKER = Path(__file__).with_name("real_worker.py")


@dataclass(frozen=True, slots=True)
class RealTarget:
    """A target class to be built, without memory for its weights.

    Attributes:
        module: Where the release defines it.
        name: The class.
        config: Its config.json.
    """

    module: str
    name: str
    config: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RealCapture:
    """What one call of `set_eagle3_layers_to_capture` came to.

    Attributes:
        chain: The classes that the call goes through.
        points: What the innermost model captures; () where the call raised.
        exception: Type of what it raised; empty where it did not.
        message: Its text.
    """

    chain: tuple[str, ...]
    points: Points
    exception: str = ""
    message: str = ""


def real_capture(
    release: str, targets: Sequence[RealTarget], ids: Sequence[Points | None]
) -> list[list[RealCapture]]:
    """What each target captures for each entry of `ids`, None for a call without ids.

    Raises:
        InputError: The release is not on this machine.
        Eagle3labError: Its process failed, or a class could not be built.
    """
    request = {
        "targets": [
            {"module": one.module, "class": one.name, "config": dict(one.config), "ids": list(ids)}
            for one in targets
        ]
    }
    found = []
    for one, reply in zip(targets, ask_release(release, _WORKER, request)["targets"], strict=True):
        if "failure" in reply:
            raise Eagle3labError(f"SGLang {release} cannot build {one.name}: {reply['failure']}")
        found.append([_capture(tuple(reply["chain"]), answer) for answer in reply["replies"]])
    return found


def _capture(chain: tuple[str, ...], answer: Mapping[str, Any]) -> RealCapture:
    if "exception" in answer:
        return RealCapture(chain, (), answer["exception"], answer["message"])
    return RealCapture(chain, tuple(answer["layers"]))
