"""Every wrapper comes off, and what is left is what the program wrote."""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3lab.acceptance import lines as module
from eagle3lab.acceptance.lines import Damage, parse_prefix, read_lines, strip_colours
from eagle3lab.errors import InputError
from tests.acceptance.wrappers import WRAPPERS

PROGRAM = [
    "[2026-03-02 06:50:13 TP5] Scheduler hit an exception: Traceback (most recent call last):",
    '  File "/usr/local/lib/python3.12/site-packages/sglang/srt/model.py", line 622, in initialize',
    "    self.model.set_eagle3_layers_to_capture(",
    "AttributeError: 'KimiK25' object has no attribute \"set_eagle3_layers_to_capture\"",
    "Accept length: 2.03",
    "INFO 07-02 22:11:19 [metrics.py:120] SpecDecoding metrics: Mean acceptance length: 2.42",
]
TEXTS = [PROGRAM[0].partition("] ")[2], *PROGRAM[1:5], PROGRAM[5].partition("] ")[2]]


@pytest.mark.parametrize("name", WRAPPERS)
def test_every_wrapper_comes_off(name: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(WRAPPERS[name](PROGRAM))
    found = list(read_lines(log))
    assert [line.text for line in found] == TEXTS
    assert parse_prefix(found[0].head).ranks.get("TP", 5) == 5


def test_who_wrote_a_line_is_kept_apart(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "(Worker_TP0 pid=1) ERROR 01-02 03:04:05 [core.py:1] Traceback (most recent call last):\n"
        "(Worker_TP1 pid=2) ERROR 01-02 03:04:05 [core.py:1] Traceback (most recent call last):\n"
        '(Worker_TP0 pid=1) ERROR 01-02 03:04:05 [core.py:1]   File "a.py"\n'
    )
    found = list(read_lines(log))
    assert [line.stream for line in found] == [
        "(Worker_TP0 pid=1)",
        "(Worker_TP1 pid=2)",
        "(Worker_TP0 pid=1)",
    ]
    assert found[2].text == '  File "a.py"'
    assert parse_prefix(found[1].head).label == "TP1 pid 2"


def test_an_unknown_head_is_learnt_from_the_traceback(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "svc<7> at 12: Traceback (most recent call last):\nsvc<7> at 13:   File 'x'\nsvc<7> at 14: ValueError: no\n"
    )
    assert [line.text for line in read_lines(log)][1:] == ["  File 'x'", "ValueError: no"]


def test_brackets_of_a_source_file_are_no_colour() -> None:
    assert strip_colours("INFO [model.py:554] x") == "INFO [model.py:554] x"
    assert strip_colours("[0;36mx[0m\x1b[my") == "xy"


def test_an_answer_of_a_model_is_no_record_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    answer = json.dumps({"choices": [{"message": {"content": "Accept length: 9.00"}}], "message": "hello"})
    log.write_text(answer + "\n")
    assert [line.text for line in read_lines(log)] == [answer]


def test_a_line_beyond_the_bound_is_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONGEST_LINE", 1 << 20)
    log = tmp_path / "log"
    log.write_bytes(b"a\n" + b"x" * (6 << 20) + b"\nb\n")
    damage = Damage()
    assert [line.text for line in read_lines(log, damage)] == ["a", "b"]
    assert damage.overlong == 1


def test_a_bomb_ends_where_its_ratio_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FREE_EXPANSION", 1 << 20)
    log = tmp_path / "log.gz"
    log.write_bytes(gzip.compress(b"one\n" + b"\0" * (64 << 20)))
    damage = Damage()
    assert [line.text for line in read_lines(log, damage)] == ["one"]
    assert "expands" in damage.broken


@pytest.mark.slow
def test_a_single_line_of_a_gigabyte_takes_no_gigabyte(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(1 << 30)  # zeros without a newline, sparse on disk
    code = f"from eagle3lab.acceptance.lines import read_lines; print(len(list(read_lines({str(log)!r}))))"
    limit = lambda: resource.setrlimit(resource.RLIMIT_AS, (400 << 20, 400 << 20))  # noqa: E731
    done = subprocess.run(
        [sys.executable, "-c", code],
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "0\n", done.stderr


@pytest.mark.parametrize("name", ["fifo", "/dev/zero", "absent", ".", "a\0b"])
def test_what_is_no_regular_file_is_refused(name: str, tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(InputError):
        list(read_lines(tmp_path / name))
