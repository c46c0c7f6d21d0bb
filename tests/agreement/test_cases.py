"""Every case and the permutation heads: the commands never contradict each other."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.errors import InputError
from tests.agreement.heads import ask, check
from tests.repair.heads import CASES, NEW, OLD, drafter
from tests.support.project import ROOT

PERMUTATION = ROOT / "specimen" / "permutation"
HEADS = sorted(
    path.name for path in PERMUTATION.iterdir() if (path / "config.json").exists() and path.name != "target"
)
ENGINES = ("sglang==0.4.8", OLD, "sglang==0.5.11", NEW, "vllm==0.20.2", "vllm==0.33.0")


def engines_of(case: dict[str, Any]) -> list[str]:
    own = case["engine"] or OLD
    return sorted({own, OLD, NEW} if own.startswith(("sglang==", "vllm==")) else {OLD, NEW})


WITH_DRAFTER = [
    (name, engine) for name, case in CASES.items() if case["drafter"] for engine in engines_of(case)
]


@pytest.mark.parametrize(("name", "engine"), WITH_DRAFTER)
def test_of_a_case_all_say_the_same(name: str, engine: str, tmp_path: Path) -> None:
    source = drafter(name, tmp_path / "case")
    target = tmp_path / "case" / "target" if CASES[name]["target"] else None
    try:
        answers = ask(source, engine, target)
    except InputError as error:
        if "holds no weights" in error.problem:
            return
        # What cannot be opened is a finding of `diagnose`, and one line of the others.
        from eagle3lab.repair import diagnose

        assert diagnose(source, target=target, engine=engine).verdict == "broken"
        return
    check(answers, tmp_path / "out")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", HEADS)
def test_of_a_permutation_head(name: str, engine: str, tmp_path: Path) -> None:
    """With ids of both conventions, ids that reach beyond the target, and none, at both places."""
    shutil.copytree(PERMUTATION / name, source := tmp_path / "head")
    given = json.loads((source / "config.json").read_text())
    del given["eagle_config"]["eagle_aux_hidden_state_layer_ids"]
    for ids, nested in (
        (None, True),
        ([1, 3, 4], True),
        ([2, 4, 5], True),
        ([2, 4, 8], True),
        ([0, 3, 6], False),
    ):
        config = json.loads(json.dumps(given))
        if ids is not None:
            (config["eagle_config"] if nested else config)["eagle_aux_hidden_state_layer_ids"] = ids
        (source / "config.json").write_text(json.dumps(config))
        check(ask(source, engine, PERMUTATION / "target"), tmp_path / f"out-{ids}")
