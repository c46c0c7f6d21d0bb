"""The expressions of a constructor: what they come to where the config is unknown."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from eagle3lab.engines.extract.forms import UnreadableError
from eagle3lab.engines.extract.sglang.functions import follow_function
from eagle3lab.engines.extract.sglang.layers import LAYERS, make_layer, parameter_free
from eagle3lab.engines.extract.sglang.values import (
    ByLayer,
    Config,
    Factors,
    IsFirstLayer,
    Keys,
    LayerIndex,
    Module,
    Sequence,
    Stated,
    Value,
    factors,
)
from eagle3lab.engines.extract.syntax import ClassRef, called, dotted_name, text_of
from eagle3lab.engines.extract.syntax import Module as File
from eagle3lab.engines.extract.values import NONE, UNSEEN, Literal
from eagle3lab.engines.facts import Size, Source

if TYPE_CHECKING:
    from eagle3lab.engines.extract.sglang.construct import Builder


class Expressions:
    """The names of one constructor that is being followed, and the values of expressions over them."""

    def __init__(
        self,
        builder: Builder,
        place: ClassRef | File,
        function: ast.FunctionDef,
        module: Module,
        given: Mapping[str, Value],
        owner: ClassRef | None = None,
    ) -> None:
        self.builder = builder
        self.owner = owner
        self.file: File = place if isinstance(place, File) else place.module
        self.module = module
        names = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
        if owner is not None:
            names = names[1:]
        defaults = dict(
            zip(reversed(names), map(self.literal, reversed(function.args.defaults)), strict=False)
        )
        numbered = {names[int(key)]: v for key, v in given.items() if key.isdigit() and int(key) < len(names)}
        named = {key: value for key, value in given.items() if not key.isdigit()}
        self.locals: dict[str, Value] = {**dict.fromkeys(names, UNSEEN), **defaults, **numbered, **named}

    def source(self, node: ast.AST) -> Source:
        """The line of `node`."""
        return self.file.source(node)

    @staticmethod
    def literal(node: ast.expr) -> Value:
        """The value of a literal; unseen for anything else."""
        return Literal(node.value) if isinstance(node, ast.Constant) else UNSEEN

    def eval(self, node: ast.expr) -> Value:
        """The value of an expression; unseen if it cannot be followed."""
        if isinstance(node, ast.Constant):
            return Literal(node.value)
        if isinstance(node, ast.Name):
            return self.module if node.id == "self" else self.locals.get(node.id, UNSEEN)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.BinOp):
            return self._arithmetic(node)
        if isinstance(node, ast.BoolOp):
            return self._or(node) if isinstance(node.op, ast.Or) else self._and(node)
        if isinstance(node, ast.Subscript):
            return self._item(node)
        if isinstance(node, ast.IfExp):
            return self._choose(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            value = self.eval(node.operand)
            return Literal(not value.value) if isinstance(value, Literal) else UNSEEN
        if isinstance(node, ast.List | ast.Tuple):
            return Sequence(tuple(self.eval(element) for element in node.elts))
        return UNSEEN

    def _attribute(self, node: ast.Attribute) -> Value:
        holder = self.eval(node.value)
        if isinstance(holder, Module):
            return holder.attributes.get(node.attr, UNSEEN)
        if isinstance(holder, Config):
            path = f"{holder.path}.{node.attr}".lstrip(".")
            self.builder.checks.read(path, self.source(node))
            return self._config(path)
        return UNSEEN

    def _arithmetic(self, node: ast.BinOp) -> Value:
        if isinstance(node.op, ast.Mult):
            return self._product(node)
        left, right = self.eval(node.left), self.eval(node.right)
        if isinstance(node.op, ast.FloorDiv) and isinstance(left, Config) and isinstance(right, Config):
            parts = (left.path, right.path)
            name = "head_dim" if parts == ("hidden_size", "num_attention_heads") else " // ".join(parts)
            return Size(name, self.source(node), {}, None, (), None, None, divided=parts)
        if isinstance(node.op, ast.Add):
            terms = (*_terms(left), *_terms(right))
            if _terms(left) and _terms(right):
                return Size(
                    " + ".join(map(str, terms)), self.source(node), {}, None, (), None, None, terms=terms
                )
        return UNSEEN

    def _item(self, node: ast.Subscript) -> Value:
        """`names[0]`."""
        holder, index = self.eval(node.value), self.eval(node.slice)
        if isinstance(holder, Sequence) and isinstance(index, Literal) and isinstance(index.value, int):
            return holder.items[index.value] if 0 <= index.value < len(holder.items) else UNSEEN
        return UNSEEN

    def _and(self, node: ast.BoolOp) -> Value:
        """False as soon as one part is; else not followed."""
        values = [self.eval(value) for value in node.values]
        known = [value for value in values if isinstance(value, Literal)]
        if any(not value.value for value in known):
            return Literal(False)
        return Literal(True) if len(known) == len(values) else UNSEEN

    def _config(self, path: str) -> Value:
        return self.builder.overlay.get(path, Config(path))

    def _product(self, node: ast.BinOp) -> Value:
        left, right = self.eval(node.left), self.eval(node.right)
        if isinstance(left, Sequence) and isinstance(right, Literal) and isinstance(right.value, int):
            return Sequence(left.items * min(right.value, 8))
        if isinstance(left, ByLayer) or isinstance(right, ByLayer):
            return UNSEEN
        one, other = factors(left), factors(right)
        if one is None or other is None:
            return UNSEEN
        self.builder.checks.multiplied((*one, *other), self.source(node))
        return Factors((*one, *other), self.source(node))

    def _or(self, node: ast.BoolOp) -> Value:
        values = [self.eval(value) for value in node.values]
        last = node.values[-1]
        if isinstance(last, ast.Dict) and not last.keys and len(values) == 2:
            return values[0]
        paths = [value.path for value in values if isinstance(value, Config)]
        return Keys(tuple(paths), self.source(node)) if len(paths) == len(values) else UNSEEN

    def _choose(self, node: ast.IfExp) -> Value:
        test = self.eval(node.test)
        if isinstance(test, IsFirstLayer):
            return ByLayer(self.eval(node.body), self.eval(node.orelse))
        if isinstance(test, Literal):
            return self.eval(node.body if test.value else node.orelse)
        if isinstance(test, Sequence):
            return self.eval(node.body if test.items else node.orelse)
        # `len(ids) if ids else 3`
        default = self.eval(node.orelse)
        if called(node.body) == "len" and isinstance(node.body, ast.Call) and isinstance(default, Literal):
            counted = self.eval(node.body.args[0])
            if isinstance(counted, Config) and counted == test and isinstance(default.value, int):
                first = (f"len({counted.path})",)
                return Size("num_aux", self.source(node), {}, None, first, None, default.value)
        return UNSEEN

    def _compare(self, node: ast.Compare) -> Value:
        left, right = self.eval(node.left), self.eval(node.comparators[0])
        equal = isinstance(node.ops[0], ast.Eq)
        if isinstance(left, LayerIndex) and right == Literal(0) and equal:
            return IsFirstLayer()
        if isinstance(node.ops[0], ast.In) and isinstance(left, Literal) and isinstance(right, Sequence):
            known = all(isinstance(item, Literal) for item in right.items)
            return Literal(left in right.items) if known else UNSEEN
        if isinstance(left, Literal) and isinstance(right, Literal) and len(node.ops) == 1:
            if equal or isinstance(node.ops[0], ast.Is):
                return Literal(left == right)
            if isinstance(node.ops[0], ast.NotEq | ast.IsNot):
                return Literal(left != right)
        return UNSEEN

    def _arguments(self, node: ast.Call) -> dict[str, Value]:
        given = {str(number): self.eval(argument) for number, argument in enumerate(node.args)}
        return given | {keyword.arg: self.eval(keyword.value) for keyword in node.keywords if keyword.arg}

    def _call(self, node: ast.Call) -> Value:
        name = called(node) or ""
        if name in ("getattr", "get"):
            return self._lookup(node, name)
        if name in ("isinstance", "hasattr", "len") and node.args:
            return self._asked(node, name)
        if name in ("bool", "deepcopy") and len(node.args) == 1:
            value = self.eval(node.args[0])
            return (
                Keys((value.path,), self.source(node))
                if name == "bool" and isinstance(value, Config)
                else value
            )
        if name == "ModuleList" and node.args:
            return self._module_list(node.args[0])
        if name in LAYERS:
            return make_layer(
                self.builder.syntax, self.file, node, self._arguments(node), self.builder.checks
            )
        cls = self.builder.syntax.resolve(self.file, name) if isinstance(node.func, ast.Name) else None
        function = self.builder.syntax.function(self.file, name) if isinstance(node.func, ast.Name) else None
        if function is not None:
            return follow_function(self.builder, *function, self._arguments(node))
        if cls is None:
            if name.endswith(("Linear", "Embedding", "Parameter")):
                raise UnreadableError(f"{name} is not known", self.source(node))
            return UNSEEN
        if cls.module.file.startswith("models/"):
            return self.builder.build(cls, self._arguments(node))
        if not parameter_free(cls):
            raise UnreadableError(f"{name} may have parameters of its own", self.source(node))
        return UNSEEN

    def _asked(self, node: ast.Call, name: str) -> Value:
        """`isinstance(config, dict)`, `hasattr(self.layer, "weight")`, `len(ids)`."""
        holder = self.eval(node.args[0])
        if name == "isinstance":
            return Literal(False) if holder == Config() else UNSEEN
        if name == "len":
            if isinstance(holder, Config) and holder.path:
                holder = Stated((holder.path,))
            return replace(holder, counted=True) if isinstance(holder, Stated) else UNSEEN
        has = isinstance(holder, Module) and text_of(node.args[1]) in holder.attributes
        return Literal(True) if has else UNSEEN

    def _lookup(self, node: ast.Call, name: str) -> Value:
        """`getattr(config, "key", default)` and `eagle_config.get("key", default)`."""
        nested = name == "get" and isinstance(node.func, ast.Attribute)
        holder = self.eval(node.func.value if nested else node.args[0])  # type: ignore[attr-defined]
        arguments = node.args if nested else node.args[1:]
        key = text_of(arguments[0]) if arguments else None
        if not isinstance(holder, Config) or key is None:
            return UNSEEN
        path = f"{holder.path}.{key}".lstrip(".")
        fallback = self.eval(arguments[1]) if len(arguments) > 1 else NONE
        if isinstance(fallback, Config) and fallback.path:
            return Keys((path, fallback.path), self.source(node), present=True)
        return self._config(path)

    def _module_list(self, node: ast.expr) -> Value:
        if not isinstance(node, ast.ListComp) or called(node.generators[0].iter) != "range":
            raise UnreadableError("a list of modules is not understood", self.source(node))
        loop = node.generators[0]
        count = self.eval(loop.iter.args[-1])  # type: ignore[attr-defined]
        if count == Config("num_hidden_layers"):
            index = "{layer}"
        elif isinstance(count, Size) and count.name == "num_aux":
            index = "{aux}"
        else:
            raise UnreadableError("the length of a list of modules is not understood", self.source(node))
        variable = dotted_name(loop.target) or ""
        kept, self.locals = self.locals, {**self.locals, variable: LayerIndex()}
        element = self.eval(node.elt)
        self.locals = kept
        return Module({index: element})


def _terms(value: Value) -> tuple[str | int, ...]:
    """A value as terms of a sum of config keys; empty if it is none."""
    if isinstance(value, Size):
        return value.terms
    return (value.path,) if isinstance(value, Config) and value.path else ()
