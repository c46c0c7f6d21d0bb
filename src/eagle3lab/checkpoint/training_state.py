"""Does a tensor look trained, or as its initialisation left it? Judged from its values alone.

A fresh matrix is independent noise: its rows have equal norms up to chance, its entries follow the distribution
of an initialiser, and its singular values stay inside the Marchenko–Pastur law. Training breaks each of these:
rows of used tokens and units grow, entries leave the distribution, and a few directions rise far above the
noise. Each test compares with what chance allows for the tensor's size, so that a small matrix needs stronger
signs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import exp, isnan, prod, sqrt
from typing import TYPE_CHECKING, Any, Literal

from eagle3lab.checkpoint.statistics import TensorStatistics, tensor_statistics
from eagle3lab.checkpoint.store import Checkpoint
from eagle3lab.checkpoint.tensors import TensorInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

SAMPLE_ROWS = 512
SAMPLE_COLUMNS = 4096


@dataclass(frozen=True, slots=True)
class Spectrum:
    """The singular values of a sample of a matrix.

    Attributes:
        shape: Rows and columns of the sample.
        singular_values: All of them, largest first, float64.
        effective_rank: exp of the Shannon entropy of the singular values divided by their sum (Roy and
            Vetterli, 2007): 1 for a matrix of rank one, the smaller side for an orthogonal one.
        spike: How far the largest eigenvalue of the Gram matrix lies above the edge that independent entries
            of the same variance would have (Marchenko and Pastur), in units of that edge's random fluctuation
            (Johnstone, 2001). Below about 3 for independent entries; tens to thousands with learned
            directions.
    """

    shape: tuple[int, int]
    singular_values: NDArray[Any]
    effective_rank: float
    spike: float


def sample_spectrum(checkpoint: Checkpoint, name: str) -> Spectrum | None:
    """The spectrum of at most SAMPLE_ROWS × SAMPLE_COLUMNS entries of a tensor.

    The tensor is seen as [first dimension, product of the others]; rows are taken at even distances, columns
    from the beginning, both up to the limit. Memory: about 40 MiB whatever the tensor.

    Returns:
        None for tensors with fewer than two dimensions, a side of less than 2, no real values, values that
        are not finite, or fewer than two rows that are not zero.
    """
    import numpy as np

    from eagle3lab.checkpoint.statistics import BlockReader

    info = checkpoint.info(name)
    if len(info.shape) < 2 or not BlockReader.can_read(info):
        return None
    rows, columns = info.shape[0], prod(info.shape[1:])
    height, width = min(rows, SAMPLE_ROWS), min(columns, SAMPLE_COLUMNS)
    if min(height, width) < 2:
        return None
    chosen = np.arange(height) * rows // height
    sample: NDArray[Any] = np.empty((height, width))
    reader = BlockReader(checkpoint)
    for at, row in enumerate(chosen):
        sample[at] = reader.row(info, int(row), width)
    reader.close()
    sample = sample[sample.any(axis=1)]  # rows of zeros are padding
    if len(sample) < 2 or not np.isfinite(sample).all():
        return None
    return spectrum_of(sample)


def spectrum_of(sample: NDArray[Any]) -> Spectrum:
    """The spectrum of a finite, non-zero matrix [m, n] of float64."""
    import numpy as np

    m, n = sorted(sample.shape)
    gram = sample @ sample.T if sample.shape[0] <= sample.shape[1] else sample.T @ sample
    eigenvalues = np.clip(np.linalg.eigvalsh(gram)[::-1], 0.0, None)
    singular = np.sqrt(eigenvalues)
    share = singular / singular.sum()
    share = share[share > 0]
    variance = float(eigenvalues.sum()) / (m * n)
    edge = variance * (sqrt(m) + sqrt(n)) ** 2
    fluctuation = variance * (sqrt(m) + sqrt(n)) * (1 / sqrt(m) + 1 / sqrt(n)) ** (1 / 3)
    return Spectrum(
        shape=(sample.shape[0], sample.shape[1]),
        singular_values=singular,
        effective_rank=exp(float(-(share * np.log(share)).sum())),
        spike=(float(eigenvalues[0]) - edge) / fluctuation,
    )


State = Literal["trained", "untouched", "constant", "broken", "undecided", "not-weights"]

# No weight of a language model comes near this; memory that was never written does.
ABSURD = 1e6
# Below this many entries, or on a side, chance hides what the tests look for: absence of a sign says nothing.
ENOUGH, ENOUGH_ON_A_SIDE = 4096, 32
# Row norms this much closer to each other than chance are equal by construction.
EQUAL = 0.3
# What rounding to bf16 or an 8-bit float may add to a kurtosis.
ROUNDING = 0.01
# Standard deviations of chance beyond which a sign counts, and beyond which it counts as strong.
WEAK, CLEAR, STRONG = 4.0, 6.0, 20.0


@dataclass(frozen=True, slots=True)
class Family:
    """The distribution of one kind of initialiser.

    Attributes:
        name: For people.
        kurtosis: Its kurtosis.
        variance: Number of entries times the variance of the kurtosis of a sample, from its moments.
        reach: Largest entry in standard deviations; infinite when unbounded.
    """

    name: str
    kurtosis: float
    variance: float
    reach: float


FAMILIES = (
    Family("uniform", 1.8, 1.32, 1.7321),
    Family("gaussian (cut at 2σ)", 2.3655, 3.85, 2.2737),
    Family("gaussian (cut at 3σ)", 2.8289, 10.63, 3.0408),
    Family("gaussian", 3.0, 24.0, float("inf")),
)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What one tensor looks like.

    Attributes:
        name: The tensor.
        state: "trained"; "untouched" (as initialised); "constant" (one value that no initialisation uses);
            "broken" (NaN, infinity, absurd size); "undecided"; "not-weights" (integers and booleans, which
            training does not change).
        confidence: How sure, 0 to 1.
        reason: One sentence with the values it rests on.
    """

    name: str
    state: State
    confidence: float
    reason: str


