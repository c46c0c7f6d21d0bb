"""vLLM's drafter classes built on paper: their constructors followed with the config unknown.

What comes out are the parameters with their shapes in terms of config keys, and the checks met on the way. Nothing
of the engine runs. What cannot be followed is unseen; a parameter that depends on it makes the whole class unknown.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from eagle3lab.engines.extract.forms import UnreadableError
from eagle3lab.engines.extract.syntax import ClassRef, Syntax, called, dotted_name, text_of
from eagle3lab.engines.extract.values import NONE, UNSEEN, Built, Leaf, Literal, named_sizes
from eagle3lab.engines.extract.vllm.classes import base_of
from eagle3lab.engines.extract.vllm.expressions import Builder, Expressions
from eagle3lab.engines.extract.vllm.layers import LAYERS
from eagle3lab.engines.extract.vllm.values import Flag, Key, Module, Product, Value, factors, switch
from eagle3lab.engines.facts import ConstructionRule, Parameter, Size, Source, Switch

_DRAFT_VOCABULARY = "draft_vocab_size"
_DEEPEST = 8
# A buffer that is made of zeros is no parameter.
_MAKES = (LAYERS.keys() | {"ModuleList"}) - {"zeros"}


def draw(syntax: Syntax, drafter: ClassRef) -> Built:
    """Follow the constructors of `drafter`.

    Raises:
        UnreadableError: A parameter depends on something that cannot be followed.
    """
    builder = _Builder(syntax)
    module = Module()
    builder.initialise(drafter, module, {})
    sizes: dict[str, Size] = {}
    parameters = []
    for name, leaf in _named(module, ""):
        shapes = (leaf.rows, leaf.columns, leaf.later_columns)
        rows, columns, later = (named_sizes(shape, sizes) for shape in shapes)
        when = leaf.when
        if when is not None:
            known = builder.switches.setdefault(when.name, when)
            if replace(known, source=when.source) != when:
                raise UnreadableError(f"{when.name} is decided in two ways", when.source)
        parameters.append(
            Parameter(name, leaf.kind, rows, columns, later, when.name if when else None, leaf.source)
        )
    if not parameters:
        raise UnreadableError("its constructor makes no parameters", drafter.source)
    return Built(tuple(parameters), sizes, builder.switches, tuple(builder.checks))


def _named(module: Module, prefix: str) -> Iterator[tuple[str, Leaf]]:
    """Parameters with their names: a module's own come before those of its modules."""
    for name, value in module.attributes.items():
        if isinstance(value, Leaf):
            yield prefix + name, value
    for name, value in module.attributes.items():
        if isinstance(value, Module):
            yield from _named(value, f"{prefix}{name}.")


class _Builder(Builder):
    """Runs constructors on paper."""

    def __init__(self, syntax: Syntax) -> None:
        super().__init__(syntax)
        self._depth = 0

    def initialise(self, cls: ClassRef, module: Module, given: Mapping[str, Value]) -> None:
        """Run the `__init__` of `cls` on `module`."""
        function = cls.method("__init__")
        owner = cls
        while function is None:
            base = base_of(self.syntax, owner)
            if base is None:
                return
            owner, function = base, base.method("__init__")
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnreadableError("constructors are nested too deeply", owner.module.source(function))
        _Frame(self, owner, function, module, given).run(function.body)
        self._depth -= 1


