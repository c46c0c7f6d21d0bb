"""Loaders that hand each tensor on to the target class's own `load_weights`: of the first EAGLE-3 class, of EAGLE-1's.

The drafter's loop takes out the token map, or the head, and puts `model.` before the other names; the target class's
loader then skips some names, and, in older releases, ends in an exception where a shard's parameter does not exist.
"""

from __future__ import annotations

import ast

from eagle3lab.engines.extract.forms import UnreadableError, assigned_name, is_harmless, shards, words_in_name
from eagle3lab.engines.extract.sglang.loop import WARNED, LoopReading, open_loop
from eagle3lab.engines.extract.syntax import ClassRef, Syntax, called, dotted_name, text_of
from eagle3lab.engines.facts import NameRules, Prefix, Source, Special, Translation

_ALL_LAYERS = ("self.start_layer = 0", "self.end_layer = config.num_hidden_layers")


def delegates(function: ast.FunctionDef) -> bool:
    """Whether a `load_weights` calls that of its ancestor."""
    return any(_is_super(node) for node in ast.walk(function))


def _is_super(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "load_weights"
        and called(node.func.value) == "super"
    )


def read_delegating(syntax: Syntax, owner: ClassRef, reading: LoopReading) -> NameRules:
    """The rules of the drafter's loop and of the loader it hands on to, as one.

    Raises:
        UnreadableError: A statement of either has no form that is known here.
    """
    prefix = _read_own(reading)
    parents = [base for base in syntax.bases(owner) if base.method("load_weights")]
    function = parents[0].method("load_weights") if parents else None
    if function is None:
        raise UnreadableError("hands on to a loader that is not there", owner.source)
    return read_parent(
        syntax, owner, reading.special, prefix, open_loop(*loop_of(syntax, parents[0], function))
    )


def read_parent(
    syntax: Syntax,
    owner: ClassRef,
    special: list[Special],
    prefix: Prefix | None,
    loop: LoopReading,
    translation: Translation | None = None,
) -> NameRules:
    """The rules of the loop that `owner`'s names are handed on to, behind its own.

    Raises:
        UnreadableError: A statement has no form that is known here.
    """
    parent = _Parent(loop, syntax.tree.text(owner.module.file) or "", [rule.contains for rule in special])
    for statement in parent.reading.body:
        parent.read(statement)
    if parent.lookup is None:
        raise UnreadableError("does not look parameters up in a way that is known", owner.source)
    return NameRules(
        renames=(),
        special=(*special, *parent.reading.special),
        stacked=tuple(parent.reading.stacked),
        prefixes=("",),
        unmatched=parent.unmatched,
        source=parent.lookup,
        own_prefix=prefix,
        unmatched_shard=parent.unmatched_shard,
        optional=tuple(dict.fromkeys(parent.optional)),
        unfollowed=tuple(dict.fromkeys(parent.unfollowed)),
        missing_shard="goes on",
        optional_starts=tuple(parent.optional_starts),
        translation=translation,
        layers=_layers(syntax, parent) if parent.layers is not None else None,
        unmatched_name=None if parent.unmatched == WARNED else parent.unmatched,
    )


def loop_of(syntax: Syntax, owner: ClassRef, function: ast.FunctionDef) -> tuple[ClassRef, ast.FunctionDef]:
    """The method with the loop that a `load_weights` comes to: itself, or the one it calls.

    It may call another when an environment variable asks for it, or when weights are loaded a second time; what is
    described is the first load, with the variable as the release sets it.
    """
    if any(isinstance(node, ast.For) for node in function.body):
        return owner, function
    body = [node for node in function.body if not isinstance(node, ast.Import | ast.ImportFrom | ast.Assign)]
    last = body[-1]
    if isinstance(last, ast.If) and dotted_name(last.test) == "is_reload" and len(last.orelse) == 1:
        last = last.orelse[0]
    elif not all(_is_off(syntax, node) or is_harmless(node) for node in body[:-1]):
        raise UnreadableError("which loader is called is not understood", owner.module.source(function))
    call = last.value if isinstance(last, ast.Expr | ast.Return) else None
    name = dotted_name(call.func) if isinstance(call, ast.Call) else None
    inner = (
        syntax.method(owner, (name or "").removeprefix("self.")) if (name or "").startswith("self.") else None
    )
    if inner is None or not isinstance(call, ast.Call) or ast.unparse(call.args[0]) != "weights":
        raise UnreadableError("which loader is called is not understood", owner.module.source(last))
    return loop_of(syntax, *inner)


