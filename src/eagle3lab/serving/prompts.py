"""What a workload asks: the prompts of a JSONL file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from eagle3lab.checkpoint.json_input import json_type, parse_json_object
from eagle3lab.errors import InputError
from eagle3lab.serving.client import Prompt

ACCEPTED = 'one JSON object a line with "prompt" or "text" (a string), "input_ids" (token ids) or "messages" (a chat)'
"""What a file of prompts holds."""

_TEXT, _IDS, _CHAT = ("prompt", "text"), "input_ids", "messages"
_MOST_PROMPTS, _LONGEST_LINE = 100_000, 16 * 2**20


def read_prompts(path: str | Path, limit: int | None = None, *, as_chat: bool = False) -> tuple[Prompt, ...]:
    """The prompts of a JSONL file, in its order: see `ACCEPTED`.

    Other keys of a line are passed over. A chat is answered by the server's chat endpoint, with the target's own
    template; texts and token ids are continued as they are.

    Args:
        path: The file.
        limit: Only so many of them, from the beginning.
        as_chat: Whether a text is a user's message, to be put into the target's chat template, too.

    Raises:
        InputError: It cannot be read, holds no prompt, or a line is none; names the line.
    """
    path = Path(path)
    prompts: list[Prompt] = []
    for number, line in _lines(path):
        if limit is not None and len(prompts) >= limit:
            break
        if line.strip():
            prompt = _prompt(line, path, number)
            asked = as_chat and isinstance(prompt, str)
            prompts.append(({"role": "user", "content": prompt},) if asked else prompt)
    if not prompts:
        raise InputError("there is no prompt in the file", path=path, advice=f"Write {ACCEPTED}")
    return tuple(prompts)


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with path.open("rb") as file:
            number = 0
            while data := file.readline(_LONGEST_LINE + 1):
                number += 1
                if len(data) > _LONGEST_LINE or number > _MOST_PROMPTS:
                    raise InputError("is too large for a file of prompts", path=path, line=number)
                yield number, data.decode("utf-8")
    except OSError as error:
        raise InputError(f"the prompts cannot be read: {error.strerror}", path=path) from None
    except UnicodeDecodeError:
        raise InputError("is not UTF-8", path=path, line=number) from None


def _prompt(line: str, path: Path, number: int) -> Prompt:
    try:
        entry = parse_json_object(line, path, what="the line")
    except InputError as error:
        raise InputError(error.problem, path=path, line=number, advice=f"Write {ACCEPTED}") from None
    given = [key for key in (*_TEXT, _IDS, _CHAT) if key in entry]
    if len(given) != 1:
        problem = f"holds {' and '.join(given)}" if given else "holds no prompt"
        raise InputError(problem, path=path, line=number, advice=f"Write {ACCEPTED}")
    value = entry[given[0]]
    if given[0] in _TEXT and isinstance(value, str) and value:
        return value
    if given[0] == _IDS and isinstance(value, list) and value and all(map(_is_id, value)):
        return tuple(value)
    if given[0] == _CHAT and isinstance(value, list) and value and all(map(_is_message, value)):
        return tuple(value)
    raise InputError(
        f"{given[0]!r} is {json_type(value)} that is no prompt",
        path=path,
        line=number,
        advice=f"Write {ACCEPTED}",
    )


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str) and "content" in value
