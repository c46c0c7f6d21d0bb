"""The options of the launch command and the defaults of their fields, in both forms SGLang has declared them in.

Up to 0.5.13 a parser is built by `add_argument` calls; later the annotation of each field says how it is written.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from eagle3lab.engines.arguments.rules import Option, OptionKind
from eagle3lab.engines.extract.syntax import Module, Syntax, called, dotted_name, text_of

_FIELD_FILES = ("server_args.py", "arg_groups/fields/")
_KINDS: dict[str, OptionKind] = {
    "str": "text",
    "int": "integer",
    "float": "number",
    "bool": "switch",
    "nullable_str": "text",
    "json.loads": "json",
}


def declared(syntax: Syntax) -> tuple[tuple[Option, ...], dict[str, str]]:
    """Every option, and field → expression of its default."""
    options: dict[str, Option] = {}
    defaults: dict[str, str] = {}
    for module in _modules(syntax):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef) and _holds_fields(module, node):
                for field, option, default in _fields(syntax, module, node):
                    if default is not None:
                        defaults[field] = default
                    if option is not None:
                        options |= {option.spellings[0]: option}
            elif called(node) == "add_argument" and isinstance(node, ast.Call):
                found = _added(syntax, module, node)
                if found is not None:
                    options |= {found.spellings[0]: found}
    names = _renamed(syntax)
    return tuple(replace(one, field=names.get(one.field, one.field)) for one in options.values()), defaults


def _renamed(syntax: Syntax) -> dict[str, str]:
    """What the parser calls a value → its field: `args.tp_size = args.tensor_parallel_size`."""
    module = syntax.module("server_args.py")
    names: dict[str, str] = {}
    for function in ast.walk(module.tree) if module else ():
        if not isinstance(function, ast.FunctionDef) or function.name != "from_cli_args":
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                holder, _, given = (dotted_name(node.value) or "").rpartition(".")
                if holder and holder == dotted_name(node.targets[0].value):
                    names[given] = node.targets[0].attr
    return names


def _modules(syntax: Syntax) -> Iterator[Module]:
    for file in syntax.tree.files:
        if file.startswith(_FIELD_FILES):
            module = syntax.module(file)
            if module is not None:
                yield module


def _holds_fields(module: Module, node: ast.ClassDef) -> bool:
    return node.name == "ServerArgs" if module.file == "server_args.py" else True


def _fields(
    syntax: Syntax, module: Module, node: ast.ClassDef
) -> Iterator[tuple[str, Option | None, str | None]]:
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or not isinstance(item.target, ast.Name):
            continue
        name = item.target.id
        yield name, _annotated(syntax, module, name, item.annotation), _default(item.value)


def _default(value: ast.expr | None) -> str | None:
    if value is None:
        return None
    if called(value) == "field" and isinstance(value, ast.Call):
        made = {keyword.arg: keyword.value for keyword in value.keywords}
        if "default" in made:
            return ast.unparse(made["default"])
        factory = dotted_name(made["default_factory"]) if "default_factory" in made else None
        return {"list": "[]", "dict": "{}"}.get(factory or "", "unknown")
    return ast.unparse(value)


def _annotated(syntax: Syntax, module: Module, name: str, annotation: ast.expr) -> Option | None:
    """`name: A[type, "help"]` or `A[type, Arg(…)]`."""
    if not isinstance(annotation, ast.Subscript) or dotted_name(annotation.value) not in ("A", "Annotated"):
        return None
    parts = annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
    said = next((part for part in parts[1:] if called(part) == "Arg" or isinstance(part, ast.Constant)), None)
    if said is None and not any(isinstance(part, ast.JoinedStr | ast.BinOp) for part in parts[1:]):
        return None
    given = {k.arg: k.value for k in said.keywords} if isinstance(said, ast.Call) else {}
    if "no_cli" in given:
        return None
    spelling = text_of(given["cli_name"]) if "cli_name" in given else None
    aliases = given.get("aliases")
    others = [text_of(e) for e in aliases.elts] if isinstance(aliases, ast.List) else []
    inner = _without_optional(parts[0])
    choices = _choices(syntax, module, given.get("choices")) or _literals(inner)
    return Option(
        spellings=(spelling or f"--{name.replace('_', '-')}", *(one for one in others if one)),
        field=name,
        kind=_annotated_kind(inner, given),
        choices=choices,
    )


def _annotated_kind(inner: ast.expr, given: dict[str | None, ast.expr]) -> OptionKind:
    if "action" in given:
        return "unknown"
    if "type_parser" in given:
        return _parser_kind(ast.unparse(given["type_parser"]))
    if isinstance(inner, ast.Subscript):
        holder = dotted_name(inner.value)
        if holder in ("List", "list"):
            return "list"
        return "text" if holder == "Literal" else "unknown"
    return _KINDS.get(dotted_name(inner) or "", "unknown")


def _parser_kind(function: str) -> OptionKind:
    """By the name of the function that reads the value: `human_readable_int` takes 2048 and 2k."""
    if "json" in function:
        return "json"
    return "amount" if "int" in function else "unknown"


def _without_optional(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.Subscript) and dotted_name(node.value) == "Optional":
        return node.slice
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return node.left
    return node


def _added(syntax: Syntax, module: Module, node: ast.Call) -> Option | None:
    """`parser.add_argument("--name", …)`."""
    spellings = tuple(text for text in map(text_of, node.args) if text)
    if not spellings or not spellings[0].startswith("-"):
        return None
    given = {keyword.arg: keyword.value for keyword in node.keywords}
    long = next((text for text in spellings if text.startswith("--")), spellings[0])
    field = text_of(given["dest"]) if "dest" in given else None
    kind: OptionKind = "text"
    action = given.get("action")
    if action is not None:
        stores = text_of(action) or dotted_name(action) or ""
        kind = "switch" if stores in ("store_true", "DeprecatedStoreTrueAction") else "unknown"
    elif "nargs" in given:
        kind = "list" if text_of(given["nargs"]) in ("+", "*") else "unknown"
    elif "type" in given:
        kind = _KINDS.get(ast.unparse(given["type"])) or _parser_kind(ast.unparse(given["type"]))
    return Option(
        spellings,
        field or long.lstrip("-").replace("-", "_"),
        kind,
        _choices(syntax, module, given.get("choices")),
    )


def _literals(node: ast.expr) -> tuple[str, ...] | None:
    if isinstance(node, ast.Subscript) and dotted_name(node.value) == "Literal":
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        return tuple(text for text in map(text_of, parts) if text is not None)
    return None


def _choices(syntax: Syntax, module: Module, node: ast.expr | None) -> tuple[str, ...] | None:
    """A list of words, stated or named; None where it is put together while the release runs."""
    if isinstance(node, ast.Name):
        found = module.constants.get(node.id)
        if found is None and node.id in module.imported:
            file, name = module.imported[node.id]
            there = syntax.module(f"{file}.py")
            found = there.constants.get(name) if there else None
        node = found
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        words = [text_of(element) for element in node.elts]
        if all(word is not None for word in words):
            return tuple(word for word in words if word is not None)
    return None
