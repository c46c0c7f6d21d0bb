"""The simulated load as evidence: what stops it, and what it would be with the stops out of the way."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle3lab.checkpoint import DrafterConfig, TensorInfo
    from eagle3lab.engines.facts import ConstructionRule, EngineFacts
    from eagle3lab.engines.loading import LoadPlan, ParameterPlan, TensorPlan

_STOPS = 4
_PASSED_OVER = 3
_EMPTY = frozenset({"left as initialised", "partly loaded"})


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the drafter class cannot be built.

    Attributes:
        rule: The name of the rule that is broken.
        error: Type and message of the exception.
        source: The engine's line.
    """

    rule: str
    error: str
    source: str


@dataclass(frozen=True, slots=True)
class Load:
    """What the engine makes of the drafter.

    Attributes:
        stops: What prevents the class from being built, in the order in which it is met.
        plan: The load of the first rank with those out of the way.
        rejected: The tensor at which the first or the last rank stops: what is too short for its parameter fits the
            first rank's part and not the last one's.
        unread: Tensors that are cut, or filled up where that moves heads: name, and what happens.
        beyond: The load without the tensors at which it stops; None where it stops at none.
    """

    stops: tuple[Stop, ...]
    plan: LoadPlan
    rejected: TensorPlan | None
    unread: tuple[tuple[str, str], ...]
    beyond: LoadPlan | None = None

    @property
    def empty(self) -> tuple[ParameterPlan, ...]:
        """Parameters that no tensor fills, or not completely."""
        if self.rejected is not None:
            return ()
        return tuple(one for one in self.plan.parameters if one.status in _EMPTY)

    @property
    def kind(self) -> str:
        """The engine: "sglang" or "vllm"."""
        return self.plan.engine.partition("==")[0]

    @property
    def stops_at_a_name(self) -> bool:
        """Whether it is the name of a tensor that stops the engine, and not its shape."""
        stopped = self.rejected
        return stopped is not None and (stopped.parameter is None or stopped.exception == "KeyError")

    @property
    def dropped(self) -> tuple[TensorPlan, ...]:
        """Tensors that reach nothing, without a word; also those behind a tensor at which the load stops."""
        return (self.beyond or self.plan).tensors_with("dropped")


def simulate(
    config: DrafterConfig, tensors: tuple[TensorInfo, ...], facts: EngineFacts, tp: int, layers: int
) -> Load:
    """Simulate the load; where construction fails, again with what stopped it put right.

    Args:
        config: The drafter's config.
        tensors: Its tensors in the order they are offered.
        facts: The release.
        tp: Tensor-parallel size.
        layers: Decoder layers that the weights hold.

    Raises:
        InputError: The load cannot be simulated.
    """
    from eagle3lab.engines.loading import simulate as simulate_once
    from eagle3lab.engines.loading.drafter import served_architectures

    facts = facts.serving(served_architectures(config, facts))
    stops: list[Stop] = []
    while True:
        plan = simulate_once(config, tensors, facts, tp)
        if plan.construction_error is None or len(stops) == _STOPS:
            whole = plan if tp == 1 else simulate_once(config, tensors, facts, 1)
            last = plan if tp == 1 else simulate_once(config, tensors, facts, tp, tp - 1)
            rejected = plan.rejected or last.rejected
            beyond = _beyond(config, tensors, facts, rejected)
            return Load(tuple(stops), plan, rejected, tuple(_unread(whole, tensors)), beyond)
        rule = _rule(facts, plan.construction_error.type, plan.construction_error.message)
        error = f"{plan.construction_error.type}: {plan.construction_error.message}"
        stops.append(Stop(rule.rule if rule else "", error, str(rule.source) if rule else ""))
        changed = None
        if all(stop.rule != stops[-1].rule for stop in stops[:-1]):
            changed = _put_right(config, tp, stops[-1].rule, layers)
        if changed is None:
            return Load(tuple(stops), plan, None, ())
        config, tp = changed


def _beyond(
    config: DrafterConfig, tensors: tuple[TensorInfo, ...], facts: EngineFacts, rejected: TensorPlan | None
) -> LoadPlan | None:
    """The load of one rank with what stops it left out, so that what comes after is seen as well."""
    from eagle3lab.engines.loading import simulate as simulate_once

    plan = None
    for _ in range(_PASSED_OVER):
        if rejected is None:
            break
        name = rejected.name
        tensors = tuple(one for one in tensors if one.name != name)
        plan = simulate_once(config, tensors, facts, 1)
        rejected = plan.rejected
    return plan


def _unread(plan: LoadPlan, tensors: tuple[TensorInfo, ...]) -> Iterator[tuple[str, str]]:
    """Tensors that one rank alone does not read to the end: loaders cut what is too long without a word."""
    shapes = {tensor.name: tensor.shape for tensor in tensors}
    for tensor in plan.tensors_with("loaded"):
        shape = shapes[tensor.name]
        if not tensor.slices or not shape:
            continue
        filled = any(part.zero_rows or part.zero_columns for part in tensor.slices)
        if filled and ".self_attn." in (tensor.parameter or ""):
            yield tensor.name, f"its {list(shape)} are filled up with zeros, so heads are cut in other places"
            continue
        rows = max(part.tensor_rows[1] for part in tensor.slices)
        if rows < shape[0]:
            yield tensor.name, f"{rows} of {shape[0]} rows are read"
        elif len(shape) == 2 and all(part.tensor_columns for part in tensor.slices):
            columns = max(part.tensor_columns[1] for part in tensor.slices if part.tensor_columns)
            if 1 < columns < shape[1]:
                yield tensor.name, f"{columns} of {shape[1]} columns are read"


def _rule(facts: EngineFacts, error: str, message: str) -> ConstructionRule | None:
    for rule in facts.construction:
        pattern = ".*".join(re.escape(part) for part in re.split(r"\{[^{}]*\}", rule.message))
        if rule.exception == error and re.fullmatch(pattern, message, re.DOTALL):
            return rule
    return None


def _put_right(config: DrafterConfig, tp: int, rule: str, layers: int) -> tuple[DrafterConfig, int] | None:
    if rule in ("heads divisible", "key-value heads divide", "size divisible", "vocabulary divisible"):
        return (config, 1) if tp > 1 else None
    if rule == "one layer":
        return _with(config, num_hidden_layers=1), tp
    if rule == "model_type stated":
        return _with(config, model_type="llama"), tp
    if rule == "activation":
        return _with(config, hidden_act="silu"), tp
    if rule == "target_hidden_size not null":
        raw = {key: value for key, value in config.raw.items() if key != "target_hidden_size"}
        return replace(config, raw=raw), tp
    if rule in ("draft_vocab_size stated", "draft_vocab_size not null"):
        return _with(config, draft_vocab_size=config.draft_vocab_size or config.vocab_size), tp
    if rule == "hidden size multiple of heads" and config.raw.get("model_type") == "llama":
        # A model type whose class does not check this, and supplies nothing that decides a shape.
        return _with(config, model_type="unchecked", num_key_value_heads=config.num_key_value_heads), tp
    return None


def _with(config: DrafterConfig, **fields: Any) -> DrafterConfig:
    return replace(config, raw={**config.raw, **fields}, **fields)
