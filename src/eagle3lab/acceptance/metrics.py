"""Pages of Prometheus metrics, one after another, as rows of what was accepted between two of them.

Counters count since the server started, and more than one sample can share a name: they are summed over labels that
only split the count (`is_streaming`, `position` apart). A counter that fell began anew with its server. Gauges hold the
last log interval: where several ranks show the same batch, one of them is taken, and a page that shows the same
interval again adds nothing. `_created` series are moments, not counts, and are never read. A series that is not on the
page is unknown, never zero.

Names: SGLang 0.4.6 to 0.5.9 srt/metrics/collector.py, from 0.5.10 srt/observability/metrics_collector.py
(`sglang:spec_accept_length` in all, `sglang:spec_accept_rate` from 0.5.3.post3, `sglang:spec_num_draft_tokens` and
`sglang:spec_verify_calls_total` from 0.5.13); vLLM V1 vllm/v1/spec_decode/metrics.py, SpecDecodingProm. TensorRT-LLM
and llama.cpp name theirs less steadily: they are told by `observations.figure_of`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from eagle3lab.acceptance.counts import LARGEST, MAX_POSITIONS
from eagle3lab.acceptance.log import Server
from eagle3lab.acceptance.observations import ACCEPTED, LENGTH, PROPOSED, RATE, STEPS, figure_of, related
from eagle3lab.errors import InputError
from eagle3lab.text import printable

if TYPE_CHECKING:
    from eagle3lab.acceptance.counts import Series

SGLANG, VLLM = "sglang:", "vllm:"
_PREFIXES = {
    SGLANG: "sglang",
    VLLM: "vllm",
    "trtllm": "tensorrt-llm",
    "tensorrt_llm": "tensorrt-llm",
    "llamacpp:": "llama.cpp",
}

LONGEST_PAGE = 16 << 20
"""Bytes of a page; a server's metrics are some hundred kilobytes."""

_VERIFY_CALLS = "sglang:spec_verify_calls_total"
_DRAFTS = "vllm:spec_decode_num_drafts_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_PROPOSED = "vllm:spec_decode_num_draft_tokens_total"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_ADVICE = "Give the address of an SGLang or vLLM server that was started with --enable-metrics"


