"""The edge of the command line: what it says and how it ends, whatever happens inside."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

_FAILING = """
import sys
import eagle3lab.cli.engines as command
def engines() -> None:
    {body}
command.engines = engines
from eagle3lab.cli import main
sys.argv = ["eagle3lab", "engines"{more}]
main()
"""


def _run(body: str, *, more: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    script = _FAILING.format(body=body, more=more)
    return subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        timeout=60,
    )


def test_an_expected_error_is_one_line_and_status_2() -> None:
    done = _run("from eagle3lab.errors import InputError; raise InputError('no such thing', path='a.json')")
    assert (done.returncode, done.stderr) == (2, "eagle3lab: a.json: no such thing\n")


def test_an_unexpected_error_is_one_line_with_a_report_that_can_be_sent(tmp_path: Path) -> None:
    key = "sk-planted-4711"
    done = _run(
        "raise RuntimeError('odd\\n' + __import__('os').environ['SOME_API_KEY'])",
        TMPDIR=str(tmp_path),
        SOME_API_KEY=key,
    )
    assert done.returncode == 3 and done.stderr.count("\n") == 1
    found = re.search(r"attach (\S+),", done.stderr)
    assert found is not None
    report = Path(found[1]).read_text()
    assert "RuntimeError: odd" in report and "engines" in report.splitlines()[1]
    assert key not in report + done.stderr and "<redacted>" in report


def test_an_interrupt_is_status_130() -> None:
    done = _run("raise KeyboardInterrupt")
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(
    "body",
    [
        "print('line ' * 100_000)",
        "from eagle3lab.cli.output import console; console(80).print('line ' * 100_000)",
        "print('one line, still in the buffer')",
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_left_is_no_error(body: str, unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", _FAILING.format(body=body, more="")],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": unbuffered},
        timeout=60,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, "")
