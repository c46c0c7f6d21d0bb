"""Files as people keep them: every case, every case in every wrapper, and counts that come back from every format."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3lab.acceptance.comparison import UNKNOWN, compare_runs
from eagle3lab.acceptance.log import read_logs
from eagle3lab.acceptance.render import as_json
from eagle3lab.acceptance.report import Given, account
from eagle3lab.acceptance.sources import account_sources
from eagle3lab.errors import InputError
from tests.acceptance.loglines import CASES, sample_lines, samples
from tests.acceptance.wrappers import WRAPPERS

FILES = CASES / "files"
EXPECTED = [json.loads(line) for line in (FILES / "expect.jsonl").read_text("utf-8").splitlines()]
WITHIN = 0.006


def read(path: Path) -> dict[str, Any]:
    return as_json(account_sources([path], Given()))


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: case["file"])
def test_the_cases(case: dict[str, Any]) -> None:
    found = read(FILES / case["file"])
    for name, key in (("accept_len", "accept_length"), ("true_rate", "accept_rate")):
        if name in case:
            assert found[key] == pytest.approx(case[name], abs=WITHIN)
    if "positions" in case and case["positions"] is None:
        assert found["per_position"] is None
    for place, share in (case.get("positions") or {}).items():
        assert found["per_position"]["unconditional"][int(place)] == pytest.approx(share, abs=WITHIN)
    if "runs" in case:
        assert [one["accept_length"] for one in found["servers"]] == pytest.approx(case["runs"], abs=WITHIN)
    assert found["signature"]["name"] not in case.get("signature_not", [])


FIGURES = (
    "accept_length",
    "accept_rate",
    "accept_rate_reported",
    "formula",
    "draft_tokens",
    "per_position",
    "signature",
)


def figures(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [{name: one[name] for name in FIGURES} for one in found["servers"]]


def plain_lines(name: str) -> list[str] | None:
    """The lines of a case, where it is a text."""
    data = (FILES / name).read_bytes()
    if name == "vllm-docker-json.log":
        return None
    text = data.decode("utf-16") if data.startswith(b"\xff\xfe") else data.decode()
    return None if text.startswith("{") or name.endswith(".prom") else text.splitlines()


WHOLE = {case["file"]: lines for case in EXPECTED if (lines := plain_lines(case["file"])) is not None}
ALL = {**{one["id"]: sample_lines(one) for one in samples()}, **WHOLE}


@pytest.mark.parametrize("wrapper", [name for name in WRAPPERS if name != "plain"])
def test_every_case_in_every_wrapper_says_the_same(wrapper: str, tmp_path: Path) -> None:
    for name, lines in ALL.items():
        alone, wrapped = tmp_path / "alone.log", tmp_path / "wrapped.log"
        alone.write_bytes(WRAPPERS["plain"](lines))
        wrapped.write_bytes(WRAPPERS[wrapper](lines))
        expected, found = (as_json(account(read_logs([log]), Given())) for log in (alone, wrapped))
        assert figures(found) == figures(expected), (name, wrapper)


Counts = tuple[int, list[int]]
"""Verify steps, and how often each position was accepted."""


@st.composite
def counts(draw: st.DrawFn) -> Counts:
    steps = draw(st.integers(40, 50_000))
    positions, left = [], steps
    for _ in range(draw(st.integers(1, 8))):
        left = draw(st.integers(0, left))
        positions.append(left)
    return steps, positions


def _histogram(steps: int, positions: Sequence[int]) -> list[int]:
    reached = [steps, *positions, 0]
    return [reached[i] - reached[i + 1] for i in range(len(positions) + 1)]


def _vllm_line(steps: int, positions: Sequence[int]) -> str:
    accepted, drafted = sum(positions), steps * len(positions)
    shares = ", ".join(f"{count / steps:.3f}" for count in positions)
    return (
        f"INFO 07-02 22:11:19 [metrics.py:120] SpecDecoding metrics: "
        f"Mean acceptance length: {1 + accepted / steps:.2f}, "
        f"Accepted throughput: 1.00 tokens/s, Drafted throughput: 1.00 tokens/s, Accepted: {accepted} tokens, "
        f"Drafted: {drafted} tokens, Per-position acceptance rate: {shares}, "
        f"Avg Draft acceptance rate: {100 * accepted / drafted:.1f}%"
    )


def _vllm_bench(steps: int, positions: Sequence[int]) -> str:
    accepted, drafted = sum(positions), steps * len(positions)
    out = [
        "============ Serving Benchmark Result ============", "Successful requests:                     64        ",
        "---------------Speculative Decoding---------------",
        f"Acceptance rate (%):                     {100 * accepted / drafted:<10.2f}",
        f"Acceptance length:                       {1 + accepted / steps:<10.2f}",
        f"Drafts:                                  {steps:<10}",
        f"Draft tokens:                            {drafted:<10}",
        f"Accepted tokens:                         {accepted:<10}", "Per-position acceptance (%):",
        *(f"  Position {i}:                            {100 * n / steps:<10.2f}" for i, n in enumerate(positions)),
        "=" * 50,
    ]  # fmt: skip
    return "\n".join(out)


def _script(steps: int, positions: Sequence[int]) -> str:
    accepted, drafted = sum(positions), steps * len(positions)
    out = [
        "-" * 50, "total_num_output_tokens: 2400", f"num_drafts: {steps}", f"num_draft_tokens: {drafted}",
        f"num_accepted_tokens: {accepted}", f"mean acceptance length: {1 + accepted / steps:.2f}", "-" * 50,
        *(f"acceptance at token {i}: {n / steps:.2f}" for i, n in enumerate(positions)),
    ]  # fmt: skip
    return "\n".join(out)


def _saved(steps: int, positions: Sequence[int]) -> str:
    accepted, drafted = sum(positions), steps * len(positions)
    result = {
        "completed": 20, "spec_decode_acceptance_rate": 100 * accepted / drafted,
        "spec_decode_acceptance_length": 1 + accepted / steps, "spec_decode_num_drafts": steps,
        "spec_decode_draft_tokens": drafted, "spec_decode_accepted_tokens": accepted,
        "spec_decode_per_position_acceptance_rates": [n / steps for n in positions],
    }  # fmt: skip
    return json.dumps({"runs": [{"deep": [result]}]}, indent=1)


def _answer(steps: int, positions: Sequence[int]) -> str:
    meta = {
        "completion_tokens": steps + sum(positions) + 1, "spec_verify_ct": steps,
        "spec_num_correct_drafts": sum(positions), "spec_num_proposed_drafts": steps * len(positions),
        "spec_correct_drafts_histogram": _histogram(steps, positions),
    }  # fmt: skip
    return json.dumps([{"text": "Accept length: 9.00", "meta_info": meta}])


def _finish(steps: int, positions: Sequence[int]) -> str:
    meta = json.loads(_answer(steps, positions))[0]["meta_info"]
    quoted = "'spec_verify_ct': 3, out={'meta_info': {'spec_verify_ct': 1}}"
    out = {"text": quoted, "meta_info": meta}
    return f"[2026-03-01 10:00:00] Finish: obj=GenerateReqInput(text={quoted!r}), out={out}"


def _vllm_answer(steps: int, positions: Sequence[int]) -> str:
    figures = {
        "num_spec_steps": steps, "num_accepted_draft_tokens": sum(positions),
        "num_draft_tokens": steps * len(positions),
        "num_spec_tokens": len(positions), "acceptance_histogram": _histogram(steps, positions),
    }  # fmt: skip
    return json.dumps(
        {"choices": [{"message": {"content": "ok"}}], "metrics": {"speculative_decoding": figures}}
    )


def _tensorrt(steps: int, positions: Sequence[int]) -> str:
    figures = {
        "numDraftTokens": steps * len(positions), "numAcceptedTokens": sum(positions),
        "numRequestsWithDraftTokens": steps, "acceptanceLength": 1 + sum(positions) / steps,
    }  # fmt: skip
    return json.dumps({"iter": 3, "specDecodingStats": figures})


def _page(steps: int, positions: Sequence[int]) -> str:
    per = "\n".join(
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="0",position="{i}"}} {n}'
        for i, n in enumerate(positions)
    )
    return (
        f'vllm:spec_decode_num_drafts_total{{engine="0"}} {steps}\n'
        f'vllm:spec_decode_num_draft_tokens_total{{engine="0"}} {steps * len(positions)}\n'
        f'vllm:spec_decode_num_accepted_tokens_total{{engine="0"}} {sum(positions)}\n{per}\n'
    )


def _query(steps: int, positions: Sequence[int]) -> str:
    samples = []
    for line in _page(steps, positions).splitlines():
        name, _, rest = line.partition("{")
        labels, _, value = rest.partition("} ")
        metric = {"__name__": name, **dict(pair.replace('"', "").split("=") for pair in labels.split(","))}
        samples.append({"metric": metric, "value": [1.5, value]})
    return json.dumps({"status": "success", "data": {"resultType": "vector", "result": samples}})


def _other_page(prefix: str) -> Callable[[int, Sequence[int]], str]:
    return lambda steps, positions: (
        f"# TYPE {prefix}num_drafts_total counter\n{prefix}num_drafts_total {steps}\n"
        f"{prefix}num_draft_tokens_total {steps * len(positions)}\n{prefix}num_accepted_tokens_total {sum(positions)}\n"
    )


def _rounds(steps: int, positions: Sequence[int]) -> str:
    kept = steps + sum(positions)
    rate = sum(positions) / steps / len(positions)
    return (
        f"[2026-09-28 10:00:00 TP0] Decode batch, #running-req: 2, #token: 300, token usage: 0.01, "
        f"spec tokens: {kept}, spec rounds: {steps}, accept len: {kept / steps:.2f}, accept rate: {rate:.2f}, "
        "cuda graph: True, "
        "gen throughput (token/s): 40.00, #queue-req: 0"
    )


FORMATS: dict[str, tuple[Callable[[int, Sequence[int]], str], str, bool, float]] = {
    "vllm line": (_vllm_line, "vllm", True, 0.0006),
    "vllm bench serve": (_vllm_bench, "summary", True, 0.0001),
    "offline script": (_script, "summary", True, 0.006),
    "saved JSON": (_saved, "summary", True, 1e-9),
    "SGLang answer": (_answer, "sglang-request", True, 1e-9),
    "SGLang Finish line": (_finish, "sglang-request", True, 1e-9),
    "vLLM answer": (_vllm_answer, "vllm-request", True, 1e-9),
    "TensorRT-LLM iteration": (_tensorrt, "tensorrt-llm", False, 1e-9),
    "vLLM page": (_page, "vllm-metrics", True, 1e-9),
    "Prometheus query": (_query, "vllm-metrics", True, 1e-9),
    "TensorRT-LLM page": (_other_page("trtllm_spec_decode_"), "tensorrt-llm-metrics", False, 1e-9),
    "llama.cpp page": (_other_page("llamacpp:"), "llama.cpp-metrics", False, 1e-9),
    "SGLang rounds": (_rounds, "sglang", False, 1e-9),
}


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=60, deadline=None)
@given(counted=counts())
def test_counts_come_back_from_every_format(name: str, counted: Counts) -> None:
    write, source, positions_known, precision = FORMATS[name]
    steps, positions = counted
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_text(write(steps, positions) + "\n", "utf-8")
        report = account_sources([path], Given())
    (server,) = report.servers
    assert server.source == source, "what a file was taken for is said"
    assert server.accept_length is not None
    assert server.accept_length.mean == pytest.approx(1 + sum(positions) / steps, abs=1e-9)
    if name != "SGLang rounds":  # prints no number of drafts
        assert server.accept_rate == pytest.approx(sum(positions) / steps / len(positions), abs=1e-9)
    if positions_known:
        assert server.per_position is not None
        shares = server.per_position.unconditional
        assert len(shares) == len(positions)
        assert shares == pytest.approx([n / steps for n in positions], abs=precision)
    else:
        assert server.per_position is None, "what a file does not say is unknown, not zero"


SEND_ONE = """\
+-------------+--------+------------+-----------------+
| Latency (s) | Tokens | Acc Length | Speed (token/s) |
+-------------+--------+------------+-----------------+
|    2.201    |  1000  |   3.120    |     454.00      |
|    2.190    |  1000  |   3.250    |     456.00      |
+-------------+--------+------------+-----------------+
"""
STREAMED = "".join(
    f'data: {{"text": "a", "meta_info": {{"id": "1", "completion_tokens": {3 * n + 1}, "spec_verify_ct": {n}, '
    f'"spec_accept_token_num": {2 * n}, "spec_draft_token_num": {3 * n}}}}}\n\n'
    for n in range(1, 60)
)
PRETTY = "\n".join(json.dumps({"accept_length": length, "completed": 9}, indent=2) for length in (2.5, 3.5))


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        (SEND_ONE, [3.12, 3.25]),
        ("model,tps,acceptance_length,draft_acceptance_rate\na,9.5,2.31,0.44\nb,9.1,1.02,0.01\n", [2.31, 1.02]),
        (STREAMED + "data: [DONE]\n", [3.0]),
        (PRETTY, [2.5, 3.5]),
        ("{'accept_length': 2.75, 'latency': 1.0, 'name': None}\n", [2.75]),
        ("batch size: 1\nlatency: 2.1 s\nacc_length: 2.33 \n", [2.33]),
        ("[AR] MINIMUM: 2.36\n[AR] MAXIMUM: 2.69\n[AR] AVERAGE: 2.54\n", [2.54]),
        ('$ curl -s h/generate\n{"meta_info": {"spec_verify_ct": 40, "spec_accept_token_num": 60}}', [2.5]),
        ('{"timings": {"predicted_n": 100, "draft_n": 90, "draft_n_accepted": 45}}\n', [None]),
        ('{"m": {"spec_decode_acceptance_length": {"unit": "tokens", "avg": 2.4, "p50": 2.3}}}', [2.4]),
        ('{"mtbench": [{"batch_size": 1, "metrics": [{"accept_length": 3.2, "latency": 2.0}]}]}', [3.2]),
    ],
    ids=("send_one", "csv", "stream", "pretty", "python", "one batch", "trtllm-bench", "after a prompt", "llama.cpp",
         "aiperf", "SpecForge"),
)  # fmt: skip
def test_other_shapes(text: str, runs: list[float | None], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    found = read(path)
    assert [one["accept_length"] for one in found["servers"]] == [
        None if run is None else pytest.approx(run) for run in runs
    ]
    if runs == [None]:
        assert found["accept_rate"] == 0.5


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"spec_weird_acceptance": 0.4, "draft_things": 7}', "spec_weird_acceptance"),
        ('{"speculative_num_draft_tokens": 4, "model": "m"}', "speculative_num_draft_tokens"),
        ("Acceptance length: many\n", "cannot be read"),
        ('{"meta_info": {"spec_verify_ct": "x"}}', "cannot be read"),
    ],
)
def test_what_is_found_and_not_understood_is_named(text: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(InputError, match=named):
        account_sources([path], Given())


def test_absent_is_not_zero(tmp_path: Path) -> None:
    path = tmp_path / "page.prom"
    path.write_text("sglang:spec_verify_calls_total 2150\nsglang:spec_accept_length 2.5\n")
    found = read(path)
    assert found["accept_length"] == 2.5
    assert found["per_position"] is None
    assert any("gauges only" in note for note in found["notes"])
    path.write_text("sglang:spec_verify_calls_total 2150\n")
    with pytest.raises(InputError, match="spec_verify_calls_total"):
        read(path)


def test_a_printed_mean_that_the_counts_contradict_is_said(tmp_path: Path) -> None:
    path = tmp_path / "bench.txt"
    path.write_text("Acceptance length: 3.10\nDrafts: 100\nDraft tokens: 300\nAccepted tokens: 120\n")
    found = read(path)
    assert found["accept_length"] == 2.2
    assert any("not the 3.10 that is printed" in note for note in found["notes"])


def test_the_steps_that_serve_best_are_said(tmp_path: Path) -> None:
    advice = read(FILES / "vllm-k15-cliff.log")["steps_advice"]
    assert advice["best"] == 4
    assert [row["steps"] for row in advice["steps"]] == list(range(1, 16))
    rows = {row["steps"]: row["speed"] for row in advice["steps"]}
    assert max(rows, key=lambda steps: rows[steps]) == 4
    assert read(FILES / "two-runs-one-file.log")["steps_advice"]["best"] == 0


def test_one_word_for_how_well_it_is_accepted() -> None:
    levels = {case["file"]: read(FILES / case["file"])["signature"]["level"] for case in EXPECTED}
    assert levels["sglang-server-info.json"] == levels["two-runs-one-file.log"] == "dead"
    assert levels["vllm-bench-serve-low.txt"] == "weak"
    assert levels["vllm-k15-cliff.log"] == "partial"
    assert levels["vllm-docker-json.log"] == "healthy"
    assert levels["sglang-spec-rounds.log"] == "unknown"


def test_dead_positions_are_named() -> None:
    assert "positions 6 to 15" in read(FILES / "vllm-k15-cliff.log")["signature"]["reason"]


def test_intervals_stay_within_what_a_step_can_yield(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    lines = [_rounds(8, [8, 8, 8]), _rounds(60, [0, 0, 0])]
    log.write_text("\n".join(lines) + "\n")
    low, high = as_json(account_sources([log], Given(draft_tokens=4)))["accept_length_ci"]
    assert 1 <= low <= high <= 4


def test_services_of_one_file_are_kept_apart(tmp_path: Path) -> None:
    log = tmp_path / "compose.log"
    start = "server_args=ServerArgs(speculative_num_draft_tokens=4, speculative_algorithm='EAGLE3')"
    lines = [f"prefill-1  | [2026-09-28 10:00:00] {start}", f"decode-1   | [2026-09-28 10:00:00] {start}"]
    for _ in range(3):
        lines += [f"prefill-1  | {_rounds(100, [0, 0, 0])}", f"decode-1   | {_rounds(100, [80, 60, 40])}"]
    log.write_text("\n".join(lines) + "\n")
    servers = read(log)["servers"]
    assert [(one["role"], one["accept_length"]) for one in servers] == [("prefill-1", 1.0), ("decode-1", 2.8)]


@pytest.mark.parametrize("first", [case["file"] for case in EXPECTED])
def test_any_two_are_compared(first: str) -> None:
    second = "vllm-bench-serve-result.json"
    found = compare_runs(str(FILES / first), str(FILES / second))
    assert found.length.change == pytest.approx(2.6193 - found.length.before.mean, abs=1e-3)
    if not math.isfinite(found.length.low):
        assert found.verdict == UNKNOWN
        assert any("without an interval" in note for note in found.notes)


def test_nothing_to_compare_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty.log").write_text("hello\n")
    with pytest.raises(InputError, match="nothing to compare") as caught:
        compare_runs(str(tmp_path / "empty.log"), str(FILES / "sglang-mtbench.txt"))
    assert "\n" not in str(caught.value)


_KEYS = [
    "accept_length", "spec_decode_num_drafts", "spec_decode_draft_tokens", "num_accepted_tokens", "acceptance_rate",
    "spec_verify_ct", "spec_accept_histogram", "meta_info", "speculative_decoding", "acceptance_histogram",
    "per_position_acceptance_rates", "internal_states", "avg_spec_accept_length", "metric", "value", "values", "log",
    "line", "message", "data", "specDecodingStats", "timings", "draft_n", "draft_n_accepted", "num_spec_tokens",
    "completion_tokens", "version", "speculative_num_draft_tokens", "phase", "ended_s", "__name__", "stream",
]  # fmt: skip
_VALUES: list[Any] = [
    None, True, 0, 1, 3, 2.5, -1, 1e308, 10**400, math.nan, math.inf, "3", "x", "12%", [], [1, 2, 3], [0.5, 0.2], [{}],
    {}, [None], [10**30] * 3, {"avg": 2}, {"total": 10**19},
]  # fmt: skip
_DOCUMENTS = st.recursive(
    st.sampled_from(_VALUES),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_KEYS), inner, max_size=6),
    max_leaves=20,
)
_TEXTS = st.lists(
    st.tuples(
        st.sampled_from(
            ["Acceptance length: ", "Drafts: ", "Draft tokens: ", "Accepted tokens: ", "Position 0: ", "data: {",
             "acceptance at token 1: ", "| a | acceptance length | b |", "| 1 | 2.2 | 3 |", "----", "accept len: 2.00",
             "vllm:spec_decode_num_drafts_total ", "Finish: obj=1, out={'meta_info': {'spec_verify_ct': ",
             "Initializing a V1 LLM engine (v1.0) with config: speculative_config=SpeculativeConfig(num_spec_tokens=3)"]
        ),
        st.sampled_from(["", "2.5", "9" * 20, "-1", "0", "1e9", "nan", "3.1 ", "}} }", "150"]),
    ),
    max_size=8,
).map(lambda parts: "\n".join(f"{label}{value}" for label, value in parts))  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(_DOCUMENTS.map(json.dumps) | st.lists(_DOCUMENTS.map(json.dumps), max_size=3).map("\n".join) | _TEXTS)
def test_whatever_a_file_holds_ends_in_figures_that_can_be_or_in_one_line(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_text(text)
        try:
            found = read(path)
        except InputError as error:
            assert "\n" not in str(error)
            return
    json.dumps(found, allow_nan=False)
    for one in found["servers"]:
        assert one["accept_length"] is None or one["accept_length"] >= 1
        assert one["accept_rate"] is None or 0 <= one["accept_rate"] <= 1
