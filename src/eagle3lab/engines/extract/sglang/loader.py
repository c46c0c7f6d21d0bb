"""`load_weights` read as rules: what becomes of a tensor's name, statement by statement.

Every statement of the loop over the weights must be one of the forms known here, in the order in which
`NameRules` applies them. One that is not makes the whole loader unknown: half-read rules would give wrong
answers with confidence.
"""

from __future__ import annotations

import ast

from eagle3lab.engines.extract.forms import UnreadableError, assigned_name, is_harmless, shards, words_in_name
from eagle3lab.engines.extract.sglang.delegating import delegates, read_delegating
from eagle3lab.engines.extract.sglang.loop import SILENT, WARNED, LoopReading, open_loop
from eagle3lab.engines.extract.sglang.mapped import is_mapped, read_mapped
from eagle3lab.engines.extract.sglang.translating import read_translating, translates
from eagle3lab.engines.extract.syntax import ClassRef, Syntax, called, dotted_name, text_of
from eagle3lab.engines.facts import NameRules, Rename, Source, Special


def read_loader(syntax: Syntax, cls: ClassRef) -> NameRules:
    """The rules of the class's `load_weights`.

    Raises:
        UnreadableError: A statement of it has no form that is known here.
    """
    found = syntax.method(cls, "load_weights")
    if found is None:
        raise UnreadableError("has no load_weights", cls.source)
    owner, function = found
    if translates(function):
        return read_translating(syntax, owner, function)
    if is_mapped(function):
        return read_mapped(syntax, owner, function)
    reading = open_loop(owner, function)
    if delegates(function):
        return read_delegating(syntax, owner, reading)
    for statement in reading.body:
        _read_statement(reading, statement)
    if reading.lookup is None:
        raise UnreadableError(
            "does not look parameters up in a way that is known", owner.module.source(function)
        )
    prefixes, unmatched, source = reading.lookup
    return NameRules(
        tuple(reading.renames), tuple(reading.special), tuple(reading.stacked), prefixes, unmatched, source
    )


def _read_statement(reading: LoopReading, node: ast.stmt) -> None:
    if isinstance(node, ast.For) and called(node.iter) == "items":
        _read_rename_table(reading, node)
    elif isinstance(node, ast.For):
        _read_shards(reading, node)
    elif isinstance(node, ast.If):
        _read_condition(reading, node)
    elif isinstance(node, ast.Assign) and assigned_name(node) == reading.name:
        reading.enter(0, node)
        reading.renames.append(_rename(reading, node.value, node))
    elif not is_harmless(node):
        raise reading.fail("a statement of the loop is not understood", node)


def _read_rename_table(reading: LoopReading, node: ast.For) -> None:
    """`for old, new in TABLE.items(): [if old in name:] name = name.replace(old, new)`."""
    reading.enter(0, node)
    iterated = dotted_name(node.iter.func.value) if isinstance(node.iter, ast.Call) else None  # type: ignore[attr-defined]
    table = reading.tables.get(iterated or "")
    if not isinstance(table, ast.Dict) or not isinstance(node.target, ast.Tuple):
        raise reading.fail("a loop over renames is not understood", node)
    old, new = (dotted_name(element) for element in node.target.elts)
    body = node.body
    if len(body) == 1 and isinstance(body[0], ast.If) and not body[0].orelse:
        if ast.unparse(body[0].test) != f"{old} in {reading.name}":
            raise reading.fail("a condition on renames is not understood", body[0])
        body = body[0].body
    if len(body) != 1 or ast.unparse(body[0]) != f"{reading.name} = {reading.name}.replace({old}, {new})":
        raise reading.fail("a rename is not understood", node)
    for key, value in zip(table.keys, table.values, strict=True):
        before, after = text_of(key), text_of(value)
        if before is None or after is None:
            raise reading.fail("a rename is not between two literals", value)
        reading.renames.append(Rename(before, after, reading.module.source(value)))


def _rename(reading: LoopReading, value: ast.expr, node: ast.stmt) -> Rename:
    """`name.replace("old", "new")`."""
    if (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and value.func.attr == "replace"
        and dotted_name(value.func.value) == reading.name
        and len(value.args) == 2
    ):
        old, new = (text_of(argument) for argument in value.args)
        if old and new is not None:
            return Rename(old, new, reading.module.source(node))
    raise reading.fail("a rename is not understood", node)


