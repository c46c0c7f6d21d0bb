"""Which of a server's processes the supervisor watches, and when it takes one for lost."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from eagle3lab.serving import supervisor

# A process with a part's title; a word on its input makes it fork, the next one ends the child.
PART = """
import os, sys
for line in sys.stdin:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    print(flush=True)
    sys.stdin.readline()
    os.close(writing)
    os.waitpid(child, 0)
    print(flush=True)
"""


@contextmanager
def running() -> Iterator[subprocess.Popen[str]]:
    command = ["sglang::scheduler_TP0", "-c", PART]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, executable=sys.executable, stdin=pipe, stdout=pipe, text=True) as process:
        tell(process)  # it runs
        tell(process)
        yield process
        process.kill()


@pytest.fixture
def part() -> Iterator[subprocess.Popen[str]]:
    with running() as process:
        yield process


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> supervisor.Parts:
    for interval in ("_SEARCH_S", "_LOOK_S", "_NOTICE_S"):
        monkeypatch.setattr(supervisor, interval, 0.0)
    return supervisor.Parts()


def tell(process: subprocess.Popen[str]) -> None:
    """Have the process take its next step, and wait until it has."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()


def test_a_part_that_is_killed_is_lost(parts: supervisor.Parts, part: subprocess.Popen[str]) -> None:
    assert [parts.look(), parts.look()] == [False, False]
    part.kill()
    part.wait()
    assert [parts.look(), parts.look()] == [False, True]
    assert parts.lost.startswith("sglang::scheduler_TP0")


def test_a_part_that_is_killed_as_soon_as_it_is_there_is_lost(
    parts: supervisor.Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_SEARCH_S", 1000.0)
    assert not parts.look()
    with running() as part:
        assert not parts.look()
        part.kill()
        part.wait()
        assert [parts.look(), parts.look()] == [False, True]


def test_parts_are_looked_for_seldom_when_there_have_been_no_new_ones(
    parts: supervisor.Parts, part: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    searches = []
    monkeypatch.setattr(supervisor, "_SEARCH_S", 1000.0)
    monkeypatch.setattr(supervisor, "_SETTLED_S", 0.0)
    descendants = supervisor.descendants
    monkeypatch.setattr(supervisor, "descendants", lambda: searches.append(1) or descendants())
    for _ in range(5):
        assert not parts.look()
    assert len(searches) == 1


def test_the_end_of_a_child_that_still_has_its_title_is_no_loss(
    parts: supervisor.Parts, part: subprocess.Popen[str]
) -> None:
    """SGLang's scheduler runs `lscpu`: between fork and exec the child looks like a second scheduler."""
    tell(part)
    assert [parts.look(), parts.look()] == [False, False]
    tell(part)
    assert [parts.look(), parts.look()] == [False, False]
    assert parts.lost == ""
