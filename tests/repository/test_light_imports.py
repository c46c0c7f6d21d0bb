"""The reading side starts fast: it pulls in neither torch nor numpy nor an engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ["torch", "transformers", "sglang", "numpy", "rich", "pandas", "plotly", "yaml", "pydantic"]


@pytest.mark.parametrize(
    "module",
    [
        "eagle3lab",
        "eagle3lab.checkpoint",
        "eagle3lab.engines",
        "eagle3lab.engines.arguments",
        "eagle3lab.engines.capture",
        "eagle3lab.vocabulary",
        "eagle3lab.cli",
        "eagle3lab.runs.judgement",
        "eagle3lab.serving.guard.judge",
    ],
)
def test_importing_pulls_in_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print(*(m for m in {HEAVY} if m in sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []
