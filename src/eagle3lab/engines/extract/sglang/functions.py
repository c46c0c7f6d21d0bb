"""Functions that a constructor calls with the config: what they return, as far as the config decides it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TYPE_CHECKING

from eagle3lab.engines.extract.sglang.values import Config, Module, Stated, Value
from eagle3lab.engines.extract.syntax import Module as File
from eagle3lab.engines.extract.syntax import dotted_name
from eagle3lab.engines.extract.values import NONE, UNSEEN, Literal
from eagle3lab.engines.facts import Size

if TYPE_CHECKING:
    from eagle3lab.engines.extract.sglang.construct import Builder
    from eagle3lab.engines.extract.sglang.expressions import Expressions


def follow_function(
    builder: Builder, file: File, function: ast.FunctionDef, given: Mapping[str, Value]
) -> Value:
    """What the function returns; unseen where it does anything that is not known here.

    Known are assignments, branches that come to the same, `if x is None: x = ...`, and a default returned for a null
    value before the value itself.
    """
    # Only what is given the config can tell anything about it.
    if not any(isinstance(value, Config) for value in given.values()):
        return UNSEEN
    from eagle3lab.engines.extract.sglang.expressions import Expressions

    with builder.deeper(file.source(function)):
        frame = Expressions(builder, file, function, Module(), given)
        defaults: dict[Stated, Value] = {}
        for statement in function.body:
            if isinstance(statement, ast.Return):
                returned = NONE if statement.value is None else frame.eval(statement.value)
                return _with_default(returned, defaults, frame, statement)
            if not _follow(statement, frame, defaults):
                return UNSEEN
    return UNSEEN


def _follow(node: ast.stmt, frame: Expressions, defaults: dict[Stated, Value]) -> bool:
    """One statement; False if it is not known."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
        frame.locals[node.targets[0].id] = frame.eval(node.value)
        return True
    if not isinstance(node, ast.If):
        return False
    null = _asked_for_null(node.test, frame)
    if null is not None and not node.orelse and len(node.body) == 1:
        only = node.body[0]
        if isinstance(only, ast.Return) and only.value is not None:
            defaults[null] = frame.eval(only.value)
            return True
        name = dotted_name(node.test.left)  # type: ignore[attr-defined]
        if isinstance(only, ast.Assign) and dotted_name(only.targets[0]) == name and name is not None:
            value = frame.eval(only.value)
            if isinstance(value, Config) and value.path:
                frame.locals[name] = Stated((*null.paths, value.path))
                return True
        return False
    before = dict(frame.locals)
    if not all(_follow(inner, frame, defaults) for inner in node.body):
        return False
    one, frame.locals = frame.locals, before
    if not all(_follow(inner, frame, defaults) for inner in node.orelse):
        return False
    for name in one.keys() | frame.locals.keys():
        if one.get(name) != frame.locals.get(name):
            frame.locals[name] = UNSEEN
    return True


def _asked_for_null(test: ast.expr, frame: Expressions) -> Stated | None:
    """`x is None` where x is a value of the config."""
    if not (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is)):
        return None
    value = frame.eval(test.left)
    if isinstance(value, Config) and value.path:
        value = Stated((value.path,))
    return value if isinstance(value, Stated) and frame.eval(test.comparators[0]) == NONE else None


def _with_default(
    returned: Value, defaults: Mapping[Stated, Value], frame: Expressions, node: ast.stmt
) -> Value:
    """`if ids is None: return 3` and then `return len(ids)`: the number of ids, or 3."""
    if not defaults:
        return returned
    if isinstance(returned, Stated) and returned.counted and len(defaults) == 1:
        ((asked, default),) = defaults.items()
        if asked.paths == returned.paths and isinstance(default, Literal) and isinstance(default.value, int):
            stated = tuple(f"len({path})" for path in asked.paths)
            return Size("num_aux", frame.source(node), {}, None, (), None, default.value, stated=stated)
    return UNSEEN
