"""Which class a name means: in its file, imported under its own or another name, or chosen for type checkers only."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath

from eagle3lab.engines.extract.syntax import ClassRef, Module, Syntax, called, dotted_name

MODELS = "model_executor/models/"
_PACKAGE = "vllm."


def find_class(syntax: Syntax, module: Module, name: str, *, imported: bool = False) -> ClassRef | None:
    """The class of a file under `MODELS` that `name` means in `module`; None if it is none of these.

    Args:
        syntax: The tree.
        module: Where the name stands.
        name: The name.
        imported: Look at imports first: `class Layer(Layer)` names the imported class.
    """
    for node in _statements(module.tree.body):
        if (
            isinstance(node, ast.Assign)
            and dotted_name(node.targets[0]) == name
            and isinstance(node.value, ast.Name)
        ):
            return find_class(syntax, module, node.value.id, imported=imported)
    own = next(
        (n for n in _statements(module.tree.body) if isinstance(n, ast.ClassDef) and n.name == name), None
    )
    if own is not None and not imported:
        return ClassRef(module, own)
    for node in _statements(module.tree.body):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                file = _file(module, node) if (alias.asname or alias.name) == name else None
                there = syntax.module(file) if file is not None and file.startswith(MODELS) else None
                if there is not None:
                    return find_class(syntax, there, alias.name)
    return None


def _statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """Top-level statements as they run: of `if TYPE_CHECKING` only the other branch."""
    found: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If):
            found += _statements(node.orelse if dotted_name(node.test) == "TYPE_CHECKING" else node.body)
        else:
            found.append(node)
    return found


def _file(module: Module, node: ast.ImportFrom) -> str | None:
    """The file that an import is from, relative to the package."""
    if node.level == 0:
        dotted = node.module or ""
        inside = dotted.removeprefix(_PACKAGE)
        return None if inside == dotted else inside.replace(".", "/") + ".py"
    folder = PurePosixPath(module.file).parents[node.level - 1]
    return f"{folder}/{(node.module or '').replace('.', '/')}.py"


def inner_model(syntax: Syntax, cls: ClassRef) -> ClassRef | None:
    """The class of `self.model`; None if it is not understood."""
    constructor = cls.method("__init__")
    for node in ast.walk(constructor) if constructor else ():
        if isinstance(node, ast.Assign) and dotted_name(node.targets[0]) == "self.model":
            inner = find_class(syntax, cls.module, called(node.value) or "")
            if inner is not None:
                return inner
    return None


def base_of(syntax: Syntax, cls: ClassRef) -> ClassRef | None:
    """The first ancestor that is a model class of the engine; None if there is none."""
    for base in cls.node.bases:
        name = dotted_name(base)
        if name is not None:
            found = find_class(syntax, cls.module, name, imported=name == cls.name)
            if found is not None and found.node is not cls.node:
                return found
    return None
