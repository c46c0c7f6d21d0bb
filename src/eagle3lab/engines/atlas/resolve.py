"""From what a user types to the facts of a release: the atlas, the installed package, or a source tree."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import os
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

from eagle3lab.engines.atlas.data import release_facts
from eagle3lab.engines.extract import ReleaseFacts, extract
from eagle3lab.engines.facts import EngineFacts, sources
from eagle3lab.engines.release import (
    INSTALLED,
    SIMULATED,
    Release,
    is_known,
    nearest_known,
    newest_release,
    parse_release,
    releases,
)
from eagle3lab.errors import InputError
from eagle3lab.text import printable

_INSTALLABLE = ("sglang",)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The facts that a request comes to.

    Attributes:
        label: What they are about: `sglang==0.5.9`, or a path.
        release: What was asked for; without a number where a source tree names none.
        facts: The facts.
        notes: What a reader should know: another release stands in, an installed package was changed.
        root: The source tree or wheel that was named; None for a release.
    """

    label: str
    release: Release
    facts: ReleaseFacts
    notes: tuple[str, ...] = ()
    root: str | None = None


def known_engines(kind: str = "sglang") -> tuple[str, ...]:
    """Every release of a simulated engine there are facts for, as `kind==release`, oldest first."""
    return tuple(f"{kind}=={number}" for number in releases(kind))


def is_path(spec: str) -> bool:
    """Whether what a user typed as an engine is the path of a source tree or wheel."""
    text = spec.strip()
    return text != INSTALLED and "==" not in text and bool(text) and (os.sep in text or os.path.lexists(text))


def resolve_release(spec: str) -> Resolved:
    """The facts of the release or source tree that `spec` names.

    Args:
        spec: `sglang==X.Y.Z`, `vllm==X.Y.Z`, `installed`, or the path of a source tree or wheel of either. For a
            release that is not in the atlas the nearest older one stands in, and the notes say so.

    Raises:
        InputError: It is none of them, there is nothing there, or the release is older than the atlas.
    """
    text = spec.strip()
    if text == INSTALLED:
        return _installed()
    if is_path(text):
        path = Path(text)
        facts = extract(path)
        note = f"facts read from the source at {printable(str(path))}"
        return Resolved(
            str(path), Release(facts.kind, facts.release or ""), facts, (note, *facts.run_notes()), str(path)
        )
    if text.partition("==")[2].strip() and text.partition("==")[0].strip():
        return _named(parse_release(text))
    raise InputError(
        f"'{printable(spec)}' does not name an engine release",
        advice=f"Write {INSTALLED}, sglang==X.Y.Z (from {releases()[0]} on), vllm==X.Y.Z (from "
        f"{releases('vllm')[0]} on), or the path of a source tree.",
    )


def resolve_engine(spec: str) -> EngineFacts:
    """The facts that a load is simulated from, of the release that `spec` names; see `resolve_release`.

    Raises:
        InputError: As `resolve_release`, or the source does not show what is needed.
    """
    resolved = resolve_release(spec)
    return replace(resolved.facts.engine_facts(resolved.label), notes=resolved.notes, root=resolved.root)


def _named(release: Release) -> Resolved:
    known = nearest_known(release)
    if known is None:
        what = f"no facts about {printable(str(release))}"
        if not release.simulated:
            what = f"{printable(release.kind)} is not simulated"
        raise InputError(what, advice=f"Known releases: {_known()}; or name the path of a source tree.")
    facts = release_facts(known.number, known.kind)
    if is_known(release):
        return Resolved(str(known), release, facts)
    note = (
        f"there are no facts about {release}: those of {known}, the nearest older release, stand in for it. "
        "Name the path of its source tree for its own."
    )
    return Resolved(str(known), release, facts, (note,))


def _known() -> str:
    return ", ".join(f"{kind}=={releases(kind)[0]} to {newest_release(kind)}" for kind in SIMULATED)


# ---- what is installed ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """An engine in this environment.

    Attributes:
        release: As its package calls it; a source installation may call itself 0.0.0.dev1.
        root: The folder of its package, with `srt` in it; None where it is not found.
        own: Whether that is not a release's own installation: editable, or only on the module path.
        package: What importlib.metadata knows; None for sources on the module path.
    """

    release: Release
    root: Path | None
    own: bool
    package: metadata.Distribution | None


def installed_engine() -> InstalledEngine:
    """The engine of this environment, with the place of its sources; nothing of it is imported.

    Raises:
        InputError: None is installed.
    """
    for kind in _INSTALLABLE:
        try:
            package = metadata.distribution(kind)
        except metadata.PackageNotFoundError:
            if root := _on_module_path(kind):
                return InstalledEngine(Release(kind), root, True, None)
            continue
        editable = _editable(package)
        places = [editable / part for part in ("python", "", "src")] if editable else []
        found = (place / kind for place in places)
        own = next((root for root in found if (root / "srt").is_dir()), None)
        beside = Path(str(package.locate_file(kind)))
        root = own or (beside if (beside / "srt").is_dir() else None)
        elsewhere = _on_module_path(kind) if root is None else None
        return InstalledEngine(
            Release(kind, package.version),
            root or elsewhere,
            own is not None or elsewhere is not None,
            package,
        )
    raise InputError(
        "no engine is installed in this environment",
        advice=f"Name a release instead: {_known()}; or the path of a source tree.",
    )


def _editable(package: metadata.Distribution) -> Path | None:
    """The folder of an editable installation, from its direct_url.json (PEP 610)."""
    try:
        stated = json.loads(package.read_text("direct_url.json") or "{}")
        url = urlsplit(stated.get("url", ""))
        editable = stated.get("dir_info", {}).get("editable") is True
    except (AttributeError, OSError, ValueError):
        return None
    return Path(unquote(url.path)) if editable and url.scheme == "file" else None


def _on_module_path(kind: str) -> Path | None:
    try:
        spec = importlib.util.find_spec(kind)
    except (ImportError, ValueError):
        return None
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    return next((place for place in places if (place / "srt").is_dir()), None)


def _installed() -> Resolved:
    """The installed package: from the atlas where its files are the release's own, read from its source where not."""
    engine = installed_engine()
    release = engine.release
    if engine.root is None:
        return _named(release)
    root = engine.root / "srt"
    if engine.own or not is_known(release):
        facts = extract(root)
        said = Release(release.kind, facts.release or release.number)
        why = (
            f"{release} is installed from a source tree"
            if engine.own
            else f"the atlas does not have {release}"
        )
        note = f"{why}: its facts are read from the installed source at {printable(str(engine.root))}"
        return Resolved(str(said), said, facts, (note, *facts.run_notes()))
    named = _named(release)
    changed = _changed(engine.package, named.facts) if engine.package is not None else []
    if not changed:
        return named
    note = f"the installed {release} was changed ({', '.join(changed)}): its facts are read from its source"
    facts = extract(root)
    return Resolved(str(release), release, facts, (note, *facts.run_notes()))


def _changed(package: metadata.Distribution, facts: ReleaseFacts) -> list[str]:
    """Files that facts were read from and that are not as they were installed, by the package's own record."""
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
