from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3lab.errors import InputError
from eagle3lab.runs import folder as module
from eagle3lab.runs.folder import Request, RunFolder, write_requests


def write_plan(path: Path, **plan: object) -> RunFolder:
    described = {"engine": {"kind": "sglang", "release": "0.5.9"}, "plan": {"model": "m", **plan}}
    (path / "plan.json").write_text(json.dumps(described))
    return RunFolder.open(path)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        RunFolder.open(tmp_path / "none")
    with pytest.raises(InputError, match=r"is no run folder: it holds no plan\.json"):
        RunFolder.open(tmp_path)


def test_a_run_that_ended_early_has_what_it_has(tmp_path: Path) -> None:
    run = write_plan(tmp_path, draft_tokens=4)
    assert (run.release, run.draft_tokens, run.plan()["model"]) == ("0.5.9", 4, "m")
    assert (run.requests(), run.events()) == ((), ())
    assert (run.server_info(), run.versions(), run.measurement()) == (None, None, None)
    assert (run.metrics_before, run.metrics_after) == (None, None)
    assert run.log == tmp_path / "server.log"


def test_what_is_there_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_plan(tmp_path)
    assert run.draft_tokens is None
    (tmp_path / "server_info.json").write_text('{"version": "0.5.9"}')
    (tmp_path / "metrics-before.txt").write_bytes(b"a 1\n")
    (tmp_path / "metrics-after.txt").write_bytes(b"a \xff\n")
    made = [Request(0, 1, 1, [1], {}, 0.0, 1.0)]
    write_requests(run.requests_file, made)
    assert run.server_info() == {"version": "0.5.9"}
    assert (run.metrics_before, run.metrics_after) == ("a 1\n", "a \ufffd\n")
    assert list(run.requests()) == made
    monkeypatch.setattr(module, "_MOST_METRICS", 3)
    with pytest.raises(InputError, match="too large"):
        _ = run.metrics_after


@pytest.mark.parametrize("content", ["[]", "{", '{"plan": [], "engine": {}}', '{"plan": {}}'])
def test_a_damaged_plan_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "plan.json").write_text(content)
    run = RunFolder.open(tmp_path)
    with pytest.raises(InputError, match=r"plan\.json"):
        _ = (run.plan(), run.release)


def test_odd_values_of_a_plan_count_as_unknown(tmp_path: Path) -> None:
    run = write_plan(tmp_path, draft_tokens=True)
    assert run.draft_tokens is None
    (tmp_path / "plan.json").write_text('{"plan": {}, "engine": {"release": 5}}')
    assert run.release is None
