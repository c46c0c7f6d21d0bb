from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from eagle3lab.cli import app
from eagle3lab.engines.launch.secrets import (
    REDACTED,
    redact_arguments,
    redact_environment,
    redact_json,
    secrets_in,
)

_SECRET = "s3cr3t-abcdefgh"
_KEY = "kęy-'with'-\"quotes\""


def test_a_server_s_account_of_itself_keeps_no_key() -> None:
    info = {
        "api_key": _KEY,
        "admin_api_key": None,
        "ssl_keyfile_password": "pw",
        "launch_command": f"--api-key {_KEY} --port 1",
        "states": [{"api_key": _KEY, "max_total_tokens": 5, "bucket_time_to_first_token": None}],
        "env": {"HF_TOKEN": "hf_abcdef"},
        "tokenizer_path": "/models/token",
        "proxy": "http://user:letmein@host:1/",
    }
    kept = redact_json(info, ["another-secret"])
    assert kept == {
        "api_key": REDACTED,
        "admin_api_key": None,
        "ssl_keyfile_password": REDACTED,
        "launch_command": f"--api-key {REDACTED} --port 1",
        "states": [{"api_key": REDACTED, "max_total_tokens": 5, "bucket_time_to_first_token": None}],
        "env": {"HF_TOKEN": REDACTED},
        "tokenizer_path": "/models/token",
        "proxy": f"http://user:{REDACTED}@host:1/",
    }
    assert redact_json({"a": ["x another-secret"]}, ["another-secret"]) == {"a": [f"x {REDACTED}"]}


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("abk-" + _KEY) | st.just(_KEY),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(_VALUES)
def test_a_known_key_is_found_wherever_it_stands(value: object) -> None:
    kept = json.dumps(redact_json({"given": value, "api_key": _KEY, "copy": f"<{_KEY}>"}), ensure_ascii=False)
    assert json.dumps(_KEY, ensure_ascii=False)[1:-1] not in kept


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", _SECRET],
        ["--api-k", _SECRET],
        [f"--api={_SECRET}"],
        ["--hf-token", _SECRET],
        ["--hf_token", _SECRET],
        ["--admin-api-k", _SECRET],
        ["--ssl-keyfile-pass", _SECRET],
        [f"http://user:{_SECRET}@host/x"],
        [f"https://host/x?a=1&access_token={_SECRET}"],
        ["--header", f"Authorization: Bearer {_SECRET}"],
        ["--header", f"authorization={_SECRET}"],
        ["--note", "hf_" + "s3cr3tabcdefghijklmnop"],
    ],
)
def test_a_secret_of_a_command_is_shown_nowhere(words: list[str]) -> None:
    command = ["--model-path", "m", *words, "--port", "30000"]
    assert "s3cr3t" not in " ".join(redact_arguments(command))
    assert any("s3cr3t" in value for value in secrets_in(command, {}))
    assert redact_arguments(command)[-2:] == ["--port", "30000"]


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "PGPASSWORD", "OPENAI_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWD"]
)
def test_a_secret_of_the_environment_is_shown_nowhere(name: str) -> None:
    assert redact_environment({name: _SECRET, "CUDA_VISIBLE_DEVICES": "0"}) == {
        name: REDACTED,
        "CUDA_VISIBLE_DEVICES": "0",
    }


def test_words_like_those_of_secrets_are_left_alone() -> None:
    words = ["--ssl-keyfile", "k.pem", "--max-total-tokens", "9", "--tokenizer-path", "t", "git@host", "PWD"]
    assert redact_arguments(words) == words
    assert (
        redact_environment({"PWD": "/home", "TOKENIZERS_PARALLELISM": "1", "MONKEYS": "1"})["PWD"] == "/home"
    )


def test_launch_prints_no_key() -> None:
    command = f"HF_TOKEN={_SECRET}2 sglang serve /m --api-key {_SECRET} --nonsense"
    for style in ("text", "json"):
        result = CliRunner().invoke(app, ["launch", command, "--engine", "sglang==0.5.9", "--format", style])
        assert result.exit_code == 1, result.output
        assert "s3cr3t" not in result.output
        assert (REDACTED in result.output) is (style == "json")
