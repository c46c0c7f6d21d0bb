"""A release asked once: a worker script run in a process of its own, one JSON request in, one JSON reply out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3lab.engines.ground_truth.locate import find_installation
from eagle3lab.errors import Eagle3labError, InputError

LIMIT_SECONDS = 300
_TAIL = 1000


def ask_release(release: str, worker: Path, request: Mapping[str, Any]) -> Any:
    """The reply of a worker script in which this release of SGLang can be imported, on the CPU and offline.

    Args:
        release: A release in the atlas that is installed here.
        worker: The script: reads the request on stdin, writes its reply on stdout.
        request: What it is asked, as JSON values.

    Raises:
        InputError: The release is not on this machine.
        Eagle3labError: The process failed or took longer than `LIMIT_SECONDS`.
    """
    from eagle3lab.engines.atlas import release_facts

    try:
        folder = find_installation(release_facts(release).engine_facts()).folder
    except KeyError:
        raise InputError(f"there is no release {release} of SGLang in the atlas") from None
    environment = {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER": "false",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    # With it set, the release takes its CPU engine's paths.
    environment.pop("SGLANG_USE_CPU_ENGINE", None)
    if folder is not None:
        paths = (str(folder), environment.get("PYTHONPATH", ""))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    try:
        done = subprocess.run(
            [sys.executable, str(worker)],
            input=json.dumps(request),
            capture_output=True,
            text=True,
            env=environment,
            timeout=LIMIT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Eagle3labError(f"SGLang {release} took longer than {LIMIT_SECONDS} s") from None
    if done.returncode:
        raise Eagle3labError(f"SGLang {release} did not answer: {done.stderr.strip()[-_TAIL:]}")
    return json.loads(done.stdout)
