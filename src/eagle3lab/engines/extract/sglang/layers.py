"""The layers a drafter is built from, as parameters: what each call to one of them makes."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from eagle3lab.engines.extract.forms import UnreadableError
from eagle3lab.engines.extract.sglang.checks import Checks
from eagle3lab.engines.extract.sglang.values import ByLayer, Config, Keys, Module, Sequence, Value, factors
from eagle3lab.engines.extract.syntax import ClassRef, Syntax, called, dotted_name
from eagle3lab.engines.extract.syntax import Module as File
from eagle3lab.engines.extract.values import Factor, Leaf, Literal, by_name
from eagle3lab.engines.facts import ParameterKind, Size, Source, Switch

# Class to the names of its leading arguments.
LAYERS: dict[str, tuple[str, ...]] = {
    "VocabParallelEmbedding": ("num_embeddings", "embedding_dim"),
    "ParallelLMHead": ("num_embeddings", "embedding_dim"),
    "RMSNorm": ("hidden_size",),
    "Linear": ("in_features", "out_features"),
    "QKVParallelLinear": ("hidden_size", "head_size", "total_num_heads", "total_num_kv_heads"),
    "MergedColumnParallelLinear": ("input_size", "output_sizes"),
    "ColumnParallelLinear": ("input_size", "output_size"),
    "ReplicatedLinear": ("input_size", "output_size"),
    "RowParallelLinear": ("input_size", "output_size"),
}
_KINDS: dict[str, ParameterKind] = {
    "Linear": "replicated",
    "ColumnParallelLinear": "column parallel",
    "ReplicatedLinear": "replicated linear",
    "RowParallelLinear": "row parallel",
}
# `create_weights` is not among them: only a quantised layer calls it.
_MAKES_PARAMETERS = ("Parameter", "register_parameter")
Shape = tuple[Factor, ...]


def parameter_free(cls: ClassRef) -> bool:
    """Whether a class of the engine's layers makes no parameters: its constructor calls nothing that does."""
    constructor = cls.method("__init__")
    if constructor is None:
        return True
    names = {called(node) or "" for node in ast.walk(constructor)}
    return not any(name in _MAKES_PARAMETERS or name.endswith(("Linear", "Embedding")) for name in names)


def make_layer(
    syntax: Syntax, file: File, node: ast.Call, given: Mapping[str, Value], checks: Checks
) -> Module:
    """The parameters that a call to one of `LAYERS` makes.

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

    if name in ("VocabParallelEmbedding", "ParallelLMHead"):
        rows = shape("num_embeddings")
        checks.vocabulary(syntax, rows)
        columns = shape("embedding_dim")
        return Module({"weight": Leaf("vocabulary", rows, columns, columns, source)})
    if name == "RMSNorm":
        return Module({"weight": Leaf("replicated", shape("hidden_size"), (), (), source)})
    if name == "QKVParallelLinear":
        first, later = _by_layer(arguments.get("hidden_size", Literal(None)), name, source)
        made = Module({"weight": Leaf("qkv", (), first, later, source)})
        return _with_bias(made, "qkv", (), arguments, file, node, source)
    if name == "MergedColumnParallelLinear":
        sizes = arguments.get("output_sizes")
        parts = [factors(item) for item in sizes.items] if isinstance(sizes, Sequence) else []
        rows_of_part = parts[0] if parts else None
        # The facts describe a fused layer of two equal parts, and only that.
        if rows_of_part is None or parts != [rows_of_part] * 2:
            raise UnreadableError(f"the size of {name} cannot be followed", source)
        checks.merged_columns(syntax, rows_of_part)
        columns = shape("input_size")
        made = Module({"weight": Leaf("merged column", rows_of_part, columns, columns, source)})
        return _with_bias(made, "merged column", rows_of_part, arguments, file, node, source)
    kind: ParameterKind = _KINDS[name]
    out, into = ("out_features", "in_features") if name == "Linear" else ("output_size", "input_size")
    rows, columns = shape(out), shape(into)
    if name == "Linear" and checks.joins_states:
        columns = _states(columns, arguments.get(into), source)
    if name == "ColumnParallelLinear":
        checks.split_rows(syntax, rows)
    if name == "RowParallelLinear" and len(columns) == 2 and isinstance(columns[1], int):
        terms = tuple(columns[:1]) * columns[1]
        width = Size(" + ".join(map(str, terms)), source, {}, None, (), None, None, terms=terms)  # type: ignore[arg-type]
        checks.split_rows(syntax, (width,))
    made = Module({"weight": Leaf(kind, rows, columns, columns, source)})
    bias_source = _row_parallel_bias(syntax) if name == "RowParallelLinear" else None
    return _with_bias(made, kind, rows, arguments, file, node, bias_source or source, own=name == "Linear")


def _states(columns: Shape, value: Value | None, source: Source) -> Shape:
    """The number in the width of a joining layer is the number of auxiliary states."""
    where = getattr(value, "source", source)
    return tuple(
        Size("num_aux", where, {}, None, (), None, factor) if isinstance(factor, int) else factor
        for factor in columns
    )


def _by_layer(value: Value, name: str, source: Source) -> tuple[Shape, Shape]:
    first, later = (value.first, value.later) if isinstance(value, ByLayer) else (value, value)
    one, other = factors(first), factors(later)
    if one is None or other is None:
        raise UnreadableError(f"the size of {name} cannot be followed", source)
    return one, other


def _with_bias(
    made: Module,
    kind: ParameterKind,
    rows: Shape,
    arguments: Mapping[str, Value],
    file: File,
    node: ast.Call,
    source: Source,
    own: bool = False,
) -> Module:
    """Add the bias: `own` for torch's layers, whose bias is there by default."""
    bias = arguments.get("bias", Literal(True))
    if bias == Literal(False):
        return made
    keyword = next((keyword for keyword in node.keywords if keyword.arg == "bias"), None)
    where = file.source(keyword) if own and keyword is not None else source
    when = None
    if isinstance(bias, Config) and bias.path:
        bias = Keys((bias.path,), file.source(keyword) if keyword is not None else source)
    if isinstance(bias, Keys):
        name = "fc_bias" if bias.keys == ("bias",) else bias.keys[0].rpartition(".")[2]
        when = Switch(name, bias.source, bias.keys, (), ())
    elif bias != Literal(True):
        raise UnreadableError("whether there is a bias cannot be followed", source)
    made.attributes["bias"] = Leaf(kind, rows, (), (), where, when)
    return made


def _row_parallel_bias(syntax: Syntax) -> Source | None:
    """Where a row-parallel layer makes its bias."""
    module = syntax.module("layers/linear.py")
    layer = module.classes.get("RowParallelLinear") if module else None
    if module is None or layer is None:
        return None
    for statement in ast.walk(layer.node):
        if isinstance(statement, ast.Assign) and dotted_name(statement.targets[0]) == "self.bias":
            return module.source(statement)
    return None
