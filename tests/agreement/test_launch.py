"""`launch` refuses a command if and only if `diagnose` has that finding, in the same words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.diagnosis import diagnose
from eagle3lab.engines.arguments.data import release_rules
from eagle3lab.engines.arguments.refusals import refusals
from eagle3lab.engines.launch.reading import read_launch
from eagle3lab.engines.release import parse_release, releases
from tests.diagnosis import corpus
from tests.support.make_case import materialise

CODES = ("E3L-G04", "E3L-G05")
OPTIONS = (
    "--tp 2 --pp-size 2", "--enable-lora --lora-paths a=./a", "--attention-backend trtllm_mha", "--page-size 64",
    "--attention-backend cutlass_mla", "--attention-backend flashmla", "--nonsense 3", "--enable-mixed-chunk",
    "--disaggregation-mode decode --disaggregation-decode-enable-radix-cache", "--dp-size 2", "",
)  # fmt: skip
TREES = ("3 1 4", "3 4 8", "5 8 32")


def agree(engine: str, command: str, drafter: Path | None, target: Path | None) -> None:
    """Both asked: what certainly refuses, and what is found."""
    diagnosis = diagnose(drafter, target=target, engine=engine, launch=command)
    configs = [one / "config.json" for one in (target, drafter) if one is not None]
    if not all(path.is_file() for path in configs):
        return
    from eagle3lab.checkpoint import open_checkpoint

    raw = [None if one is None else open_checkpoint(one).raw_config for one in (target, drafter)]
    expected = refusals(read_launch(command), release_rules(parse_release(engine).number), *raw)
    found = [one for one in diagnosis.findings if one.code in CODES]
    for one in expected:
        texts = [evidence.text for finding in found for evidence in finding.evidence]
        assert one.fault == "layer.context" or any(one.text in text for text in texts), (engine, command)
    said = [one for one in expected if one.fault != "layer.context"]
    assert len(found) == len(said), (engine, command)


@pytest.mark.parametrize("identity", corpus.case_ids())
def test_every_case(identity: str, tmp_path: Path) -> None:
    case = corpus.load(identity)
    if not case["launch"] or not (case["engine"] or "").startswith("sglang==") or not case["drafter"]:
        return
    if not case["target"] or case["drafter"].get("template") is None or identity.startswith("files-"):
        return
    materialise({**case, "id": "case"} | {"drafter": {"seed": 7, **case["drafter"]}}, tmp_path)
    agree(case["engine"], case["launch"], tmp_path / "drafter", tmp_path / "target")


@settings(max_examples=40, deadline=None)
@given(release=st.sampled_from(releases()), option=st.sampled_from(OPTIONS), tree=st.sampled_from(TREES))
def test_any_command(release: str, option: str, tree: str) -> None:
    steps, topk, tokens = tree.split()
    command = (
        "python -m sglang.launch_server --model-path /m --speculative-algorithm EAGLE3 "
        f"--speculative-draft-model-path /d --speculative-num-steps {steps} --speculative-eagle-topk {topk} "
        f"--speculative-num-draft-tokens {tokens} {option}"
    )
    agree(f"sglang=={release}", command, None, None)
