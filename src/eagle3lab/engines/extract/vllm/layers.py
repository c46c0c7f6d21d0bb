"""The layers a drafter is built from, as parameters: what each call to one of them makes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from eagle3lab.engines.extract.forms import UnreadableError
from eagle3lab.engines.extract.syntax import Module as File
from eagle3lab.engines.extract.syntax import Syntax, called
from eagle3lab.engines.extract.values import Factor, Leaf, Literal, by_name
from eagle3lab.engines.extract.vllm.values import ByLayer, Module, Value, factors, switch
from eagle3lab.engines.facts import ConstructionRule, ParameterKind, Size, Source

# Class to the names of its leading arguments.
LAYERS: dict[str, tuple[str, ...]] = {
    "VocabParallelEmbedding": ("num_embeddings", "embedding_dim"),
    "ParallelLMHead": ("num_embeddings", "embedding_dim"),
    "RMSNorm": ("hidden_size",),
    "ReplicatedLinear": ("input_size", "output_size"),
    "QKVParallelLinear": ("hidden_size", "head_size", "total_num_heads", "total_num_kv_heads"),
    "MergedColumnParallelLinear": ("input_size", "output_sizes"),
    "RowParallelLinear": ("input_size", "output_size"),
    "Parameter": ("data",),
    "zeros": ("rows",),
}
_DIVIDE = ("distributed/utils.py", "assert numerator % denominator == 0")
_EVEN_PARTS = ("model_executor/layers/linear.py", "assert all(output_size % ")
Shape = tuple[Factor, ...]


def make_layer(
    syntax: Syntax,
    file: File,
    node: ast.Call,
    given: Mapping[str, Value],
    check: Callable[[ConstructionRule], None],
) -> Value:
    """What a call to one of `LAYERS` makes: a module with its parameters, or a parameter.

    Raises:
        UnreadableError: A shape or the bias depends on something that cannot be followed.
    """
    name = called(node) or ""
    source = file.source(node)
    arguments = by_name(LAYERS[name], given)

    def shape(argument: str) -> Shape:
        found = factors(arguments.get(argument, Literal(None)))
        if found is None:
            raise UnreadableError(f"the size of {name} cannot be followed", source)
        return found

    if name == "zeros":
        return Leaf("replicated", shape("rows"), (), (), source)
    if name == "Parameter":
        data = arguments["data"]
        if not isinstance(data, Leaf):
            raise UnreadableError("a parameter is made in a way that is not followed", source)
        return data
    if name in ("VocabParallelEmbedding", "ParallelLMHead"):
        rows, columns = shape("num_embeddings"), shape("embedding_dim")
        line = _line(syntax, *_DIVIDE)
        if line is not None:
            message = "{numerator} is not divisible by {denominator}"
            check(
                ConstructionRule(
                    "vocabulary divisible", "AssertionError", message, _size(rows), (), None, line
                )
            )
        return Module({"weight": Leaf("vocabulary", rows, columns, columns, source)})
    if name == "RMSNorm":
        return Module({"weight": Leaf("replicated", shape("hidden_size"), (), (), source)})
    kind: ParameterKind = "replicated linear" if name == "ReplicatedLinear" else "row parallel"
    if name == "QKVParallelLinear":
        kind, rows = "qkv", ()
        first, later = _by_layer(arguments.get("hidden_size", Literal(None)), name, source)
    elif name == "MergedColumnParallelLinear":
        kind, rows = "merged column", shape("output_sizes")
        first = later = shape("input_size")
        line = _line(syntax, *_EVEN_PARTS)
        if line is not None:
            check(ConstructionRule("size divisible", "AssertionError", "", _size(rows), (), None, line))
    else:
        rows = shape("output_size")
        first = later = _states(shape("input_size"), source)
    made = Module({"weight": Leaf(kind, rows, first, later, source)})
    bias = arguments.get("bias", Literal(True))
    if bias != Literal(False):
        when = switch(bias, source)
        if when is None and bias != Literal(True):
            raise UnreadableError("whether there is a bias cannot be followed", source)
        made.attributes["bias"] = Leaf(kind, rows, (), (), source, when)
    return made


def _size(shape: Shape) -> str | None:
    """The one size or key that a shape is."""
    if len(shape) != 1 or isinstance(shape[0], int):
        return None
    return shape[0].name if isinstance(shape[0], Size) else shape[0]


def _states(columns: Shape, source: Source) -> Shape:
    """The number in the width of a joining layer is the number of auxiliary states."""
    return tuple(
        Size("num_aux", source, {}, None, (), None, factor) if isinstance(factor, int) else factor
        for factor in columns
    )


def _by_layer(value: Value, name: str, source: Source) -> tuple[Shape, Shape]:
    first, later = (value.first, value.later) if isinstance(value, ByLayer) else (value, value)
    one, other = factors(first), factors(later)
    if one is None or other is None:
        raise UnreadableError(f"the size of {name} cannot be followed", source)
    return one, other


def _line(syntax: Syntax, file: str, words: str) -> Source | None:
    module = syntax.module(file)
    return module.matching(words) if module else None
