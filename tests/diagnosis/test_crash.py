"""What a death means: the engines' own words, values compared, frames, and what served before."""

from __future__ import annotations

import re
from typing import Any

import pytest

from eagle3lab.acceptance.lines import Unwrapper
from eagle3lab.acceptance.tracebacks import death_in
from eagle3lab.diagnosis.crash import FAULTS, Crash, Known, _rows, crash_of
from eagle3lab.engines.messages import said
from eagle3lab.engines.release import Release

SGLANG = Release("sglang", "0.5.9")
VLLM = Release("vllm", "0.33.0")
HEADS = {
    "sglang": "/usr/lib/python3.12/site-packages/sglang/srt/",
    "vllm": "/usr/lib/python3.12/site-packages/vllm/",
}
DECODE = "[2026-01-01 00:00:00 TP0] Decode batch, #running-req: 1, accept len: 2.0, accept rate: 0.5"


def traceback(error: str, *frames: tuple[str, str], head: str = HEADS["sglang"]) -> list[str]:
    """A server's last words: frames are (file relative to the engine, code)."""
    lines = ["[2026-01-01 02:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):"]
    for file, code in frames:
        place = file if file.startswith("/") else head + file
        lines += [f'  File "{place}", line 7, in f', f"    {code}"]
    return [*lines, *error.split("\n")]


def crash(lines: list[str], **known: Any) -> Crash:
    unwrapper = Unwrapper()
    death = death_in(line for n, raw in enumerate(lines, 1) for line in unwrapper.unwrap(raw, n))
    assert death is not None
    return crash_of(death, Known(**known))


# Error, frame, and the slug that is named first ("" where nothing in it says why).
SGLANG_SAYS = [
    ("AttributeError: 'Foo2ForCausalLM' object has no attribute 'get_embed_and_head'",
     "speculative/eagle_worker.py", "embed, head = self.target_worker.model_runner.model.get_embed_and_head()",
     "capture.target-incomplete"),
    ("AttributeError: 'Foo2ForCausalLM' object has no attribute 'capture_aux_hidden_states'",
     "model_executor/model_runner.py", "self.model.capture_aux_hidden_states", "capture.target-incomplete"),
    ("AttributeError: 'TritonAttnBackend' object has no attribute 'window_kv_offsets'",
     "layers/attention/triton_backend.py", "self.window_kv_offsets", "flags.backend"),
    ("AttributeError: 'Qwen3Config' object has no attribute 'draft_vocab_size'", "models/llama_eagle3.py",
     "config.draft_vocab_size", "head-kind.config-value"),
    ("AttributeError: 'NoneType' object has no attribute 'shape'", "managers/scheduler.py", "x.shape", ""),
    ("IndexError: list index out of range", "models/qwen3_moe.py",
     'setattr(self.layers[layer_id], "_is_layer_to_capture", True)', "capture.ids-range"),
    ("IndexError: list index out of range", "managers/scheduler.py", "req = self.waiting_queue[0]", ""),
    ("IndexError: list index out of range", "mem_cache/memory_pool.py", "self.kv_buffer[layer_id]",
     "head-kind.config-value"),
    ("KeyError: 'eagle_config'", "model_executor/model_runner.py", 'hf_config["eagle_config"]',
     "head-kind.config-value"),
    ("KeyError: 'kimi_k2'", "/usr/lib/python3.12/site-packages/transformers/models/auto/configuration_auto.py",
     'config_class = CONFIG_MAPPING[config_dict["model_type"]]', "head-kind.architecture"),
    ("KeyError: 'model.layers.0.self_attn.q_norm.weight'", "models/llama.py", "param = params_dict[name]",
     "names.rejected"),
    ("KeyError: 'r1'", "managers/tokenizer_manager.py", "state = self.rid_to_state[rid]", ""),
    ("ValueError: Currently FlashMLA only supports topk=1 for speculative decoding",
     "layers/attention/flashmla_backend.py", "raise ValueError(", "flags.backend"),
    ("ValueError: Unsupported activation: gelu. Only silu is supported for now.", "models/llama.py",
     "raise ValueError(", "layer.activation"),
    ("RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x7680 and 5120x2560)", "models/llama_eagle3.py",
     "hidden_states = self.fc(hidden_states)", "capture.ids-range"),
    ("RuntimeError: The size of tensor a (96) must match the size of tensor b (90) at non-singleton dimension 1",
     "model_executor/cuda_graph_runner.py", "dst[:n].copy_(src)", "runtime.crash"),
    ("Exception: Capture cuda graph failed: CUDA out of memory. Tried to allocate 2 GiB\nPossible solutions:",
     "model_executor/cuda_graph_runner.py", "raise Exception(", "runtime.crash"),
    ("OSError: ./target does not appear to have a file named config.json.",
     "/usr/lib/python3.12/site-packages/transformers/utils/hub.py", "raise OSError(", "files.missing"),
    ("safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
     "model_loader/weight_utils.py", "with safe_open(st_file) as f:", "files.unreadable"),
    ("TypeError: something nobody has heard of", "managers/schedule_batch.py", "batch.frobnicate()", ""),
    ("AssertionError", "layers/linear.py", "assert param_data.shape == loaded_weight.shape", "names.shape"),
]  # fmt: skip
VLLM_SAYS = [
    ("ValueError: There is no module or parameter named 'midlayer' in LlamaForCausalLM",
     "model_executor/models/utils.py", "raise ValueError(msg)", "head-kind.architecture"),
    ("ValueError: There is no module or parameter named 'midlayer' in Eagle3LlamaForCausalLM",
     "model_executor/models/utils.py", "raise ValueError(msg)", "names.rejected"),
    ("ValueError: Following weights were not initialized from checkpoint: {'model.fc.weight'}",
     "model_executor/model_loader/default_loader.py", "raise ValueError(", "names.missing"),
    ("pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\n"
     "  Value error, num_speculative_tokens was provided but without speculative model. [type=value_error]",
     "engine/arg_utils.py", "return SpeculativeConfig(**config)", "flags.draft-path"),
    ("ValueError: Model architectures ['Foo3Eagle'] are not supported for now. Supported architectures: x",
     "model_executor/models/registry.py", "raise ValueError(", "head-kind.architecture"),
    ("RuntimeError: EAGLE-3 speculative decoding requires the language model to support EAGLE-3, but A does not.",
     "model_executor/models/pixtral.py", "raise RuntimeError(", "capture.target-unsupported"),
    ("ValueError: Free memory on device cuda:0 (3/79 GiB) on startup is less than desired GPU memory utilization",
     "v1/worker/gpu_worker.py", "raise ValueError(", "runtime.crash"),
]  # fmt: skip


