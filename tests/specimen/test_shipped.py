"""The shipped weights are what their cards say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from safetensors import safe_open  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from lab.reference import (  # noqa: E402
    Drafter,
    Speculation,
    Target,
    generate,
    load_as_trained,
    load_reference_target,
    speculate,
)
from lab.specimen import (  # noqa: E402
    build,
    drafter_dir,
    prompts_file,
    regenerate,
    specimen_dir,
    target_dir,
    tokenizer,
)
from lab.specimen.recipe import FULL  # noqa: E402


@pytest.fixture(scope="module")
def target() -> Target:
    return load_reference_target(target_dir())


@pytest.fixture(scope="module")
def eagle(target: Target) -> Drafter:
    return load_as_trained(drafter_dir(), target)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    tok = tokenizer.load_tokenizer(target_dir())
    return [regenerate.prompt_ids(tok, each["prompt"]) for each in build.read_prompts(prompts_file())]


@pytest.fixture(scope="module")
def head_tensors() -> dict[str, torch.Tensor]:
    return load_file(drafter_dir() / "model.safetensors")


@pytest.fixture(scope="module")
def training() -> dict:
    return json.loads((specimen_dir() / "training.json").read_text())


@pytest.fixture(scope="module")
def run(target: Target, eagle: Drafter, prompts: list[list[int]]) -> Speculation:
    return speculate(target, eagle, prompts, max_new_tokens=FULL.measure_tokens, stop_ids=(tokenizer.END_ID,))


def test_accept_length(run: Speculation, training: dict) -> None:
    assert run.accept_length >= 2.5
    measured = training["acceptance"]["all"]
    # Sums of floats differ a little between machines and may turn a close call.
    assert run.accept_length == pytest.approx(measured["accept_length"], abs=0.05)
    assert run.verify_steps == pytest.approx(measured["verify_steps"], rel=0.05)


def test_speculation_changes_no_token(run: Speculation, target: Target, prompts: list[list[int]]) -> None:
    assert generate(target, prompts, FULL.measure_tokens, (tokenizer.END_ID,)) == run.outputs


def test_answers_are_sensible(run: Speculation) -> None:
    """Most answers name the kind of object and quote the documentation: the form that was trained."""
    tok = tokenizer.load_tokenizer(target_dir())
    texts = [tok.decode(output) for output in run.outputs]
    formed = [re.search(r" is a (function|class|method) of the (module|class) ", text) for text in texts]
    assert sum(map(bool, formed)) >= 0.9 * len(texts)


def test_head_tensors(head_tensors: dict[str, torch.Tensor]) -> None:
    d, v, h = 704, 1024, 128
    layer = {
        "input_layernorm.weight": (h,),
        "hidden_norm.weight": (h,),
        "self_attn.q_proj.weight": (256, 2 * h),
        "self_attn.k_proj.weight": (64, 2 * h),
        "self_attn.v_proj.weight": (64, 2 * h),
        "self_attn.o_proj.weight": (h, 256),
        "post_attention_layernorm.weight": (h,),
        "mlp.gate_proj.weight": (384, h),
        "mlp.up_proj.weight": (384, h),
        "mlp.down_proj.weight": (h, 384),
    }
    expected = {f"layers.0.{name}": ("bfloat16", shape) for name, shape in layer.items()} | {
        "fc.weight": ("bfloat16", (h, 3 * h)),
        "norm.weight": ("bfloat16", (h,)),
        "lm_head.weight": ("bfloat16", (d, h)),
        "embed_tokens.weight": ("bfloat16", (v, h)),
        "d2t": ("int64", (d,)),
        "t2d": ("bool", (v,)),
    }
    found = {name: (str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in head_tensors.items()}
    assert found == expected


def test_target_tensors_are_bfloat16() -> None:
    with safe_open(target_dir() / "model.safetensors", "pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"BF16"}  # noqa: SIM118


def test_vocabulary_maps_agree(head_tensors: dict[str, torch.Tensor], training: dict) -> None:
    absolute = torch.arange(len(head_tensors["d2t"])) + head_tensors["d2t"]
    assert absolute.tolist() == head_tensors["t2d"].nonzero().flatten().tolist()
    assert head_tensors["d2t"].max() > 0
    assert set(range(len(tokenizer.SPECIAL_TOKENS))) <= set(absolute.tolist())
    assert 0.95 < training["drafter"]["coverage"]["held_out"] < 1


def test_frozen_rows_are_the_targets(head_tensors: dict[str, torch.Tensor]) -> None:
    own = load_file(target_dir() / "model.safetensors")
    assert torch.equal(head_tensors["lm_head.weight"], own["lm_head.weight"][head_tensors["t2d"]])
    assert torch.equal(head_tensors["embed_tokens.weight"], own["model.embed_tokens.weight"])


def test_target_config() -> None:
    config = json.loads((target_dir() / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_hidden_layers"], config["hidden_size"], config["head_dim"]) == (8, 128, 32)
    assert config["intermediate_size"] % 8 == 0
    assert config["num_attention_heads"] % 8 == 0
    assert config["vocab_size"] % 64 == 0
    assert config["tie_word_embeddings"] is False


def test_drafter_config() -> None:
    config = json.loads((drafter_dir() / "config.json").read_text())
    assert config["speculators_model_type"] == "eagle3"
    assert config["eagle_aux_hidden_state_layer_ids"] == [2, 4, 5]
    assert config["draft_vocab_size"] == 704
    assert config["norm_before_residual"] is False
    assert config["transformer_layer_config"]["model_type"] == "llama"


def test_tokenizer_and_template() -> None:
    tok = tokenizer.load_tokenizer(target_dir())
    assert len(tok) == 1024
    ids = regenerate.prompt_ids(tok, "What is math.gcd? é")
    assert ids[:2] == [tokenizer.BEGIN_ID, tokenizer.USER_ID]
    assert ids[-2:] == [tokenizer.END_ID, tokenizer.ASSISTANT_ID]
    assert tok.decode(ids[2:-2]) == "What is math.gcd? é"
    assert tok.encode(tokenizer.asked("What is math.gcd? é")) == ids


def test_prompts_are_of_both_kinds() -> None:
    read = build.read_prompts(prompts_file())
    assert [each["id"] for each in read] == list(range(1, 33))
    assert {each["kind"] for each in read} == {"new-question", "new-entry"}
    assert len({each["prompt"] for each in read}) == 32


def files(pattern: str) -> list[Path]:
    return [path for path in specimen_dir().rglob(pattern) if path.is_file()]


def test_size() -> None:
    assert sum(path.stat().st_size for path in files("*.safetensors")) < 12_000_000


def test_no_code_and_no_path_of_a_machine() -> None:
    assert files("*.py") == files("*.bin") == files("*.pt") == []
    for path in [*files("*.json"), *files("*.jsonl"), *files("*.md")]:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r'"/\w+/|/(work|root|tmp|home|Users)/|file://', text), path


def test_training_record(training: dict) -> None:
    for part in ("target", "drafter"):
        curve = training[part]["curve"]
        assert curve[-1]["loss"] < curve[0]["loss"] / 2
        assert [record["step"] for record in curve] == sorted(record["step"] for record in curve)
    last = training["drafter"]["curve"][-1]["validation"]
    assert [each["step"] for each in last] == [1, 2, 3]
    assert last[0]["full"] > last[1]["full"] > last[2]["full"] > 0.2
    assert set(training["versions"]) >= {"python", "torch", "transformers", "speculators"}
