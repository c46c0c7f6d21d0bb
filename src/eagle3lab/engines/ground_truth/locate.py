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
        python: The interpreter of the environment of its own that it is in; None for this one.
    """

    release: str
    folder: Path | None
    python: Path | None = None


def find_installation(engine: EngineFacts) -> Installation:
    """The release of `engine`: the installed one if its version matches, else a folder `sglang-0.5.9` with it.

    vLLM is looked for in an environment of its own, `vllm-0.32.0`. Folders are looked for in $EAGLE3LAB_ENGINES and in
    `.engines` of the project that this package runs from, and nowhere else: what is found there is run. Facts that were
    read from a source tree lead to that tree.

    Raises:
        InputError: It is nowhere, or the tree cannot be run as it stands.
    """
    if engine.root is not None:
        return _tree(engine, Path(engine.root))
    try:
        if version(engine.kind) == engine.release:
            return Installation(engine.release, None)
    except PackageNotFoundError:
        pass
    for root in _roots():
        folder = root / f"{engine.kind}-{engine.release}"
        python = folder / "bin" / "python"
        if engine.kind == "vllm" and python.is_file() and (folder / ".setup-done").is_file():
            return Installation(engine.release, None, python)
        if (folder / engine.kind / "__init__.py").is_file():
            return Installation(engine.release, folder.resolve())
    command = "engines" if engine.kind == "vllm" else "setup"
    raise InputError(
        f"{engine.spec} itself is not on this machine, so its own loader cannot be run",
        advice=f"Run `make {command}` in the project, or set {ENGINES_VARIABLE} to the folder that holds it.",
    )


def _tree(engine: EngineFacts, path: Path) -> Installation:
    """The package in a source tree, to be imported from there."""
    package = next(
        (
            srt.parent
            for srt in (path.resolve() / place for place in ("", "srt", "sglang/srt", "python/sglang/srt"))
            if srt.name == "srt" and srt.parent.name == engine.kind and (srt.parent / "__init__.py").is_file()
        ),
        None,
    )
    if package is None:
        what = (
            "is a wheel, which cannot be run as it stands" if path.is_file() else "holds no package to import"
        )
        raise InputError(
            f"{what}, so its own loader cannot be run",
            path=path,
            advice="Unpack the wheel and name that folder, or name the release."
            if path.is_file()
            else f"Name a folder with the whole {engine.kind} package in it, or the release.",
        )
    return Installation(engine.release, package.parent)


def _roots() -> list[Path]:
    stated = os.environ.get(ENGINES_VARIABLE)
    sources, project = Path(__file__).resolve().parents[3:5]
    ours = sources.name == "src" and (project / "pyproject.toml").is_file()  # a checkout, no installed copy
    return [*([Path(stated)] if stated else []), *([project / ".engines"] if ours else [])]
