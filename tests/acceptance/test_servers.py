"""Real servers of both releases: log, requests, metrics, /server_info and probe say the same, alive and afterwards."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from eagle3lab.acceptance.live import FollowedAddress
from eagle3lab.acceptance.report import Given, ServerReport
from eagle3lab.acceptance.sources import account_sources
from eagle3lab.runs.folder import EVENTS, RunFolder
from eagle3lab.serving.probe import probe_overlay
from eagle3lab.serving.profiles import cpu
from eagle3lab.serving.server import Server
from eagle3lab.serving.workload import Workload, run_workload
from lab.specimen.paths import specimen_dir
from lab.specimen.trial import load_trial
from tests.acceptance.test_cli import run
from tests.serving.engines import RELEASES, engine
from tests.serving.heads import trained_drafter

pytestmark = [pytest.mark.engine, pytest.mark.server]

D = 4
PROMPTS = {"0.5.9": 6, "0.5.23": 12}


@pytest.fixture(scope="module", params=RELEASES)
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, ServerReport, dict[str, object]]:
    """A release, the folder of its run, and what its address said while it ran: followed, and by the command."""
    release = request.param
    folder = tmp_path_factory.mktemp("acceptance")
    drafter = trained_drafter(folder / "head")
    plan = cpu(str(specimen_dir() / "target"), str(drafter), release=release)
    # A line for every forward: then a log tells exactly how many requests took part in each.
    plan = replace(plan, extra=[*plan.extra, "--enable-metrics", "--decode-log-interval", "1"])
    overlay = probe_overlay(events=folder / "run" / EVENTS)
    asked = Workload(load_trial(prompts=PROMPTS[release]).prompts, max_new_tokens=40)
    with Server.start(plan, folder / "run", engine(release), overlay=overlay, timeout_s=180.0) as server:
        followed = FollowedAddress(server.url, Given())
        followed.poll()
        run_workload(server, asked, RunFolder(folder / "run"))
        followed.poll()
        alive = followed.report().main
        by_command = json.loads(run(server.url, "--format", "json"))
    assert alive is not None
    return release, folder / "run", alive, by_command


def test_accept_length_and_true_rate_are_the_same_in_every_source(
    served: tuple[str, Path, ServerReport, dict[str, object]],
) -> None:
    release, folder, _, _ = served
    report = account_sources([folder], Given()).main
    assert report is not None
    found = report.agreement
    assert found is not None
    assert found.agree is True, [check.says for check in found.checks if not check.agree]
    requests, probe, log, info = (found.figure(name) for name in ("requests", "probe", "log", "server info"))
    assert requests is not None and probe is not None and log is not None and info is not None
    assert requests.steps == probe.steps
    assert requests.accept_length == pytest.approx(probe.accept_length, abs=1e-12)
    assert requests.accept_rate == pytest.approx(probe.accept_rate, abs=1e-12)
    assert 1.3 < requests.accept_length < 3.9, (
        "accepted and refused drafts both occur, or nothing was compared"
    )
    # 0.5.9 leaves out of its log what was accepted beyond an answer's end; the log prints two decimals of each forward.
    asked = RunFolder(folder).requests()
    kept = sum(r.completion_tokens - 1 for r in asked) / (requests.steps or 1)
    expected = kept if release == "0.5.9" else requests.accept_length
    assert log.accept_length == pytest.approx(expected, abs=0.005)
    assert log.accept_rate == pytest.approx((expected - 1) / (D - 1), abs=0.005 / (D - 1))
    assert info.accept_length == pytest.approx(expected, abs=1e-6)
    assert kept < requests.accept_length, "answers end within a verify step, or the difference was not seen"
    assert (found.figure("metrics") is not None) == (release == "0.5.23")
    assert report.per_position is not None
    assert report.per_position.accept_length == pytest.approx(requests.accept_length)


def test_the_log_alone_gives_length_rate_and_release_formula(
    served: tuple[str, Path, ServerReport, dict[str, object]],
) -> None:
    release, folder, _, _ = served
    alone = account_sources([folder / "server.log"], Given()).main
    whole = account_sources([folder], Given()).main
    assert alone is not None and alone.accept_length is not None
    assert whole is not None and whole.accept_length is not None
    log = whole.agreement.figure("log")  # type: ignore[union-attr]
    assert log is not None
    assert alone.accept_length.mean == pytest.approx(log.accept_length)
    assert alone.accept_rate == pytest.approx(log.accept_rate)
    assert alone.reading.formula == ("len/D" if release == "0.5.9" else "(len-1)/(D-1)")
    assert alone.draft_tokens == D


def test_a_running_server_says_it_too(served: tuple[str, Path, ServerReport, dict[str, object]]) -> None:
    release, folder, alive, by_command = served
    requests = RunFolder(folder).requests()
    assert str(alive.engine) == f"sglang=={release}"
    assert alive.draft_tokens == by_command["draft_tokens"] == D
    assert alive.accept_length is not None
    if release == "0.5.23":
        steps = sum(r.meta_info["spec_verify_ct"] for r in requests)
        kept = sum(r.completion_tokens - 1 for r in requests)
        assert alive.accept_length.mean == pytest.approx(kept / steps)
        assert by_command["accept_length"] == pytest.approx(kept / steps, abs=1e-4)
    else:  # gauges only: the last log interval
        last = account_sources([folder / "server.log"], Given()).main
        assert last is not None
        shown = (last.table["length_sum"] / last.table["lines"])[-1]
        assert alive.accept_length.mean == pytest.approx(shown, abs=0.005)
    assert any("/server_info" in note for note in by_command["notes"])  # type: ignore[attr-defined]
