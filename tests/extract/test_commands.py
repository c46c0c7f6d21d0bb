"""`eagle3lab engines`, `load-plan --engine PATH`, and the commands that make and check the atlas."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from eagle3lab.book.engine_atlas import engine_atlas_page
from eagle3lab.cli import app
from eagle3lab.engines.atlas import __main__ as make_atlas
from eagle3lab.engines.atlas import check, wheels
from eagle3lab.engines.release import releases
from tests.engines.drafters import head, raw_config, write_checkpoint
from tests.extract.trees import LOADER, small_copy

LOOP = "        for name, loaded_weight in weights:\n"
RENAME = {LOADER: (LOOP, f'{LOOP}            name = name.replace("layers.0", "midlayer")\n')}


def run(*arguments: str) -> str:
    result = CliRunner(env={"COLUMNS": "150", "NO_COLOR": "1"}).invoke(app, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_a_planted_rename_changes_the_load_plan(tmp_path: Path) -> None:
    drafter = str(write_checkpoint(tmp_path / "drafter", raw_config(), head("layers.0.")))
    outcomes = {}
    for engine in (
        "sglang==0.5.9",
        str(small_copy(tmp_path / "same")),
        str(small_copy(tmp_path / "new", RENAME)),
    ):
        plan = json.loads(run("load-plan", drafter, "--engine", engine, "--format", "json"))
        outcomes[engine] = {tensor["name"]: tensor["outcome"] for tensor in plan["tensors"]}
        assert plan["notes"][:1] == ([f"facts read from the source at {engine}"] if "/" in engine else [])
        # Only code that is no release's is run.
        assert [note for note in plan["notes"] if "stand-ins" in note] == plan["notes"][1:]
        assert len(plan["notes"]) == (2 if engine.endswith("new") else 1 if "/" in engine else 0)
    stock, same, patched = outcomes.values()
    layer = {name for name in stock if name.startswith("layers.0.")}
    assert stock == same and len(layer) > 8
    assert {stock[name] for name in layer} == {"dropped"}
    assert {patched[name] for name in layer} == {"loaded"}
    assert {name: o for name, o in patched.items() if name not in layer} == {
        name: o for name, o in stock.items() if name not in layer
    }


def test_shard_names_stop_the_first_releases(tmp_path: Path) -> None:
    drafter = str(write_checkpoint(tmp_path / "drafter", raw_config(), head("layers.0.")))
    plan = json.loads(run("load-plan", drafter, "--engine", "sglang==0.4.8", "--format", "json"))
    stopped = [t for t in plan["tensors"] if t["outcome"] == "rejected"]
    assert [t["exception"] for t in stopped] == ["KeyError"]
    assert "model.layers.0.mlp.gate_up_proj.weight" in stopped[0]["reason"]
    good = str(write_checkpoint(tmp_path / "good", raw_config(), head("midlayer.")))
    plan = json.loads(run("load-plan", good, "--engine", "sglang==0.4.8", "--format", "json"))
    assert not [t for t in plan["tensors"] if t["outcome"] in ("dropped", "rejected")]
    assert [p["name"] for p in plan["parameters"] if p["status"] == "left as initialised"] == [
        "model.fc.bias"
    ]


def test_all_releases() -> None:
    text = run("engines")
    assert all(f"│ {release} " in text for release in releases())
    assert "+ midlayer in a name: becomes layers.0" in text
    table = json.loads(run("engines", "--format", "json"))
    assert [entry["release"] for entry in table] == list(releases())
    assert table[0]["changes"] == [] and len(table[0]["sha256"]) == 64


def test_one_release() -> None:
    text = run("engines", "sglang==0.5.9")
    assert "NAME or model.NAME" in text and "(accepted+bonus)/(forwards*draft_tokens)" in text
    report = json.loads(run("engines", "sglang==0.5.9", "--format", "json"))
    assert (report["engine"], report["notes"]) == ("sglang==0.5.9", [])
    assert report["facts"]["names"]["source"]["line"] == 264


def test_two_releases(tmp_path: Path) -> None:
    text = run("engines", "sglang==0.5.10", "sglang==0.5.11")
    assert "accepted/(forwards*(draft_tokens-1))" in text and "config ids" in text
    assert "do the same" in run("engines", "sglang==0.5.14", "sglang==0.5.15")
    path = str(small_copy(tmp_path, RENAME))
    report = json.loads(run("engines", str(small_copy(tmp_path / "stock")), path, "--format", "json"))
    assert report["changes"] == [
        {"topic": "tensor names", "item": "layers.0 in a name", "before": None, "after": "becomes midlayer"}
    ]
    assert "nearest older" in run("engines", "sglang==7.0", "sglang==0.5.23")


def test_the_page_of_the_book() -> None:
    page = engine_atlas_page()
    assert page.startswith("# Engine atlas\n")
    assert "0.4.6 to 0.4.8.post1" in page and "stops with KeyError" in page
    assert page.count("<table") == page.count("</table>") >= 7
    assert "KimiK25ForConditionalGeneration" in page and "unknown" not in page
    assert "from 0.5.10 on: handed on to language_model" in page


def small_wheel(folder: Path, release: str) -> Path:
    """A wheel of the few files that matter."""
    root = small_copy(folder / release) / "python"
    wheel = folder / f"sglang-{release}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in sorted(root.rglob("*.py")):
            archive.write(file, file.relative_to(root))
        lines = f"Version: {release}\nRequires-Dist: transformers==4.57.1\n"
        archive.writestr(f"sglang-{release}.dist-info/METADATA", lines)
    return wheel


def test_the_atlas_is_made_of_the_wheels_that_are_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "wheels"
    kept.mkdir()
    for release in ("0.5.9.post1", "0.5.9"):
        small_wheel(tmp_path, release).rename(kept / f"sglang-{release}-py3-none-any.whl")
    output = tmp_path / "sglang.jsonl.xz"
    options = ["atlas", "sglang", "--offline", "--wheels", str(kept), "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", options)
    assert make_atlas.main() == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said[:2]] == ["[1/2] sglang==0.5.9", "[2/2] sglang==0.5.9.post1"]
    first = output.read_bytes()
    assert make_atlas.main() == 0 and output.read_bytes() == first
    monkeypatch.setattr(
        sys, "argv", ["atlas", "--offline", "--wheels", str(tmp_path / "none"), "--output", str(tmp_path)]
    )
    assert make_atlas.main() == 2 and output.read_bytes() == first


def answer(stdout: str = "", stderr: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], 0, stdout, stderr)


def test_releases_are_listed_and_only_missing_wheels_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def pip(*arguments: str) -> subprocess.CompletedProcess[str]:
        asked.append(arguments[-1])
        if arguments[0] == "index":
            return answer("sglang (0.5.10)\nAvailable versions: 0.5.10, 0.5.9, 0.4.6, 0.4.5.post3, 0.1.24\n")
        release = arguments[-1].partition("==")[2]
        (tmp_path / f"sglang-{release}-py3-none-any.whl").touch()
        return answer(stderr="WARNING: the candidate is yanked" if release == "0.4.6" else "")

    monkeypatch.setattr(wheels, "_pip", pip)
    names = wheels.listed()
    assert names == ["0.4.6", "0.5.9", "0.5.10"]
    (tmp_path / "sglang-0.5.9-py3-none-any.whl").touch()
    fetched = dict(wheels.fetch(names, tmp_path))
    assert asked == ["sglang", "sglang==0.4.6", "sglang==0.5.10"]
    assert fetched["0.4.6"] is None and fetched["0.5.9"] is not None and fetched["0.5.10"] is not None
    monkeypatch.setattr(wheels, "_pip", lambda *arguments: answer(stderr="no network"))
    with pytest.raises(wheels.FetchError, match="no network"):
        wheels.listed()


def test_the_check_of_all_wheels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_wheel(tmp_path, "0.5.9")
    monkeypatch.setattr(sys, "argv", ["check", "--wheels", str(tmp_path), "--generated", "50"])
    assert check.main() == 0
    said = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert said["sglang==0.5.9"].count(" agree") == 3 and said["sglang==0.5.23"] == "no archive"
    (tmp_path / "sglang-0.5.9-py3-none-any.whl").rename(tmp_path / "sglang-0.5.23-py3-none-any.whl")
    assert check.main() == 1
    assert "disagree" in capsys.readouterr().out
