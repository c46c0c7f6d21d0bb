"""The release's process: what it answers, how it fails, and that it goes away."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.diagnosis import diagnose
from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.ground_truth import (
    EngineProcessError,
    find_installation,
    real,
    simulated_beside_real,
)
from eagle3lab.engines.ground_truth import process as process_module
from eagle3lab.engines.ground_truth.process import EngineProcess, engine_process
from eagle3lab.engines.loading import differences, simulate
from eagle3lab.errors import InputError
from tests.engines.drafters import INSTALLED, config, head, tensor
from tests.extract.trees import LOADER, change, linked_copy, root_of
from tests.support.make_case import materialise

CASES = Path(__file__).parents[1] / "cases"


@pytest.mark.engine
@pytest.mark.parametrize("spec", INSTALLED)
def test_folders_with_real_values(tmp_path: Path, spec: str) -> None:
    """Every drafter of the case collection that can be read and that the Llama class is meant for."""
    engine, compared = resolve_engine(spec), 0
    for file in sorted(CASES.glob("*.json")):
        materialise(json.loads(file.read_text()), tmp_path / file.stem)
        drafter = tmp_path / file.stem / "drafter"
        if not drafter.exists():
            continue
        try:
            checkpoint = open_checkpoint(drafter)
            architectures = checkpoint.config.architectures
        except InputError:
            continue
        if "Eagle3DeepseekV2ForCausalLM" in architectures and spec == "sglang==0.5.9":
            continue  # its transformers knows no kimi_k2
        both = simulated_beside_real(checkpoint, engine)
        error = both.real.construction_error
        if error is not None and error.type == "StrictDataclassFieldValidationError":
            # The type of a config field is transformers' matter; the diagnosis knows it, the simulated load does not.
            assert "head-kind.config-value" in {one.fault for one in diagnose(drafter, engine=spec).findings}
            continue
        assert both.differences == (), file.stem
        assert both.real.to_dict().keys() == both.simulated.to_dict().keys()
        compared += 1
    assert compared > 30


@pytest.mark.engine
def test_the_heart_of_the_matter_is_seen_not_only_simulated() -> None:
    old, new = (real(config(), head("layers.0."), resolve_engine(spec), 8, 3) for spec in INSTALLED)
    assert len(old.tensors_with("dropped")) == 10
    assert len(old.parameters_with("left as initialised")) == 7
    assert not new.tensors_with("dropped") and not new.parameters_with("left as initialised")


@pytest.mark.engine
def test_a_dtype_that_torch_has_not_is_an_error_with_the_releases_own_words() -> None:
    engine = resolve_engine("sglang==0.5.23")
    with pytest.raises(EngineProcessError, match=r"the process of sglang==0\.5\.23 failed"):
        real(config(), [tensor("norm.weight", [64], "F4")], engine)
    assert real(config(), head(), engine).tensors_with("loaded")  # and it goes on


@pytest.mark.engine
def test_a_layout_that_dies_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "_PROCESSES", {})  # others' layouts stay alive
    engine = resolve_engine("sglang==0.5.9")
    try:
        real(config(), head(), engine, 4, 2)
        (child,) = psutil.Process(engine_process(engine)._process.pid).children()
        child.kill()
        with pytest.raises(EngineProcessError, match="rank 2 of 4 died"):
            real(config(), head(), engine, 4, 2)
        assert real(config(), head(), engine, 4, 2).tensors_with("loaded")
    finally:
        process_module.close_all()


@pytest.mark.engine
def test_nothing_is_left_when_python_ends() -> None:
    code = (
        "from eagle3lab.engines.atlas.resolve import resolve_engine\n"
        "from eagle3lab.engines.ground_truth.process import engine_process\n"
        "print(engine_process(resolve_engine('sglang==0.5.9'))._process.pid, flush=True)\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pid = int(result.stdout)
    deadline = time.monotonic() + 10
    while psutil.pid_exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not psutil.pid_exists(pid)


def fake_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, body: str) -> None:
    """A worker of our own in place of the real one."""
    script = tmp_path / "worker.py"
    script.write_text(body)
    monkeypatch.setitem(process_module._WORKERS, "sglang", script)
    monkeypatch.setattr(process_module, "find_spec", lambda name: object())
    monkeypatch.setattr(process_module, "find_installation", lambda engine: find_fake())


def find_fake() -> object:
    """An installation that needs no folder."""
    from eagle3lab.engines.ground_truth import Installation

    return Installation("0.5.9", None)


def test_a_release_that_does_not_start_shows_its_stderr(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_worker(monkeypatch, tmp_path, "import sys; sys.exit('no such library')")
    with pytest.raises(EngineProcessError, match=r"has stopped\nno such library"):
        EngineProcess(resolve_engine("sglang==0.5.9"))


def test_a_release_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_worker(
        monkeypatch, tmp_path, 'print(\'{"ready": "0.5.9"}\', flush=True)\nimport time; time.sleep(600)'
    )
    running = EngineProcess(resolve_engine("sglang==0.5.9"))
    with pytest.raises(EngineProcessError, match="gave no answer within 0 s"):
        running.ask({}, timeout_s=0.2)
    assert not running.alive


def test_another_release_than_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_worker(monkeypatch, tmp_path, 'print(\'{"ready": "0.5.8"}\', flush=True); input()')
    with pytest.raises(EngineProcessError, match=r"0\.5\.8 was imported"):
        EngineProcess(resolve_engine("sglang==0.5.9"))


def test_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_module, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="torch is not installed"):
        EngineProcess(resolve_engine("sglang==0.5.9"))


def test_a_release_that_is_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from eagle3lab.engines.ground_truth import locate

    monkeypatch.setattr(locate, "version", lambda kind: "9.9")
    monkeypatch.setattr(locate, "_roots", lambda: [tmp_path])
    with pytest.raises(InputError, match=r"`make setup`.*EAGLE3LAB_ENGINES"):
        find_installation(resolve_engine("sglang==0.5.9"))
    (tmp_path / "sglang-0.5.9" / "sglang").mkdir(parents=True)
    (tmp_path / "sglang-0.5.9" / "sglang" / "__init__.py").touch()
    assert find_installation(resolve_engine("sglang==0.5.9")).folder == tmp_path / "sglang-0.5.9"


def test_engines_variable_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from eagle3lab.engines.ground_truth import locate

    monkeypatch.setenv("EAGLE3LAB_ENGINES", str(tmp_path))
    assert locate._roots()[0] == tmp_path


def patched_tree(folder: Path) -> Path:
    """A checkout of 0.5.9, all links but the loader, which knows one more name of the layer."""
    stock = root_of("0.5.9").parent
    package = folder / "python" / "sglang"
    linked_copy(folder / "python", "0.5.9")
    for entry in stock.iterdir():
        if entry.name not in ("srt", "__pycache__"):
            (package / entry.name).symlink_to(entry)
    known = '            if "d2t" in name:\n'
    renamed = '            name = name.replace("layers.0.", "midlayer.")\n'
    change(package / "srt" / LOADER, known, renamed + known)
    return folder


@pytest.mark.engine
def test_a_source_tree_is_run_itself(tmp_path: Path) -> None:
    stock, tree = (resolve_engine(spec) for spec in ("sglang==0.5.9", str(patched_tree(tmp_path))))
    assert find_installation(tree).folder == tmp_path / "python"
    try:
        happened = real(config(), head("layers.0."), tree)
    finally:
        process_module.close_all()
    assert differences(simulate(config(), head("layers.0."), tree), happened) == []
    assert not happened.tensors_with("dropped")
    assert len(simulate(config(), head("layers.0."), stock).tensors_with("dropped")) == 10


def test_a_tree_that_cannot_be_run_is_refused(tmp_path: Path) -> None:
    engine = resolve_engine("sglang==0.5.9")
    wheel = tmp_path / "sglang-0.5.9-py3-none-any.whl"
    wheel.touch()
    with pytest.raises(InputError, match="a wheel, which cannot be run") as caught:
        find_installation(replace(engine, root=str(wheel)))
    assert caught.value.path == str(wheel)
    (tmp_path / "srt").mkdir()
    with pytest.raises(InputError, match="no package to import"):
        find_installation(replace(engine, root=str(tmp_path)))
