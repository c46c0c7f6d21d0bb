"""The loop over the weights in a `load_weights`, opened."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from eagle3lab.engines.extract.forms import UnreadableError, assigned_name, is_docstring
from eagle3lab.engines.extract.syntax import ClassRef, Module, dotted_name
from eagle3lab.engines.facts import Rename, Source, Special, Stacked

SILENT = "dropped without a message"
WARNED = "dropped with a warning"


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

    @property
    def offsets(self) -> str:
        """The statement that keeps a tensor as the token map."""
        return f"self.hot_token_id = {self.weight} + torch.arange({self.weight}.shape[0])"

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
