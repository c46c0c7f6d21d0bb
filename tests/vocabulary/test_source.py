"""The token map found in a drafter's files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.errors import InputError
from eagle3lab.vocabulary.coverage import TargetTokenizer, read_text
from eagle3lab.vocabulary.kinds import MapKind
from eagle3lab.vocabulary.source import read_token_map, target_vocab_size
from tests.vocabulary.drafters import HOSTILE, IDS, drafter, plain_drafter, target

OFFSETS = (IDS - np.arange(6), "I64")


def test_the_plain_names(tmp_path: Path) -> None:
    found = read_token_map(open_checkpoint(plain_drafter(tmp_path)))
    assert found.report.kind is MapKind.OFFSETS
    assert (found.lm_head_rows, found.vocab_size, found.draft_vocab_size) == (6, 40, 6)
    assert found.served_ids.tolist() == IDS.tolist()


@pytest.mark.parametrize("name", ["model.d2t", "module.draft_model.d2t"])
def test_a_prefixed_name(name: str, tmp_path: Path) -> None:
    found = read_token_map(open_checkpoint(drafter(tmp_path, {name: OFFSETS})))
    assert found.d2t is not None and found.d2t.name == name
    assert found.served_ids.tolist() == IDS.tolist()


def test_the_exact_name_wins_and_two_prefixed_ones_are_an_error(tmp_path: Path) -> None:
    other = (np.zeros(6), "I64")
    found = read_token_map(open_checkpoint(drafter(tmp_path / "a", {"d2t": OFFSETS, "a.d2t": other})))
    assert found.served_ids.tolist() == IDS.tolist()
    folder = drafter(tmp_path / "b", {"a\x1b.d2t": OFFSETS, "b.d2t": other})
    with pytest.raises(InputError, match=r"2 tensors that end in '\.d2t'") as caught:
        read_token_map(open_checkpoint(folder))
    assert "\x1b" not in str(caught.value)


def test_names_that_only_contain_d2t_are_not_the_map(tmp_path: Path) -> None:
    found = read_token_map(open_checkpoint(drafter(tmp_path, {"xd2t": OFFSETS, "d2t.scale": OFFSETS})))
    assert found.d2t is None
    assert found.report.kind is MapKind.MISSING
    assert found.served_ids.tolist() == list(range(6))


def test_bfloat16_is_read_as_numbers(tmp_path: Path) -> None:
    found = read_token_map(open_checkpoint(drafter(tmp_path, {"d2t": (OFFSETS[0], "BF16")})))
    assert found.d2t_values is not None and found.d2t_values.tolist() == OFFSETS[0].tolist()
    assert found.report.kind is MapKind.WRONG_DTYPE
    assert found.report.d2t_dtype == "BF16"
    assert found.served_ids.size == 0


def test_the_targets_vocabulary_counts_if_it_is_given(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(plain_drafter(tmp_path))
    assert read_token_map(checkpoint, 39).report.kind is MapKind.OUT_OF_RANGE
    assert read_token_map(checkpoint, 40).report.kind is MapKind.OFFSETS


def test_without_a_draft_vocabulary_size(tmp_path: Path) -> None:
    found = read_token_map(open_checkpoint(plain_drafter(tmp_path, draft_vocab_size=None)))
    assert found.draft_vocab_size is None
    assert found.report.draft_vocab_size == 6


def test_a_tensor_far_too_large_is_refused_unread(tmp_path: Path) -> None:
    folder = plain_drafter(tmp_path)
    size = 2**25
    header = json.dumps({"d2t": {"dtype": "I64", "shape": [size], "data_offsets": [0, 8 * size]}}).encode()
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + 8 * size)
    with pytest.raises(InputError, match=r"tensor 'd2t': has dtype I64 and shape \[33554432\]"):
        _ = read_token_map(open_checkpoint(folder)).report


@pytest.mark.parametrize("dtype", ["F8_E4M3", "BOOL", "U8"])
def test_odd_dtypes_get_a_verdict(dtype: str, tmp_path: Path) -> None:
    found = read_token_map(open_checkpoint(drafter(tmp_path, {"d2t": (np.ones(6), dtype)})))
    assert found.report.kind is (MapKind.OFFSETS if dtype == "U8" else MapKind.WRONG_DTYPE)


def test_the_vocabulary_size_of_a_target(tmp_path: Path) -> None:
    assert target_vocab_size(tmp_path) is None
    config = tmp_path / "config.json"
    config.write_text('{"vocab_size": 7, "text_config": {"vocab_size": 9}}')
    assert target_vocab_size(tmp_path) == 7
    config.write_text('{"text_config": {"vocab_size": 9}}')
    assert target_vocab_size(tmp_path) == 9
    for bad in (
        '{"vocab_size": "9"}',
        '{"vocab_size": true}',
        '{"vocab_size": -1}',
        '{"text_config": 3}',
        "{}",
    ):
        config.write_text(bad)
        with pytest.raises(InputError, match="no vocab_size"):
            target_vocab_size(tmp_path)
    with pytest.raises(InputError, match="not a folder"):
        target_vocab_size(tmp_path / "absent")


def test_tokens_are_shown_escaped(tmp_path: Path) -> None:
    tokenizer = TargetTokenizer(target(tmp_path))
    shown = [tokenizer.show(i) for i in range(len(HOSTILE))]
    assert shown == ["\\x1b[31mred", "two\\nlines", "\\u202eevil", "nul\\x00", "é"]
    assert [tokenizer.show(i) for i in (-1, 40, 2**40)] == [None, None, None]
    assert tokenizer.encode("w5 w6 w5").tolist() == [5, 6, 5]


def test_a_token_as_long_as_a_book_is_cut(tmp_path: Path) -> None:
    shown = TargetTokenizer(target(tmp_path, ["x" * 100_000, "unk"])).show(0)
    assert shown is not None and len(shown) < 100


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[1", b"\xff\xfe", b'{"version":"1.0","model":{"type":"BPE"}}']
)
def test_a_broken_tokenizer_is_one_clear_error(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(InputError, match="is not a tokenizer") as caught:
        TargetTokenizer(tmp_path)
    assert "tokenizer.json" in str(caught.value)


def test_no_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no tokenizer\.json.*save_pretrained"):
        TargetTokenizer(tmp_path)


def test_without_the_tokenizers_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = target(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(InputError, match=r"without the tokenizers package.*pip install"):
        TargetTokenizer(folder)


@pytest.mark.parametrize(
    ("content", "problem"),
    [(b"", "is blank"), (b" \n", "is blank"), (b"ok\n\xff", ":2: is not UTF-8 at byte 3")],
)
def test_texts_that_cannot_be_used(content: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(content)
    with pytest.raises(InputError, match=problem):
        read_text(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_text(tmp_path / "absent.txt")
