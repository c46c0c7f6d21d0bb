"""What refuses after the weights are loaded: the rules against the release's own registry, and launches as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.engines.arguments import (
    AMPERE,
    BLACKWELL,
    HOPPER,
    SM120,
    Machine,
    release_rules,
    resolve_launch,
)
from eagle3lab.engines.arguments.refusals import DefiniteRefusal, refusals
from eagle3lab.engines.launch.reading import launch_of
from eagle3lab.engines.release import newest_release
from eagle3lab.serving.cpu_kernels import cpu_overlay
from tests.serving.engines import RELEASES, run_inside
from tests.support.small_models import EAGLE3_HEAD, KIMI_K25, LLAMA

NEW = newest_release().number
MLA_HEAD = {**EAGLE3_HEAD, "architectures": ["Eagle3DeepseekV2ForCausalLM"], "kv_lora_rank": 8}
_DRAFTED = "--speculative-algorithm EAGLE3 --speculative-draft-model-path head --speculative-num-steps 3"
_CHAIN = f"{_DRAFTED} --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
_TREE = f"{_DRAFTED} --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"


def _refused(
    release: str, options: str, target: Any, machine: Machine | None, head: Any = EAGLE3_HEAD
) -> tuple[DefiniteRefusal, ...]:
    launch = launch_of("sglang", ["--model-path", "target", *options.split()], {})
    return refusals(launch, release_rules(release), target, head, machine)


@pytest.mark.parametrize("release", ["0.5.9", NEW])
@pytest.mark.parametrize(
    ("options", "target", "machine", "head", "said"),
    [
        (_CHAIN, KIMI_K25, BLACKWELL, EAGLE3_HEAD, "trtllm_mla backend can only be used with MLA models"),
        (f"{_CHAIN} --attention-backend fa3", LLAMA, SM120, EAGLE3_HEAD, "requires SM>=80 and SM<=90"),
        (f"{_CHAIN} --attention-backend fa3", LLAMA, BLACKWELL, EAGLE3_HEAD, "requires SM>=80 and SM<=90"),
        (f"{_TREE} --attention-backend flashinfer", KIMI_K25, HOPPER, MLA_HEAD, "only supports topk=1"),
        (f"{_CHAIN} --attention-backend cutlass_mla", KIMI_K25, BLACKWELL, EAGLE3_HEAD, "cutlass_mla"),
        (
            f"{_CHAIN} --attention-backend trtllm_mla",
            KIMI_K25,
            HOPPER,
            EAGLE3_HEAD,
            "only supported on Blackwell",
        ),
    ],
)
def test_what_would_have_been_said_after_the_load(
    release: str, options: str, target: Any, machine: Machine, head: Any, said: str
) -> None:
    found = _refused(release, options, target, machine, head)
    assert said in found[0].text
    assert found[0].fault == "flags.backend"
    assert found[0].fix and "Change what" not in found[0].fix
    option = found[0].fix.partition("--speculative")[2].rstrip(".")
    if option:  # what is advised is tried
        assert _refused(release, f"{options} --speculative{option}", target, machine, head) == ()


def test_the_drafter_is_advised_a_backend_of_its_own() -> None:
    (found,) = _refused(NEW, _CHAIN, KIMI_K25, BLACKWELL)
    assert "--speculative-draft-attention-backend" in found.fix


@pytest.mark.parametrize(
    ("release", "options", "said", "fix"),
    [
        ("0.5.17", "--enable-lora --lora-paths a=./a", "LoRA is only compatible with NGRAM", "Leave out"),
        ("0.5.18", "--tp 4 --pp-size 2", "Pipeline parallelism is not compatible", "--tp-size 8"),
        ("0.5.19", "--tp 4 --pp-size 2", "Pipeline parallelism is not compatible", "--tp-size 8"),
        (NEW, "--tp 4 --pp-size 2", "Pipeline parallelism currently only supports EAGLE", "--tp-size 8"),
        (
            "0.5.16",
            "--disaggregation-mode decode --disaggregation-decode-enable-radix-cache",
            "radix-cache is incompatible with speculative decoding",
            "Leave out --disaggregation-decode-enable-radix-cache",
        ),
    ],
)
def test_what_goes_together_with_no_drafter(release: str, options: str, said: str, fix: str) -> None:
    (found,) = _refused(release, f"{_CHAIN} {options}", LLAMA, None)
    assert said in found.text and fix in found.fix
    assert found.fault == "flags.incompatible"
    assert found.refusal.source.partition(":")[0].endswith(".py")


def test_without_a_machine_only_what_every_gpu_refuses_is_certain() -> None:
    options = f"{_CHAIN} --attention-backend fa3"
    assert _refused(NEW, options, LLAMA, None) == () == _refused(NEW, options, LLAMA, HOPPER)
    assert _refused(NEW, options, LLAMA, AMPERE) == ()


def test_a_later_release_is_named_where_no_change_of_the_command_mends_it() -> None:
    context = f"{_CHAIN} --context-length 16384"
    found = _refused("0.5.9", context, {**LLAMA, "max_position_embeddings": 32768}, HOPPER)
    assert [one.fault for one in found] == ["layer.context"]


_UNREAD = "not importable here"
_ASK = """
import json, sys, types, torch
import sglang.srt.layers.attention.attention_registry as registry
import sglang.srt.speculative.draft_utils as drafting

