"""Wrapping SGLang's functions: found or missing, called once, put back, and never in the server's way."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from eagle3lab.serving.probe import probe_overlay
from eagle3lab.serving.probe.careful import Careful, Refused
from eagle3lab.serving.probe.seams import Seam, nothing_before
from eagle3lab.serving.probe.settings import Settings


class Base:
    def run(self, value: int) -> int:
        if value < 0:
            raise ValueError("the server's own error")
        return value + 1


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("an_engine")
    module.Scheduler = type("Scheduler", (Base,), {})  # type: ignore[attr-defined]
    module.function = lambda: "result"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "an_engine", module)
    return module


def careful_with() -> tuple[Careful, list[tuple[str, str]]]:
    told: list[tuple[str, str]] = []
    return Careful(lambda where, problem: told.append((where, problem))), told


def test_a_method_is_wrapped_and_put_back(engine: ModuleType) -> None:
    careful, told = careful_with()
    seen: list[Any] = []
    seam = Seam(
        "an_engine", "Scheduler.run", nothing_before, lambda called, result: seen.append((called, result))
    )
    seam.install(careful)
    scheduler = engine.Scheduler()
    assert seam.attached and scheduler.run(1) == 2
    assert seen == [(((scheduler, 1), {}), 2)]
    seam.remove()
    assert scheduler.run(1) == 2 and len(seen) == 1 and "run" not in vars(engine.Scheduler)
    assert not seam.attached and not told


def test_a_function_of_the_module_is_wrapped(engine: ModuleType) -> None:
    careful, _ = careful_with()
    seen: list[Any] = []
    seam = Seam("an_engine", "function", nothing_before, lambda called, result: seen.append(result))
    seam.install(careful)
    assert engine.function() == "result" and seen == ["result"]


@pytest.mark.parametrize("path", ["Scheduler.gone", "Gone.run", "gone"])
def test_what_a_release_does_not_have_is_missing_and_nothing_breaks(engine: ModuleType, path: str) -> None:
    careful, told = careful_with()
    seam = Seam("an_engine", path, nothing_before, lambda called, result: None)
    seam.install(careful)
    assert seam.seen and not seam.attached and not told
    assert engine.Scheduler().run(1) == 2


def test_the_server_s_own_error_passes_through(engine: ModuleType) -> None:
    careful, told = careful_with()
    seam = Seam("an_engine", "Scheduler.run", nothing_before, lambda called, result: None)
    seam.install(careful)
    with pytest.raises(ValueError, match="own error"):
        engine.Scheduler().run(-1)
    assert not told


def test_a_failure_of_ours_is_told_once_and_then_quiet(
    engine: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    careful, told = careful_with()
    calls = []

    def fails(called: Any, result: Any) -> None:
        calls.append(result)
        raise RuntimeError("out of \x1b[31mcoffee")

    Seam("an_engine", "Scheduler.run", nothing_before, fails).install(careful)
    scheduler = engine.Scheduler()
    assert [scheduler.run(value) for value in (1, 2, 3)] == [2, 3, 4]
    assert calls == [2]
    assert told == [("Scheduler.run", "RuntimeError: out of \\x1b[31mcoffee")]
    assert capsys.readouterr().err.count("goes quiet") == 1


def test_a_failing_report_does_not_matter(engine: ModuleType) -> None:
    def report(where: str, problem: str) -> None:
        raise OSError("disk full")

    careful = Careful(report)
    assert careful.run("part", lambda: 1 / 0) is None
    assert careful.run("part", lambda: 1) is None and careful.run("other", lambda: 1) == 1


def test_a_refusal_reaches_the_server(engine: ModuleType) -> None:
    careful, told = careful_with()

    def refuses(called: Any, result: Any) -> None:
        raise Refused("no")

    Seam("an_engine", "Scheduler.run", nothing_before, refuses).install(careful)
    with pytest.raises(Refused):
        engine.Scheduler().run(1)
    assert not told


def test_settings_go_through_the_environment(tmp_path: Path) -> None:
    settings = Settings(tmp_path, "refuse", 7, 3)
    assert Settings.from_environment(settings.environment()) == settings
    assert Settings.from_environment({}) == Settings() and not Settings().active


@pytest.mark.parametrize(
    ("value", "mode"),
    [("warn", "warn"), (" REFUSE", "refuse"), ("0", "off"), ("", "off"), ("yes!\x1b", "warn")],
)
def test_what_the_guard_s_variable_may_say(value: str, mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert Settings.from_environment({"EAGLE3LAB_GUARD": value}).guard == mode
    said = capsys.readouterr().err
    assert "\x1b" not in said and bool(said) == (value == "yes!\x1b")


def test_a_number_that_is_none_is_told_and_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    assert Settings.from_environment({"EAGLE3LAB_FULL_STEPS": "many"}).full_steps == 100
    assert "EAGLE3LAB_FULL_STEPS" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("release", "by_plugin"),
    [("0.5.23", True), ("0.5.11", True), ("0.5.10", False), ("0.5.9", False), ("0.6.0", True), ("main", False),
     ("0.5.12.post1", True)],
)  # fmt: skip
def test_the_door_of_a_release(release: str, by_plugin: bool, tmp_path: Path) -> None:
    overlay = probe_overlay(release, events=tmp_path)
    assert bool(overlay.plugins) == by_plugin and bool(overlay.startup) == (not by_plugin)
