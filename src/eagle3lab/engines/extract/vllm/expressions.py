"""The expressions of vLLM's constructors, evaluated with the config unknown."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from eagle3lab.engines.extract.forms import UnreadableError
from eagle3lab.engines.extract.syntax import ClassRef, Syntax, called, dotted_name, text_of
from eagle3lab.engines.extract.syntax import Module as File
from eagle3lab.engines.extract.values import NONE, UNSEEN, Literal
from eagle3lab.engines.extract.vllm.classes import find_class
from eagle3lab.engines.extract.vllm.layers import LAYERS, make_layer
from eagle3lab.engines.extract.vllm.values import (
    ByLayer,
    Either,
    Flag,
    Key,
    Module,
    Product,
    Value,
    factors,
)
from eagle3lab.engines.facts import ConstructionRule, Size, Source, Switch

_CONFIG = ("draft_model_config.hf_config", "model_config.hf_config")
_TARGET_WIDTH = "target_hidden_size"
# Read as attributes of the config; transformers' classes supply them, that of a translated config does not.
_REQUIRED = ("hidden_act", "rms_norm_eps")
_TRANSLATED = "SpeculatorsConfig"
_ATTENTION = (
    "model_executor/layers/attention/attention.py",
    "model_executor/layers/attention/layer.py",
    "attention/layer.py",
)


class Builder:
    """Runs constructors on paper; remembers the checks and the keys that a constructor has given a value."""

    def __init__(self, syntax: Syntax) -> None:
        self.syntax = syntax
        self.checks: list[ConstructionRule] = []
        self.switches: dict[str, Switch] = {}
        self.overlay: dict[str, Value] = {}
        self.when: Switch | None = None

    def initialise(self, cls: ClassRef, module: Module, given: Mapping[str, Value]) -> None:
        """Run the `__init__` of `cls` on `module`."""
        raise NotImplementedError

    def check(self, rule: ConstructionRule) -> None:
        """Note a check down, once, with the switch under which it is made."""
        if any((known.rule, known.size) == (rule.rule, rule.size) for known in self.checks):
            return
        if self.when is not None:
            self.switches.setdefault(self.when.name, self.when)
            rule = replace(rule, when=self.when.name)
        self.checks.append(rule)


class Expressions:
    """The names that one constructor knows, and what its expressions come to."""

    def __init__(
        self,
        builder: Builder,
        owner: ClassRef,
        function: ast.FunctionDef,
        module: Module,
        given: Mapping[str, Value],
    ) -> None:
        self.builder = builder
        self.owner = owner
        self.file: File = owner.module
        self._line = self.file.source(function)
        self.module = module
        # Keyword-only arguments have the same names everywhere; positional ones come by number.
        arguments = [*function.args.args[1:], *function.args.kwonlyargs]
        names = [argument.arg for argument in arguments]
        defaults: dict[str, Value] = dict.fromkeys(names, UNSEEN)
        for argument, value in zip(
            reversed(function.args.args), reversed(function.args.defaults), strict=False
        ):
            defaults[argument.arg] = self.literal(value)
        for argument, default in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
            defaults[argument.arg] = UNSEEN if default is None else self.literal(default)
        numbered = {names[int(key)]: value for key, value in given.items() if key.isdigit()}
        named = {key: value for key, value in given.items() if not key.isdigit()}
        self.locals: dict[str, Value] = {**defaults, **numbered, **named}
        self.classes: dict[str, str] = {
            argument.arg: dotted_name(value) or ""
            for argument, value in zip(
                reversed(function.args.args), reversed(function.args.defaults), strict=False
            )
        }

    @staticmethod
    def literal(node: ast.expr) -> Value:
        """The value of a literal; unseen for anything else."""
        return Literal(node.value) if isinstance(node, ast.Constant) else UNSEEN

    def source(self, node: ast.AST) -> Source:
        """The line of `node`."""
        return self.file.source(node)

    def look_up(self, name: str) -> Value:
        """The value of a dotted name."""
        first, *path = name.split(".")
        value: Value = self.module if first == "self" else self.locals.get(first, UNSEEN)
        for number, part in enumerate(path):
            if isinstance(value, Module):
                value = value.attributes.get(part, UNSEEN)
            elif isinstance(value, Key):
                path_ = f"{value.path}.{part}".lstrip(".")
                self._read(path_)
                value = self.builder.overlay.get(path_, Key(path_))
            elif ".".join(path[number:]).endswith(_CONFIG):
                return Key("")
            else:
                return UNSEEN
        return value

    def _read(self, key: str) -> None:
        """A key is read without a default: a config that no class completes must state it."""
        if key in _REQUIRED:
            message = f"'{_TRANSLATED}' object has no attribute '{key}'"
            rule = ConstructionRule(
                "translated key stated", "AttributeError", message, key, (), None, self._line
            )
            self.builder.check(rule)

    def eval(self, node: ast.expr) -> Value:
        """The value of an expression; unseen if it cannot be followed."""
        if isinstance(node, ast.Constant):
            return Literal(node.value)
        name = dotted_name(node)
        if name is not None:
            self._line = self.source(node)
            value = self.look_up(name)
            return Key("") if value == UNSEEN and name.endswith(_CONFIG) else value
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            return self._product(node)
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            return self._or(node)
        if isinstance(node, ast.IfExp):
            return self._choose(node)
        if isinstance(node, ast.Compare):
            return self._compare(node)
        return UNSEEN

    def _product(self, node: ast.BinOp) -> Value:
        if isinstance(node.left, ast.List) and len(node.left.elts) == 1:
            return self.eval(node.left.elts[0])  # `[size] * 2`: two equal parts, described by one
        one, other = factors(self.eval(node.left)), factors(self.eval(node.right))
        if one is None or other is None:
            return UNSEEN
        names = [factor.name if isinstance(factor, Size) else factor for factor in (*one, *other)]
        if _TARGET_WIDTH in names:
            message = "unsupported operand type(s) for *: 'NoneType' and 'int'"
            self.builder.check(
                ConstructionRule(
                    f"{_TARGET_WIDTH} not null", "TypeError", message, None, (), None, self.source(node)
                )
            )
        return Product((*one, *other))

    def _or(self, node: ast.BoolOp) -> Value:
        values = [self.eval(value) for value in node.values]
        last = node.values[-1]
        # The config itself is true, an empty default says nothing, and head_dim has its own.
        if (
            values[0] == Key("")
            or (isinstance(last, ast.Dict) and not last.keys)
            or values[0] == Key("head_dim")
        ):
            return values[0]
        keys = [value.path for value in values if isinstance(value, Key)]
        return Either(tuple(keys), self.source(node), true=True) if len(keys) == len(values) else UNSEEN

    def _choose(self, node: ast.IfExp) -> Value:
        if ast.unparse(node.test) == "layer_idx == 0":
            return ByLayer(self.eval(node.body), self.eval(node.orelse))
        default = self.eval(node.orelse)
        if called(node.body) == "len" and isinstance(node.body, ast.Call) and isinstance(default, Literal):
            counted = self.eval(node.body.args[0])
            keys = (
                (counted.path,)
                if isinstance(counted, Key)
                else counted.keys
                if isinstance(counted, Either)
                else ()
            )
            if keys and counted == self.eval(node.test) and isinstance(default.value, int):
                first = tuple(f"len({key})" for key in keys)
                return Product((Size("num_aux", self.source(node), {}, None, first, None, default.value),))
        return UNSEEN

    def _compare(self, node: ast.Compare) -> Value:
        left = factors(self.eval(node.left)) or ()
        if (
            isinstance(node.ops[0], ast.NotEq)
            and dotted_name(node.comparators[0]) == "target_vocab_size"
            and any(isinstance(f, Size) and f.name == "draft_vocabulary" for f in left)
        ):
            # The target's vocabulary is taken to be the one that the drafter's config states.
            return Flag(
                Switch(
                    "smaller_vocabulary",
                    self.source(node),
                    (),
                    (),
                    (),
                    differs=("draft_vocabulary", "vocab_size"),
                )
            )
        return UNSEEN

    def arguments(self, node: ast.Call) -> dict[str, Value]:
        """What a call is given: by name, or by number where it is given by position."""
        given = {str(number): self.eval(argument) for number, argument in enumerate(node.args)}
        return given | {keyword.arg: self.eval(keyword.value) for keyword in node.keywords if keyword.arg}

    def _call(self, node: ast.Call) -> Value:
        name = called(node) or ""
        if name == "getattr" or (name == "get" and isinstance(node.func, ast.Attribute)):
            return self._key(node, name)
        if name == "bool" and len(node.args) == 1:
            return self.eval(node.args[0])
        if name == "ModuleList":
            return self._list(node)
        if name in LAYERS:
            return make_layer(self.builder.syntax, self.file, node, self.arguments(node), self.builder.check)
        if name == "attn_cls":
            self._attention()
            return UNSEEN
        cls = find_class(self.builder.syntax, self.file, self.classes.get(name, name))
        if cls is None:
            if name.endswith(("Linear", "Embedding", "Norm", "MLP", "Parameter")):
                raise UnreadableError(f"{name} is not known", self.source(node))
            return UNSEEN
        module = Module()
        self.builder.initialise(cls, module, self.arguments(node))
        return module

    def _attention(self) -> None:
        """The layer that attends has no parameters, but asks that heads divide."""
        words = 'f"num_heads ({num_heads}) is not divisible by num_kv_heads ({num_kv_heads})"'
        for file in _ATTENTION:
            module = self.builder.syntax.module(file)
            source = module.matching(words) if module else None
            if source is not None:
                rule = "heads multiple of key-value heads"
                message = words[2:-1]
                self.builder.check(ConstructionRule(rule, "AssertionError", message, None, (), None, source))
                return

    def _key(self, node: ast.Call, name: str) -> Value:
        """`getattr(config, "key", default)` and `nested.get("key", default)`."""
        holder = self.eval(node.func.value if name == "get" else node.args[0])  # type: ignore[attr-defined]
        arguments = node.args if name == "get" else node.args[1:]
        key = text_of(arguments[0]) if arguments else None
        if not isinstance(holder, Key) or key is None:
            return UNSEEN
        path = f"{holder.path}.{key}".lstrip(".")
        fallback = self.eval(arguments[1]) if len(arguments) > 1 else NONE
        if isinstance(fallback, Key) and fallback.path and fallback.path != path:
            if path == "num_key_value_heads":
                return Key(path)  # the number of heads stands in for it wherever it is not stated
            return Either((path, fallback.path), self.source(node))
        return self.builder.overlay.get(path, Key(path))

    def _list(self, node: ast.Call) -> Value:
        comprehension = node.args[0] if node.args else None
        if not isinstance(comprehension, ast.ListComp) or called(comprehension.generators[0].iter) != "range":
            raise UnreadableError("a list of modules is not understood", self.source(node))
        count = self.eval(comprehension.generators[0].iter.args[-1])  # type: ignore[attr-defined]
        sizes = [f.name for f in factors(count) or () if isinstance(f, Size)]
        if count == Key("num_hidden_layers"):
            index = "{layer}"
        elif sizes == ["num_aux"]:
            index = "{aux}"
        else:
            raise UnreadableError("the length of a list of modules is not understood", self.source(node))
        return Module({index: self.eval(comprehension.elt)})
