"""How much of a text a draft vocabulary reaches, and the accept length it allows at most.

A draft token can only be one of the D kept tokens, so a token of the text outside them is never accepted from
the drafter; it comes from the target, as the bonus token of a verify step. Let a step start after position t
of the text and draft `steps` tokens. If every covered token were accepted, it would accept the run of covered
tokens from t + 1 on, at most `steps` of them, and add the bonus token: the accept length is the run plus 1,
and the next step starts there.

No drafter with this vocabulary needs fewer verify steps for this text. A step from t ends at min(t + steps +
1, u), u the next uncovered position after t; that never decreases in t, so being further ahead is never
worse, and accepting all one can is optimal. The runs are those of the real text. Were tokens covered
independently with probability c, the accept length would be 1 + c + … + c^steps; real text is burstier.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eagle3lab.errors import InputError
from eagle3lab.text import printable
from eagle3lab.vocabulary.readings import Ids


@dataclass(frozen=True, slots=True)
class CoverageReport:
    """Coverage of one text by one draft vocabulary.

    Attributes:
        tokens: Tokens of the text.
        distinct: Distinct tokens of the text.
        covered: Tokens of the text that are in the draft vocabulary.
        draft_vocab_size: Distinct tokens of the draft vocabulary.
        steps: Draft tokens proposed in one verify step (a chain).
        verify_steps: Verify steps of the ceiling; the last one is left out if the text ends inside it.
        accept_length_ceiling: Tokens per verify step, bonus included, if every covered token were accepted;
            None for a text shorter than one step.
        accept_length_if_independent: 1 + c + … + c^steps with c = coverage.
        is_covered: bool [tokens].
        by_rank: float [draft_vocab_size]: share of the text covered by the k + 1 kept tokens most frequent in
            it.
        best_by_rank: float [draft_vocab_size]: the same for the most frequent tokens of this text, the best
            choice of that size; ends at 1 early if the text has fewer distinct tokens.
        uncovered_ids: int64, distinct uncovered tokens, most frequent first (ties by id).
        uncovered_counts: int64, how often each occurs.
    """

    tokens: int
    distinct: int
    covered: int
    draft_vocab_size: int
    steps: int
    verify_steps: int
    accept_length_ceiling: float | None
    accept_length_if_independent: float
    is_covered: NDArray[np.bool_] = field(repr=False, compare=False)
    by_rank: NDArray[np.float64] = field(repr=False, compare=False)
    best_by_rank: NDArray[np.float64] = field(repr=False, compare=False)
    uncovered_ids: Ids = field(repr=False, compare=False)
    uncovered_counts: Ids = field(repr=False, compare=False)

    @property
    def coverage(self) -> float:
        """Share of the text's tokens in the draft vocabulary, 0–1."""
        return self.covered / self.tokens

    @property
    def best_coverage(self) -> float:
        """The share that the best draft vocabulary of this size for this text would cover."""
        return float(self.best_by_rank[-1]) if self.best_by_rank.size else 0.0


def measure_coverage(token_ids: NDArray[Any], hot_token_id: NDArray[Any], steps: int = 3) -> CoverageReport:
    """Measure which tokens of a text are in the draft vocabulary.

    Args:
        token_ids: int [N], the text in the target's tokens, N ≥ 1.
        hot_token_id: int [D], the target id of each draft token; repeats count once.
        steps: Draft tokens proposed in one verify step, ≥ 1.

    Raises:
        ValueError: The text is empty or `steps` is not positive.
    """
    text = np.asarray(token_ids, dtype=np.int64).reshape(-1)
    kept = np.unique(np.asarray(hot_token_id, dtype=np.int64))
    if not text.size:
        raise ValueError("the text has no tokens")
    if steps < 1:
        raise ValueError("steps must be at least 1")
    ids, counts = np.unique(text, return_counts=True)
    kept_here = np.isin(ids, kept, assume_unique=True)
    is_covered = np.isin(text, kept)
    covered = int(is_covered.sum())
    produced, verify_steps = _walk(is_covered, steps)
    share = covered / text.size
    uncovered_ids, uncovered_counts = _by_frequency(ids[~kept_here], counts[~kept_here])
    return CoverageReport(
        tokens=int(text.size),
        distinct=int(ids.size),
        covered=covered,
        draft_vocab_size=int(kept.size),
        steps=steps,
        verify_steps=verify_steps,
        accept_length_ceiling=produced / verify_steps if verify_steps else None,
        accept_length_if_independent=float(np.sum(share ** np.arange(steps + 1))),
        is_covered=is_covered,
        by_rank=_cumulative(counts[kept_here], kept.size, text.size),
        best_by_rank=_cumulative(counts, kept.size, text.size),
        uncovered_ids=uncovered_ids,
        uncovered_counts=uncovered_counts,
    )