class _Frame(Expressions):
    """One constructor that is being followed."""

    # ---- statements ----------------------------------------------------------------------------------------

    def run(self, body: list[ast.stmt]) -> None:
        """Follow statements."""
        for node in body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                value = self.eval(node.value)
                for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                    self._store(dotted_name(target), value)
            elif isinstance(node, ast.Expr):
                self._inherit(node.value)
            elif isinstance(node, ast.Assert):
                self._assertion(node)
            elif isinstance(node, ast.If):
                self._condition(node)
            elif any(called(inner) in LAYERS for inner in ast.walk(node)):
                raise UnreadableError("modules are made in a way that is not followed", self.source(node))

    def _store(self, target: str | None, value: Value) -> None:
        if target is None:
            return
        *path, last = target.split(".")
        if not path:
            self.locals[last] = value
        elif self.look_up(".".join(path)) == Key(""):
            self.builder.overlay[last] = value
        else:
            holder = self.look_up(".".join(path))
            if isinstance(holder, Module):
                holder.attributes[last] = value

    def _inherit(self, node: ast.expr) -> None:
        """`super().__init__(…)`."""
        function = node.func if isinstance(node, ast.Call) else None
        if (
            not isinstance(node, ast.Call)
            or not isinstance(function, ast.Attribute)
            or function.attr != "__init__"
        ):
            return
        base = base_of(self.builder.syntax, self.owner) if called(function.value) == "super" else None
        if base is not None:
            self.builder.initialise(base, self.module, self.arguments(node))

    def _assertion(self, node: ast.Assert) -> None:
        rule = {
            "self.total_num_heads % tp_size == 0": "heads divisible",
            "tp_size % self.total_num_kv_heads == 0": "key-value heads divide",
        }.get(ast.unparse(node.test))
        if rule is not None:
            self.builder.check(
                ConstructionRule(rule, "AssertionError", "", None, (), None, self.source(node))
            )

    # ---- conditions ----------------------------------------------------------------------------------------

    def _condition(self, node: ast.If) -> None:
        if self._refusal(node) or self._default(node) or self._stated(node):
            return
        flag = self._test(node.test)
        makes = any(called(inner) in _MAKES for inner in ast.walk(node))
        if not makes:
            self._either(node)
        elif flag == Literal(False):
            self.run(node.orelse)
        elif isinstance(flag, Flag):
            self._under(flag.switch, node)
        else:
            raise UnreadableError("a module depends on a condition that is not known", self.source(node))

    def _test(self, node: ast.expr) -> Value:
        value = self.eval(node)
        found = switch(value, self.source(node))
        return value if found is None else Flag(found)

    def _under(self, when: Switch, node: ast.If) -> None:
        """What is made in the body exists only if the switch is on; the other branch makes nothing."""
        before = dict(self.module.attributes)
        self.run(node.orelse)
        if any(
            isinstance(value, Module | Leaf) and before.get(name) is not value
            for name, value in self.module.attributes.items()
        ):
            raise UnreadableError("a module is made under a condition or else", self.source(node))
        self.module.attributes = {
            name: value for name, value in self.module.attributes.items() if value != NONE or name in before
        }
        outer, self.builder.when = self.builder.when, when
        self.run(node.body)
        self.builder.when = outer
        for name, value in self.module.attributes.items():
            if before.get(name) is not value and isinstance(value, Module | Leaf):
                for leaf in _leaves(value):
                    leaf.when = leaf.when or when

    def _either(self, node: ast.If) -> None:
        """Branches that make nothing: a name that they leave with different values is unseen."""
        kept = dict(self.locals), dict(self.module.attributes)
        self.run(node.body)
        one = dict(self.locals), dict(self.module.attributes)
        self.locals, self.module.attributes = dict(kept[0]), dict(kept[1])
        self.run(node.orelse)
        for after, values in ((one[0], self.locals), (one[1], self.module.attributes)):
            for name in after.keys() | values.keys():
                if after.get(name) != values.get(name):
                    values[name] = UNSEEN

    def _refusal(self, node: ast.If) -> bool:
        """`if hidden_act != "silu": raise ValueError(…)`."""
        raised = node.body[0]
        test = node.test
        if not (isinstance(raised, ast.Raise) and isinstance(raised.exc, ast.Call)):
            return False
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.NotEq):
            allowed = text_of(test.comparators[0])
            if self.eval(test.left) == Key("hidden_act") and allowed is not None:
                message = raised.exc.args[0]
                words = "".join(
                    text_of(part) or "{hidden_act}"
                    for part in (message.values if isinstance(message, ast.JoinedStr) else [message])
                )
                exception = called(raised.exc) or "ValueError"
                self.builder.check(
                    ConstructionRule(
                        "activation", exception, words, None, (allowed,), None, self.source(message)
                    )
                )
        return True

    def _default(self, node: ast.If) -> bool:
        """`if x is None: x = …`: another key, or a count, takes its place."""
        test = node.test
        if node.orelse or not (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is)):
            return False
        value = self.eval(test.left)
        if not isinstance(value, Key | Product) or self.eval(test.comparators[0]) != NONE:
            return False
        if value == Key("head_dim"):
            return True  # heads and hidden size decide, as they do wherever head_dim is not stated
        self.run(node.body)
        if value == Key(_DRAFT_VOCABULARY):
            size = Size(
                "draft_vocabulary", self.source(node), {}, None, (_DRAFT_VOCABULARY,), "vocab_size", None
            )
            if self.builder.overlay.get(_DRAFT_VOCABULARY) != Key("vocab_size"):
                raise UnreadableError(
                    "the default of the draft vocabulary is not understood", self.source(node)
                )
            self.builder.overlay[_DRAFT_VOCABULARY] = Product((size,))
            return True
        name = dotted_name(test.left)
        counted = self.look_up(name or "")
        sizes = [f for f in factors(counted) or () if isinstance(f, Size)]
        if isinstance(value, Key) and len(sizes) == 1 and name is not None:
            self._store(name, Product((replace(sizes[0], first=(value.path, *sizes[0].first)),)))
        return True

    def _stated(self, node: ast.If) -> bool:
        """`if "key" in config: x = config["key"] else: x = True`, and `if hasattr(config, "key"): x = config.key`."""
        match = re.fullmatch(r"(?:\w+ is not None and )?'(\w+)' in (\w+)", ast.unparse(node.test))
        if match:
            holder = self.look_up(match[2])
            names = {
                dotted_name(s.targets[0]) for s in (*node.body, *node.orelse) if isinstance(s, ast.Assign)
            }
            default = (
                self.eval(node.orelse[0].value)
                if node.orelse and isinstance(node.orelse[0], ast.Assign)
                else NONE
            )
            if not isinstance(holder, Key) or len(names) != 1 or default != Literal(True):
                raise UnreadableError("a condition on the config is not understood", self.source(node))
            path = f"{holder.path}.{match[1]}"
            self._store(names.pop(), Flag(Switch(match[1], self.source(node), (), (path,), (path,))))
            return True
        if called(node.test) != "hasattr" or not isinstance(node.test, ast.Call):
            return False
        key = text_of(node.test.args[1])
        if self.eval(node.test.args[0]) != Key("") or key is None:
            return False
        statement = node.body[0]
        name = dotted_name(statement.targets[0]) if isinstance(statement, ast.Assign) else None
        if name is None or not isinstance(statement, ast.Assign):
            return False
        before = self.look_up(name)
        value, source = self.eval(statement.value), self.source(statement)
        if node.orelse and isinstance(node.orelse[0], ast.Assign):
            before = self.eval(node.orelse[0].value)
        self._store(name, self._chosen(key, value, before, source))
        return True

    @staticmethod
    def _chosen(key: str, value: Value, other: Value, source: Source) -> Value:
        """`value`, which is about `key`, where the key is stated, else `other`."""
        one, rest = factors(value), factors(other)
        if (
            one
            and rest
            and len(one) == len(rest)
            and one[1:] == rest[1:]
            and isinstance(rest[0], str)
            and one[0] == key
        ):
            return Product((Size(key, source, {}, key, (), rest[0], None), *one[1:]))
        found = switch(other, source)
        if value == Key(key) and found is not None and not found.none and not found.present:
            return Flag(Switch(key, source, found.any, (), (key,)))
        return UNSEEN


def _leaves(value: Value) -> Iterator[Leaf]:
    if isinstance(value, Leaf):
        yield value
    elif isinstance(value, Module):
        for inner in value.attributes.values():
            yield from _leaves(inner)
