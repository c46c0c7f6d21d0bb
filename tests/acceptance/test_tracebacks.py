"""What a server died of: every way in which a log says it, and what is no death."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from eagle3lab.acceptance.lines import Unwrapper
from eagle3lab.acceptance.tracebacks import Death, death_in, in_engine, read_deaths
from tests.acceptance.wrappers import WRAPPERS

CASES = Path(__file__).parents[1] / "cases"
ROOT = '  File "/usr/lib/python3.12/site-packages/sglang/srt/'


def _death(*lines: str) -> Death | None:
    unwrapper = Unwrapper()
    return death_in(line for n, raw in enumerate(lines, 1) for line in unwrapper.unwrap(raw, n))


def _errors(death: Death | None) -> list[str]:
    assert death is not None
    return [str(one) for one in death.raised]


def test_a_traceback_with_its_frames() -> None:
    death = _death(
        "[2026-01-01 00:00:00 TP3] Scheduler hit an exception: Traceback (most recent call last):",
        ROOT + 'managers/scheduler.py", line 10, in run',
        "    scheduler = Scheduler(",
        "                ^^^^^^^^^^",
        ROOT + 'models/llama.py", line 20, in <lambda>',
        "ValueError: first line",
        "  second line",
        "[2026-01-01 00:00:01] Received sigquit from a child process. It usually means the child failed.",
    )
    assert death is not None and (death.worker, death.line, death.cut, death.served) == (
        "TP3",
        1,
        False,
        False,
    )
    [raised] = death.raised
    assert (raised.error, raised.text, raised.line) == ("ValueError", "first line\n  second line", 6)
    assert [(f.line, f.function, f.code) for f in raised.frames] == [
        (10, "run", "scheduler = Scheduler("),
        (20, "<lambda>", ""),
    ]
    assert next(in_engine(raised.frames)).line == 20


def test_chained_exceptions_are_one_death_root_first() -> None:
    death = _death(
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "KeyError: 'kimi_k2'",
        "",
        "During handling of the above exception, another exception occurred:",
        "",
        "Traceback (most recent call last):",
        '  File "b.py", line 2, in g',
        "ValueError: not recognised",
    )
    assert _errors(death) == ["KeyError: 'kimi_k2'", "ValueError: not recognised"]
    assert death is not None and death.others == 0


def test_the_workers_exception_ranks_above_what_follows_from_it() -> None:
    """Lines of two workers between each other, and the engine's own traceback, which only says that one died."""
    worker = "(Worker_TP{} pid={}) ERROR 10-06 16:20:41 [multiproc_executor.py:597] "
    one, two = worker.format(0, 311), worker.format(1, 312)
    core = "(EngineCore_DP0 pid=300) "
    death = _death(
        core + "Traceback (most recent call last):",
        core
        + "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
        one + "Traceback (most recent call last):",
        two + "Traceback (most recent call last):",
        one + '  File "/x/vllm/v1/worker/gpu_model_runner.py", line 1, in load_model',
        two + '  File "/x/vllm/v1/worker/gpu_model_runner.py", line 1, in load_model',
        one + "KeyError: 'layers.0.self_attn.q_norm.weight'",
        two + "KeyError: 'layers.0.self_attn.q_norm.weight'",
    )
    assert _errors(death) == ["KeyError: 'layers.0.self_attn.q_norm.weight'"]
    assert death is not None and death.worker == "TP0 pid 311" and death.others == 2


