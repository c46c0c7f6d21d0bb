"""torch checkpoints: read like `torch.load(weights_only=True)` reads them, and never executed."""

from __future__ import annotations

import pickle
import struct
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3lab.checkpoint import Checkpoint, open_checkpoint
from eagle3lab.errors import InputError
from tests.checkpoint.handmade import malicious_pickle, small_bin, torch_zip

torch = pytest.importorskip("torch")

DTYPES = {
    "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64, "BOOL": torch.bool,
    "U8": torch.uint8, "I8": torch.int8, "I16": torch.int16, "I32": torch.int32, "I64": torch.int64,
    "U16": torch.uint16, "U32": torch.uint32, "U64": torch.uint64, "C64": torch.complex64,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip


def tensor_of(dtype: str, shape: list[int], seed: int) -> torch.Tensor:
    values = torch.from_numpy(np.random.default_rng(seed).normal(0, 3, shape))
    if dtype == "BOOL":
        return values > 0
    if dtype.startswith(("U", "F8_E8")):
        values = values.abs()
    return values.to(torch.float32).to(DTYPES[dtype])


def assert_same(checkpoint: Checkpoint, expected: dict[str, torch.Tensor]) -> None:
    assert list(checkpoint.tensors) == list(expected)
    for name, info in checkpoint.tensors.items():
        theirs = expected[name]
        assert info.shape == tuple(theirs.shape)
        assert DTYPES[info.dtype] == theirs.dtype
        assert info.nbytes == theirs.numel() * theirs.element_size()
        ours = checkpoint.read(name)
        wide = theirs.to(torch.float32) if info.dtype in ("BF16",) or info.dtype.startswith("F8") else theirs
        np.testing.assert_array_equal(ours, wide.detach().numpy())


tensors = st.dictionaries(
    st.text(min_size=1, max_size=10),
    st.builds(
        tensor_of, st.sampled_from(list(DTYPES)), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 99)
    ),
    max_size=5,
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=tensors, protocol=st.integers(2, 5), ordered=st.booleans())
def test_what_torch_saves_is_read_alike(
    tmp_path: Path, state: dict[str, torch.Tensor], protocol: int, ordered: bool
) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save(OrderedDict(state) if ordered else state, path, pickle_protocol=protocol)
    checkpoint = open_checkpoint(tmp_path)
    assert_same(checkpoint, state)
    if protocol == 2:  # torch's own weights-only reader takes no other
        assert_same(checkpoint, torch.load(path, weights_only=True))


def test_views_parameters_and_module_state(tmp_path: Path) -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    module = torch.nn.Linear(3, 2)
    state = module.state_dict()  # an OrderedDict with _metadata
    state["transposed"] = base.t()
    state["slice"] = base[1:3, 2:5]
    state["strided"] = base[::2, ::3]
    state["shared"] = base
    state["parameter"] = torch.nn.Parameter(base[0])
    path = tmp_path / "pytorch_model.bin"
    torch.save(state, path)
    checkpoint = open_checkpoint(tmp_path)
    assert_same(checkpoint, torch.load(path, weights_only=True))
    np.testing.assert_array_equal(checkpoint.read_rows("transposed", 2, 4), base.t()[2:4].numpy())
    assert checkpoint.strides(checkpoint.tensors["transposed"]) == (1, 6)
    assert checkpoint.strides(checkpoint.tensors["shared"]) is None


