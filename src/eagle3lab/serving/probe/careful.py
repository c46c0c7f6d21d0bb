"""The probe's parts run here, so that a failure in one of them never reaches the server."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from eagle3lab.text import printable

_P = ParamSpec("_P")
_R = TypeVar("_R")


class Refused(Exception):
    """The guard stops the server: the one exception of ours that is meant to reach it.

    An ordinary `Exception`: SGLang ends the whole server when a scheduler fails with one, and only then.
    """


class Careful:
    """Runs functions; one that fails is reported once and never run again.

    Args:
        report: Told where and what; may fail itself.
    """

    def __init__(self, report: Callable[[str, str], None]) -> None:
        self._report = report
        self._quiet: set[str] = set()

    def run(self, where: str, function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R | None:
        """What the function returns; None once the part `where` has failed."""
        if where in self._quiet:
            return None
        try:
            return function(*args, **kwargs)
        except Refused:
            raise
        except Exception as error:
            self._quiet.add(where)
            problem = printable(f"{type(error).__name__}: {error}")
            with contextlib.suppress(Exception):  # stderr or the disk may be full
                print(
                    f"eagle3lab probe: {where} goes quiet, the server goes on ({problem})",
                    file=sys.stderr,
                    flush=True,
                )
                self._report(where, problem)
            return None
