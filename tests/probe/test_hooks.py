"""Wrapping SGLang's functions: found or missing, called once, put back, and never in the server's way."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from eagle3lab.serving.hooks import FailSafe, Hook, Refused
from eagle3lab.serving.probe import Settings, probe_overlay


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


def safe_with() -> tuple[FailSafe, list[tuple[str, str]]]:
    told: list[tuple[str, str]] = []
    return FailSafe(lambda where, problem: told.append((where, problem))), told


def test_a_method_is_wrapped_and_put_back(engine: ModuleType) -> None:
    safe, told = safe_with()
    seen: list[Any] = []
    hook = Hook(
        "an_engine", "Scheduler.run", lambda args, kwargs, result: seen.append((args, kwargs, result))
    )
    hook.install(safe)
    scheduler = engine.Scheduler()
    assert hook.attached and scheduler.run(1) == 2
    assert seen == [((scheduler, 1), {}, 2)]
    hook.remove()
    assert scheduler.run(1) == 2 and len(seen) == 1 and "run" not in vars(engine.Scheduler)
    assert not hook.attached and not told


def test_a_function_of_the_module_is_wrapped(engine: ModuleType) -> None:
    safe, _ = safe_with()
    seen: list[Any] = []
    hook = Hook("an_engine", "function", lambda args, kwargs, result: seen.append(result))
    hook.install(safe)
    assert engine.function() == "result" and seen == ["result"]


@pytest.mark.parametrize("path", ["Scheduler.gone", "Gone.run", "gone"])
def test_what_a_release_does_not_have_is_missing_and_nothing_breaks(engine: ModuleType, path: str) -> None:
    safe, told = safe_with()
    hook = Hook("an_engine", path, lambda args, kwargs, result: None)
    hook.install(safe)
    assert not hook.attached and not told
    assert engine.Scheduler().run(1) == 2


def test_the_server_s_own_error_passes_through(engine: ModuleType) -> None:
    safe, told = safe_with()
    hook = Hook("an_engine", "Scheduler.run", lambda args, kwargs, result: None)
    hook.install(safe)
    with pytest.raises(ValueError, match="own error"):
        engine.Scheduler().run(-1)
    assert not told


def test_a_failure_of_ours_is_told_once_and_then_quiet(
    engine: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    safe, told = safe_with()
    calls = []

    def fails(args: Any, kwargs: Any, result: Any) -> None:
        calls.append(result)
        raise RuntimeError("out of \x1b[31mcoffee")

    Hook("an_engine", "Scheduler.run", fails).install(safe)
    scheduler = engine.Scheduler()
    assert [scheduler.run(value) for value in (1, 2, 3)] == [2, 3, 4]
    assert calls == [2]
    assert told == [("Scheduler.run", "RuntimeError: out of \\x1b[31mcoffee")]
    assert capsys.readouterr().err.count("is switched off") == 1


def test_a_failing_report_does_not_matter(engine: ModuleType) -> None:
    def report(where: str, problem: str) -> None:
        raise OSError("disk full")

    safe = FailSafe(report)
    assert safe.run("part", lambda: 1 / 0) is None
    assert safe.run("part", lambda: 1) is None and safe.run("other", lambda: 1) == 1


def test_a_refusal_reaches_the_server(engine: ModuleType) -> None:
    safe, told = safe_with()

    def refuses(args: Any, kwargs: Any, result: Any) -> None:
        raise Refused("no")

    Hook("an_engine", "Scheduler.run", refuses).install(safe)
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


def test_the_probe_enters_as_python_starts_whatever_the_release(tmp_path: Path) -> None:
    overlay = probe_overlay(events=tmp_path, guard="warn")
    assert overlay.startup == ("eagle3lab.serving.probe:attach",) and not overlay.plugins
    assert Settings.from_environment(overlay.environment) == Settings(tmp_path, "warn")


def test_what_is_called_before_sees_the_arguments_and_cannot_stop_the_call(engine: ModuleType) -> None:
    safe, told = safe_with()
    seen: list[Any] = []

    def before(args: Any, kwargs: Any) -> None:
        seen.append((args[1:], kwargs))
        raise KeyError("ours")

    Hook("an_engine", "Scheduler.run", lambda args, kwargs, result: seen.append(result), before).install(safe)
    assert engine.Scheduler().run(value=1) == 2
    assert seen == [((), {"value": 1})] and [where for where, _ in told] == ["Scheduler.run"]