def test_entries_that_are_no_tensors_are_told(tmp_path: Path) -> None:
    torch.save({"fc.weight": torch.zeros(2), "epoch": 3, "name": "x"}, tmp_path / "model.pt")
    checkpoint = open_checkpoint(tmp_path)
    assert list(checkpoint.tensors) == ["fc.weight"]
    assert checkpoint.contents.not_tensors == ("model.pt: epoch (int)", "model.pt: name (str)")


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("wrapped", [True, False], ids=["zip", "bare pickle"])
def test_a_pickle_with_code_is_refused_and_not_run(tmp_path: Path, protocol: int, wrapped: bool) -> None:
    canary = tmp_path / "canary"
    data = malicious_pickle(canary, protocol)
    with pytest.raises(FileNotFoundError):
        canary.stat()
    pickle.loads(data)  # the attack works in an ordinary unpickler
    canary.unlink()
    folder = tmp_path / "drafter"
    folder.mkdir()
    (folder / "pytorch_model.bin").write_bytes(torch_zip(data) if wrapped else data)
    with pytest.raises(InputError) as caught:
        open_checkpoint(folder)
    assert not canary.exists()
    if wrapped and protocol >= 2:
        assert "io.open" in str(caught.value)
        assert "nothing was executed" in str(caught.value)


def one(*opcodes: bytes) -> bytes:
    return b"\x80\x02" + b"".join(opcodes) + b"."


STORAGE = b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x04tQ"


def tensor_pickle(
    offset: bytes = b"K\0", shape: bytes = b"K\x04\x85", strides: bytes = b"K\x01\x85"
) -> bytes:
    rebuild = b"ctorch._utils\n_rebuild_tensor_v2\n("
    return one(b"}X\x01\0\0\0w", rebuild, STORAGE, offset, shape, strides, b"\x89}t", b"R", b"s")


BAD_PICKLES: dict[str, tuple[bytes, str]] = {
    "a global that is no class of torch": (one(b"cos\nsystem\n"), "os.system"),
    "a global by way of the stack": (one(b"\x8c\x02os\x8c\x06system\x93"), "os.system"),
    "builtins.eval": (one(b"cbuiltins\neval\n"), "builtins.eval"),
    "a dotted attribute": (one(b"\x8c\x05torch\x8c\x09os.system\x93"), "torch.os.system"),
    "calling a storage class": (one(b"ctorch\nFloatStorage\n)R"), "calls torch.FloatStorage"),
    "calling a string": (one(b"X\x01\0\0\0a)R"), "calls a value"),
    "INST": (one(b"(ios\nsystem\n"), "opcode b'i'"),
    "OBJ": (one(b"(o"), "opcode b'o'"),
    "NEWOBJ": (one(b"ccollections\nOrderedDict\n)\x81"), "opcode b'\\x81'"),
    "EXT1": (one(b"\x82\x01"), "opcode b'\\x82'"),
    "attributes set by BUILD": (one(b"}}X\x01\0\0\0a}sb"), "sets attributes"),
    "stack underflow": (one(b"R"), "malformed"),
    "no mark": (one(b"t"), "malformed"),
    "unknown memo": (one(b"h\x07"), "malformed"),
    "no end": (b"\x80\x02}", "ends in the middle"),
    "string beyond the end": (b"\x80\x02X\xff\xff\xff\x7fabc.", "ends in the middle"),
    "two objects at the end": (one(b"NN"), "unbalanced"),
    "a list": (one(b"]"), "holds a list"),
    "a tuple as a key": (one(b"}K\x01\x85Ns"), "tuple as a dictionary key"),
    "a tensor alone": (
        tensor_pickle().replace(b"}X\x01\0\0\0w", b"").replace(b"Rs.", b"R."),
        "a single tensor",
    ),
    "unknown storage": (one(b"}X\x01\0\0\0wX\x07\0\0\0storageQs"), "something other than a tensor storage"),
    "negative offset": (tensor_pickle(offset=b"J\xff\xff\xff\xff"), "are not sizes"),
    "offset beyond the storage": (tensor_pickle(offset=b"K\x01"), "reaches beyond the end of its storage"),
    "shape beyond the storage": (tensor_pickle(shape=b"K\x05\x85"), "reaches beyond the end of its storage"),
    "stride beyond the storage": (
        tensor_pickle(strides=b"K\x02\x85"),
        "reaches beyond the end of its storage",
    ),
    "more elements than stored": (
        tensor_pickle(shape=b"J\xff\xff\xff\x7f\x85", strides=b"K\x00\x85"),
        "reaches beyond the end of its storage",
    ),
    "shape and strides differ in length": (tensor_pickle(strides=b")"), "are not sizes"),
    "shape is a string": (tensor_pickle(shape=b"X\x01\0\0\0a"), "malformed"),
    # A thousand entries, and a thousand copies of them: a megabyte of opcodes would become gigabytes.
    "copies of a size": (
        one(b"](" + b"K\x01" * 1000 + b"eq\x000ctorch\nSize\nq\x01" + b"0h\x01h\x00\x85R" * 1000),
        "unpacks to more than it holds",
    ),
    "copies of a dictionary": (
        one(
            b"]("
            + b"K\x01K\x02\x86" * 1000
            + b"eq\x000ccollections\nOrderedDict\nq\x01"
            + b"0h\x01h\x00\x85R" * 1000
        ),
        "unpacks to more than it holds",
    ),
    "shape overflows": (tensor_pickle(shape=b"\x8a\xff" + b"\x7f" * 255 + b"\x85"), "reaches beyond"),
}


