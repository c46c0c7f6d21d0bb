"""From a reading of logs to an account of acceptance: numbers with their formulas, interval, signature and doubts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import truediv
from typing import TYPE_CHECKING

from eagle3lab.acceptance import formulas
from eagle3lab.acceptance.counts import PerPosition, Series, Weight, pooled
from eagle3lab.acceptance.expectation import STEP_COST, Advice, advise
from eagle3lab.acceptance.formulas import Reading
from eagle3lab.acceptance.log import LogReading, Server
from eagle3lab.acceptance.signature import Evidence, Signature, limit, signature
from eagle3lab.acceptance.statistics import (
    Change,
    Dependence,
    Difference,
    Estimate,
    Trend,
    change_points,
    compare,
    dependence,
    estimate,
    trend,
)
from eagle3lab.engines.release import Release

if TYPE_CHECKING:
    from eagle3lab.acceptance.counts import Column
    from eagle3lab.acceptance.expectation import Accuracies, Expectation
    from eagle3lab.acceptance.run import Agreement

    Table = dict[str, list[float]]


@dataclass(frozen=True, slots=True)
class RankMean:
    """One source of lines: its label, mean accept length and number of lines."""

    label: str
    accept_length: float
    lines: int


@dataclass(frozen=True, slots=True)
class ServerReport:
    """Acceptance of one server run.

    engine: engine and release as far as known.
    accept_length: tokens per verify step, bonus included, with its interval; None when nothing was measured.
    accept_rate_reported: mean of the printed rate, None where none is printed; read by `reading`.
    accept_rate: accepted drafts over proposed drafts; None when the draft tokens are not known.
    draft_tokens, steps: D and draft steps; None when not known. algorithm: as in the server's arguments.
    per_position: shares by draft position, None where not printed.
    columns: rows over time (see `counts.COLUMNS`), at most `counts.CLOSED`; weight: what they are weighted by.
    changes: steps in the level over time; previous: comparison with the server before it in the same reading.
    on_load, on_context: how the accept length goes with the running requests and with the tokens in the cache per
    request; None where not printed or not varied.
    expected, impossible: what training promises, and why that and the measurement exclude each other.
    source: which reader understood it ("sglang", "sglang-request", "probe" …), empty where none did.
    start: which start of its file it belongs to; role: the container or service, where lines name one.
    advice: how many draft steps would serve best at the measured rates; None where positions are not known.
    agreement: of a run folder: what each of its sources says, and whether they say the same.
    log: of a run folder: its log's own account, which knows acceptance over time.
    """

    path: str
    first_line: int
    engine: Release | None
    accept_length: Estimate | None
    accept_rate_reported: float | None
    reading: Reading
    accept_rate: float | None
    draft_tokens: int | None
    steps: int | None
    algorithm: str | None
    per_position: PerPosition | None
    signature: Signature
    weight: Weight | None
    ranks: tuple[RankMean, ...]
    columns: dict[str, list[float]]
    changes: tuple[Change, ...]
    on_load: Dependence | None
    on_context: Dependence | None
    previous: Difference | None
    expected: Expectation | None
    impossible: str | None
    lines: int
    idle: int
    notes: tuple[str, ...]
    source: str = ""
    start: int = 0
    role: str = ""
    advice: Advice | None = None
    agreement: Agreement | None = None
    log: ServerReport | None = None

    @property
    def table(self) -> dict[str, Column]:
        """The columns as arrays, float64, for those that plot them."""
        import numpy as np

        return {name: np.array(column) for name, column in self.columns.items()}

    def rows(self) -> tuple[list[float], list[float]]:
        """Accept lengths and weights of the rows: by verify steps, or by lines where those are not known."""
        return _rows(self.columns, self.weight or Weight.LINES)


@dataclass(frozen=True, slots=True)
class AcceptanceReport:
    """All servers of a reading, and what could not be read."""

    servers: tuple[ServerReport, ...]
    reading: LogReading
    notes: tuple[str, ...]

    @property
    def main(self) -> ServerReport | None:
        """The last start that measured anything, else the last one.

        Of one start the account of a server goes before the figures that a benchmark printed beside it.
        """
        last = last_measured(self.servers)
        if last is None:
            return self.servers[-1] if self.servers else None
        if last.source != "summary":
            return last
        same = (one for one in self.servers if one.path == last.path and one.start == last.start)
        return last_measured([one for one in same if one.source != "summary"]) or last


@dataclass(frozen=True, slots=True)
class Given:
    """What the user states about the server that wrote the log; step_cost: see `expectation.advise`."""

    release: Release | None = None
    draft_tokens: int | None = None
    steps: int | None = None
    accuracies: Accuracies | None = None
    coverage: float = 1.0
    step_cost: float = STEP_COST


def last_measured(reports: Sequence[ServerReport]) -> ServerReport | None:
    """The last of some servers that measured anything; the next one is compared with it."""
    return next((one for one in reversed(reports) if one.accept_length is not None), None)


def account(reading: LogReading, given: Given) -> AcceptanceReport:
    """The account of a reading, server by server."""
    reports: list[ServerReport] = []
    for server in reading.servers:
        reports.append(account_server(server, given, last_measured(reports)))
    return AcceptanceReport(tuple(reports), reading, tuple(reading_notes(reading)))


def count(number: int, noun: str) -> str:
    """`1 line`, `2 lines`."""
    return f"{number} {noun}" + ("" if number == 1 else "s")


def reading_notes(reading: LogReading) -> list[str]:
    """What a reading of logs could not read, in sentences."""
    notes = []
    if reading.unparsed:
        notes.append(
            f"{count(reading.unparsed, 'line')} left out of every figure: "
            "what looks like speculation there cannot be read"
        )
    if reading.overlong:
        notes.append(f"{count(reading.overlong, 'line')} longer than 16 MiB skipped")
    notes += [f"the file {path} breaks off; what came before was read" for path in reading.broken]
    if not reading.lines:
        notes.append("the log is empty")
    elif all(server.empty for server in reading.servers):
        notes.append(f"{count(reading.lines, 'line')} read, and none reports acceptance")
    return notes


def account_server(server: Server, given: Given, before: ServerReport | None = None) -> ServerReport:
    """The account of one server.

    Args:
        server: What was read of it.
        given: What the user states.
        before: The server that it is compared with.
    """
    notes: list[str] = []
    series = [s for s in server.series.values() if s.lines]
    release = _release(server, given, notes)
    stated_d, steps = _draft_tokens(server, given, notes)
    reading = _interpret(server, series, release, stated_d, steps, notes)
    per_position = _per_position(server, series)
    draft_tokens = reading.draft_tokens
    drafts = {s.drafts_per_step for s in series}
    if draft_tokens is None and len(drafts) == 1 and (proposed := drafts.pop()) is not None:
        draft_tokens = proposed + 1
    if draft_tokens is None and per_position is not None and server.source not in _BY_RELEASE:
        draft_tokens = len(per_position.unconditional) + 1
    table = pooled(series)
    weight = _weight(series)
    length = _within(_length(server, series, table, weight), draft_tokens, steps)
    accept_rate = _true_rate(server, series, length, reading, draft_tokens)
    if accept_rate is not None and accept_rate > 1 + 1e-9:
        notes.append(
            f"an accept length of {length.mean if length else 0:.2f} cannot come from {draft_tokens} draft tokens"
        )
        accept_rate = None
    changes, drift = _changes(table, weight)
    expected = _expected(given, draft_tokens, notes)
    idle = sum(s.idle for s in server.series.values())
    found = signature(
        Evidence(
            length,
            table if series else None,
            per_position,
            draft_tokens,
            expected.accept_length if expected else None,
            changes,
            drift,
            idle,
            server.plain_decode,
            sum(s.total("steps") for s in series) if series and weight is Weight.STEPS else None,
        )
    )
    topk = server.arguments.get("speculative_eagle_topk")
    chain = not (isinstance(topk, int) and topk > 1)
    _server_notes(server, series, weight, idle, notes)
    return ServerReport(
        path=server.path,
        first_line=server.first_line,
        engine=release,
        accept_length=length,
        accept_rate_reported=_reported(table),
        reading=reading,
        accept_rate=accept_rate,
        draft_tokens=draft_tokens,
        steps=steps,
        algorithm=_text(server.arguments.get("speculative_algorithm")),
        per_position=per_position,
        signature=found,
        weight=weight if series else None,
        ranks=tuple(_rank(s) for s in series),
        columns=table,
        changes=changes,
        on_load=dependence(*_rows(table, weight), _quotients(table, "running", "lines")),
        on_context=dependence(*_rows(table, weight), _quotients(table, "context", "lines")),
        previous=_previous(before, table, weight) if series else None,
        expected=expected,
        impossible=_impossible(expected, length),
        lines=sum(s.lines for s in series) + server.plain_decode,
        idle=idle,
        notes=tuple(notes),
        source=server.source,
        start=server.start,
        role=server.role,
        advice=advise(per_position.unconditional, given.step_cost) if per_position and chain else None,
    )


def _within(length: Estimate | None, draft_tokens: int | None, steps: int | None) -> Estimate | None:
    """The interval cut to what a verify step can yield: 1 token to D, or to steps + 1 for a tree."""
    most = steps + 1 if steps is not None else draft_tokens
    if length is None or not length.known or most is None or length.mean > most:
        return length
    return replace(length, low=max(length.low, 1.0), high=min(length.high, float(most)))


_FAMILY = {
    "vllm-v0": "vllm",
    "vllm-metrics": "vllm",
    "vllm-request": "vllm",
    "tensorrt-llm-metrics": "tensorrt-llm",
    "llama.cpp-metrics": "llama.cpp",
    "metrics": "",
    "sglang-info": "sglang",
    "sglang-request": "sglang",
    "sglang-metrics": "sglang",
    "probe": "sglang",
    "summary": "",
}
_BY_RELEASE = ("sglang", "sglang-jax", "sglang-metrics")
"""Sources whose rate the release's formula decides; the others give accepted over proposed drafts."""


