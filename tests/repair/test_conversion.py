"""The other direction: a copy in the speculators format, for the library itself and for vLLM."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.errors import InputError
from eagle3lab.repair import write_repair
from tests.repair.heads import OLD, drafter, faults, hashes, plan, refused, specforge
from tests.support.make_case import materialise
from tests.support.project import ROOT

SPECIMEN = ROOT / "specimen"


def test_there_and_back_is_the_same_head(tmp_path: Path) -> None:
    source, target = SPECIMEN / "drafter", SPECIMEN / "target"
    write_repair(plan(source, OLD, target), tmp_path / "flat")
    planned = plan(tmp_path / "flat", "speculators", target)
    assert faults(planned) == ["head-kind.config-dialect", "names.dropped"]
    write_repair(planned, tmp_path / "back")
    assert hashes(tmp_path / "back")["model.safetensors"] == hashes(source)["model.safetensors"]
    original, back = open_checkpoint(source).config, open_checkpoint(tmp_path / "back").config
    for field in set(original.sources) - {"dialect", "verifier"}:
        assert getattr(back, field) == getattr(original, field), field
    assert plan(tmp_path / "back", "speculators", target).status == "unchanged"


def test_ids_become_inputs_of_layers(tmp_path: Path) -> None:
    case = materialise(specforge(), tmp_path / "case")
    planned = plan(case / "drafter", "speculators", case / "target")
    assert planned.copy.raw["eagle_aux_hidden_state_layer_ids"] == [2, 16, 29]
    assert "eagle_config" not in planned.copy.raw
    assert planned.copy.raw["norm_before_residual"] is False


def test_what_the_format_needs_and_the_files_do_not_say(tmp_path: Path) -> None:
    (refusal,) = plan(materialise(specforge(), tmp_path / "case") / "drafter", "speculators").refusals
    assert refusal.fault == "head-kind.config-dialect" and "--target" in refusal.alternatives[0]


@pytest.mark.parametrize("engine", ["vllm", "vllm==0.20.2", "speculators"])
def test_a_silent_norm_before_residual_is_stated(engine: str, tmp_path: Path) -> None:
    """vLLM takes true where the library that wrote the config takes false."""
    source = drafter("ok-vllm-native-speculators", tmp_path / "case")
    config = json.loads((source / "config.json").read_text())
    del config["norm_before_residual"]
    (source / "config.json").write_text(json.dumps(config))
    planned = plan(source, engine)
    assert faults(planned) == ["layer.norm-before-residual"]
    assert planned.copy.raw["norm_before_residual"] is False


def test_a_flat_head_is_repaired_for_vllm_without_being_converted(tmp_path: Path) -> None:
    case = specforge(edits={"rename": {"*": "draft_model.*"}})
    source = materialise(case, tmp_path / "case") / "drafter"
    planned = plan(source, "vllm==0.33.0", tmp_path / "case" / "target")
    assert (faults(planned), planned.refusals) == (["names.rejected", "capture.ids-convention"], ())
    assert planned.copy.config.dialect == "huggingface"
    assert planned.copy.raw["eagle_aux_hidden_state_layer_ids"] == [2, 16, 29]
    write_repair(planned, tmp_path / "out")
    assert plan(tmp_path / "out", "vllm==0.33.0", tmp_path / "case" / "target").status == "unchanged"


def test_norm_before_residual_is_no_obstacle_there(tmp_path: Path) -> None:
    case = tmp_path / "case"
    source = drafter("layer-norm-before-residual", case)
    assert refused(plan(source, OLD)) == {"layer.norm-before-residual"}
    planned = plan(source, "speculators", case / "target")
    assert planned.refusals == ()
    assert planned.copy.raw["norm_before_residual"] is True


def test_a_map_of_the_whole_vocabulary_stops_vllm(tmp_path: Path) -> None:
    case = tmp_path / "case"
    source = drafter("ok-full-vocab-zero-d2t", case)
    assert refused(plan(source, "speculators", case / "target")) == {"names.rejected"}


def test_raw_trainer_names_become_the_formats_own(tmp_path: Path) -> None:
    """vLLM stops at every name it does not know: prefixes go from the token map too, which is corrected as well."""
    case = specforge(template__d2t="absolute", edits={"rename": {"*": "draft_model.*"}})
    source = materialise(case, tmp_path / "case") / "drafter"
    planned = plan(source, "speculators", tmp_path / "case" / "target")
    assert faults(planned) == ["head-kind.config-dialect", "names.dropped", "vocab.absolute"]
    write_repair(planned, tmp_path / "out")
    copy = open_checkpoint(tmp_path / "out")
    assert {"d2t", "t2d", "fc.weight", "layers.0.mlp.up_proj.weight"} <= set(copy.tensors)
    assert not any("draft_model" in name or "midlayer" in name for name in copy.tensors)
    assert set(copy.read("d2t") + np.arange(500)) == set(np.flatnonzero(copy.read("t2d")))


@pytest.mark.parametrize("spec", ["vllm==0.1", "speculators==9", "trtllm"])
def test_releases_that_were_not_tried(spec: str) -> None:
    with pytest.raises(InputError):
        plan(SPECIMEN / "drafter", spec)


@pytest.mark.engine
@pytest.mark.skipif(find_spec("speculators") is None, reason="needs the speculators library")
def test_the_library_itself_loads_every_tensor(tmp_path: Path) -> None:
    """A flat head with SGLang's names, converted: the real class reports no key of the file left over or unlike."""
    source, target = SPECIMEN / "drafter", SPECIMEN / "target"
    write_repair(plan(source, OLD, target), tmp_path / "flat")
    write_repair(plan(tmp_path / "flat", "speculators", target), tmp_path / "back")
    program = (
        "import sys, torch\n"
        "from safetensors.torch import load_file\n"
        "from speculators import SpeculatorModel\n"
        "held = SpeculatorModel.from_pretrained(sys.argv[1]).state_dict()\n"
        "for name, values in load_file(sys.argv[1] + '/model.safetensors').items():\n"
        "    assert torch.equal(held[name].float(), values.float()), name\n"
        "print('loaded', len(held))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "back")],
        capture_output=True,
        text=True,
        env={"HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0 and "loaded" in done.stdout, done.stderr[-2000:]
