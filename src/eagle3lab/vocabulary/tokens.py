"""Text to the target's tokens and back, through its tokenizer.json."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from eagle3lab.errors import InputError
from eagle3lab.text import printable
from eagle3lab.vocabulary.readings import Ids

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
