"""From what a user types to the facts of a release: the atlas, the installed package, or a source tree."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from eagle3lab.engines.atlas.data import KINDS, nearest_older, release_facts, releases
from eagle3lab.engines.extract import ReleaseFacts, extract
from eagle3lab.engines.facts import sources
from eagle3lab.engines.spec import INSTALLED
from eagle3lab.errors import InputError
from eagle3lab.text import printable

if TYPE_CHECKING:
    from importlib import metadata

KIND = "sglang"
VLLM = "vllm"


@dataclass(frozen=True, slots=True)
class Resolved:
    """The facts that a request comes to.

    Attributes:
        label: What they are about: `sglang==0.5.9`, or a path.
        facts: The facts.
        notes: What a reader should know: another release stands in, an installed package was changed.
        root: The source tree or wheel that was named; None for a release.
    """

    label: str
    facts: ReleaseFacts
    notes: tuple[str, ...] = ()
    root: str | None = None


def resolve_release(spec: str) -> Resolved:
    """The facts of the release or source tree that `spec` names.

    Args:
        spec: `sglang==X.Y.Z`, `vllm==X.Y.Z`, `installed`, or the path of a source tree or wheel of either.

    Raises:
        InputError: It is none of them, there is nothing there, or the release is older than the atlas.
    """
    text = spec.strip()
    if text == INSTALLED:
        return _installed()
    if "==" in text:
        kind, _, release = (part.strip() for part in text.partition("=="))
        if kind and release:
            return _release(kind.lower(), release)
    elif text and (os.sep in text or os.path.lexists(text)):
        path = Path(text)
        note = f"facts read from the source at {printable(str(path))}"
        return Resolved(str(path), extract(path), (note,), str(path))
    raise InputError(
        f"'{spec}' does not name an engine release",
        advice=f"Write {INSTALLED}, sglang==X.Y.Z (from {releases()[0]} on), vllm==X.Y.Z (from {releases(VLLM)[0]} "
        "on), or the path of a source tree.",
    )


def _release(kind: str, release: str) -> Resolved:
    if kind in KINDS and release in releases(kind):
        return Resolved(f"{kind}=={release}", release_facts(release, kind))
    older = nearest_older(release, kind) if kind in KINDS else None
    if older is None:
        raise InputError(
            f"no facts about {printable(kind)}=={printable(release)}",
            advice=f"Known releases: {_known()}; or name the path of a source tree.",
        )
    note = (
        f"there are no facts about {kind}=={release}: those of {kind}=={older}, the nearest older release, stand in "
        "for it. Name the path of its source tree for its own."
    )
    return Resolved(f"{kind}=={older}", release_facts(older, kind), (note,))


def _known() -> str:
    return ", ".join(f"{kind}=={releases(kind)[0]} to {kind}=={releases(kind)[-1]}" for kind in KINDS)


def _installed() -> Resolved:
    """The installed package: from the atlas where its files are the release's own, read from its source where not."""
    from importlib import metadata  # 15 ms that a named release does not need

    try:
        package = metadata.distribution(KIND)
    except metadata.PackageNotFoundError:
        raise InputError(
            "no engine is installed in this environment",
            advice=f"Name a release instead: {_known()}; or the path of a source tree.",
        ) from None
    release = package.version
    root = Path(str(package.locate_file("sglang"))) / "srt"
    if release not in releases():
        if not root.is_dir():  # an editable installation: the package lies elsewhere
            return _release(KIND, release)
        note = f"the atlas does not have sglang=={release}: its facts are read from the installed source"
        return Resolved(f"sglang=={release}", extract(root), (note,))
    facts = release_facts(release)
    changed = _changed(package, facts)
    if not changed:
        return Resolved(f"sglang=={release}", facts)
    note = f"the installed sglang=={release} was changed ({', '.join(changed)}): its facts are read from its source"
    return Resolved(f"sglang=={release}", extract(root), (note,))


def _changed(package: metadata.Distribution, facts: ReleaseFacts) -> list[str]:
    """Files that facts were read from and that are not as they were installed, by the package's own record."""
    import base64
    import hashlib

    wanted = {f"sglang/srt/{source.file}" for source in sources(facts) if ".." not in source.file}
    changed = []
    for file in package.files or ():
        name = file.as_posix()
        if name not in wanted or file.hash is None or file.hash.mode != "sha256":
            continue
        try:
            digest = hashlib.sha256(Path(str(package.locate_file(file))).read_bytes()).digest()
        except OSError:
            changed.append(name)
            continue
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            changed.append(name)
    return changed
