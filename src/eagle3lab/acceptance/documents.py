"""Acceptance in JSON, wherever in it: answers of a server, saved benchmarks, iteration statistics, `/server_info`.

Nobody keeps such files in one shape. So the field's keys are searched for at any depth: one request's `meta_info` of
SGLang or `speculative_decoding` of vLLM, figures by name (`observations.figure_of`) in saved results of `vllm bench
serve`, SGLang's bench_serving and bench_one_batch, SpecForge, aiperf, genai-perf and TensorRT-LLM's
`specDecodingStats`, SGLang's account of itself, and samples of Prometheus' query API.
"""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3lab.acceptance.grammar import request
from eagle3lab.acceptance.observations import (
    ACCEPTED,
    DRAFTS,
    HISTOGRAM,
    LENGTH,
    NAN,
    POSITION_COUNTS,
    PROPOSED,
    RATE,
    SHARES,
    STEPS,
    Figures,
    Observation,
    Unparsed,
    figure_of,
    measurement,
    number,
    related,
)

DEEPEST = 64
"""Levels of nesting that are searched."""

LONGEST_REPR = 1 << 20
"""Characters of a printed Python dictionary that is read."""

MOST_NODES = 5_000_000
"""Values of a document that are looked at."""

_YEAR_10000 = 253_402_300_800
_ARGUMENTS = (
    "model_path", "speculative_algorithm", "speculative_draft_model_path", "speculative_num_steps",
    "speculative_eagle_topk", "speculative_num_draft_tokens", "tp_size", "dp_size", "decode_log_interval",
)  # fmt: skip
_REQUESTS = {
    "speculative_decoding": "vllm-request",
    "specDecodingStats": "tensorrt-llm",
    "spec_decoding_stats": "tensorrt-llm",
    "timings": "llama.cpp",
}
"""Keys whose objects are one request's or one iteration's figures, and the source that they then are of."""


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What SGLang says about itself (`/server_info`, `/get_server_info` until 0.5.5).

    `avg_spec_accept_length` stands at the top level up to 0.4.9 and in `internal_states`, one a DP rank, from 0.4.10;
    it is all accepted drafts and bonus tokens over all verify steps of complete log intervals, and absent before the
    first of them (0.5.9 srt/managers/scheduler.py, 0.5.23 srt/managers/scheduler_components/internal_state.py).

    release: SGLang's version, None where it names none.
    arguments: those that matter here, as the server resolved them, by the names of `server_args`.
    accept_lengths: tokens per verify step since the start, one a DP rank; empty before the first log interval.
    """

    release: str | None
    arguments: dict[str, object] = field(default_factory=dict)
    accept_lengths: tuple[float, ...] = ()

    @classmethod
    def of(cls, info: Mapping[str, Any]) -> ServerInfo | None:
        """From the answer, or None where it is another program's."""
        states = info.get("internal_states")
        if not isinstance(states, list):
            states = [states] if isinstance(states, Mapping) else []
        listed = [state for state in states if isinstance(state, Mapping)]
        arguments = _arguments(info)
        if not arguments and not listed:
            return None
        lengths = [_length(state) for state in (info, *listed)]
        version = info.get("version")
        return cls(
            version if isinstance(version, str) and version[:1].isdecimal() else None,
            arguments,
            tuple(length for length in lengths if length is not None),
        )


def _length(state: Mapping[str, Any]) -> float | None:
    value = state.get("avg_spec_accept_length")
    found = None if isinstance(value, str) else number(value)
    return found if found is not None and found >= 1 else None


def _arguments(node: Mapping[str, Any]) -> dict[str, object]:
    """The settings of a server that stand in an object; a count beyond a million is none."""
    return {
        name: value
        for name in _ARGUMENTS
        if isinstance(value := node.get(name), str)
        or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1_000_000)
    }


Sample = tuple[str, dict[str, str], float]
"""Name, labels and value of a metric."""


@dataclass(slots=True)
class Contents:
    """What was found in a document.

    measured: with the arguments that stand around each. infos: SGLang's accounts of itself. samples: of metrics.
    keys: keys that look like speculation, in case nothing was understood.
    """

    measured: list[tuple[Observation | Unparsed, dict[str, object]]] = field(default_factory=list)
    infos: list[ServerInfo] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)

    @property
    def understood(self) -> bool:
        """Whether anything was."""
        return bool(self.measured or self.infos or self.samples)


def search(document: object) -> Contents:
    """Everything that a JSON value says of acceptance, in its order."""
    found = Contents()
    left = MOST_NODES
    stack: list[tuple[object, str, dict[str, object], int]] = [(document, "", {}, 0)]
    while stack and left > 0:
        node, key, around, depth = stack.pop()
        left -= 1
        inner: list[tuple[object, str]] = []
        if isinstance(node, list):
            inner = [(item, key) for item in node]
        elif isinstance(node, dict):
            around = {**around, **_context(node)}
            inner = list(_object(node, key, around, found))
            if len(found.keys) < 12:
                found.keys += [name for name in related(map(str, node)) if name not in found.keys]
        if depth < DEEPEST:
            stack += [
                (item, name, around, depth + 1)
                for item, name in reversed(inner)
                if isinstance(item, dict | list)
            ]
    return found


