"""Headers that lie, and headers that the format's own reader wrote."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.checkpoint.safetensors import LARGEST_HEADER, read_header
from eagle3lab.errors import InputError
from tests.checkpoint.handmade import entry, raw_safetensors, small_safetensors

HUGE = 2**62

LIES: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "is empty"),
    "seven bytes": (b"\0" * 7, "too short"),
    "Git LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "Git LFS pointer",
    ),
    "zip archive": (b"PK\x03\x04" + b"\0" * 60, "zip archive"),
    "header beyond the file": (raw_safetensors(b"{}", length=1000), "claims a header of 1000 bytes"),
    "header beyond the limit": (
        raw_safetensors(b"{}", length=LARGEST_HEADER + 1),
        "above the format's limit",
    ),
    "header length of all ones": (raw_safetensors(b"{}", length=2**64 - 1), "above the format's limit"),
    "not JSON": (raw_safetensors(b'{"a": '), "is not JSON"),
    "not an object": (raw_safetensors(b"[1]"), "an array instead of an object"),
    "not UTF-8": (raw_safetensors(b'{"\xff": 1}'), "not UTF-8 at byte 10"),
    "nested too deeply": (
        raw_safetensors(b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
        "nested too deeply",
    ),
    "number of 5,000 digits": (raw_safetensors(b'{"a": ' + b"9" * 5000 + b"}"), "cannot be read"),
    "NaN": (raw_safetensors(b'{"a": NaN}'), "NaN is not JSON"),
    "duplicate name": (
        raw_safetensors(
            b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},'
            b'"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
            b"\0\0",
        ),
        "'a' twice",
    ),
    "duplicate key in an entry": (
        raw_safetensors(b'{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"\0"),
        "'dtype' twice",
    ),
    "entry is a list": (raw_safetensors({"a": [1]}), "tensor 'a': its header entry is an array"),
    "entry without dtype": (raw_safetensors({"a": {"shape": [], "data_offsets": [0, 0]}}), "has no dtype"),
    "unknown dtype": (raw_safetensors({"a": entry("Q8", [1], 0, 1)}, b"\0"), "unknown dtype 'Q8'"),
    "dtype is a number": (raw_safetensors({"a": entry(3, [1], 0, 1)}, b"\0"), "dtype is an integer"),  # type: ignore[arg-type]
    "negative size": (raw_safetensors({"a": entry("U8", [-1], 0, 1)}, b"\0"), "its shape is not"),
    "fractional size": (raw_safetensors({"a": entry("U8", [1.0], 0, 1)}, b"\0"), "its shape is not"),
    "boolean size": (raw_safetensors({"a": entry("U8", [True], 0, 1)}, b"\0"), "its shape is not"),
    "size of 2^64": (raw_safetensors({"a": entry("U8", [2**64], 0, 1)}, b"\0"), "its shape is not"),
    "sizes that overflow": (raw_safetensors({"a": entry("F32", [HUGE, HUGE], 0, 4)}, b"\0" * 4), "overflows"),
    "65 dimensions": (raw_safetensors({"a": entry("U8", [1] * 65, 0, 1)}, b"\0"), "65 dimensions"),
    "a million dimensions": (raw_safetensors({"a": entry("U8", [2**62] * 10**6, 0, 1)}, b"\0"), "dimensions"),
    "negative offset": (raw_safetensors({"a": entry("U8", [1], -1, 0)}, b"\0"), "data_offsets are not two"),
    "three offsets": (
        raw_safetensors({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}}, b"\0"),
        "data_offsets are not two",
    ),
    "ends before it begins": (raw_safetensors({"a": entry("U8", [1], 2, 1)}, b"\0\0"), "before it begins"),
    "shape and offsets disagree": (
        raw_safetensors({"a": entry("F32", [3], 0, 8)}, b"\0" * 8),
        "F32 [3] needs 12 bytes, but its offsets span 8",
    ),
    "half a byte": (raw_safetensors({"a": entry("F4", [3], 0, 2)}, b"\0\0"), "do not end at a byte"),
    "overlap": (
        raw_safetensors({"a": entry("U8", [4], 0, 4), "b": entry("U8", [4], 2, 6)}, b"\0" * 6),
        "tensor 'b': its data begins at byte",
    ),
    "gap": (
        raw_safetensors({"a": entry("U8", [2], 0, 2), "b": entry("U8", [2], 4, 6)}, b"\0" * 6),
        "leaves a gap",
    ),
    "gap at the beginning": (raw_safetensors({"a": entry("U8", [2], 1, 3)}, b"\0" * 3), "leaves a gap"),
    "beyond the end": (raw_safetensors({"a": entry("U8", [9], 0, 9)}, b"\0" * 8), "the file ends after"),
    "bytes after the last tensor": (
        raw_safetensors({"a": entry("U8", [1], 0, 1)}, b"\0\0"),
        "holds 1 bytes after",
    ),
    "metadata is not strings": (raw_safetensors({"__metadata__": {"a": 1}}), "must map strings to strings"),
    "metadata is a list": (raw_safetensors({"__metadata__": ["a"]}), "must map strings to strings"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_lying_header_is_one_clear_error(tmp_path: Path, name: str) -> None:
    data, message = LIES[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        open_checkpoint(tmp_path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


# The format's own reader lets these pass; numpy and torch cannot hold 65 dimensions.
STRICTER_HERE = {"duplicate key in an entry", "65 dimensions"}


@pytest.mark.parametrize("name", sorted(set(LIES) - STRICTER_HERE))
def test_the_formats_own_reader_refuses_it_too(tmp_path: Path, name: str) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(LIES[name][0])
    with pytest.raises((SafetensorError, OSError, RuntimeError)), safe_open(path, "numpy") as file:
        file.keys()


@pytest.mark.parametrize("cut", range(0, 700, 7))
def test_every_truncation_is_refused(tmp_path: Path, cut: int) -> None:
    data = small_safetensors()
    assert len(data) > 700
    (tmp_path / "model.safetensors").write_bytes(data[:cut])
    with pytest.raises(InputError):
        open_checkpoint(tmp_path)


def test_an_escape_in_a_name_does_not_reach_the_message(tmp_path: Path) -> None:
    name = "evil\x1b[2J\u202e\n"
    (tmp_path / "model.safetensors").write_bytes(raw_safetensors({name: entry("Q8", [1], 0, 1)}, b"\0"))
    with pytest.raises(InputError) as caught:
        open_checkpoint(tmp_path)
    assert str(caught.value).isprintable()


NUMPY_DTYPES = [
    np.bool_, np.uint8, np.int8, np.int16, np.uint16, np.float16,
    np.int32, np.uint32, np.float32, np.float64, np.int64, np.uint64, np.complex64,
]  # fmt: skip

arrays = st.builds(
    lambda dtype, shape, seed: np.frombuffer(
        np.random.default_rng(seed).bytes(int(np.prod(shape)) * np.dtype(dtype).itemsize), dtype
    ).reshape(shape),
    st.sampled_from([dtype for dtype in NUMPY_DTYPES if dtype is not np.bool_]),
    st.lists(st.integers(0, 5), max_size=4),
    st.integers(0, 2**32 - 1),
)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"
)
metadata = st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5), min_size=1, max_size=3)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tensors=st.dictionaries(names, arrays, min_size=1, max_size=6), extra=metadata)
def test_what_safetensors_writes_is_read_alike(
    tmp_path: Path, tensors: dict[str, np.ndarray], extra: dict[str, str] | None
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(save(tensors, extra))
    checkpoint = open_checkpoint(tmp_path)
    with safe_open(path, "numpy") as file:
        assert list(checkpoint.tensors) == list(file.keys())
        assert dict(checkpoint.metadata) == (file.metadata() or {})
        for name, info in checkpoint.tensors.items():
            theirs = file.get_slice(name)
            assert (info.dtype, list(info.shape)) == (theirs.get_dtype(), theirs.get_shape())
            ours = checkpoint.read(name)
            assert ours.dtype == tensors[name].dtype
            assert (
                ours.tobytes() == tensors[name].tobytes() == path.read_bytes()[info.offset :][: info.nbytes]
            )
            assert not ours.flags.writeable


sizes = st.integers(-2, 6) | st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64, 1.0, True, None, "1"])
odd_entries = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(["U8", "F32", "F4", "BF16", "F8_E8M0", "X", "", 3, None]),
        "shape": st.lists(sizes, max_size=3) | st.none() | st.integers(),
        "data_offsets": st.lists(sizes, max_size=3) | st.none(),
        "extra": st.none(),
    },
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    header=st.dictionaries(
        st.sampled_from(["a", "b", "__metadata__", "\0"]), odd_entries | st.none(), max_size=3
    ),
    data=st.integers(0, 16),
)
def test_odd_headers_are_judged_as_safetensors_judges_them(
    tmp_path: Path, header: dict[str, Any], data: int
) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw_safetensors(header, b"\0" * data))
    try:
        with safe_open(path, "numpy") as file:
            theirs: list[str] | None = list(file.keys())
    except Exception:
        theirs = None
    try:
        ours: list[str] | None = [tensor.name for tensor in read_header(path, path.name).tensors]
    except InputError:
        ours = None
    assert ours == theirs


def test_the_order_is_by_name_and_not_by_place(tmp_path: Path) -> None:
    header = {"b": entry("U8", [1], 0, 1), "a.9": entry("U8", [1], 1, 2), "a.10": entry("U8", [1], 2, 3)}
    (tmp_path / "model.safetensors").write_bytes(raw_safetensors(header, b"\1\2\3"))
    checkpoint = open_checkpoint(tmp_path)
    assert list(checkpoint.tensors) == ["a.10", "a.9", "b"]
    assert [int(checkpoint.read(name)[0]) for name in checkpoint.tensors] == [3, 2, 1]


def test_a_header_of_4_gigabytes_of_data_is_read_without_the_data(tmp_path: Path) -> None:
    count = 4_300_000_000 // 2
    header = json.dumps({"lm_head.weight": entry("BF16", [count], 0, 2 * count)}).encode()
    path = tmp_path / "model.safetensors"
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        stream.truncate(8 + len(header) + 2 * count)
    assert open_checkpoint(tmp_path).tensors["lm_head.weight"].nbytes == 2 * count
    assert path.stat().st_blocks * 512 < 2**20, "the sparse file must stay sparse"
