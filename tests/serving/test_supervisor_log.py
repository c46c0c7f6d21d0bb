from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.engines.launch.secrets import spellings
from eagle3lab.serving.supervisor import Log

_SECRET = "k€y'\\s\nsecond-line"


@given(st.lists(st.text("ab\n" + _SECRET, max_size=40)), st.integers(1, 7), st.booleans())
def test_no_secret_reaches_the_log_however_it_arrives(texts: list[str], size: int, as_repr: bool) -> None:
    written = repr(_SECRET)[1:-1] if as_repr else _SECRET
    data = written.join(["", *texts, ""]).encode()
    descriptor, name = tempfile.mkstemp()
    os.close(descriptor)
    path = Path(name)
    try:
        log = Log(name, list(spellings([_SECRET])), "<redacted>")
        for start in range(0, len(data), size):
            log.write(data[start : start + size])
        log.close()
        text = path.read_text()
    finally:
        path.unlink()
    for form in spellings([_SECRET]):
        assert form not in text
    whole = data.decode()
    for form in spellings([_SECRET]):
        whole = whole.replace(form, "<redacted>")
    assert text.replace("<redacted>", "").replace("\n", "") == whole.replace("<redacted>", "").replace(
        "\n", ""
    )


def test_each_state_of_a_progress_bar_is_written(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), ["secret"], "<redacted>")
    log.write(b"\rloading: 10%")
    log.write(b"\rloading: secret 20%")
    log.write(b"\rloading: 30%")
    assert (tmp_path / "log").read_bytes() == b"\rloading: 10%\rloading: <redacted> 20%\r"


def test_output_without_an_end_is_written_in_time(tmp_path: Path) -> None:
    log = Log(str(tmp_path / "log"), ["secret"], "<redacted>")
    log.write(b"x" * 200_000)
    assert (tmp_path / "log").stat().st_size > 100_000
