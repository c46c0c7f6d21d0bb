"""What goes with the reading of any source tree: how it is begun, and which files were not read."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eagle3lab.engines.extract.model import Unknown
from eagle3lab.engines.extract.syntax import Syntax
from eagle3lab.errors import InputError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around the reading of a source tree.

    A syntax tree is millions of small objects, and looking for garbage among them takes most of the time.

    Raises:
        InputError: Its code is nested too deeply.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    except RecursionError:
        raise InputError("holds code that is nested too deeply to be read", path=path) from None
    finally:
        if was_on:
            gc.enable()


def unread_files(syntax: Syntax) -> list[Unknown]:
    """The files that could not be read or parsed."""
    reasons = {**syntax.tree.skipped, **syntax.broken}
    return [Unknown("files", reason, file) for file, reason in sorted(reasons.items())]