def _release(server: Server, given: Given, notes: list[str]) -> Release | None:
    family = _FAMILY.get(server.source, server.source)
    stated, own = given.release, server.arguments.get("release")
    if isinstance(own, str) and (stated is None or not stated.number) and family in ("sglang", "vllm", ""):
        started = {event.kind for event in server.events}
        return Release(family or ("vllm" if "engine_start" in started else "sglang"), own)
    if stated is None:
        return Release(family) if family else None
    if family and stated.kind != family and not (stated.kind == "sglang" and family == "sglang-jax"):
        notes.append(f"these are lines of {family}, not of {stated}; they are read as {family}'s")
        return Release(family)
    return Release(family) if family == "sglang-jax" else stated


def _draft_tokens(server: Server, given: Given, notes: list[str]) -> tuple[int | None, int | None]:
    """Draft tokens and steps, from what is stated and from the server's own arguments, which win: they are resolved."""
    arguments = server.arguments
    own_d, own_steps = arguments.get("speculative_num_draft_tokens"), arguments.get("speculative_num_steps")
    draft_tokens = own_d if isinstance(own_d, int) else given.draft_tokens
    steps = own_steps if isinstance(own_steps, int) else given.steps
    if isinstance(own_d, int) and given.draft_tokens not in (None, own_d):
        notes.append(f"the server used {own_d} draft tokens, not the {given.draft_tokens} given")
    if server.adjusted:
        if steps is not None:
            draft_tokens = steps + 1
        elif not isinstance(own_d, int):
            draft_tokens = None  # what was asked for is not what was used
        notes.append("the server rewrote the draft tokens to steps + 1, because topk is 1")
    if draft_tokens is None and steps is not None:
        draft_tokens = steps + 1
    return draft_tokens, steps


