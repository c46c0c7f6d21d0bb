"""Which hidden states reach a drafter, by release, target and config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from eagle3lab.checkpoint.config import DrafterConfig, parse_config
from eagle3lab.cli import app
from eagle3lab.engines.atlas.data import release_facts
from eagle3lab.engines.capture import CapturePlan, Launch, capture_plan
from eagle3lab.engines.release import releases
from tests.support.small_models import DEEPSEEK_V3, EAGLE3_HEAD, KIMI_K25, LAYERS, LLAMA, QWEN3

_WIDTH = 64


def _drafter(ids: list[int] | None = None, **more: Any) -> DrafterConfig:
    raw = EAGLE3_HEAD | more
    if ids is not None:
        raw["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": ids, **raw.get("eagle_config", {})}
    return parse_config(raw, "", Path("config.json"))


def _plan(
    release: str,
    target: dict[str, Any],
    ids: list[int] | None = None,
    launch: Launch | None = None,
    **more: Any,
) -> CapturePlan:
    return capture_plan(target, _drafter(ids, **more), release_facts(release), launch)


def test_a_prompt_a_verify_pass_and_the_drafter_itself() -> None:
    plan = _plan("0.5.23", LLAMA, [1, 5, 8])
    seen = [(one.name, one.points, one.width, one.fc) for one in plan.phases]
    assert seen == [
        ("extend", (2, 6, 9), 3 * _WIDTH, "runs"),
        ("draft_extend", (2, 6, 9), 3 * _WIDTH, "runs"),
        ("decode", (), _WIDTH, "skipped"),
    ]
    assert plan.captures
    assert (plan.read, plan.shift, plan.fc_in) == (True, 1, 3 * _WIDTH)
    assert (plan.convention, plan.certain, plan.trained) == ("output of layer", True, (2, 6, 9))
    assert plan.sources["fc where widths differ"].startswith("models/llama_eagle3.py:")
    assert plan.unknown == ()


@pytest.mark.parametrize(
    ("release", "graphs", "verified"),
    [("0.5.10", True, (2, 6, 9)), ("0.5.10", False, (1, 4, 7)), ("0.5.11", True, (1, 4, 7))],
)
def test_graphs_capture_the_defaults_up_to_0_5_10(
    release: str, graphs: bool, verified: tuple[int, ...]
) -> None:
    plan = _plan(release, QWEN3, [0, 3, 6], Launch(cuda_graphs=graphs))
    assert plan.phase("extend").points == (1, 4, 7)
    assert plan.phase("draft_extend").points == verified


def test_kimi_k25_captures_from_0_5_10_through_its_language_model() -> None:
    stock = _plan("0.5.9", KIMI_K25, [1, 5, 8])
    assert stock.refusal is not None
    assert (stock.refusal.exception, stock.phases, stock.captures) == ("AttributeError", (), False)
    assert "'KimiK25ForConditionalGeneration' object has no attribute" in stock.refusal.message
    for release in ("0.5.10", "0.5.23"):
        plan = _plan(release, KIMI_K25, [1, 5, 8])
        assert plan.chain == ("KimiK25ForConditionalGeneration", "DeepseekV3ForCausalLM")
        assert plan.phase("extend").points == (2, 6, 9)
    # Where the config does not name the language model's class, the wrapper's constructor does.
    unnamed = {**KIMI_K25, "text_config": {**KIMI_K25["text_config"], "architectures": None}}
    assert _plan("0.5.23", unnamed).chain[-1] == "DeepseekV3ForCausalLM"


def test_deepseek_takes_ids_verbatim_from_0_5_13_unless_the_first_is_1() -> None:
    assert _plan("0.5.12", DEEPSEEK_V3, [2, 6, 9]).phase("extend").points == (3, 7, 10)
    assert _plan("0.5.13", DEEPSEEK_V3, [2, 6, 9]).phase("extend").points == (2, 6, 9)
    assert _plan("0.5.13", DEEPSEEK_V3, [1, 5, 8]).phase("extend").points == (2, 6, 9)


def test_what_is_raised_where_a_target_cannot() -> None:
    other = LLAMA | {"architectures": ["OPTForCausalLM"]}
    words = "'OPTForCausalLM' object has no attribute 'set_eagle3_layers_to_capture'"
    old, new = _plan("0.5.22", other).refusal, _plan("0.5.23", other).refusal
    assert old is not None
    assert new is not None
    assert (old.exception, old.message, old.source) == ("AttributeError", words, "")
    assert new.exception == "ValueError"
    assert "Model OPTForCausalLM does not implement" in new.message
    assert new.source.startswith("model_executor/")


@pytest.mark.parametrize("algorithm", ["EAGLE", "none"])
def test_only_eagle3_captures(algorithm: str) -> None:
    plan = _plan("0.5.9", KIMI_K25, [1, 5, 8], Launch(algorithm))
    assert (plan.captures, plan.refusal) == (False, None)
    assert algorithm in plan.why_not
    extend = plan.phase("extend")
    assert (extend.points, extend.width, extend.fc) == ((), _WIDTH, "skipped")


def test_the_switch_is_read_from_0_5_8() -> None:
    off = {"eagle_config": {"use_aux_hidden_state": False}}
    assert _plan("0.5.7", LLAMA, **off).captures
    plan = _plan("0.5.8", LLAMA, **off)
    assert not plan.captures
    assert plan.why_not == "eagle_config.use_aux_hidden_state is false"
    assert plan.phase("extend").fc == "skipped"


def test_fewer_states_than_fc_takes() -> None:
    """The last layer has no successor whose input its output is, so its id captures nothing."""
    plan = _plan("0.5.9", LLAMA, [1, 5, LAYERS - 1])
    extend = plan.phase("extend")
    assert (extend.points, extend.width, extend.fc) == ((2, 6), 2 * _WIDTH, "fails")
    one = _plan("0.5.9", LLAMA, [3]).phase("extend")
    assert (one.points, one.fc) == ((4,), "skipped")


def test_states_come_in_the_order_of_the_layers() -> None:
    assert _plan("0.5.9", LLAMA, [8, 1, 5]).phase("extend").points == (2, 6, 9)


def test_ids_that_no_release_reads_there() -> None:
    top = _plan("0.5.9", LLAMA, eagle_aux_hidden_state_layer_ids=[1, 4, 7])
    assert (top.ids, top.read, top.shift) == ((1, 4, 7), False, None)
    assert top.phase("extend").points == top.default == (2, 6, 9)
    assert (top.verdict, top.trained) == ("ids not read", (1, 4, 7))
    assert (top.needed, top.needed_at) == ((0, 3, 6), "eagle_config.eagle_aux_hidden_state_layer_ids")
    assert _plan("0.4.6", LLAMA, [0, 3, 6]).phase("extend").points == (2, 6, 9)


def test_what_is_not_stated_is_unknown() -> None:
    plan = _plan("0.5.9", {"architectures": ["LlamaForCausalLM"]}, [1, 5, 8])
    assert (plan.phase("extend").width, plan.phase("extend").fc) == (None, None)
    assert any("num_hidden_layers" in one for one in plan.unknown)
    nameless = _plan("0.5.9", {"num_hidden_layers": LAYERS, "hidden_size": _WIDTH})
    assert nameless.refusal is None
    assert any("names no class" in one for one in nameless.unknown)


_CAPTURING = ("LlamaForCausalLM", "DeepseekV3ForCausalLM", "GptOssForCausalLM", "Qwen3ForCausalLM")


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(releases()[10:]),
    st.sampled_from(_CAPTURING),
    st.lists(st.integers(0, LAYERS), min_size=1, max_size=4, unique=True),
    st.booleans(),
)
def test_the_ids_that_are_needed_capture_what_was_trained(
    release: str, name: str, ids: list[int], nested: bool
) -> None:
    """Written where they are needed, beside the inputs at the top level, they leave nothing to say."""
    target = LLAMA | {"architectures": [name]}
    stated: dict[str, Any] = {} if nested else {"eagle_aux_hidden_state_layer_ids": ids}
    plan = _plan(release, target, ids if nested else None, Launch(cuda_graphs=False), **stated)
    if plan.verdict in ("as trained", "refused", "unknown"):
        assert plan.needed is None
        assert plan.verdict != "as trained" or plan.points == plan.trained
        return
    assert plan.fault is not None and plan.trained is not None
    if plan.needed is None:  # then neither of the two ways to write them does it
        assert plan.last is not None
        for written in ([one - shift for one in plan.trained] for shift in (0, 1)):
            tried = _plan(release, target, written)
            assert min(written) < 0 or tried.points != plan.trained or max(plan.trained) > plan.last
        return
    top = {"eagle_aux_hidden_state_layer_ids": list(plan.trained)}
    again = _plan(release, target, list(plan.needed), Launch(cuda_graphs=False), **top)
    assert (again.verdict, again.points, again.trained) == ("as trained", plan.trained, plan.trained)


@pytest.mark.parametrize("engine", ["0.5.9", "0.5.23"])
def test_an_id_for_the_output_of_the_last_layer(engine: str) -> None:
    """No ids make a Llama target hand it over; gpt-oss takes it as it stands from 0.5.17 on."""
    ids = [2, LAYERS // 2, LAYERS]
    plan = _plan(engine, LLAMA, ids)
    assert (plan.verdict, plan.trained, plan.certain) == ("out of range", tuple(ids), True)
    assert plan.needed is None
    gpt = _plan("0.5.23", LLAMA | {"architectures": ["GptOssForCausalLM"]}, ids)
    assert (gpt.verdict, gpt.points) == ("as trained", tuple(ids))


def test_vllm_takes_ids_as_inputs_and_runs_fc_whatever_the_width() -> None:
    facts = release_facts("0.33.0", "vllm")
    top = capture_plan(LLAMA, _drafter(eagle_aux_hidden_state_layer_ids=[1, 4, 7]), facts)
    assert (top.verdict, top.points, top.shift) == ("as trained", (1, 4, 7), 0)
    nested = capture_plan(LLAMA, _drafter([1, 5, 8]), facts)
    assert (nested.verdict, nested.trained, nested.needed) == ("other convention", (2, 6, 9), (2, 6, 9))
    assert nested.needed_at == "eagle_aux_hidden_state_layer_ids"
    old = capture_plan(LLAMA, _drafter([0, 3, 6]), release_facts("0.20.2", "vllm"))
    assert (old.verdict, old.phase("extend").points) == ("ids not read", (2, 6, 9))
    single = {"eagle_aux_hidden_state_layer_ids": [4], "num_aux_hidden_states": 1}
    one = capture_plan(LLAMA, _drafter(**single), facts)
    assert one.phase("extend").fc == "runs"


def test_without_a_target() -> None:
    facts = release_facts("0.5.9")
    top = capture_plan(None, _drafter(eagle_aux_hidden_state_layer_ids=[1, 4, 7]), facts)
    assert (top.verdict, top.needed) == ("ids not read", (0, 3, 6))
    default = capture_plan(None, _drafter(eagle_aux_hidden_state_layer_ids=[2, 16, 29]), facts)
    assert default.verdict == "unknown"
    assert any("32 layers" in one for one in default.unknown)


def _folder(path: Path, config: dict[str, Any]) -> str:
    path.mkdir()
    path.joinpath("config.json").write_text(json.dumps(config), "utf-8")
    return str(path)


def test_the_commands_say_the_same(tmp_path: Path) -> None:
    from tests.engines.drafters import head, raw_config, write_checkpoint

    drafter = str(write_checkpoint(tmp_path / "drafter", raw_config(), head("midlayer.")))
    target = _folder(tmp_path / "target", LLAMA)
    runner = CliRunner(env={"COLUMNS": "150", "NO_COLOR": "1"})

    def run(*arguments: str, status: int = 0) -> str:
        result = runner.invoke(app, list(arguments))
        assert result.exit_code == status, result.output
        return result.output

    asked = ("capture", drafter, "--target", target, "--engine", "sglang==0.5.9")
    plan = json.loads(run(*asked, "--format", "json"))
    assert plan["schema_version"] == 1
    assert [one["name"] for one in plan["phases"]] == ["extend", "draft_extend", "decode"]
    assert "after a verify pass" in run(*asked)
    command = (
        f"python -m sglang.launch_server --model-path {target} --speculative-algorithm NEXTN "
        f"--speculative-draft-model-path {drafter} --speculative-num-steps 3 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 8"
    )
    assert "the algorithm is EAGLE" in run(*asked, "--launch", command)
    answer = json.loads(run("launch", command, "--engine", "sglang==0.5.9", "--format", "json"))
    assert answer["schema_version"] == 1
    assert answer["arguments"]["speculative_num_draft_tokens"] == 4
    assert answer["unknown_arguments"] == ["dtype"]
    script = tmp_path / "launch.sh"
    script.write_text(
        command.replace("--speculative-eagle-topk 1", "--page-size 64 --speculative-eagle-topk 4")
    )
    refused = run(
        "launch", str(script), "--engine", "sglang==0.5.12", "--gpu", "ampere", "--target", target, status=0
    )
    assert "flashinfer" in refused
    script.write_text(script.read_text() + " --attention-backend triton")
    refused = run("launch", str(script), "--engine", "sglang==0.5.12", status=1)
    assert "refuses: ValueError" in refused
    stopped = _folder(tmp_path / "kimi", KIMI_K25)
    said = run("capture", drafter, "--target", stopped, "--engine", "sglang==0.5.9", status=1)
    assert "refuses: AttributeError" in said


def test_json_holds_a_name_that_no_encoding_can(tmp_path: Path) -> None:
    from tests.engines.drafters import head, raw_config, write_checkpoint

    drafter = str(write_checkpoint(tmp_path / "drafter", raw_config(), head("midlayer.")))
    target = _folder(tmp_path / "target", LLAMA | {"architectures": ["Odd\ud800"]})
    asked = ("capture", drafter, "--target", target, "--engine", "sglang==0.5.9", "--format", "json")
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 1, result.output
    assert "'Odd\ud800'" in json.loads(result.stdout)["refusal"]["message"]