@pytest.mark.parametrize(("error", "file", "code", "slug"), SGLANG_SAYS)
def test_what_sglang_says(error: str, file: str, code: str, slug: str) -> None:
    found = crash(
        traceback(error, ("managers/scheduler.py", "scheduler = Scheduler("), (file, code)), release=SGLANG
    )
    assert (found.explains or ("",))[0] == slug, found
    assert not found.error or found.error.partition("\n")[0] in error


@pytest.mark.parametrize(("error", "file", "code", "slug"), VLLM_SAYS)
def test_what_vllm_says(error: str, file: str, code: str, slug: str) -> None:
    found = crash(traceback(error, (file, code), head=HEADS["vllm"]), release=VLLM)
    assert (found.explains or ("",))[0] == slug, found


def test_the_engines_words_come_with_place_condition_and_releases() -> None:
    found = crash(
        traceback("ValueError: trtllm_mha backend only supports topk = 1 for speculative decoding.",
                  ("server_args.py", "raise ValueError(")), release=SGLANG,
    )  # fmt: skip
    assert found.explains[0] == "flags.backend"
    assert found.seen[0] == (
        "SGLang 0.5.9 raises it at server_args.py:2439 (in 0.5.1 to 0.5.12.post1), where this holds: "
        "self.speculative_eagle_topk > 1"
    )


def test_what_no_rule_is_about_is_still_the_engines_own_word() -> None:
    text = "DFLASH requires target aux hidden capture for prefill, but got None."
    sayings = [one for one in said("sglang", "0.5.23") if one.template.words.startswith(text)]
    words = sayings[0].template.words
    found = crash(traceback(f"RuntimeError: {words}", (sayings[0].file, "raise RuntimeError(")),
                  release=Release("sglang", "0.5.23"))  # fmt: skip
    assert found.explains == ("runtime.engine-defect",) and found.sure <= 0.6 and found.seen


def test_a_bound_of_the_device_is_held_against_what_is_known() -> None:
    lines = [
        "/tmp/c.py:41: unknown: block: [12,0,0] Assertion `index out of bounds: 0 <= tmp12 < 2048` failed.",
        *traceback("torch.AcceleratorError: CUDA error: device-side assert triggered",
                   ("v1/spec_decode/eagle.py", "propose()"), head=HEADS["vllm"]),
    ]  # fmt: skip
    known = crash(lines, sizes={"the drafter's longest position": 2048, "the draft vocabulary": 32000})
    assert known.explains == ("layer.context",) and "2048 is the drafter's longest position" in known.seen
    assert crash(lines).explains == ("layer.context",)  # a power of two is a length sooner than a vocabulary
    other = crash([lines[0].replace("2048", "32000"), *lines[1:]], sizes={"the draft vocabulary": 32000})
    assert other.explains[0] == "vocab.range" and other.sure == 0