def _interpret(
    server: Server,
    series: list[Series],
    release: Release | None,
    draft_tokens: int | None,
    steps: int | None,
    notes: list[str],
) -> Reading:
    if server.source not in _BY_RELEASE:
        printed = any(s.total("rate_steps") > 0 for s in series)
        return Reading(
            formulas.ACCEPTED if printed else formulas.NONE, draft_tokens, "release", 0.99,
            "the rate is accepted over drafted" if printed else "no rate is printed",
        )  # fmt: skip
    pairs: dict[tuple[float, float], int] = {}
    for one in series:
        for pair, count in one.pairs.items():
            pairs[pair] = pairs.get(pair, 0) + count
    reading = formulas.interpret(pairs, release, draft_tokens, steps)
    if pairs:
        notes.append(reading.note)
    topk = server.arguments.get("speculative_eagle_topk")
    if isinstance(topk, int) and topk > 1:
        notes.append(
            "a tree of drafts: at most one path is accepted, so the accept rate stays far below 1 by design"
        )
    return reading


def _per_position(server: Server, series: list[Series]) -> PerPosition | None:
    total = Series()
    for one in series:
        if one.position_steps:
            total.add_positions(one.positions, one.position_steps)
    if (measured := total.per_position()) is not None:
        return measured
    return PerPosition.from_unconditional(server.shares) if server.shares else None


def _weight(series: list[Series]) -> Weight:
    weights = {s.weight for s in series}
    return weights.pop() if len(weights) == 1 else Weight.LINES


def _rows(table: Table, weight: Weight) -> tuple[list[float], list[float]]:
    """Values and weights of the rows, by verify steps or by lines."""
    total, number = _weighting(weight)
    return _quotients(table, total, number), table[number]


def _weighting(weight: Weight) -> tuple[str, str]:
    """The columns whose quotient is the accept length; the second is what a mean is weighted by."""
    return ("length_sum", "lines") if weight is Weight.LINES else ("tokens", "steps")


