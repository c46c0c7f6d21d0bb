from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3lab.serving.overlay import Overlay
from tests.serving.engines import run_inside

_NO_TORCHVISION = Overlay(startup=("eagle3lab.serving.cpu_kernels:startup",))
_INTERPRETED = {"TRITON_INTERPRET": "1"}


@pytest.mark.engine
@pytest.mark.parametrize(
    ("release", "parts", "kernels"),
    [
        ("0.5.23", ("trees", "locations"), 8),
        ("0.5.9", ("attention",), 2),
    ],
)
def test_our_kernels_agree_with_the_release_s_own(
    release: str, parts: tuple[str, ...], kernels: int, tmp_path: Path
) -> None:
    """The release's Triton kernels do the same work on other devices; Triton's interpreter runs them here."""
    printed = run_inside(
        release,
        _NO_TORCHVISION,
        tmp_path,
        "-m",
        "tests.serving.release_kernels",
        *parts,
        environment=_INTERPRETED,
    )
    compared = json.loads(printed.splitlines()[-1])
    assert len(compared) == kernels
    assert min(compared.values()) >= 3
