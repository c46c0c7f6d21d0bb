"""`/metrics`, `/server_info`: what they say, what is a trap in them, and what they are not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.acceptance.documents import ServerInfo
from eagle3lab.acceptance.log import Server
from eagle3lab.acceptance.metrics import (
    Snapshot,
    Totals,
    advance,
    looks_like_page,
    read_page,
    server_of_pages,
)
from eagle3lab.acceptance.report import Given, ServerReport, account_server
from eagle3lab.acceptance.sources import account_totals
from eagle3lab.engines.release import Release
from eagle3lab.errors import InputError
from tests.acceptance.pages import OTHER_PAGE, RANK, sglang_page, vllm_page


def vllm_report(*pages: str) -> ServerReport:
    return account_server(server_of_pages([read_page(page) for page in pages], "m").server, Given())


def test_vllm_counts_every_step_and_position() -> None:
    report = vllm_report(vllm_page([(100, (60, 30, 10))]))
    assert report.accept_length is not None
    assert report.accept_length.mean == 2.0
    assert report.accept_rate == pytest.approx(100 / 300)
    assert report.draft_tokens == 4
    assert report.per_position is not None
    assert report.per_position.unconditional == (0.6, 0.3, 0.1)
    assert report.per_position.conditional == pytest.approx((0.6, 0.5, 1 / 3))
    assert str(report.engine) == "vllm"


def test_between_two_pages_only_what_came_in_between_counts() -> None:
    report = vllm_report(vllm_page([(100, (60, 30, 10))]), vllm_page([(150, (110, 80, 60))]))
    assert report.accept_length is not None
    assert report.accept_length.mean == 4.0
    assert report.accept_rate == 1.0
    assert report.per_position is not None
    assert report.per_position.unconditional == (1.0, 1.0, 1.0)


def test_engines_are_kept_apart_and_weighted_by_their_steps() -> None:
    report = vllm_report(vllm_page([(300, (300, 0, 0)), (100, (0, 0, 0))]))
    assert [(rank.label, rank.accept_length) for rank in report.ranks] == [("", 2.0), ("engine 1", 1.0)]
    assert report.accept_length is not None
    assert report.accept_length.mean == 1.75


def test_positions_that_accept_nothing_are_positions_all_the_same() -> None:
    report = vllm_report(vllm_page([(10, (5, 0, 0))]))
    assert report.per_position is not None
    assert report.per_position.unconditional == (0.5, 0.0, 0.0)


def test_counters_that_fall_were_reset_and_count_from_zero() -> None:
    pages = [read_page(p) for p in (vllm_page([(100, (60, 30, 10))]), vllm_page([(20, (20, 20, 20))]))]
    totals = server_of_pages(pages, "m")
    assert totals.restarts == 1
    report = account_totals(totals, None, Given())
    assert report.accept_length is not None
    assert report.accept_length.mean == 4.0
    assert any("restarted" in note for note in report.notes)


def test_pages_without_news_are_idle_and_no_failure() -> None:
    page = vllm_page([(100, (60, 30, 10))])
    report = vllm_report(page, page)
    assert report.accept_length is None
    assert report.signature.name == "no-data"


def test_created_series_are_no_counts() -> None:
    page = vllm_page([(4, (2, 1, 0))])
    assert "_created" in page, "the client shows what this is about"
    assert read_page(page).counts[""].steps == 4


def test_openmetrics_reads_the_same() -> None:
    plain = "\n".join(line for line in vllm_page([(4, (2, 1, 0))]).splitlines() if "created" not in line)
    open_text = plain.replace("_total counter", " counter") + "\n# EOF\n"
    lines = [x if not x.startswith("# HELP") else x.replace("_total ", " ") for x in open_text.splitlines()]
    assert read_page("\n".join(lines) + "\n").counts == read_page(plain + "\n").counts


def test_sglang_counters_are_exact_and_count_the_prefill_token_out() -> None:
    pages = [sglang_page(counts=c, draft_tokens=4) for c in ((10, 50, 3), (260, 626, 15))]
    totals = server_of_pages([read_page(page) for page in pages], "m")
    report = account_totals(totals, None, Given())
    assert report.accept_length is not None
    assert report.accept_length.mean == pytest.approx((576 - 12) / 250)
    assert report.draft_tokens == 4
    assert report.accept_rate == pytest.approx((564 / 250 - 1) / 3)


@pytest.mark.parametrize(
    ("release", "rate", "formula"), [("0.5.9", 0.4, "len/D"), ("0.5.11", 0.2, "(len-1)/(D-1)")]
)
def test_gauges_are_read_by_the_release(release: str, rate: float, formula: str) -> None:
    totals = server_of_pages([read_page(sglang_page(length=1.6, rate=rate))], "m")
    report = account_totals(totals, None, Given(Release("sglang", release), 4))
    assert report.accept_length is not None
    assert report.accept_length.mean == pytest.approx(1.6)
    assert report.accept_rate == pytest.approx(0.2)
    assert report.accept_rate_reported == pytest.approx(rate)
    assert report.reading.formula == formula
    assert any("gauges only" in note for note in report.notes)


def test_a_gauge_shown_again_is_the_same_interval() -> None:
    totals = Totals(Server("m", 1, source="sglang-metrics"))
    shown = [(2.0, 80.0), (2.0, 80.0), (3.0, 81.0), (3.0, 82.0)]
    news = [advance(totals, read_page(sglang_page(length=x, throughput=t))) for x, t in shown]
    assert news == [True, False, True, True]
    assert account_totals(totals, None, Given()).lines == 3


def test_ranks_of_one_batch_count_once_and_replicas_each() -> None:
    ranks = [RANK | {"tp_rank": tp, "dp_rank": dp} for tp in "01" for dp in "01"]
    page = read_page(sglang_page(ranks=ranks))
    assert list(page.gauges) == ["DP0", "DP1"]
    assert all(gauge.accept_length == 2.5 and gauge.running == 3.0 for gauge in page.gauges.values())


def test_a_server_that_has_not_speculated_yet_has_no_data() -> None:
    totals = server_of_pages([read_page(sglang_page(length=0.0, rate=0.0))], "m")
    report = account_totals(totals, None, Given())
    assert report.accept_length is None
    assert report.signature.name == "no-data"


def test_before_the_first_answer_the_counters_are_not_there() -> None:
    before, after = (
        sglang_page(length=0.0, draft_tokens=4),
        sglang_page(counts=(250, 576, 12), draft_tokens=4),
    )
    totals = server_of_pages([read_page(before), read_page(after)], "m")
    report = account_totals(totals, None, Given())
    assert report.accept_length is not None
    assert report.accept_length.mean == pytest.approx(564 / 250)


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (OTHER_PAGE, r"another program \(node_cpu_seconds_total, node_load1"),
        ("", "no metrics"),
        ("<!doctype html><html><body>Welcome</body></html>", "no page of metrics|another program"),
        ('{"detail": "Not Found"}', "no page of metrics|another program"),
        ("sglang:num_running_reqs 3.0\n", "none of them is about speculation"),
        ("vllm:num_requests_running 3.0\n", "none of them is about speculation"),
        ("vllm:spec_decode_num_emitted_tokens_total 9.0\n", "V0 engine"),
        ("\x00\x01\x02", "no page of metrics|another program"),
    ],
)
def test_what_is_no_page_of_a_speculating_server_is_said(page: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_page(page)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=60),
            st.sampled_from(
                [*sglang_page(counts=(3, 9, 1)).splitlines(), *vllm_page([(9, (3, 1))]).splitlines()]
            ),
        ),
        max_size=12,
    ),
    st.data(),
)
def test_damaged_pages_are_refused_or_read_never_a_traceback(lines: list[str], data: st.DataObject) -> None:
    text = "\n".join(lines)
    if text:
        at = data.draw(st.integers(0, len(text) - 1))
        text = text[:at] + data.draw(st.sampled_from(["", "{", '"', " ", "9e999", "-", "NaN"])) + text[at:]
    try:
        page = read_page(text)
    except InputError:
        return
    assert isinstance(page, Snapshot)
    report = account_totals(server_of_pages([page], "m"), None, Given())
    assert report.accept_length is None or report.accept_length.mean >= 1


def test_a_page_is_told_from_a_log() -> None:
    assert looks_like_page(sglang_page())
    assert looks_like_page("sglang:spec_accept_length 1.0\n")
    assert not looks_like_page("[2026-03-01 10:00:00] Decode batch. #running-req: 1")


def test_server_info_by_release() -> None:
    newer = ServerInfo.of(
        {"version": "0.5.23", "speculative_num_draft_tokens": 4, "decode_log_interval": 5, "tp_size": True,
         "internal_states": [{"avg_spec_accept_length": 2.5}, {"avg_spec_accept_length": 2.7}, {}]}
    )  # fmt: skip
    assert newer.release == "0.5.23"
    assert newer.arguments["speculative_num_draft_tokens"] == 4
    assert newer.accept_lengths == (2.5, 2.7)
    older = ServerInfo.of({"speculative_algorithm": "EAGLE3", "avg_spec_accept_length": 1.0})
    assert (older.release, older.accept_lengths) == (None, (1.0,))


@pytest.mark.parametrize("length", [float("nan"), 0.2, "2.5", None, True])
def test_a_length_that_is_none_is_not_invented(length: object) -> None:
    assert ServerInfo.of({"tp_size": 1, "avg_spec_accept_length": length}).accept_lengths == ()


def test_server_info_of_another_program() -> None:
    assert ServerInfo.of({"status": "ok"}) is None
