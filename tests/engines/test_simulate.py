"""What the simulation says, apart from agreeing with the engine: contract, reasons, notes, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.loading import LoadPlan, differences, simulate, simulate_load
from eagle3lab.engines.loading.plan import summary
from eagle3lab.errors import InputError
from tests.engines.cases import SPECULATORS
from tests.engines.drafters import config, head, raw_config, read, tensor, write_checkpoint

OLD, NEW = resolve_engine("sglang==0.5.9"), resolve_engine("sglang==0.5.23")


def outcome(plan: LoadPlan, name: str) -> tuple[str, str]:
    """Outcome and reason of the tensor of this name."""
    (found,) = [entry for entry in plan.tensors if entry.name == name]
    return found.outcome, found.reason


def status(plan: LoadPlan, name: str) -> tuple[str, str]:
    """Status and reason of the parameter of this name."""
    (found,) = [entry for entry in plan.parameters if entry.name == name]
    return found.status, found.reason


def test_layers_0_names_on_the_old_release() -> None:
    plan = simulate(config(), head("layers.0."), OLD, 8)
    dropped = [entry.name for entry in plan.tensors_with("dropped")]
    assert len(dropped) == 10 and all(name.startswith("layers.0.") for name in dropped)
    untouched = [entry.name for entry in plan.parameters_with("left as initialised")]
    assert len(untouched) == 7 and all(name.startswith("model.midlayer.") for name in untouched)
    assert outcome(plan, "layers.0.mlp.up_proj.weight")[1] == (
        "dropped without a message: no parameter layers.0.mlp.gate_up_proj.weight "
        "or model.layers.0.mlp.gate_up_proj.weight"
    )


def test_layers_0_names_on_the_new_release() -> None:
    plan = simulate(config(), head("layers.0."), NEW, 8)
    assert not plan.tensors_with("dropped") and not plan.parameters_with("left as initialised")


def test_json_contract() -> None:
    report = simulate(config(), head(), OLD, 2, 1).to_dict()
    assert json.loads(json.dumps(report)) == report
    assert list(report) == [
        "engine",
        "drafter_class",
        "tp_size",
        "tp_rank",
        "tensors",
        "parameters",
        "construction_error",
        "notes",
    ]
    for entry in report["tensors"]:
        assert list(entry) == ["name", "outcome", "parameter", "slice", "reason"]
    for entry in report["parameters"]:
        assert list(entry) == ["name", "shape", "status", "reason", "replaced_by_target"]
    slices = {entry["name"]: entry["slice"] for entry in report["tensors"]}
    assert slices["midlayer.self_attn.q_proj.weight"] == {"parameter_rows": [0, 32], "tensor_rows": [32, 64]}
    assert slices["midlayer.self_attn.o_proj.weight"] == {
        "parameter_rows": [0, 64],
        "tensor_rows": [0, 64],
        "parameter_columns": [0, 32],
        "tensor_columns": [32, 64],
    }
    assert slices["lm_head.weight"] == {
        "parameter_rows": [0, 36],
        "tensor_rows": [64, 100],
        "zero_rows": [36, 64],
    }


def test_a_fused_tensor_fills_several_stretches() -> None:
    name = "midlayer.self_attn.qkv_proj.weight"
    (entry,) = simulate(config(), [tensor(name, [128, 128])], OLD, 2, 1).to_dict()["tensors"]
    assert entry["slice"] == [
        {"parameter_rows": [0, 32], "tensor_rows": [32, 64]},
        {"parameter_rows": [32, 48], "tensor_rows": [80, 96]},
        {"parameter_rows": [48, 64], "tensor_rows": [112, 128]},
    ]


def test_key_value_heads_repeat_when_there_are_more_ranks() -> None:
    starts = []
    for rank in range(8):
        plan = simulate(config(num_key_value_heads=2), head(kv_heads=2), OLD, 8, rank)
        (k,) = [entry for entry in plan.tensors if entry.name.endswith("k_proj.weight")]
        starts.append(k.slices[0].tensor_rows)
    assert starts == [(0, 8)] * 4 + [(8, 16)] * 4


def test_the_last_of_two_wins_and_the_first_is_told() -> None:
    plan = simulate(config(), [*head(), *head("layers.0.")], NEW)
    said = outcome(plan, "midlayer.self_attn.q_proj.weight")[1]
    assert said.endswith("overwritten later by layers.0.self_attn.q_proj.weight")
    twice = simulate(config(), [tensor("d2t", [100], "I64"), tensor("model.d2t", [100], "I64")], OLD)
    assert outcome(twice, "d2t")[1].endswith("overwritten later by model.d2t")


def test_surplus_rows_are_told() -> None:
    plan = simulate(config(), head(shapes={"k_proj.weight": [40, 128]}), OLD)
    assert outcome(plan, "midlayer.self_attn.k_proj.weight") == (
        "loaded",
        "the k rows of the fused projection; rows 32 to 40 never read, without a message",
    )


def test_zeros_filled_in_are_told() -> None:
    plan = simulate(config(), head(shapes={"down_proj.weight": [64, 100]}), OLD)
    kind, said = outcome(plan, "midlayer.mlp.down_proj.weight")
    assert kind == "loaded" and "the rest filled with zeros without a message" in said


def test_a_refused_tensor_stops_the_load() -> None:
    plan = simulate(config(), head(shapes={"fc.weight": [64, 128]}), OLD)
    assert plan.rejected is not None and plan.rejected.exception == "AssertionError"
    assert plan.rejected.to_dict()["exception"] == "AssertionError"
    assert outcome(plan, "norm.weight") == ("not reached", "loading stopped at fc.weight")
    assert status(plan, "model.norm.weight")[0] == "left as initialised"


def test_target_supplies_embedding_and_head() -> None:
    plan = simulate(
        config(draft_vocab_size=None), head(without=("lm_head.weight", "embed_tokens.weight")), OLD
    )
    assert status(plan, "lm_head.weight") == (
        "taken from target",
        "draft_vocab_size is null: the target's own weight is used",
    )
    assert [p.name for p in plan.parameters if p.replaced_by_target] == [
        "model.embed_tokens.weight",
        "lm_head.weight",
    ]
    (line,) = [line for line in summary(plan) if line.startswith("Of these")]
    assert line == "Of these the target's own weight replaces model.embed_tokens.weight under EAGLE3."
    kind, said = status(plan, "model.embed_tokens.weight")
    assert kind == "left as initialised" and said.endswith("replaced by the target's own weight under EAGLE3")
    wider = simulate(config(target_hidden_size=80), head(target=80), OLD)
    assert status(wider, "model.embed_tokens.weight")[1].endswith("whose width differs")


def test_what_memory_holds_where_nothing_is_loaded() -> None:
    plan = simulate(config(bias=True), [], OLD)
    said = {entry.name: entry.reason for entry in plan.parameters}
    assert said["model.norm.weight"].endswith("all ones")
    assert said["model.fc.bias"].endswith("random values")
    assert said["model.midlayer.self_attn.o_proj.bias"].endswith("all zeros")
    assert said["model.midlayer.mlp.down_proj.weight"].endswith("whatever memory held")


def test_construction_error() -> None:
    plan = simulate(config(num_hidden_layers=2), head(), OLD)
    assert plan.construction_error is not None
    assert plan.to_dict()["construction_error"] == {
        "type": "ValueError",
        "message": "EAGLE3 currently only supports 1 layer",
    }
    assert plan.parameters == () and {entry.outcome for entry in plan.tensors} == {"not reached"}


def test_notes() -> None:
    assert simulate(config(), head(), OLD).notes == ()
    (note,) = simulate(read(SPECULATORS), head(), NEW).notes
    assert "cannot read a config in the speculators dialect" in note
    (note,) = simulate(config(architectures=["Eagle3\x1b[31m"]), head(), NEW).notes
    assert "Eagle3\\x1b[31m" in note and "LlamaForCausalLMEagle3" in note
    (note,) = simulate(config(quantization_config={"quant_method": "fp8"}), head(), NEW).notes
    assert "simulated without it" in note
    (note,) = simulate(config(model_type="phi3"), head(), NEW).notes
    assert "does not state head_dim" in note


@pytest.mark.parametrize(("tp_size", "tp_rank"), [(0, 0), (2, 2), (2, -1)])
def test_a_rank_that_does_not_exist(tp_size: int, tp_rank: int) -> None:
    with pytest.raises(InputError, match="there is no rank"):
        simulate(config(), head(), OLD, tp_size, tp_rank)


def test_a_size_of_the_wrong_type_names_the_folder(tmp_path: Path) -> None:
    raw = raw_config(model_type="llama4_text", intermediate_size_mlp="wide")
    folder = write_checkpoint(tmp_path / "drafter", raw, head())
    with pytest.raises(InputError, match="does not state mlp_size as a positive integer") as caught:
        simulate_load(open_checkpoint(folder), OLD)
    assert caught.value.path == str(folder)


def test_differences_sees_every_kind() -> None:
    plan = simulate(config(), head(), OLD)
    assert differences(plan, plan) == []
    assert differences(plan, simulate(config(), head(), OLD, 2))
    assert differences(plan, simulate(config(), head("layers.0."), OLD))
    assert differences(plan, simulate(config(), head()[1:], OLD))
    assert differences(plan, simulate(config(num_hidden_layers=2), head(), OLD))


def test_no_heavy_import() -> None:
    import subprocess
    import sys

    code = (
        "import sys, eagle3lab.engines.loading, eagle3lab.checkpoint, eagle3lab.cli;"
        "print(sorted({'numpy', 'torch', 'rich', 'pydantic', 'yaml'} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
