"""What the probe is asked to do, carried to a server's processes in its environment."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self, get_args

from eagle3lab.text import printable

GuardMode = Literal["off", "warn", "refuse"]
"""Whether the guard judges what the probe saw, and whether it stops the server."""

EVENTS, GUARD = "EAGLE3LAB_EVENTS", "EAGLE3LAB_GUARD"
FULL_STEPS, TENSORS = "EAGLE3LAB_FULL_STEPS", "EAGLE3LAB_TENSORS"

_OFF = ("", "off", "0", "no", "false")


@dataclass(frozen=True, slots=True)
class Settings:
    """What is asked for.

    Attributes:
        events: Folder for the event files, None for none.
        guard: See `GuardMode`.
        full_steps: Passes of the drafter, and verify steps, that are reported one by one; later ones are counted.
        tensors: Passes of which the tensors are kept.
    """

    events: Path | None = None
    guard: GuardMode = "off"
    full_steps: int = 100
    tensors: int = 0

    @property
    def active(self) -> bool:
        """Whether anything is to be done at all."""
        return self.events is not None or self.guard != "off"

    def environment(self) -> dict[str, str]:
        """The variables that `from_environment` reads back."""
        events = {} if self.events is None else {EVENTS: str(self.events)}
        return events | {
            GUARD: self.guard,
            FULL_STEPS: str(self.full_steps),
            TENSORS: str(self.tensors),
        }

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Self:
        """What the variables say; one that says nothing sensible is reported on stderr and read as the default."""
        folder = environment.get(EVENTS, "")
        return cls(
            Path(folder) if folder else None,
            _guard(environment.get(GUARD, "")),
            _number(environment, FULL_STEPS, 100),
            _number(environment, TENSORS, 0),
        )


def _guard(value: str) -> GuardMode:
    word = value.strip().lower()
    for mode in get_args(GuardMode):
        if word == mode:
            return mode  # type: ignore[no-any-return]
    if word in _OFF:
        return "off"
    print(f"eagle3lab: {GUARD} is {printable(value)!r}, read as 'warn'; say warn or refuse", file=sys.stderr)
    return "warn"


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    value = environment.get(name, "")
    if value.isascii() and value.isdigit():
        return int(value)
    if value:
        print(f"eagle3lab: {name} is {printable(value)!r}, not a number; {default} is used", file=sys.stderr)
    return default
