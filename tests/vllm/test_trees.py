"""vLLM's source as a fork or a damaged one: read, patched, broken."""

from __future__ import annotations

import json
import lzma
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from eagle3lab.engines.atlas import __main__ as make_atlas
from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.extract import extract
from eagle3lab.engines.extract import tree as tree_module
from eagle3lab.engines.extract.tree import is_vllm
from eagle3lab.engines.extract.vllm import VllmFacts
from eagle3lab.errors import InputError
from eagle3lab.serving.engine import find_engine
from tests.diagnosis.corpus import inputs
from tests.vllm.sources import ALGORITHMS, LOADER, facts, small_copy

pytestmark = pytest.mark.engine
UTILITIES = "model_executor/models/utils.py"


def unknown(path: Path) -> dict[str, str]:
    return {entry.fact: entry.reason for entry in extract(path).unknown}


def test_a_checkout_says_what_the_atlas_says(tmp_path: Path) -> None:
    copy = small_copy(tmp_path, "0.32.0")
    assert is_vllm(copy) and is_vllm(copy / "vllm")
    read, known = extract(copy), facts("0.32.0")
    assert isinstance(read, VllmFacts)
    assert (read.names, read.parameters, read.construction) == (
        known.names,
        known.parameters,
        known.construction,
    )
    engine = resolve_engine(str(copy))
    assert engine.spec == "vllm==0.32.0" and engine.notes == (f"facts read from the source at {copy}",)


def test_a_planted_rename_is_unproven(tmp_path: Path) -> None:
    copy = small_copy(tmp_path, "0.32.0", {LOADER: ('{"midlayer.": "layers.0."}', '{"trunk.": "layers.0."}')})
    assert "of midlayer." in unknown(copy)["names"]
    with pytest.raises(InputError, match="names: none of 5 known variants"):
        resolve_engine(str(copy))


@pytest.mark.parametrize(
    ("file", "old", "new", "fact", "reason"),
    [
        (LOADER, 'if "t2d" in name:\n                continue', 'if odd(name):\n                continue', "names",
         "calls odd"),
        (LOADER, "model_weights = {}", "model_weights = {}\n        prepare(weights)", "names",
         "calls prepare"),
        (LOADER, "        loader = AutoWeightsLoader(self)\n        return", "        return", "names",
         "and the loader: raised NameError"),
        (LOADER, "fc_input_size = target_hidden_size *", "fc_input_size = odd(target_hidden_size) *", "parameters",
         "a size depends on odd"),
        (LOADER, "if self.norm_before_fc:", "if odd():", "parameters", "norm_before_fc"),
        (UTILITIES, "key = key.replace(substr, new_key, 1)", "key = odd(key)", "names", "calls odd"),
        (ALGORITHMS, 'pre_trained_config["fc_norm"] = config_dict.get("fc_norm", False)', "odd(config_dict).x = 1",
         "translation", "how configs of speculators"),
        ("v1/spec_decode/metrics.py", "1 + (num_accepted_tokens / num_drafts)", "2", "log", "how acceptance"),
        ("v1/worker/gpu_model_runner.py", "return tuple(layer_ids)", "return layer_ids", "wiring", "layer ids"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_unknown(
    tmp_path: Path, file: str, old: str, new: str, fact: str, reason: str
) -> None:
    copy = small_copy(tmp_path, "0.32.0", {file: (old, new)})
    found = unknown(copy)
    assert reason in found[fact], found
    with pytest.raises(InputError, match="the source does not show what this vLLM does"):
        resolve_engine(str(copy))


def test_who_else_is_given_a_vllm(tmp_path: Path) -> None:
    """Diagnosis knows its load and some rules, and nothing here starts it."""
    copy = small_copy(tmp_path, "0.32.0")
    resolved = inputs(engine=str(copy)).get("Resolved")
    assert str(resolved.engine) == "vllm==0.32.0" and resolved.facts is None
    assert "diagnosis knows the load" in resolved.note and "some rules" in resolved.note
    with pytest.raises(InputError, match="cannot be started"):
        find_engine("vllm==0.32.0")


def test_broken_and_missing_files(tmp_path: Path) -> None:
    copy = small_copy(tmp_path, "0.32.0", {LOADER: ("class LlamaModel(", "class class(")})
    found = unknown(copy)
    assert "no class for EAGLE-3" in found["drafter"] and "line" in found["files"]
    (copy / "vllm" / "v1" / "spec_decode" / "metrics.py").unlink()
    assert "not there" in unknown(copy)["log"]
    (copy / "PKG-INFO").unlink()
    assert "release" in unknown(copy)


def test_what_was_kept_of_a_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = small_copy(tmp_path / "copy", "0.32.0")
    wheel = tmp_path / "vllm-0.32.9-cp38-abi3-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in sorted((copy / "vllm").rglob("*.py")):
            archive.write(file, file.relative_to(copy))
        archive.writestr("vllm-0.32.9.dist-info/METADATA", "Name: vllm\nVersion: 0.32.9+cpu\n")
        archive.comment = b"sha256:" + b"ab" * 32
    read = extract(wheel)
    assert isinstance(read, VllmFacts) and read.release == "0.32.9"
    assert (read.names, read.parameters) == (facts("0.32.0").names, facts("0.32.0").parameters)
    output = tmp_path / "out"
    output.mkdir()
    options = ["atlas", "vllm", "--offline", "--wheels", str(tmp_path), "--output", str(output)]
    monkeypatch.setattr(sys, "argv", options)
    assert make_atlas.main() == 0 and "[1/1] vllm==0.32.9: " in capsys.readouterr().out
    head = json.loads(lzma.decompress((output / "vllm.jsonl.xz").read_bytes()).partition(b"\n")[0])
    assert head["releases"] == [["0.32.9", wheel.name, "ab" * 32]]


def test_what_is_no_vllm(tmp_path: Path) -> None:
    assert not is_vllm(tmp_path)
    archive = tmp_path / "vllm-0.32.0.tar.gz"
    archive.write_bytes(b"no archive")
    with pytest.raises(InputError, match="neither a source distribution nor a wheel"):
        extract(archive)
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(Path(__file__), "vllm-0.32.0/../../etc/passwd.py")
    with pytest.raises(InputError, match="holds no vLLM source tree"):
        extract(archive)


def test_far_too_many_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_copy(tmp_path, "0.32.0")
    monkeypatch.setattr(tree_module, "MOST_FILES", 5)
    with pytest.raises(InputError, match="more than 5 Python files") as refused:
        extract(tmp_path)
    assert "Point at a vLLM checkout" in str(refused.value.advice)
