"""Whoever handed out the log, the answer is the same: every case with a log in every wrapper that is known."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from eagle3lab.diagnosis import diagnose
from tests.acceptance.wrappers import WRAPPERS
from tests.diagnosis.corpus import case_ids, load

LOGS = [identity for identity in case_ids() if load(identity)["log"]]
CRASHES = [identity for identity in LOGS if any("Error" in line for line in load(identity)["log"])]


def _answer(log: Path, engine: str | None) -> object:
    said = diagnose(log=log, engine=engine)
    return said.verdict, [(one.fault, one.code, one.title, round(one.confidence, 6)) for one in said.findings]


@pytest.mark.parametrize("place", range(len(WRAPPERS)), ids=list(WRAPPERS))
def test_the_answer_does_not_depend_on_the_wrapper(place: int, tmp_path: Path) -> None:
    """Every crash, and every fourth of the other logs, each wrapper another fourth."""
    wrapper = WRAPPERS[list(WRAPPERS)[place]]
    others = [one for one in LOGS if one not in CRASHES]
    for identity in [*CRASHES, *others[place % 4 :: 4]]:
        case = load(identity)
        plain, wrapped = tmp_path / "plain.log", tmp_path / "wrapped.log"
        plain.write_text("\n".join(case["log"]) + "\n")
        wrapped.write_bytes(wrapper(case["log"]))
        assert _answer(wrapped, case["engine"]) == _answer(plain, case["engine"]), identity


@pytest.mark.parametrize("identity", CRASHES)
def test_a_crash_is_printed_once(identity: str, tmp_path: Path) -> None:
    from eagle3lab.acceptance.tracebacks import read_deaths
    from eagle3lab.diagnosis.reports import drawn

    log = tmp_path / "server.log"
    log.write_text("\n".join(load(identity)["log"]) + "\n")
    death, _ = read_deaths(log)
    assert death is not None
    console = Console(width=100, file=StringIO())
    console.print(*drawn(diagnose(log=log, engine=load(identity)["engine"])))
    shown = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    assert shown.count(" ".join(death.error.split())[:60]) == 1
