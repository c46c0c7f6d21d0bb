"""Whole logs: sizes, compressions, restarts, damage, and memory that does not grow with the log."""

from __future__ import annotations

import functools
import gzip
import importlib.util
import io
import random
import sys
from operator import attrgetter
from pathlib import Path

import numpy as np
import pytest

from eagle3lab.acceptance import counts
from eagle3lab.acceptance import lines as source
from eagle3lab.acceptance import log as reader
from eagle3lab.acceptance.counts import pooled
from eagle3lab.acceptance.log import LogReading, read_logs
from eagle3lab.acceptance.report import Given, account
from eagle3lab.errors import InputError
from tests.acceptance.loglines import decode_line, newest, row_of, sample_lines, samples

pytestmark = pytest.mark.usefixtures("both_ways")

READY = "[2026-03-11 10:01:40] The server is fired up and ready to roll!"
ARGS = "[2026-03-11 09:58:02] server_args=ServerArgs(model_path='./target', tp_size=8, speculative_algorithm='EAGLE', speculative_draft_model_path='./draf(t', speculative_num_steps=4, speculative_eagle_topk=1, speculative_num_draft_tokens=5)"  # noqa: E501
DICT_ARGS = "[2026-03-11 09:58:02] server_args={'model_path': './target', 'tp_size': 2, 'speculative_algorithm': 'EAGLE3', 'speculative_num_steps': 3, 'speculative_eagle_topk': 1, 'speculative_num_draft_tokens': 4}"  # noqa: E501


def write(folder: Path, *lines: str, end: str = "\n") -> Path:
    log = folder / "server.log"
    log.write_bytes(("\n".join(lines) + end).encode())
    return log


def decode(length: float, second: int = 0, **more: object) -> str:
    return decode_line(newest(), length, time=f"2026-03-11 10:{second // 60:02d}:{second % 60:02d}", **more)  # type: ignore[arg-type]


def lengths(reading: LogReading) -> list[list[float]]:
    return [
        [length for series in server.series.values() for length in series.table()["length_sum"].tolist()]
        for server in reading.servers
    ]


def by_label(reading: LogReading) -> list[dict[str, list[float]]]:
    return [
        {label: series.table()["length_sum"].tolist() for label, series in server.series.items()}
        for server in reading.servers
    ]


def test_restart_by_server_args(tmp_path: Path) -> None:
    log = write(
        tmp_path, ARGS, READY, decode(1.0), decode(1.0, 1), DICT_ARGS, READY, decode(2.5, 2), decode(2.6, 3)
    )
    reading = read_logs([log])
    assert lengths(reading) == [[1.0, 1.0], [2.5, 2.6]]
    assert [s.first_line for s in reading.servers] == [1, 5]
    assert reading.servers[0].arguments == {
        "model_path": "./target", "tp_size": 8, "speculative_algorithm": "EAGLE",
        "speculative_draft_model_path": "./draf(t", "speculative_num_steps": 4, "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 5,
    }  # fmt: skip
    assert reading.servers[1].arguments["speculative_algorithm"] == "EAGLE3"
    report = account(reading, Given())
    assert [s.draft_tokens for s in report.servers] == [5, 4]
    assert report.servers[1].previous is not None
    assert report.servers[1].previous.change == pytest.approx(1.55)


def test_arguments_printed_twice_are_one_start_and_a_failed_start_is_another(tmp_path: Path) -> None:
    failed = (
        "[2026-03-11 09:58:03 TP1] Scheduler hit an exception: Traceback (most recent call last):",
        "  File x",
        "ValueError: no",
    )
    log = write(tmp_path, ARGS, ARGS, READY, decode(2.0), ARGS, *failed, DICT_ARGS, READY, decode(3.0))
    reading = read_logs([log])
    assert lengths(reading) == [[2.0], [], [3.0]]
    assert [server.tracebacks for server in reading.servers] == [[], [("TP1", "ValueError: no")], []]


def test_restart_by_ready_line_only(tmp_path: Path) -> None:
    log = write(tmp_path, decode(2.0), READY, decode(3.0), READY, READY, decode(1.5))
    assert lengths(read_logs([log])) == [[2.0], [3.0], [], [1.5]]


def test_files_are_kept_apart(tmp_path: Path) -> None:
    first = write(tmp_path, decode(2.0))
    second = tmp_path / "other.log"
    second.write_text(decode(3.0) + "\n")
    assert lengths(read_logs([first, second])) == [[2.0], [3.0]]


