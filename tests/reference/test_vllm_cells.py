"""vLLM's cells: what is asked of its worker, how the worker counts, and the release itself where it is there."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.ground_truth.locate import find_installation
from eagle3lab.engines.launch.reading import read_launch
from eagle3lab.errors import InputError
from lab.faults import FAULTS
from lab.matrix import Matrix, engines, read_matrix, vllm
from lab.matrix import run as running
from lab.matrix.records import Cell
from lab.specimen.trial import Trial, load_trial


@pytest.fixture(scope="module")
def worker() -> ModuleType:
    """The worker script, imported without a release."""
    spec = importlib.util.spec_from_file_location("vllm_cell_worker", vllm.WORKER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def trial() -> Trial:
    return load_trial(prompts=2)


class Engine:
    """Answers each prompt by verifications that accept as many drafts as the prompt's ids say."""

    def __init__(self) -> None:
        self.drafts, self.accepted = 0, [0, 0, 0]
        self.waiting: list[int] = []
        self.tokens: list[int] = []

    def add_request(self, name: str, prompt: Mapping[str, Any], parameters: Any) -> None:
        assert parameters.temperature == 0.0
        self.waiting, self.tokens = list(prompt["prompt_token_ids"]), []

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list[Any]:
        if self.tokens:
            count = self.waiting.pop(0)
            self.drafts += 1
            self.accepted = [n + (k < count) for k, n in enumerate(self.accepted)]
            self.tokens += [1] * (count + 1)
        else:  # the prompt's own step verifies nothing
            self.tokens.append(1)
        return [SimpleNamespace(outputs=[SimpleNamespace(token_ids=tuple(self.tokens))])]


class Release(SimpleNamespace):
    """`vllm` as far as the worker uses it."""

    def __init__(self) -> None:
        super().__init__(LLM=self.llm, SamplingParams=lambda **given: SimpleNamespace(**given), given={})

    def llm(self, **given: Any) -> Any:
        self.given.update(given)
        engine = Engine()

        def metrics() -> list[Any]:
            if not engine.drafts:
                return []
            return [
                SimpleNamespace(name="vllm:spec_decode_num_drafts", value=engine.drafts),
                SimpleNamespace(
                    name="vllm:spec_decode_num_accepted_tokens_per_pos", values=list(engine.accepted)
                ),
            ]

        return SimpleNamespace(llm_engine=engine, get_metrics=metrics)


REQUEST = {
    "target": "target",
    "drafter": "drafter",
    "steps": 3,
    "prompts": [[3, 0, 2], [0], [1, 1]],
    "stop_ids": [2],
    "max_new_tokens": 8,
    "limit_s": 20.0,
}


