"""The other direction: a copy in the format of the speculators library, which vLLM serves as it is.

The layer is the one that SGLang's drafter class has, so its facts describe what must be there and in which shape;
names are taken strictly, as vLLM stops at any other.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from eagle3lab.checkpoint.dialects import speculators_config
from eagle3lab.engines.atlas.resolve import is_path, resolve_engine
from eagle3lab.engines.facts import Switch
from eagle3lab.engines.release import INSTALLED, newest_release, parse_release, store
from eagle3lab.repair.layer_ids import default_points, trained_points
from eagle3lab.repair.model import Change, Refusal

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint, DrafterConfig
    from eagle3lab.engines.facts import EngineFacts
    from eagle3lab.repair.layer_ids import TargetShape
    from eagle3lab.repair.working_copy import WorkingCopy

# The releases whose reading of the format was tried: the library that defines it, and vLLM.
RELEASES: dict[str, str] = store()["speculators_format"]


def speculators_facts(spec: str) -> EngineFacts | None:
    """Facts for `speculators`, `vllm` or one of them with the release that was tried; None for any other spec."""
    if is_path(spec) or spec.strip() == INSTALLED:
        return None
    asked = parse_release(spec)
    kind = asked.kind
    if RELEASES.get(kind) is None or asked.number not in ("", RELEASES[kind]):
        return None
    newest = resolve_engine(str(newest_release()))
    honoured = Switch("norm_before_residual", newest.drafter.source, (), (), ("norm_before_residual",))
    return replace(
        newest,
        kind=kind,
        release=RELEASES[kind],
        drafter=replace(newest.drafter, name="Eagle3DraftModel", architectures=("Eagle3DraftModel",)),
        names=replace(newest.names, renames=()),
        switches=MappingProxyType({**newest.switches, honoured.name: honoured}),
        construction=(),
    )


def convert_config(
    copy: WorkingCopy, original: DrafterConfig, target: Checkpoint | None, shape: TargetShape | None
) -> tuple[Change | None, Refusal | None]:
    """Write the nested config, layer ids as inputs of layers at its top level.

    Args:
        copy: The copy, changed in place.
        original: Its config as it was.
        target: The target's folder, for the verifier's name; None without.
        shape: The target's class and layers; None when not known.
    """
    if original.dialect == "speculators":
        return _state_residual(copy), None
    named = target.raw_config.get("architectures") if target is not None else None
    verifier = original.verifier or (None if target is None else str(target.path.resolve()))
    if verifier is None or not isinstance(named, list):
        reason = "The format names the target (verifier) and its class, and neither is known"
        return None, Refusal(
            "head-kind.config-dialect", reason, (), ("Give the target's folder with --target.",)
        )
    capture = copy.engine.capture
    trained = trained_points(original, capture, shape)
    points = None if trained is None else trained.points
    if points is None and shape is not None:
        points = default_points(capture, shape.layers)
    edit = copy.set_whole(speculators_config(original, points, verifier, named))
    ids = "the library's defaults" if points is None else f"{list(points)}, inputs of layers"
    return (
        Change(
            "head-kind.config-dialect",
            "config.json is written in the speculators dialect",
            (
                f"config.json is in the {original.dialect} dialect",
                *([f"{trained.place} is {list(trained.ids)}: {trained.why}"] if trained else []),
            ),
            f"every value is the flat file's; layer ids are {ids}",
            (edit,),
        ),
        None,
    )


def _state_residual(copy: WorkingCopy) -> Change | None:
    """State what vLLM takes for true where a speculators config is silent, and the library for false."""
    if copy.engine.kind != "vllm" or copy.config.stated("norm_before_residual"):
        return None
    return Change(
        "layer.norm-before-residual",
        "norm_before_residual is stated as false",
        (
            "config.json does not state norm_before_residual",
            f"{copy.engine.spec} takes true then (transformers_utils/configs/speculators/algos.py), speculators false",
        ),
        "the library that wrote the config trains with false unless it states true",
        (copy.set("norm_before_residual", False),),
    )


def refuse_identity_map(copy: WorkingCopy) -> Refusal | None:
    """Refuse a d2t beside a whole draft vocabulary, at which vLLM stops."""
    config = copy.config
    whole = config.draft_vocab_size in (None, config.vocab_size)
    if copy.engine.kind != "vllm" or not whole or copy.find("d2t") is None:
        return None
    return Refusal(
        "vocab.discarded",
        f"{copy.engine.spec} stops at a d2t where the draft vocabulary is the whole one",
        ("the checkpoint has a d2t",),
        ("Export the head without d2t and t2d.",),
    )
