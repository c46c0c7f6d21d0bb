"""The permutation target: acceptance as theory says, and the same bytes from every run of the script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from eagle3lab.errors import InputError  # noqa: E402
from lab.reference import (  # noqa: E402
    Drafter,
    EngineStops,
    Target,
    generate,
    load_as_served,
    load_as_trained,
    load_reference_target,
    speculate,
)
from lab.specimen import permutation, permutation_dir  # noqa: E402

TENSORS = [
    "input_layernorm.weight",
    "hidden_norm.weight",
    "self_attn.q_proj.weight",
    "self_attn.k_proj.weight",
    "self_attn.v_proj.weight",
    "self_attn.o_proj.weight",
    "post_attention_layernorm.weight",
    "mlp.gate_proj.weight",
    "mlp.up_proj.weight",
    "mlp.down_proj.weight",
    "fc.weight",
    "norm.weight",
    "lm_head.weight",
    "d2t",
]


@pytest.fixture(scope="module")
def remade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("permutation")
    permutation.write_permutation(folder)
    return folder


@pytest.fixture(scope="module")
def target(remade: Path) -> Target:
    return load_reference_target(remade / "target")


def load(remade: Path, target: Target, name: str, **options) -> Drafter:
    return load_as_trained(remade / name, target, **options)


def test_script_gives_the_shipped_bytes(remade: Path) -> None:
    shipped = permutation_dir()
    names = {path.relative_to(remade) for path in remade.rglob("*") if path.is_file()}
    kept = {path.relative_to(shipped) for path in shipped.rglob("*") if path.is_file()}
    assert kept - names == {Path("README.md")}
    assert {name for name in names if (remade / name).read_bytes() != (shipped / name).read_bytes()} == set()


def test_it_is_tiny() -> None:
    assert sum(path.stat().st_size for path in permutation_dir().rglob("*.safetensors")) < 1_000_000


@pytest.mark.parametrize(
    ("head", "prompt", "expected"),
    [
        (head, prompt, length)
        for head, by_prompt in permutation.expected_accept_lengths().items()
        for prompt, length in by_prompt.items()
    ],
)
def test_accept_length_is_exact(remade: Path, target, head: str, prompt: str, expected: float) -> None:
    ids = permutation.prompts()[prompt]
    run = speculate(target, load(remade, target, head), [ids], max_new_tokens=61)
    assert run.accept_length == expected
    assert run.outputs == generate(target, [ids], 61)


@pytest.mark.parametrize("tensor", TENSORS)
def test_any_missing_tensor_ends_all_acceptance(remade: Path, target, tensor: str) -> None:
    crippled = load(remade, target, "uses-every-tensor", drop=[tensor], noise=0.0)
    run = speculate(target, crippled, [permutation.prompts()["covered-cycle"]], max_new_tokens=50)
    # A head of zeros is stuck on one token, which comes up once on the way round the cycle.
    by_luck = 1 if tensor == "lm_head.weight" else 0
    assert sum(run.accepted) <= by_luck
    assert run.verify_steps >= 47


def test_target_follows_the_permutation(target) -> None:
    following = permutation.permutation()
    for ids in permutation.prompts().values():
        output, token = [], ids[-1]
        for _ in range(45):
            token = following[token]
            output.append(token)
        assert generate(target, [ids], 45) == (tuple(output),)


def test_permutation_has_its_two_cycles() -> None:
    following = permutation.permutation()
    assert sorted(following) == list(range(permutation.VOCAB_SIZE))
    for start, length in ((cycle[0], len(cycle)) for cycle in permutation.cycles()[:2]):
        token, steps = following[start], 1
        while token != start:
            token, steps = following[token], steps + 1
        assert steps == length


def test_expected_file_and_tokenizer_agree(remade: Path) -> None:
    from transformers import AutoTokenizer

    expected = json.loads((remade / "expected.json").read_text())
    assert expected["accept_length"] == permutation.expected_accept_lengths()
    tokenizer = AutoTokenizer.from_pretrained(remade / "target")
    for prompt in expected["prompts"].values():
        assert tokenizer(prompt["text"])["input_ids"] == prompt["token_ids"]
        assert tokenizer.decode(prompt["token_ids"]) == prompt["text"]


def changed(remade: Path, folder: Path, head: str, change) -> Path:
    """A copy of a head with its tensors changed."""
    from safetensors.torch import load_file, save_file

    save_file(change(load_file(remade / head / "model.safetensors")), folder / "model.safetensors")
    (folder / "config.json").write_bytes((remade / head / "config.json").read_bytes())
    return folder


def test_speculators_names_load_as_well(remade: Path, target: Target, tmp_path: Path) -> None:
    def renamed(tensors: dict) -> dict:
        return {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}

    head = load_as_trained(changed(remade, tmp_path, "uses-every-tensor", renamed), target)
    assert speculate(target, head, [permutation.prompts()["covered-cycle"]]).accept_length == 4.0


def test_absolute_ids_in_d2t_are_never_accepted(remade: Path, target: Target, tmp_path: Path) -> None:
    def absolute(tensors: dict) -> dict:
        ids = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
        # Doubled ids beyond the vocabulary would end a server; what stays inside it is merely wrong.
        inside = ids + torch.arange(len(ids)) < permutation.VOCAB_SIZE
        return tensors | {"d2t": ids.where(inside, torch.zeros_like(ids))}

    wrong = load_as_trained(changed(remade, tmp_path, "copies-one-state-reduced", absolute), target)
    run = speculate(target, wrong, [permutation.prompts()["covered-cycle"]], max_new_tokens=40)
    assert run.accept_length < 1.1


def test_a_map_that_leaves_the_vocabulary_ends_the_engine(
    remade: Path, target: Target, tmp_path: Path
) -> None:
    def absolute(tensors: dict) -> dict:
        return tensors | {"d2t": tensors["d2t"] + permutation.VOCAB_SIZE}

    folder = changed(remade, tmp_path, "copies-one-state-reduced", absolute)
    head = load_as_served(folder, target, "sglang==0.5.9").drafter
    with pytest.raises(EngineStops, match="IndexError"):
        speculate(target, head, [permutation.prompts()["covered-cycle"]])


@pytest.mark.parametrize("name", ["mlp.up_proj.weight", "hidden_norm.weight", "self_attn.q_proj.weight"])
def test_missing_tensor_is_named(remade: Path, target: Target, tmp_path: Path, name: str) -> None:
    def without(tensors: dict) -> dict:
        return {key: tensor for key, tensor in tensors.items() if key != f"midlayer.{name}"}

    parameter = name.replace("up_proj", "gate_up_proj").replace("q_proj", "qkv_proj")
    with pytest.raises(InputError, match=rf"layers\.0\.{parameter}"):
        load_as_trained(changed(remade, tmp_path, "uses-every-tensor", without), target)
    with pytest.raises(InputError, match="nowhere"):
        load_as_trained(tmp_path / "nowhere", target)