@dataclass(frozen=True, slots=True)
class Count:
    """Counters of one engine since its start; None for what its release does not count.

    steps: verify steps, each request by itself.
    accepted, proposed: drafts, bonus not counted.
    tokens, requests: tokens generated and answers finished.
    per_position: accepted drafts by position; empty where not counted.
    """

    steps: float | None = None
    accepted: float | None = None
    proposed: float | None = None
    tokens: float | None = None
    requests: float | None = None
    per_position: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Gauge:
    """What one rank showed of its last log interval; None for what its release does not show.

    accept_length: 0 before the first interval that speculated. draft_tokens: D as used now.
    seen: values that change from one interval to the next: two pages with the same show the same interval.
    """

    accept_length: float
    accept_rate: float | None = None
    running: float | None = None
    draft_tokens: float | None = None
    seen: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One page.

    engine: "sglang", "vllm", "tensorrt-llm" or "llama.cpp". time: seconds since the epoch when it was read, NaN when
    not known. counts: by engine label, "" where there is one. gauges: by rank label ("DP0").
    """

    engine: str
    time: float
    counts: dict[str, Count] = field(default_factory=dict)
    gauges: dict[str, Gauge] = field(default_factory=dict)


_Samples = dict[str, list[tuple[Mapping[str, str], float]]]


def read_page(text: str, *, time: float = math.nan, source: str = "") -> Snapshot:
    """What a page of metrics says about speculation.

    Args:
        text: The page, in Prometheus' text format or OpenMetrics.
        time: When it was read, in seconds since the epoch.
        source: Where it came from, for errors.

    Raises:
        InputError: It is no page of metrics, one of another program, or one of a server that does not speculate.
    """
    return _snapshot(_samples(text, source), time, source)


def of_samples(samples: Iterable[tuple[str, Mapping[str, str], float]], source: str) -> Snapshot:
    """What samples of a Prometheus server (its query API) say, as if they stood on one page.

    Raises:
        InputError: They are another program's, or say nothing of speculation.
    """
    found: _Samples = {}
    for name, labels, value in samples:
        found.setdefault(name, []).append((labels, value))
    return _snapshot(found, math.nan, source)


def _snapshot(samples: _Samples, time: float, source: str) -> Snapshot:
    engine = next(
        (engine for prefix, engine in _PREFIXES.items() if any(name.startswith(prefix) for name in samples)),
        None,
    )
    if engine is None and any(figure_of(name) for name in samples):
        engine = ""
    if engine is None:
        names = ", ".join(printable(name, 60) for name in list(samples)[:3])
        raise InputError(
            f"these are the metrics of another program ({names} …)"
            if names
            else "this page holds no metrics",
            path=source or None,
            advice=_ADVICE,
        )
    known = {"sglang": _sglang, "vllm": _vllm}.get(engine)
    found = known(samples, time) if known else None
    if found is None or not _tells(found):
        found = _by_name(samples, engine, time)
    if _tells(found):
        return found
    names = ", ".join(related(samples))
    program = {"sglang": "SGLang's", "vllm": "vLLM's"}.get(engine, f"{engine or 'some server'}'s")
    if names:
        v0 = engine == "vllm" and any(name.startswith("vllm:spec_decode_") for name in samples)
        raise InputError(
            "these are the metrics of vLLM's V0 engine, which do not count verify steps"
            if v0
            else f"these are {program} metrics; of {printable(names)} no accept length can be made",
            path=source or None,
            advice="Read its log instead",
        )
    raise InputError(
        f"these are {program} metrics, and none of them is about speculation",
        path=source or None,
        advice="Was the server started with speculation?",
    )


def _tells(page: Snapshot) -> bool:
    """Whether a page gives an accept length, or at least a rate."""
    counted = (one.accepted is not None and one.proposed is not None for one in page.counts.values())
    return bool(page.gauges) or any(map(_says_length, page.counts.values())) or any(counted)


def looks_like_page(head: str) -> bool:
    """Whether a file that begins with `head` is a page of metrics and no log."""
    first = head.lstrip("\ufeff \r\n\t")
    return first.startswith(("# HELP ", "# TYPE ", *_PREFIXES)) and not first.startswith("trtllm-")


def _samples(text: str, source: str) -> _Samples:
    """Samples by name; NaN, `_created` and what nothing counts up to are left out."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
    from prometheus_client.parser import text_string_to_metric_families as read_plain

    text = text.lstrip("\ufeff").replace("\r\n", "\n")
    read = read_open if text.rstrip().endswith("# EOF") else read_plain
    found: _Samples = {}
    try:
        for family in read(text if text.endswith("\n") else f"{text}\n"):
            for sample in family.samples:
                if not sample.name.endswith("_created") and abs(sample.value) <= LARGEST:
                    found.setdefault(sample.name, []).append((sample.labels, float(sample.value)))
    except (
        Exception
    ) as error:  # the parser raises whatever its input leads it to: ValueError, KeyError, IndexError
        raise InputError(
            f"this is no page of metrics ({type(error).__name__})", path=source or None, advice=_ADVICE
        ) from None
    return found


def _total(samples: _Samples, name: str) -> float | None:
    return sum(value for _, value in samples[name]) if name in samples else None


def _sglang(samples: _Samples, time: float) -> Snapshot:
    steps = _total(samples, _VERIFY_CALLS)
    counts = {}
    tokens = _total(samples, "sglang:generation_tokens_total")
    requests = _total(samples, "sglang:num_requests_total")
    # A counter without a count is not on the page yet; the gauge's D came with it, in 0.5.13.
    if steps is None and "sglang:spec_num_draft_tokens" in samples:
        steps = 0.0
    if steps is not None:
        counts[""] = Count(steps=steps, tokens=tokens, requests=requests)
    gauges: dict[str, Gauge] = {}
    for labels, length in sorted(
        samples.get("sglang:spec_accept_length", []), key=lambda sample: _rank(sample[0])
    ):
        label = f"DP{labels['dp_rank']}" if labels.get("dp_rank", "").isdecimal() else ""
        if label in gauges and gauges[label].accept_length > 0:
            continue  # a second rank of the same batch
        gauges[label] = Gauge(
            length,
            _same(samples, "sglang:spec_accept_rate", labels),
            _same(samples, "sglang:num_running_reqs", labels),
            _same(samples, "sglang:spec_num_draft_tokens", labels),
            tuple(
                value
                for name in ("spec_accept_length", "gen_throughput", "num_used_tokens", "num_running_reqs")
                if (value := _same(samples, SGLANG + name, labels)) is not None
            ),
        )
    return Snapshot("sglang", time, counts, gauges)