def test_rewritten_draft_tokens_win(tmp_path: Path) -> None:
    adjusted = "[2026-03-11 09:00:00] speculative_num_draft_tokens is adjusted to speculative_num_steps + 1 when speculative_eagle_topk == 1"  # noqa: E501
    old = [decode_line(row_of("0.5.9"), x, 5) for x in (2.31, 2.28)]
    report = account(read_logs([write(tmp_path, adjusted, *old)]), Given(draft_tokens=24)).main
    assert report is not None
    assert report.draft_tokens == 5
    assert report.accept_rate == pytest.approx((2.295 - 1) / 4)


@pytest.mark.parametrize("size", [257, 300, 1000, 4096])
def test_any_chunk_size_reads_the_same(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pick = random.Random(size)
    lines = [line for sample in samples() for line in sample_lines(sample)] * 3
    lines += [decode(1 + pick.random() * 3, i, ranks=f" DP{i % 3} TP0") for i in range(300)]
    lines += [f"(Engine pid={i % 2}) " + decode(2.0, i) for i in range(50)]
    pick.shuffle(lines)
    log = write(tmp_path, *lines)
    whole = read_logs([log])
    monkeypatch.setattr(reader, "chunks", functools.partial(source.chunks, size=size))
    pieces = read_logs([log])
    assert by_label(pieces) == by_label(whole)
    assert (pieces.lines, pieces.unparsed, pieces.bytes) == (whole.lines, whole.unparsed, log.stat().st_size)
    assert [s.tracebacks for s in pieces.servers] == [s.tracebacks for s in whole.servers]
    assert whole.lines == len(lines)


TRACEBACK = (
    "[2026-03-11 09:58:03 TP1] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "x.py", line 1, in run',
    'INFO:     127.0.0.1:1234 - "POST /generate HTTP/1.1" 200 OK',
    "[2026-03-11 09:58:04] Prefill batch, #new-seq: 1, speculative: nothing",
    decode(2.4, 5),
    "RuntimeError: no room",
)


def test_a_small_log_reads_as_the_same_lines_in_a_large_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pick = random.Random(7)
    # SGLang and its JAX sister in one log are told apart only line by line.
    lines = [line for one in samples() for line in sample_lines(one) if "#cache_miss" not in line]
    lines += [decode(1 + pick.random() * 3, i, ranks=f" DP{i % 2} TP0") for i in range(60)]
    lines += [
        "INFO:     the accept len: 2.00 of a user",
        "(Engine pid=1) [INFO:     ]",
        "Accept length: 2.03",
    ]
    lines += [
        line.partition(", accept len")[0] + ", gen throughput (token/s): 5.00, " for line in lines[-9:-3]
    ]
    for seed in range(6):
        random.Random(seed).shuffle(lines)
        at = pick.randrange(len(lines))
        log = write(tmp_path, *lines[:at], *TRACEBACK, *lines[at:], end="\n" if seed % 2 else "")
        found = []
        for small in (0, 1 << 30):
            monkeypatch.setattr(reader, "SMALL", small)
            reading = read_logs([log])
            for server in reading.servers:
                all_series = sorted(server.series.values(), key=attrgetter("label"))
                found.append(repr(pooled(all_series)))
                for one in all_series:
                    found.append(
                        repr(
                            (
                                one.label,
                                one.lines,
                                one.backwards,
                                one.weightless,
                                sorted(one.pairs.items()),
                                one.weight,
                            )
                        )
                    )
                server.series = {}
            found.append(repr(reading))
        half = len(found) // 2
        assert found[:half] == found[half:], seed


def test_gzip(tmp_path: Path) -> None:
    log = tmp_path / "server.log.1"  # known by its content, not by its name
    log.write_bytes(gzip.compress((decode(2.0) + "\n").encode()))
    assert lengths(read_logs([log])) == [[2.0]]


def test_gzip_that_breaks_off(tmp_path: Path) -> None:
    log = tmp_path / "server.log.gz"
    pick = random.Random(1)
    text = "".join(decode(1 + pick.random() * 3, i) + "\n" for i in range(20_000))
    log.write_bytes(gzip.compress(text.encode())[:-5000])
    report = account(read_logs([log]), Given())
    assert report.main is not None
    assert 1000 < report.main.lines < 20_000
    assert any("breaks off" in note for note in report.notes)


@pytest.mark.skipif(importlib.util.find_spec("zstandard") is not None, reason="zstandard is installed")
@pytest.mark.skipif(sys.version_info >= (3, 14), reason="Python 3.14 reads zstd")
def test_zstd_without_a_module(tmp_path: Path) -> None:
    log = tmp_path / "server.log.zst"
    log.write_bytes(b"\x28\xb5\x2f\xfd" + bytes(20))
    with pytest.raises(InputError, match="zstd"):
        read_logs([log])


def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO((decode(2.0) + "\n").encode())))
    assert lengths(read_logs(["-"])) == [[2.0]]


