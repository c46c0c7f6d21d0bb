"""Instrumentation of an unmodified SGLang: typed events about a drafter, from its loading to what is accepted.

The probe enters a server's processes as Python starts (`sitecustomize`) or through SGLang's own plugin loader (0.5.11
and later); both may happen in one process, and the second finds the first. It hooks four functions and the model
instances that it finds there (`session`), and appends events to one file a rank (`eagle3lab.runs.events`). This module
is imported in every process, so it imports nothing else before there is something to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, get_args

from eagle3lab.serving.overlay import Overlay

if TYPE_CHECKING:
    from eagle3lab.serving.probe.session import Probe

GuardMode = Literal["off", "warn", "refuse"]
"""Whether the guard judges what the probe saw, and whether it stops the server."""

EVENTS, GUARD = "EAGLE3LAB_EVENTS", "EAGLE3LAB_GUARD"
FULL_STEPS, TENSORS = "EAGLE3LAB_FULL_STEPS", "EAGLE3LAB_TENSORS"

_OFF = ("", "off", "0", "no", "false")
_probe: Probe | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """What the probe is asked for, carried to a server's processes in its environment.

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
    print(f"eagle3lab: {GUARD} is {value!a}, read as 'warn'; say warn or refuse", file=sys.stderr)
    return "warn"


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    value = environment.get(name, "")
    if value.isascii() and value.isdigit():
        return int(value)
    if value:
        print(f"eagle3lab: {name} is {value!a}, not a number; {default} is used", file=sys.stderr)
    return default


def probe_overlay(
    *, events: Path | None, full_steps: int = 100, tensors: int = 0, guard: GuardMode = "off"
) -> Overlay:
    """What to put into a server so that it is watched.

    Args:
        events: Folder for the events, one file a rank; None for none, where only the guard is wanted.
        full_steps: Passes of the drafter and verify steps that are reported one by one before only counting.
        tensors: Passes of the drafter whose tensors are saved beside the events.
        guard: Whether it judges what it saw, and whether it stops the server.
    """
    folder = None if events is None else events.absolute()
    return Overlay(
        startup=(f"{__name__}:attach",),
        environment=Settings(folder, guard, full_steps, tensors).environment(),
    )


def guard_environment(mode: GuardMode, environment: Mapping[str, str]) -> dict[str, str]:
    """What to set, and add to, so that every Python process started from there is guarded, whatever the release."""
    folder = str(Path(__file__).parents[1] / "guard" / "path")
    outer = environment.get("PYTHONPATH", "")
    return {GUARD: mode, "PYTHONPATH": os.pathsep.join([folder, *([outer] if outer else [])])}


def attach() -> None:
    """Attach the probe to this process if the environment asks for it and it is not attached yet."""
    global _probe
    if _probe is not None:
        return
    try:
        settings = Settings.from_environment(os.environ)
        if not settings.active:
            return
        from eagle3lab.serving.probe.session import Probe

        _probe = Probe(settings)
        _probe.install()
    except Exception as error:  # an environment that lacks something: the server goes on without us
        print(f"eagle3lab probe: not attached ({type(error).__name__}: {error})", file=sys.stderr, flush=True)
