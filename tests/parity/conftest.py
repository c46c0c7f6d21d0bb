"""The specimen's head as every release reads it, its target, and a recording made without a server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("speculators")

from lab.faults import Served, write_healthy
from lab.reference import Target, load_reference_target, one_thread


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors are tiny here."""
    with one_thread():
        yield


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Served:
    return write_healthy(tmp_path_factory.mktemp("served") / "head")


@pytest.fixture(scope="session")
def target(served: Served) -> Target:
    return load_reference_target(served.target)


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Two sequences of tokens that the target has; any will do."""
    return [[1, *range(40, 70)], [1, *range(300, 320)]]


@pytest.fixture(scope="session")
def head() -> Path:
    from lab.specimen import drafter_dir

    return drafter_dir()
