"""What a plan says in plain words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3lab.engines.facts import EngineFacts, FromTarget, NameRules
from eagle3lab.engines.loading.layout import LocalParameter
from eagle3lab.engines.loading.names import Route
from eagle3lab.engines.loading.place import Placement
from eagle3lab.engines.loading.plan import Status
from eagle3lab.engines.loading.settings import Settings
from eagle3lab.engines.loading.walk import walks
from eagle3lab.text import printable

if TYPE_CHECKING:
    from eagle3lab.checkpoint import DrafterConfig
    from eagle3lab.engines.facts import ConfigTranslation


def config_notes(config: DrafterConfig, engine: EngineFacts) -> tuple[str, ...]:
    """What would stop the engine before any tensor, and was set aside to simulate the load all the same."""
    notes = []
    if engine.speculators is not None:
        notes += _translation_notes(config, engine.speculators)
    elif config.dialect == "speculators":
        notes.append(
            f"{engine.spec} cannot read a config in the speculators dialect as it stands; "
            "the load is simulated with the same values in the engine's own terms."
        )
    elif not set(config.architectures) & set(engine.drafter.architectures):
        named = ", ".join(printable(name) for name in config.architectures) or "none"
        notes.append(
            f"config.json names the architecture {named}; {engine.spec} serves EAGLE-3 drafters as "
            f"{', '.join(engine.drafter.architectures)}, and the load is simulated for that."
        )
    if config.raw.get("quantization_config"):
        notes.append(
            "config.json has a quantization_config, which changes parameters and loaders; "
            "the load is simulated without it."
        )
    return tuple(notes)


def _translation_notes(config: DrafterConfig, translation: ConfigTranslation) -> list[str]:
    """What a translation takes for granted that the trainer may not have meant."""
    if not translation.knows(config.raw):
        return []
    return [
        f"config.json does not state {key.key}: the engine takes it for true ({key.source})."
        for key in translation.keys
        if key.default is True and key.key not in config.raw
    ]


def unmatched_reason(rules: NameRules, way: Route) -> str:
    """Why a tensor reaches nothing."""
    if rules.translation is not None and rules.translation.apply(way.renamed) is None:
        return f"{rules.translation.unmatched}: no name of that form is known"
    if walks(rules):
        return f"dropped without a message: a bias, and there is no parameter {printable(way.renamed)}"
    tried = " or ".join(printable(prefix + way.renamed) for prefix in rules.prefixes)
    manner = rules.unmatched if way.warned == rules.warns else "dropped without a message"
    strange = next((text for text in rules.unfollowed if text in way.renamed), None)
    if strange is not None:
        return f"{manner}: no parameter {tried}; what this release does with {strange} in a name is not followed here"
    return f"{manner}: no parameter {tried}"


def loaded_reason(
    parameter: LocalParameter, shard: str | int | None, shape: tuple[int, ...], placement: Placement
) -> str:
    """How a tensor reaches its parameter, and what is odd about it."""
    words = [_manner(parameter, shard)]
    if not placement.slices:
        words.append("repeated in every row")
    for part in placement.slices:
        if part.zero_rows and parameter.kind == "vocabulary":
            words.append("padding rows set to zero")
        elif part.zero_rows or part.zero_columns:
            words.append(f"too small (shape {list(shape)}), the rest filled with zeros without a message")
        if part.tensor_columns == (0, 1) and part.parameter_columns not in (None, (0, 1)):
            words.append("one column repeated")
    surplus = _surplus(parameter, shard, shape)
    if surplus:
        words.append(f"{surplus} never read, without a message")
    return "; ".join(words)


def _manner(parameter: LocalParameter, shard: str | int | None) -> str:
    if parameter.name == "draft_id_to_target_id":
        return "read as offsets: the target's id is the draft id plus the value"
    if parameter.kind == "qkv":
        return "all of qkv in one tensor" if shard is None else f"the {shard} rows of the fused projection"
    if parameter.kind == "merged column":
        if shard is None:
            return "gate and up in one tensor"
        return f"the {'gate' if shard == 0 else 'up'} rows of the fused projection"
    if parameter.kind == "vocabulary":
        return "this rank's rows of the vocabulary"
    if parameter.kind == "row parallel" and len(parameter.shape) == 2:
        return "this rank's columns"
    if parameter.kind == "column parallel" and parameter.shards[0][1].size != parameter.shards[0][1].whole:
        return "this rank's rows"
    return "as it is"


def _surplus(parameter: LocalParameter, shard: str | int | None, shape: tuple[int, ...]) -> str | None:
    """Rows of a shard's tensor beyond what all ranks together read."""
    stretch = None if shard is None else parameter.shard(shard)
    if stretch is not None and shape[0] > stretch.whole:
        return f"rows {stretch.whole} to {shape[0]}"
    if stretch is None and parameter.shards and shape:
        whole = sum(part.whole for _, part in parameter.shards)
        return f"rows {whole} to {shape[0]}" if shape[0] > whole else None
    return None


def replacement(settings: Settings, name: str) -> FromTarget | None:
    """The fact by which the target's own weight takes this parameter's place after loading; None if it stays."""
    for fact in settings.engine.from_target:
        if fact.parameter == name and _applies(settings, fact):
            return fact
    return None


def _applies(settings: Settings, fact: FromTarget) -> bool:
    if fact.when_null is not None:
        asked = fact.absent_too or settings.has(fact.when_null)
        if not asked or settings.get(fact.when_null) is not None:
            return False
    if fact.unless_shipped is not None and any(fact.unless_shipped in name for name in settings.shipped):
        return False
    return len({settings.size(name) for name in fact.unless_differs}) < 2


def parameter_reason(
    settings: Settings, parameter: LocalParameter, status: Status, fact: FromTarget | None
) -> str:
    """What is in a parameter after loading, and whether the target's own weight takes its place, by `fact`."""
    words = {
        "loaded": "every row comes from the checkpoint",
        "partly loaded": "some rows were never written: they hold whatever memory held",
        "left as initialised": _untouched(parameter),
        "taken from target": "the target's own weight is used",
    }[status]
    if status == "taken from target" and fact is not None and fact.unless_shipped is not None:
        return f"the checkpoint has no {fact.unless_shipped}: {words}"
    if status == "taken from target" and fact is not None:
        return f"{fact.when_null} is {'null or absent' if fact.absent_too else 'null'}: {words}"
    if fact is not None:
        return f"{words}; replaced by the target's own weight under {fact.algorithm}"
    if any(
        known.parameter == parameter.name and known.unless_differs for known in settings.engine.from_target
    ):
        return f"{words}; not replaced by the target's, whose width differs"
    return words


def _untouched(parameter: LocalParameter) -> str:
    if parameter.name == "draft_id_to_target_id":
        return "no tensor reaches it: all zeros, so that draft ids are taken for target ids"
    if "norm" in parameter.name:
        return "no tensor reaches it: all ones"
    if parameter.kind in ("row parallel", "column parallel") and len(parameter.shape) == 1:
        return "no tensor reaches it: all zeros"
    if parameter.kind == "replicated":
        return "no tensor reaches it: random values"
    return "no tensor reaches it: whatever memory held"
