"""`/server_info`: what a server says it was started with, and its accept length since then.

`/get_server_info` until 0.5.5, both since 0.5.6. `avg_spec_accept_length` stands at the top level up to 0.4.9 and in
`internal_states`, one a DP rank, from 0.4.10; it is all accepted drafts and bonus tokens over all verify steps of
complete log intervals, and absent before the first of them (0.5.9 srt/managers/scheduler.py, 0.5.23
srt/managers/scheduler_components/internal_state.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3lab.errors import InputError

_ARGUMENTS = (
    "model_path",
    "speculative_algorithm",
    "speculative_draft_model_path",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
    "tp_size",
    "dp_size",
    "decode_log_interval",
)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What the server says about itself.

    release: SGLang's version, None where it names none.
    arguments: those that matter here, as the server resolved them, by the names of `server_args`.
    accept_lengths: tokens per verify step since the start, one a DP rank; empty before the first log interval.
    """

    release: str | None
    arguments: dict[str, object] = field(default_factory=dict)
    accept_lengths: tuple[float, ...] = ()


def read_server_info(info: Mapping[str, Any]) -> ServerInfo:
    """Read the answer of `/server_info`.

    Raises:
        InputError: It is not SGLang's.
    """
    states = info.get("internal_states")
    if not isinstance(states, list):
        states = [states] if isinstance(states, Mapping) else []
    listed = [state for state in states if isinstance(state, Mapping)]
    arguments: dict[str, object] = {
        name: value
        for name in _ARGUMENTS
        if isinstance(value := info.get(name), str | int) and not isinstance(value, bool)
    }
    if not arguments and not listed:
        raise InputError(
            "this is no answer of SGLang's /server_info", advice="Give the address of the server itself"
        )
    lengths = [_length(state) for state in [info, *listed]]
    version = info.get("version")
    return ServerInfo(
        version if isinstance(version, str) and version[:1].isdecimal() else None,
        arguments,
        tuple(length for length in lengths if length is not None),
    )


def _length(state: Mapping[str, Any]) -> float | None:
    value = state.get("avg_spec_accept_length")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value >= 1 else None
