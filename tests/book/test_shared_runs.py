"""Runs that chapters share: one server for the same question in one build, another for any other question."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.book import shared_runs
from eagle3lab.book.runner import RUNS_VARIABLE
from eagle3lab.book.shared_runs import shared_run
from eagle3lab.repair.journal import JOURNAL
from eagle3lab.runs.folder import MEASUREMENT
from eagle3lab.serving.client import ServerError
from eagle3lab.serving.engine import Engine
from eagle3lab.serving.overlay import Overlay
from eagle3lab.serving.plan import LaunchPlan
from eagle3lab.serving.workload import Workload

ENGINE = Engine("0.5.9", python="python")
WORKLOAD = Workload([[1, 2]], max_new_tokens=4)


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The run folders in which a server was started."""
    folders: list[Path] = []

    def measure(plan: Any, engine: Any, workload: Any, folder: Path, **options: Any) -> str:
        folders.append(folder)
        folder.mkdir()  # fails if it is there already
        if workload.source == "fails":
            raise ServerError("no")
        (folder / MEASUREMENT).write_text("{}")
        return "measured"

    monkeypatch.setattr(shared_runs, "measure", measure)
    monkeypatch.setattr(shared_runs, "account", lambda folder: "read again")
    monkeypatch.setenv(RUNS_VARIABLE, str(tmp_path / "runs"))
    return folders


def asked(*arguments: Any, **options: Any) -> Any:
    """What the stand-ins above return in place of a measurement."""
    return shared_run(*arguments, **options)


def plan(folder: Path, text: str = "weights", note: str = "") -> LaunchPlan:
    folder.mkdir(exist_ok=True)
    (folder / "model.safetensors").write_text(text)
    (folder / JOURNAL).write_text(note)
    return LaunchPlan(str(folder), str(folder), algorithm="EAGLE3", draft_tokens=5)


def test_the_same_content_in_another_folder_is_the_same_run(tmp_path: Path, served: list[Path]) -> None:
    assert asked(plan(tmp_path / "a", note="one"), ENGINE, WORKLOAD) == "measured"
    assert asked(plan(tmp_path / "b", note="two"), ENGINE, WORKLOAD) == "read again"
    assert len(served) == 1
    assert served[0].is_relative_to(tmp_path / "runs")


def test_whatever_decides_the_outcome_makes_another_run(tmp_path: Path, served: list[Path]) -> None:
    base = plan(tmp_path / "a")
    for arguments, options in (
        ((base, ENGINE, WORKLOAD), {}),
        ((replace(base, algorithm="EAGLE"), ENGINE, WORKLOAD), {}),
        ((plan(tmp_path / "c", "other weights"), ENGINE, WORKLOAD), {}),
        ((base, Engine("0.5.23", python="python"), WORKLOAD), {}),
        ((base, ENGINE, replace(WORKLOAD, max_new_tokens=5)), {}),
        ((base, ENGINE, replace(WORKLOAD, prompts=[[1, 3]])), {}),
        ((base, ENGINE, WORKLOAD), {"overlay": Overlay(startup=("module:function",))}),
    ):
        assert asked(*arguments, **options) == "measured"
    assert len(set(served)) == 7


def test_a_run_that_failed_is_made_again(tmp_path: Path, served: list[Path]) -> None:
    for _ in range(2):
        with pytest.raises(ServerError):
            shared_run(plan(tmp_path / "a"), ENGINE, replace(WORKLOAD, source="fails"))
    assert len(served) == 2


def test_a_notebook_run_by_hand_has_a_folder_of_its_own(
    tmp_path: Path, served: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RUNS_VARIABLE)
    assert asked(plan(tmp_path / "a"), ENGINE, WORKLOAD) == "measured"
    assert asked(plan(tmp_path / "a"), ENGINE, WORKLOAD) == "read again"
    assert not served[0].is_relative_to(tmp_path / "runs")
