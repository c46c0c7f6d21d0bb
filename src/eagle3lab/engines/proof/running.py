"""Cut-out code run on stand-ins in a process of its own: isolated, without an environment, with a time limit.

This executes code of the tree; reading facts from it never does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3lab.engines.proof.cut_out import CutOut
from eagle3lab.errors import Eagle3labError

LIMIT_SECONDS = 60
_STAND_INS = Path(__file__).with_name("stand_ins.py")


class CannotRunError(Eagle3labError):
    """The cut-out code could not be run, or took too long."""


def run(engine: str, code: CutOut, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What `stand_ins.py` answers.

    Args:
        engine: "sglang" or "vllm".
        code: The code it is to run.
        request: What it is asked besides.

    Raises:
        CannotRunError: There is no answer.
    """
    whole = {"engine": engine, "files": code.files, "start": code.start, **request}
    command = [sys.executable, "-I", str(_STAND_INS)]
    try:
        answer = subprocess.run(
            command,
            input=json.dumps(whole),
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
            env={},
        )
    except subprocess.TimeoutExpired:
        raise CannotRunError(f"took longer than {LIMIT_SECONDS} s") from None
    if answer.returncode:
        raise CannotRunError(f"cannot be run alone: {answer.stderr.strip()[-500:]}")
    replies: list[dict[str, Any]] = json.loads(answer.stdout)
    return replies
