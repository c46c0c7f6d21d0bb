"""Text from untrusted files made safe to show."""

from __future__ import annotations

import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def printable(text: str, limit: int = 400) -> str:
    """`text` with control characters, terminal escapes and invisible characters written as escapes.

    Tensor names, paths and config values come from files that nobody vouches for: a name may hold a terminal
    escape, a right-to-left override or a newline. Longer than `limit` characters it is cut in the middle.
    """
    if len(text) > limit:
        half = limit // 2
        text = f"{text[:half]}…{text[-half:]}"
    if text.isascii() and text.isprintable():
        return text
    return "".join(_visible(char) for char in text)


def _visible(char: str) -> str:
    if 0xD800 <= ord(char) <= 0xDFFF:  # a lone surrogate cannot be encoded at all
        return f"\\u{ord(char):04x}"
    if unicodedata.category(char) in _HIDDEN:
        return char.encode("unicode_escape").decode("ascii")
    return char
