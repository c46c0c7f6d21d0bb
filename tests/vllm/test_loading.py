"""What vLLM makes of heads, simulated: names that stop it, what is missing in silence, configs of speculators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from eagle3lab.cli import app
from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.facts import ModuleNames
from eagle3lab.engines.loading import LoadPlan, simulate, simulate_load
from eagle3lab.engines.loading.names import walk
from eagle3lab.errors import InputError
from tests.engines.cases import BIASES, FC_NORMS, INPUT_NORM, QK_NORMS, SPECULATORS
from tests.engines.drafters import (
    ABSENT,
    DRAFT,
    HIDDEN,
    VOCABULARY,
    config,
    head,
    read,
    tensor,
    write_checkpoint,
)
from tests.vllm.sources import KNOWN, speculators_config

OLD, NEW = resolve_engine("vllm==0.24.0"), resolve_engine("vllm==0.32.0")


def rejected(plan: LoadPlan) -> tuple[str, str | None, str]:
    assert plan.rejected is not None
    return plan.rejected.name, plan.rejected.exception, plan.rejected.reason


@pytest.mark.parametrize("engine", [OLD, NEW], ids=str)
@pytest.mark.parametrize("layer", ["midlayer.", "layers.0."])
def test_both_names_of_the_layer_are_loaded(engine: Any, layer: str) -> None:
    plan = simulate(config(), head(layer), engine)
    assert plan.rejected is None and plan.construction_error is None
    assert len(plan.tensors_with("loaded")) == 15 and plan.parameters_with("loaded") == plan.parameters
    ways = {tensor.name: tensor for tensor in plan.tensors}
    assert ways["d2t"].parameter == "draft_id_to_target_id" and "offsets" in ways["d2t"].reason
    assert ways["t2d"].outcome == "special" and "skipped" in ways["t2d"].reason
    assert ways[f"{layer}self_attn.v_proj.weight"].parameter == "model.layers.0.self_attn.qkv_proj.weight"


@pytest.mark.parametrize("outer", ["model.", "module.", "draft_model."])
def test_a_prefix_stops_the_engine_in_its_own_words(outer: str) -> None:
    tensors = head(outer=outer, without=("d2t",))
    name, exception, reason = rejected(simulate(config(), tensors, NEW))
    assert (name, exception) == (f"{outer}embed_tokens.weight", "ValueError")
    inner = outer.rstrip(".")
    assert f"There is no module or parameter named '{inner}' in LlamaModel" in reason
    name, exception, reason = rejected(simulate(config(), tensors, OLD))
    assert (name, exception) == (f"{outer}embed_tokens.weight", "KeyError")
    assert f"'{outer}embed_tokens.weight'" in reason
    assert simulate(config(), tensors, NEW).tensors[1].outcome == "not reached"
    # The token map gets no prefix of the engine's, and is looked for where its own leads.
    name, _, reason = rejected(simulate(config(), head(outer=outer), NEW))
    place = (
        "draft_id_to_target_id' in LlamaModel" if outer == "model." else f"{inner}' in Eagle3LlamaForCausalLM"
    )
    assert name == f"{outer}d2t" and f"There is no module or parameter named '{place}" in reason


def test_norms_of_queries_need_the_class_that_has_them() -> None:
    tensors = head(
        "layers.0.", extra=tuple(tensor(n.name.replace("midlayer.", "layers.0."), [8]) for n in QK_NORMS)
    )
    name, exception, reason = rejected(simulate(config(), tensors, NEW))
    assert exception == "ValueError" and name == "layers.0.self_attn.q_norm.weight"
    assert "There is no module or parameter named 'layers.0.self_attn.q_norm' in LlamaModel" in reason
    plan = simulate(read(speculators_config("qwen3")), tensors, NEW)
    assert plan.drafter_class == "Eagle3Qwen3ForCausalLM" and plan.rejected is None
    assert plan.parameters_with("loaded") == plan.parameters
    # Until 0.24 every head of speculators was served as a Llama one.
    before = simulate(read(speculators_config("qwen3")), tensors, resolve_engine("vllm==0.23.0"))
    assert before.drafter_class == "Eagle3LlamaForCausalLM" and rejected(before)[1] == "KeyError"


def test_what_is_missing_is_missing_in_silence() -> None:
    plan = simulate(
        config(), head(without=("d2t", "lm_head.weight", "embed_tokens.weight", "up_proj.weight")), NEW
    )
    assert plan.rejected is None
    status = {parameter.name: (parameter.status, parameter.reason) for parameter in plan.parameters}
    for name, part in (("lm_head.weight", "lm_head"), ("model.embed_tokens.weight", "embed_tokens")):
        assert status[name] == (
            "taken from target",
            f"the checkpoint has no {part}: the target's own weight is used",
        )
    assert status["draft_id_to_target_id"][0] == "left as initialised"
    assert "draft ids are taken for target ids" in status["draft_id_to_target_id"][1]
    assert status["model.layers.0.mlp.gate_up_proj.weight"][0] == "partly loaded"
    shipped = {parameter.name: parameter for parameter in simulate(config(), head(), NEW).parameters}
    assert not shipped["lm_head.weight"].replaced_by_target


def test_a_token_map_beside_a_whole_vocabulary() -> None:
    tensors = head(shapes={"lm_head.weight": [VOCABULARY, HIDDEN], "d2t": [VOCABULARY]})
    for whole in ({"draft_vocab_size": VOCABULARY}, {"draft_vocab_size": None}, {"draft_vocab_size": ABSENT}):
        name, exception, reason = rejected(simulate(config(**whole), tensors, NEW))
        assert (name, exception) == ("d2t", "ValueError")
        assert "named 'draft_id_to_target_id' in Eagle3LlamaForCausalLM" in reason
        assert simulate(config(**whole), tensors, OLD).rejected is None
    wrong = simulate(config(), head(shapes={"d2t": [DRAFT - 1]}), NEW)
    assert rejected(wrong)[1] == "AssertionError"


def test_biases() -> None:
    plan = simulate(config(), head(extra=BIASES), NEW)
    assert plan.rejected is None and len(plan.tensors_with("dropped")) == len(BIASES)
    assert "a bias" in plan.tensors_with("dropped")[0].reason
    assert rejected(simulate(config(), head(extra=BIASES), OLD))[1] == "KeyError"
    loaded = simulate(config(attention_bias=True), head(extra=BIASES[:4]), NEW)
    assert not loaded.tensors_with("dropped") and loaded.rejected is None
    without = simulate(config(attention_bias=True), head(extra=BIASES[:4]), resolve_engine("vllm==0.14.1"))
    assert rejected(without)[:2] == ("midlayer.self_attn.q_proj.bias", "KeyError")


def test_norms_before_fc_and_the_switch_for_auxiliary_states() -> None:
    norms = head(extra=(*INPUT_NORM, *FC_NORMS[:3]))
    plan = simulate(config(norm_before_fc=True, fc_norm=True), norms, NEW)
    assert plan.rejected is None and plan.parameters_with("loaded") == plan.parameters
    unasked = simulate(config(fc_norm=True), norms, NEW)
    ways = {tensor.name: tensor.outcome for tensor in unasked.tensors}
    assert ways["input_norm.weight"] == "special" and unasked.rejected is None
    assert rejected(simulate(config(), norms, NEW))[0] == "fc_norm.0.weight"
    off = simulate(config(eagle_config={"use_aux_hidden_state": False}), head(), NEW)
    ways = {tensor.name: tensor.outcome for tensor in off.tensors}
    assert ways["fc.weight"] == "special" and "model.fc.weight" not in {p.name for p in off.parameters}
    mask = simulate(config(), head(extra=(tensor("mask_hidden", [1, HIDDEN]),)), NEW)
    assert mask.tensors[-1].outcome == "special"


def test_configs_of_speculators() -> None:
    plan = simulate(read(speculators_config()), head("layers.0."), NEW)
    assert plan.rejected is None and plan.notes == ()
    silent = simulate(read(speculators_config(norm_before_residual=ABSENT)), head("layers.0."), NEW)
    assert "does not state norm_before_residual: the engine takes it for true" in silent.notes[0]
    assert "transformers_utils/configs/speculators/algos.py:" in silent.notes[0]
    normed = read(speculators_config(norm_before_fc=True))
    assert simulate(normed, head("layers.0.", extra=INPUT_NORM), NEW).rejected is None
    # 0.18 has the parameter, but the translation does not ask for it.
    before = simulate(normed, head("layers.0.", extra=INPUT_NORM), resolve_engine("vllm==0.18.1"))
    assert {t.name: t.outcome for t in before.tensors}["input_norm.weight"] in (
        "special",
        "dropped",
        "rejected",
    )
    assert "model.input_norm.weight" not in {p.name for p in before.parameters}


@pytest.mark.parametrize(
    ("raw", "kind", "words"),
    [
        (
            {**SPECULATORS, **KNOWN},
            "AttributeError",
            "'SpeculatorsConfig' object has no attribute 'hidden_act'",
        ),
        (
            speculators_config("mistral"),
            "ValidationError",
            "Unsupported model_type mistral for Eagle3 speculator",
        ),
        (SPECULATORS, "ValidationError", "Unrecognized model"),
        (
            {**config(architectures=["Eagle3Speculator"]).raw},
            "ValidationError",
            "['Eagle3Speculator'] are not",
        ),
        ({**config(model_type=ABSENT).raw}, "ValidationError", "Unrecognized model"),
        ({**config(hidden_act="gelu").raw}, "ValueError", "Unsupported activation: gelu"),
        (
            {**config(num_key_value_heads=3).raw},
            "AssertionError",
            "num_heads (8) is not divisible by num_kv_heads (3)",
        ),
        ({**config(target_hidden_size=None).raw}, "TypeError", "'NoneType' and 'int'"),
    ],
)
def test_what_cannot_be_built(raw: dict[str, Any], kind: str, words: str) -> None:
    error = simulate(read(raw), head("layers.0."), NEW).construction_error
    assert error is not None and error.type == kind and words in error.message


def test_ranks() -> None:
    error = simulate(config(), head(), NEW, 3, 1).construction_error
    assert error is not None and error.type == "ValidationError"
    assert (
        error.message == "Total number of attention heads (8) must be divisible by tensor parallel size (3)."
    )
    plan = simulate(config(), head(), NEW, 2, 1)
    shapes = {parameter.name: parameter.shape for parameter in plan.parameters}
    assert shapes["model.layers.0.self_attn.qkv_proj.weight"] == (64, 2 * HIDDEN)
    assert shapes["draft_id_to_target_id"] == (DRAFT,) and plan.parameters_with("loaded") == plan.parameters


def test_classes_that_are_not_described(tmp_path: Path) -> None:
    raw = config(architectures=["Eagle3DeepseekV2ForCausalLM"]).raw
    folder = write_checkpoint(tmp_path / "drafter", dict(raw), head())
    from eagle3lab.checkpoint import open_checkpoint

    with pytest.raises(InputError, match="class of its own"):
        simulate_load(open_checkpoint(folder), NEW)


def test_the_command(tmp_path: Path) -> None:
    tensors = head("layers.0.", outer="model.", without=("d2t", "t2d"))
    folder = write_checkpoint(tmp_path / "drafter", speculators_config(), tensors)
    answer = CliRunner().invoke(
        app, ["load-plan", str(folder), "--engine", "vllm==0.32.1", "--format", "json"]
    )
    assert answer.exit_code == 0, answer.output
    report = json.loads(answer.output)
    assert report["engine"] == "vllm==0.32.0" and report["drafter_class"] == "Eagle3LlamaForCausalLM"
    stopped = [entry for entry in report["tensors"] if entry["outcome"] == "rejected"]
    assert len(stopped) == 1 and stopped[0]["exception"] == "ValueError"
    assert "There is no module or parameter named 'model' in LlamaModel" in stopped[0]["reason"]
    assert "nearest older release" in report["notes"][0]
    text = CliRunner().invoke(app, ["load-plan", str(folder), "--engine", "vllm==0.32.0"])
    assert "Loading stops at model.embed_tokens.weight: ValueError: There is no module" in text.output
    changed = CliRunner().invoke(app, ["engines", "vllm==0.11.2", "vllm==0.32.0", "--format", "json"])
    topics = {change["topic"] for change in json.loads(changed.output)["changes"]}
    assert {"parameters", "walk through modules", "config of speculators", "targets allowed"} <= topics


@given(st.text(st.sampled_from(".abd2t_xnlmhe0"), max_size=12) | st.text(max_size=8))
def test_any_name_has_an_answer(end: str) -> None:
    known = {parameter.name for parameter in simulate(config(), head(), NEW).parameters}
    for engine in (OLD, NEW):
        rules = engine.names
        assert isinstance(rules, ModuleNames)
        for name in (end, f"layers.0.{end}", f"midlayer.self_attn.qkv_proj.{end}", f"lm_head.{end}"):
            way = walk(name, rules, known)
            assert (way.parameter in known) if way.parameter else (way.exception is None or way.message)
