"""Whatever stands in the files: a diagnosis that fits the schema, or one clear error."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3lab.diagnosis import diagnose
from eagle3lab.diagnosis.run import BROKE
from eagle3lab.errors import InputError
from tests.diagnosis.corpus import load
from tests.diagnosis.injected import without_log
from tests.support.make_case import materialise

SCHEMA = json.loads(files("eagle3lab.diagnosis").joinpath("report.schema.json").read_text("utf-8"))
BASE = without_log(load("ok-specforge-llama-0.5.9"))
MLA = without_log(load("ok-kimi-mla-verbatim"))
ODD: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 2**40) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=5,
)
KEYS = sorted(
    {
        *BASE["drafter"]["config"],
        *MLA["drafter"]["config"],
        "norm_output",
        "fc_norm",
        "rope_parameters",
        "bias",
    }
    | {
        "sliding_window",
        "layer_types",
        "quantization_config",
        "target_hidden_size",
        "transformer_layer_config",
    }
    | {
        "eagle_aux_hidden_state_layer_ids",
        "speculators_config",
        "embed_requires_grad",
        "norm_before_residual",
    }
)
TARGET_KEYS = sorted(
    {*BASE["target"]["config"], "text_config", "quantization_config", "_name_or_path", "dtype"}
)
ENGINES = (
    "sglang==0.4.6",
    "sglang==0.5.9",
    "sglang==0.5.15",
    "sglang==0.5.23",
    "sglang==0.99",
    "vllm==0.20.2",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile")
    materialise(BASE, path / "gqa")
    materialise(MLA, path / "mla")
    return path


def check(drafter: Path, **given_inputs: Any) -> None:
    try:
        report = diagnose(drafter, **given_inputs).as_json()
    except InputError:
        return
    jsonschema.validate(json.loads(json.dumps(report, allow_nan=False)), SCHEMA)
    assert not [one for one in report["skipped"] if BROKE in one["reason"]]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(["gqa", "mla"]),
    changes=st.dictionaries(st.sampled_from(KEYS), ODD, max_size=3),
    target=st.dictionaries(st.sampled_from(TARGET_KEYS), ODD, max_size=3),
    engine=st.sampled_from(ENGINES),
)
def test_odd_configs(
    folder: Path, kind: str, changes: dict[str, Any], target: dict[str, Any], engine: str
) -> None:
    base = BASE if kind == "gqa" else MLA
    (folder / kind / "drafter" / "config.json").write_text(json.dumps(base["drafter"]["config"] | changes))
    (folder / kind / "target" / "config.json").write_text(json.dumps(base["target"]["config"] | target))
    check(folder / kind / "drafter", target=folder / kind / "target", engine=engine, launch=base["launch"])


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    names=st.lists(
        st.tuples(
            st.text(max_size=20)
            | st.sampled_from(["fc.weight", "lm_head.weight", "d2t", "t2d", "midlayer.mlp.down_proj.weight"]),
            st.lists(st.integers(0, 5), max_size=3),
        ),
        max_size=6,
        unique_by=lambda pair: pair[0],
    ),
    engine=st.sampled_from(ENGINES),
)
def test_odd_tensors(folder: Path, names: list[tuple[str, list[int]]], engine: str) -> None:
    case = json.loads(json.dumps(BASE))
    case["drafter"]["edits"] = {
        "drop": ["*"],
        "add": {
            name: {"dtype": "I64" if name == "d2t" else "BF16", "shape": shape, "fill": "ones"}
            for name, shape in names
        },
    }
    try:
        materialise(case, folder / "odd")
    except UnicodeEncodeError:
        return
    check(folder / "odd" / "drafter", target=folder / "odd" / "target", engine=engine, launch=BASE["launch"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(
        st.text(max_size=60)
        | st.sampled_from(
            [
                "Traceback (most recent call last):",
                "  File x, line 3",
                "KeyError: 'midlayer.x'",
                "[2026-02-12 10:02:11 TP0] Decode batch, #running-req: 4, accept len: 1.00, accept rate: 0.25, ",
                "[2026-02-12 10:02:11 TP0] Decode batch, #running-req: 4, #token: 1, gen throughput (token/s): 1",
                "server_args=ServerArgs(speculative_algorithm='EAGLE', tp_size=8)",
            ]
        ),
        max_size=12,
    )
)
def test_odd_logs(folder: Path, lines: list[str]) -> None:
    log = folder / "server.log"
    log.write_text("\n".join(lines), "utf-8", errors="surrogatepass")
    check(folder / "mla" / "drafter", log=log, engine="sglang==0.5.9")


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"hidden_size": 1e400}', "\x00", '{"a": ' * 5000])
def test_broken_configs(folder: Path, text: str, tmp_path: Path) -> None:
    materialise(BASE, tmp_path)
    for part in ("drafter", "target"):
        before = (tmp_path / part / "config.json").read_text()
        (tmp_path / part / "config.json").write_text(text)
        check(tmp_path / "drafter", target=tmp_path / "target", engine="sglang==0.5.9", launch=BASE["launch"])
        (tmp_path / part / "config.json").write_text(before)
