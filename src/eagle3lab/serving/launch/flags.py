"""The flags of SGLang's launch command that a plan understands; all others pass through it as they are.

Read from the argument parsers of 0.5.9 and 0.5.23, which accept every spelling here (a test asks them). `--tp`,
`--dp` and `--speculative-algo` are no flags of their own: the parser takes an unambiguous beginning for the whole.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Flag:
    """One field of a plan and how it is written.

    Attributes:
        field: Name of the field of `LaunchPlan`.
        spellings: The flags, the one that is written first.
        integer: Whether the value is an integer.
    """

    field: str
    spellings: tuple[str, ...]
    integer: bool = False


FLAGS = (
    Flag("model", ("--model-path", "--model")),
    Flag("algorithm", ("--speculative-algorithm", "--speculative-algo")),
    Flag("drafter", ("--speculative-draft-model-path", "--speculative-draft-model")),
    Flag("steps", ("--speculative-num-steps",), integer=True),
    Flag("topk", ("--speculative-eagle-topk",), integer=True),
    Flag("draft_tokens", ("--speculative-num-draft-tokens",), integer=True),
    Flag("tp", ("--tp-size", "--tensor-parallel-size", "--tp"), integer=True),
    Flag("dp", ("--dp-size", "--data-parallel-size", "--dp"), integer=True),
    Flag("nodes", ("--nnodes",), integer=True),
    Flag("node_rank", ("--node-rank",), integer=True),
    Flag("dist_init_addr", ("--dist-init-addr", "--nccl-init-addr")),
    Flag("device", ("--device",)),
    Flag("host", ("--host",)),
    Flag("port", ("--port",), integer=True),
)

BY_SPELLING = {spelling: flag for flag in FLAGS for spelling in flag.spellings}


def backend_name(flag: str) -> str | None:
    """`attention` for `--attention-backend`; None for a flag that chooses no backend."""
    if flag.startswith("--") and flag.endswith("-backend") and len(flag) > len("---backend"):
        return flag[2 : -len("-backend")]
    return None
