"""Singular values of a bounded sample of a matrix: its effective rank, and whether it has any structure."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, prod, sqrt
from typing import TYPE_CHECKING, Any

from eagle3lab.checkpoint.store import Checkpoint

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

    from eagle3lab.checkpoint.blocks import BlockReader

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
