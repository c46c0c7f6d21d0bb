from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3lab.engines.launch.reading import launch_of, read_launch
from eagle3lab.engines.launch.secrets import REDACTED
from eagle3lab.errors import InputError
from eagle3lab.serving.plan import LaunchPlan, plan_of
from eagle3lab.serving.profiles import cpu, gpu8, multi_node

_text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30)
_word = _text.filter(lambda text: not text.startswith("-"))
_count = st.integers(1, 64)
_flag = st.from_regex(r"--zz-[a-z]{1,8}", fullmatch=True)
_extra = st.lists(
    st.one_of(_flag, _flag.flatmap(lambda flag: _text.map(lambda text: f"{flag}={text}")), _word)
).map(lambda words: words if not words or words[0].startswith("-") else ["--zz", *words])


@st.composite
def plans(draw: st.DrawFn) -> LaunchPlan:
    nodes = draw(st.integers(1, 4))
    fields: dict[str, Any] = {
        "drafter": draw(st.none() | _word),
        "algorithm": draw(st.none() | st.sampled_from(["EAGLE3", "EAGLE", "NEXTN"])),
        "steps": draw(st.none() | _count),
        "topk": draw(st.none() | _count),
        "draft_tokens": draw(st.none() | _count),
        "tp": draw(_count),
        "dp": draw(_count),
        "nodes": nodes,
        "node_rank": draw(st.integers(0, nodes - 1)),
        "dist_init_addr": draw(_word if nodes > 1 else st.none() | _word),
        "device": draw(st.none() | st.sampled_from(["cpu", "cuda"])),
        "host": draw(_word),
        "port": draw(st.none() | st.integers(1, 65535)),
        "backends": draw(
            st.dictionaries(st.from_regex(r"[a-z]{1,9}(-[a-z0-9]{1,5})?", fullmatch=True), _word)
        ),
        "environment": draw(
            st.dictionaries(
                st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,9}", fullmatch=True),
                st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
            )
        ),
        "extra": draw(_extra),
    }
    return LaunchPlan(draw(_word), **fields)


def read_command(text: str) -> LaunchPlan:
    return plan_of(read_launch(text, strict=True))


@given(plans())
def test_a_plan_is_read_back_from_its_command(plan: LaunchPlan) -> None:
    assert read_command(plan.command(show_secrets=True)) == plan
    assert plan_of(launch_of("sglang", plan.arguments(), plan.environment)) == plan


@given(plans(), _word.filter(lambda text: len(text) > 3), st.sampled_from(["--api-key", "--admin-api-key"]))
def test_a_key_is_shown_nowhere(plan: LaunchPlan, letters: str, flag: str) -> None:
    key = f"s3cr3t{letters}"
    for words in ([flag, key], [f"{flag}={key}"]):
        secret = replace(plan, extra=[*plan.extra, *words], environment={**plan.environment, "HF_TOKEN": key})
        for shown in (repr(secret), str(secret), f"{secret!r}", secret.command(), str(secret.as_json())):
            assert "s3cr3t" not in shown
            assert REDACTED in shown
        assert key in secret.secrets()
        assert read_command(secret.command(show_secrets=True)) == secret


def test_words_with_token_in_them_are_no_secrets() -> None:
    plan = LaunchPlan(
        "m", draft_tokens=4, extra=["--max-total-tokens", "2048"], environment={"TOKENIZERS": "1"}
    )
    assert plan.secrets() == ()
    assert REDACTED not in plan.command()


def test_a_password_in_a_url_is_not_shown() -> None:
    plan = LaunchPlan("m", environment={"https_proxy": "http://me:hunter2@proxy:3128"})
    assert "hunter2" not in plan.command() + repr(plan)
    assert plan.secrets() == ("hunter2",)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"tp": 0}, "tp cannot be 0"),
        ({"tp": "8"}, "whole number"),
        ({"tp": True}, "whole number"),
        ({"port": 70000}, "70000"),
        ({"model": "--tp-size"}, "does not begin with a dash"),
        ({"model": ""}, "model"),
        ({"nodes": 2}, "dist_init_addr"),
        ({"node_rank": 1}, "counted from 0"),
        ({"extra": ["--tp", "8"]}, "has a field"),
        ({"extra": ["--attention-backend=fa3"]}, "has a field"),
        ({"extra": [8]}, "no word"),
        ({"backends": {"--attention": "fa3"}}, "names no flag"),
        ({"backends": {"attention": ""}}, "attention"),
        ({"environment": {"A B": "1"}}, "cannot be set"),
        ({"environment": {"A": 1}}, "cannot be set"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        LaunchPlan(**({"model": "m"} | fields))


def test_the_command_is_one_flag_a_line() -> None:
    plan = gpu8(
        "/m o", "/d", port=30000, backends={"attention": "fa3"}, environment={"A": "x y"}, extra=["--bs", "1"]
    )
    assert plan.command() == (
        "A='x y' \\\npython -m sglang.launch_server \\\n  --model-path '/m o' \\\n  --speculative-algorithm EAGLE3 \\\n"
        "  --speculative-draft-model-path /d \\\n  --speculative-num-steps 3 \\\n  --speculative-eagle-topk 1 \\\n"
        "  --speculative-num-draft-tokens 4 \\\n  --tp-size 8 \\\n  --port 30000 \\\n  --attention-backend fa3 \\\n"
        "  --bs 1"
    )


def test_a_plan_without_a_drafter_does_not_speculate() -> None:
    for plan in (gpu8("/m"), cpu("/m", release="0.5.23")):
        assert not any("speculative" in word for word in plan.arguments())


def test_there_is_a_command_for_each_node() -> None:
    plans = multi_node("/m", "/d", nodes=2, dist_init_addr="10.0.0.1:50000")
    assert [plan.node_rank for plan in plans] == [0, 1]
    assert [plan.tp for plan in plans] == [16, 16]
    assert plans[0].commands() == [plan.command() for plan in plans]
    assert "--node-rank 1" in plans[1].command()
    assert "--node-rank" not in plans[0].command(), "0 is SGLang's default"


def test_the_cpu_profile_needs_a_release_that_was_tried() -> None:
    with pytest.raises(InputError, match=r"0\.4\.1"):
        cpu("/m", release="0.4.1")


def test_each_rank_of_the_cpu_profile_gets_a_core() -> None:
    assert cpu("/m", release="0.5.23", tp=2).environment["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1"
