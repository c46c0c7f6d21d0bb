"""The drafter's parameters on one rank, and how a tensor is cut to fit them."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from eagle3lab.engines.facts import Parameter, ParameterKind
from eagle3lab.engines.loading.construction import padded_vocabulary
from eagle3lab.engines.loading.settings import Settings


@dataclass(frozen=True, slots=True)
class Shard:
    """One stretch of a parameter that a tensor of its own fills.

    Attributes:
        at: First row in the local parameter.
        size: Rows on this rank.
        start: First row, in its own tensor, that belongs to this rank.
        whole: Rows of its tensor over all ranks.
    """

    at: int
    size: int
    start: int
    whole: int


@dataclass(frozen=True, slots=True)
class LocalParameter:
    """A parameter on one rank.

    Attributes:
        name: The name in `named_parameters()`.
        kind: How it is split over ranks.
        shape: Of this rank's part.
        shards: Its stretches by shard, for fused parameters, in the order they are stacked; for "column parallel"
            the one that is all of it.
        vocabulary: Rows the vocabulary has over all ranks, padding aside; 0 where there is none.
        start: First row (vocabulary) or column (row parallel) that belongs to this rank.
        rows_held: Rows of a vocabulary that this rank holds, padding aside.
    """

    name: str
    kind: ParameterKind
    shape: tuple[int, ...]
    shards: tuple[tuple[str | int, Shard], ...] = ()
    vocabulary: int = 0
    start: int = 0
    rows_held: int = 0

    @property
    def numel(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def shard(self, key: str | int) -> Shard | None:
        """The stretch of this shard; None where there is none."""
        return dict(self.shards).get(key)


def local_parameters(settings: Settings, tp_size: int, tp_rank: int) -> dict[str, LocalParameter]:
    """Every parameter of the drafter on rank `tp_rank` of `tp_size`, by name, in the engine's order.

    The config must have passed `construction_error`. A family of parameters (layers, auxiliary states) is
    written out member by member, layer by layer.
    """
    parameters = {}
    for parameter, layer in _by_layer(settings):
        for name in _names(settings, parameter, layer):
            parameters[name] = _local(settings, parameter, name, layer, tp_size, tp_rank)
    return parameters


def _by_layer(settings: Settings) -> list[tuple[Parameter, int]]:
    """Parameters in order, the consecutive ones that belong to layers repeated together, layer by layer."""
    ordered: list[tuple[Parameter, int]] = []
    family: list[Parameter] = []
    present = [p for p in settings.engine.parameters if settings.switch(p.when)]
    for parameter in (*present, None):
        if parameter is not None and "{layer}" in parameter.name:
            family.append(parameter)
            continue
        if family:
            layers = range(settings.size("num_hidden_layers"))
            ordered += [
                (member, layer) for layer in layers for member in family if layer or member.first_layer
            ]
            family = []
        if parameter is not None:
            ordered.append((parameter, 0))
    return ordered


def _names(settings: Settings, parameter: Parameter, layer: int) -> list[str]:
    if "{aux}" in parameter.name:
        return [parameter.name.replace("{aux}", str(aux)) for aux in range(settings.size("num_aux"))]
    return [parameter.name.replace("{layer}", str(layer))]


def _local(
    settings: Settings, parameter: Parameter, name: str, layer: int, tp_size: int, tp_rank: int
) -> LocalParameter:
    factors = parameter.columns if layer == 0 else parameter.later_columns
    columns = (settings.product(factors),) if factors else ()
    if parameter.kind == "qkv":
        shards = _attention_shards(settings, tp_size, tp_rank)
        return LocalParameter(name, parameter.kind, (_rows_of(shards), *columns), shards)
    rows = settings.product(parameter.rows)
    if parameter.kind == "merged column":
        size = rows // tp_size
        shards = tuple((part, Shard(part * size, size, tp_rank * size, rows)) for part in (0, 1))
        return LocalParameter(name, parameter.kind, (_rows_of(shards), *columns), shards)
    if parameter.kind == "column parallel":
        size = rows // tp_size
        part = Shard(0, size, tp_rank * size, rows)
        return LocalParameter(name, parameter.kind, (size, *columns), ((0, part),))
    if parameter.kind == "row parallel" and columns:
        width = columns[0] // tp_size
        return LocalParameter(name, parameter.kind, (rows, width), start=tp_rank * width)
    if parameter.kind == "vocabulary":
        height = padded_vocabulary(settings, rows, tp_size) // tp_size
        start = min(tp_rank * height, rows)
        held = min((tp_rank + 1) * height, rows) - start
        shape = (height, *columns)
        return LocalParameter(name, parameter.kind, shape, vocabulary=rows, start=start, rows_held=held)
    return LocalParameter(name, parameter.kind, (rows, *columns))


def _rows_of(shards: tuple[tuple[str | int, Shard], ...]) -> int:
    return sum(shard.size for _, shard in shards)


def _attention_shards(settings: Settings, tp_size: int, tp_rank: int) -> tuple[tuple[str | int, Shard], ...]:
    """Queries are split over ranks; keys and values too, down to one head a rank, which is then repeated."""
    head_dim = settings.size("head_dim")
    heads, kv_heads = settings.size("num_attention_heads"), settings.size("num_key_value_heads")
    queries = heads // tp_size * head_dim
    repeats = max(1, tp_size // kv_heads)
    keys = max(1, kv_heads // tp_size) * head_dim
    start, whole = tp_rank // repeats * keys, kv_heads * head_dim
    return (
        ("q", Shard(0, queries, tp_rank * queries, heads * head_dim)),
        ("k", Shard(queries, keys, start, whole)),
        ("v", Shard(queries + keys, keys, start, whole)),
    )
