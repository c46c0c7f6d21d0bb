from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.serving.launch.secrets import REDACTED, redact_json

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
