from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.errors import InputError
from eagle3lab.serving.workload import read_prompts


def test_every_form_of_a_prompt_is_read(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    chat = [{"role": "user", "content": "hello"}]
    lines = [
        {"id": 1, "prompt": "one"},
        {"text": "two\u2028"},
        {"input_ids": [5, 6]},
        {"messages": chat, "model": "any"},
    ]
    path.write_text("\n\n".join(json.dumps(line) for line in lines) + "\n")
    assert read_prompts(path) == ("one", "two\u2028", (5, 6), tuple(chat))
    assert read_prompts(path, 2) == ("one", "two\u2028")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("[1]", "an array instead of an object"),
        ("{", "is not JSON"),
        ("{}", "holds no prompt"),
        ('{"prompt": "a", "input_ids": [1]}', "holds prompt and input_ids"),
        ('{"prompt": ""}', "'prompt' is a string that is no prompt"),
        ('{"text": null}', "'text' is null that is no prompt"),
        ('{"input_ids": []}', "'input_ids' is an array that is no prompt"),
        ('{"input_ids": [1, true]}', "no prompt"),
        ('{"input_ids": [-1]}', "no prompt"),
        ('{"messages": [{"content": "no role"}]}', "no prompt"),
    ],
)
def test_a_line_that_is_no_prompt_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "good"}\n' + line + "\n")
    with pytest.raises(InputError) as caught:
        read_prompts(path)
    assert "prompts.jsonl:2: " in str(caught.value)
    assert problem in str(caught.value)
    assert '"messages" (a chat)' in str(caught.value), "it says what is accepted"


def test_a_file_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_prompts(tmp_path / "none")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(InputError, match="no prompt in the file"):
        read_prompts(tmp_path / "empty")
    (tmp_path / "binary").write_bytes(b'{"prompt": "\xff"}')
    with pytest.raises(InputError, match="not UTF-8"):
        read_prompts(tmp_path / "binary")


@given(st.binary(max_size=300))
def test_any_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any-prompts.jsonl"
    path.write_bytes(content)
    try:
        assert all(read_prompts(path))
    except InputError as error:
        assert "any-prompts.jsonl" in str(error)


def test_a_text_may_be_put_into_the_target_s_chat_template(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "hello"}\n{"input_ids": [5]}\n')
    assert read_prompts(path, as_chat=True) == (({"role": "user", "content": "hello"},), (5,))
