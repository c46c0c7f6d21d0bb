"""Ready-made plans: this CPU, one node of eight GPUs, several nodes. Each takes further fields of `LaunchPlan`."""

from __future__ import annotations

from typing import Any

from eagle3lab.engines.release import cpu_profile
from eagle3lab.serving.plan import LaunchPlan

_SPECULATION: dict[str, Any] = {"algorithm": "EAGLE3", "steps": 3, "topk": 1, "draft_tokens": 4}
_NONE: dict[str, Any] = {"algorithm": None, "steps": None, "topk": None, "draft_tokens": None}


def _with_drafter(drafter: str | None, fields: dict[str, Any]) -> dict[str, Any]:
    """Three steps, one branch, four draft tokens unless `fields` say otherwise; nothing of it without a drafter."""
    return {"drafter": drafter} | (_NONE if drafter is None else _SPECULATION) | fields


def cpu(
    model: str, drafter: str | None = None, *, release: str, max_tokens: int = 2048, **fields: Any
) -> LaunchPlan:
    """A server on this machine's CPU, in float32: exact, small and slow.

    Args:
        model: The target, a tiny one.
        drafter: The draft model; None to serve without speculation.
        release: SGLang's release, which decides backends and environment.
        max_tokens: Size of the key/value cache, in tokens.
        fields: Further fields of `LaunchPlan`; `backends`, `environment` and `extra` are added to the profile's.

    Raises:
        InputError: A release whose CPU path was not tried.
    """
    profile = cpu_profile(release)
    chosen = _with_drafter(drafter, fields)
    tp = int(chosen.get("tp", 1))
    environment = {
        "SGLANG_USE_CPU_ENGINE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        # Tensors are tiny: more threads spend their time waiting for each other.
        "OMP_NUM_THREADS": "1",
        **profile.environment,
    }
    if tp > 1:  # 0.5.23 asserts that each rank was given its cores
        environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(str(rank) for rank in range(tp))
    extra = [
        *("--dtype", "float32"),
        "--disable-cuda-graph",
        "--disable-overlap-schedule",
        *("--mem-fraction-static", "0.05"),
        *("--max-total-tokens", str(max_tokens)),
        *("--max-running-requests", "8"),
        *("--decode-log-interval", "5"),
        # /health generates a token itself, and the log's accept lengths are then of real requests alone.
        "--skip-server-warmup",
    ]
    chosen["backends"] = profile.backends | {"grammar": "none"} | chosen.get("backends", {})
    chosen["environment"] = environment | chosen.get("environment", {})
    chosen["extra"] = [*extra, *chosen.get("extra", ())]
    return LaunchPlan(model, device="cpu", **chosen)


def gpu8(model: str, drafter: str | None = None, **fields: Any) -> LaunchPlan:
    """Eight GPUs of one node, tensor parallel; backends and memory are left to SGLang."""
    return LaunchPlan(model, **({"tp": 8} | _with_drafter(drafter, fields)))


def multi_node(
    model: str,
    drafter: str | None = None,
    *,
    nodes: int,
    dist_init_addr: str,
    gpus_per_node: int = 8,
    **fields: Any,
) -> list[LaunchPlan]:
    """One tensor-parallel server over several nodes: a plan for each, to be started on its own machine.

    Args:
        model: The target, at the same path on every node.
        drafter: The draft model, likewise.
        nodes: Machines.
        dist_init_addr: `host:port` of the first of them.
        gpus_per_node: GPUs of each, all used.
        fields: Further fields of `LaunchPlan`.
    """
    chosen = {"tp": nodes * gpus_per_node} | _with_drafter(drafter, fields)
    return [
        LaunchPlan(model, nodes=nodes, node_rank=rank, dist_init_addr=dist_init_addr, **chosen)
        for rank in range(nodes)
    ]