def _walk(is_covered: NDArray[np.bool_], steps: int) -> tuple[int, int]:
    """Tokens produced and verify steps, from the first token to where the text no longer fills a step."""
    uncovered = np.flatnonzero(~is_covered)
    n = is_covered.size
    # next_uncovered[t]: the first uncovered position after t, or n.
    after = np.searchsorted(uncovered, np.arange(n), side="right")
    next_uncovered = np.append(uncovered, n)[after]
    ends: list[int] = np.minimum(np.arange(n) + steps + 1, next_uncovered).tolist()
    at = verify_steps = 0
    while (end := ends[at]) < n:
        at = end
        verify_steps += 1
    return at, verify_steps


def _cumulative(counts: NDArray[np.int64], size: int, tokens: int) -> NDArray[np.float64]:
    """Share of `tokens` covered by the first 1 … `size` entries, most frequent first."""
    ranked = np.zeros(size, dtype=np.int64)
    most_frequent = np.sort(counts)[::-1][:size]
    ranked[: most_frequent.size] = most_frequent
    return np.cumsum(ranked) / tokens


def _by_frequency(ids: Ids, counts: Ids) -> tuple[Ids, Ids]:
    order = np.lexsort((ids, -counts))
    return ids[order], counts[order]


TOKENIZER_FILE = "tokenizer.json"


class TargetTokenizer:
    """The target's own tokenizer.

    Args:
        folder: The target's folder, with a tokenizer.json.

    Raises:
        InputError: There is no tokenizer.json, it cannot be read, or the tokenizers package is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / TOKENIZER_FILE
        if not self.path.is_file():
            raise InputError(
                f"has no {TOKENIZER_FILE}",
                path=folder,
                advice="Save the fast tokenizer there: AutoTokenizer.from_pretrained(…).save_pretrained(…).",
            )
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise InputError(
                "cannot be used without the tokenizers package",
                path=self.path,
                advice="Install it with: pip install 'eagle3lab[book]'.",
            ) from None
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(self.path))
        except BaseException as error:  # a panic of the Rust parser is no Exception
            raise _unless_asked_to_stop(error, "is not a tokenizer", self.path) from None

    def encode(self, text: str) -> Ids:
        """int64 [N]: the tokens of `text`, without the special tokens a template would add.

        Raises:
            InputError: The tokenizer fails on the text.
        """
        try:
            ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        except BaseException as error:
            raise _unless_asked_to_stop(error, "fails on the text", self.path) from None
        return np.array(ids, dtype=np.int64)

    def show(self, token_id: int) -> str | None:
        """The text of one token, safe to print (control characters escaped), or None for an unknown id."""
        if not 0 <= token_id < 2**32:
            return None
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return None
        text = self._tokenizer.decode([token_id], skip_special_tokens=False)
        # A token that is part of a character decodes to U+FFFD; its vocabulary entry tells more.
        return printable(token if not text or "\ufffd" in text else text, limit=60)


def _unless_asked_to_stop(error: BaseException, problem: str, path: Path) -> BaseException:
    """`error` itself if it is an interrupt or an exit, else an InputError about the tokenizer."""
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)):
        return error
    return InputError(f"{problem}: {printable(str(error), limit=200)}", path=path)


def read_text(path: Path) -> str:
    """The UTF-8 text in `path`.

    Raises:
        InputError: It cannot be read, is not UTF-8, or is blank.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path=path) from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            f"is not UTF-8 at byte {error.start}",
            path=path,
            line=line,
            advice="Give plain text, saved as UTF-8.",
        ) from None
    if not text.strip():
        raise InputError("is blank", path=path, advice="Give text like that which the server is to write.")
    return text
