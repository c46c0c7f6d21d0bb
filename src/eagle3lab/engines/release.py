"""A release of an engine: parsed once, ordered as packages are, and what the store of release facts holds of it.

The store is `releases.toml` beside this module, for what is written by hand, and the atlas, for what a program reads
from the releases' own sources (`eagle3lab.engines.atlas`). No other code tells releases apart.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from eagle3lab.errors import InputError
from eagle3lab.text import printable

SIMULATED = ("sglang", "vllm")
INSTALLED = "installed"
_NAME = re.compile(r"[a-z][a-z0-9._-]{1,39}")
_LONGEST = 64


@cache
def version_of(number: str) -> Version | None:
    """A release number as something that sorts; None if it is none, or 0.0.0, which a source tree calls itself."""
    version = _parsed(number)
    return version if version is not None and any(version.release) else None


def _parsed(number: str) -> Version | None:
    try:
        return Version(number) if len(number) <= _LONGEST else None
    except InvalidVersion:
        return None


@dataclass(frozen=True, slots=True)
class Release:
    """An engine and its release.

    Attributes:
        kind: The engine: "sglang", "vllm", or another in lower case, such as "tensorrt-llm".
        number: The release as it was given, "0.5.5.post3"; empty where only the engine is known.
    """

    kind: str
    number: str = ""

    def __str__(self) -> str:
        return f"{self.kind}=={self.number}" if self.number else self.kind

    @property
    def name(self) -> str:
        """The engine as it is written in a sentence."""
        return {"sglang": "SGLang", "vllm": "vLLM"}.get(self.kind, self.kind)

    @property
    def version(self) -> Version | None:
        """The number as something that sorts; None where there is none, or it is no version."""
        return version_of(self.number)

    @property
    def simulated(self) -> bool:
        """Whether facts about this engine are known, so that what it does can be simulated."""
        return self.kind in SIMULATED

    def within(self, since: str = "", until: str = "") -> bool:
        """Whether it is `since` or newer, and older than `until`; "" leaves an end open. False if not known."""
        version = self.version
        first, end = version_of(since), version_of(until)
        return version is not None and (first is None or first <= version) and (end is None or version < end)

    # ---- rules written by hand ----------------------------------------------------------------------------------

    def holds(self, rule: str) -> bool:
        """Whether a rule of `releases.toml` holds in this release; False where the release is not known."""
        return any(self.within(row.get("since", ""), row.get("until", "")) for row in self._rows(rule))

    def source(self, rule: str) -> str:
        """Where a rule was read; empty for a rule that is not written down."""
        return str(next((row["source"] for row in self._rows(rule)), ""))

    def since(self, rule: str) -> str:
        """The first release in which a rule holds; empty where it always did."""
        return str(next((row.get("since", "") for row in self._rows(rule)), ""))

    def _rows(self, rule: str) -> list[dict[str, Any]]:
        return [row for row in store().get(self.kind, ()) if row["rule"] == rule]


def parse_release(text: str) -> Release:
    """`sglang==0.5.9`, `vllm==0.19.2rc1.dev8+g1a2b3c`, `vllm`, `tensorrt-llm==1.2` … as a Release.

    An engine that is not simulated is a Release too, whatever its releases look like.

    Raises:
        InputError: It names no engine, or the number of a simulated engine is none.
    """
    name, equals, number = text.strip().partition("==")
    name, number = name.strip().lower(), number.strip().removeprefix("v")
    if not _NAME.fullmatch(name) or not (equals or name in known_names()):
        raise InputError(
            f"'{printable(text[:_LONGEST])}' names no engine",
            advice=f"Known: {', '.join(known_names())}; with a release, sglang==X.Y.Z",
        )
    release = Release(name, number)
    if len(number) > _LONGEST or (number and release.simulated and _parsed(number) is None):
        raise InputError(
            f"'{printable(number[:_LONGEST])}' is not a release number",
            advice=f"Give one like {newest_release().number}",
        )
    return release


@cache
def store() -> dict[str, Any]:
    """`releases.toml`."""
    return tomllib.loads(Path(__file__).with_name("releases.toml").read_text("utf-8"))


def or_later(rule: str, kind: str = "sglang") -> str:
    """The releases in which a rule holds, as an advice names them: "SGLang X.Y.Z or later"."""
    return f"{Release(kind).name} {Release(kind).since(rule)} or later"


@cache
def known_names() -> tuple[str, ...]:
    """The engines that are known by name, the simulated ones first."""
    return (*SIMULATED, *(row["engine"] for row in store()["other"]))


@cache
def releases(kind: str = "sglang") -> tuple[str, ...]:
    """The numbers of all releases of a simulated engine that there are facts about, oldest first."""
    from eagle3lab.engines.atlas.data import entries

    return tuple(entry.release for entry in entries(kind))


def newest_release(kind: str = "sglang") -> Release:
    """The newest release of a simulated engine that there are facts about."""
    return Release(kind, releases(kind)[-1])


def nearest_known(release: Release) -> Release | None:
    """The release whose facts hold for this one: itself, or the newest older one. None if there is none."""
    wanted = release.version
    if wanted is None or not release.simulated:
        return None
    known = [one for one in releases(release.kind) if (version_of(one) or wanted) <= wanted]
    return Release(release.kind, known[-1]) if known else None


def is_known(release: Release) -> bool:
    """Whether there are facts about this very release; a local label (`+cu129`) makes no other release of it."""
    known = nearest_known(release)
    return known is not None and release.version is not None and known.number == release.version.public


@dataclass(frozen=True, slots=True)
class CpuProfile:
    """What a release of SGLang needs to serve EAGLE-3 on a CPU.

    Attributes:
        release: The release that it was tried with.
        kernels: "interpreted" for Triton's interpreter, "stand-in" for this package's own kernels.
        backends: As in a launch plan: `{"attention": "triton"}`.
        environment: Variables.
    """

    release: str
    kernels: str
    backends: dict[str, str]
    environment: dict[str, str]


def cpu_profile(number: str) -> CpuProfile:
    """How a release of SGLang serves EAGLE-3 on a CPU.

    Raises:
        InputError: Its CPU path was not tried.
    """
    profiles = {row["release"]: CpuProfile(**row) for row in store()["cpu"]}
    if number not in profiles:
        raise InputError(
            f"the CPU path of SGLang {printable(number)} was not tried",
            advice=f"Use {', '.join(profiles)}, or a GPU.",
        )
    return profiles[number]
