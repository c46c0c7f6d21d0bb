"""What an analysis of the token map found."""

from __future__ import annotations

from dataclasses import dataclass, field

from eagle3lab.vocabulary.kinds import MapKind
from eagle3lab.vocabulary.readings import Ids, Reading


@dataclass(frozen=True, slots=True)
class T2dComparison:
    """The ids an engine computes beside the tokens that t2d marks.

    Attributes:
        length: Entries of t2d; the target's vocabulary size if the two belong together.
        marked: How many tokens t2d marks.
        shared: Distinct engine ids that t2d marks.
        only_in_map: Distinct engine ids that t2d does not mark.
        only_in_t2d: Marked tokens that no row of the head stands for.
        same_order: Whether nonzero(t2d) equals d2t + arange entry by entry, as it does for a sorted map.
    """

    length: int
    marked: int
    shared: int
    only_in_map: int
    only_in_t2d: int
    same_order: bool

    @property
    def same_set(self) -> bool:
        """Whether the two describe the same draft vocabulary."""
        return self.only_in_map == 0 and self.only_in_t2d == 0


@dataclass(frozen=True, slots=True)
class Repair:
    """The offsets that d2t should have held.

    Attributes:
        offsets: int64 [D].
        proven: True if t2d leaves no other set of tokens; False if the offsets rest on a likelihood or on the
            assumption that rows are in ascending order of target id.
        reason: Why these, in one sentence.
    """

    offsets: Ids = field(repr=False, compare=False)
    proven: bool
    reason: str


@dataclass(frozen=True, slots=True)
class TokenMapReport:
    """What is known of a drafter's token map, and why.

    Attributes:
        kind: The verdict on the map as stored.
        confidence: 0–1. 1 for arithmetic facts and proofs against t2d; see `analyse_token_map`.
        evidence: Sentences with numbers, the deciding ones first.
        open_questions: What the file cannot tell.
        vocab_size: V, tokens of the target.
        draft_vocab_size: D, rows the drafter's head should have.
        d2t_dtype: Stored dtype of d2t in safetensors' notation, or None without d2t.
        entries: Entries of d2t, or None without d2t.
        hot_token_id: int64 [entries], the ids an engine computes (d2t + arange); None without d2t or where
            the sum is no vector of integers.
        sorted_rows: Whether `hot_token_id` ascends strictly; None without it.
        readings: d2t as absolute ids, offsets, doubly offset; empty where d2t is no vector of numbers.
        t2d: The comparison with t2d, or None if either is missing.
        repair: What d2t should have held, where that can be said.
    """

    kind: MapKind
    confidence: float
    evidence: tuple[str, ...]
    open_questions: tuple[str, ...]
    vocab_size: int
    draft_vocab_size: int
    d2t_dtype: str | None
    entries: int | None
    hot_token_id: Ids | None = field(repr=False, compare=False)
    sorted_rows: bool | None
    readings: tuple[Reading, ...]
    t2d: T2dComparison | None
    repair: Repair | None

    @property
    def engine_reading(self) -> Reading | None:
        """d2t as engines read it: the offsets reading, with how many ids fall outside and how many repeat."""
        return self.readings[1] if self.readings else None

    @property
    def fault(self) -> str | None:
        """The fault slug of `kind`, or None."""
        return self.kind.fault
