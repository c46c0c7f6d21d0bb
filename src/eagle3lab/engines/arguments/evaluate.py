"""The value of an expression where not everything is known. What depends on something unknown is `UNKNOWN`.

Only a small part of Python is understood, nothing is executed, and all that is not understood is unknown.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol


class _Unknown:
    """The one value of what is not known."""

    def __repr__(self) -> str:
        return "unknown"

    def __bool__(self) -> bool:
        raise TypeError("whether something unknown holds is not known")


UNKNOWN: Any = _Unknown()
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
_ARITHMETIC: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_METHODS = frozenset(
    {"upper", "lower", "strip", "startswith", "endswith", "split", "get", "keys", "values", "items"}
)
_PURE: dict[str, Callable[..., Any]] = {
    "int": int,
    "float": float,
    "len": len,
    "max": max,
    "min": min,
    "str": str,
    "list": list,
    "dict": dict,
    "set": set,
    "tuple": tuple,
    "bool": bool,
}
_LONGEST = 10_000


class Scope(Protocol):
    """Where names lead."""

    def name(self, name: str) -> Any:
        """The value of a local name."""

    def attribute(self, holder: str, name: str) -> Any:
        """The value of `args.NAME` or `env.NAME`."""

    def has(self, name: str) -> bool:
        """Whether the arguments have a field of this name."""

    def call(self, name: str, arguments: list[Any], keywords: Mapping[str, Any]) -> Any:
        """What a function of the release returns."""


@cache
def parsed(expression: str) -> ast.expr:
    """An expression's syntax tree."""
    return ast.parse(expression, mode="eval").body


def value_of(expression: str, scope: Scope) -> Any:
    """The value, or `UNKNOWN`.

    Raises:
        Exception: What the release would raise: a comparison of None with a number is a TypeError.
    """
    return _value(parsed(expression), scope)


def _value(node: ast.expr, scope: Scope) -> Any:
    handler = _HANDLERS.get(type(node))
    return UNKNOWN if handler is None else handler(node, scope)


def _all(nodes: list[ast.expr], scope: Scope) -> list[Any]:
    return [_value(node, scope) for node in nodes]


def _known(values: Any) -> bool:
    return not any(value is UNKNOWN for value in values)


def _constant(node: ast.Constant, scope: Scope) -> Any:
    return node.value


def _name(node: ast.Name, scope: Scope) -> Any:
    return scope.name(node.id)


def _sequence(node: ast.List | ast.Tuple | ast.Set, scope: Scope) -> Any:
    values = _all(node.elts, scope)
    if isinstance(node, ast.Tuple):  # its parts are given to several names
        return tuple(values)
    if not _known(values):
        return UNKNOWN
    return values if isinstance(node, ast.List) else set(values)


def _mapping(node: ast.Dict, scope: Scope) -> Any:
    if any(key is None for key in node.keys):
        return UNKNOWN
    keys = [_value(key, scope) for key in node.keys if key is not None]
    return dict(zip(keys, _all(node.values, scope), strict=True)) if _known(keys) else UNKNOWN


def _boolean(node: ast.BoolOp, scope: Scope) -> Any:
    """As Python goes: from left to right, up to what decides; with something unknown on the way, as far as sure."""
    stops = isinstance(node.op, ast.Or)
    unknown = False
    value: Any = UNKNOWN
    for part in node.values:
        try:
            value = _value(part, scope)
        except Exception:
            if unknown:  # the part before may keep it from being asked
                return UNKNOWN
            raise
        if value is UNKNOWN:
            unknown = True
        elif bool(value) is stops:
            return UNKNOWN if unknown and not isinstance(value, bool) else value
    return UNKNOWN if unknown else value


def _negation(node: ast.UnaryOp, scope: Scope) -> Any:
    value = _value(node.operand, scope)
    if value is UNKNOWN:
        return UNKNOWN
    if isinstance(node.op, ast.Not):
        return not value
    return -value if isinstance(node.op, ast.USub) else UNKNOWN


def _comparison(node: ast.Compare, scope: Scope) -> Any:
    left = _value(node.left, scope)
    result: Any = True
    for sign, part in zip(node.ops, node.comparators, strict=True):
        right = _value(part, scope)
        one = _compared(sign, left, right)
        if one is not UNKNOWN and not one:
            return False
        result = UNKNOWN if one is UNKNOWN else result
        left = right
    return result


def _compared(sign: ast.cmpop, left: Any, right: Any) -> Any:
    if isinstance(sign, ast.In | ast.NotIn) and isinstance(right, tuple | list):
        if left is not UNKNOWN and left in [value for value in right if value is not UNKNOWN]:
            return isinstance(sign, ast.In)
        if not _known(right):
            return UNKNOWN
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    if isinstance(sign, ast.Is | ast.IsNot):
        return (left is right) is isinstance(sign, ast.Is)
    return _COMPARE[type(sign)](left, right)


def _arithmetic(node: ast.BinOp, scope: Scope) -> Any:
    left, right = _value(node.left, scope), _value(node.right, scope)
    work = _ARITHMETIC.get(type(node.op))
    if work is None or not _known((left, right)):
        return UNKNOWN
    if isinstance(node.op, ast.Mult) and not all(isinstance(side, int | float) for side in (left, right)):
        return UNKNOWN  # nothing here repeats a text, and what would could grow without end
    return work(left, right)


