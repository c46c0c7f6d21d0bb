"""A tiny Kimi-K2.5: the case study's own target classes, with drafters whose accept length theory knows.

`kimi_dir()` gives its folder, made on demand in a second or two. A server that loads it needs
`--trust-remote-code`, for the processor module in the target's folder: `SERVE_WITH`. Nothing else runs from there.
SGLang 0.5.9 also needs `delegation.KIMI_DELEGATION`.
"""

from lab.kimi.model import expected, kimi_dir, write_kimi

__all__ = ["SERVE_WITH", "expected", "kimi_dir", "write_kimi"]

SERVE_WITH = ("--trust-remote-code",)
"""Further words of a command that serves this folder (a plan's `extra`): only ever with a folder made here."""
