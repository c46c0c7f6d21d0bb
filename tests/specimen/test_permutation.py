"""The permutation target: acceptance as theory says, and the same bytes from every run of the script."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from eagle3lab.errors import InputError  # noqa: E402
from eagle3lab.specimen import drafter, greedy, permutation, permutation_dir  # noqa: E402
from eagle3lab.specimen.target import load_target  # noqa: E402

TENSORS = [*drafter.LAYER_TENSORS, "fc.weight", "norm.weight", "lm_head.weight", "d2t"]


@pytest.fixture(scope="module")
def remade(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("permutation")
    permutation.write_permutation(folder)
    return folder


@pytest.fixture(scope="module")
def target(remade: Path):
    return load_target(remade / "target")


def load(remade: Path, target, name: str, **options) -> drafter.Drafter:
    return drafter.load_drafter(remade / name, target.get_input_embeddings().weight.detach(), **options)


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
    run = greedy.speculate(target, load(remade, target, head), [ids], max_new_tokens=61)
    assert run.accept_length == expected
    assert run.outputs == (greedy.generate(target, ids, 61),)


@pytest.mark.parametrize("tensor", TENSORS)
def test_any_missing_tensor_ends_all_acceptance(remade: Path, target, tensor: str) -> None:
    crippled = load(remade, target, "uses-every-tensor", drop=frozenset([tensor]))
    run = greedy.speculate(target, crippled, [permutation.prompts()["covered-cycle"]], max_new_tokens=50)
    assert run.accept_length == 1.0
    assert run.accept_rate == 0.0


def test_target_follows_the_permutation(target) -> None:
    following = permutation.permutation()
    for ids in permutation.prompts().values():
        output, token = [], ids[-1]
        for _ in range(45):
            token = following[token]
            output.append(token)
        assert greedy.generate(target, ids, 45) == tuple(output)


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


def test_speculators_names_load_as_well(remade: Path, target, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = remade / "uses-every-tensor"
    tensors = load_file(source / "model.safetensors")
    renamed = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    embedding = target.get_input_embeddings().weight.detach()
    run = greedy.speculate(
        target, drafter.load_drafter(tmp_path, embedding), [permutation.prompts()["covered-cycle"]]
    )
    assert run.accept_length == 4.0


def test_absolute_ids_in_d2t_are_never_accepted(remade: Path, target, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = remade / "copies-one-state-reduced"
    tensors = load_file(source / "model.safetensors")
    absolute = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    # Doubled ids beyond the vocabulary would end a server; what stays inside it is merely wrong.
    tensors["d2t"] = absolute.where(
        absolute + torch.arange(len(absolute)) < permutation.VOCAB_SIZE, torch.zeros_like(absolute)
    )
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    wrong = drafter.load_drafter(tmp_path, target.get_input_embeddings().weight.detach())
    run = greedy.speculate(target, wrong, [permutation.prompts()["covered-cycle"]], max_new_tokens=40)
    assert run.accept_length < 1.1


def test_missing_tensor_is_named(remade: Path, target, tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = remade / "uses-every-tensor"
    tensors = load_file(source / "model.safetensors")
    del tensors["midlayer.mlp.up_proj.weight"]
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    with pytest.raises(InputError, match=r"mlp\.up_proj\.weight"):
        drafter.load_drafter(tmp_path, target.get_input_embeddings().weight.detach())
    with pytest.raises(InputError, match=r"no such file"):
        drafter.load_drafter(tmp_path / "nowhere", target.get_input_embeddings().weight.detach())
