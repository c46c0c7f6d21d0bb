"""The other direction: a copy in the format of the speculators library, which vLLM serves as it is.

The layer is the one that SGLang's drafter class has, so its facts describe what must be there and in which shape;
names are taken strictly, as the format's readers stop at any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from eagle3lab.checkpoint.config import speculators_config
from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.facts import Switch
from eagle3lab.engines.release import newest_release, parse_release, releases
from eagle3lab.errors import InputError
from eagle3lab.repair.model import Change, Refusal
from eagle3lab.repair.tensors import rename

if TYPE_CHECKING:
    from eagle3lab.engines.facts import EngineFacts
    from eagle3lab.repair.copy import WorkingCopy


@dataclass(frozen=True, slots=True)
class Format:
    """The format, for one of its readers.

    Attributes:
        reader: "speculators" or "vllm".
        served_by: The vLLM release that judges the copy.
        facts: What must be in the copy, under which names.
    """

    reader: str
    served_by: str
    facts: EngineFacts

    def convert(self, copy: WorkingCopy) -> tuple[list[Change], list[Refusal]]:
        """Write the nested config and the format's own names, whatever vLLM would take besides."""
        speculators = copy.config.dialect == "speculators"
        config = _state_residual(self, copy) if speculators else _nested(copy)
        if isinstance(config, Refusal):
            return [], [config]
        changes = [one for one in (config, rename(copy, strict=True)) if one is not None]
        whole = copy.config.draft_vocab_size in (None, copy.config.vocab_size)
        if self.reader != "vllm" or not whole or copy.find("d2t") is None:
            return changes, []
        reason = f"{self.served_by} stops at a d2t where the draft vocabulary is the whole one"
        advice = ("Export the head without d2t and t2d.",)
        return changes, [Refusal("vocab.discarded", reason, ("the checkpoint has a d2t",), advice)]


def format_of(spec: str) -> Format | None:
    """The format for `speculators`, `vllm` or `vllm==X.Y.Z`; None for any other engine.

    Raises:
        InputError: Nothing is known of that release.
    """
    reader, _, release = (part.strip().lower() for part in spec.partition("=="))
    if reader not in ("speculators", "vllm"):
        return None
    known = releases("vllm")
    if reader == "speculators" and release:
        raise InputError(f"no facts about {spec}", advice="Write speculators")
    if release and release not in known:
        raise InputError(
            f"no facts about {spec}", advice=f"Write vllm, or a release from {known[0]} to {known[-1]}"
        )
    served = parse_release(f"vllm=={release}") if release else newest_release("vllm")
    newest = resolve_engine(str(newest_release()))
    honoured = Switch("norm_before_residual", newest.drafter.source, (), (), ("norm_before_residual",))
    facts = replace(
        newest,
        kind=reader,
        release=served.number if reader == "vllm" else "",
        drafter=replace(newest.drafter, name="Eagle3DraftModel", architectures=("Eagle3DraftModel",)),
        names=replace(newest.names, renames=()),
        switches=MappingProxyType({**newest.switches, honoured.name: honoured}),
        construction=(),
    )
    return Format(reader, str(served), facts)


def _nested(copy: WorkingCopy) -> Change | Refusal:
    """The nested config, layer ids as inputs of layers at its top level."""
    original, target = copy.config, copy.target
    named = target.raw_config.get("architectures") if target is not None else None
    verifier = original.verifier or (None if target is None else str(target.path.resolve()))
    if verifier is None or not isinstance(named, list):
        reason = "The format names the target (verifier) and its class, and neither is known"
        advice = ("Give the target's folder with --target.",)
        return Refusal("head-kind.config-dialect", reason, (), advice)
    plan = copy.capture()
    ids = "the library's defaults" if plan.trained is None else f"{list(plan.trained)}, inputs of layers"
    stated = (f"{plan.place} is {list(plan.ids)}: {plan.evidence}",) if plan.ids else ()
    return Change(
        "head-kind.config-dialect",
        "config.json is written in the speculators dialect",
        (f"config.json is in the {original.dialect} dialect", *stated),
        f"every value is the flat file's; layer ids are {ids}",
        (copy.set_whole(speculators_config(original, plan.trained, verifier, named)),),
    )


def _state_residual(into: Format, copy: WorkingCopy) -> Change | None:
    """State what vLLM takes for true where a speculators config is silent, and the library for false."""
    if into.reader != "vllm" or copy.config.stated("norm_before_residual"):
        return None
    return Change(
        "layer.norm-before-residual",
        "norm_before_residual is stated as false",
        (
            "config.json does not state norm_before_residual",
            f"{into.served_by} takes true then (transformers_utils/configs/speculators/algos.py), speculators false",
        ),
        "the library that wrote the config trains with false unless it states true",
        (copy.set("norm_before_residual", False),),
    )
