"""A drafter class built on paper: its constructors followed statement by statement, with the config unknown.

What comes out are the parameters with their shapes in terms of config keys, the sizes and switches they depend
on, and the checks that are met on the way, in order. Nothing of the engine runs. A statement that cannot be
followed makes its values unseen; a parameter that depends on one makes the whole construction unknown.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from eagle3lab.engines.extract.forms import UnreadableError
from eagle3lab.engines.extract.sglang.checks import Checks
from eagle3lab.engines.extract.sglang.expressions import Expressions
from eagle3lab.engines.extract.sglang.layers import LAYERS
from eagle3lab.engines.extract.sglang.values import Config, IsFirstLayer, Keys, Module, Sequence, Value
from eagle3lab.engines.extract.syntax import ClassRef, Syntax, called, dotted_name, text_of
from eagle3lab.engines.extract.values import NONE, UNSEEN, Leaf, Literal
from eagle3lab.engines.facts import Size, Source, Switch

_DEEPEST = 12
# Calls that add modules to the model from within a loop.
_GROWS = {*LAYERS, "append", "extend", "insert", "add_module", "register_module", "setattr"}


class Builder:
    """Builds classes; remembers the checks that are met.

    Attributes:
        checks: What must hold for the class to be built, in the order in which it is met.
        assumed: Config keys that were taken not to be null, with the condition that asks; a check must bear it out.
        unfollowed_keys: Config keys that were taken to be absent.
        tied: Where a module takes the place of another under a switch: its holder, its name there, it, the switch.
    """

    def __init__(self, syntax: Syntax, architecture: str, joins_states: bool) -> None:
        self.syntax = syntax
        self.checks = Checks(joins_states)
        self._depth = 0
        # Config keys that the constructor itself has given a value, and what is known of a config that leads here.
        self.overlay: dict[str, Value] = {"architectures": Sequence((Literal(architecture),))}
        self.assumed: dict[str, Source] = {}
        self.tied: list[tuple[Module, str, Module, Switch]] = []
        self.unfollowed_keys: list[str] = []

    def build(self, cls: ClassRef, given: Mapping[str, Value]) -> Module:
        """The module that `cls(**given)` makes.

        Raises:
            UnreadableError: A parameter depends on something that cannot be followed.
        """
        module = Module()
        self.initialise(cls, module, given)
        return module

    def initialise(self, cls: ClassRef, module: Module, given: Mapping[str, Value]) -> None:
        """Run the class's `__init__` on `module`."""
        found = self.syntax.method(cls, "__init__")
        if found is None:
            return
        owner, function = found
        with self.deeper(owner.module.source(function)):
            _Frame(self, owner, function, module, given, owner).run(function.body)

    @contextmanager
    def deeper(self, source: Source) -> Iterator[None]:
        """One more call inside the others."""
        self._depth += 1
        if self._depth > _DEEPEST:
            raise UnreadableError("constructors are nested too deeply", source)
        try:
            yield
        finally:
            self._depth -= 1


