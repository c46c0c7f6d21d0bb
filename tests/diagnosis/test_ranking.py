"""Ranking: what explains the observation moves up, what the log contradicts is less grave, what hides what."""

from __future__ import annotations

import pytest

from eagle3lab.diagnosis import Evidence, Finding, Impact, Observed, Severity
from eagle3lab.diagnosis.crash import Crash
from eagle3lab.diagnosis.ranking import ranked, repair_order, stage


def finding(
    fault: str, impact: Impact, code: str = "E3L-X01", severity: Severity = Severity.ERROR
) -> Finding:
    return Finding("title", (Evidence("seen"),), "fix", 0.9, severity, impact, "effect.", fault, code)


DROPPED = finding("names.dropped", Impact.ZERO, "E3L-N01")
NORM = finding("layer.norm-before-fc", Impact.PARTIAL, "E3L-L02")
LATER = finding("layer.norm-output", Impact.LATER, "E3L-L03")
STOPS = finding("layer.context", Impact.STOPS, "E3L-L07")


def observed(signature: str, crash: str = "") -> Observed:
    return Observed(signature, 0.9, "the figures", crash=crash)


def order(
    *found: Finding, signature: str | None = None, crash: Crash | None = None, served: bool = False
) -> list[str]:
    seen = observed(signature, crash.error if crash else "") if signature else None
    return [one.fault for one in ranked(list(found), seen, crash, served=served)]


def test_without_a_log_what_stops_the_server_comes_first() -> None:
    assert order(NORM, DROPPED, STOPS) == ["layer.context", "names.dropped", "layer.norm-before-fc"]


@pytest.mark.parametrize(
    ("signature", "first"),
    [
        ("dead", "names.dropped"),
        ("partial", "layer.norm-before-fc"),
        ("recurrence-cliff", "layer.norm-output"),
    ],
)
def test_what_produces_the_observation_comes_first(signature: str, first: str) -> None:
    assert order(DROPPED, NORM, LATER, STOPS, signature=signature, served=True)[0] == first


def test_the_reason_is_said() -> None:
    up, down = ranked([DROPPED, LATER], observed("dead"), None, served=True)
    assert up.ranking.startswith("promoted") and down.ranking.startswith("demoted")
    assert "the figures" in up.ranking


def test_a_server_that_served_was_not_stopped() -> None:
    (weak,) = ranked([STOPS], observed("near-dead"), None, served=True)
    assert weak.severity is Severity.WARNING and "started" in weak.ranking
    (weaker,) = ranked([STOPS], observed("healthy"), None, served=True)
    assert weaker.severity is Severity.NOTE


def test_useful_acceptance_contradicts_a_dead_drafter() -> None:
    (doubted,) = ranked([DROPPED], observed("healthy"), None, served=True)
    assert doubted.severity is Severity.WARNING and "is the log of this drafter" in doubted.ranking


def test_a_traceback_is_evidence_for_what_explains_it() -> None:
    crash = Crash("RuntimeError: sizes", "TP0", 7, ("capture.ids-count", "names.shape"))
    ids = finding("capture.ids-count", Impact.STOPS, "E3L-C07")
    first, *_ = ranked([STOPS, ids, DROPPED], observed("no-data", crash.error), crash, served=False)
    assert first.fault == "capture.ids-count"
    assert "RuntimeError: sizes" in first.evidence[-1].text and first.evidence[-1].line == 7


def test_names_hide_layers_and_are_repaired_first() -> None:
    ordered = ranked([NORM, DROPPED], None, None, served=False)
    by_fault = {one.fault: one for one in ordered}
    assert by_fault["layer.norm-before-fc"].hidden_by == ("E3L-N01",)
    assert by_fault["names.dropped"].hidden_by == ()
    assert repair_order(ordered) == ("E3L-N01", "E3L-L02")


def test_notes_are_not_repaired() -> None:
    assert repair_order((finding("layer.rope", Impact.PARTIAL, severity=Severity.NOTE),)) == ()


def test_stages_follow_the_way_of_a_token() -> None:
    faults = [
        "files.missing",
        "head-kind.architecture",
        "names.dropped",
        "capture.algorithm",
        "vocab.zero",
        "capture.width",
    ]
    assert [stage(fault) for fault in faults] == sorted(stage(fault) for fault in faults)
