"""JSON from files that nobody vouches for: bounded, strict about UTF-8, every error with its line."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eagle3lab.errors import InputError

# The largest index of a real checkpoint (a target with tens of thousands of expert tensors) is a few
# megabytes.
LARGEST_JSON_FILE = 64 * 2**20


def read_json_object(path: Path) -> tuple[dict[str, Any], str]:
    """The JSON object in `path` and the text it was parsed from.

    Raises:
        InputError: The file is too large, not UTF-8, not JSON, nested too deeply, or not an object.
    """
    try:
        size = path.stat().st_size
        if size > LARGEST_JSON_FILE:
            raise InputError(f"is {size} bytes, too large for a JSON file of a checkpoint", path=path)
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path=path) from None
    if not data.strip():
        raise InputError("is empty", path=path, advice="Copy or download the file again.")
    if data.startswith(b"version https://git-lfs"):
        raise InputError(
            "is a Git LFS pointer, not the file itself",
            path=path,
            advice="Run `git lfs pull` in its repository.",
        )
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(f"is not UTF-8 at byte {error.start}", path=path, line=line) from None
    return parse_json_object(text, path), text


def parse_json_object(
    text: str,
    path: Path,
    pairs_hook: Callable[[list[tuple[str, Any]]], dict[str, Any]] | None = None,
    *,
    what: str = "the file",
    constants: bool = True,
) -> dict[str, Any]:
    """Parse `text` as one JSON object.

    Args:
        text: The JSON.
        path: The file it came from, for errors.
        pairs_hook: Passed to `json.loads` as `object_pairs_hook`.
        what: What the text is, for errors.
        constants: Whether NaN and Infinity are let through, as Python and the engines do in a config.json.

    Raises:
        InputError: With the line where the syntax breaks, if it does.
    """
    try:
        value = json.loads(
            text, object_pairs_hook=pairs_hook, parse_constant=None if constants else _refuse_constant
        )
    except json.JSONDecodeError as error:
        raise InputError(
            f"{what} is not JSON: {error.msg} (column {error.colno})", path=path, line=error.lineno
        ) from None
    except RecursionError:
        raise InputError(f"{what} is nested too deeply to be read", path=path) from None
    except ValueError as error:  # an integer of thousands of digits, a refused constant
        raise InputError(f"{what} holds a number that cannot be read: {error}", path=path) from None
    if not isinstance(value, dict):
        raise InputError(f"{what} is JSON, but {json_type(value)} instead of an object", path=path)
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def json_type(value: object) -> str:
    """The JSON name of a parsed value's type, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    for kind, name in ((int, "an integer"), (float, "a number"), (str, "a string"), (list, "an array")):
        if isinstance(value, kind):
            return name
    return "an object"


def line_of_key(text: str, key: str) -> int | None:
    """1-based line of `"key":` in JSON text, or None unless it stands there exactly once."""
    found = re.findall(r"\n|" + re.escape(json.dumps(key)) + r"\s*:", text)
    places = [index for index, match in enumerate(found) if match != "\n"]
    return places[0] + 1 if len(places) == 1 else None
