"""The command: text as people see it, JSON as programs do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3lab.cli import app
from tests.acceptance.loglines import decode_line, newest, row_of

GOLDEN = Path(__file__).parent / "golden"


def case_study(folder: Path) -> Path:
    """The log of two launches: all names dropped, then renamed and still served as EAGLE."""
    old = row_of("0.5.9")
    arguments = (
        "server_args=ServerArgs(model_path='./target', tp_size=8, speculative_algorithm='EAGLE', "
        "speculative_num_steps=4, speculative_eagle_topk=1, speculative_num_draft_tokens=5)"
    )
    lines = []
    for hour, lengths in ((10, (1.0, 1.0, 1.0)), (11, (1.05, 1.04, 1.05))):
        lines.append(f"[2026-03-11 {hour}:00:02] {arguments}")
        lines.append(f"[2026-03-11 {hour}:01:40] The server is fired up and ready to roll!")
        lines += [
            decode_line(old, length, 5, time=f"2026-03-11 {hour}:02:{11 + 7 * i}", running=1)
            for i, length in enumerate(lengths)
        ]
    lines.append(
        "[2026-03-11 11:02:40 TP0] Decode batch, #running-req: 1, accept len: 1.x5, accept rate: 0.21,"
    )
    log = folder / "server.log"
    log.write_text("\n".join(lines) + "\n")
    (folder / "training.json").write_text("[0.745, 0.69, 0.66]")
    return log


def run(*arguments: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["acceptance", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code
    return result.output


@pytest.mark.parametrize("name", ["case-study", "vllm"])
def test_text(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "case-study":
        case_study(tmp_path)
        text = run("server.log", "--engine", "sglang==0.5.9", "--expected", "training.json")
    else:
        sample = Path(__file__).parents[1] / "cases" / "logs" / "excerpts.jsonl"
        lines = next(json.loads(x)["lines"] for x in sample.read_text().splitlines() if "D-vllm-two" in x)
        Path("server.log").write_text("\n".join(lines) + "\n")
        text = run("server.log")
    assert text == (GOLDEN / f"{name}.txt").read_text("utf-8")


def test_json(tmp_path: Path) -> None:
    log = case_study(tmp_path)
    found = json.loads(run(log, "--engine", "sglang==0.5.9", "--format", "json"))
    keys = {
        "schema_version", "engine", "accept_length", "accept_length_ci", "accept_rate_reported", "formula",
        "accept_rate", "draft_tokens", "per_position", "signature", "intervals", "unparsed", "notes",
    }  # fmt: skip
    assert keys <= found.keys()
    assert found["schema_version"] == 1
    assert found["engine"] == "sglang==0.5.9"
    assert found["accept_length"] == pytest.approx(1.0467, abs=1e-4)
    low, high = found["accept_length_ci"]
    assert 1 <= low < found["accept_length"] < high
    assert (found["formula"], found["draft_tokens"]) == ("len/D", 5)
    assert found["accept_rate"] == pytest.approx(0.0117, abs=1e-4)
    assert found["formula_decided_by"]["basis"] == "release"
    assert found["signature"]["name"] == "near-dead"
    assert [row["accept_length"] for row in found["intervals"]] == [1.05, 1.04, 1.05]
    assert found["unparsed"]["count"] == 1
    assert found["unparsed"]["examples"][0]["line"] == 11
    assert [server["signature"]["name"] for server in found["servers"]] == ["dead", "near-dead"]


def test_json_of_nothing(tmp_path: Path) -> None:
    log = tmp_path / "empty.log"
    log.touch()
    found = json.loads(run(log, "--format", "json"))
    assert found["accept_length"] is None
    assert found["signature"]["name"] == "no-data"
    assert "the log is empty" in found["notes"]


def test_json_of_a_long_log_stays_small(tmp_path: Path) -> None:
    log = tmp_path / "long.log"
    log.write_text("".join(decode_line(newest(), 2.0 + i % 7 / 10) + "\n" for i in range(5000)))
    found = json.loads(run(log, "--format", "json"))
    assert sum(row["lines"] for row in found["intervals"]) == 5000
    assert len(found["intervals"]) <= 256


def test_names_from_a_log_cannot_drive_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_bytes(
        b"[2026-03-11 10:00:00] server_args=ServerArgs(speculative_algorithm='EAGLE\x1b]0;x\x07')\n"
        + decode_line(newest(), 2.0).encode() + b"\naccept len: \x1b]0;owned\x07\n"
    )  # fmt: skip
    assert "\x1b" not in run(log)
    assert "\\u001b" not in run(log, "--format", "json")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["absent.log"], "no such file"), (["x.log", "--engine", "tensorrt"], "names no engine"),
     (["x.log", "--expected", "absent.json"], "cannot read accuracies")],
)  # fmt: skip
def test_errors(arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from eagle3lab.errors import InputError

    monkeypatch.chdir(tmp_path)
    Path("x.log").touch()
    with pytest.raises(InputError, match=said):
        run(*arguments)


@pytest.mark.parametrize("after", [True, False])
def test_an_exception_that_the_server_survived_is_told_from_its_last(after: bool, tmp_path: Path) -> None:
    trace = "Traceback (most recent call last):\n  File 'x'\nModuleNotFoundError: No module named 'y'\n"
    line = decode_line(newest(), 2.0) + "\n"
    (tmp_path / "server.log").write_text(trace + line if after else line + trace)
    text = " ".join(run(tmp_path / "server.log").split())
    assert ("No module named 'y', and the server went on" in text) == after
    assert "the server raised an exception: ModuleNotFoundError" in text
