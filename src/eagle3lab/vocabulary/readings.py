r"""Three readings of one `d2t` tensor, and the arithmetic that decides between them.

A drafter with a reduced vocabulary has D rows in its head, and row j stands for one token r_j of the target's
V. Trainers store **offsets**, d_j = r_j − j, and engines compute `hot_token_id` = d + arange(D). Two mistakes
are common, and both leave a tensor of the right name, shape and dtype:

==================  ===========  ======================================
reading             stored       ids it stands for
==================  ===========  ======================================
absolute ids        d = r        c⁰ = d
offsets             d = r − j    c¹ = d + arange(D), what engines compute
doubly offset       d = r − 2j   c² = d + 2·arange(D)
==================  ===========  ======================================

**Necessary conditions.** The ids of the true reading lie in 0 … V−1 and are distinct. A reading that breaks
either is impossible, whatever else is known.

**With t2d.** t2d marks the set of kept tokens. The sums of c⁰, c¹ and c² differ by D(D−1)/2, so for D ≥ 2 at
most one reading can equal the marked set. A match is therefore a proof, for sorted and unsorted maps alike.

**Without t2d, ascending ids.** If c^k ascends, so does c^(k+m), and each of its gaps is at least m + 1. Were
c^(k+m) the truth, no two kept tokens would be neighbours in the vocabulary. Of the sets of D tokens that
share its lowest and highest id, spanning S ids, that happens to a fraction

    C(S − 2 − m(D−1), D − 2) / C(S − 2, D − 2).

A fixed span is the right condition, because frequent tokens crowd together at low ids, which only makes
neighbours likelier. For a real map the fraction is astronomically small (10^-3000 and less); for tiny or
sparse ones it is not, and then the order says nothing. The argument is about drawn sets: a map built on
purpose (every second token) defeats it. It may therefore raise a doubt about a map that an engine can use,
and never an accusation.

**Without t2d, another order** (frequency order, as Model-Optimizer writes). Among r_j in random order, two
entries of r_j + m·j coincide with probability at least (S − D)/(S(S − 1)), so a false reading of D entries
has about λ ≥ D(D−1)/2 · (S − D)/(S(S − 1)) collisions and none with probability e^−λ: about 10^-1300 for
32,000 of 128,256.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]

READING_NAMES = (
    "absolute ids",
    "offsets",
    "doubly offset",
)  # the index is the multiple of arange that is added
# Beyond it d2t + 2·arange could wrap around; no vocabulary is near it.
_FAR = np.int64(2**62)


@dataclass(frozen=True, slots=True)
class Reading:
    """`d2t` read as one of `READING_NAMES`.

    Attributes:
        multiple: k in ids = d2t + k·arange: 0 absolute ids, 1 offsets, 2 doubly offset.
        ids: int64 [n], the target ids under this reading.
        below_zero: How many ids are negative.
        beyond: How many ids are ≥ the target's vocabulary size.
        repeats: How many entries repeat an id of an earlier row.
        first_outside: First draft id whose target id is outside the vocabulary, or None.
        first_repeat: First draft id whose target id an earlier row has already, or None.
        ascending: Whether the ids ascend strictly.
        marked: How many distinct ids t2d marks, or None without t2d.
        matches_t2d: Whether the ids are exactly the set t2d marks, or None without t2d.
    """

    multiple: int
    ids: Ids = field(repr=False, compare=False)
    below_zero: int
    beyond: int
    repeats: int
    first_outside: int | None
    first_repeat: int | None
    ascending: bool
    marked: int | None
    matches_t2d: bool | None

    @property
    def name(self) -> str:
        """The reading in words, one of `READING_NAMES`."""
        return READING_NAMES[self.multiple]

    @property
    def outside(self) -> int:
        """How many ids are outside the target's vocabulary."""
        return self.below_zero + self.beyond

    @property
    def possible(self) -> bool:
        """Whether all ids are distinct and inside the vocabulary."""
        return self.outside == 0 and self.repeats == 0