@pytest.mark.parametrize("name", ["absent.log", "."])
def test_what_cannot_be_opened(name: str, tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_logs([tmp_path / name])


def test_empty_and_unrelated(tmp_path: Path) -> None:
    empty = account(read_logs([write(tmp_path, end="")]), Given())
    assert empty.main is None
    assert "the log is empty" in empty.notes
    other = account(read_logs([write(tmp_path, "hello", "world")]), Given())
    assert other.main is None
    assert any("none reports acceptance" in note for note in other.notes)


def test_lines_of_ten_megabytes(tmp_path: Path) -> None:
    log = write(
        tmp_path, decode(2.0), "x" * 10_000_000, decode(3.0), "y" * 1000 + decode(9.0) + "z" * 10_000_000
    )
    reading = read_logs([log])
    assert lengths(reading) == [[2.0, 3.0]]
    assert (reading.lines, reading.unparsed, reading.overlong) == (4, 1, 0)


def test_lines_beyond_every_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LONGEST_LINE", 1 << 20)
    log = write(tmp_path, decode(2.0), "x" * 5_000_000, decode(3.0), "y" * 3_000_000, end="")
    reading = read_logs([log])
    assert lengths(reading) == [[2.0, 3.0]]
    assert reading.overlong == 2


def test_a_last_line_cut_anywhere(tmp_path: Path) -> None:
    """However the file ends, a number is read whole or not at all."""
    line = decode(2.17)
    for cut in range(len(line)):
        reading = read_logs([write(tmp_path, decode(3.0), line[:cut], end="")])
        (found,) = lengths(reading)
        assert found == [3.0] or (found == [3.0, 2.17] and "accept len: 2.17" in line[:cut]), line[:cut]
    assert found == [3.0, 2.17]


def test_invalid_utf8_and_carriage_returns(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(
        b"\xff\xfe\x00junk\n" + decode(2.0).encode() + b"\r\n\xc3\x28 " + decode(3.0).encode() + b"\r\n"
    )
    reading = read_logs([log])
    assert lengths(reading)[0][0] == 2.0
    assert reading.lines == 3


def test_clock_backwards_is_noted(tmp_path: Path) -> None:
    report = account(
        read_logs([write(tmp_path, decode(2.0, 30), decode(2.1, 10), decode(2.0, 50))]), Given()
    ).main
    assert report is not None
    assert any("backwards 1 time" in note for note in report.notes)
    assert report.table["length_sum"].tolist() == [2.0, 2.1, 2.0] or len(report.table["lines"]) == 3


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path) -> None:
    """Rows beyond the capacity are merged; counts and means stay exact and the order is kept."""
    n = 3 * counts.CAPACITY
    values = np.round(1 + 2 * np.arange(n) / n, 2)
    log = write(tmp_path, *(decode(v, i % 3600) for i, v in enumerate(values.tolist())))
    (series,) = read_logs([log]).servers[0].series.values()
    table = series.table()
    assert len(table["lines"]) <= 2 * counts.CAPACITY
    assert table["lines"].sum() == n
    assert table["length_sum"].sum() == pytest.approx(values.sum())
    assert (np.diff(table["length_sum"] / table["lines"]) >= -1e-9).all()


def test_weights_are_running_requests(tmp_path: Path) -> None:
    report = account(
        read_logs([write(tmp_path, decode(1.0, running=30), decode(3.0, running=10))]), Given()
    ).main
    assert report is not None
    assert report.accept_length is not None
    assert report.accept_length.mean == pytest.approx(1.5)
    assert any("running requests" in note for note in report.notes)


def test_v0_counters_become_intervals_and_resets_are_seen(tmp_path: Path) -> None:
    def line(accepted: int, drafted: int, emitted: int) -> str:
        numbers = (("speculative", 3), ("accepted", accepted), ("draft", drafted), ("emitted", emitted))
        counters = ", ".join(f"Number of {name} tokens: {value}" for name, value in numbers)
        return (
            "INFO 10-16 19:05:47 metrics.py:367] Speculative metrics: "
            f"Draft acceptance rate: {accepted / drafted:.3f}, System efficiency: 0.5, {counters}."
        )

    log = write(tmp_path, line(150, 300, 250), line(180, 600, 380), line(180, 600, 380), line(30, 300, 130))
    (series,) = read_logs([log]).servers[0].series.values()
    assert series.table()["length_sum"].tolist() == pytest.approx([2.5, 1.3, 1.3])
    assert series.idle == 1
    assert (series.accepted, series.proposed) == (210, 900)


def test_vllm_without_a_length_needs_the_draft_tokens(tmp_path: Path) -> None:
    log = write(
        tmp_path,
        "INFO [metrics.py:53] SpecDecoding metrics: "
        "Draft acceptance rate: 50.0%, Accepted: 150 tokens, Drafted: 300 tokens",
    )
    without = account(read_logs([log]), Given()).main
    assert without is not None
    assert without.accept_length is None
    assert without.accept_rate == pytest.approx(0.5)
    with_d = account(read_logs([log], 4), Given(draft_tokens=4)).main
    assert with_d is not None
    assert with_d.accept_length is not None
    assert with_d.accept_length.mean == pytest.approx(2.5)


def test_request_json(tmp_path: Path) -> None:
    old = '{"text": "a", "meta_info": {"completion_tokens": 61, "spec_verify_ct": 20, "spec_accept_rate": 0.67, "spec_accept_token_num": 40, "spec_draft_token_num": 60, "spec_accept_histogram": [0, 5, 10, 5]}}'  # noqa: E501
    new = '{"meta_info": {"completion_tokens": 31, "spec_verify_ct": 30, "spec_accept_rate": 0.0, "spec_num_correct_drafts": 0, "spec_num_proposed_drafts": 90}}'  # noqa: E501
    bad = '{"meta_info": {"spec_verify_ct": "many", "spec_accept_rate": 0.0}}'
    reading = read_logs([write(tmp_path, old, new, bad)])
    server = account(reading, Given()).main
    assert server is not None
    assert server.accept_length is not None
    assert server.accept_length.mean == pytest.approx(1 + 40 / 50)
    assert server.accept_rate == pytest.approx(40 / 150)
    assert server.draft_tokens == 4
    assert server.per_position is not None
    assert server.per_position.unconditional == pytest.approx((1.0, 0.75, 0.25))
    assert reading.unparsed == 1


def test_benchmark_figures_beside_a_server(tmp_path: Path) -> None:
    log = write(tmp_path, decode(2.0), decode(2.0, 1), "Accept length:                           2.03      ")
    report = account(read_logs([log]), Given())
    assert [(one.source, one.accept_length.mean) for one in report.servers if one.accept_length] == [
        ("sglang", 2.0),
        ("summary", 2.03),
    ]
    assert report.main is report.servers[0], "of one start, the server's own account goes first"


def test_two_engines_in_one_log_are_kept_apart(tmp_path: Path) -> None:
    vllm = "INFO [metrics.py:53] SpecDecoding metrics: Draft acceptance rate: 50.0%, Mean acceptance length: 2.50, Accepted: 150 tokens, Drafted: 300 tokens, Per-position acceptance rate: 0.700, 0.500, 0.300"  # noqa: E501
    request = '{"meta_info": {"spec_verify_ct": 10, "spec_accept_rate": 0.1, "spec_num_correct_drafts": 3, "spec_num_proposed_drafts": 30}}'  # noqa: E501
    log = write(tmp_path, decode(2.0), vllm, request, decode(2.2, 1), vllm, decode(2.4, 2))
    reading = read_logs([log])
    assert [server.source for server in reading.servers] == ["sglang", "vllm", "sglang-request"]
    assert lengths(reading) == [
        pytest.approx([2.0, 2.2, 2.4]),
        pytest.approx([2.5, 2.5]),
        pytest.approx([1.3]),
    ]


def test_restarts_without_end_stay_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_SERVERS", 5)
    log = write(tmp_path, *(line for i in range(20) for line in (READY, decode(2.0, i))))
    reading = read_logs([log])
    assert len(reading.servers) == 5
    assert sum(len(row) for row in lengths(reading)) == 20


def test_a_batch_that_just_emptied_still_counts(tmp_path: Path) -> None:
    report = account(
        read_logs([write(tmp_path, decode(2.0, running=0), decode(3.0, 1, running=3))]), Given()
    ).main
    assert report is not None
    assert report.accept_length is not None
    assert report.accept_length.mean == pytest.approx(2.75)
