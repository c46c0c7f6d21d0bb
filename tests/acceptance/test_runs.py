"""A run folder: every source read, held against the others, and a difference found where one lies."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.acceptance.grammar import request
from eagle3lab.acceptance.observations import Observation
from eagle3lab.acceptance.report import Given, ServerReport
from eagle3lab.acceptance.run import account_run
from eagle3lab.acceptance.sources import account_sources
from eagle3lab.errors import InputError
from eagle3lab.runs.folder import (
    EVENTS,
    LOG,
    METRICS_AFTER,
    REQUESTS,
    SERVER_INFO,
    read_requests,
    write_requests,
)
from tests.acceptance.pages import OTHER_PAGE, sglang_page
from tests.acceptance.runs import made_up, totals_of, write_events, write_run
from tests.acceptance.test_cli import run


def account(folder: Path) -> ServerReport:
    return account_run(folder, Given())


def failing(report: ServerReport) -> list[tuple[str, str]]:
    assert report.agreement is not None
    return [check.sources for check in report.agreement.checks if not check.agree]


def test_all_sources_of_a_run_say_the_same(tmp_path: Path) -> None:
    requests = made_up()
    total = totals_of(requests)
    report = account(write_run(tmp_path / "run", requests))
    found = report.agreement
    assert found is not None
    assert [one.source for one in found.figures] == ["requests", "probe", "log", "metrics", "server info"]
    assert len(found.checks) == 5
    assert found.agree is True
    exact = 1 + total.accepted / total.steps
    for source in ("requests", "probe", "server info"):
        figure = found.figure(source)
        assert figure is not None
        assert figure.accept_length == pytest.approx(exact)
        assert figure.accept_rate == pytest.approx(total.accepted / total.steps / 3)
    assert report.source == "sglang-request"
    assert report.accept_length is not None
    assert report.accept_length.mean == pytest.approx(exact)
    assert report.per_position is not None
    assert report.per_position.unconditional == pytest.approx([n / total.steps for n in total.positions])
    assert (str(report.engine), report.draft_tokens, report.algorithm) == ("sglang==0.5.23", 4, "EAGLE3")


def test_ranks_that_verify_the_same_batch_are_one(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_up())
    probe = account(folder).agreement.figure("probe")  # type: ignore[union-attr]
    assert probe is not None
    assert probe.steps == totals_of(made_up()).steps


def test_a_probe_that_counts_otherwise_is_found(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_up())
    total = totals_of(made_up())
    write_events(folder, replace(total, accepted=total.accepted - 1))
    assert failing(account(folder)) == [("requests", "probe")]


def test_more_steps_in_the_probe_than_the_requests_explain_are_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_up())
    total = totals_of(made_up())
    write_events(folder, replace(total, steps=total.steps + 10, accepted=total.accepted + 20))
    report = account(folder)
    assert not failing(report)
    assert any("10 steps more by the probe" in check.says for check in report.agreement.checks)  # type: ignore[union-attr]
    write_events(folder, replace(total, steps=total.steps + 10, accepted=total.accepted + 31))
    assert failing(account(folder)) == [("requests", "probe")]


def test_a_log_of_another_run_is_found(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_up())
    other = write_run(tmp_path / "other", made_up(seed=4, gain=-0.2))
    (folder / LOG).write_text((other / LOG).read_text())
    assert ("log", "requests") in failing(account(folder))


def test_metrics_of_another_run_are_found(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_up())
    (folder / METRICS_AFTER).write_text(sglang_page(length=1.0, counts=(100, 150, 8), draft_tokens=4))
    assert ("metrics", "requests") in failing(account(folder))


def test_server_info_that_contradicts_is_found(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_up())
    info = json.loads((folder / SERVER_INFO).read_text())
    info["internal_states"][0]["avg_spec_accept_length"] += 0.01
    (folder / SERVER_INFO).write_text(json.dumps(info))
    assert failing(account(folder)) == [("server info", "requests")]


def test_warm_up_requests_are_in_no_figure_but_explain_the_log(tmp_path: Path) -> None:
    measured = made_up()
    folder = write_run(tmp_path / "run", measured)
    import msgspec

    kept = [msgspec.structs.replace(r, phase="warm-up") if r.index < 2 else r for r in measured]
    write_requests(folder / REQUESTS, kept)
    report = account(folder)
    only = totals_of(measured[2:])
    figure = report.agreement.figure("requests")  # type: ignore[union-attr]
    assert figure is not None
    assert figure.steps == only.steps
    assert ("requests", "probe") not in failing(report)
    assert ("log", "requests") not in failing(report)
    from_file = account_sources([folder / REQUESTS], Given()).main
    assert from_file is not None
    assert from_file.accept_length is not None
    assert from_file.accept_length.mean == pytest.approx(1 + only.accepted / only.steps)


@pytest.mark.parametrize("missing", [REQUESTS, EVENTS, METRICS_AFTER, SERVER_INFO, LOG])
def test_a_run_that_ended_early_is_read_as_far_as_it_went(missing: str, tmp_path: Path) -> None:
    import shutil

    folder = write_run(tmp_path / "run", made_up())
    path = folder / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    report = account(folder)
    assert report.accept_length is not None
    assert not failing(report)
    exact = totals_of(made_up())
    assert report.accept_length.mean == pytest.approx(1 + exact.accepted / exact.steps, abs=0.005)


def test_metrics_of_another_program_are_said(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_up())
    (folder / METRICS_AFTER).write_text(OTHER_PAGE)
    report = account(folder)
    assert any("another program" in note for note in report.agreement.notes)  # type: ignore[union-attr]


def test_what_is_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run folder"):
        account(tmp_path)
    write_run(tmp_path / "run", made_up())
    for name in (LOG, REQUESTS):
        (tmp_path / "run" / name).unlink()
    import shutil

    shutil.rmtree(tmp_path / "run" / EVENTS)
    with pytest.raises(InputError, match="no log, no requests and no events"):
        account(tmp_path / "run")


def test_damaged_requests_are_named(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_up())
    with (folder / REQUESTS).open("a") as file:
        file.write('{"index": 3\n')
    with pytest.raises(InputError, match=REQUESTS):
        account(folder)


def test_requests_survive_their_file(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_up())
    assert read_requests(folder / REQUESTS) == made_up()


def test_the_command_writes_what_agrees(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", made_up())
    text = run(folder)
    assert "the sources agree" in text
    assert "  probe          " in text
    found = json.loads(run(folder, "--format", "json"))
    assert found["agreement"]["agree"] is True
    assert {one["source"] for one in found["agreement"]["sources"]} >= {"requests", "probe", "log"}
    assert found["read_from"] == "sglang-request"
    total = totals_of(made_up())
    assert found["accept_length"] == pytest.approx(1 + total.accepted / total.steps, abs=1e-4)


def test_runs_and_logs_side_by_side(tmp_path: Path) -> None:
    first = write_run(tmp_path / "a", made_up())
    second = write_run(tmp_path / "b", made_up(seed=5))
    found = json.loads(run(first, second / LOG, second / METRICS_AFTER, "--format", "json"))
    assert [s["read_from"] for s in found["servers"]] == ["sglang-request", "sglang", "sglang-metrics"]


def test_what_only_begins_like_a_page_or_like_gzip_is_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken.gz").write_bytes(b"\x1f\x8b\x08\x00junk")
    assert "no data" in run(tmp_path / "broken.gz")
    (tmp_path / "page.txt").write_text("# HELP x y\nnot { a page\n")
    with pytest.raises(InputError, match="no page of metrics"):
        run(tmp_path / "page.txt")


def test_a_histogram_that_stops_early_means_that_no_later_draft_was_accepted() -> None:
    """SGLang's histogram is as long as the longest acceptance of the request."""
    meta = {
        "spec_verify_ct": 10,
        "spec_accept_token_num": 2,
        "spec_draft_token_num": 40,
        "completion_tokens": 13,
    }
    for histogram, shares in (([8, 2], (0.2, 0.0, 0.0, 0.0)), ([10], (0.0, 0.0, 0.0, 0.0))):
        found = request(
            {**meta, "spec_accept_token_num": sum(histogram[1:]), "spec_accept_histogram": histogram}
        )
        assert isinstance(found, Observation)
        assert found.per_position == shares


