"""What becomes of launch commands in one release or another, by rules that were read from its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.engines.arguments import (
    BLACKWELL,
    HOPPER,
    UNKNOWN,
    Machine,
    ResolvedLaunch,
    argument_rules,
    release_rules,
    releases,
    resolve_launch,
)
from eagle3lab.engines.release import releases as atlas_releases
from eagle3lab.errors import InputError
from tests.support.small_models import EAGLE3_HEAD, LLAMA, QWEN3

_EAGLE3 = "--speculative-algorithm EAGLE3 --speculative-draft-model-path head"
_CHAIN = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
_TREE = "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8"


def _resolve(
    release: str, options: str, machine: Machine | None = HOPPER, target: Any = QWEN3, **more: Any
) -> ResolvedLaunch:
    words = ["--model-path", "target", *options.split()]
    more = {"drafter": EAGLE3_HEAD} | more
    return resolve_launch(words, release_rules(release), target=target, machine=machine, **more)


def test_every_release_of_the_atlas_has_rules_and_nothing_in_them_is_unreadable() -> None:
    assert releases() == atlas_releases()
    assert [one for one in releases() if release_rules(one).unknown] == []


@pytest.mark.parametrize("release", releases())
def test_a_chain_is_cut_to_its_steps_in_every_release(release: str) -> None:
    launch = _resolve(
        release,
        "--speculative-algorithm NEXTN --speculative-draft-model-path head --page-size 1 "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8",
    )
    assert launch.refused is None
    assert launch.value("speculative_algorithm") == "EAGLE"
    assert launch.value("speculative_num_draft_tokens") == 4
    change = next(one for one in launch.changes if one.field == "speculative_num_draft_tokens")
    assert (change.before, change.after, change.certain) == (8, 4, True)
    assert "adjusted to speculative_num_steps + 1" in change.said
    assert "speculative_eagle_topk == 1" in change.when
    file, _, line = change.source.rpartition(":")
    assert file.endswith(".py")
    assert int(line) > 0


# Where nothing is said: (steps, topk, draft tokens) of a Llama and of another target.
@pytest.mark.parametrize(
    ("release", "llama", "other"),
    [
        ("0.4.6", (5, 4, 8), (5, 4, 8)),
        ("0.5.6", (5, 4, 8), (5, 4, 8)),
        ("0.5.9", (5, 4, 8), (3, 1, 4)),
        ("0.5.23", (5, 4, 8), (3, 1, 4)),
    ],
)
def test_defaults_follow_release_and_target(
    release: str, llama: tuple[int, ...], other: tuple[int, ...]
) -> None:
    fields = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")
    for target, expected in ((LLAMA, llama), (QWEN3, other)):
        launch = _resolve(release, f"{_EAGLE3} --page-size 1", target=target)
        assert tuple(map(launch.value, fields)) == expected


# A tree with pages, by backend: what each age of SGLang does.
@pytest.mark.parametrize(
    ("release", "backend", "topk", "refused"),
    [
        ("0.4.6", "flashinfer", 1, ""),
        ("0.4.8", "triton", 1, ""),
        ("0.4.9", "triton", 4, ""),
        ("0.5.1", "triton", 4, ""),
        ("0.5.2", "triton", 4, "ValueError"),
        ("0.5.5", "flashinfer", 4, ""),
        ("0.5.5", "fa3", 4, "ValueError"),
        ("0.5.6", "fa3", 4, ""),
        ("0.5.12", "triton", 4, "ValueError"),
        ("0.5.13", "triton", 4, ""),
        ("0.5.23", "triton", 4, ""),
    ],
)
def test_trees_with_pages(release: str, backend: str, topk: int, refused: str) -> None:
    launch = _resolve(release, f"{_EAGLE3} {_TREE} --page-size 64 --attention-backend {backend}")
    assert (launch.refused.exception if launch.refused else "") == refused
    assert launch.value("speculative_eagle_topk") == topk


@pytest.mark.parametrize(
    ("release", "options", "expected"),
    [
        ("0.5.6", "--quantization fp8", UNKNOWN),  # the argument does not exist: the drafter inherits
        ("0.5.7", "--quantization fp8", "fp8"),
        ("0.5.9", "--quantization fp8 --speculative-draft-model-quantization unquant", None),
        ("0.5.23", "--quantization fp8", "fp8"),
        ("0.5.23", "--quantization fp8 --speculative-draft-model-quantization unquant", None),
    ],
)
def test_quantisation_is_inherited(release: str, options: str, expected: Any) -> None:
    launch = _resolve(release, f"{_EAGLE3} {_CHAIN} {options}")
    assert launch.value("speculative_draft_model_quantization") is expected or (
        launch.value("speculative_draft_model_quantization") == expected
    )


def test_what_depends_on_the_machine_is_unknown_without_one_and_known_where_it_was_decided() -> None:
    options = f"{_EAGLE3} {_TREE} --page-size 64"
    assert _resolve("0.5.9", options).value("attention_backend") == "flashinfer"
    blind = _resolve("0.5.9", options, machine=None)
    assert blind.value("attention_backend") is UNKNOWN
    assert blind.refused is None
    assert any("page_size > 1" in one.message and not one.certain for one in blind.refusals)
    decided = {"attention_backend": "triton", "page_size": 64}
    told = _resolve("0.5.9", options, machine=None, decided=decided)
    assert told.refused is not None
    assert told.refused.exception == "ValueError"


def test_trtllm_mha_takes_chains_only() -> None:
    options = f"{_EAGLE3} {_TREE} --attention-backend trtllm_mha"
    launch = _resolve("0.5.9", options, machine=BLACKWELL)
    assert launch.refused is not None
    assert "trtllm_mha backend only supports topk = 1" in launch.refused.message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (f"{_EAGLE3} --speculative-nonsense 1", "unrecognized arguments: --speculative-nonsense"),
        (f"{_EAGLE3} --speculative-num 1", "ambiguous option: --speculative-num could match"),
        (f"{_EAGLE3} --speculative-num-steps three", "invalid int value: 'three'"),
        (f"{_EAGLE3} --speculative-num-steps", "expected one argument"),
        (f"{_EAGLE3} --enable-mixed-chunk=1", "ignored explicit argument '1'"),
        ("--speculative-algorithm EAGLE9", "invalid choice: 'EAGLE9'"),
    ],
)
def test_the_parser_gives_up_in_its_own_words(options: str, said: str) -> None:
    launch = _resolve("0.5.9", options)
    assert launch.refused is not None
    assert launch.refused.exception == "SystemExit"
    assert said in launch.refused.message


@pytest.mark.parametrize(
    ("release", "options", "environment", "length"),
    [
        ("0.4.10.post2", "", {}, 8192),  # run past its own length, with a warning
        ("0.5.1", "", {}, None),
        ("0.5.23", "", {}, None),
        ("0.5.23", "", {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}, 8192),
        ("0.5.23", "--context-length 2048", {}, 2048),
    ],
)
def test_the_drafter_is_run_with_the_targets_context(
    release: str, options: str, environment: dict[str, str], length: int | None
) -> None:
    longer = QWEN3 | {"max_position_embeddings": 8192}
    launch = _resolve(release, f"{_EAGLE3} {_CHAIN} {options}", target=longer, environment=environment)
    context = launch.draft_context
    assert context is not None
    assert (context.own, context.length) == (4096, length)
    assert (context.exception == "ValueError") is (length is None)
    assert _resolve(release, "", target=longer).draft_context is None


def test_the_environment_counts() -> None:
    v1 = _resolve("0.5.9", f"{_EAGLE3} {_CHAIN}")
    v2 = _resolve("0.5.9", f"{_EAGLE3} {_CHAIN}", environment={"SGLANG_ENABLE_SPEC_V2": "1"})
    assert (v1.value("disable_overlap_schedule"), v2.value("disable_overlap_schedule")) == (True, False)
    tree = _resolve("0.5.9", f"{_EAGLE3} {_TREE}", environment={"SGLANG_ENABLE_SPEC_V2": "1"})
    assert tree.refused is not None
    assert "Spec v2 currently only supports topk = 1" in tree.refused.message


def test_a_patched_source_tree_changes_the_answer(tmp_path: Path) -> None:
    """Also without the rest of the package: what is not there is not guessed."""
    folder = tmp_path / "sglang" / "srt"
    folder.mkdir(parents=True)
    folder.joinpath("server_args.py").write_text(_PATCHED, "utf-8")
    for name in ("models/registry.py", "managers/scheduler.py"):
        folder.joinpath(name).parent.mkdir()
        folder.joinpath(name).write_text("", "utf-8")
    rules = argument_rules(str(tmp_path))
    options = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8"
    words = ["--model-path", "x", "--speculative-algorithm", "EAGLE3", *options.split()]
    launch = resolve_launch(words, rules)
    assert launch.value("speculative_num_draft_tokens") == 5
    assert launch.value("max_running_requests") is UNKNOWN
    assert launch.refused is None


_PATCHED = """
import dataclasses
from typing import Optional


