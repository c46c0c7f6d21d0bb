"""The rules of every release, in one compressed file beside this module: one line a release, found by the first."""

from __future__ import annotations

import json
import lzma
from functools import cache
from pathlib import Path

from eagle3lab.engines.arguments.rules import ArgumentRules
from eagle3lab.engines.atlas.codec import decode, encode
from eagle3lab.engines.release import INSTALLED, nearest_known, parse_release
from eagle3lab.errors import InputError
from eagle3lab.text import printable

FILE = "sglang.jsonl.xz"
_SCHEMA = 1
_KIND = "sglang"


@cache
def _lines() -> tuple[str, ...]:
    data = Path(__file__).with_name(FILE).read_bytes()
    return tuple(lzma.decompress(data).decode("utf-8").split("\n"))


@cache
def releases() -> tuple[str, ...]:
    """The releases whose rules are known, oldest first."""
    head = json.loads(_lines()[0])
    if head["schema"] != _SCHEMA:
        raise ValueError(f"{FILE}: schema {head['schema']} is not {_SCHEMA}")
    return tuple(head["releases"])


@cache
def release_rules(release: str) -> ArgumentRules:
    """The rules of one release.

    Raises:
        KeyError: They are not known.
    """
    try:
        number = releases().index(release)
    except ValueError:
        raise KeyError(release) from None
    return decode(ArgumentRules, json.loads(_lines()[number + 1]))


def argument_rules(spec: str) -> ArgumentRules:
    """How an engine resolves a launch command.

    Args:
        spec: `sglang==X.Y.Z`, `installed`, or the path of a source tree or wheel. For a release that is not known
            the nearest older one stands in, and `release` says which.

    Raises:
        InputError: It names no SGLang, or there is nothing there.
    """
    from eagle3lab.engines.atlas.resolve import installed_engine, is_path

    if spec.strip() == INSTALLED:
        engine = installed_engine()
        if engine.root is not None:
            return extract_rules(engine.root / "srt")
        asked = engine.release
    elif is_path(spec):
        return extract_rules(Path(spec.strip()))
    else:
        asked = parse_release(spec)
    known = nearest_known(asked) if asked.kind == _KIND else None
    if known is None:
        raise InputError(
            f"no rules about the launch arguments of '{printable(str(asked))}'",
            advice=f"Write {INSTALLED}, sglang==X.Y.Z (from {releases()[0]} on), or the path of a source tree.",
        )
    return release_rules(known.number)


def extract_rules(path: Path) -> ArgumentRules:
    """The rules of the source tree or wheel at `path`, read as text and syntax tree.

    Raises:
        InputError: There is no SGLang there.
    """
    from eagle3lab.engines.extract.reading import reading
    from eagle3lab.engines.extract.sglang.procedures import read_arguments
    from eagle3lab.engines.extract.syntax import Syntax
    from eagle3lab.engines.extract.tree import open_sglang

    with reading(path):
        tree = open_sglang(path)
        found = tree.release()
        return read_arguments(Syntax(tree), found[0] if found else "")


def pack(found: list[ArgumentRules]) -> bytes:
    """The file with these releases, oldest first."""
    head = {"schema": _SCHEMA, "releases": [rules.release for rules in found]}
    lines = [head, *(encode(rules) for rules in found)]
    text = "\n".join(json.dumps(line, ensure_ascii=True, separators=(",", ":")) for line in lines)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "dict_size": 1 << 26}]
    return lzma.compress(text.encode(), check=lzma.CHECK_CRC32, filters=filters)
