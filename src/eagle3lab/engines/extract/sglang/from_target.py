"""What the target supplies a drafter with: its embedding, its head, and when."""

from __future__ import annotations

import ast

from eagle3lab.engines.extract.forms import UnreadableError
from eagle3lab.engines.extract.syntax import ClassRef, Syntax, dotted_name
from eagle3lab.engines.facts import FromTarget

_FLAG = "self.load_lm_head_from_target"


def from_target(syntax: Syntax, cls: ClassRef) -> tuple[FromTarget, ...]:
    """For an EAGLE-3 class: the embedding always but where widths differ, the head where asked for.

    Raises:
        UnreadableError: When the embedding is taken is not understood.
    """
    found = syntax.method(cls, "set_embed")
    if found is None:
        raise UnreadableError("the class takes no embedding from the target", cls.source)
    owner, function = found
    differs = [
        node
        for node in ast.walk(function)
        if isinstance(node, ast.Compare)
        and isinstance(node.ops[0], ast.NotEq)
        and (dotted_name(node.left) or "").startswith("self.config.")
    ]
    if len(differs) != 1:
        raise UnreadableError("when the embedding is taken is not understood", owner.source)
    sides = (differs[0].left, differs[0].comparators[0])
    keys = tuple((dotted_name(side) or "").removeprefix("self.config.") for side in sides)
    supplied = [FromTarget("model.embed_tokens.weight", keys, None, owner.module.line(differs[0].lineno))]
    head = cls.module.matching(f"{_FLAG} = True")
    if head is not None:
        absent_too = _reads_with_default(cls.node)
        supplied.append(FromTarget("lm_head.weight", (), "draft_vocab_size", head, absent_too=absent_too))
    return tuple(supplied)


def _reads_with_default(cls: ast.ClassDef) -> bool:
    """Whether the head is asked for under `if x is None:` of a local name, not of the config itself."""
    for node in ast.walk(cls):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare):
            targets = [
                ast.unparse(t) for inner in node.body if isinstance(inner, ast.Assign) for t in inner.targets
            ]
            if _FLAG in targets:
                return isinstance(node.test.left, ast.Name)
    return False


def both_from_target(syntax: Syntax, cls: ClassRef) -> tuple[FromTarget, ...]:
    """For an EAGLE-1 class: embedding and head, always.

    Raises:
        UnreadableError: The class does not take both.
    """
    found = syntax.method(cls, "set_embed_and_head")
    if found is None:
        raise UnreadableError("the class takes no embedding and head from the target", cls.source)
    owner, function = found
    lines = {
        ast.unparse(node.targets[0]): owner.module.source(node)
        for node in function.body
        if isinstance(node, ast.Assign)
    }
    names = ("model.embed_tokens.weight", "lm_head.weight")
    if any(f"self.{name}" not in lines for name in names):
        raise UnreadableError("what the class takes from the target is not understood", owner.source)
    return tuple(FromTarget(name, (), None, lines[f"self.{name}"], algorithm="EAGLE") for name in names)
