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


def test_the_first_traceback_is_the_first_rank_s_with_what_led_to_it(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(HARMLESS + TRACEBACKS)
    found = first_traceback(log)
    assert "KeyError: 'midlayer.fc'" in found and "ValueError: the drafter does not fit" in found
    assert "TP0" not in found and "harmony" not in found


def test_a_healthy_log_has_no_traceback(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert first_traceback(None) == "" == first_traceback(log)
    for text in ("", HARMLESS, TRACEBACKS + "[2026-01-01 00:00:09 TP0] Decode batch, #running"):
        log.write_text(text)
        assert first_traceback(log) == ""


def test_a_hostile_traceback_is_safe_to_show(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: a\x1b[31mb\x00'
    )
    assert first_traceback(log).endswith("ValueError: ab\\x00")


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
