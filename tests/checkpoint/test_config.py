"""config.json in its three dialects: the same record, each value with its place, and one error for bad ones."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3lab.checkpoint import DrafterConfig, open_checkpoint
from eagle3lab.checkpoint.config import FIELDS
from eagle3lab.errors import InputError
from tests.checkpoint.handmade import CONFIG, write

SPECULATORS: dict[str, Any] = {
    "architectures": ["Eagle3DraftModel"],
    "draft_vocab_size": 10,
    "eagle_aux_hidden_state_layer_ids": [2, 5, 9],
    "norm_before_residual": True,
    "speculators_config": {
        "algorithm": "eagle3",
        "verifier": {"name_or_path": "org/target", "architectures": []},
    },
    "speculators_model_type": "eagle3",
    "speculators_version": "0.9.0",
    "target_hidden_size": None,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "transformer_layer_config": {
        "model_type": "llama",
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 1,
        "vocab_size": 40,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0},
    },
}


def config_of(folder: Path, raw: dict[str, Any] | bytes) -> DrafterConfig:
    return open_checkpoint(write(folder, config__json=raw)).config


def test_flat(tmp_path: Path) -> None:
    config = config_of(tmp_path, CONFIG)
    assert config.dialect == "huggingface"
    assert config.aux_hidden_state_layer_ids == (1, 4, 8)
    assert config.sources["aux_hidden_state_layer_ids"] == "eagle_config.eagle_aux_hidden_state_layer_ids"
    assert (config.head_dim, config.sources["head_dim"]) == (4, "derived: hidden_size // num_attention_heads")
    assert (config.num_aux_hidden_states, config.sources["num_aux_hidden_states"]) == (
        3,
        "derived: number of aux_hidden_state_layer_ids",
    )
    assert (config.target_hidden_size, config.sources["target_hidden_size"]) == (8, "derived: hidden_size")
    assert (config.rope_theta, config.sources["rope_theta"]) == (10000.0, "default")
    assert config.use_aux_hidden_state
    assert config.sources["use_aux_hidden_state"] == "eagle_config.use_aux_hidden_state"
    assert config.verifier is None


def test_modelopt(tmp_path: Path) -> None:
    raw = copy.deepcopy(CONFIG)
    raw["eagle_config"] |= {"use_mtp_layernorm": False, "norm_before_fc": True}
    config = config_of(tmp_path, raw | {"norm_before_fc": False})
    assert config.dialect == "modelopt"
    assert config.sources["dialect"] == "eagle_config.use_mtp_layernorm"
    assert (config.norm_before_fc, config.sources["norm_before_fc"]) == (True, "eagle_config.norm_before_fc")


def test_speculators(tmp_path: Path) -> None:
    config = config_of(tmp_path, SPECULATORS)
    assert config.dialect == "speculators"
    assert (config.hidden_size, config.sources["hidden_size"]) == (8, "transformer_layer_config.hidden_size")
    assert config.sources["aux_hidden_state_layer_ids"] == "eagle_aux_hidden_state_layer_ids"
    assert config.verifier == "org/target"
    assert config.norm_before_residual
    assert (config.rope_theta, config.sources["rope_theta"]) == (
        500000.0,
        "transformer_layer_config.rope_parameters.rope_theta",
    )
    assert config.rope_scaling == {"rope_type": "llama3", "factor": 8.0}
    assert (config.torch_dtype, config.sources["torch_dtype"]) == ("bfloat16", "dtype")
    assert (config.target_hidden_size, config.stated("target_hidden_size")) == (8, True)


@pytest.mark.parametrize("rope", [None, {"rope_type": "default", "rope_theta": 5.0}, {}, {"rope_theta": 5.0}])
def test_plain_rope_is_no_scaling(tmp_path: Path, rope: Any) -> None:
    assert config_of(tmp_path, CONFIG | {"rope_scaling": rope}).rope_scaling is None


def test_scaling_without_a_type_is_kept(tmp_path: Path) -> None:
    assert config_of(tmp_path, CONFIG | {"rope_scaling": {"factor": 8.0}}).rope_scaling == {"factor": 8.0}


def test_absent_and_null_are_told_apart(tmp_path: Path) -> None:
    absent = {key: value for key, value in CONFIG.items() if key != "draft_vocab_size"}
    config = config_of(tmp_path / "absent", absent)
    assert (config.draft_vocab_size, config.stated("draft_vocab_size")) == (None, False)
    assert config.sources["draft_vocab_size"] == "default"
    config = config_of(tmp_path / "null", absent | {"draft_vocab_size": None, "eagle_config": None})
    assert (config.draft_vocab_size, config.stated("draft_vocab_size")) == (None, True)
    assert config.sources["draft_vocab_size"] == "draft_vocab_size"
    assert config.stated("eagle_config")
    assert not config.stated("eagle_config.use_aux_hidden_state")
    assert config.aux_hidden_state_layer_ids is None


def test_every_field_says_where_it_came_from(tmp_path: Path) -> None:
    for raw in (CONFIG, SPECULATORS):
        config = config_of(tmp_path, raw)
        for field in FIELDS:
            source = config.sources[field.name]
            assert source == "default" or source.startswith("derived: ") or config.stated(source)


BAD: dict[str, tuple[Any, str]] = {
    "not JSON": (b'{\n "a": 1,\n "b" 2}', "config.json:3: the file is not JSON"),
    "a list": (b"[]", "an array instead of an object"),
    "empty": (b"  ", "is empty"),
    "byte order mark": (b"\xef\xbb\xbf{}", "is not JSON"),
    "UTF-16": ('{"hidden_size": 8}'.encode("utf-16"), "is not UTF-8"),
    "Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
    "deeply nested": (b'{"a":' + b"[" * 10**6, "nested too deeply"),
    "hidden_size a string": ({"hidden_size": "8"}, "hidden_size is a string, not an integer"),
    "hidden_size true": ({"hidden_size": True}, "hidden_size is a boolean"),
    "hidden_size zero": ({"hidden_size": 0}, "hidden_size is not a positive"),
    "hidden_size negative": ({"hidden_size": -8}, "hidden_size is not a positive"),
    "hidden_size huge": ({"hidden_size": 2**40}, "hidden_size is not a positive 32-bit"),
    "hidden_size a float": ({"hidden_size": 8.5}, "hidden_size is a number, not an integer"),
    "hidden_size null": ({"hidden_size": None}, "hidden_size is null"),
    "rope_theta a string": ({"rope_theta": "1e4"}, "rope_theta is a string"),
    "rope_theta infinite": (
        json.dumps(CONFIG).replace("{", '{"rope_theta": Infinity,', 1).encode(),
        "finite",
    ),
    "tie a number": ({"tie_word_embeddings": 1}, "tie_word_embeddings is an integer, not true or false"),
    "architectures a string": ({"architectures": "LlamaForCausalLMEagle3"}, "architectures is a string"),
    "architectures of numbers": ({"architectures": [1]}, "architectures holds something"),
    "eagle_config a list": ({"eagle_config": [1]}, "eagle_config is an array"),
    "ids a string": ({"eagle_aux_hidden_state_layer_ids": "1,2", "eagle_config": None}, "ids is a string"),
    "ids of strings": ({"eagle_config": {"eagle_aux_hidden_state_layer_ids": ["1"]}}, "ids holds something"),
    "rope_scaling a number": ({"rope_scaling": 2}, "rope_scaling is an integer, not an object"),
    "layer config a list": ({"transformer_layer_config": []}, "transformer_layer_config is an array"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_config_is_one_clear_error(tmp_path: Path, name: str) -> None:
    content, message = BAD[name]
    with pytest.raises(InputError) as caught:
        config_of(tmp_path, content if isinstance(content, bytes) else CONFIG | content)
    assert message in str(caught.value)
    assert "config.json" in str(caught.value)


def test_the_line_of_a_bad_field_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        config_of(tmp_path, CONFIG | {"vocab_size": "40"})
    lines = (tmp_path / "config.json").read_text().splitlines()
    assert caught.value.line is not None
    assert '"vocab_size"' in lines[caught.value.line - 1]


@pytest.mark.parametrize("field", [field.name for field in FIELDS if field.required])
def test_a_required_field_that_is_absent_is_named(tmp_path: Path, field: str) -> None:
    with pytest.raises(InputError, match=f"does not state {field}"):
        config_of(tmp_path, {key: value for key, value in CONFIG.items() if key != field})


keys = st.sampled_from(
    sorted({key for field in FIELDS for path in field.paths for key in path.split(".")} | set(SPECULATORS))
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)


@pytest.mark.slow
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    base=st.sampled_from([CONFIG, SPECULATORS, {}]), changes=st.dictionaries(keys, json_values, max_size=4)
)
def test_any_config_is_read_or_refused(tmp_path: Path, base: dict[str, Any], changes: dict[str, Any]) -> None:
    try:
        config = config_of(tmp_path, base | changes)
    except InputError as error:
        assert str(error).isprintable()
    else:
        assert config.hidden_size > 0
        assert config.head_dim > 0
        assert config.dialect in ("huggingface", "modelopt", "speculators")