def _quotients(table: Table, of: str, by: str) -> list[float]:
    """One column over another."""
    return list(map(truediv, table[of], table[by]))


def _length(server: Server, series: list[Series], table: Table, weight: Weight) -> Estimate | None:
    if series:
        requests = server.source in REQUESTS
        rounding = 0.0 if requests else formulas.HALF_CENT
        return estimate(*_rows(table, weight), floor=1.0, rounding=rounding, independent=requests)
    accepted = sum(s.accepted for s in server.series.values())
    proposed = sum(s.proposed for s in server.series.values())
    if proposed and not accepted:
        return Estimate(1.0, -math.inf, math.inf, 0.95, 1, 1.0)  # whatever was drafted, nothing was accepted
    return None


def _true_rate(
    server: Server, series: list[Series], length: Estimate | None, reading: Reading, draft_tokens: int | None
) -> float | None:
    counted = list(server.series.values())
    proposed = sum(s.proposed for s in counted)
    if proposed:
        return sum(s.accepted for s in counted) / proposed
    if length is None:
        return None
    if draft_tokens is not None and draft_tokens > 1:
        return formulas.true_rate(length.mean, draft_tokens)
    if reading.formula == formulas.DRAFTS:
        return _reported(pooled(series))
    return None


def _reported(table: Table) -> float | None:
    steps = math.fsum(table["rate_steps"])
    return math.fsum(table["rate_tokens"]) / steps if steps else None


def _rank(series: Series) -> RankMean:
    total, number = _weighting(series.weight)
    return RankMean(series.label, series.total(total) / series.total(number), series.lines)


def _changes(table: Table, weight: Weight) -> tuple[tuple[Change, ...], Trend | None]:
    values, weights = _rows(table, weight)
    if not len(values):
        return (), None
    found = change_points(values, weights, table["time"], p=limit("change_p"), size=limit("change_size"))
    return found, trend(values, weights)


def _previous(before: ServerReport | None, table: Table, weight: Weight) -> Difference | None:
    if before is None or before.weight is None or not before.columns["lines"]:
        return None
    return compare(_rows(before.columns, before.weight), _rows(table, weight))


def _expected(given: Given, draft_tokens: int | None, notes: list[str]) -> Expectation | None:
    if given.accuracies is None:
        return None
    from eagle3lab.acceptance.expectation import expect

    if draft_tokens is None or draft_tokens < 2:
        draft_tokens = len(given.accuracies.conditional) + 1
        notes.append(
            f"draft tokens unknown: the expectation is for {draft_tokens}, as many as training measured"
        )
    return expect(given.accuracies, draft_tokens, given.coverage)


def _impossible(expected: Expectation | None, length: Estimate | None) -> str | None:
    if expected is None or length is None:
        return None
    from eagle3lab.acceptance.expectation import contradiction

    return contradiction(expected, length.mean)


REQUESTS = ("sglang-request", "vllm-request", "llama.cpp")
"""Sources whose rows are whole requests."""

_SAYS = {
    "sglang-request": "per-request figures: one row a request",
    "vllm-request": "per-request figures: one row a request",
    "sglang-info": "the server's own mean since its start, over complete log intervals",
    "probe": "counted inside the engine: every verify step",
}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _server_notes(server: Server, series: list[Series], weight: Weight, idle: int, notes: list[str]) -> None:
    if series and weight is not Weight.STEPS and sum(s.lines for s in series) > 1:
        notes.append(f"means are weighted by {weight.value}")
    if idle and series:
        notes.append(f"{count(idle, 'idle interval')} without data left out")
    if server.plain_decode and series:
        notes.append(
            f"{count(server.plain_decode, 'decode line')} without an accept length: these batches did not speculate"
        )
    backwards = sum(s.backwards for s in series)
    if backwards:
        notes.append(f"the clock goes backwards {count(backwards, 'time')}; rows keep the order of the file")
    if server.source in _SAYS:
        notes.append(_SAYS[server.source])
    notes += server.remarks
    if server.source == "summary" and series and any(s.weightless for s in series):
        notes.append(
            "a single figure from a script: no interval, and it cannot be seen whether it counts the bonus token"
        )
    if server.tracebacks:
        label, error = server.tracebacks[0]
        where = f" on {label}" if label else ""
        after = ", and the server went on" if server.went_on else ""
        notes.append(f"the server raised an exception{where}: {error}{after}")
    kinds = {event.kind for event in server.events}
    if {"embed_distinct", "embed_shared"} <= kinds:
        notes.append("ranks contradict each other on whether the drafter keeps its own embeddings")