def test_a_log_that_breaks_off_or_begins_inside_a_traceback_still_says_that_the_server_died() -> None:
    frame = ROOT + 'models/llama.py", line 20, in load_weights'
    cut = _death("Traceback (most recent call last):", frame, "    param = params_dict[name]")
    assert cut is not None and cut.cut and cut.raised == () and cut.said == "param = params_dict[name]"
    begun = _death(frame, "    param = params_dict[name]", "KeyError: 'd2t'")
    assert _errors(begun) == ["KeyError: 'd2t'"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            "RuntimeError: CUDA error: an illegal memory access was encountered",
            "RuntimeError: CUDA error: an illegal",
        ),
        ("Killed", "Killed"),
        (
            "[2026-01-01 00:00:01] Received sigquit from a child process. It usually means the child failed.",
            "Received",
        ),
        ("server exited with code 137", "server exited with code 137"),
        ("Out of memory: Killed process 4711 (python3)", "Out of memory"),
        (
            "(EngineCore pid=7) ERROR 06-14 08:01:12 [core.py:1100] EngineCore failed to start.",
            "EngineCore failed",
        ),
    ],
)
def test_a_death_without_a_traceback(line: str, error: str) -> None:
    death = _death("[2026-01-01 00:00:00] Load weight begin.", line)
    assert death is not None and death.error.startswith(error)


def test_a_traceback_that_the_server_outlives_is_no_death() -> None:
    harmless = (
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in f',
        "ImportError: no optional part",
    )
    assert _death(*harmless, "[2026-01-01 00:00:09] The server is fired up and ready to roll!") is None
    assert _death(*harmless) is not None
    assert _death("server exited with code 0", "INFO exit code: 0") is None


def test_a_rank_that_has_not_heard_yet_hides_no_death() -> None:
    start = "[2026-01-01 00:00:00] The server is fired up and ready to roll!"
    crash = ("[2026-01-01 02:00:00 TP3] Scheduler hit an exception: Traceback (most recent call last):",
             ROOT + 'a.py", line 1, in f', "RuntimeError: boom")  # fmt: skip
    late = '[2026-01-01 02:00:01] INFO:     10.0.0.9:80 - "GET /health HTTP/1.1" 200 OK'
    end = "[2026-01-01 {}] Received sigquit from a child process. It usually means the child failed."
    assert _errors(_death(start, *crash, late, end.format("02:00:02"))) == ["RuntimeError: boom"]
    much_later = _death(start, *crash, late, end.format("09:00:02"))
    assert much_later is not None and much_later.raised == ()


def test_dead_at_start_and_dead_after_hours_are_told_apart() -> None:
    decode = "[2026-01-01 00:00:00 TP0] Decode batch, #running-req: 1, accept len: 2.0, accept rate: 0.5"
    crash = ("[2026-01-01 02:00:00 TP0] Scheduler hit an exception: Traceback (most recent call last):",
             ROOT + 'a.py", line 1, in f', "RuntimeError: boom")  # fmt: skip
    late = _death(decode, *crash)
    assert late is not None and late.served and late.served_s == 7200
    early = _death(*crash)
    assert early is not None and not early.served


def test_assertions_on_the_device_are_kept_once_each() -> None:
    form = "/tmp/c.py:41: block: [12,0,0], thread: [{},0,0] Assertion `index out of bounds: 0 <= tmp12 < 2048` failed."
    death = _death(
        form.format(64), form.format(65), "Traceback (most recent call last):", '  File "x.py", line 1, in f',
        "torch.AcceleratorError: CUDA error: device-side assert triggered",
        "CUDA kernel errors might be asynchronously reported at some other API call.",
    )  # fmt: skip
    assert death is not None and [line for line, _ in death.asserts] == [1]
    assert "asynchronously" in death.raised[0].text


def _shape(death: Death | None) -> object:
    return death and (
        [(one.error, one.text, one.frames) for one in death.raised], death.cut, death.served, len(death.asserts),
        death.others,
    )  # fmt: skip


@pytest.mark.parametrize("name", WRAPPERS)
def test_every_wrapper_leaves_the_same_death(name: str, tmp_path: Path) -> None:
    deaths = 0
    for case in sorted(CASES.glob("*.json")):
        lines: Sequence[str] = json.loads(case.read_text("utf-8")).get("log") or ()
        if not any("Error" in line for line in lines):
            continue
        log = tmp_path / "server.log"
        log.write_bytes(WRAPPERS[name](lines))
        assert _shape(read_deaths(log)[0]) == _shape(_death(*lines)), case.stem
        deaths += _death(*lines) is not None
    assert deaths > 15
