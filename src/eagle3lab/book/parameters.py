"""Parameters given on the command line, fitted to what the chapters declare in their `parameters` cell."""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3lab.errors import InputError

Declared = Mapping[str, Mapping[str, str]]
"""Chapter to parameter name to its annotation as written ("None" when there is none)."""


def declared(notebooks: Sequence[Path]) -> dict[str, dict[str, str]]:
    """What each notebook's `parameters` cell declares, read without running it.

    Raises:
        InputError: A file is not a notebook.
    """
    import nbformat

    found: dict[str, dict[str, str]] = {}
    for path in notebooks:
        try:
            cells = nbformat.read(path, as_version=4).cells
        except Exception as error:  # nbformat raises what json and jsonschema raise
            raise InputError(f"not a notebook that can be read ({error})", path=path) from error
        found[path.stem] = declared_in(cells)
    return found


def declared_in(cells: Iterable[Any]) -> dict[str, str]:
    """What the `parameters` cell among a notebook's cells assigns: name to annotation, "None" without one.

    Parsed as Python: papermill's own inspection takes a line apart at its signs of equality and passes over a default
    such as `"sglang==0.5.9"`.
    """
    source = next((cell.source for cell in cells if "parameters" in cell.metadata.get("tags", ())), "")
    try:
        statements = ast.parse(source).body
    except SyntaxError:
        return {}
    found = {}
    for statement in statements:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            found[statement.target.id] = ast.unparse(statement.annotation)
        elif isinstance(statement, ast.Assign):
            found |= {target.id: "None" for target in statement.targets if isinstance(target, ast.Name)}
    return found


def fit(
    assignments: Sequence[tuple[str, str]], file: Path | None, chapters: Declared
) -> dict[str, dict[str, Any]]:
    """The parameters of each chapter: those given that it declares.

    A name counts for every chapter that declares it. In `file`, a JSON object of names and values, a
    chapter's name may stand for an object of its own.

    Args:
        assignments: Name and text, as `-p` gives them; they win over `file`. A text takes the annotated type,
            and a relative path that exists where the command was typed becomes absolute, since chapters run
            in `notebooks/`.
        file: A JSON file, or None.
        chapters: What the chapters declare.

    Raises:
        InputError: No chapter declares a name, or a value does not fit its type.
    """
    fitted: dict[str, dict[str, Any]] = {chapter: {} for chapter in chapters}
    for name, value in _read(file).items() if file is not None else ():
        if name in chapters and isinstance(value, dict):
            unknown = value.keys() - chapters[name].keys()
            if unknown:
                raise _unknown(min(unknown), {name: chapters[name]})
            fitted[name] |= value
            continue
        for chapter in _takers(name, chapters):
            fitted[chapter].setdefault(name, value)
    for name, text in assignments:
        for chapter in _takers(name, chapters):
            fitted[chapter][name] = _typed(name, text, chapters[chapter][name])
    return fitted


def _takers(name: str, chapters: Declared) -> list[str]:
    takers = [chapter for chapter, names in chapters.items() if name in names]
    if not takers:
        raise _unknown(name, chapters)
    return takers


def _unknown(name: str, chapters: Declared) -> InputError:
    known = sorted({known for names in chapters.values() for known in names})
    return InputError(
        f"no chapter among {', '.join(chapters)} has a parameter '{name}'",
        advice=f"Known: {', '.join(known)}" if known else "None of them declares any",
    )


def _read(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text("utf-8"))
    except OSError as error:
        raise InputError(error.strerror or "cannot be read", path=file) from error
    except ValueError as error:
        raise InputError(f"not JSON ({error})", path=file) from error
    if not isinstance(data, dict):
        raise InputError("not a JSON object of parameter names and values", path=file)
    return data


def _typed(name: str, text: str, annotation: str) -> Any:
    """`text` as the annotated type; without a simple annotation, as the scalar it spells or else as text."""
    try:
        match annotation.replace(" ", ""):
            case "int":
                return int(text)
            case "float":
                return float(text)
            case "bool":
                return {"true": True, "false": False}[text.lower()]
            case "str" | "str|None" | "Path" | "Path|None":
                return None if text in {"None", "null"} and "None" in annotation else _absolute(text)
    except (ValueError, KeyError):
        raise InputError(f"parameter '{name}' is {annotation}, '{text}' is not") from None
    literals = {"None": None, "null": None, "True": True, "true": True, "False": False, "false": False}
    if text in literals:
        return literals[text]
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return _absolute(text)


def _absolute(text: str) -> str:
    path = Path(text).expanduser()
    spelt_as_path = os.sep in text or text.startswith("~")
    return str(path.resolve()) if spelt_as_path and path.exists() else text
