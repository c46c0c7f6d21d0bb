"""The loader of Mistral's EAGLE-1 head: a table of names in Mistral's own format, then the Llama loader."""

from __future__ import annotations

import ast
import re

from eagle3lab.engines.extract.forms import UnreadableError
from eagle3lab.engines.extract.sglang.delegating import loop_of, read_parent
from eagle3lab.engines.extract.sglang.loop import WARNED, open_loop
from eagle3lab.engines.extract.syntax import ClassRef, Syntax, dotted_name, text_of
from eagle3lab.engines.facts import NameRules, Pattern, Translation

_SPARED = r"name\.startswith\('([\w.]+)'\)"
_OPENING = "yield (name, loaded_weight)\ncontinue"
_LOOKUP = """\
for k, v in self.remapping.items():
    match = re.fullmatch(k, name)
    if match:
        name = match.expand(v)
        break
else:
    logger.warning(f'Unrecognized weight: {name}. Skipping.')
    continue"""
_ENDING = re.compile(
    r"(?:el)?if name\.endswith\('(\.\w+)'\):\n    name = re\.sub\('\\\\(\.\w+)\$', '(\.\w+)', name\)\n?"
)


def translates(function: ast.FunctionDef) -> bool:
    """Whether a `load_weights` does nothing but hand on what another method makes of the weights."""
    return _call(function) is not None


def _call(function: ast.FunctionDef) -> tuple[str, str] | None:
    """`return Target.load_weights(self, self.method(weights))`: the target class and the method."""
    only = [node for node in function.body if not isinstance(node, ast.Expr)]
    value = only[0].value if len(only) == 1 and isinstance(only[0], ast.Return) else None
    match = re.fullmatch(
        r"(\w+)\.load_weights\(self, self\.(\w+)\(weights\)\)", ast.unparse(value) if value else ""
    )
    return (match[1], match[2]) if match else None


def read_translating(syntax: Syntax, owner: ClassRef, function: ast.FunctionDef) -> NameRules:
    """The rules of the table and of the loader behind it, as one.

    Raises:
        UnreadableError: Either has a form that is not known here.
    """
    called = _call(function)
    method = owner.method(called[1]) if called else None
    target = syntax.resolve(owner.module, called[0]) if called else None
    loader = syntax.method(target, "load_weights") if target else None
    if method is None or loader is None:
        raise UnreadableError("which loader is called is not understood", owner.source)
    translation = _read_table(owner, method)
    return read_parent(syntax, owner, [], None, open_loop(*loop_of(syntax, *loader)), translation)


def _read_table(owner: ClassRef, method: ast.FunctionDef) -> Translation:
    source = owner.module.source(method)
    loop = method.body[-1]
    if len(method.body) != 1 or not isinstance(loop, ast.For) or len(loop.body) != 4:
        raise UnreadableError("how names are translated is not understood", source)
    spared, lookup, endings, handed = loop.body
    unless = re.findall(_SPARED, ast.unparse(spared.test)) if isinstance(spared, ast.If) else []
    asked = " or ".join(f"name.startswith({prefix!r})" for prefix in unless)
    known = (
        isinstance(spared, ast.If)
        and ast.unparse(spared.test) == asked
        and "\n".join(map(ast.unparse, spared.body)) == _OPENING
        and ast.unparse(loop.target) == "(name, loaded_weight)"
        and ast.unparse(lookup) == _LOOKUP
        and ast.unparse(handed) == "yield (name, loaded_weight)"
    )
    found = _ENDING.findall(ast.unparse(endings))
    if not known or _ENDING.sub("", ast.unparse(endings)) or any(end != same for end, same, _ in found):
        raise UnreadableError("how names are translated is not understood", source)
    table = next(
        (
            n
            for n in owner.node.body
            if isinstance(n, ast.Assign) and dotted_name(n.targets[0]) == "remapping"
        ),
        None,
    )
    if table is None or not isinstance(table.value, ast.Dict):
        raise UnreadableError("the table of names is not understood", source)
    patterns = []
    for key, value in zip(table.value.keys, table.value.values, strict=True):
        old, new = text_of(key), text_of(value)
        if old is None or new is None:
            raise UnreadableError("the table of names is not understood", owner.module.source(value))
        patterns.append(Pattern(old, new, owner.module.source(value)))
    return Translation(
        tuple(unless), tuple(patterns), tuple((end, new) for end, _, new in found), WARNED, source
    )
