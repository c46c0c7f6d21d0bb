"""What a model folder says about text: token ids, the chat template, the tokens that end an answer."""

from __future__ import annotations

from filecmp import cmp
from pathlib import Path
from typing import Any

from eagle3lab.checkpoint.json_input import read_json_object
from eagle3lab.checkpoint.store import CONFIG_FILE, safe_file
from eagle3lab.errors import InputError

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
TEMPLATE, GENERATION_CONFIG = "chat_template.jinja", "generation_config.json"
# Token tables that are not JSON are compared as they are: tiktoken's ranks, SentencePiece's model.
_OTHER_TABLES = ("tiktoken.model", "tokenizer.model")
_LARGEST_TEMPLATE = 2**20


def same_table(one: Path, other: Path) -> bool | None:
    """Whether both folders hold the same token table, byte for byte; None where there are no two of one kind."""
    for name in (TOKENIZER, *_OTHER_TABLES):
        ours, theirs = _file(one, name), _file(other, name)
        if ours is not None and theirs is not None:
            return cmp(ours, theirs, shallow=False)
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
    added = raw.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict):
            found[token.get("content")] = token.get("id")
    return {name: at for name, at in found.items() if isinstance(name, str) and type(at) is int}


def chat_template(folder: Path) -> str | None:
    """The chat template, blanks at line ends left out; None where there is none or several by name."""
    file = _file(folder, TEMPLATE)
    if file is not None and file.stat().st_size <= _LARGEST_TEMPLATE:
        text: Any = file.read_text("utf-8", "replace")
    else:
        text = (read_json(folder, TOKENIZER_CONFIG) or {}).get("chat_template")
    if not isinstance(text, str) or not text.strip():
        return None
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def end_tokens(folder: Path) -> tuple[int, ...]:
    """Ids of the tokens that end an answer: of generation_config.json, else of config.json; () where not stated."""
    for name in (GENERATION_CONFIG, CONFIG_FILE):
        raw = read_json(folder, name) or {}
        nested = raw.get("text_config")
        for config in (raw, nested if isinstance(nested, dict) else {}):
            ids = config.get("eos_token_id")
            listed = ids if isinstance(ids, list) else [ids]
            if found := tuple(one for one in listed if type(one) is int and one >= 0):
                return found
    return ()


def _file(folder: Path, name: str) -> Path | None:
    try:
        return safe_file(folder.resolve(), name, follow=True)
    except InputError:
        return None


def read_json(folder: Path, name: str) -> dict[str, Any] | None:
    """The JSON object in a file of a model's folder; None where there is none that can be read."""
    file = _file(folder, name)
    try:
        return None if file is None else read_json_object(file)[0]
    except InputError:
        return None