@pytest.mark.parametrize(
    ("release", "wrong"), [("0.5.23", []), ("0.5.9", [("log", "requests"), ("server info", "requests")])]
)
def test_drafts_beyond_an_answers_end_are_in_the_log_from_0_5_11_on(
    release: str, wrong: list[tuple[str, str]], tmp_path: Path
) -> None:
    """Every answer is cut one token short; this log counts the drafts beyond, which 0.5.9 would not do."""
    import msgspec

    folder = write_run(tmp_path / "run", made_up(), release=release)
    cut = [msgspec.structs.replace(r, completion_tokens=r.completion_tokens - 1) for r in made_up()]
    write_requests(folder / REQUESTS, cut)
    (folder / METRICS_AFTER).unlink()
    assert failing(account(folder)) == wrong


VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 10**20), st.floats(), st.text(max_size=4),
    st.lists(st.one_of(st.integers(-1, 9), st.none()), max_size=5),
)  # fmt: skip
NAMES = st.sampled_from(
    ["spec_verify_ct", "spec_num_correct_drafts", "spec_num_proposed_drafts", "spec_accept_token_num",
     "spec_draft_token_num", "spec_accept_length", "spec_correct_drafts_histogram", "spec_accept_histogram"]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), NAMES, VALUES), min_size=1, max_size=6))
def test_what_a_server_says_of_an_answer_is_not_trusted(changes: list[tuple[int, str, object]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        folder = write_run(Path(scratch) / "run", made_up(3))
        requests = list(read_requests(folder / REQUESTS))
        for index, name, value in changes:
            requests[index].meta_info[name] = value
        # As msgspec writes it: a number that is none becomes null.
        write_requests(folder / REQUESTS, requests)
        report = account(folder)
        assert report.accept_length is None or report.accept_length.mean >= 1
        assert report.accept_rate is None or 0 <= report.accept_rate <= 1
