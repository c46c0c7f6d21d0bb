"""The atlas as it ships: every release's facts in one compressed file a kind of engine, one line a release.

The first line is the index; a release is found there and only its own line is parsed. Releases differ little, so
the file compresses to a small fraction of what it says.
"""

from __future__ import annotations

import json
import lzma
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from eagle3lab.engines.atlas.codec import decode, encode, encode_named
from eagle3lab.engines.atlas.variants import Assigned, composed
from eagle3lab.engines.extract.model import ReleaseFacts

_SCHEMA = 2
# What the variants of a release's classes say, and the file does not repeat.
_COMPOSED = (
    "names", "sizes", "switches", "parameters", "construction", "from_target", "others", "proofs",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Entry:
    """A release in the atlas.

    Attributes:
        release: Its number.
        wheel: Name of the wheel, or of the source distribution, that the facts were read from.
        sha256: Digest of that file.
    """

    release: str
    wheel: str
    sha256: str


def file_of(kind: str) -> Path:
    """The file with a kind's releases."""
    return Path(__file__).with_name(f"{kind}.jsonl.xz")


@cache
def _lines(kind: str) -> tuple[bytes, ...]:
    return tuple(lzma.decompress(file_of(kind).read_bytes()).split(b"\n"))


@cache
def entries(kind: str = "sglang") -> tuple[Entry, ...]:
    """Every release of a kind of engine in the atlas, oldest first."""
    return tuple(Entry(*entry) for entry in _head(kind)["releases"])


@cache
def digests(kind: str) -> dict[str, str]:
    """Digest of code that some release has to the id of the variant that it is proved to be."""
    return dict(_head(kind)["digests"])


@cache
def _head(kind: str) -> dict[str, Any]:
    head: dict[str, Any] = json.loads(_lines(kind)[0])
    if head["schema"] != _SCHEMA:
        raise ValueError(f"{file_of(kind).name}: schema {head['schema']} is not {_SCHEMA}")
    return head


@cache
def release_facts(release: str, kind: str = "sglang") -> ReleaseFacts:
    """The facts of one release.

    Raises:
        KeyError: It is not in the atlas.
    """
    try:
        number = [entry.release for entry in entries(kind)].index(release)
    except ValueError:
        raise KeyError(release) from None
    row = json.loads(_lines(kind)[number + 1])
    assigned = [decode(Assigned, entry) for entry in row.pop("classes")]
    facts = decode(_type_of(kind), row)
    return facts.with_classes([composed(kind, one, bool(facts.config_checked)) for one in assigned])


def _type_of(kind: str) -> type[ReleaseFacts]:
    if kind == "vllm":
        from eagle3lab.engines.extract.vllm import VllmFacts

        return VllmFacts
    return ReleaseFacts


def pack(found: list[tuple[Entry, ReleaseFacts]]) -> bytes:
    """The file with these releases, oldest first."""
    known = {
        digest: variant
        for _, facts in found
        for one in facts.proofs
        for digest, variant in one.digests.items()
    }
    head = {"schema": _SCHEMA, "digests": known, "releases": [encode(entry) for entry, _ in found]}
    lines = [head]
    for _, facts in found:
        row = {name: value for name, value in encode_named(facts).items() if name not in _COMPOSED}
        lines.append({**row, "classes": [encode(one.assigned) for one in facts.proofs]})
    text = "\n".join(json.dumps(line, ensure_ascii=False, separators=(",", ":")) for line in lines)
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME}]
    return lzma.compress(text.encode(), check=lzma.CHECK_CRC32, filters=filters)
