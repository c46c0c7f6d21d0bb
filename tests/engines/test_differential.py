"""The simulated load against the release's own loader: equal, always.

What is compared is in `eagle3lab.engines.loading.differences`; exceptions must have the same words, too.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.ground_truth import real
from eagle3lab.engines.loading import LoadPlan, differences, simulate
from tests.engines.cases import ALL
from tests.engines.drafters import INSTALLED, config, head, tensor

LAYOUTS = ((1, 0), (2, 0), (2, 1), (8, 0), (8, 3), (8, 7))

pytestmark = pytest.mark.engine


@pytest.mark.parametrize(("tp_size", "tp_rank"), LAYOUTS, ids=lambda value: str(value))
@pytest.mark.parametrize("spec", INSTALLED)
def test_every_case(spec: str, tp_size: int, tp_rank: int) -> None:
    engine = resolve_engine(spec)
    failures = []
    for name, (case_config, tensors) in ALL.items():
        simulated = simulate(case_config, tensors, engine, tp_size, tp_rank)
        happened = real(case_config, tensors, engine, tp_size, tp_rank)
        failures += [f"{name}: {line}" for line in differences(simulated, happened)]
        failures += [f"{name}: {line}" for line in other_words(simulated, happened)]
    assert not failures, "\n".join(failures)


def other_words(simulated: LoadPlan, happened: LoadPlan) -> list[str]:
    """Where the simulation gives an exception another text than the engine does."""
    pairs = []
    if simulated.rejected is not None and happened.rejected is not None:
        ours, theirs = simulated.rejected.reason, happened.rejected.reason
        # torch names the dtypes of a refused promotion its own way; the simulated reason goes on after the text.
        if not theirs.startswith("RuntimeError: Promotion"):
            pairs.append((ours[: len(theirs)], theirs))
    if simulated.construction_error is not None and happened.construction_error is not None:
        message = re.sub(
            "Unrecognized model in [^ ]+", "Unrecognized model.", happened.construction_error.message
        )
        pairs.append((simulated.construction_error.message, message))
    return [f"{ours!r} / {theirs!r}" for ours, theirs in pairs if ours != theirs]


@pytest.mark.parametrize("spec", INSTALLED)
def test_a_world_of_three(spec: str) -> None:
    """Sizes that no rank count divides stop the two releases at different places."""
    engine = resolve_engine(spec)
    for heads in (6, 8):
        case = config(num_attention_heads=heads, num_key_value_heads=3, hidden_size=48, intermediate_size=96)
        simulated, happened = simulate(case, head(), engine, 3, 1), real(case, head(), engine, 3, 1)
        assert differences(simulated, happened) == []


# ---- hypothesis writes the key sets -----------------------------------------------------------------------------

OUTER = st.sampled_from(["", "", "", "model.", "module.", "draft_model.", "model.model."])
LAYER = st.sampled_from(["midlayer.", "midlayer.", "layers.0.", "layers.1.", "midlayer.0.", "midlayer", ""])
KNOWN = st.sampled_from(
    [
        *(f"self_attn.{name}_proj.weight" for name in ("q", "k", "v", "o", "qkv")),
        *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down", "gate_up")),
        *(
            f"{name}.weight"
            for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm", "norm")
        ),
        *(
            "fc.weight",
            "fc.bias",
            "lm_head.weight",
            "embed_tokens.weight",
            "d2t",
            "t2d",
            "self_attn.o_proj.bias",
        ),
        *("fc_norm.0.weight", "fc_norm.2.weight", "aux_norm_mid.weight", "input_norm.weight"),
    ]
)
NAME = st.one_of(
    st.builds(lambda outer, layer, name: outer + layer + name, OUTER, LAYER, KNOWN),
    st.builds(lambda outer, name: outer + name, OUTER, KNOWN),
    st.text(alphabet="adt2._-qkv\x00é", max_size=8),
)
SIZES = st.sampled_from([0, 1, 2, 8, 16, 32, 63, 64, 96, 100, 128, 130, 192, 256])
SHAPE = st.one_of(
    st.sampled_from(
        [[64, 128], [32, 128], [64, 64], [128, 64], [64, 192], [100, 64], [256, 64], [64], [100]]
    ),
    st.lists(SIZES, max_size=2),
    st.lists(st.sampled_from([1, 2, 64, 128]), min_size=3, max_size=3),
)
DTYPE = st.sampled_from(["BF16", "F16", "F32", "I64", "I32"])
TENSORS = st.lists(st.builds(tensor, NAME, SHAPE, DTYPE), max_size=12)
CONFIG = st.fixed_dictionaries(
    {},
    optional={
        "draft_vocab_size": st.sampled_from([None, 10, 100, 256]),
        "num_key_value_heads": st.sampled_from([1, 2, 4, 8]),
        "head_dim": st.sampled_from([8, 16]),
        "attention_bias": st.booleans(),
        "bias": st.booleans(),
        "fc_norm": st.booleans(),
        "norm_before_fc": st.booleans(),
        "num_aux_hidden_states": st.sampled_from([1, 2, 3]),
        "target_hidden_size": st.sampled_from([64, 80]),
        "num_hidden_layers": st.sampled_from([1, 1, 2]),
        "vocab_size": st.sampled_from([100, 250, 256]),
    },
)


@pytest.mark.parametrize("spec", INSTALLED)
@settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(tensors=TENSORS, changes=CONFIG, layout=st.sampled_from(LAYOUTS), whole=st.booleans())
def test_odd_key_sets(spec: str, tensors: list, changes: dict, layout: tuple[int, int], whole: bool) -> None:
    engine = resolve_engine(spec)
    offered = tensors if not whole else [*tensors, *head()]
    case = config(**changes)
    simulated = simulate(case, offered, engine, *layout)
    assert differences(simulated, real(case, offered, engine, *layout)) == []


# ---- and the comparison can fail -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "case", "layout"),
    [
        ({"zero_filled": ()}, "shapes: down_proj.weight [64, 70]", (1, 0)),
        ({"parameters": ()}, "names: midlayer", (1, 0)),
        ({"construction": ()}, "configs: two layers", (1, 0)),
        ({"names": {"prefixes": ("",)}}, "names: midlayer", (1, 0)),
        ({"names": {"stacked": ()}}, "names: midlayer", (1, 0)),
        ({"names": {"special": ()}}, "names: midlayer", (1, 0)),
        ({"vocabulary": {"padding": 32}}, "configs: vocabulary padded", (1, 0)),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_wrong_fact_is_seen(wrong: dict, case: str, layout: tuple[int, int]) -> None:
    engine = resolve_engine("sglang==0.5.9")
    changes = {
        field: replace(getattr(engine, field), **value) if isinstance(value, dict) else value
        for field, value in wrong.items()
    }
    case_config, tensors = ALL[case]
    happened = real(case_config, tensors, engine, *layout)
    assert differences(simulate(case_config, tensors, engine, *layout), happened) == []
    assert differences(simulate(case_config, tensors, replace(engine, **changes), *layout), happened) != []
