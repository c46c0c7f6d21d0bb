"""Where the specimen lies: the `specimen/` folder of a checkout of this project."""

from __future__ import annotations

import os
from pathlib import Path

from eagle3lab.errors import InputError

#: Names the folder when the package is installed away from its checkout.
VARIABLE = "EAGLE3LAB_SPECIMEN"


def checkout_folder() -> Path:
    """`specimen/` beside the source tree that this package runs from, whether or not it is there."""
    return Path(__file__).resolve().parents[2] / "specimen"


def specimen_dir() -> Path:
    """The specimen's folder: `$EAGLE3LAB_SPECIMEN`, or `specimen/` of the checkout, or of the current folder.

    Raises:
        InputError: None of them holds a specimen. The weights are part of the repository, not of the wheel.
    """
    named = os.environ.get(VARIABLE)
    places = [Path(named)] if named else [checkout_folder(), Path.cwd() / "specimen"]
    for place in places:
        if (place / "target" / "config.json").is_file():
            return place
    raise InputError(
        "there is no specimen here",
        path=places[0],
        advice=f"Set {VARIABLE} to the specimen/ folder of a checkout, or run `make specimen` in one.",
    )


def target_dir() -> Path:
    """The specimen's trained target: a Hugging Face folder with tokenizer and chat template."""
    return specimen_dir() / "target"


def drafter_dir() -> Path:
    """The specimen's EAGLE-3 head, as speculators saved it."""
    return specimen_dir() / "drafter"


def permutation_dir(name: str = "") -> Path:
    """The permutation target's folder, or one folder in it: `target` or a head's name."""
    return specimen_dir() / "permutation" / name


def prompts_file() -> Path:
    """Held-out prompts, one JSON object a line: `id`, `kind`, `prompt`."""
    return specimen_dir() / "prompts.jsonl"
