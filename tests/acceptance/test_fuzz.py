"""Damaged lines: never a traceback, never a number that the line does not say."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3lab.acceptance import log as reader
from eagle3lab.acceptance.grammar import parse_line
from eagle3lab.acceptance.log import read_logs
from eagle3lab.acceptance.observations import Event, Observation, Unparsed
from eagle3lab.acceptance.render import as_json, as_text
from eagle3lab.acceptance.report import Given, account
from eagle3lab.errors import InputError
from tests.acceptance.loglines import all_shapes, decode_line, sample_lines, samples

LINES = [line for sample in samples() for line in sample_lines(sample)] + [
    decode_line(row, 2.17, **shape) for _, row, shape in all_shapes()
]
PIECES = [
    *(
        "accept len: ",
        "accept rate: ",
        ", ",
        ": ",
        ".",
        "nan",
        "1.00",
        "9.99",
        "-1",
        "%",
        "\x1b[0m",
        "[",
        "]",
        "\x00",
    ),
    *("é", "Decode batch, ", "SpecDecoding metrics: ", "Accepted: 5 tokens", "{", "'"),
]


def mutate(line: str, pick: random.Random) -> str:
    """One to three of: a character changed, a stretch removed, doubled or moved, a piece put in, the end cut off."""
    for _ in range(pick.randint(1, 3)):
        if not line:
            break
        a, b = sorted(pick.randrange(len(line) + 1) for _ in range(2))
        way = pick.randrange(7)
        if way == 0:
            line = (
                line[:a] + chr(pick.choice([pick.randrange(32, 127), pick.randrange(1, 256)])) + line[a + 1 :]
            )
        elif way == 1:
            line = line[:a] + line[min(b, a + 12) :]
        elif way == 2:
            line = line[:b] + line[a:b] + line[b:]
        elif way == 3:
            line = line[:a] + pick.choice(PIECES) + line[a:]
        elif way == 4:
            line = line[:a]
        elif way == 5:
            line = line[:a] + line[b:] + line[a:b]
        else:
            line += pick.choice(LINES)
    return line.replace("\n", " ").replace("\r", " ")


def says(number: str, line: str) -> bool:
    return number in line


def holds(seen: Observation, line: str) -> None:
    """Every number of the observation is literally in the line, under its name."""
    clean = re.sub(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\[(?:\d{1,3}(?:;\d{1,3})*)?m", "", line)
    if seen.accept_length is not None:
        assert seen.accept_length >= 1
    if seen.accept_rate is not None:
        assert 0 <= seen.accept_rate <= 1
    if seen.source in ("sglang", "sglang-jax"):
        if seen.accept_length is not None:
            assert f"accept len: {seen.accept_length:.2f}" in clean
        if seen.accept_rate is not None:
            assert f"accept rate: {seen.accept_rate:.2f}" in clean
        if seen.running is not None:
            assert re.search(rf"#running-req: 0*{seen.running}(?!\d)", clean)
    elif seen.source == "vllm":
        assert re.search(rf"Accepted: 0*{seen.accepted:.0f} tokens", clean)
        assert re.search(rf"Drafted: 0*{seen.proposed:.0f} tokens", clean)
        for share in seen.per_position:
            assert f"{share:.3f}" in clean
        if seen.accept_rate is not None:
            assert f"acceptance rate: {100 * seen.accept_rate:.1f}%" in re.sub(r": 0+(?=\d)", ": ", clean)
    elif seen.source == "summary":
        assert re.search(rf"ength:\s+0*{re.escape(f'{seen.accept_length}'.rstrip('0').rstrip('.'))}", clean)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("seed", range(12))
def test_mutated_lines_say_what_is_read(seed: int, tmp_path: Path) -> None:
    """A few thousand mutations; read singly and in bulk, with one outcome."""
    pick = random.Random(seed)
    mutants = [mutate(pick.choice(LINES), pick) for _ in range(400)]
    for mutant in mutants:
        seen = parse_line(mutant)
        if isinstance(seen, Observation):
            holds(seen, mutant)
    log = tmp_path / "server.log"
    log.write_text("\n".join(mutants) + "\n", "utf-8", newline="\n")
    report = account(read_logs([log]), Given())
    as_text(report)
    as_json(report)


@pytest.mark.parametrize("seed", range(6))
def test_bulk_and_single_reading_agree(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mutated decode line in a log of its own: accepted in bulk exactly as it is when read alone."""
    monkeypatch.setattr(reader, "SMALL", 0)
    pick = random.Random(1000 + seed)
    decode = [line for line in LINES if "Decode batch" in line]
    log = tmp_path / "one.log"
    for _ in range(150):
        mutant = mutate(pick.choice(decode), pick)
        if not any(mark in mutant.encode() for mark in reader._MARKS):
            continue  # the word itself is broken, by a colour code for one
        alone = parse_line(mutant)
        log.write_text(mutant + "\n", "utf-8", newline="\n")
        reading = read_logs([log])
        series = [s for server in reading.servers for s in server.series.values() if s.lines]
        if (
            isinstance(alone, Observation)
            and alone.source.startswith("sglang")
            and alone.accept_length is not None
        ):
            assert len(series) == 1, mutant
            table = series[0].table()
            assert table["length_sum"].tolist() == [alone.accept_length], mutant
            assert (table["rate_steps"] > 0).tolist() == [alone.accept_rate is not None], mutant
            assert series[0].label == alone.label, mutant
            assert reading.unparsed == 0, mutant
        elif isinstance(alone, Unparsed):
            assert not series, mutant
            assert reading.unparsed == 1, mutant