def _read_condition(reading: LoopReading, node: ast.If) -> None:
    """`if "x" in name:` that renames, keeps the token map, or skips."""
    words = words_in_name(reading.name, node.test)
    if words is None or node.orelse:
        raise reading.fail("a condition of the loop is not understood", node)
    if len(node.body) == 1 and assigned_name(node.body[0]) == reading.name:
        rename = _rename(reading, node.body[0].value, node.body[0])  # type: ignore[attr-defined]
        # Replacing happens only where the text occurs, so a condition on that very text adds nothing.
        if words != [rename.old]:
            raise reading.fail("a rename under another condition is not understood", node)
        reading.enter(0, node)
        reading.renames.append(rename)
        return
    if not isinstance(node.body[-1], ast.Continue):
        raise reading.fail("a condition of the loop is not understood", node)
    reading.enter(1, node)
    kept = [inner for inner in node.body[:-1] if not is_harmless(inner)]
    source = reading.module.source(node)
    if not kept:
        reading.special += [Special(word, "skipped", source) for word in words]
        return
    if len(kept) != 1 or ast.unparse(kept[0]) != reading.offsets:
        raise reading.fail("what is done with a special tensor is not understood", kept[0])
    reading.special += [Special(word, "hot_token_id", source) for word in words]


def _read_shards(reading: LoopReading, node: ast.For) -> None:
    """The loop over fused parameters, whose `else` handles all other names."""
    reading.enter(2, node)
    table = reading.tables.get(dotted_name(node.iter) or "")
    if not isinstance(table, ast.List | ast.Tuple) or not isinstance(node.target, ast.Tuple):
        raise reading.fail("a loop over shards is not understood", node)
    fused, part, _ = (dotted_name(element) for element in node.target.elts)
    reading.stacked += shards(reading.module, table)
    body = list(node.body)
    opening = [
        f"if {part} not in {reading.name}:\n    continue",
        f"{reading.name} = {reading.name}.replace({part}, {fused})",
    ]
    if [ast.unparse(statement) for statement in body[:2]] != opening or not isinstance(body[-1], ast.Break):
        raise reading.fail("a loop over shards is not understood", node)
    sharded = _lookup(reading, body[2:-1], node)
    plain = _lookup(reading, node.orelse, node)
    if sharded[:2] != plain[:2]:
        raise reading.fail("shards and other names are looked up in different ways", node)
    reading.lookup = plain


def _lookup(
    reading: LoopReading, body: list[ast.stmt], loop: ast.stmt
) -> tuple[tuple[str, ...], str, Source]:
    """`x = name if name in params else f"model.{name}"`, then `if x in params:` load it."""
    where = {f"{reading.parameters}", f"{reading.parameters}.keys()"}
    if len(body) != 2 or not isinstance(body[0], ast.Assign) or not isinstance(body[1], ast.If):
        raise reading.fail("parameters are looked up in a way that is not known", body[0] if body else loop)
    found, choice, guard = assigned_name(body[0]), body[0].value, body[1]
    if not isinstance(choice, ast.IfExp) or not isinstance(choice.test, ast.Compare):
        raise reading.fail("parameters are looked up in a way that is not known", body[0])
    yes, no = _prefix(reading, choice.body), _prefix(reading, choice.orelse)
    tested, operator = _prefix(reading, choice.test.left), choice.test.ops[0]
    if isinstance(operator, ast.NotIn):
        yes, no = no, yes
    known = yes is not None and no is not None and tested == yes
    if not known or ast.unparse(choice.test.comparators[0]) not in where:
        raise reading.fail("parameters are looked up in a way that is not known", body[0])
    if ast.unparse(guard.test) not in {f"{found} in {place}" for place in where}:
        raise reading.fail("parameters are looked up in a way that is not known", guard)
    if not any(called(inner) == "weight_loader" for inner in ast.walk(guard)):
        raise reading.fail("a parameter is not filled by its loader", guard)
    assert yes is not None and no is not None
    return (yes, no), _unmatched(reading, guard.orelse), reading.module.source(body[0])


def _prefix(reading: LoopReading, node: ast.expr) -> str | None:
    """What stands before the name: "" for `name`, "model." for `f"model.{name}"` or `"model." + name`."""
    if dotted_name(node) == reading.name:
        return ""
    if isinstance(node, ast.JoinedStr) and len(node.values) == 2:
        first, second = node.values
        if isinstance(second, ast.FormattedValue) and dotted_name(second.value) == reading.name:
            return text_of(first)
    if isinstance(node, ast.BinOp) and dotted_name(node.right) == reading.name:
        return text_of(node.left)
    return None


def _unmatched(reading: LoopReading, body: list[ast.stmt]) -> str:
    if all(is_harmless(statement) for statement in body):
        said = [called(statement.value) for statement in body if isinstance(statement, ast.Expr)]
        return WARNED if {"warning", "warn", "warning_once", "error"} & set(said) else SILENT
    raise reading.fail("what happens to an unknown name is not understood", body[0])
