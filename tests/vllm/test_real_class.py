"""The simulated load against vLLM's own class and loader, where `make engines` has put them beside the project."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.facts import EngineFacts, ModuleNames
from eagle3lab.engines.ground_truth import real
from eagle3lab.engines.ground_truth.locate import find_installation
from eagle3lab.engines.ground_truth.process import engine_process
from eagle3lab.engines.loading import differences, simulate
from eagle3lab.engines.loading.names import shipped_marks, walk
from eagle3lab.engines.proof.names import EDGES, families, generated
from eagle3lab.errors import InputError
from tests.engines.cases import ALL, FC_NORMS, INPUT_NORM, QK_NORMS, Case
from tests.engines.drafters import HIDDEN, head, raw_config, read, tensor
from tests.vllm.sources import speculators_config

RELEASE = "vllm==0.32.0"
ROPE = {"max_position_embeddings": 2048, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


@pytest.fixture(scope="module")
def engine() -> EngineFacts:
    facts = resolve_engine(RELEASE)
    try:
        find_installation(facts)
    except InputError as error:
        pytest.skip(f"{error.problem}: run `make engines`")
    return facts


def of_speculators(layer_type: str, **changes: Any) -> dict[str, Any]:
    raw = speculators_config(layer_type, **changes)
    raw["transformer_layer_config"] |= ROPE
    return raw


def without(key: str) -> dict[str, Any]:
    """One that leaves it to a config class to supply `key`, and there is none that does."""
    raw = of_speculators("llama")
    raw["transformer_layer_config"] = {k: v for k, v in raw["transformer_layer_config"].items() if k != key}
    return raw


def speculators() -> dict[str, Case]:
    """Configs in the format of the library, as vLLM knows it."""
    norms = tuple(tensor(norm.name.replace("midlayer.", "layers.0."), list(norm.shape)) for norm in QK_NORMS)
    whole = head("layers.0.")
    return {
        "llama": (read(of_speculators("llama")), whole),
        "llama, ids": (read(of_speculators("llama", eagle_aux_hidden_state_layer_ids=[2, 4])), whole),
        "norm_before_fc": (
            read(of_speculators("llama", norm_before_fc=True, fc_norm=True)),
            head("layers.0.", extra=(*INPUT_NORM, *FC_NORMS[:3])),
        ),
        "qwen3": (read(of_speculators("qwen3")), head("layers.0.", extra=norms)),
        "qwen3 without norms": (read(of_speculators("qwen3")), whole),
        "llama with norms": (read(of_speculators("llama")), head("layers.0.", extra=norms)),
        "hidden_act unstated": (read(without("hidden_act")), whole),
        "rms_norm_eps unstated": (read(without("rms_norm_eps")), whole),
        "mistral": (read(of_speculators("mistral")), whole),
        "target wider": (read(of_speculators("llama", target_hidden_size=96)), head("layers.0.", target=96)),
        "no map, no head": (
            read(of_speculators("llama")),
            head("layers.0.", without=("d2t", "t2d", "lm_head.weight")),
        ),
    }


@pytest.mark.engine
def test_every_case(engine: EngineFacts) -> None:
    failures = []
    cases = {**ALL, **{f"speculators: {name}": case for name, case in speculators().items()}}
    for name, (config, tensors) in cases.items():
        try:
            simulated = simulate(config, tensors, engine)
        except InputError as error:
            failures.append(f"{name}: {error}")
            continue
        happened = real(config, tensors, engine)
        failures += [f"{name}: {line}" for line in differences(simulated, happened)]
        if simulated.rejected is not None and happened.rejected is not None:
            ours, theirs = simulated.rejected.reason, happened.rejected.reason
            said = ours.partition(" (shape ")[0]
            if "no module or parameter" in theirs and not theirs.startswith(said):
                failures.append(f"{name}: {said!r} / {theirs!r}")
    assert not failures, "\n".join(failures)
    assert len(cases) > 170


@pytest.mark.engine
def test_every_name_alone(engine: EngineFacts) -> None:
    names = [*EDGES, *families(), *generated(300)]
    fits = {"norm.weight": [HIDDEN], "d2t": [100]}
    reply = engine_process(engine).ask(
        {
            "config": raw_config(),
            "target": raw_config(
                architectures=["LlamaForCausalLM"], num_hidden_layers=8, max_position_embeddings=2048
            ),
            "tensors": [{"name": name, "dtype": "BF16", "shape": fits.get(name, [7])} for name in names],
            "alone": True,
        }
    )
    rules = engine.names
    assert isinstance(rules, ModuleNames)
    config = read(raw_config())
    known = {parameter.name for parameter in simulate(config, head(), engine).parameters}
    outcomes: Counter[str] = Counter()
    failures = []
    for name, answer in zip(names, reply["tensors"], strict=True):
        way = walk(
            name, rules, known, {"use_aux_hidden_state", "smaller_vocabulary", *shipped_marks(rules, [name])}
        )
        expected = way.exception or ("reached" if way.parameter else "nothing")
        happened = answer.get("exception", "reached" if answer["outcome"] == "loaded" else "nothing")
        outcomes[expected] += 1
        # A tensor of another shape than its parameter's is refused there, which is where it was to go.
        refused = way.parameter is not None and happened in ("AssertionError", "RuntimeError", "IndexError")
        if expected != happened and not refused:
            failures.append(f"{name}: {expected} / {happened} {answer.get('message', '')[:100]}")
    assert not failures, "\n".join(failures)
    assert outcomes.keys() == {"reached", "nothing", "ValueError", "AttributeError"}