def judge_training(
    checkpoint: Checkpoint,
    statistics: Mapping[str, TensorStatistics] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> dict[str, Judgement]:
    """Judge every tensor of a checkpoint.

    Args:
        checkpoint: The checkpoint.
        statistics: Its statistics if they are at hand; computed otherwise. Tensors without statistics are
            undecided.
        progress: Passed on to `tensor_statistics`.
    """
    if statistics is None:
        statistics = tensor_statistics(checkpoint, progress=progress)
    return {
        name: judge_tensor(info, statistics.get(name), partial(sample_spectrum, checkpoint, name))
        for name, info in checkpoint.tensors.items()
    }


def judge_tensor(
    info: TensorInfo, statistics: TensorStatistics | None, spectrum: Callable[[], Spectrum | None]
) -> Judgement:
    """Judge one tensor; `spectrum` is only called for a matrix that the cheaper tests leave open."""
    if not info.is_float and info.dtype != "C64":
        return Judgement(info.name, "not-weights", 1.0, f"{info.dtype} values are not weights")
    if statistics is None:
        return Judgement(info.name, "undecided", 0.0, f"{info.dtype} values are not read")
    if info.numel < 2:
        size = "holds a single value" if info.numel else "is empty"
        return Judgement(info.name, "undecided", 0.0, f"it {size}")
    judged = _broken(statistics) or _one_value(info, statistics)
    if judged is None:
        judged = _matrix(statistics, spectrum()) if _is_matrix(info) else _vector(info, statistics)
    return Judgement(info.name, *judged)


_Verdict = tuple[State, float, str]


def _is_matrix(info: TensorInfo) -> bool:
    return len(info.shape) >= 2 and info.shape[0] > 1 and info.numel > info.shape[0]


def _broken(stats: TensorStatistics) -> _Verdict | None:
    if stats.nan == stats.count:
        return "broken", 1.0, "every value is NaN: it was never written (some trainers fill a parameter so)"
    if stats.nan or stats.inf:
        return "broken", 1.0, f"{stats.nan} of {stats.count} values are NaN and {stats.inf} are infinite"
    largest = max(-stats.min, stats.max)
    if largest > ABSURD:
        return "broken", 0.9, f"values up to {largest:.1e} are memory that was never written, not weights"
    return None


def _one_value(info: TensorInfo, stats: TensorStatistics) -> _Verdict | None:
    if stats.min != stats.max:
        return None
    if stats.min == 0:
        return "untouched", 0.7, "every value is 0: initialised to zero and not trained, or never written"
    if stats.min == 1 and ("norm" in info.name or not _is_matrix(info)):
        return "untouched", 0.9, "every value is exactly 1, as a norm's weight is initialised"
    return "constant", 0.95, f"every value is {stats.min:.6g}"


def _vector(info: TensorInfo, stats: TensorStatistics) -> _Verdict:
    if "norm" in info.name or info.name.endswith(".weight"):
        share = stats.std / max(abs(stats.mean), 1e-30)
        sure = 0.95 if share > 0.01 else 0.75
        return "trained", sure, f"its weights have moved apart: mean {stats.mean:.3g}, spread {stats.std:.2g}"
    bound = max(-stats.min, stats.max)
    uniform = abs(stats.kurtosis - 1.8) < WEAK * sqrt(1.32 / stats.count)
    if stats.count >= 64 and uniform and bound <= 1.01 * sqrt(3) * stats.std:
        return "untouched", 0.6, f"its values fill ±{bound:.3g} evenly, as a default initialisation does"
    return "undecided", 0.0, "a vector of this kind looks alike before and after training"


def _matrix(stats: TensorStatistics, spectrum: Spectrum | None) -> _Verdict:
    """Four tests, each in standard deviations of what chance allows."""
    rows = stats.rows - stats.zero_rows
    columns = stats.count // stats.rows
    entries = rows * columns
    kurtosis = stats.kurtosis * rows / stats.rows  # about the rows that are not padding
    # Chance alone spreads the norms of rows of independent entries by this much.
    chance = sqrt((min(kurtosis, 3.0) - 1.0) / (4 * columns)) if kurtosis > 1 else 0.0
    ratio = stats.row_norm_spread / chance if chance and not isnan(stats.row_norm_spread) else 1.0
    spike = spectrum.spike if spectrum is not None else 0.0
    family, distance = _nearest_family(stats, kurtosis, entries)
    if ratio < EQUAL and kurtosis <= 3.0:
        family, distance = (
            "orthogonal",
            0.0,
        )  # its entries depend on one another: their kurtosis falls short of 3
    signs = {
        f"row norms spread {ratio:.1f} times as far as chance would": (ratio - 1.02) * sqrt(2 * rows),
        f"kurtosis {kurtosis:.2f}, which no initialisation has": distance,
        f"a direction {spike:.0f} fluctuations above noise": spike,
    }
    clear = [text for text, size in signs.items() if size > CLEAR]
    if clear:
        strong = sum(size > STRONG for size in signs.values())
        sure = min(0.99, 0.6 + 0.1 * len(clear) + 0.1 * strong)
        return "trained", sure, "; ".join(clear)
    if stats.count < ENOUGH or min(rows, columns) < ENOUGH_ON_A_SIDE or spectrum is None:
        return "undecided", 0.0, f"{rows} × {columns} entries are too few to tell noise from structure"
    if any(size > WEAK for size in signs.values()):
        return "undecided", 0.0, "it is nearly, but not quite, what an initialisation leaves"
    sure = 0.95 if entries >= 65536 else 0.8
    noise = f"{family} noise of standard deviation {stats.std:.3g}, as initialised"
    return "untouched", sure, f"{noise}: equal row norms, no direction above it"


def _nearest_family(stats: TensorStatistics, kurtosis: float, entries: int) -> tuple[str, float]:
    """The initialiser whose distribution fits best, and how far off it is in standard deviations of chance."""
    reach = max(-stats.min, stats.max) / max(stats.std, 1e-300)
    fits = (
        (max(0.0, abs(kurtosis - family.kurtosis) - ROUNDING) / sqrt(family.variance / entries), family.name)
        for family in FAMILIES
        if reach <= family.reach * (1.01 + WEAK * sqrt((family.kurtosis - 1) / (4 * entries)))
    )
    distance, name = min(fits)
    return name, distance
