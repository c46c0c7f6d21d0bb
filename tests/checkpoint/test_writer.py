"""Safetensors files written in a stream."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.checkpoint.safetensors import (
    FileRange,
    TensorToWrite,
    stored_parts,
    write_parts,
    write_safetensors,
)
from eagle3lab.errors import InputError

A = TensorToWrite("a", "I64", (3,), lambda: (np.arange(3).tobytes(),))
B = TensorToWrite("b", "F32", (2, 2), lambda: (bytes(8), memoryview(np.ones(2, "<f4"))))


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    offsets = write_safetensors(tmp_path / "model.safetensors", [A, B], {"format": "pt"})
    raw = (tmp_path / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    assert offsets == (8 + length, 8 + length + 24) and length % 8 == 0
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.metadata == {"format": "pt"}
    assert checkpoint.read("a").tolist() == [0, 1, 2]
    assert checkpoint.read("b").tolist() == [[0, 0], [1, 1]]


def test_values_come_from_other_files(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", [A, B])
    source = open_checkpoint(tmp_path)
    again = [
        TensorToWrite(f"new.{t.name}", t.dtype, t.shape, lambda t=t: stored_parts(source, t))  # type: ignore[misc]
        for t in source.tensors.values()
    ]
    (tmp_path / "copy").mkdir()
    write_safetensors(tmp_path / "copy" / "model.safetensors", again)
    copy = open_checkpoint(tmp_path / "copy")
    assert {name: copy.read(name).tolist() for name in copy.tensors} == {
        f"new.{name}": source.read(name).tolist() for name in source.tensors
    }


def test_the_reference_reader_reads_it(tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.numpy").load_file
    write_safetensors(tmp_path / "x.safetensors", [A, B])
    assert load_file(tmp_path / "x.safetensors")["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("names", [("a", "a"), ("__metadata__",)])
def test_names_that_a_file_cannot_hold(names: tuple[str, ...], tmp_path: Path) -> None:
    tensors = [TensorToWrite(name, "BOOL", (1,), lambda: (b"1",)) for name in names]
    with pytest.raises(InputError, match="twice"):
        write_safetensors(tmp_path / "x.safetensors", tensors)
    assert not (tmp_path / "x.safetensors").exists()


def test_values_of_another_size_than_the_shape_says(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="header says"):
        write_safetensors(tmp_path / "x.safetensors", [TensorToWrite("a", "I64", (4,), A.parts)])


def test_a_source_that_became_shorter_or_is_gone(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"1234")
    with pytest.raises(InputError, match="ends at byte 4"):
        write_parts(tmp_path / "x", [FileRange(tmp_path / "short", 1, 9)])
    with pytest.raises(InputError, match="gone: cannot be read"):
        write_parts(tmp_path / "y", [FileRange(tmp_path / "gone", 0, 1)])


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("mine")
    with pytest.raises(InputError, match="File exists"):
        write_parts(tmp_path / "x", [b"yours"])
    assert (tmp_path / "x").read_text() == "mine"


def test_stretches_that_follow_each_other_are_copied_in_order(tmp_path: Path) -> None:
    (tmp_path / "s").write_bytes(b"0123456789")
    s = tmp_path / "s"
    size = write_parts(
        tmp_path / "x",
        [b"<", FileRange(s, 0, 3), FileRange(s, 3, 2), FileRange(s, 9, 1)],
        [FileRange(s, 0, 1), b">"],
    )
    assert (tmp_path / "x").read_bytes() == b"<0123490>" and size == 9


def test_names_outside_ascii(tmp_path: Path) -> None:
    write_safetensors(
        tmp_path / "model.safetensors", [TensorToWrite("é\u202e", "BOOL", (1,), lambda: (b"\1",))]
    )
    raw = (tmp_path / "model.safetensors").read_bytes()
    assert "é\u202e" in json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])
    assert list(open_checkpoint(tmp_path).tensors) == ["é\u202e"]
