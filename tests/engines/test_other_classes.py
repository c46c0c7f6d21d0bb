"""The drafter classes beside the Llama one: simulated, chosen by `architectures`, and held against the real classes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.facts import EngineFacts
from eagle3lab.engines.ground_truth import find_installation, real
from eagle3lab.engines.loading import differences, simulate
from eagle3lab.errors import InputError
from tests.engines.cases import ALL, Case
from tests.engines.drafters import ABSENT, HIDDEN, config, head, read, tensor
from tests.engines.other_cases import (
    EAGLE1,
    EAGLE1_CASES,
    FUSED_A,
    KV_A,
    MLA_CASES,
    Q_A,
    eagle1_config,
    eagle1_head,
    mla_config,
    mla_head,
)

OLD, NEW = resolve_engine("sglang==0.5.9"), resolve_engine("sglang==0.5.23")
LAYOUTS = ((1, 0), (8, 3))
# Releases that run in this environment too; compared with where they lie beside the others.
MORE = ("0.5.10", "0.5.12", "0.5.17", "0.5.20")
MLA = "Eagle3DeepseekV2ForCausalLM"


def classes_of(engine: EngineFacts) -> set[str]:
    return {rules.drafter.name for rules in engine.others}


def cases_for(engine: EngineFacts) -> Iterator[tuple[str, Case]]:
    """Every case for a class that the release has, with its name."""
    known = classes_of(engine)
    groups = {MLA: MLA_CASES, **EAGLE1_CASES}
    for architecture, cases in groups.items():
        if architecture in known:
            yield from ((f"{architecture}: {name}", case) for name, case in cases.items())


def disagreements(
    engine: EngineFacts, cases: Iterator[tuple[str, Case]], layout: tuple[int, int]
) -> list[str]:
    found, compared = [], 0
    for name, (case, tensors) in cases:
        simulated, happened = (load(case, tensors, engine, *layout) for load in (simulate, real))
        found += [f"{name}: {line}" for line in differences(simulated, happened)]
        assert simulated.drafter_class == happened.drafter_class == name.partition(":")[0] or name in ALL
        compared += 1
    assert compared >= 60
    return found


@pytest.mark.engine
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("engine", [OLD, NEW], ids=lambda engine: engine.release)
def test_every_case_against_the_real_class(engine: EngineFacts, layout: tuple[int, int]) -> None:
    assert disagreements(engine, cases_for(engine), layout) == []


@pytest.mark.engine
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("release", MORE)
def test_other_releases_where_they_are(release: str, layout: tuple[int, int]) -> None:
    """All classes, the Llama one included."""
    engine = resolve_engine(f"sglang=={release}")
    try:
        find_installation(engine)
    except InputError:
        pytest.skip(f"sglang {release} is not beside the environment")
    assert disagreements(engine, iter(ALL.items()), layout) == []
    assert disagreements(engine, cases_for(engine), layout) == []


@pytest.mark.engine
@pytest.mark.parametrize(
    ("wrong", "case"),
    [
        ({"joined": ()}, "mla_names: midlayer"),
        ({"special": ()}, "mla_names: midlayer"),
        ({"own_prefix": None}, "mla_names: midlayer"),
        ({"renames": ()}, "mla_names: layers.0"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_wrong_rule_is_seen(wrong: dict[str, object], case: str) -> None:
    mla_config_read, tensors = MLA_CASES[case]
    happened = real(mla_config_read, tensors, NEW)
    serving = NEW.serving([MLA])
    changed = replace(serving, names=replace(serving.names, **wrong))  # type: ignore[type-var,arg-type]
    assert differences(simulate(mla_config_read, tensors, serving), happened) == []
    assert differences(simulate(mla_config_read, tensors, changed), happened) != []


# ---- what the simulation says ----------------------------------------------------------------------------------


def test_the_class_is_chosen_by_the_architectures() -> None:
    assert simulate(config(), head(), NEW).drafter_class == "LlamaForCausalLMEagle3"
    for names, chosen in (
        ([MLA], MLA),
        (["Unknown", MLA, "LlamaForCausalLMEagle3"], MLA),
        (["LlamaForCausalLMEagle3", MLA], "LlamaForCausalLMEagle3"),
        (["Qwen2ForCausalLMEagle"], "Qwen2ForCausalLMEagle"),
        (["LlamaForCausalLM"], "LlamaForCausalLMEagle3"),
    ):
        assert simulate(read(mla_config(architectures=names)), [], NEW).drafter_class == chosen
    # A release without the class loads the head with the one it has, and says so.
    plan = simulate(read(mla_config()), mla_head(), OLD)
    assert plan.drafter_class == "LlamaForCausalLMEagle3" and MLA in plan.notes[0]


def test_every_release_describes_the_classes_it_has() -> None:
    from eagle3lab.engines.atlas.data import release_facts
    from eagle3lab.engines.release import releases

    missing = set()
    for release in releases():
        facts = release_facts(release)
        have = {one.name for one in facts.drafters if one.kind != "other"}
        described = {rules.drafter.name for rules in facts.others} | {"LlamaForCausalLMEagle3"}
        assert described | set(facts.undescribed) == have, release
        assert {"LlamaForCausalLMEagle", "Qwen2ForCausalLMEagle"} <= described
        missing |= set(facts.undescribed)
    assert missing == {"MistralLarge3ForCausalLMEagle"}


def test_a_class_that_is_not_described_is_refused_with_the_reason() -> None:
    case = config(architectures=["MistralLarge3ForCausalLMEagle"])
    with pytest.raises(InputError, match=r"a class of its own.*mistral_large_3_eagle\.py"):
        simulate(case, [], NEW)


def test_an_mla_head_loads_completely() -> None:
    for layer in ("midlayer.", "layers.0."):
        plan = simulate(read(mla_config()), mla_head(layer), NEW, 8, 5)
        assert not plan.tensors_with("dropped") and len(plan.parameters_with("loaded")) == 15
        places = {one.name.removeprefix(layer): one for one in plan.tensors}
        q_a, kv_a = (places[name.removeprefix("midlayer.")] for name in (Q_A, KV_A))
        assert q_a.parameter == kv_a.parameter == f"model.{FUSED_A}"
        assert (q_a.slices[0].parameter_rows, kv_a.slices[0].parameter_rows) == ((0, 48), (48, 88))
        # Eight ranks: one head each of q_b and kv_b; the first projection is whole on every rank.
        assert places["self_attn.q_b_proj.weight"].slices[0].tensor_rows == (120, 144)
        assert places["self_attn.kv_b_proj.weight"].slices[0].tensor_rows == (160, 192)


def test_half_a_pair_is_lost_without_a_word() -> None:
    plan = simulate(read(mla_config()), mla_head(without=("kv_a_proj_with_mqa.weight",)), NEW)
    (lost,) = plan.tensors_with("dropped")
    assert lost.name == Q_A and "kept until" in lost.reason and "never does" in lost.reason
    (empty,) = plan.parameters_with("left as initialised")
    assert empty.name == f"model.{FUSED_A}"
    # The name of the fused parameter itself holds that of a half, and waits for a partner that cannot come.
    plan = simulate(read(mla_config()), [tensor(FUSED_A, [88, 2 * HIDDEN])], NEW)
    assert plan.tensors[0].outcome == "dropped"


def test_mla_names_below_model_are_dropped_with_a_warning() -> None:
    plan = simulate(read(mla_config()), mla_head(outer="model."), NEW)
    assert {tensor.name for tensor in plan.tensors if tensor.outcome == "special"} == {
        "model.d2t",
        "model.t2d",
    }
    assert all("warning" in tensor.reason or "kept until" in tensor.reason or "joined" in tensor.reason
               for tensor in plan.tensors_with("dropped"))  # fmt: skip
    assert not plan.parameters_with("loaded")


def test_what_the_mla_class_takes_from_the_target() -> None:
    def status(**changes: object) -> str:
        plan = simulate(read(mla_config(**changes)), mla_head(without=("lm_head.weight",)), NEW)
        return next(one.status for one in plan.parameters if one.name == "lm_head.weight")

    assert status() == "left as initialised"
    assert status(draft_vocab_size=None) == status(draft_vocab_size=ABSENT) == "taken from target"


@pytest.mark.parametrize("architecture", EAGLE1)
def test_kind_mistakes_give_every_tensor_its_fate(architecture: str) -> None:
    """An EAGLE-3 head under EAGLE-1's classes: fc alone stops the engine; without it, half of the layer is lost."""
    case = read(eagle1_config(architecture))
    if architecture == "MistralForCausalLMEagle":
        plan = simulate(case, head(without=("lm_head.weight",)), NEW)
        # Its table knows none of these names but the last norm's.
        assert {one.name for one in plan.tensors_with("loaded")} == {"norm.weight"}
        assert all("no name of that form" in one.reason for one in plan.tensors_with("dropped"))
        return
    plan = simulate(case, head(), NEW)
    assert plan.rejected is not None and plan.rejected.name == "fc.weight"
    plan = simulate(case, head(without=("fc.weight",)), NEW)
    assert {one.name for one in plan.tensors_with("loaded")} == {"embed_tokens.weight"}
    assert {one.name for one in plan.tensors_with("special")} == {"lm_head.weight"}
    assert len(plan.tensors_with("dropped")) == len(head()) - 3 - (1 if plan.rejected else 0)


