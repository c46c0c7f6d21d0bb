"""Which classes draft and which can be drafted for, found by what they do, not by what they are called."""

from __future__ import annotations

import ast
import re

from eagle3lab.engines.extract.model import Drafter
from eagle3lab.engines.extract.syntax import ClassRef, Module, Syntax, called, dotted_name, top_level
from eagle3lab.engines.facts import DrafterClass, DrafterKind, Source

MODELS = "models/"
SETTER = "set_eagle3_layers_to_capture"
_HEADER = re.compile(r"^class\s+(\w+)\s*\(([^)]*)\)", re.MULTILINE)


def registered(module: Module) -> dict[str, Source]:
    """The classes a file registers (its `EntryClass`), with the line that does."""
    names: dict[str, Source] = {}
    for node in top_level(module.tree):
        if not isinstance(node, ast.Assign) or dotted_name(node.targets[0]) != "EntryClass":
            continue
        elements = node.value.elts if isinstance(node.value, ast.List | ast.Tuple) else [node.value]
        names |= {name: module.source(node) for name in map(dotted_name, elements) if name}
    return names


def descendants(syntax: Syntax, roots: set[str]) -> dict[str, str]:
    """Class to file, of every class under `models/` that has one of `roots` among its ancestors, by name.

    Found in the class headers as text, so that files which do not matter are never parsed.
    """
    headers: list[tuple[str, str, set[str]]] = []
    for file in syntax.tree.files:
        if file.startswith(MODELS):
            for match in _HEADER.finditer(syntax.tree.text(file) or ""):
                headers.append((match[1], file, set(re.findall(r"\w+", match[2]))))
    found: dict[str, str] = {}
    known = set(roots)
    while True:
        more = {name: file for name, file, bases in headers if bases & known and name not in found}
        if not more:
            return found
        found |= more
        known |= more.keys()


def find_drafters(syntax: Syntax) -> tuple[Drafter, ...]:
    """Every registered class whose forward pass starts from the target's hidden states, sorted by name."""
    readers: dict[str, set[str]] = {}
    for file in syntax.tree.holding("spec_info.hidden_states", MODELS):
        module = syntax.module(file)
        if module is not None:
            readers[file] = {c.name for c in module.classes.values() if _reads_hidden_states(c.node)}
    found: dict[str, ClassRef] = {}
    for file, names in readers.items():
        module = syntax.module(file)
        for name in registered(module) if module else ():
            cls = module.classes.get(name) if module else None
            if cls is not None and (name in names or _named(cls.node) & names):
                found[name] = cls
    for name, file in descendants(syntax, set(found)).items():
        module = syntax.module(file)
        if module is not None and name in module.classes and name in registered(module):
            found.setdefault(name, module.classes[name])
    return tuple(_drafter(syntax, found[name], readers) for name in sorted(found))


def _reads_hidden_states(node: ast.AST) -> bool:
    """`….spec_info.hidden_states` somewhere in it."""
    return any(
        isinstance(inner, ast.Attribute)
        and inner.attr == "hidden_states"
        and (dotted_name(inner.value) or "").rpartition(".")[2] == "spec_info"
        for inner in ast.walk(node)
    )


def _named(node: ast.ClassDef) -> set[str]:
    """Every name in the body of a class."""
    return {inner.id for part in node.body for inner in ast.walk(part) if isinstance(inner, ast.Name)}


def _drafter(syntax: Syntax, cls: ClassRef, readers: dict[str, set[str]]) -> Drafter:
    return Drafter(
        cls.name,
        cls.module.dotted,
        _kind(syntax, cls, readers),
        tuple(base.name for base in syntax.bases(cls)),
        "own" if cls.method("load_weights") else "inherited",
        cls.source,
    )


def _kind(syntax: Syntax, cls: ClassRef, readers: dict[str, set[str]]) -> DrafterKind:
    if any(_keeps_token_map(member.node) for member in (cls, *syntax.bases(cls))):
        return "EAGLE-3"
    models = (_named(cls.node) | {cls.name}) & readers.get(cls.module.file, set())
    return "EAGLE-1" if any(_joins_in_fc(cls.module.classes[name].node) for name in models) else "other"


def _keeps_token_map(node: ast.ClassDef) -> bool:
    """`self.hot_token_id = …`."""
    return any(
        isinstance(inner, ast.Assign) and any(dotted_name(t) == "self.hot_token_id" for t in inner.targets)
        for inner in ast.walk(node)
    )


def _joins_in_fc(node: ast.ClassDef) -> bool:
    """`self.fc(torch.cat((embeddings, ….spec_info.hidden_states)))`: joined as they are, by nothing but fc."""
    for call in ast.walk(node):
        if (
            called(call) == "fc"
            and isinstance(call, ast.Call)
            and call.args
            and called(call.args[0]) == "cat"
        ):
            joined = call.args[0].args[0]  # type: ignore[attr-defined]
            parts = joined.elts if isinstance(joined, ast.Tuple | ast.List) else []
            return any(isinstance(part, ast.Attribute) and _reads_hidden_states(part) for part in parts)
    return False


def eagle3_class(syntax: Syntax, drafters: tuple[Drafter, ...]) -> tuple[ClassRef, DrafterClass] | None:
    """The EAGLE-3 class with a Llama layer, and the other EAGLE-3 architectures; None if there is none.

    It is the one whose decoder layer descends from the one in `models/llama.py`.
    """
    eagle3 = [drafter for drafter in drafters if drafter.kind == "EAGLE-3"]
    for drafter in eagle3:
        module = syntax.module(drafter.source.file)
        cls = module.classes.get(drafter.name) if module else None
        if module is None or cls is None or not _has_llama_layer(syntax, module):
            continue
        others = tuple(other.name for other in eagle3 if other.name != drafter.name)
        source = registered(module)[drafter.name]
        return cls, DrafterClass(drafter.name, module.dotted, (drafter.name,), others, source)
    return None


def _has_llama_layer(syntax: Syntax, module: Module) -> bool:
    return any(
        base.module.file == "models/llama.py" and base.name == "LlamaDecoderLayer"
        for cls in module.classes.values()
        for base in syntax.bases(cls)
    )
