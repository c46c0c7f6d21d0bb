"""A release asked once: a worker script run in a process of its own, asked one thing, and ended."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from eagle3lab.engines.ground_truth.process import EngineProcess
from eagle3lab.errors import InputError

LIMIT_SECONDS = 300.0


def ask_release(release: str, worker: Path, request: Mapping[str, Any]) -> dict[str, Any]:
    """The reply of a worker script in which this release of SGLang can be imported, on the CPU and offline.

    Args:
        release: A release in the atlas that is installed here.
        worker: The script: speaks as `worker.py` does.
        request: What it is asked, as JSON values.

    Raises:
        InputError: The release is not on this machine.
        EngineProcessError: The process failed or took longer than `LIMIT_SECONDS`.
    """
    from eagle3lab.engines.atlas.data import release_facts

    try:
        engine = release_facts(release).engine_facts()
    except KeyError:
        raise InputError(f"there is no release {release} of SGLang in the atlas") from None
    with closing(EngineProcess(engine, worker)) as process:
        return process.ask(dict(request), LIMIT_SECONDS)
