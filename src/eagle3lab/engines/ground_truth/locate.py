"""Where the files of an engine release are on this machine."""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from eagle3lab.engines.facts import EngineFacts
from eagle3lab.errors import InputError

ENGINES_VARIABLE = "EAGLE3LAB_ENGINES"


@dataclass(frozen=True, slots=True)
class Installation:
    """A release that can be imported.

    Attributes:
        release: The version.
        folder: What must come first on PYTHONPATH for it; None where the environment has it anyway.
    """

    release: str
    folder: Path | None


def find_installation(engine: EngineFacts) -> Installation:
    """The release of `engine`: the installed one if its version matches, else a folder `sglang-0.5.9` with it.

    Folders are looked for in $EAGLE3LAB_ENGINES and in `.engines` of the working directory, of the project that
    this package is part of, and of the folders above either.

    Raises:
        InputError: It is nowhere.
    """
    try:
        if version(engine.kind) == engine.release:
            return Installation(engine.release, None)
    except PackageNotFoundError:
        pass
    for root in _roots():
        folder = root / f"{engine.kind}-{engine.release}"
        if (folder / engine.kind / "__init__.py").is_file():
            return Installation(engine.release, folder.resolve())
    raise InputError(
        f"{engine.spec} itself is not on this machine, so its own loader cannot be run",
        advice=f"Run `make setup` in the project, or set {ENGINES_VARIABLE} to the folder that holds it.",
    )


def _roots() -> list[Path]:
    stated = os.environ.get(ENGINES_VARIABLE)
    here = (Path.cwd(), Path(__file__).resolve().parent)
    above = [folder / ".engines" for start in here for folder in (start, *start.parents)]
    return [*([Path(stated)] if stated else []), *above]