def parse(text: str) -> object | None:
    """A JSON value, or a dictionary as Python prints it; None where the text is neither."""
    try:
        found: object = json.loads(text)
    except (ValueError, RecursionError):
        if "': " not in text[:400] or len(text) > LONGEST_REPR:
            return None
        try:
            found = ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
    return found


def _context(node: Mapping[str, Any]) -> dict[str, object]:
    """What an object says of the server that everything in it is about."""
    known = _arguments(node)
    if "phase" in node:
        known["phase"] = node["phase"]
    ended = node.get("ended_s")
    if isinstance(ended, int | float) and 0 < ended < _YEAR_10000:
        known["time"] = float(ended)
    for name in node:
        if figure_of(str(name)) == DRAFTS and (k := number(node[name])) is not None and 0 < k < 1024:
            known["speculative_num_draft_tokens"] = int(k) + 1
    return known


def _object(
    node: Mapping[str, Any], key: str, around: dict[str, object], found: Contents
) -> Iterator[tuple[object, str]]:
    """Read one object; what is left to search in it."""
    if around.get("phase") == "warm-up":  # a run's own requests: these are in no count
        return
    if "spec_verify_ct" in node:
        time = around.get("time", NAN)
        meta = {name: value for name, value in node.items() if isinstance(name, str)}
        found.measured.append((request(meta, time=time if isinstance(time, float) else NAN), around))
        return
    if isinstance(node.get("metric"), dict) and (sample := _sample(node)) is not None:
        found.samples.append(sample)
        return
    own = "internal_states" in node or "avg_spec_accept_length" in node
    if own and (info := ServerInfo.of(node)) is not None:
        found.infos.append(info)
        return
    measured = _figures(node, _REQUESTS.get(key, "summary"))
    if measured is not None:
        found.measured.append((measured, around))
    for name, value in node.items():
        if measured is None or name not in ("server_info", "internal_states"):
            yield value, str(name)


def _figures(node: Mapping[str, Any], source: str) -> Observation | Unparsed | None:
    named: dict[str, object] = {}
    for name, value in node.items():
        if (figure := figure_of(str(name))) is None or figure in named or value is None:
            continue
        if figure in (SHARES, POSITION_COUNTS, HISTOGRAM):
            if isinstance(value, dict):
                value = [value[place] for place in sorted(value, key=_place)]
            if isinstance(value, list) and value:
                named[figure] = value
        elif (single := _single(value, mean=figure in (LENGTH, RATE))) is not None:
            if figure == LENGTH and single <= 0:  # a benchmark's word for "no speculation"
                continue
            named[figure] = single
    counted = {ACCEPTED, STEPS} <= named.keys() or {ACCEPTED, PROPOSED} <= named.keys()
    if not (LENGTH in named or counted or HISTOGRAM in named):
        return None
    figures = Figures.of(named)
    return figures if isinstance(figures, Unparsed) else measurement(figures, source)


def _place(name: object) -> tuple[int, str]:
    text = "".join(char for char in str(name) if char.isdecimal())[:6]
    return int(text or 0), str(name)


def _single(value: object, *, mean: bool, depth: int = 0) -> float | None:
    """A figure that may be given as statistics: `{"avg": 2.3, "p50": …}`, or by engine: `[{"value": 12}, …]`."""
    if depth > 4:
        return None
    if isinstance(value, str | int | float):
        return number(value)
    if isinstance(value, list):
        parts = [_single(item, mean=mean, depth=depth + 1) for item in value[:256]]
        if not parts or None in parts:
            return None
        total = math.fsum(part for part in parts if part is not None)
        return total / len(parts) if mean else total
    if isinstance(value, dict):
        names = ("avg", "mean", "value") if mean else ("total", "sum", "delta", "value", "avg", "mean")
        for name in (*names, "stats", "series", "values"):
            if name in value and (found := _single(value[name], mean=mean, depth=depth + 1)) is not None:
                return found
    return None


def _sample(node: Mapping[str, Any]) -> Sample | None:
    """A sample of Prometheus' query API: the last one where a range was asked for."""
    labels = {str(name): str(value) for name, value in node["metric"].items()}
    values = node.get("values")
    pair = values[-1] if isinstance(values, list) and values else node.get("value")
    value = number(pair[1]) if isinstance(pair, list) and len(pair) == 2 else None
    name = labels.pop("__name__", "")
    return (name, labels, value) if name and value is not None else None
