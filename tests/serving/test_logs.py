from __future__ import annotations

from pathlib import Path

import pytest

from eagle3lab.serving.logs import Tail, first_traceback, shown, stage_of, tail
from tests.serving.fake_texts import HARMLESS, TRACEBACKS


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        ("[2026-11-29 15:32:21] Load weight begin. avail mem=21.24 GB", "loading weights"),
        ("Multi-thread loading shards: 100% Completed | 1/1 [00:00<00:00]", "loading weights"),
        ("Loading safetensors checkpoint shards:   0% Completed | 0/1", "loading weights"),
        (
            "[2026-11-29 15:32:22 TP3] KV Cache is allocated. #tokens: 2048",
            "making room for the key/value cache",
        ),
        ("[2026-11-29 15:32:22] Capture cuda graph begin. This can take minutes", "capturing CUDA graphs"),
        (
            "[2026-11-29 15:32:22] Capture draft decode CUDA graph begin. backend=full",
            "capturing CUDA graphs",
        ),
        ("Capturing batches (bs=8 avail_mem=10.2 GB):  50%", "capturing CUDA graphs"),
        ("[2026-11-29 15:32:22] INFO:     Uvicorn running on http://127.0.0.1:1", "warming up"),
        ("[2026-11-29 15:32:24] The server is fired up and ready to roll!", "answering"),
        ("[2026-11-29 15:32:24] Ignore import error when loading sglang.srt.models.grok", None),
    ],
)
def test_a_line_tells_what_the_server_is_doing(line: str, stage: str | None) -> None:
    assert stage_of(line) == stage


def test_the_first_traceback_is_the_first_rank_s_whole_chain() -> None:
    found = first_traceback((HARMLESS + TRACEBACKS).split("\n"))
    assert (
        found.split("\n")[0]
        == "[2026-01-01 00:00:00 TP1] Scheduler hit an exception: " + "Traceback (most recent call last):"
    )
    assert found.endswith("ValueError: the drafter does not fit\n  its width is 7")
    assert "KeyError: 'midlayer.fc'" in found
    assert "TP0" not in found
    assert "harmony" not in found


def test_a_healthy_log_has_no_traceback() -> None:
    assert first_traceback(HARMLESS.split("\n")) == ""
    assert (
        first_traceback([*TRACEBACKS.split("\n"), "[2026-01-01 00:00:09 TP0] Decode batch, #running"]) == ""
    )
    assert first_traceback([]) == ""


def test_a_traceback_may_be_cut_off_or_endless_or_hostile() -> None:
    begin = "Traceback (most recent call last):"
    assert first_traceback([begin]) == begin
    long = first_traceback([begin, *(f"  line {number}" for number in range(1000)), "RecursionError"]).split(
        "\n"
    )
    assert len(long) < 100
    assert long[-1] == "RecursionError"
    assert "\x1b" not in first_traceback([begin, '  File "\x1b[31m"', "E\x1b[0m: x"])


def test_lines_are_shown_without_time_and_escapes() -> None:
    assert shown("[2026-11-29 15:32:22 TP0] a\x1b[31mb\n") == "a\\x1b[31mb"
    assert tail(["one", "", "two", " "], 1) == "two"


def test_a_log_is_read_as_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = Tail(path)
    assert log.new_lines() == []
    with path.open("wb", buffering=0) as file:
        file.write("first\nhalf a l\u00efne, cut in a letter".encode()[:15])
        assert log.new_lines() == ["first"]
        file.write("first\nhalf a l\u00efne, cut in a letter".encode()[15:] + b"\n  0%\r 50%\r\xff")
        assert log.new_lines() == ["half a l\u00efne, cut in a letter", "  0%", " 50%"]
        assert log.new_lines() == []
