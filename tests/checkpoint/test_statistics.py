"""Statistics: equal to float64 arithmetic, in memory that does not grow with the tensor."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from math import isnan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.checkpoint.statistics import BLOCK, SEGMENT_BYTES, TensorStatistics, tensor_statistics
from eagle3lab.checkpoint.training_state import sample_spectrum, spectrum_of
from eagle3lab.errors import InputError
from tests.checkpoint.handmade import entry, raw_safetensors
from tests.support.make_case import safetensors_bytes

torch = pytest.importorskip("torch")

TORCH_DTYPES = {
    "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F64": torch.float64,
    "I64": torch.int64, "I32": torch.int32, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


def statistics_of(folder: Path, tensor: torch.Tensor, **options: bool) -> TensorStatistics:
    """The statistics of one tensor by way of a safetensors file."""
    from safetensors.torch import save_file

    save_file({"t": tensor.contiguous()}, folder / "model.safetensors")
    return tensor_statistics(open_checkpoint(folder), "t", **options)["t"]  # type: ignore[arg-type]


def assert_agrees(stats: TensorStatistics, tensor: torch.Tensor) -> None:
    """Compare with torch in float64, over the finite values."""
    wide = tensor.to(torch.float32).double() if tensor.dtype.itemsize == 1 else tensor.double()
    finite = wide[torch.isfinite(wide)]
    assert stats.count == tensor.numel()
    assert stats.nan == int(torch.isnan(wide).sum())
    assert stats.inf == int(torch.isinf(wide).sum())
    assert stats.zeros == int((finite == 0).sum())
    if not finite.numel():
        assert all(isnan(value) for value in (stats.mean, stats.std, stats.abs_mean, stats.min, stats.max))
        return
    scale = float(finite.abs().mean())
    assert stats.min == float(finite.min())
    assert stats.max == float(finite.max())
    assert stats.mean == pytest.approx(float(finite.mean()), abs=2e-6 * scale)
    assert stats.abs_mean == pytest.approx(scale, rel=2e-6)
    assert stats.std == pytest.approx(float(finite.std(correction=0)), rel=1e-5, abs=1e-9 * scale)
    if wide.ndim >= 2 and finite.numel() == wide.numel():
        norms = wide.reshape(wide.shape[0], -1).norm(dim=1)
        some = norms[norms > 0]
        assert (stats.rows, stats.zero_rows) == (len(norms), len(norms) - len(some))
        if len(some):
            assert stats.row_norm_mean == pytest.approx(float(some.mean()), rel=1e-6)
            assert stats.row_norm_min == pytest.approx(float(some.min()), rel=1e-6)
            assert stats.row_norm_max == pytest.approx(float(some.max()), rel=1e-6)
            spread = float(some.std(correction=0))
            assert stats.row_norm_std == pytest.approx(spread, rel=1e-3, abs=1e-6 * stats.row_norm_mean)


SHAPES = [
    (),
    (1,),
    (3,),
    (0,),
    (0, 4),
    (4, 0),
    (5, 7),
    (1, 9),
    (9, 1),
    (2, 3, 4),
    (300, 1001),
    (BLOCK + 3,),
    (2, BLOCK + 5),
]


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_agree_with_torch(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    values = torch.from_numpy(np.random.default_rng(len(shape)).normal(0.1, 3, shape))
    values = values.abs() if dtype == "U8" else values > 0 if dtype == "BOOL" else values
    tensor = values.to(torch.float32).to(TORCH_DTYPES[dtype])
    assert_agrees(statistics_of(tmp_path, tensor), tensor)


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32", "F64"])
def test_unusual_values(tmp_path: Path, dtype: str) -> None:
    kind = TORCH_DTYPES[dtype]
    ordinary = torch.randn(40, 50, generator=torch.Generator().manual_seed(0)).to(kind)
    for name, change in {
        "nan": lambda t: t[3].fill_(float("nan")),
        "infinities": lambda t: (t[2, 1].fill_(float("inf")), t[2, 2].fill_(-float("inf"))),
        "all NaN": lambda t: t.fill_(float("nan")),
        "large": lambda t: t[0].fill_(min(1e100, torch.finfo(kind).max)),
        "small": lambda t: t.fill_(max(1e-100, torch.finfo(kind).smallest_normal)),
        "one faint row": lambda t: t[7].fill_(max(1e-100, torch.finfo(kind).smallest_normal)),
        "negative zeros": lambda t: t[1].fill_(-0.0),
        "all zero": lambda t: t.fill_(0),
    }.items():
        tensor = ordinary.clone()
        change(tensor)  # type: ignore[no-untyped-call]
        assert_agrees(statistics_of(tmp_path, tensor), tensor), name


def test_a_large_mean_does_not_swallow_the_spread(tmp_path: Path) -> None:
    tensor = 1000 + 0.01 * torch.randn(
        300, 400, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    for kind in (torch.float32, torch.float64):
        assert_agrees(statistics_of(tmp_path, tensor.to(kind)), tensor.to(kind))


def test_a_constant_has_no_spread(tmp_path: Path) -> None:
    for value in (1.0, 0.0021, -3.7):
        assert statistics_of(tmp_path, torch.full((500, 700), value)).std <= 1e-9 * abs(value)


def test_large_integers_are_exact(tmp_path: Path) -> None:
    stats = statistics_of(tmp_path, torch.tensor([2**24 + 1, 2**24 + 3, 163839]))
    assert (stats.max, stats.mean) == (2**24 + 3, (2 * 2**24 + 4 + 163839) / 3)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    bits=st.integers(0, 2**32 - 1),
    shape=st.lists(st.integers(0, 9), min_size=0, max_size=3),
    dtype=st.sampled_from(["BF16", "F16", "F32", "F8_E4M3", "F8_E5M2"]),
)
def test_any_bit_pattern(tmp_path: Path, bits: int, shape: list[int], dtype: str) -> None:
    kind = TORCH_DTYPES[dtype]
    raw = np.random.default_rng(bits).integers(0, 256, int(np.prod(shape)) * kind.itemsize, dtype=np.uint8)
    tensor = (
        torch.frombuffer(bytearray(raw), dtype=kind).reshape(shape)
        if len(raw)
        else torch.empty(shape, dtype=kind)
    )
    stats = statistics_of(tmp_path, tensor)
    wide = tensor.float().double()
    assert stats.nan == int(torch.isnan(wide).sum())
    assert stats.inf == int(torch.isinf(wide).sum())
    finite = wide[torch.isfinite(wide)]
    if finite.numel():
        assert (stats.min, stats.max) == (float(finite.min()), float(finite.max()))
        assert stats.mean == pytest.approx(
            float(finite.mean()), rel=1e-5, abs=1e-6 * float(finite.abs().max())
        )
        assert stats.std == pytest.approx(float(finite.std(correction=0)), rel=1e-4, abs=1e-300)


@pytest.mark.slow
def test_parts_of_a_large_tensor_add_up(tmp_path: Path) -> None:
    rows = 2 * SEGMENT_BYTES // (2 * 1000) + 17  # three segments
    tensor = torch.randn(rows, 1000, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)
    stats = statistics_of(tmp_path, tensor)
    assert_agrees(stats, tensor)
    assert stats.kurtosis == pytest.approx(3.0, abs=0.01)
    again = tensor_statistics(open_checkpoint(tmp_path), threads=1)["t"]
    assert again == stats, "the result must not depend on the number of threads"


def test_strided_tensors_of_a_torch_file(tmp_path: Path) -> None:
    tensor = torch.randn(500, 300, generator=torch.Generator().manual_seed(3))
    torch.save({"t": tensor.t(), "s": tensor[::2, 1::3]}, tmp_path / "pytorch_model.bin")
    stats = tensor_statistics(open_checkpoint(tmp_path))
    assert_agrees(stats["t"], tensor.t())
    assert_agrees(stats["s"], tensor[::2, 1::3])


def test_progress_covers_every_byte_and_names_are_checked(tmp_path: Path) -> None:
    tensors = {"a": (np.ones((5, 4)), "F32"), "b": (np.ones(3), "BF16"), "c": (np.ones(()), "F32")}
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    checkpoint = open_checkpoint(tmp_path)
    calls: list[tuple[int, int, str]] = []
    stats = tensor_statistics(checkpoint, ["c", "a"], progress=lambda *call: calls.append(call))
    assert list(stats) == ["c", "a"]
    assert calls == [(4, 84, "c"), (84, 84, "a")]
    with pytest.raises(InputError, match="'zzz'"):
        tensor_statistics(checkpoint, "zzz")


def test_undecodable_dtypes_are_left_out(tmp_path: Path) -> None:
    header = {"a": entry("F4", [4], 0, 2), "b": entry("C64", [1], 2, 10), "c": entry("U8", [2], 10, 12)}
    (tmp_path / "model.safetensors").write_bytes(raw_safetensors(header, bytes(12)))
    assert list(tensor_statistics(open_checkpoint(tmp_path))) == ["c"]


def test_a_file_that_shrinks_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(safetensors_bytes({"a": (np.ones((50, 40)), "F32")}))
    checkpoint = open_checkpoint(tmp_path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(InputError, match="became shorter"):
        tensor_statistics(checkpoint)


# VmHWM rather than ru_maxrss: the latter starts from the parent's size, which Linux passes on through exec.
MEASURE = """
import re, sys
from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.checkpoint.statistics import tensor_statistics
checkpoint = open_checkpoint(sys.argv[1])
stats = tensor_statistics(checkpoint, effective_rank=True)["lm_head.weight"]
print(stats.zeros, re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_tensor(tmp_path: Path) -> None:
    peak = {}
    for rows in (256, 32 * 1024):  # 4 MB and 0.5 GB of a sparse file
        header = json.dumps({"lm_head.weight": entry("BF16", [rows, 8192], 0, rows * 8192 * 2)}).encode()
        with (tmp_path / "model.safetensors").open("wb") as stream:
            stream.write(struct.pack("<Q", len(header)) + header)
            stream.truncate(8 + len(header) + rows * 8192 * 2)
        run = subprocess.run(
            [sys.executable, "-c", MEASURE, str(tmp_path)], capture_output=True, text=True, check=True
        )
        zeros, peak[rows] = map(int, run.stdout.split())
        assert zeros == rows * 8192
    small, large = peak.values()
    assert large < 300 * 1024, f"{large} KiB"
    assert large - small < 64 * 1024, f"{small} → {large} KiB"


def test_the_spectrum_of_known_matrices(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    identity = spectrum_of(np.eye(50))
    assert identity.effective_rank == pytest.approx(50)
    one = spectrum_of(np.outer(rng.normal(size=40), rng.normal(size=60)))
    assert one.effective_rank == pytest.approx(1, abs=1e-3)
    noise = rng.normal(size=(300, 500))
    values = np.linalg.svd(noise, compute_uv=False)
    for matrix in (noise, noise.T):
        spectrum = spectrum_of(matrix)
        np.testing.assert_allclose(spectrum.singular_values, values, rtol=1e-9)
        assert abs(spectrum.spike) < 5
    share = values / values.sum()
    assert spectrum_of(noise).effective_rank == pytest.approx(np.exp(-(share * np.log(share)).sum()))
    spiked = noise + 2 * np.outer(rng.normal(size=300), rng.normal(size=500)) / 5
    assert spectrum_of(spiked).spike > 20


def test_the_sample_is_bounded_and_absent_where_there_is_none(tmp_path: Path) -> None:
    tensors = {
        "wide": (np.random.default_rng(0).normal(size=(600, 5000)), "BF16"),
        "vector": (np.ones(9), "F32"),
        "column": (np.ones((9, 1)), "F32"),
        "zero": (np.zeros((9, 9)), "F32"),
        "nan": (np.full((9, 9), np.nan), "F32"),
    }
    (tmp_path / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    checkpoint = open_checkpoint(tmp_path)
    spectra = {name: sample_spectrum(checkpoint, name) for name in tensors}
    assert spectra["wide"] is not None
    assert spectra["wide"].shape == (512, 4096)
    assert [name for name, spectrum in spectra.items() if spectrum is None] == [
        "vector",
        "column",
        "zero",
        "nan",
    ]
    stats = tensor_statistics(checkpoint, effective_rank=True)
    assert stats["wide"].rank_limit == 512
    assert stats["wide"].effective_rank is not None
    assert 400 < stats["wide"].effective_rank < 512
    assert stats["vector"].effective_rank is None