def said(make):
    try:
        make()
    except (ValueError, AssertionError) as error:
        if "not published" in str(error):  # it asks a running server
            return ["not importable here"]
        return [type(error).__name__, str(error)]
    except ImportError:
        return ["not importable here"]
    except Exception:
        pass  # it went on to what needs a GPU
    return None

out = []
for name, mla, capability, topk in json.loads(WANTED):
    capability = tuple(capability)
    torch.cuda.get_device_capability = lambda *_: capability
    registry.get_device_capability = lambda *_: capability
    model = types.SimpleNamespace(is_encoder_decoder=False, hf_config=types.SimpleNamespace(architectures=["X"]))
    runner = types.SimpleNamespace(use_mla_backend=mla, model_config=model, draft_attention_backend=name)
    arguments = types.SimpleNamespace(
        use_mla_backend=mla, speculative_draft_attention_backend=name, speculative_attention_mode="prefill",
        attention_backend=name, prefill_attention_backend=None, decode_attention_backend=None,
    )
    runner.server_args = arguments
    if hasattr(drafting, "get_global_server_args"):
        drafting.get_global_server_args = lambda: arguments
        factory = lambda: drafting.DraftBackendFactory(arguments, runner, topk, 3)
    else:
        drafting.attention_backends = lambda: (name, name)
        drafting._assert_draft_needs_no_conv_sidecar = lambda runner: None
        factory = lambda: drafting.DraftBackendFactory(runner, topk, 3)
    own = registry.ATTENTION_BACKENDS.get(name)
    out.append([said(lambda: own(runner)) if own else None, said(lambda: factory().create_decode_backend())])
print(json.dumps(out))
"""


@pytest.mark.engine
@pytest.mark.parametrize("release", RELEASES)
def test_the_release_s_own_registry_says_so(release: str, tmp_path: Path) -> None:
    rules = release_rules(release)
    names = sorted(
        {rule.backend for rule in rules.late if rule.backend} | {"cutlass_mla", "triton", "torch_native"}
    )
    machines = {(8, 0): AMPERE, (9, 0): HOPPER, (10, 0): BLACKWELL, (12, 0): SM120}
    asked = [
        (name, mla, capability, topk)
        for name in names
        for mla in (False, True)
        for capability in machines
        for topk in (1, 4)
    ]
    (tmp_path / "ask.py").write_text(_ASK.replace("WANTED", repr(json.dumps(asked))))
    printed = run_inside(release, cpu_overlay(release), tmp_path, str(tmp_path / "ask.py"))
    answers = json.loads(printed.splitlines()[-1])
    refused = 0
    for (name, mla, capability, topk), (own, step) in zip(asked, answers, strict=True):
        tokens = 4 if topk == 1 else 8
        decided = {
            "attention_backend": name, "prefill_attention_backend": None, "decode_attention_backend": None,
            "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3, "speculative_eagle_topk": topk,
            "speculative_num_draft_tokens": tokens, "page_size": 1,
        }  # fmt: skip
        ours = resolve_launch(
            ["--model-path", "t", "--speculative-draft-model-path", "head"],
            rules,
            target=KIMI_K25 if mla else LLAMA,
            drafter=MLA_HEAD if mla else EAGLE3_HEAD,
            machine=machines[capability],
            decided=decided,
        )
        if ours.refusals and not ours.late:
            continue  # the argument checks come first
        if own == [_UNREAD] or step == [_UNREAD]:
            continue
        real = [answer for answer in (own, step) if answer is not None]
        found = [[one.exception, one.message] for one in ours.late if one.certain]
        assert found[:1] == real[:1], (name, mla, capability, topk)
        refused += bool(real)
    assert refused > 20
