"""What a token map can turn out to be, and what each kind means; a server's processes import this, so nothing heavy."""

from __future__ import annotations

from enum import StrEnum


class MapKind(StrEnum):
    """What a drafter's token map turned out to be."""

    OFFSETS = "offsets"
    ABSOLUTE = "absolute"
    DOUBLE_OFFSET = "double-offset"
    ZERO_BY_RIGHT = "zero-by-right"
    ZERO_BY_MISTAKE = "zero-by-mistake"
    MISSING = "missing"
    NOT_NEEDED = "not-needed"
    OUT_OF_RANGE = "out-of-range"
    REPEATING = "repeating"
    WRONG_DTYPE = "wrong-dtype"
    WRONG_LENGTH = "wrong-length"
    DISAGREES_WITH_T2D = "disagrees-with-t2d"
    UNDECIDED = "undecided"

    @property
    def sound(self) -> bool:
        """Whether engines get the intended tokens from a map of this kind."""
        return self in (MapKind.OFFSETS, MapKind.ZERO_BY_RIGHT, MapKind.NOT_NEEDED)

    @property
    def meaning(self) -> str:
        """One sentence: what this kind means for a server."""
        return _MEANING[self]

    @property
    def fault(self) -> str | None:
        """The fault slug that goes with this kind; None where nothing is wrong or nothing can be said."""
        return _FAULT.get(self)


_MEANING = {
    MapKind.OFFSETS: "d2t holds offsets, as engines expect.",
    MapKind.ABSOLUTE: "d2t holds absolute target ids; engines add arange and shift every id but the first.",
    MapKind.DOUBLE_OFFSET: "arange was subtracted twice; engines add it once and get offsets, not ids.",
    MapKind.ZERO_BY_RIGHT: "d2t is all zeros: the identity, right where the vocabulary is not reduced.",
    MapKind.ZERO_BY_MISTAKE: "d2t is all zeros with a reduced draft vocabulary: it was never filled in.",
    MapKind.MISSING: "The draft vocabulary is reduced without a d2t: engines take draft ids for target ids.",
    MapKind.NOT_NEEDED: "There is no d2t, and none is needed: the draft vocabulary is the whole vocabulary.",
    MapKind.OUT_OF_RANGE: "d2t + arange leaves the target's vocabulary.",
    MapKind.REPEATING: "d2t + arange gives the same target id to several rows of the head.",
    MapKind.WRONG_DTYPE: "d2t is not an integer tensor, so its ids cannot be used as they are.",
    MapKind.WRONG_LENGTH: "d2t does not have one entry for each row of the head.",
    MapKind.DISAGREES_WITH_T2D: "d2t and t2d describe different draft vocabularies; engines read d2t only.",
    MapKind.UNDECIDED: "The map can be used, and the file does not show whether it is the intended one.",
}

_FAULT = {
    MapKind.ABSOLUTE: "vocab.absolute",
    MapKind.DOUBLE_OFFSET: "vocab.double-offset",
    MapKind.ZERO_BY_MISTAKE: "vocab.zero",
    MapKind.MISSING: "vocab.missing",
    MapKind.OUT_OF_RANGE: "vocab.range",
    MapKind.REPEATING: "vocab.range",
    MapKind.WRONG_DTYPE: "vocab.dtype",
    MapKind.WRONG_LENGTH: "head.lm-head-rows",
    MapKind.DISAGREES_WITH_T2D: "vocab.t2d",
}
