"""Thousands of damaged checkpoints: each one opens or ends in one InputError; nothing is executed, nothing written."""

from __future__ import annotations

import io
import json
import random
import re
import struct
import zipfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.checkpoint.provenance import find_provenance
from eagle3lab.errors import InputError
from tests.checkpoint.handmade import (
    CONFIG,
    malicious_pickle,
    small_bin,
    small_safetensors,
    torch_zip,
    write,
)
from tests.checkpoint.test_config import SPECULATORS

ROUNDS = 450  # for each of the kinds below: 2,700 files in all
INTERESTING = [
    b"\0",
    b"\xff",
    b"-1",
    b"1e999",
    b"null",
    b"[]",
    b"{}",
    b'"',
    b"\\ud800",
    b"99999999999999999999",
    b"../",
]


def mutate_bytes(data: bytes, rng: random.Random) -> bytes:
    """One to four damages: bits flipped, pieces cut, doubled, moved or replaced, the end lost."""
    raw = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, span = rng.randrange(len(raw) + 1), rng.choice((1, 1, 2, 4, 8, 64))
        how = rng.randrange(7)
        if how == 0 and at < len(raw):
            raw[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            del raw[at : at + span]
        elif how == 2:
            raw[at:at] = raw[at : at + span]
        elif how == 3:
            raw[at : at + span] = rng.randbytes(span)
        elif how == 4:
            raw[at:at] = rng.choice(INTERESTING)
        elif how == 5:
            raw[at : at + 8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**32, 2**63, 2**64 - 1, len(raw))))
        elif rng.random() < 0.3:
            del raw[at:]
    return bytes(raw)


def mutate_json(text: str, rng: random.Random) -> str:
    """Still mostly JSON: one or two values replaced by others."""
    tokens = re.finditer(r'-?\d[\d.e+-]*|"(?:[^"\\]|\\.)*"(?:\s*:)?|true|false|null', text)
    values = [token.span() for token in tokens if not token[0].endswith(":")]
    replacements = [
        "-1",
        "0",
        "1",
        "2.5",
        "1e400",
        "true",
        "null",
        '"x"',
        '"\\u0000"',
        "[]",
        "{}",
        "[1,2]",
        "9" * 30,
        "NaN",
    ]
    for begin, end in sorted(rng.sample(values, min(len(values), rng.randint(1, 2))), reverse=True):
        text = text[:begin] + rng.choice(replacements) + text[end:]
    return text


def damaged_safetensors(rng: random.Random, folder: Path) -> None:
    data = small_safetensors()
    if rng.random() < 0.5:  # damage the header only, and give it its right length
        (length,) = struct.unpack("<Q", data[:8])
        header = mutate_json(data[8 : 8 + length].decode(), rng).encode()
        data = struct.pack("<Q", len(header)) + header + data[8 + length :]
    else:
        data = mutate_bytes(data, rng)
    write(folder, model__safetensors=data)


def damaged_index(rng: random.Random, folder: Path) -> None:
    index = json.dumps(
        {
            "metadata": {"total_size": 1},
            "weight_map": {"fc.weight": "model.safetensors", "b": "more.safetensors"},
        }
    )
    index = mutate_json(index, rng)
    data = index.encode() if rng.random() < 0.5 else mutate_bytes(index.encode(), rng)
    shard = small_safetensors()
    write(folder, model__safetensors=shard, more__safetensors=shard, model__safetensors__index__json=data)


def damaged_config(base: dict[str, object]) -> Callable[[random.Random, Path], None]:
    def damage(rng: random.Random, folder: Path) -> None:
        text = mutate_json(json.dumps(base), rng)
        write(folder, config__json=text.encode() if rng.random() < 0.7 else mutate_bytes(text.encode(), rng))

    return damage


def damaged_bin(rng: random.Random, folder: Path) -> None:
    data = small_bin()
    if rng.random() < 0.3:
        write(folder, pytorch_model__bin=mutate_bytes(data, rng))
        return
    with zipfile.ZipFile(io.BytesIO(data)) as archive:  # damage one member inside a sound archive
        members = {name: archive.read(name) for name in archive.namelist()}
    victim = "pytorch_model/data.pkl" if rng.random() < 0.8 else rng.choice(sorted(members))
    members[victim] = mutate_bytes(members[victim], rng)
    sound = io.BytesIO()
    with zipfile.ZipFile(sound, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    write(folder, pytorch_model__bin=sound.getvalue())


def damaged_attack(rng: random.Random, folder: Path) -> None:
    """A working attack, its pickle damaged inside a sound archive."""
    pickled = malicious_pickle(folder.parent / "canary", rng.randint(0, 5))
    if rng.random() < 0.8:
        pickled = mutate_bytes(pickled, rng)
    write(folder, pytorch_model__bin=torch_zip(pickled))


KINDS: dict[str, Callable[[random.Random, Path], None]] = {
    "safetensors": damaged_safetensors,
    "index": damaged_index,
    "config": damaged_config(CONFIG),
    "speculators config": damaged_config(SPECULATORS),
    "bin": damaged_bin,
    "attack": damaged_attack,
}


def read_everything(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    for name in checkpoint.tensors:
        checkpoint.read(name)
    find_provenance(checkpoint)
    if checkpoint.has_config:
        _ = checkpoint.config


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_files_end_in_one_clear_error(tmp_path: Path, kind: str) -> None:
    rng = random.Random(f"eagle3lab {kind}")
    outcomes: Counter[str] = Counter()
    folder = tmp_path / "drafter"
    for round_ in range(ROUNDS):
        for old in folder.glob("*"):
            old.unlink()
        KINDS[kind](rng, folder)
        before = {path: path.read_bytes() for path in folder.iterdir()}
        try:
            read_everything(folder)
            outcomes["opened"] += 1
        except InputError as error:
            outcomes["refused"] += 1
            assert str(error).isprintable()
            assert str(tmp_path) in str(error)
        except Exception as error:  # the report must say which file it was
            pytest.fail(f"round {round_} of {kind}: {type(error).__name__}: {error}\n{before}")
        assert {path: path.read_bytes() for path in folder.iterdir()} == before
        assert {path.name for path in tmp_path.iterdir()} == {"drafter"}, "something was executed"
    assert outcomes["refused"] > ROUNDS / 10, outcomes
    if kind == "attack":
        assert outcomes["opened"] < ROUNDS / 5, outcomes