def test_a_strict_field_is_looked_up_in_the_drafters_config() -> None:
    lines = traceback(
        "huggingface_hub.errors.StrictDataclassFieldValidationError: Validation error for field 'use_cache':\n"
        "    TypeError: Field 'use_cache' expected bool, got NoneType (value: None)",
        (
            "/usr/lib/python3.12/site-packages/transformers/configuration_utils.py",
            "config = cls(**config_dict)",
        ),
    )
    found = crash(lines, config={"use_cache": None})
    assert (
        found.explains == ("head-kind.config-value",)
        and "the drafter's config.json has use_cache: null" in found.seen
    )
    assert "does not state use_cache" in " ".join(crash(lines, config={}).seen)


def test_the_part_that_was_being_built_is_named() -> None:
    found = crash(
        traceback(
            "ValueError: The input size is not aligned with the quantized weight shape.",
            ("models/llama_eagle3.py", "self.fc = ReplicatedLinear("),
            ("layers/quantization/awq.py", "raise ValueError("),
        ),
        release=SGLANG,
    )
    assert (
        found.explains == ("layer.quantisation",) and "fc was being built (llama_eagle3.py:7)" in found.seen
    )


def test_what_accepted_before_it_died_was_loaded_right() -> None:
    lines = traceback("RuntimeError: The size of tensor a (270) must match the size of tensor b (180)",
                      ("models/llama_eagle3.py", "self.fc(x)"))  # fmt: skip
    assert crash(lines).explains[0] == "capture.ids-range"
    late = crash([DECODE, *lines], useful=True)
    assert (
        late.explains == () and late.served and "the server had served for 2.0 h before it died" in late.seen
    )
    assert crash([DECODE, *lines], useful=False).explains[0] == "capture.ids-range"


def test_the_first_exception_of_a_chain_that_says_anything_counts() -> None:
    lines = [
        *traceback("TypeError: bad operand", ("models/llama.py", "x")), "",
        "During handling of the above exception, another exception occurred:", "",
        *traceback("ValueError: Cannot find the config file for awq", ("model_loader/weight_utils.py", "raise E(")),
    ]  # fmt: skip
    assert crash(lines, release=SGLANG).explains == ("layer.quantisation",)


def test_a_death_without_words() -> None:
    cut = crash(traceback("", ("models/llama.py", "param = params_dict[name]"))[:-1])
    assert cut.explains == () and "breaks off" in cut.meaning
    killed = crash(["[2026-01-01 00:00:00] Load weight begin.", "Killed"])
    assert killed.explains == ("runtime.crash",) and "memory" in killed.meaning
    signal = crash(
        ["[2026-01-01 00:00:00] Received sigquit from a child process. It usually means the child failed."]
    )
    assert signal.explains == () and "no exception" in signal.meaning
    refused = crash(["launch_server.py: error: argument --speculative-algorithm: invalid choice: 'EAGLE4'"])
    assert refused.explains == ("flags.method",)


def test_every_row_says_what_it_means_and_can_be_read() -> None:
    for row in _rows():
        assert row["explains"] and 0 <= row["sure"] <= 1 and row["meaning"] and row["fix"].endswith("."), row
        assert row.keys() <= {"error", "file", "frames", "explains", "sure", "meaning", "fix"}
        for name in row.keys() & {"error", "file", "frames"}:
            re.compile(row[name])
        assert set(row["explains"]) <= {"runtime.crash", *FAULTS}


def test_how_many_states_arrived_at_fc_is_said() -> None:
    lines = traceback("RuntimeError: mat1 and mat2 shapes cannot be multiplied (12x8192 and 12288x4096)",
                      ("models/llama_eagle3.py", "hidden_states = self.fc(hidden_states)"))  # fmt: skip
    found = crash(lines, release=SGLANG)
    assert "2 states of 4096 instead of 3" in found.meaning and "capture.ids-count" in found.explains


def test_a_key_that_is_missed_in_a_forward_pass_is_no_name_of_a_tensor() -> None:
    error = "KeyError: 'model.layers.32.self_attn.attn'"
    served = traceback(error, ("attention/layer.py", "attn_metadata = attn_metadata[layer_name]"))
    assert crash(served).explains == ("runtime.engine-defect",)
    loaded = traceback(error, ("models/llama_eagle3.py", "param = params_dict[name]"))
    assert crash(loaded).explains[0] == "names.rejected"