def read_as(stored: NDArray[np.integer], multiple: int, vocab_size: int, marked: Ids | None) -> Reading:
    """Read `stored` (integers [n]) as ids = stored + multiple·arange(n).

    Args:
        stored: The d2t tensor.
        multiple: 0, 1 or 2, see the module's docstring.
        vocab_size: V of the target.
        marked: The ascending ids that t2d marks, or None.
    """
    near = np.clip(stored, -_FAR, _FAR).astype(np.int64)
    ids = near + multiple * np.arange(near.size, dtype=np.int64)
    below, beyond = ids < 0, ids >= vocab_size
    first_seen = np.zeros(ids.size, dtype=bool)
    distinct, first_rows = np.unique(ids, return_index=True)
    first_seen[first_rows] = True
    hits = None if marked is None else int(np.isin(distinct, marked, assume_unique=True).sum())
    return Reading(
        multiple=multiple,
        ids=ids,
        below_zero=int(below.sum()),
        beyond=int(beyond.sum()),
        repeats=int(ids.size - distinct.size),
        first_outside=first_row(below | beyond),
        first_repeat=first_row(~first_seen),
        ascending=bool(np.all(np.diff(ids) > 0)),
        marked=hits,
        matches_t2d=None if marked is None else bool(np.array_equal(np.sort(ids), marked)),
    )


def first_row(mask: NDArray[np.bool_]) -> int | None:
    """Index of the first True in `mask`, or None."""
    return int(np.argmax(mask)) if mask.any() else None


def surprise(reading: Reading, other_multiple: int) -> float:
    """How surprising it is that another reading is possible too, if `reading` is the true one.

    Args:
        reading: The reading supposed to be true (of some vocabulary: it may reach beyond the target's).
        other_multiple: The multiple of the other reading; smaller than `reading.multiple` if the ids ascend.

    Returns:
        log10 of the odds against it, ≥ 0: 6 means one drawn map in a million. See the module's docstring.
    """
    n = reading.ids.size
    if n < 2:
        return 0.0
    span = int(reading.ids.max()) - int(reading.ids.min()) + 1
    if reading.ascending:
        lost = abs(reading.multiple - other_multiple) * (n - 1)
        return log10_choose(span - 2, n - 2) - log10_choose(span - 2 - lost, n - 2)
    return collisions(n, span) / math.log(10)


def collisions(n: int, span: int) -> float:
    """λ: the least expected number of collisions of a false reading of n ids in random order from `span`."""
    if span <= n or n < 2:
        return 0.0
    return n * (n - 1) / 2 * (span - n) / (span * (span - 1))


def log10_choose(n: int, k: int) -> float:
    """log10 of the binomial coefficient C(n, k); −inf when there is no way."""
    if k < 0 or n < k:
        return -math.inf
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(10)


def mostly_ascending(ids: Ids) -> bool:
    """Whether at most a tenth of the steps go down: a sorted map with blemishes, not a frequency order."""
    return bool(np.count_nonzero(np.diff(ids) < 0) <= (ids.size - 1) / 10)


def looks_subtracted_twice(engine_ids: Ids) -> bool:
    """Whether repeats in almost ascending d + arange look like neighbours whose gap a subtraction removed.

    Under the doubly offset reading a step of 0 in d + arange was a gap of 1 between kept tokens, and a step
    of 1 a gap of 2. Where tokens are kept at random with any local density p, gaps of 1 are the commonest and
    gaps of 2 a factor 1 − p rarer. So the repeats outnumber the steps of 1; and either barely (few tokens are
    kept), or the repeats are many, or they stand in long runs (some regions are kept almost whole).
    Accidental repeats are few beside the steps of 1, or few and alone, or one block (a padded tail).
    """
    zero = np.diff(engine_ids) == 0
    zeros, ones = int(zero.sum()), int(np.count_nonzero(np.diff(engine_ids) == 1))
    if zeros < 20 or zeros < ones:
        return False
    if zeros == zero.size:
        return True
    edges = np.diff(np.concatenate(([False], zero, [False])).astype(np.int8))
    runs = np.flatnonzero(edges == -1) - np.flatnonzero(edges == 1)
    if runs.max() > zeros / 2:
        return False
    share = zeros / zero.size
    barely = ones >= 0.75 * zeros
    many = share >= 0.15 and ones >= zeros / 4
    return barely or many or runs.size <= 0.8 * zeros * (1 - share)


def round_through(values: NDArray[np.float64], dtype: str) -> NDArray[np.float64]:
    """`values` as they come back from storage in a safetensors dtype: "BF16", "F16", "F32" or "F64"."""
    if dtype == "BF16":
        bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
        kept = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32)
        return kept.view(np.float32).astype(np.float64)
    if dtype == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float64)
    return values.astype(np.float32 if dtype == "F32" else np.float64).astype(np.float64)
