"""From what a user types (`sglang==0.5.9`, `installed`, a path) to the facts of that release."""

from __future__ import annotations

from dataclasses import replace

from eagle3lab.engines.facts import EngineFacts
from eagle3lab.errors import InputError

INSTALLED = "installed"
_INSTALLABLE = ("sglang",)


def known_engines(kind: str = "sglang") -> tuple[str, ...]:
    """Every release of a kind of engine, "sglang" or "vllm", there are facts for, as `kind==release`, oldest first."""
    from eagle3lab.engines.atlas.data import releases

    return tuple(f"{kind}=={release}" for release in releases(kind))


def resolve_engine(spec: str) -> EngineFacts:
    """The facts of the engine release that `spec` names.

    Args:
        spec: `KIND==RELEASE`, for example `sglang==0.5.9` or `vllm==0.32.0`; `installed` for the SGLang of this
            environment; or the path of a source tree or wheel of SGLang or vLLM. For a release that is not in the
            atlas the nearest older one stands in, and the facts' notes say so.

    Raises:
        InputError: It is none of these, names a release without facts, nothing is installed, or the source does
            not show what is needed.
    """
    # The atlas is read only when it is asked for something.
    from eagle3lab.engines.atlas.resolve import resolve_release

    resolved = resolve_release(spec)
    return replace(resolved.facts.engine_facts(resolved.label), notes=resolved.notes, root=resolved.root)


def installed_engine() -> tuple[str, str]:
    """Kind and release of the engine installed in this environment.

    Raises:
        InputError: None is.
    """
    from importlib.metadata import PackageNotFoundError, version

    for kind in _INSTALLABLE:
        try:
            return kind, version(kind)
        except PackageNotFoundError:
            continue
    known = known_engines()
    raise InputError(
        "no engine is installed in this environment",
        advice=f"Name a release instead: {known[0]} to {known[-1]}.",
    )
