"""Pages of metrics as the engines show them, written by Prometheus' own client."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

RANK = {"tp_rank": "0", "pp_rank": "0", "moe_ep_rank": "0"}


def sglang_page(
    *,
    length: float = 2.5,
    rate: float | None = 0.5,
    running: float = 3.0,
    throughput: float = 90.5,
    draft_tokens: int | None = None,
    counts: tuple[int, int, int] | None = None,
    ranks: Sequence[Mapping[str, str]] = (RANK,),
) -> str:
    """SGLang's page: gauges of its ranks, and from 0.5.13 counters: `counts` are verify steps, tokens, answers."""
    registry = CollectorRegistry()
    names = list(ranks[0])
    gauges = {
        "spec_accept_length": length,
        "spec_accept_rate": rate,
        "num_running_reqs": running,
        "gen_throughput": throughput,
        "spec_num_draft_tokens": draft_tokens,
    }
    for name, value in gauges.items():
        if value is not None:
            gauge = Gauge(f"sglang:{name}", name, ["model_name", *names], registry=registry)
            for labels in ranks:
                gauge.labels(model_name="m", **labels).set(value)
    if counts is not None:
        steps, tokens, answers = counts
        Counter("sglang:spec_verify_calls", "calls", ["model_name"], registry=registry).labels(
            model_name="m"
        ).inc(steps)
        for name, value in (("generation_tokens", tokens), ("num_requests", answers)):
            counter = Counter(f"sglang:{name}", name, ["model_name", "is_streaming"], registry=registry)
            counter.labels(model_name="m", is_streaming="true").inc(value // 2)
            counter.labels(model_name="m", is_streaming="false").inc(value - value // 2)
    return generate_latest(registry).decode()


def vllm_page(engines: Sequence[tuple[int, Sequence[int]]], *, drafts: int = 3) -> str:
    """vLLM's page: for each engine (verify steps, accepted by position), `_created` series and all."""
    registry = CollectorRegistry()
    names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
    labels = ["model_name", "engine"]
    counters = [Counter(f"vllm:spec_decode_{name}", name, labels, registry=registry) for name in names]
    per_position = Counter(
        "vllm:spec_decode_num_accepted_tokens_per_pos",
        "by position",
        [*labels, "position"],
        registry=registry,
    )
    Gauge("vllm:num_requests_running", "running", labels, registry=registry).labels(
        model_name="m", engine="0"
    ).set(1)
    for number, (steps, accepted) in enumerate(engines):
        of = {"model_name": "m", "engine": str(number)}
        for counter, value in zip(counters, (steps, steps * drafts, sum(accepted)), strict=True):
            counter.labels(**of).inc(value)
        for position, value in enumerate(accepted):
            per_position.labels(**of, position=str(position)).inc(value)
    return generate_latest(registry).decode()


OTHER_PAGE = """# HELP node_cpu_seconds_total Seconds the CPUs spent in each mode.
# TYPE node_cpu_seconds_total counter
node_cpu_seconds_total{cpu="0",mode="idle"} 3.2e+06
node_load1 0.2
"""