@pytest.mark.parametrize("name", BAD_PICKLES)
def test_a_bad_pickle_is_one_clear_error(tmp_path: Path, name: str) -> None:
    data, message = BAD_PICKLES[name]
    (tmp_path / "pytorch_model.bin").write_bytes(torch_zip(data, {"0": bytes(16)}))
    with pytest.raises(InputError) as caught:
        open_checkpoint(tmp_path)
    assert message in str(caught.value)
    assert str(tmp_path / "pytorch_model.bin") in str(caught.value)


def test_the_hand_made_tensor_is_good(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(
        torch_zip(tensor_pickle(), {"0": struct.pack("<4f", 1, 2, 3, 4)})
    )
    assert open_checkpoint(tmp_path).read("w").tolist() == [1, 2, 3, 4]


def deflated(data: bytes) -> bytes:
    import io

    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return buffer.getvalue()


def legacy() -> bytes:
    import io

    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(2)}, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def scripted() -> bytes:
    return torch_zip(b"", **{"constants.pkl": b""}).replace(b"archive/data.pkl", b"archive/data.txt")


ARCHIVES: dict[str, tuple[Any, str]] = {
    "empty file": (b"", "is empty"),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    "not a zip": (b"hello, world", "no zip archive"),
    "legacy": (legacy(), "before 1.6"),
    "TorchScript": (scripted(), "TorchScript"),
    "no data.pkl": (torch_zip(b"").replace(b"data.pkl", b"data.txt"), "no data.pkl"),
    "compressed": (deflated(small_bin()), "compressed"),
    "big-endian": (torch_zip(b"\x80\x02}.", byteorder=b"big"), "big-endian"),
    "storage missing": (torch_zip(tensor_pickle()), "its storage '0' is not in the archive"),
    "storage too short": (torch_zip(tensor_pickle(), {"0": bytes(15)}), "should be 16 bytes but is 15"),
    "nested": (
        torch_zip(pickle.dumps({"state_dict": {"a": {}}}, protocol=2)),
        "one level down, under 'state_dict'",
    ),
    "zip without end": (small_bin()[:-30], "not a readable zip"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_bad_archive_is_one_clear_error(tmp_path: Path, name: str) -> None:
    data, message = ARCHIVES[name]
    (tmp_path / "pytorch_model.bin").write_bytes(data)
    with pytest.raises(InputError) as caught:
        open_checkpoint(tmp_path)
    assert message in str(caught.value)


def test_a_member_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "pytorch_model.bin"
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/data.pkl", b"\x80\x02}.")
        archive.writestr("a/data.pkl", b"\x80\x02N.")
    with pytest.raises(InputError, match="twice"):
        open_checkpoint(tmp_path)