def _rank(labels: Mapping[str, str]) -> tuple[int, ...]:
    values = (labels.get(name, "0") for name in ("tp_rank", "moe_ep_rank", "pp_rank"))
    return tuple(int(value) if value.isdecimal() and len(value) < 9 else 0 for value in values)


def _same(samples: _Samples, name: str, labels: Mapping[str, str]) -> float | None:
    """The sample of another gauge that the same rank wrote."""
    return next((value for other, value in samples.get(name, ()) if other == labels), None)


def _vllm(samples: _Samples, time: float) -> Snapshot:
    counts = {}
    for label in dict.fromkeys(_engine(labels) for labels, _ in samples.get(_DRAFTS, ())):
        steps, accepted, proposed = (
            _sum_of(samples, name, label) for name in (_DRAFTS, _ACCEPTED, _PROPOSED)
        )
        positions = None
        for labels, value in samples.get(_PER_POSITION, ()):
            place = labels.get("position", "")
            if (
                _engine(labels) == label
                and place.isdecimal()
                and len(place) < 4
                and int(place) < MAX_POSITIONS
            ):
                positions = positions or [0.0] * MAX_POSITIONS
                positions[int(place)] += value
        counts[label] = Count(
            steps,
            accepted if accepted is not None or positions is None else sum(positions),
            proposed,
            per_position=() if positions is None else _without_tail(positions, proposed or 0.0, steps or 0.0),
        )
    return Snapshot("vllm", time, counts)


def _sum_of(samples: _Samples, name: str, label: str) -> float | None:
    found = [value for labels, value in samples.get(name, ()) if _engine(labels) == label]
    return sum(found) if found else None


def _without_tail(positions: list[float], proposed: float, steps: float) -> tuple[float, ...]:
    """As many positions as are drafted in a step; before the first step, those with a count."""
    most = max((i + 1 for i, value in enumerate(positions) if value), default=0)
    drafted = math.ceil(proposed / steps) if steps else 0
    return tuple(positions[: min(max(most, drafted), MAX_POSITIONS)])


def _engine(labels: Mapping[str, str]) -> str:
    return f"engine {labels['engine']}" if labels.get("engine", "0") not in ("", "0") else ""


def _by_name(samples: _Samples, engine: str, time: float) -> Snapshot:
    """Counts, or else gauges, by what the names say."""
    named: dict[str, float] = {}
    gauges: dict[str, float] = {}
    for name in samples:
        figure = figure_of(name)
        total = _total(samples, name)
        if figure in (STEPS, ACCEPTED, PROPOSED) and total is not None:
            named.setdefault(figure, total)
        elif figure in (LENGTH, RATE) and total is not None:
            gauges.setdefault(figure, total / len(samples[name]))
    counts, shown = {}, {}
    if ACCEPTED in named and (STEPS in named or PROPOSED in named):
        counts[""] = Count(named.get(STEPS), named[ACCEPTED], named.get(PROPOSED))
    length = gauges.get(LENGTH)
    if length is not None and (length >= 1 or length == 0) and STEPS not in named:
        rate = gauges.get(RATE)
        shown[""] = Gauge(length, rate / 100 if rate is not None and rate > 1 else rate, seen=(length,))
    return Snapshot(engine, time, counts, shown)


# --- From pages to rows ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Totals:
    """A server as its metrics have shown it so far.

    server: the rows. restarts: how often its counters fell. draft_tokens: D as the gauges show it, None before.
    gauges_only: whether rows come from gauges, each the last log interval before a page.
    """

    server: Server
    restarts: int = 0
    draft_tokens: int | None = None
    gauges_only: bool = False
    _last: Snapshot | None = None
    _shown: dict[str, Gauge] = field(default_factory=dict)


def begin(engine: str, path: str) -> Totals:
    """A server of which no page was read yet.

    Args:
        engine: "sglang", "vllm", …
        path: What it is called: a URL or a file.
    """
    return Totals(Server(path, 1, source=f"{engine}-metrics" if engine else "metrics"))


