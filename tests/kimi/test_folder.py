"""The folder itself: the same bytes every time, made once, and nothing in it but what is said."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from eagle3lab.checkpoint import open_checkpoint
from lab.kimi import expected, kimi_dir, write_kimi
from lab.kimi.model import MEDIA_TOKEN, heads, media_token_id
from lab.specimen import permutation


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.fixture(scope="module")
def kimi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kimi") / "made"
    write_kimi(folder)
    return folder


def test_it_is_the_same_every_time_and_small(kimi: Path, tmp_path: Path) -> None:
    write_kimi(tmp_path / "again")
    made = contents(kimi)
    assert contents(tmp_path / "again") == made
    assert sum(map(len, made.values())) < 3_000_000
    assert sorted(name for name in made if name.startswith("target/")) == [
        f"target/{name}"
        for name in (
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "preprocessor_config.json",
            "text_only_processor.py",
            "tokenizer.json",
            "tokenizer_config.json",
        )
    ]


def test_the_cache_is_made_once_and_an_unfinished_one_again(
    kimi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = kimi_dir()
    assert folder.is_relative_to(tmp_path)
    assert contents(folder) == contents(kimi)
    before = (folder / "expected.json").stat().st_mtime_ns
    assert kimi_dir("target") == folder / "target"
    assert (folder / "expected.json").stat().st_mtime_ns == before
    (folder / "expected.json").unlink()
    assert contents(kimi_dir()) == contents(kimi)
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name], "nothing half made is left"


def test_prompt_and_media_token_are_what_the_tokenizer_makes_of_them(kimi: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(kimi / "target" / "tokenizer.json"))
    prompt = expected(kimi)["prompt"]
    assert tokenizer.encode(permutation.text(prompt)).ids == prompt
    assert tokenizer.token_to_id(MEDIA_TOKEN) == media_token_id()
    assert media_token_id() not in prompt
    config = json.loads((kimi / "target" / "config.json").read_text())
    assert config["media_placeholder_token_id"] == media_token_id()
    assert permutation.permutation()[media_token_id()] == media_token_id()


@pytest.mark.parametrize("name", sorted(heads()))
def test_each_head_opens_as_a_drafter(kimi: Path, name: str) -> None:
    head = open_checkpoint(kimi / name)
    made = heads()[name]
    assert set(head.tensors) == set(made.tensors)
    assert made.accept_length == (2.0 if name.startswith("copies") else 4.0)
    assert expected(kimi)["accept_length"][name] == made.accept_length
    assert head.tensors["fc.weight"].shape == (64, 3 * 64)
    if name.startswith("copies"):  # grouped queries: two query heads share one of keys
        queries, keys = (head.tensors[f"midlayer.self_attn.{part}_proj.weight"].shape[0] for part in "qk")
        assert queries == 2 * keys == 2 * head.config.num_key_value_heads * 32


def test_the_processor_stands_alone_and_refuses_images(kimi: Path) -> None:
    source = kimi / "target" / "text_only_processor.py"
    assert re.search(r"^(from|import) eagle3lab", source.read_text(), re.MULTILINE) is None
    spec = importlib.util.spec_from_file_location("text_only_processor", source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    processor = module.TextOnlyProcessor.from_pretrained(str(kimi / "target"))
    prompt = expected(kimi)["prompt"]
    assert processor(permutation.text(prompt))["input_ids"] == prompt
    assert processor.media_processor.media_proc_cfg["patch_size"] == 14
    with pytest.raises(ValueError, match="texts only"):
        processor("t05", images=["an image"])
    with pytest.raises(ValueError, match="texts only"):
        processor.media_processor.media_tokens_calculator({})
