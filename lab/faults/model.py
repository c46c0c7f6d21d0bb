"""What a fault is: one change to a healthy specimen, described in words, and what it should look like.

An injector gets the healthy head and an empty folder, writes the faulty head (and, for a few, a target) there, and
says what is to be launched. It changes one thing; that it changes something is checked.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3lab.checkpoint import Checkpoint, open_checkpoint
from eagle3lab.engines.extract import ReleaseFacts
from eagle3lab.errors import InputError
from lab.specimen.paths import drafter_dir, target_dir
from lab.specimen.variant import write_flat, write_variant

# What most faults should look like.
DEAD = "accept length 1.0: no draft but those of chance is accepted"
PARTIAL = "fewer drafts are accepted at every position"
LATER = "the first draft is as good as ever, later ones are not"
STOPS = "the engine stops"
NONE = "no effect on acceptance"


@dataclass(frozen=True, slots=True)
class Served:
    """What is served.

    Attributes:
        drafter: The head's folder.
        target: The target's folder.
        launch: Fields of `LaunchPlan` that differ from the profile's: algorithm, steps, topk, draft_tokens, extra.
    """

    drafter: Path
    target: Path
    launch: Mapping[str, Any] = field(default_factory=dict)

    def digest(self) -> str:
        """SHA-256 over every file of head and target and the launch: what a measurement depends on.

        Where the head lies makes no difference, though its launch may name a file of it.
        """
        launch = repr(sorted(self.launch.items())).replace(str(self.drafter), "")
        digest = hashlib.sha256(launch.encode())
        for folder in (self.drafter, self.target):
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    digest.update(f"\n{path.relative_to(folder)}\n".encode())
                    digest.update(path.read_bytes())
        return digest.hexdigest()


Injector = Callable[[Checkpoint, Path], Mapping[str, Any] | None]
"""Gets the healthy head and the empty folder to write the faulty one to; returns what to launch otherwise, if anything.
A folder `target` beside the head's takes the place of the healthy target."""
Applies = Callable[[ReleaseFacts], str | None]
"""None where the release is affected, or why it is not."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault with its injector.

    Attributes:
        name: `slug/variant`, unique.
        change: The exact change, in words.
        expected: What it should look like, in words.
        inject: Makes it.
        applies: Whether a release is affected.
        modelled: Whether the reference computes what it changes.
        training: The head of `lab.faults.train` that it is made from; None for the specimen's own.
    """

    name: str
    change: str
    expected: str
    inject: Injector
    applies: Applies
    modelled: bool = True
    training: str | None = None

    @property
    def slug(self) -> str:
        """The taxonomy's name for it."""
        return self.name.partition("/")[0]


FAULTS: dict[str, Fault] = {}
"""Every fault by its name."""


def always(facts: ReleaseFacts) -> None:
    """Every release is affected."""


def fault(
    name: str,
    change: str,
    expected: str,
    *,
    applies: Applies = always,
    modelled: bool = True,
    training: str | None = None,
) -> Callable[[Injector], Injector]:
    """Enter the decorated injector under `name`."""

    def enter(inject: Injector) -> Injector:
        assert name not in FAULTS, name
        FAULTS[name] = Fault(name, change, expected, inject, applies, modelled, training)
        return inject

    return enter


def variant(
    name: str,
    change: str,
    expected: str,
    *,
    applies: Applies = always,
    modelled: bool = True,
    training: str | None = None,
    **changes: Any,
) -> None:
    """Enter a fault that `write_variant` makes with these `changes`."""

    @fault(name, change, expected, applies=applies, modelled=modelled, training=training)
    def _(head: Checkpoint, out: Path) -> None:
        write_variant(head, out, **changes)


def command(
    name: str, change: str, expected: str, *, applies: Applies = always, modelled: bool = True, **fields: Any
) -> None:
    """Enter a fault of the launch command: these `fields` of `LaunchPlan`."""

    @fault(name, change, expected, applies=applies, modelled=modelled)
    def _(head: Checkpoint, out: Path) -> Mapping[str, Any]:
        return fields


def with_target(out: Path, change: Callable[[Checkpoint, Path], None]) -> None:
    """Put a copy of the target, its model files changed, into the folder beside the head's."""
    folder = out.parent / "target"
    shutil.copytree(target_dir(), folder, ignore=shutil.ignore_patterns("config.json", "model.safetensors"))
    beside = folder.with_name("changed-target")
    change(open_checkpoint(target_dir()), beside)
    for path in beside.iterdir():
        path.rename(folder / path.name)
    beside.rmdir()


def write_healthy(folder: Path, source: Path | None = None) -> Served:
    """The specimen's head (or another of its kind) as every release reads it: a flat config, `midlayer.*` names."""
    head = open_checkpoint(source or drafter_dir())
    if not (folder / "config.json").is_file():
        write_flat(head, folder, rename=lambda name: name.replace("layers.0.", "midlayer."))
    return Served(folder, target_dir())


def inject(one: Fault, healthy: Served, folder: Path) -> Served:
    """Put a fault into a healthy specimen.

    Args:
        one: The fault.
        healthy: From `write_healthy`, from the head that the fault is made from.
        folder: Where the faulty one goes; new or empty.

    Raises:
        InputError: The folder is in use, or the injector changed nothing.
    """
    if folder.exists() and any(folder.iterdir()):
        raise InputError("is not empty", path=folder, advice="Give a new folder for the faulty specimen.")
    drafter, target = folder / "drafter", folder / "target"
    changes = one.inject(open_checkpoint(healthy.drafter), drafter) or {}
    served = Served(
        drafter if drafter.is_dir() else healthy.drafter,
        target if target.is_dir() else healthy.target,
        dict(healthy.launch) | dict(changes),
    )
    if one.training is None and served.digest() == healthy.digest():
        raise InputError(f"the injector {one.name} changed nothing", path=folder)
    return served
