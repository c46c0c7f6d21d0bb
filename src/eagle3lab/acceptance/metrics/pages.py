"""A page of Prometheus metrics as what it says about speculation, at one moment.

Counters count since the server started, and more than one sample can share a name: they are summed over labels that
only split the count (`is_streaming`, `position` apart). Gauges hold the last log interval: where several ranks show
the same batch, one of them is taken. `_created` series are moments, not counts, and are never read.

Names: SGLang 0.4.6 to 0.5.9 srt/metrics/collector.py, from 0.5.10 srt/observability/metrics_collector.py
(`sglang:spec_accept_length` in all, `sglang:spec_accept_rate` from 0.5.3.post3, `sglang:spec_num_draft_tokens` and
`sglang:spec_verify_calls_total` from 0.5.13); vLLM V1 vllm/v1/spec_decode/metrics.py, SpecDecodingProm.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from eagle3lab.acceptance.counts import LARGEST, MAX_POSITIONS
from eagle3lab.errors import InputError
from eagle3lab.text import printable

SGLANG, VLLM = "sglang:", "vllm:"

LONGEST_PAGE = 64 * 2**20
"""Bytes of a page; a server's metrics are some hundred kilobytes."""

_VERIFY_CALLS = "sglang:spec_verify_calls_total"
_DRAFTS = "vllm:spec_decode_num_drafts_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_PROPOSED = "vllm:spec_decode_num_draft_tokens_total"
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_ADVICE = "Give the address of an SGLang or vLLM server that was started with --enable-metrics"


@dataclass(frozen=True, slots=True)
class Count:
    """Counters of one engine since its start.

    steps: verify steps, each request by itself; None where the release counts none.
    accepted, proposed: drafts, bonus not counted; None where not counted (SGLang).
    tokens, requests: tokens generated and answers finished; None where not counted.
    per_position: accepted drafts by position.
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

    engine: "sglang" or "vllm". time: seconds since the epoch when it was read, NaN when not known.
    counts: by engine label, "" where there is one. gauges: by rank label ("DP0"), SGLang only.
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
    samples = _samples(text, source)
    if any(name.startswith(SGLANG) for name in samples):
        found = _sglang(samples, time)
        if found.counts or found.gauges:
            return found
        raise InputError(
            "these are SGLang's metrics, and none of them is about speculation",
            path=source or None,
            advice="Was the server started with --speculative-algorithm?",
        )
    if any(name.startswith(VLLM) for name in samples):
        counts = _vllm(samples)
        if counts:
            return Snapshot("vllm", time, counts)
        if any(name.startswith("vllm:spec_decode_") for name in samples):
            raise InputError(
                "these are the metrics of vLLM's V0 engine, which do not count verify steps",
                path=source or None,
                advice="Read its log instead",
            )
        raise InputError(
            "these are vLLM's metrics, and none of them is about speculation",
            path=source or None,
            advice="Was the server started with --speculative-config?",
        )
    names = ", ".join(printable(name, 60) for name in list(samples)[:3])
    raise InputError(
        f"these are the metrics of another program ({names} …)" if names else "this page holds no metrics",
        path=source or None,
        advice=_ADVICE,
    )


def looks_like_page(head: str) -> bool:
    """Whether a file that begins with `head` is a page of metrics and no log."""
    return head.lstrip().startswith(("# HELP ", "# TYPE ", SGLANG, VLLM))


def _samples(text: str, source: str) -> _Samples:
    """Samples by name; NaN, `_created` and what nothing counts up to are left out."""
    from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_open
    from prometheus_client.parser import text_string_to_metric_families as read_plain

    read = read_open if text.rstrip().endswith("# EOF") else read_plain
    found: _Samples = {}
    try:
        for family in read(text):
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
    lengths = samples.get("sglang:spec_accept_length", [])
    # A counter without a count is not on the page yet; the gauge's D came with it, in 0.5.13.
    if steps is None and "sglang:spec_num_draft_tokens" in samples:
        steps = 0.0
    if steps is not None:
        requests = _total(samples, "sglang:num_requests_total")
        counts[""] = Count(steps=steps, tokens=tokens or 0.0, requests=requests or 0.0)
    gauges: dict[str, Gauge] = {}
    for labels, length in sorted(lengths, key=lambda sample: _rank(sample[0])):
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


def _vllm(samples: _Samples) -> dict[str, Count]:
    counts = {}
    for label in dict.fromkeys(_engine(labels) for labels, _ in samples.get(_DRAFTS, ())):
        positions = [0.0] * MAX_POSITIONS
        for labels, value in samples.get(_PER_POSITION, ()):
            place = labels.get("position", "")
            if (
                _engine(labels) == label
                and place.isdecimal()
                and len(place) < 4
                and int(place) < MAX_POSITIONS
            ):
                positions[int(place)] += value
        steps, accepted, proposed = (
            sum(value for labels, value in samples.get(name, ()) if _engine(labels) == label)
            for name in (_DRAFTS, _ACCEPTED, _PROPOSED)
        )
        counts[label] = Count(
            steps, accepted, proposed, per_position=_without_tail(positions, proposed, steps)
        )
    return counts


def _without_tail(positions: list[float], proposed: float, steps: float) -> tuple[float, ...]:
    """As many positions as are drafted in a step; before the first step, those with a count."""
    most = max((i + 1 for i, value in enumerate(positions) if value), default=0)
    drafted = math.ceil(proposed / steps) if steps else 0
    return tuple(positions[: min(max(most, drafted), MAX_POSITIONS)])


def _engine(labels: Mapping[str, str]) -> str:
    return f"engine {labels['engine']}" if labels.get("engine", "0") not in ("", "0") else ""