@given(st.binary(max_size=4000))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_binary_junk(tmp_path: Path, junk: bytes) -> None:
    log = tmp_path / "junk.log"
    log.write_bytes(junk)
    try:
        report = account(read_logs([log]), Given())
    except InputError as error:  # it begins like zstd and there is no module to read that
        assert junk.startswith(b"\x28\xb5\x2f\xfd") and "zstd" in str(error)
        return
    as_text(report)
    as_json(report)


@pytest.mark.parametrize("seed", range(40))
def test_figures_beyond_all_measure(seed: int, tmp_path: Path) -> None:
    """What no server counts up to is no figure, and whatever is one can be computed with."""
    pick = random.Random(seed)
    names = (
        "completion_tokens", "spec_verify_ct", "spec_num_correct_drafts", "spec_num_proposed_drafts",
        "spec_accept_length",
    )  # fmt: skip
    figures = (0, 1, 3, 1e-300, 5e-324, 1e15, 1e300, 1e308, 2**63, 10**400)
    requests = [
        {
            "meta_info": {"spec_accept_rate": 0.1} | {name: pick.choice(figures) for name in names},
            "ended_s": end,
        }
        for end in pick.choices(figures, k=pick.randrange(1, 20))
    ]
    log = tmp_path / "requests.jsonl"
    log.write_text("".join(json.dumps(request) + "\n" for request in requests))
    report = account(read_logs([log]), Given())
    as_text(report)
    as_json(report)


@given(st.text(max_size=300))
@settings(max_examples=200, deadline=None)
def test_any_text(text: str) -> None:
    assert isinstance(parse_line(text), Observation | Event | Unparsed | None)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda s: s.replace("accept len: 2.17", "accept len: 2.1x"), "damaged"),
        (lambda s: s.replace("accept len: 2.17", "accept len: 0.17"), "below 1"),
        (lambda s: s.replace("accept len: 2.17", "accept len: nan"), "damaged"),
        (lambda s: s.replace("accept len: 2.17", "accept len 2.17"), "damaged"),
        (lambda s: s.replace("accept rate: 0.39", "accept rate: 7.39"), "above 1"),
        (lambda s: s.replace("accept rate: 0.39", "accept rate: 0.3"), "damaged"),
        (lambda s: s.replace("accept rate: 0.39", "accept rate:0.39"), "damaged"),
        (lambda s: s + s, "run together"),
        (lambda s: s[: s.index("accept len") + 14], "damaged"),
        (lambda s: s[: s.index("token usage")], "breaks off"),
        (lambda s: f"[2026-03-01 10:00:00] Finish: obj=GenerateReqInput(text='{s}')", "quoted"),
    ],
)
def test_damage_is_named(damage: Callable[[str], str], reason: str, tmp_path: Path) -> None:
    _, row, shape = list(all_shapes())[-2]
    broken = damage(decode_line(row, 2.17, **shape))
    log = tmp_path / "server.log"
    log.write_text(broken + "\n")
    reading = read_logs([log])
    assert reading.unparsed == 1
    assert reason in reading.examples[0].reason
    assert not any(s.series for s in reading.servers)


V06 = next(sample_lines(sample)[0] for sample in samples() if sample["id"] == "V06")
V03 = next(sample_lines(sample)[0] for sample in samples() if sample["id"] == "V03")


@pytest.mark.parametrize(
    "line",
    [
        V06.replace("35.5%", "25.5%"),
        V06.replace("length: 3.49", "length: 2.49"),
        V06.replace("Accepted: 92 tokens", "Accepted: 920 tokens"),
        V06.replace("0.757", "0.257"),
        V03.replace("Accepted: 0 tokens", "Accepted: 5 tokens"),
    ],
)
def test_numbers_that_contradict_each_other(line: str) -> None:
    assert isinstance(parse_line(line), Unparsed)
