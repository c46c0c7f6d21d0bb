"""A run folder as the inputs of a diagnosis: whatever was not given besides is taken from it."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

Place = str | PathLike[str]


@dataclass(frozen=True, slots=True)
class RunInputs:
    """What a run folder has for a diagnosis; None for what it has not.

    Attributes:
        drafter: The drafter that was served, if it is still where it was.
        target: The target, likewise.
        engine: `sglang==0.5.9`.
        launch: The script with the command.
        log: The server's log.
        events: The folder of the probe's events.
    """

    drafter: Place | None
    target: Place | None
    engine: str | None
    launch: str | None
    log: Place | None
    events: Place | None


def inputs_of(path: Place) -> RunInputs:
    """The inputs in the run folder at `path`.

    Raises:
        InputError: It is none.
    """
    from eagle3lab.runs.folder import RunFolder

    run = RunFolder.open(Path(path))
    plan, release = run.plan(), run.release
    events = run.events_dir
    return RunInputs(
        drafter=_there(plan.get("drafter")),
        target=_there(plan.get("model")),
        engine=f"sglang=={release}" if release else None,
        launch=str(run.command) if run.command.is_file() else None,
        log=run.log if run.log.is_file() else None,
        events=events if events.is_dir() and any(events.iterdir()) else None,
    )


def _there(value: object) -> Path | None:
    return Path(value) if isinstance(value, str) and value and Path(value).is_dir() else None