def _choice(node: ast.IfExp, scope: Scope) -> Any:
    test = _value(node.test, scope)
    if test is UNKNOWN:
        body, orelse = _value(node.body, scope), _value(node.orelse, scope)
        return body if body is not UNKNOWN and body == orelse else UNKNOWN
    return _value(node.body if test else node.orelse, scope)


def _text(node: ast.JoinedStr, scope: Scope) -> Any:
    """A message; what is unknown in it is an ellipsis."""
    parts = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
        elif isinstance(part, ast.FormattedValue):
            value = _value(part.value, scope)
            parts.append("…" if value is UNKNOWN else repr(value) if part.conversion == 114 else str(value))
    return "".join(parts)[:_LONGEST]


def _attribute(node: ast.Attribute, scope: Scope) -> Any:
    if isinstance(node.value, ast.Name) and node.value.id in ("args", "env"):
        return scope.attribute(node.value.id, node.attr)
    holder = _value(node.value, scope)
    if isinstance(holder, str) and node.attr in ("name", "value"):  # a member of an enumeration
        return holder
    if isinstance(holder, Mapping):
        # What the config does not state, its class may.
        return holder.get(node.attr, UNKNOWN)
    return UNKNOWN


def _item(node: ast.Subscript, scope: Scope) -> Any:
    holder, key = _value(node.value, scope), _value(node.slice, scope)
    return UNKNOWN if not _known((holder, key)) else holder[key]


def _call(node: ast.Call, scope: Scope) -> Any:
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        return UNKNOWN
    function = node.func
    if isinstance(function, ast.Attribute):
        plain = not isinstance(function.value, ast.Name) or function.value.id not in ("args", "env")
        if function.attr in _METHODS and plain:
            return _method(function, node, scope)
        name = function.attr
    elif isinstance(function, ast.Name):
        name = function.id
        if name == "getattr":
            return _getattr(node, scope)
        if name in ("any", "all") and len(node.args) == 1 and isinstance(node.args[0], ast.GeneratorExp):
            return _quantified(name, node.args[0], scope)
    else:
        return UNKNOWN
    arguments = [
        _value(argument, scope)
        for argument in node.args
        if not (isinstance(argument, ast.Name) and argument.id == "args")
    ]
    if name in _PURE and isinstance(function, ast.Name) and not node.keywords:
        return _PURE[name](*arguments) if _known(arguments) else UNKNOWN
    keywords = {
        keyword.arg: _value(keyword.value, scope)
        for keyword in node.keywords
        if keyword.arg is not None
        and not (isinstance(keyword.value, ast.Name) and keyword.value.id == "args")
    }
    return scope.call(name, arguments, keywords)


@dataclass(frozen=True, slots=True)
class _Inner:
    """The scope inside a comprehension: one more name."""

    outer: Scope
    bound: str
    value: Any

    def name(self, name: str) -> Any:
        return self.value if name == self.bound else self.outer.name(name)

    def attribute(self, holder: str, name: str) -> Any:
        return self.outer.attribute(holder, name)

    def has(self, name: str) -> bool:
        return self.outer.has(name)

    def call(self, name: str, arguments: list[Any], keywords: Mapping[str, Any]) -> Any:
        return self.outer.call(name, arguments, keywords)


def _quantified(name: str, node: ast.GeneratorExp, scope: Scope) -> Any:
    """`any(… for x in xs)`."""
    loop = node.generators[0]
    if len(node.generators) != 1 or loop.ifs or not isinstance(loop.target, ast.Name):
        return UNKNOWN
    items = _value(loop.iter, scope)
    if not isinstance(items, list | tuple | set) or not _known(items):
        return UNKNOWN
    values = [_value(node.elt, _Inner(scope, loop.target.id, item)) for item in items]
    decides = name == "any"
    if any(value is not UNKNOWN and bool(value) is decides for value in values):
        return decides
    return UNKNOWN if not _known(values) else not decides


def _method(function: ast.Attribute, node: ast.Call, scope: Scope) -> Any:
    holder, arguments = _value(function.value, scope), _all(node.args, scope)
    if holder is UNKNOWN or not _known(arguments):
        return UNKNOWN
    return getattr(holder, function.attr)(*arguments)


def _getattr(node: ast.Call, scope: Scope) -> Any:
    parts = node.args
    name = _value(parts[1], scope) if len(parts) > 1 else UNKNOWN
    if not isinstance(name, str):
        return UNKNOWN
    default = parts[2] if len(parts) > 2 else None
    if isinstance(parts[0], ast.Name) and parts[0].id == "args":
        if scope.has(name) or default is None:
            return scope.attribute("args", name)
        return _value(default, scope)
    holder = _value(parts[0], scope)
    if not isinstance(holder, Mapping):
        return UNKNOWN
    if name in holder:
        return holder[name]
    return UNKNOWN if default is None else _value(default, scope)


_HANDLERS: dict[type[ast.expr], Callable[[Any, Scope], Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.List: _sequence,
    ast.Tuple: _sequence,
    ast.Set: _sequence,
    ast.Dict: _mapping,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _negation,
    ast.Compare: _comparison,
    ast.BinOp: _arithmetic,
    ast.IfExp: _choice,
    ast.JoinedStr: _text,
    ast.Attribute: _attribute,
    ast.Subscript: _item,
    ast.Call: _call,
}