def server_of_pages(pages: Sequence[Snapshot], path: str) -> Totals:
    """The rows between successive pages; of a single page, what it counted since the server started.

    Args:
        pages: In the order in which they were read, at least one.
        path: What the server is called: a URL or a file.
    """
    first = pages[0]
    totals = begin(first.engine, path)
    if len(pages) == 1:
        totals._last = Snapshot(first.engine, first.time)  # as if there had been a page without a count
    for page in pages:
        advance(totals, page)
    return totals


def advance(totals: Totals, page: Snapshot) -> bool:
    """Add what was counted since the page before; whether that was anything.

    The first page of all is where counting begins, and adds only the interval that its gauges show.
    """
    before, totals._last = totals._last, page
    totals.draft_tokens = next(
        (int(g.draft_tokens) for g in page.gauges.values() if g.draft_tokens), totals.draft_tokens
    )
    if page.counts and all(map(_says_length, page.counts.values())):
        if before is None:
            return False
        added = [
            _count(totals, label, before.counts.get(label, Count()), now, page.time)
            for label, now in page.counts.items()
        ]
        return any(added)
    totals.gauges_only = bool(page.gauges)
    added = [_gauge(totals, label, now, page.time) for label, now in page.gauges.items()]
    if not page.gauges:  # a rate without a length: the drafts are counted, the steps are not
        for label, now in page.counts.items():
            if now.accepted is not None and now.proposed:
                series = totals.server.series_of(label)
                series.accepted, series.proposed = now.accepted, now.proposed
                added.append(before is None or before.counts.get(label) != now)
    return any(added)


def _says_length(count: Count) -> bool:
    """Whether counters give an accept length: verify steps, with accepted drafts or with the tokens generated."""
    return count.steps is not None and (
        count.accepted is not None
        or (count.tokens is not None and count.requests is not None)
        or not count.steps
    )


def _count(totals: Totals, label: str, before: Count, now: Count, time: float) -> bool:
    since = _difference(before, now)
    if since is None:
        totals.restarts += 1
        since = now
    series = totals.server.series_of(label)
    steps = since.steps or 0.0
    if steps <= 0:
        series.idle += 1
        return False
    if since.accepted is not None:
        return _drafts(series, since, steps, time)
    # SGLang counts an answer's tokens and steps when it ends; its first token came without a verify step.
    length = ((since.tokens or 0.0) - (since.requests or 0.0)) / steps
    if length < 1:
        series.idle += 1  # answers were cut off, or the page was read between two of its counters
        return False
    series.append(time=time, length=length, steps=steps)
    return True


def _drafts(series: Series, since: Count, steps: float, time: float) -> bool:
    assert since.accepted is not None
    if since.proposed is not None:
        series.accepted += since.accepted
        series.proposed += since.proposed
    series.append(
        time=time,
        length=1 + since.accepted / steps,
        rate=since.accepted / since.proposed if since.proposed else None,
        steps=steps,
    )
    if since.per_position:
        series.add_positions(list(since.per_position), steps)
    return True


def _difference(before: Count, now: Count) -> Count | None:
    """What was counted in between, None where a counter fell."""
    since: dict[str, float | None] = {}
    for name in ("steps", "accepted", "proposed", "tokens", "requests"):
        first, second = getattr(before, name), getattr(now, name)
        since[name] = None if second is None else second - (first or 0.0)
    if any(value is not None and value < 0 for value in since.values()):
        return None
    earlier = (*before.per_position, *(0.0 for _ in now.per_position))
    positions = tuple(b - a for a, b in zip(earlier, now.per_position, strict=False))
    if any(value < 0 for value in positions):
        return None
    return Count(
        since["steps"], since["accepted"], since["proposed"], since["tokens"], since["requests"], positions
    )


def _gauge(totals: Totals, label: str, now: Gauge, time: float) -> bool:
    shown, totals._shown[label] = totals._shown.get(label), now
    series = totals.server.series_of(label)
    if now.accept_length < 1:  # 0 until an interval has speculated
        series.idle += 1
        return False
    if shown is not None and shown.seen == now.seen:
        return False
    rate = now.accept_rate
    series.append(
        time=time,
        length=now.accept_length,
        rate=rate if rate is not None and math.isfinite(rate) and 0 <= rate <= 1 else None,
        running=now.running,
    )
    return True
