from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.errors import InputError
from eagle3lab.runs import folder as requests
from eagle3lab.runs.folder import Request, read_requests, write_requests

FIRST = Request(0, 3, 2, [5, 6], {"spec_verify_ct": 1, "id": "\u202e\n"}, 10.0, 10.5, "warm-up")
SECOND = Request(0, 3, 4, [], {"spec_accept_rate": None}, 11.0, 12.0)


def test_requests_come_back_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    write_requests(path, [FIRST, SECOND])
    assert path.read_bytes().count(b"\n") == 2
    assert read_requests(path) == (FIRST, SECOND)
    write_requests(path, [SECOND])
    assert read_requests(path) == (SECOND,)


def test_a_damaged_line_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "requests.jsonl"
    write_requests(path, [FIRST])
    with path.open("ab") as file:
        file.write(b"\n" + path.read_bytes()[:20])
    with pytest.raises(InputError, match=r"requests\.jsonl:3: is no request"):
        read_requests(path)
    path.write_bytes(b'{"index": "0"}\n')
    with pytest.raises(InputError, match=r":1: is no request: Expected `int`, got `str`"):
        read_requests(path)
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(InputError, match="is no request"):
        read_requests(path)
    monkeypatch.setattr(requests, "_LONGEST_LINE", 100)
    with pytest.raises(InputError, match="too long"):
        read_requests(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_requests(tmp_path / "none")


@given(st.binary(max_size=200))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    path.write_bytes(content)
    try:
        assert isinstance(read_requests(path), tuple)
    except InputError as error:
        assert "any.jsonl:" in str(error)
