"""The small forms that statements are made of, and the error for one that has no known form."""

from __future__ import annotations

import ast
from typing import Any

from eagle3lab.engines.extract.syntax import Module, dotted_name, text_of
from eagle3lab.engines.facts import Source, Stacked


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


def shards(module: Module, table: ast.List | ast.Tuple) -> list[Stacked]:
    """The entries `(fused, part, shard)` of a table of shards.

    Raises:
        UnreadableError: One is no literal.
    """
    found = []
    for entry in table.elts:
        values = literal(entry)
        if not isinstance(values, tuple) or len(values) != 3:
            raise UnreadableError("an entry of the shards is not a literal", module.source(entry))
        fused, part, shard = values
        found.append(Stacked(part, fused, shard, module.source(entry)))
    return found


def literal(node: ast.expr) -> Any:
    """The value of a literal, None for anything else."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None
