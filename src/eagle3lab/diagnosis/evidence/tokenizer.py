"""What a model folder says about text: token ids, the chat template, the tokens that end an answer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from eagle3lab.checkpoint.files import CONFIG_FILE, safe_file
from eagle3lab.checkpoint.json_input import read_json_object
from eagle3lab.errors import InputError

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEMPLATE, GENERATION_CONFIG = "chat_template.jinja", "generation_config.json"
# Token tables that are not JSON are compared as they are: tiktoken's ranks, SentencePiece's model.
_OTHER_TABLES = ("tiktoken.model", "tokenizer.model")
_LARGEST_TEMPLATE = 2**20


def same_table(one: Path, other: Path) -> bool | None:
    """Whether both folders hold the same token table, byte for byte; None where there are no two of one kind."""
    for name in (TOKENIZER, *_OTHER_TABLES):
        files = [_file(folder, name) for folder in (one, other)]
        if files[0] is not None and files[1] is not None:
            return _same(files[0], files[1])
    return None


def token_ids(folder: Path) -> dict[str, int] | None:
    """Token to id as `tokenizer.json` has it, added tokens included; None where it does not say."""
    file = _file(folder, TOKENIZER)
    if file is None:
        return None
    raw = read_json_object(file)[0]
    model = raw.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    found: dict[Any, Any]
    if isinstance(vocab, list):  # Unigram: [token, score] in the order of ids
        found = {row[0]: at for at, row in enumerate(vocab) if isinstance(row, list) and row}
    elif isinstance(vocab, dict):
        found = dict(vocab)
    else:
        return None
    for token in _objects(raw.get("added_tokens")):
        found[token.get("content")] = token.get("id")
    return {name: at for name, at in found.items() if isinstance(name, str) and type(at) is int}


def chat_template(folder: Path) -> str | None:
    """The chat template, blanks at line ends left out; None where there is none or several by name."""
    file = _file(folder, TEMPLATE)
    if file is not None and file.stat().st_size <= _LARGEST_TEMPLATE:
        text: Any = file.read_text("utf-8", "replace")
    else:
        text = (_json(folder, TOKENIZER_CONFIG) or {}).get("chat_template")
    if not isinstance(text, str) or not text.strip():
        return None
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def end_tokens(folder: Path) -> tuple[int, ...]:
    """Ids of the tokens that end an answer: of generation_config.json, else of config.json; () where not stated."""
    for name in (GENERATION_CONFIG, CONFIG_FILE):
        raw = _json(folder, name) or {}
        nested = raw.get("text_config")
        for config in (raw, nested if isinstance(nested, dict) else {}):
            ids = config.get("eos_token_id")
            listed = ids if isinstance(ids, list) else [ids]
            if found := tuple(one for one in listed if type(one) is int and one >= 0):
                return found
    return ()


def _objects(value: object) -> Iterator[Mapping[str, Any]]:
    yield from (item for item in value if isinstance(item, dict)) if isinstance(value, list) else ()


def _file(folder: Path, name: str) -> Path | None:
    try:
        return safe_file(folder.resolve(), name)
    except InputError:
        return None


def _json(folder: Path, name: str) -> dict[str, Any] | None:
    file = _file(folder, name)
    try:
        return None if file is None else read_json_object(file)[0]
    except InputError:
        return None


def _same(one: Path, other: Path) -> bool:
    import filecmp

    return filecmp.cmp(one, other, shallow=False)