def _layers(syntax: Syntax, parent: _Parent) -> Source | None:
    """Where names of other layers are left out, if a name's layer is found in the way that is known."""
    found = syntax.function(parent.reading.module, "get_layer_id")
    if found is None or "'layers\\\\.(\\\\d+)\\\\.'" not in ast.unparse(found[1]):
        raise UnreadableError(
            "how the layer of a name is found is not understood", parent.reading.module.line(1)
        )
    return parent.layers


def _is_off(syntax: Syntax, node: ast.stmt) -> bool:
    """`if envs.X.get(): return ...` where X is false unless someone sets it."""
    test = node.test if isinstance(node, ast.If) else None
    name = dotted_name(test.func) if isinstance(test, ast.Call) else None
    if name is None or not name.startswith("envs.") or not name.endswith(".get"):
        return False
    environ = syntax.module("environ.py")
    return environ is not None and environ.matching(f"{name.split('.')[1]} = EnvBool(False)") is not None


def _read_own(reading: LoopReading) -> Prefix:
    """`if "d2t" in name: keep`, then `if none of these in name: hand on with a prefix, elif the head: as it is`."""
    if len(reading.body) == 1:
        return _read_all_but_head(reading, reading.body[0])
    if len(reading.body) != 2 or not all(isinstance(node, ast.If) for node in reading.body):
        raise reading.fail("the loop is not understood", reading.body[0])
    keep, hand_on = reading.body
    assert isinstance(keep, ast.If) and isinstance(hand_on, ast.If)
    map_words = words_in_name(reading.name, keep.test)
    if map_words is None or [ast.unparse(node) for node in keep.body] != [reading.offsets] or keep.orelse:
        raise reading.fail("what is done with the token map is not understood", keep)
    excluded = _words_not_in_name(reading.name, hand_on.test)
    head = hand_on.orelse[0] if len(hand_on.orelse) == 1 else None
    head_words = words_in_name(reading.name, head.test) if isinstance(head, ast.If) else None
    if excluded is None or head_words is None or len(head_words) != 1 or not isinstance(head, ast.If):
        raise reading.fail("which tensors are handed on is not understood", hand_on)
    as_it_is = f"super().load_weights([({reading.name}, {reading.weight})])"
    if [ast.unparse(node) for node in head.body] != [as_it_is] or head.orelse:
        raise reading.fail("how the head is handed on is not understood", head)
    source = reading.module.source(keep)
    reading.special += [Special(word, "hot_token_id", source) for word in map_words]
    skipped = [word for word in excluded if word not in (*map_words, *head_words)]
    # A name with the head's word in it is handed on, whatever else it contains.
    where = reading.module.source(hand_on)
    reading.special += [Special(word, "skipped", where, unless=head_words[0]) for word in skipped]
    return _prefix(reading, hand_on, head_words[0])


def _read_all_but_head(reading: LoopReading, node: ast.stmt) -> Prefix:
    """`if "lm_head" not in name: name = "model." + name; super().load_weights([(name, weight)])`."""
    words = _words_not_in_name(reading.name, node.test) if isinstance(node, ast.If) else None
    if words is None or not isinstance(node, ast.If) or node.orelse or len(node.body) != 2:
        raise reading.fail("which tensors are handed on is not understood", node)
    renamed, name = node.body[0], reading.name
    text = None
    if isinstance(renamed, ast.Assign) and isinstance(renamed.value, ast.BinOp):
        text = text_of(renamed.value.left)
    as_known = [f"{name} = {text!r} + {name}", f"super().load_weights([({name}, {reading.weight})])"]
    if text is None or [ast.unparse(inner) for inner in node.body] != as_known:
        raise reading.fail("how tensors are handed on is not understood", node)
    reading.special += [Special(word, "skipped", reading.module.source(node)) for word in words]
    return Prefix(text, "", reading.module.source(renamed))


