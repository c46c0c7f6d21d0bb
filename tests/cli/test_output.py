"""What commands print with."""

from __future__ import annotations

import json

import pytest

from eagle3lab.cli.output import console, print_json


def test_json_is_ascii_unless_it_is_to_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"path": "é → 𝄞"})
    assert capsys.readouterr().out == '{\n  "path": "\\u00e9 \\u2192 \\ud834\\udd1e"\n}\n'
    print_json({"path": "é → 𝄞"}, ascii=False)
    assert capsys.readouterr().out == '{\n  "path": "é → 𝄞"\n}\n'


@pytest.mark.parametrize("ascii", [True, False])
def test_a_lone_surrogate_is_printed_and_read_again(capsys: pytest.CaptureFixture[str], ascii: bool) -> None:
    value = {"é": 'a \ud800 and \udcff, a backslash \\ and a quotation mark "'}
    print_json(value, ascii=ascii)
    out = capsys.readouterr().out
    assert json.loads(out.encode()) == value


def test_a_number_that_json_does_not_have_is_refused_where_asked() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        print_json([float("nan")], allow_nan=False)


def test_a_console_has_its_own_width_where_nothing_else_says_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console(123).width == 123
    monkeypatch.setenv("COLUMNS", "70")
    assert console(123).width == 70
