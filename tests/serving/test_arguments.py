from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.serving.cpu_kernels import cpu_overlay
from eagle3lab.serving.plan import FLAGS, LaunchPlan
from eagle3lab.serving.profiles import cpu, gpu8, multi_node
from tests.serving.engines import RELEASES, run_inside

# The parser's own names, where they are not those of the first spelling.
_DESTINATIONS = {"0.5.9": {"tp_size": "tensor_parallel_size", "dp_size": "data_parallel_size"}, "0.5.23": {}}

_ASK = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser()
ServerArgs.add_cli_args(parser)
print(json.dumps([vars(parser.parse_args(words)) for words in json.load(sys.stdin)], default=str))
"""


def parsed(release: str, commands: list[list[str]], folder: Path) -> list[dict[str, Any]]:
    """What the release's own argument parser makes of each command; argparse exits at a flag it does not know."""
    (folder / "ask.py").write_text(
        _ASK.replace("json.load(sys.stdin)", f"json.loads({json.dumps(commands)!r})")
    )
    printed = run_inside(release, cpu_overlay(release), folder, str(folder / "ask.py"))
    answers: list[dict[str, Any]] = json.loads(printed.splitlines()[-1])
    return answers


@pytest.mark.engine
@pytest.mark.parametrize("release", RELEASES)
def test_the_release_s_own_parser_takes_every_plan_and_spelling(release: str, tmp_path: Path) -> None:
    further = {
        "host": "0.0.0.0",
        "port": 31000,
        "dp": 2,
        "backends": {"attention": "triton", "moe-runner": "triton"},
    }
    plans: list[LaunchPlan] = [
        cpu("/m", "/d", release=release),
        cpu("/m", release=release, tp=2),
        gpu8("/m", "/d", **further),
        gpu8("/m", "/d", algorithm="EAGLE", steps=5, topk=4, draft_tokens=8, device="cuda"),
        *multi_node("/m", "/d", nodes=3, dist_init_addr="10.0.0.1:50000", backends={"attention": "fa3"}),
    ]
    spellings = [
        (
            flag,
            [
                "--model-path",
                "/m",
                spelling,
                "7" if flag.integer else "EAGLE3" if flag.field == "algorithm" else "x",
            ],
        )
        for flag in FLAGS
        for spelling in flag.spellings
    ]
    answers = parsed(
        release, [plan.arguments() for plan in plans] + [words for _, words in spellings], tmp_path
    )
    renamed = _DESTINATIONS[release]

    def value(answer: dict[str, Any], spelling: str) -> Any:
        name = spelling.removeprefix("--").replace("-", "_")
        return answer[renamed.get(name, name)]

    for plan, answer in zip(plans, answers, strict=False):
        for flag in FLAGS:
            wanted = getattr(plan, flag.field)
            assert wanted is None or value(answer, flag.spellings[0]) == wanted
        for name, backend in plan.backends.items():
            assert value(answer, f"--{name}-backend") == backend
    for (flag, words), answer in zip(spellings, answers[len(plans) :], strict=True):
        assert str(value(answer, flag.spellings[0])) == words[-1], words