def test_an_eagle1_head_under_the_eagle3_class() -> None:
    plan = simulate(config(), eagle1_head(), NEW)
    assert plan.rejected is not None and plan.rejected.name == "fc.weight"
    plan = simulate(config(), [one for one in eagle1_head() if one.name != "fc.weight"], OLD)
    assert {one.name for one in plan.tensors_with("loaded")} == {"embed_tokens.weight"}


def test_an_eagle1_head_gets_embedding_and_head_from_the_target() -> None:
    plan = simulate(read(eagle1_config("LlamaForCausalLMEagle")), eagle1_head(), NEW)
    assert plan.algorithm == "EAGLE"
    assert {one.name for one in plan.parameters if one.replaced_by_target} == {
        "model.embed_tokens.weight",
        "lm_head.weight",
    }
    assert all(one.status == "loaded" or one.replaced_by_target for one in plan.parameters)
    assert "under EAGLE" in plan.parameters[0].reason and "EAGLE3" not in plan.parameters[0].reason


def test_a_fused_projection_is_mistaken_for_one_of_its_shards_by_qwen2() -> None:
    """`v_proj` is part of the word `qkv_proj`, and the table of this class has no dots in front."""
    fused = [tensor("layers.0.self_attn.qkv_proj.weight", [128, 64])]
    assert simulate(read(eagle1_config("LlamaForCausalLMEagle")), fused, NEW).tensors[0].outcome == "loaded"
    lost = simulate(read(eagle1_config("Qwen2ForCausalLMEagle")), fused, NEW).tensors[0]
    assert lost.outcome == "dropped" and "qkqkv_proj" in lost.reason


def test_the_first_layer_of_an_eagle1_head_has_no_norm_before_it() -> None:
    case = read(eagle1_config("LlamaForCausalLMEagle", num_hidden_layers=2))
    names = [one.name for one in simulate(case, eagle1_head(layers=2), NEW).parameters]
    assert "model.layers.1.input_layernorm.weight" in names
    assert "model.layers.0.input_layernorm.weight" not in names


def test_a_key_whose_effect_is_not_described_is_refused() -> None:
    case = read(eagle1_config("Qwen2ForCausalLMEagle", original_num_attention_heads=4))
    with pytest.raises(InputError, match="original_num_attention_heads"):
        simulate(case, eagle1_head(), NEW)