@dataclasses.dataclass
class ServerArgs:
    model_path: str
    speculative_algorithm: Optional[str] = None
    speculative_num_steps: Optional[int] = None
    speculative_eagle_topk: Optional[int] = None
    speculative_num_draft_tokens: Optional[int] = None
    max_running_requests: Optional[int] = None

    def __post_init__(self):
        if self.speculative_algorithm == "EAGLE3":
            if self.speculative_num_draft_tokens != self.speculative_num_steps + 2:
                self.speculative_num_draft_tokens = self.speculative_num_steps + 2
            while something():
                self.max_running_requests = 48

    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", type=str)
        parser.add_argument("--speculative-algorithm", type=str)
        parser.add_argument("--speculative-num-steps", type=int)
        parser.add_argument("--speculative-eagle-topk", type=int)
        parser.add_argument("--speculative-num-draft-tokens", type=int)
"""


@pytest.mark.parametrize(
    "spec", ["", "sglang", "sglang==", "sglang==0.1", "vllm==0.11", "/nowhere/at/all", "a\x1bb"]
)
def test_what_names_no_engine_ends_with_one_line(spec: str) -> None:
    with pytest.raises(InputError) as caught:
        argument_rules(spec)
    assert "\x1b" not in str(caught.value)


def test_a_release_that_is_not_known_is_stood_in_for() -> None:
    assert argument_rules("sglang==0.5.9.post7").release == "0.5.9"


_WORDS = st.sampled_from(
    [
        *_EAGLE3.split(),
        *_TREE.split(),
        "--page-size",
        "--attention-backend",
        "--device",
        "--quantization",
        "--model-path",
        "--tp",
        "--enable-mixed-chunk",
        "-",
        "--",
        "",
        "=",
        "--=",
        "-1",
        "{}",
        "\x1b[31m",
        "9" * 5000,
    ]
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(_WORDS, max_size=12),
    st.sampled_from(["0.4.6", "0.5.3", "0.5.9", "0.5.15", "0.5.23"]),
    st.sampled_from(
        [{}, {"architectures": []}, {"architectures": [None]}, {"architectures": {}}, QWEN3, None]
    ),
)
def test_no_command_and_no_config_breaks_it(words: list[str], release: str, target: Any) -> None:
    resolve_launch(words, release_rules(release), target=target, drafter=target, machine=HOPPER)
