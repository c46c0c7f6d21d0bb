"""What other releases would do: the first that knows something, and how vLLM's drafters are named."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagle3lab.engines.extract.model import ReleaseFacts
    from eagle3lab.engines.extract.vllm import VllmFacts
    from eagle3lab.engines.facts import Special


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


def eagle3_architectures(facts: VllmFacts) -> tuple[str, ...]:
    """The names in `architectures` that lead to an EAGLE-3 class, those of the usual class first.

    vLLM puts "Eagle3" in front of a name that neither begins nor ends so: bare names of base models are among them.
    """
    classes = [one.drafter for one in facts.classes()] or ([facts.drafter] if facts.drafter else [])
    names = (name for one in classes for name in one.architectures)
    return tuple(dict.fromkeys((*names, *facts.undescribed)))


def skipped(facts: VllmFacts, name: str) -> Special | None:
    """The rule by which the release leaves a tensor of this name aside; None if it does not."""
    special = facts.names.special if facts.names else ()
    return next((one for one in special if one.effect == "skipped" and one.matches(name)), None)
