"""The choice of files beside the engines' own functions, taken out of their source without importing an engine."""

from __future__ import annotations

import ast
import fnmatch
import glob
import importlib.util
import json
import os
import typing
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3lab.checkpoint.store import find_files
from eagle3lab.errors import InputError
from tests.checkpoint.handmade import write
from tests.support.project import ROOT

pytestmark = pytest.mark.engine

FUNCTIONS = ("filter_duplicate_safetensors_files", "filter_files_not_needed_for_inference")


def source_of(release: str) -> Path:
    if release == "installed":
        spec = importlib.util.find_spec("sglang")
        if spec is None or not spec.submodule_search_locations:
            pytest.skip("no SGLang is installed")
        package = Path(spec.submodule_search_locations[0])
    else:
        package = ROOT / ".engines" / release / "sglang"
    path = package / "srt" / "model_loader" / "weight_utils.py"
    if not path.exists():
        pytest.skip(f"{release} is not there")
    return path


def engine_functions(release: str) -> dict[str, Callable[..., list[str]]]:
    """The two filters, compiled out of the release's file."""
    tree = ast.parse(source_of(release).read_text())
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in FUNCTIONS]
    space: dict[str, Any] = {"os": os, "json": json, "fnmatch": fnmatch, **vars(typing)}
    exec(compile(tree, "weight_utils", "exec"), space)
    return {name: space[name] for name in FUNCTIONS}


def engine_choice(folder: Path, functions: dict[str, Callable[..., list[str]]]) -> set[str] | None:
    """What the loader's file selection arrives at with `--load-format auto`; None when it stops."""
    found: list[str] = []
    for pattern in ("*.safetensors", "*.bin", "*.pt"):
        found = glob.glob(str(folder / pattern))  # noqa: PTH207  (the engine's own call)
        if found:
            break
    if pattern == "*.safetensors":
        found = functions[FUNCTIONS[0]](found, str(folder), "model.safetensors.index.json")
    else:
        found = functions[FUNCTIONS[1]](found)
    return {Path(name).name for name in found} or None


SAFETENSORS = [
    "model.safetensors",
    "consolidated.safetensors",
    "m-1.safetensors",
    "m-2.safetensors",
    ".hidden.safetensors",
]
TORCH = [
    "pytorch_model.bin",
    "training_args.bin",
    "optimizer.bin",
    "model.pt",
    "optimizer.pt",
    "scheduler.pt",
    "scaler.pt",
]


@pytest.mark.parametrize("release", ["sglang-0.5.9", "installed"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_engine_chooses_the_same_files(tmp_path: Path, release: str, data: st.DataObject) -> None:
    functions = engine_functions(release)
    for old in tmp_path.iterdir():
        old.unlink()
    safetensors = data.draw(st.lists(st.sampled_from(SAFETENSORS), unique=True, max_size=4))
    torch = data.draw(st.lists(st.sampled_from(TORCH), unique=True, max_size=4))
    for name in safetensors + torch:
        (tmp_path / name).write_bytes(b"x")
    visible = [name for name in safetensors if not name.startswith(".")]
    if visible and data.draw(st.booleans()):
        named = data.draw(st.lists(st.sampled_from(visible), min_size=1, unique=True))
        index = {"weight_map": {f"t{at}": name for at, name in enumerate(named)}}
        write(tmp_path, model__safetensors__index__json=index)
    theirs = engine_choice(tmp_path, functions)
    try:
        files = find_files(tmp_path.resolve())
    except InputError:
        assert theirs is None
        return
    assert (set(files.read) or None) == theirs
    assert list(files.read) == sorted(files.read)
    assert {*files.read, *(file.name for file in files.ignored)} == {*safetensors, *torch}
