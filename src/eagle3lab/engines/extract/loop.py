"""The loop over the weights in a `load_weights`, opened; and the small forms its statements are made of."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from eagle3lab.engines.extract.syntax import ClassRef, Module, dotted_name, text_of
from eagle3lab.engines.facts import Rename, Source, Special, Stacked

SILENT = "dropped without a message"
WARNED = "dropped with a warning"


class UnreadableError(Exception):
    """A statement has no form that is known here.

    Attributes:
        reason: What is not understood.
        source: The statement.
    """

    def __init__(self, reason: str, source: Source) -> None:
        super().__init__(reason)
        self.reason = reason
        self.source = source


@dataclass(slots=True)
class LoopReading:
    """The loop, as far as it was read.

    Attributes:
        module: The file.
        name: What the loop calls a tensor's name.
        weight: What it calls the tensor.
        tables: What the function assigns before the loop.
        parameters: Its name for the table of parameters; None if it makes none.
        body: The statements of the loop.
        renames: The rules read so far, by kind.
        special: Likewise.
        stacked: Likewise.
        lookup: Prefixes that are tried, what happens to the unmatched, and where.
        stage: How far in the order of rules the reading is.
    """

    module: Module
    name: str
    weight: str
    tables: dict[str, ast.expr]
    parameters: str | None
    body: list[ast.stmt]
    renames: list[Rename] = field(default_factory=list)
    special: list[Special] = field(default_factory=list)
    stacked: list[Stacked] = field(default_factory=list)
    lookup: tuple[tuple[str, ...], str, Source] | None = None
    stage: int = 0

    def fail(self, reason: str, node: ast.AST) -> UnreadableError:
        """The error to raise at `node`."""
        return UnreadableError(reason, self.module.source(node))

    def enter(self, stage: int, node: ast.AST) -> None:
        """Rules must come in the order renames, special names, shards: `NameRules` has no other."""
        if stage < self.stage:
            raise self.fail("rules come in an order that is not known", node)
        self.stage = stage


def open_loop(owner: ClassRef, function: ast.FunctionDef) -> LoopReading:
    """The loop of a `load_weights`, nothing of it read yet.

    Raises:
        UnreadableError: There is none, or something else goes on beside it.
    """
    module = owner.module
    tables: dict[str, ast.expr] = {}
    parameters = None
    for statement in function.body:
        if isinstance(statement, ast.For):
            break
        target = assigned_name(statement)
        if target is not None and isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value:
            tables[target] = statement.value
            if ast.unparse(statement.value) == "dict(self.named_parameters())":
                parameters = target
        elif not is_docstring(statement):
            raise UnreadableError("a statement before the loop is not understood", module.source(statement))
    else:
        raise UnreadableError("has no loop over the weights", module.source(function))
    if not (isinstance(statement.target, ast.Tuple) and len(statement.target.elts) == 2):
        raise UnreadableError("the loop is not over names and weights", module.source(statement))
    name, weight = (dotted_name(element) or "" for element in statement.target.elts)
    rest = function.body[function.body.index(statement) + 1 :]
    if any(not _only_reads(owner, node) for node in rest):
        raise UnreadableError("goes on after the loop", module.source(rest[0]))
    return LoopReading(module, name, weight, tables, parameters, statement.body)


def _only_reads(owner: ClassRef, node: ast.stmt) -> bool:
    """`return names`, or `self.method()` of a method that fills no parameter: it copies nothing, and names none."""
    if isinstance(node, ast.Return):
        return isinstance(node.value, ast.Name)
    call = node.value if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    name = (dotted_name(call.func) if call is not None else None) or ""
    method = owner.method(name.removeprefix("self.")) if name.startswith("self.") else None
    if method is None:
        return False
    for inner in ast.walk(method):
        if isinstance(inner, ast.Attribute):
            if inner.attr == "data" or inner.attr.endswith("_") or "weight_loader" in inner.attr:
                return False
            if isinstance(inner.ctx, ast.Store) and inner.attr in ("weight", "bias"):
                return False
    return True


def words_in_name(name: str, test: ast.expr) -> list[str] | None:
    """The literals of `"x" in name [or "y" in name]`; None for another condition."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.Or):
        parts = [words_in_name(name, value) for value in test.values]
        return None if any(part is None for part in parts) else [w for part in parts for w in part or ()]
    if (
        isinstance(test, ast.Compare)
        and isinstance(test.ops[0], ast.In)
        and dotted_name(test.comparators[0]) == name
    ):
        word = text_of(test.left)
        return None if word is None else [word]
    return None


def is_harmless(node: ast.stmt) -> bool:
    """A message, `pass`, or a comment in the form of a string."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return (dotted_name(node.value.func) or "").startswith(
            ("logger.", "logging.", "warnings.warn", "print")
        )
    return isinstance(node, ast.Pass | ast.Continue) or is_docstring(node)


def is_docstring(node: ast.stmt) -> bool:
    """A string that stands alone."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def assigned_name(node: ast.stmt) -> str | None:
    """The one name that a statement assigns to."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        return dotted_name(node.targets[0])
    return dotted_name(node.target) if isinstance(node, ast.AnnAssign) else None


def literal(node: ast.expr) -> Any:
    """The value of a literal, None for anything else."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
