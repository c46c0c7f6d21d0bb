"""The first later release that does something: what a repair by another release comes to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagle3lab.engines.extract.model import ReleaseFacts


def first_release(after: str, holds: Callable[[ReleaseFacts], bool], kind: str = "sglang") -> str | None:
    """The first release after `after` for which `holds`; None where none is, or `after` is no release number."""
    from eagle3lab.engines.atlas.data import release_facts
    from eagle3lab.engines.release import releases, version_of

    here = version_of(after)
    if here is None:
        return None
    later = (one for one in releases(kind) if (version_of(one) or here) > here)
    return next((one for one in later if holds(release_facts(one, kind))), None)


def takes_name(facts: ReleaseFacts, name: str) -> bool:
    """Whether a tensor of this name reaches a parameter in a release."""
    from eagle3lab.engines.loading.names import route

    if facts.names is None or facts.parameters is None:
        return False
    parameters = {one.name.replace("{layer}", "0").replace("{aux}", "0") for one in facts.parameters}
    return route(name, facts.names, parameters).parameter is not None