def test_every_verification_is_told(worker: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    release = Release()
    monkeypatch.setitem(sys.modules, "vllm", release)  # type: ignore[arg-type]
    reply = worker.answer(REQUEST)
    assert reply["rounds"] == REQUEST["prompts"]
    assert [len(output) for output in reply["outputs"]] == [1 + 4 + 1 + 3, 2, 5]
    assert release.given["speculative_config"]["num_speculative_tokens"] == 3
    assert release.given["dtype"] == "float32" and release.given["max_num_seqs"] == 1


def raises(request: Mapping[str, Any]) -> dict[str, Any]:
    raise IndexError("index 1025 is out of bounds")


def dies(request: Mapping[str, Any]) -> dict[str, Any]:
    os._exit(3)


def hangs(request: Mapping[str, Any]) -> dict[str, Any]:
    time.sleep(60)
    return {}


def long(request: Mapping[str, Any]) -> dict[str, Any]:
    return {"outputs": [[7] * 100_000], "rounds": []}


@pytest.mark.parametrize(
    ("answer", "limit", "expected"),
    [
        (raises, 20.0, {"stops": "IndexError: index 1025 is out of bounds"}),
        (dies, 20.0, {"stops": "the process ended with status 3"}),
        (hangs, 0.3, {"timeout": "no answer within 0.3 s"}),
        (long, 20.0, {"outputs": [[7] * 100_000], "rounds": []}),
    ],
)
def test_an_engine_that_ends_or_hangs_is_a_reply(
    worker: ModuleType, monkeypatch: pytest.MonkeyPatch, answer: Any, limit: float, expected: dict[str, Any]
) -> None:
    monkeypatch.setattr(worker, "answer", answer)
    began = time.monotonic()
    assert worker.in_a_process(REQUEST | {"limit_s": limit}) == expected
    assert time.monotonic() - began < 15


def test_a_command_s_fault_does_not_apply(trial: Trial, tmp_path: Path) -> None:
    """Nothing of vLLM is needed to say so, and the rest of the matrix is measured apart."""
    for n, name in enumerate(("capture.algorithm/EAGLE", "flags.draft-tokens/pruned-tree", "flags.method")):
        prepared = vllm.prepare(name, trial, 8, tmp_path / str(n))
        assert (prepared.cell.outcome, prepared.served) == ("not applicable", None)
        assert "command" in prepared.cell.detail
    cells = running.run(
        running.jobs(["server"], [vllm.ENGINE], ["flags.method"]),
        tmp_path / "matrix.jsonl",
        lambda *_: None,
        prompts=2,
        tokens=8,
    )
    assert [cell.key for cell in cells] == [("flags.method", vllm.ENGINE, "server")]
    with pytest.raises(InputError, match="reference does not compute"):
        running.jobs(["reference"], [vllm.ENGINE])
    assert {job.engine for job in running.jobs()} == set(running.ENGINES)


def test_a_reply_becomes_a_cell(trial: Trial, tmp_path: Path) -> None:
    prepared = vllm.prepare("healthy", trial, 4, tmp_path)
    assert prepared.served is not None
    said = read_launch(vllm.command(prepared))
    assert (said.engine, said.algorithm, said.steps) == ("vllm", "eagle3", 3)
    assert (said.drafter, said.model) == (str(prepared.served.drafter), str(prepared.served.target))

    def cell(**reply: Any) -> Cell:
        assert prepared.served is not None
        return vllm.read_reply(prepared.cell, reply, prepared.served, trial, seconds=1.0)

    measured = cell(rounds=[[3, 0], [1, 0, 0]], outputs=[[1], [2]], versions={"vllm": "0.32.0"})
    assert (measured.verify_steps, measured.accepted) == (5, (2, 1, 1))
    assert measured.rounds == ("30", "100") and measured.same_answers is False
    assert measured.versions == {"vllm": "0.32.0"}
    stopped = cell(stops=f"OSError: no weights in\n {prepared.served.drafter}")
    assert (stopped.outcome, stopped.detail) == ("stops", "OSError: no weights in drafter")
    assert cell(timeout="no answer within 120.0 s").outcome == "timeout"


def test_how_two_cells_compare() -> None:
    def pair(fault: str, ours: dict[str, Any], theirs: dict[str, Any]) -> engines.Comparison:
        cells = [
            Cell(
                **{"fault": fault, "slug": fault, "engine": engine, "way": way, "outcome": "measured"}
                | fields
            )
            for engine, way, fields in (
                (vllm.ENGINE, "server", ours),
                (engines.SGLANG, "reference", theirs),
            )
        ]
        return engines.compare(Matrix(tuple(cells)))[0]

    figures = {"rounds": ("30",), "histograms": ((1, 0, 0, 1),), "answers": "a"}
    others = {"rounds": ("03",), "histograms": ((1, 0, 0, 1),), "answers": "a"}
    assert pair("vocab.t2d", figures, figures).relation == "alike"
    assert pair("vocab.t2d", figures, others).relation == "differs"
    assert pair("vocab.t2d", figures, others | {"rounds": ()}).relation == "alike"
    assert pair("vocab.t2d", figures, {"outcome": "stops"}).relation == "differs"
    assert pair("vocab.t2d", {"outcome": "stops"}, {"outcome": "stops"}).relation == "both stop"
    assert pair("vocab.t2d", {"outcome": "timeout"}, figures).relation == "one only"
    assert pair("vocab.t2d", figures, {"outcome": "not modelled"}).sglang is None
    assert pair("names.missing/fc", figures, others).relation == "chance"
    assert "tie_word_embeddings" in pair("head.tied", figures, others).why


def test_the_recorded_cells_part_where_it_is_said() -> None:
    """No difference without its reason, and no reason without a difference."""
    assert (set(engines.REASONS) | engines.LEFT_TO_CHANCE) <= set(FAULTS)
    rows = engines.compare(read_matrix())
    if not rows:
        pytest.skip(f"no cell of vLLM is recorded: python -m lab.matrix --engine {vllm.ENGINE} --way server")
    assert {row.fault for row in rows if row.relation == "differs"} == set(engines.REASONS)
    assert all(row.vllm.same_answers for row in rows if row.vllm.outcome == "measured")
    relations = {row.fault: row.relation for row in rows}
    assert relations["healthy"] == "alike"


@pytest.fixture
def installed() -> Iterator[None]:
    """The release's environment, or the command that makes it."""
    try:
        find_installation(resolve_engine(vllm.ENGINE))
    except InputError as error:
        pytest.skip(f"{error.problem}: make engines")
    yield


@pytest.mark.engine
def test_the_release_accepts_as_sglang_does(installed: None, tmp_path: Path) -> None:
    """Verification by verification, on the healthy head as on one that both read alike; a head that ends it."""
    faults = ["healthy", "layer.rope/base-100", "vocab.absolute/all"]
    path, told = tmp_path / "matrix.jsonl", lambda *_: None
    theirs = running.run(running.jobs(["server"], [vllm.ENGINE], faults), path, told, prompts=4, tokens=32)
    ours = running.run(
        running.jobs(["reference"], ["sglang==0.5.23"], faults), path, told, prompts=4, tokens=32
    )
    assert [cell.outcome for cell in theirs] == ["measured", "measured", "stops"]
    assert "IndexError" in theirs[2].detail
    for sglang, other in zip(ours[:2], theirs[:2], strict=True):
        assert other.same_answers
        assert other.rounds == sglang.rounds
        assert other.answers == sglang.answers
    assert theirs[0].rounds != theirs[1].rounds
