"""What one line of a log can say."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Observation:
    """A measurement of acceptance, as printed.

    source: "sglang" (decode line), "sglang-jax", "vllm", "vllm-v0" (counters since start), "llama.cpp",
        "sglang-request" (one request's meta_info), "summary" (the end of a benchmark or script).
    time: seconds since the epoch, NaN when not printed.
    label: rank label ("DP0 TP0") or process, empty when none.
    accept_length: tokens per verify step, bonus included; None when not printed or nothing was drafted.
    accept_rate: as printed, between 0 and 1; None when not printed.
    verify_steps, accepted, proposed: counts, None when they cannot be known from the line.
    per_position: share of verify steps that accepted position j + 1; empty when not printed.
    running: running requests; tokens: tokens in the cache; throughput: tokens/s.
    graph_label, graph: such as "cuda graph" and whether the batch ran in one.
    iteration: forward iteration number.
    idle: an interval in which nothing was drafted: no data, not a failure.
    speculating: False for a decode line without accept fields.
    extra: other named numbers on the line (cap len, steps per draft …).
    """

    source: str
    time: float
    label: str
    accept_length: float | None = None
    accept_rate: float | None = None
    verify_steps: float | None = None
    accepted: float | None = None
    proposed: float | None = None
    per_position: tuple[float, ...] = ()
    running: int | None = None
    tokens: int | None = None
    throughput: float | None = None
    graph_label: str | None = None
    graph: bool | None = None
    iteration: int | None = None
    idle: bool = False
    speculating: bool = True
    ranks: dict[str, int] = field(default_factory=dict)
    extra: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a server.

    kind: "server_args", "ready", "draft_tokens_adjusted", "traceback", "error", "embed_distinct",
        "embed_shared", "aux_layers".
    detail: the error text, or empty.
    values: what the line names, such as server arguments or layer ids.
    """

    kind: str
    time: float
    label: str
    detail: str = ""
    values: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unparsed:
    """A line that looks like speculation and cannot be trusted: why, never a guess at its numbers."""

    reason: str
