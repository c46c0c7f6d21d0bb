"""What the atlas holds of a vLLM release, as far as checks ask, and the load simulated from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3lab.engines.release import Release

if TYPE_CHECKING:
    from eagle3lab.checkpoint import DrafterConfig, TensorInfo
    from eagle3lab.diagnosis.evidence.load import Load
    from eagle3lab.engines.extract.vllm.model import VllmFacts
    from eagle3lab.engines.facts.names import Special


def vllm_facts(engine: Release) -> VllmFacts | None:
    """The facts of a vLLM release, or of the nearest older one; of the newest where no release is named.

    None for a release that is older than all that were read.
    """
    from eagle3lab.engines.atlas.data import release_facts
    from eagle3lab.engines.extract.vllm import VllmFacts
    from eagle3lab.engines.release import nearest_known, newest_release

    known = nearest_known(engine) if engine.number else newest_release(engine.kind)
    facts = release_facts(known.number, known.kind) if known else None
    assert facts is None or isinstance(facts, VllmFacts)
    return facts


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


def load_by_vllm(
    config: DrafterConfig, tensors: tuple[TensorInfo, ...], engine: Release, tp: int, layers: int
) -> tuple[Load | None, str]:
    """The load by the release, or by the one whose facts stand in for it; else None and the reason.

    Args:
        config: The drafter's config.
        tensors: Its tensors in the order they are offered.
        engine: The release, or vLLM alone.
        tp: Tensor-parallel size.
        layers: Decoder layers that the weights hold.
    """
    from eagle3lab.diagnosis.evidence.load import simulated
    from eagle3lab.errors import InputError

    known = vllm_facts(engine)
    if known is None:
        return None, f"{engine} is older than all vLLM releases that were read"
    try:
        facts = known.engine_facts(str(engine))
    except InputError as error:
        return None, error.problem
    return simulated(config, tensors, facts, tp, layers)