def _prefix(reading: LoopReading, node: ast.If, unless: str) -> Prefix:
    """`new_name = f"model.{name}"; super().load_weights([(new_name, weight)])`."""
    first = node.body[0]
    if len(node.body) == 2 and isinstance(first, ast.Assign) and isinstance(first.value, ast.JoinedStr):
        parts, new = first.value.values, dotted_name(first.targets[0])
        handed = f"super().load_weights([({new}, {reading.weight})])"
        if (
            len(parts) == 2
            and isinstance(parts[1], ast.FormattedValue)
            and ast.unparse(node.body[1]) == handed
        ):
            text = text_of(parts[0])
            if text is not None and dotted_name(parts[1].value) == reading.name:
                return Prefix(text, unless, reading.module.source(first))
    raise reading.fail("how tensors are handed on is not understood", node)


def _words_not_in_name(name: str, test: ast.expr) -> list[str] | None:
    """The literals of `"x" not in name and "y" not in name`."""
    words = []
    for value in test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]:
        if not (isinstance(value, ast.Compare) and isinstance(value.ops[0], ast.NotIn)):
            return None
        word = text_of(value.left)
        if word is None or dotted_name(value.comparators[0]) != name:
            return None
        words.append(word)
    return words


class _Parent:
    """The loader that tensors are handed on to."""

    def __init__(self, reading: LoopReading, drafter: str, gone: list[str]) -> None:
        self.reading = reading
        self._drafter = drafter
        self._gone = gone
        self.unmatched = WARNED
        self.layers: Source | None = None
        self.lookup: Source | None = None
        self.unmatched_shard: str | None = None
        self.optional: list[str] = []
        self.optional_starts: list[str] = []
        self.unfollowed: list[str] = []

    def read(self, node: ast.stmt) -> None:
        """One statement of its loop."""
        if isinstance(node, ast.If):
            if not (self._never_holds(node) or self._is_about_others(node) or self._fills_head(node)):
                self._condition(node)
        elif isinstance(node, ast.For):
            self._shards(node)
        elif isinstance(node, ast.Assign) and called(node.value) == "get_layer_id":
            return  # only of use to the condition on pipeline stages
        elif not is_harmless(node):
            raise self.reading.fail("a statement of the loop is not understood", node)

    def _never_holds(self, node: ast.If) -> bool:
        """Layers of other pipeline stages are left out, but a drafter has no stages: its model lacks the attribute."""
        parts = (
            node.test.values
            if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
            else []
        )
        asked = [part for part in parts if called(part) == "hasattr" and isinstance(part, ast.Call)]
        attributes = [text_of(part.args[1]) for part in asked if dotted_name(part.args[0]) == "self.model"]
        if any(attribute is not None and attribute not in self._drafter for attribute in attributes):
            return True
        if attributes == ["start_layer"] and all(text in self._drafter for text in _ALL_LAYERS):
            # A drafter that says it holds all its layers: names of others are left out.
            self.layers = self.reading.module.source(node)
            return True
        return False

    def _is_about_others(self, node: ast.If) -> bool:
        """A condition on names that the drafter's own loop does not hand on."""
        parts = node.test.values if isinstance(node.test, ast.BoolOp) else [node.test]
        if isinstance(node.test, ast.BoolOp) and not isinstance(node.test.op, ast.And):
            return False
        asked = [word for part in parts for word in words_in_name(self.reading.name, part) or ()]
        return any(gone in word for word in asked for gone in self._gone)

    def _fills_head(self, node: ast.If) -> bool:
        """The embedding also loaded into a head of its own, where both are tied: a tied drafter has none."""
        known = f"{self.reading.name} == 'model.embed_tokens.weight'"
        if ast.unparse(node.test) != known or len(node.body) != 1 or node.orelse:
            return False
        outer = node.body[0]
        inner = outer.body[0] if isinstance(outer, ast.If) and len(outer.body) == 1 else None
        if not isinstance(outer, ast.If) or not isinstance(inner, ast.If) or outer.orelse or inner.orelse:
            return False
        parts = outer.test.values if isinstance(outer.test, ast.BoolOp) else []
        return (
            "self.config.tie_word_embeddings" in [ast.unparse(part) for part in parts]
            and ast.unparse(inner.test) == f"'lm_head.weight' in {self.reading.parameters}"
            and "self.lm_head = self.model.embed_tokens" in self._drafter
        )

    def _condition(self, node: ast.If) -> None:
        name, source = self.reading.name, self.reading.module.source(node)
        words = words_in_name(name, node.test)
        if called(node.test) == "endswith" and isinstance(node.test, ast.Call):
            # Scales of quantised layers get other names; they are looked into no further.
            ending = text_of(node.test.args[0])
            if ending is not None and len(node.body) == 1 and assigned_name(node.body[0]) == name:
                self.unfollowed.append(ending)
                return
        if words is not None and not isinstance(node.body[-1], ast.Continue):
            # Scales of a quantised cache get other names; they are looked into no further.
            self.unfollowed += words
            return
        if len(node.body) != 1 or not isinstance(node.body[0], ast.Continue) or node.orelse:
            raise self.reading.fail("a condition of the loop is not understood", node)
        if words is not None:
            self.reading.special += [Special(word, "skipped", source) for word in words]
            return
        parts = (
            node.test.values
            if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.And)
            else []
        )
        if len(parts) == 2 and ast.unparse(parts[0]) == "self.config.tie_word_embeddings":
            tied = words_in_name(name, parts[1])
            if tied is not None:
                self.reading.special += [Special(word, "skipped", source, "tied") for word in tied]
                return
        if len(parts) == 2 and called(parts[0]) == "startswith" and isinstance(parts[0], ast.Call):
            start = text_of(parts[0].args[0])
            absent = f"{name} not in {self.reading.parameters}"
            if start is not None and ast.unparse(parts[1]) == absent:
                self.optional_starts.append(start)
                return
        raise self.reading.fail("a condition of the loop is not understood", node)

    def _shards(self, node: ast.For) -> None:
        """The loop over fused parameters, whose `else` handles all other names."""
        reading = self.reading
        table = reading.tables.get(dotted_name(node.iter) or "")
        if not isinstance(table, ast.List | ast.Tuple) or not isinstance(node.target, ast.Tuple):
            raise reading.fail("a loop over shards is not understood", node)
        fused, part, _ = (dotted_name(element) for element in node.target.elts)
        reading.stacked += shards(reading.module, table)
        opening = [
            f"if {part} not in {reading.name}:\n    continue",
            f"{reading.name} = {reading.name}.replace({part}, {fused})",
        ]
        if [ast.unparse(inner) for inner in node.body[:2]] != opening:
            raise reading.fail("a loop over shards is not understood", node)
        rest = self._optional(node.body[2:])
        known = f"{reading.parameters}[{reading.name}]"
        self.unmatched_shard = "KeyError"
        if rest and ast.unparse(rest[0]) == f"if {reading.name} not in {reading.parameters}:\n    continue":
            rest, self.unmatched_shard = rest[1:], None
        if not rest or not isinstance(rest[0], ast.Assign) or ast.unparse(rest[0].value) != known:
            raise reading.fail("shards are looked up in a way that is not known", node)
        self._plain(self._optional(node.orelse), node)

    def _optional(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Leave out `if name.endswith(".bias") and name not in params: continue`, and remember the ending."""
        reading = self.reading
        for number, node in enumerate(body):
            if not isinstance(node, ast.If) or not isinstance(node.body[0], ast.Continue):
                return body[number:]
            parts = node.test.values if isinstance(node.test, ast.BoolOp) else []
            absent = f"{reading.name} not in {reading.parameters}"
            if ast.unparse(node.test) == absent:
                return body[number:]
            if len(parts) != 2 or called(parts[0]) != "endswith" or ast.unparse(parts[1]) != absent:
                raise reading.fail("a condition on names is not understood", node)
            ending = text_of(parts[0].args[0]) if isinstance(parts[0], ast.Call) else None
            if ending is None:
                raise reading.fail("a condition on names is not understood", node)
            self.optional.append(ending)
        return []

    def _plain(self, body: list[ast.stmt], loop: ast.For) -> None:
        reading, guard = self.reading, body[0] if body else None
        if body and ast.unparse(body[0]).endswith(f" = {reading.parameters}[{reading.name}]"):
            # Taken without asking whether it is there.
            self.unmatched, self.lookup = "KeyError", reading.module.source(body[0])
            return
        tests = {f"{reading.name} in {reading.parameters}", f"{reading.name} in {reading.parameters}.keys()"}
        if len(body) != 1 or not isinstance(guard, ast.If) or ast.unparse(guard.test) not in tests:
            raise reading.fail("parameters are looked up in a way that is not known", loop)
        said = [called(node.value) for node in guard.orelse if isinstance(node, ast.Expr)]
        if said != ["warning"] or len(guard.orelse) != 1:
            raise reading.fail("what happens to an unknown name is not understood", guard)
        self.lookup = reading.module.source(guard)
