"""The load, simulated: names, shapes and config in, what reaches which parameter out. No data is read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from eagle3lab.engines.facts import EngineFacts, FromTarget, NameRules
from eagle3lab.engines.loading.drafter import (
    LocalParameter,
    Settings,
    construction_error,
    engine_config,
    local_parameters,
    served_architectures,
)
from eagle3lab.engines.loading.names import Route, Waiting, route, shipped_marks, walk, walks
from eagle3lab.engines.loading.place import Placement, Rejection, broadcast, joined_shape, place, promotes
from eagle3lab.engines.loading.plan import LoadPlan, ParameterPlan, Range, Slice, Status, TensorPlan
from eagle3lab.errors import InputError
from eagle3lab.text import printable

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint, DrafterConfig, TensorInfo
    from eagle3lab.engines.facts import ConfigTranslation


# ---- what a plan says in words ---------------------------------------------------------------------------------------


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


# ---- the load --------------------------------------------------------------------------------------------------------


HOT_TOKEN_ID = "hot_token_id"


def simulate_load(
    checkpoint: Checkpoint, engine: EngineFacts, tp_size: int = 1, tp_rank: int = 0
) -> LoadPlan:
    """What rank `tp_rank` of `tp_size` of this release makes of `checkpoint`.

    Raises:
        InputError: The config cannot be read, names a drafter class that is not described, or the rank does
            not exist.
    """
    try:
        return simulate(checkpoint.config, checkpoint.contents.offered, engine, tp_size, tp_rank)
    except InputError as error:
        if error.path is None:
            raise InputError(
                error.problem, path=checkpoint.path, tensor=error.tensor, advice=error.advice
            ) from None
        raise


def simulate(
    config: DrafterConfig,
    tensors: Iterable[TensorInfo],
    engine: EngineFacts,
    tp_size: int = 1,
    tp_rank: int = 0,
) -> LoadPlan:
    """The same from a config and tensor headers, the tensors in the order the engine is offered them."""
    engine = check_request(config, engine, tp_size, tp_rank)
    tensors = tuple(tensors)
    settings = Settings(engine_config(config, engine), engine, tuple(tensor.name for tensor in tensors))
    notes = (*engine.notes, *config_notes(config, engine), *settings.notes())
    algorithm = "EAGLE" if engine.drafter_kind == "EAGLE-1" else "EAGLE3"
    plan = LoadPlan(
        engine.spec, engine.drafter.name, tp_size, tp_rank, (), (), notes=notes, algorithm=algorithm
    )
    error = construction_error(settings, tp_size)
    if error is not None:
        reason = "the drafter could not be built"
        unreached = tuple(TensorPlan(t.name, "not reached", None, (), reason) for t in tensors)
        return replace(plan, tensors=unreached, construction_error=error)
    load = _Load(settings, local_parameters(settings, tp_size, tp_rank))
    for tensor in tensors:
        load.offer(tensor)
    return replace(plan, tensors=load.tensor_plans(), parameters=load.parameter_plans())


def check_request(config: DrafterConfig, engine: EngineFacts, tp_size: int, tp_rank: int) -> EngineFacts:
    """The facts with the class that the config leads to.

    Raises:
        InputError: The rank does not exist, or the release serves the drafter with a class that is not described.
    """
    if tp_size < 1 or not 0 <= tp_rank < tp_size:
        raise InputError(f"there is no rank {tp_rank} of {tp_size}", advice="Ranks count from 0.")
    architectures = served_architectures(config, engine)
    serving = engine.serving(architectures)
    known = set(serving.drafter.architectures)
    described = next((name for name in architectures if name in known), None)
    other = next((name for name in architectures if name in engine.undescribed), None)
    if other is not None and described is None:
        classes = [engine.drafter.name, *(rules.drafter.name for rules in engine.others)]
        raise InputError(
            f"{engine.spec} loads the architecture {printable(other)} with a class of its own, "
            f"which eagle3lab does not describe: {engine.undescribed[other]}",
            advice=f"The load by these classes can be simulated: {', '.join(classes)}.",
        )
    unfollowed = next((key for key in serving.unfollowed_keys if key in config.raw), None)
    if unfollowed is not None:
        raise InputError(
            f"config.json states {unfollowed}, and what {serving.drafter.name} makes of it is not described"
        )
    return serving


class _Load:
    """A load in progress: which rows of which parameter have been written, and by what."""

    def __init__(self, settings: Settings, parameters: Mapping[str, LocalParameter]) -> None:
        self._settings = settings
        self._engine = settings.engine
        self._parameters = parameters
        self._on = {name for name in settings.engine.switches if settings.switch(name)}
        names = settings.engine.names
        if walks(names):
            self._on |= shipped_marks(names, settings.shipped)
        self._ranges: dict[str, list[Range]] = {}
        self._plans: list[TensorPlan] = []
        self._last_writer: dict[tuple[str, Range], int] = {}
        self._layers = 1 if names.layers is None else settings.size("num_hidden_layers")
        self._waiting: Waiting[tuple[int, TensorInfo]] = Waiting()
        self._stopped_at: str | None = None

    def offer(self, tensor: TensorInfo) -> None:
        """The engine's loop sees one more tensor."""
        if self._stopped_at is not None:
            reason = f"loading stopped at {printable(self._stopped_at)}"
            self._plans.append(TensorPlan(tensor.name, "not reached", None, (), reason))
            return
        way = self._route(tensor.name)
        try:
            plan = self._special(tensor, way) or self._half(tensor, way) or self._weight(tensor, way)
            self._plans.append(plan)
        except Rejection as rejection:
            if way.parameter is not None:
                self._ranges.setdefault(way.parameter, []).extend(rejection.written)
            self._stopped_at = tensor.name
            reason = ": ".join(filter(None, (rejection.exception, rejection.message)))
            self._plans.append(
                TensorPlan(
                    tensor.name,
                    "rejected",
                    HOT_TOKEN_ID if way.special else way.parameter,
                    (),
                    f"{reason} (shape {list(tensor.shape)}); the engine stops here",
                    rejection.exception,
                )
            )

    def _route(self, name: str) -> Route:
        names = self._engine.names
        if walks(names):
            return walk(name, names, self._parameters, self._on)
        return route(name, names, self._parameters, self._on, self._layers)

    def _special(self, tensor: TensorInfo, way: Route) -> TensorPlan | None:
        if way.special is None:
            return None
        if way.special.effect == "skipped":
            reason = f"skipped: the name contains {way.special.contains}"
            return TensorPlan(tensor.name, "special", None, (), reason)
        if not tensor.shape:
            raise Rejection("IndexError", "tuple index out of range")
        broadcast(tensor.shape, tensor.shape[:1])
        if not promotes(tensor.dtype):
            raise Rejection("RuntimeError", f"Promotion for {tensor.dtype} is not supported")
        reason = f"hot_token_id = {printable(tensor.name)} + arange({tensor.shape[0]}): read as offsets"
        self._overwrite(HOT_TOKEN_ID, (0, 0), tensor.name, len(self._plans))
        return TensorPlan(tensor.name, "special", HOT_TOKEN_ID, (), reason)

    def _half(self, tensor: TensorInfo, way: Route) -> TensorPlan | None:
        """One of two tensors that are loaded as one: kept, or, if its partner is there, both loaded."""
        if way.half is None:
            return None
        if way.half.part is None:
            raise Rejection("KeyError", repr(printable(way.renamed)))
        key = (way.half.pair, way.half.part)
        before = self._waiting.kept.get(key)
        if before is not None:
            said = f"forgotten: {printable(tensor.name)} took its place before its partner came"
            self._plans[before[0]] = replace(self._plans[before[0]], reason=said)
        both = self._waiting.arrived(way.half, (len(self._plans), tensor))
        if both is None:
            partner = way.half.pair
            if way.half.part == 0:
                partner = partner.replace(*way.half.rule.parts)
            reason = f"kept until {printable(partner)} comes, which never does: dropped without a message"
            return TensorPlan(tensor.name, "dropped", None, (), reason, waits=way.parameter is not None)
        plans = self._together(both, way)
        self._plans[both[1 - way.half.part][0]] = plans[1 - way.half.part]
        return plans[way.half.part]

    def _together(
        self, both: tuple[tuple[int, TensorInfo], tuple[int, TensorInfo]], way: Route
    ) -> tuple[TensorPlan, TensorPlan]:
        """Both halves loaded as one tensor, the first above the second."""
        assert way.half is not None
        first, second = (tensor for _, tensor in both)
        shape = joined_shape(first, second)
        if way.parameter is None:
            reason = (
                f"dropped without a message: joined into {printable(way.half.fused)}, which is no parameter"
            )
            dropped = (TensorPlan(tensor.name, "dropped", None, (), reason) for tensor in (first, second))
            return next(dropped), next(dropped)
        parameter = self._parameters[way.parameter]
        placement = place(parameter, None, shape, self._engine.zero_filled)
        self._ranges.setdefault(parameter.name, []).extend(placement.written)
        rows = first.shape[0]
        parts = (Slice((0, rows), (0, rows)), Slice((rows, shape[0]), (0, shape[0] - rows)))
        plans = []
        for (index, tensor), part in zip(both, parts, strict=True):
            self._overwrite(parameter.name, part.parameter_rows, tensor.name, index)
            partner = second if tensor is first else first
            reason = f"its rows of the fused projection, joined with {printable(partner.name)}"
            plans.append(TensorPlan(tensor.name, "loaded", parameter.name, (part,), reason))
        return plans[0], plans[1]

    def _weight(self, tensor: TensorInfo, way: Route) -> TensorPlan:
        if way.exception is not None:
            raise Rejection(
                way.exception, printable(way.message) if way.message else repr(printable(way.renamed))
            )
        if way.parameter is None:
            reason = unmatched_reason(self._engine.names, way)
            return TensorPlan(tensor.name, "dropped", None, (), reason)
        parameter = self._parameters[way.parameter]
        shard = None if way.stacked is None else way.stacked.shard
        placement = place(parameter, shard, tensor.shape, self._engine.zero_filled)
        self._ranges.setdefault(parameter.name, []).extend(placement.written)
        for rows in placement.written:
            self._overwrite(parameter.name, rows, tensor.name, len(self._plans))
        reason = loaded_reason(parameter, shard, tensor.shape, placement)
        return TensorPlan(tensor.name, "loaded", parameter.name, placement.slices, reason)

    def _overwrite(self, parameter: str, rows: Range, name: str, index: int) -> None:
        """Remember that the tensor `name`, whose plan is at `index`, wrote these rows; tell who wrote them before."""
        before = self._last_writer.get((parameter, rows))
        if before is not None:
            plan = self._plans[before]
            said = f"{plan.reason}; overwritten later by {printable(name)}"
            self._plans[before] = replace(plan, reason=said)
        self._last_writer[parameter, rows] = index

    def tensor_plans(self) -> tuple[TensorPlan, ...]:
        """What became of each tensor."""
        return tuple(self._plans)

    def parameter_plans(self) -> tuple[ParameterPlan, ...]:
        """What is in each parameter."""
        return tuple(self._parameter_plan(parameter) for parameter in self._parameters.values())

    def _parameter_plan(self, parameter: LocalParameter) -> ParameterPlan:
        covered = _length(self._ranges.get(parameter.name, []))
        status: Status = "partly loaded"
        if covered == parameter.shape[0] and parameter.numel:
            status = "loaded"
        elif covered == 0:
            status = "left as initialised"
        replaced = replacement(self._settings, parameter.name)
        if replaced is not None and (replaced.when_null is not None or replaced.unless_shipped is not None):
            status = "taken from target"
        reason = parameter_reason(self._settings, parameter, status, replaced)
        return ParameterPlan(parameter.name, parameter.shape, status, reason, replaced is not None)


def _length(ranges: list[Range]) -> int:
    """Number of rows that lie in at least one of the ranges."""
    total, reached = 0, 0
    for start, stop in sorted(ranges):
        total += max(0, stop - max(start, reached))
        reached = max(reached, stop)
    return total