class _Frame(Expressions):
    """One constructor that is being followed."""

    # ---- statements ----------------------------------------------------------------------------------------

    def run(self, body: list[ast.stmt]) -> bool:
        """Follow statements; True if a `return` was met."""
        for statement in body:
            if isinstance(statement, ast.Return):
                return True
            if isinstance(statement, ast.Assign | ast.AnnAssign):
                self._assign(statement)
            elif isinstance(statement, ast.Expr):
                self._expression(statement.value)
            elif isinstance(statement, ast.With):
                if self.run(statement.body):
                    return True
            elif isinstance(statement, ast.Assert):
                self.builder.checks.assertion(statement, self.source(statement))
            elif isinstance(statement, ast.If):
                if self._condition(statement):
                    return True
            elif any(called(inner) in _GROWS for inner in ast.walk(statement)):
                raise UnreadableError(
                    "modules are made in a way that is not followed", self.source(statement)
                )
        return False

    def _assign(self, node: ast.Assign | ast.AnnAssign) -> None:
        if node.value is None:
            return
        value = self.eval(node.value)
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Attribute) and self._owner_is_config(target):
                self.builder.checks.overwritten(target.attr, value, self.source(node))
            self._store(dotted_name(target), value)

    def _owner_is_config(self, target: ast.Attribute) -> bool:
        return self.eval(target.value) == Config()

    def _store(self, target: str | None, value: Value) -> None:
        if target is None:
            return
        *path, last = target.split(".")
        if not path:
            self.locals[last] = value
            return
        holder: Value = self.module if path[0] == "self" else self.locals.get(path[0], UNSEEN)
        for name in path[1:]:
            holder = holder.attributes.get(name, UNSEEN) if isinstance(holder, Module) else UNSEEN
        if isinstance(holder, Module):
            holder.attributes[last] = value

    def _expression(self, node: ast.expr) -> None:
        if not isinstance(node, ast.Call):
            return
        function = node.func
        if (
            isinstance(function, ast.Attribute)
            and function.attr == "__init__"
            and called(function.value) == "super"
        ):
            bases = self.builder.syntax.bases(self.owner) if self.owner else ()
            if bases:
                self.builder.initialise(bases[0], self.module, self._arguments(node))

    # ---- conditions ----------------------------------------------------------------------------------------

    def _condition(self, node: ast.If) -> bool:
        if self._assumed(node):
            return self.run(node.body)
        test = self.eval(node.test)
        if isinstance(test, IsFirstLayer):
            self._in_first_layer(node)
            return False
        if isinstance(test, Literal):
            return self.run(node.body if test.value else node.orelse)
        if isinstance(test, Config) and test.path:
            test = Keys((test.path,), self.source(node))
        if isinstance(test, Keys):
            return self._switched(node, test)
        if self.builder.checks.refusal(node, self._raised(node), self.eval):
            return False
        absent = self._absent(node)
        if absent is not None and absent.startswith("original_"):
            # Only the engine itself writes such a key, when it changes a size; no checkpoint should hold one.
            self.builder.unfollowed_keys.append(absent)
            return self.run(node.orelse)
        special = absent or self._model_type(node)
        if special is not None:
            self._merge(node, special)
            return False
        self._either(node)
        return False

    def _assumed(self, node: ast.If) -> bool:
        """`if x is not None:` of a config key: taken to hold, and to be borne out by a check later on."""
        test = node.test
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.IsNot) or not node.orelse:
            return False
        value = self.eval(test.left)
        if not isinstance(value, Config) or not value.path or self.eval(test.comparators[0]) != NONE:
            return False
        if value.path == "head_dim":
            return True  # what stands in for it is the same as what the config class does
        if not any(called(inner) in LAYERS for inner in ast.walk(node)):
            return False
        self.builder.assumed.setdefault(value.path, self.source(node))
        return True

    def _in_first_layer(self, node: ast.If) -> None:
        """`if layer_id == 0: del self.norm`, and perhaps a function in its place."""
        for statement in node.body:
            if isinstance(statement, ast.Delete):
                for target in statement.targets:
                    value = self.eval(target)
                    if not isinstance(value, Module):
                        raise UnreadableError("what the first layer lacks is not known", self.source(node))
                    for leaf in value.leaves():
                        leaf.first_layer = False
            elif not self._sets_function(statement):
                raise UnreadableError("what is special in the first layer is not known", self.source(node))
        if node.orelse:
            raise UnreadableError("what is special in later layers is not known", self.source(node))

    def _sets_function(self, node: ast.stmt) -> bool:
        """`setattr(self, "norm", lambda x: x)`."""
        call = node.value if isinstance(node, ast.Expr) else None
        return (
            isinstance(call, ast.Call) and called(call) == "setattr" and isinstance(call.args[2], ast.Lambda)
        )

    def _raised(self, node: ast.If) -> Source | None:
        """The line of the message, if the body does nothing but raise."""
        only = node.body[0]
        if not isinstance(only, ast.Raise) or not isinstance(only.exc, ast.Call) or not only.exc.args:
            return None
        return self.source(only.exc.args[0])

    def _switched(self, node: ast.If, test: Keys) -> bool:
        """A condition that config keys decide: what is made under it exists only then."""
        before = dict(self.module.attributes)
        # Tied embeddings make nothing: what the other branch makes is what depends on the condition.
        tied = test.keys == ("tie_word_embeddings",)
        on, off = _switch(test), _switch(test, negated=True)
        with self.builder.checks.under(off if tied else on):
            self._branch(node.orelse if tied else node.body)
        made, self.module.attributes = self.module.attributes, before
        with self.builder.checks.under(on if tied else off):
            other, _ = self._branch_copy(node.body if tied else node.orelse)
        if tied:
            self.builder.tied += [
                (self.module, name, rival, on)
                for name, rival in other.items()
                if isinstance(rival, Module) and rival is not self.module.attributes.get(name)
            ]
        for name, value in made.items():
            if name in before and value is before[name]:
                continue
            if isinstance(value, Module):
                rival = other.get(name)
                if isinstance(rival, Module) and not (
                    tied and any(rival is known for known in self._modules())
                ):
                    raise UnreadableError("a module differs by a condition", self.source(node))
                for leaf in value.leaves():
                    leaf.when = off if tied else on
            self.module.attributes[name] = value
        return False

    def _modules(self) -> list[Module]:
        """Every module made so far."""
        found, waiting = [], [self.module]
        while waiting:
            inner = [value for value in waiting.pop().attributes.values() if isinstance(value, Module)]
            found += inner
            waiting += inner
        return found

    def _branch(self, body: list[ast.stmt]) -> None:
        if self.run(body):
            raise UnreadableError("a constructor returns under a condition", self.source(body[-1]))

    def _branch_copy(self, body: list[ast.stmt]) -> tuple[dict[str, Value], dict[str, Value]]:
        """Attributes and local names as the branch leaves them; nothing of it stays."""
        kept = dict(self.module.attributes), dict(self.locals)
        self._branch(body)
        result = self.module.attributes, self.locals
        self.module.attributes, self.locals = kept
        return result

    def _absent(self, node: ast.If) -> str | None:
        """`hasattr(config, "key")`: the key."""
        test = node.test
        if not isinstance(test, ast.Call) or called(test) != "hasattr" or len(test.args) != 2:
            return None
        return text_of(test.args[1]) if self.eval(test.args[0]) == Config() else None

    def _model_type(self, node: ast.If) -> str | None:
        """`config.model_type == "llama4_text"`: "=llama4_text"."""
        test = node.test
        if not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.Eq):
            return None
        return f"={text_of(test.comparators[0])}" if self.eval(test.left) == Config("model_type") else None

    def _merge(self, node: ast.If, key: str) -> None:
        """Two branches that give the same names config keys of their own: each becomes a size."""
        one, other = (
            {**names, **{f"self.{k}": v for k, v in attributes.items()}}
            for attributes, names in map(self._branch_copy, (node.body, node.orelse))
        )
        sources = {dotted_name(s.targets[0]): self.source(s) for s in node.body if isinstance(s, ast.Assign)}
        for name in one.keys() | other.keys():
            left, right = one.get(name, UNSEEN), other.get(name, UNSEEN)
            if left != right:
                self._store(name, self._merged(left, right, key, sources.get(name) or self.source(node)))

    def _merged(self, left: Value, right: Value, key: str, source: Source) -> Value:
        if (
            isinstance(left, Module)
            and isinstance(right, Module)
            and left.attributes.keys() == right.attributes.keys()
        ):
            pairs = ((name, left.attributes[name], right.attributes[name]) for name in left.attributes)
            return Module({name: self._merged(one, other, key, source) for name, one, other in pairs})
        if isinstance(left, Leaf) and isinstance(right, Leaf) and left.kind == right.kind:
            rows, columns = (
                self._merged_factors(getattr(left, part), getattr(right, part), key, source)
                for part in ("rows", "columns")
            )
            return Leaf(left.kind, rows, columns, columns, left.source, left.when)
        if isinstance(left, Config) and isinstance(right, Config):
            return _choice(key, left.path, right.path, source)
        return UNSEEN

    def _merged_factors(
        self,
        left: tuple[str | int | Size, ...],
        right: tuple[str | int | Size, ...],
        key: str,
        source: Source,
    ) -> tuple[str | int | Size, ...]:
        if len(left) != len(right):
            raise UnreadableError("a shape differs by a condition", source)
        merged: list[str | int | Size] = []
        for one, other in zip(left, right, strict=True):
            if one == other or (isinstance(one, Size) and isinstance(other, Size) and _alike(one, other)):
                merged.append(one)
            elif isinstance(one, str) and isinstance(other, str):
                merged.append(_choice(key, one, other, source))
            else:
                raise UnreadableError("a shape differs by a condition", source)
        return tuple(merged)

    def _either(self, node: ast.If) -> None:
        """Any other condition: `x is None` gives x a default; else what differs is unseen, and no module may."""
        if self._default(node):
            return
        before = dict(self.module.attributes)
        one, names = self._branch_copy(node.body)
        other, other_names = self._branch_copy(node.orelse)
        for name in one.keys() | other.keys():
            left, right = one.get(name, NONE), other.get(name, NONE)
            if left == right or left is right:
                continue
            if isinstance(left, Module | Leaf) or isinstance(right, Module | Leaf):
                raise UnreadableError("a module depends on a condition that is not known", self.source(node))
            before[name] = UNSEEN
        self.module.attributes = before
        for name in names.keys() | other_names.keys():
            if names.get(name) != other_names.get(name):
                self.locals[name] = UNSEEN

    def _default(self, node: ast.If) -> bool:
        """`if x is None: x = …`, x a config key: a size with a default."""
        test = node.test
        if node.orelse or not (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is)):
            return False
        key = self.eval(test.left)
        if not isinstance(key, Config) or not key.path or self.eval(test.comparators[0]) != NONE:
            return False
        self._branch(node.body)
        name = dotted_name(test.left)
        for statement in node.body:
            if not isinstance(statement, ast.Assign) or dotted_name(statement.targets[0]) != name:
                continue
            value = self.eval(statement.value)
            if isinstance(value, Config) and isinstance(test.left, ast.Name) and value.path:
                size = Size(
                    "head_rows", self.source(statement), {}, None, (), value.path, None, stated=(key.path,)
                )
                self._store(name, size)
                return True
            if isinstance(value, Config):
                # The engine writes the default into the config, where everything after it reads it.
                size = Size("head_rows", self.source(statement), {}, None, (key.path,), value.path, None)
                self.builder.overlay[key.path] = size
                return True
            if isinstance(value, Size):
                self._store(name, replace(value, first=(key.path, *value.first)))
                return True
        return False


def _alike(one: Size, other: Size) -> bool:
    """Whether two sizes are computed the same way, be it on different lines."""
    return replace(one, source=other.source) == other


def _choice(key: str, one: str, other: str, source: Source) -> Size:
    if key.startswith("="):
        return Size("mlp_size", source, {key[1:]: one}, None, (), other, None)
    return Size(key, source, {}, one, (), other, None)


def _switch(test: Keys, negated: bool = False) -> Switch:
    if test.keys == ("tie_word_embeddings",):
        return Switch(
            "own_head" if negated else "tied",
            test.source,
            () if negated else test.keys,
            test.keys if negated else (),
            (),
        )
    name = test.keys[0].rpartition(".")[2]
    return Switch(name, test.source, () if test.present else test.keys, (), test.keys if test.present else ())
