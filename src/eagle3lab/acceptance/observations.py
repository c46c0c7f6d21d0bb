"""What a line, a block, a request or a page can say of acceptance, and how named figures become a measurement.

Engines, benchmarks and scripts print the same few figures under many names: `Mean acceptance length`, `acc_length`,
`spec_decode_num_drafts`, `Accepted tokens:`. `figure_of` knows the names, `measurement` makes one measurement of what
was found under them. Counts win over printed means: the mean of a benchmark is rounded, its counts are not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from eagle3lab.acceptance.counts import LARGEST, MAX_POSITIONS

NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Observation:
    """A measurement of acceptance, as printed.

    source: "sglang" (decode line), "sglang-jax", "vllm", "vllm-v0" (counters since start), "llama.cpp",
        "tensorrt-llm", "sglang-request" and "vllm-request" (one request's own figures), "summary" (the figures of a
        benchmark or script).
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
    notes: what is odd about the figures, in sentences.
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
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a server.

    kind: "server_args", "engine_start" (vLLM), "ready", "draft_tokens_adjusted", "traceback", "error",
        "embed_distinct", "embed_shared", "aux_layers".
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
    """What looks like speculation and cannot be trusted: why, never a guess at its numbers."""

    reason: str


LENGTH, RATE, STEPS, PROPOSED, ACCEPTED = "length", "rate", "steps", "proposed", "accepted"
SHARES, POSITION_COUNTS, HISTOGRAM, DRAFTS = "shares", "position counts", "histogram", "drafts"

_NAMES: dict[str, str] = {
    **dict.fromkeys(
        ("acceptance length", "accept length", "acc length", "mean acceptance length", "mean accept length",
         "average accept length", "average acceptance length", "avg accept length", "avg acceptance length",
         "avg acc length", "average acc length", "mean acceptance len", "accept len", "average accept len",
         "accepted length", "average accepted length", "mean accepted length", "mean acc length",
         "acceptance length mean", "acceptance length avg"), LENGTH,
    ),
    **dict.fromkeys(
        ("acceptance rate", "draft acceptance rate", "accept rate", "average acceptance rate", "mean acceptance rate",
         "avg draft acceptance rate", "avg acceptance rate", "average draft acceptance rate", "token acceptance rate",
         "draft token acceptance rate"), RATE,
    ),
    **dict.fromkeys(
        ("drafts", "verify steps", "verify ct", "verify count", "steps", "verifications", "requests with draft tokens",
         "verify calls"), STEPS,
    ),
    **dict.fromkeys(
        ("draft tokens", "drafted tokens", "proposed tokens", "proposed draft tokens", "proposed drafts",
         "total draft tokens", "draft token num", "draft n", "tokens drafted", "generated draft tokens"), PROPOSED,
    ),
    **dict.fromkeys(
        ("accepted tokens", "accepted draft tokens", "accepted drafts", "correct drafts", "total accepted tokens",
         "accept token num", "draft n accepted", "draft tokens accepted", "tokens accepted"), ACCEPTED,
    ),
    **dict.fromkeys(
        ("per position acceptance rates", "per position acceptance rate", "acceptance rates per position",
         "acceptance rate per position", "acceptance rate per pos", "acceptance rates per pos",
         "acceptance per position", "per position acceptance", "acceptance rate by position"), SHARES,
    ),
    **dict.fromkeys(
        ("accepted tokens per pos", "accepted tokens per position", "accepted per position",
         "per position accepted tokens"), POSITION_COUNTS,
    ),
    **dict.fromkeys(("acceptance histogram", "accept histogram", "correct drafts histogram"), HISTOGRAM),
    **dict.fromkeys(("speculative tokens", "tokens per draft"), DRAFTS),
}  # fmt: skip
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_TAIL = re.compile(r"\s*(?:\(?\s*%\s*\)?|\(tokens?\)|\(tok\))$")
_LEAD = re.compile(
    r"(?:(?:vllm|sglang|trtllm|tensorrt llm|llamacpp|llama cpp|nv) )?"
    r"(?:(?:spec decode|spec decoding|speculative decoding|speculative|spec) )?(?:(?:num|number of|total|n) )?"
)


def figure_of(name: str) -> str | None:
    """Which figure a label or key stands for (`LENGTH`, `STEPS` …); None where it is none of acceptance."""
    if len(name) > 80:
        return None
    if name in ("num_spec_tokens", "spec_decode_num_spec_tokens", "num_speculative_tokens"):
        return DRAFTS
    if name in ("num_spec_steps",):
        return STEPS
    plain = _TAIL.sub("", _CAMEL.sub(" ", name).lower().replace("%", "").strip())
    plain = " ".join(re.split(r"[\s_\-:/.]+", plain)).removesuffix(" total").removesuffix(" ()")
    known = _NAMES.get(plain)
    if known is None:
        bare = plain[_LEAD.match(plain).end() :]  # type: ignore[union-attr]  # it matches the empty string
        known = _NAMES.get(bare)
    if known == STEPS and plain in ("steps", "num steps", "total steps"):
        return None  # training prints these
    return known


_RELATED = re.compile(r"(?i)spec(?!ial|if|tr)|accept(?!ed_prediction)|draft")


def related(names: Iterable[str], most: int = 6) -> list[str]:
    """Those of some keys that look like speculation, the first `most`."""
    found = dict.fromkeys(name for name in names if len(name) <= 80 and _RELATED.search(name))
    return list(found)[:most]


def number(value: object) -> float | None:
    """A figure that can be believed: finite, at most `LARGEST`; a string of digits counts. None for anything else."""
    if isinstance(value, str) and len(value) <= 40:
        try:
            value = float(value.strip().rstrip("%"))
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        found = float(value)
    except OverflowError:
        return None
    return found if abs(found) <= LARGEST else None


def numbers(value: object) -> tuple[float, ...] | None:
    """A list of figures; None for anything else, or for one longer than there are draft positions."""
    if not isinstance(value, Sequence) or isinstance(value, str) or not 0 < len(value) <= MAX_POSITIONS + 1:
        return None
    found = [number(item) for item in value]
    return None if None in found else tuple(one for one in found if one is not None)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of one measurement, None or empty where not given.

    length: printed mean, with half of its last digit as `rounding`. rate: printed, as a share.
    positions: shares of the verify steps. position_counts: accepted drafts by position.
    histogram: verify steps by the number of drafts accepted in them.
    """

    length: float | None = None
    rate: float | None = None
    steps: float | None = None
    accepted: float | None = None
    proposed: float | None = None
    positions: tuple[float, ...] = ()
    position_counts: tuple[float, ...] = ()
    histogram: tuple[float, ...] = ()
    rounding: float = 0.005

    @classmethod
    def of(cls, named: Mapping[str, object], *, percent: bool = False) -> Figures | Unparsed:
        """From figures by `figure_of`'s names; percentages are told by their size, or by `percent`."""
        single: dict[str, float | None] = {}
        for name in (LENGTH, RATE, STEPS, ACCEPTED, PROPOSED):
            value = named.get(name)
            single[name] = number(value)
            if value is not None and single[name] is None:
                return Unparsed(f"the {name} figure is damaged")
        rate = single[RATE]
        if rate is not None and (percent or rate > 1):
            rate /= 100
        shares = numbers(named.get(SHARES)) or ()
        if shares and (percent or max(shares) > 1):
            shares = tuple(share / 100 for share in shares)
        return cls(
            single[LENGTH], rate, single[STEPS], single[ACCEPTED], single[PROPOSED], shares,
            numbers(named.get(POSITION_COUNTS)) or (), numbers(named.get(HISTOGRAM)) or (),
        )  # fmt: skip


def measurement(
    found: Figures, source: str = "summary", *, time: float = NAN
) -> Observation | Unparsed | None:
    """One measurement of some figures; None where they say nothing of an accept length.

    Length, rate and positions come from the counts where those are given. What is drafted is what was drafted, not
    the number of positions printed: positions that no draft reached are left out.
    """
    steps, accepted, proposed = found.steps, found.accepted, found.proposed
    if any(
        v is not None and v < 0 for v in (steps, accepted, proposed, *found.position_counts, *found.histogram)
    ):
        return Unparsed("a count below zero")
    if found.histogram and steps is None:
        steps = math.fsum(found.histogram)
    if found.histogram and accepted is None and steps == math.fsum(found.histogram):
        accepted = math.fsum(place * count for place, count in enumerate(found.histogram))
    if found.position_counts and accepted is None:
        accepted = math.fsum(found.position_counts)
    if steps == 0 or (proposed == 0 and not accepted):
        return Observation(source, time, "", idle=True)
    problem = _impossible(found, steps, accepted, proposed)
    if problem:
        return Unparsed(problem)
    if steps is None and accepted and found.length is not None and found.length > 1:
        steps = accepted / (found.length - 1)
    counted = 1 + accepted / steps if accepted is not None and steps else None
    length = counted if counted is not None else found.length
    if length is None and proposed and accepted is None:
        return None
    if length is None and not (proposed and accepted is not None):
        return None
    notes = []
    if counted is not None and found.length is not None and abs(counted - found.length) > 2 * found.rounding:
        notes.append(
            f"the counts give an accept length of {counted:.3f}, not the {found.length:.2f} that is printed beside them"
        )
    rate = accepted / proposed if proposed and accepted is not None else found.rate
    if rate is not None and found.rate is not None and abs(rate - found.rate) > 0.006:
        notes.append(
            f"the counts give a rate of {rate:.1%}, not the {found.rate:.1%} that is printed beside them"
        )
    return Observation(
        source=source, time=time, label="", accept_length=length, accept_rate=rate, verify_steps=steps,
        accepted=accepted, proposed=proposed, per_position=_shares(found, steps, proposed, notes),
        notes=tuple(notes),
    )  # fmt: skip


def _impossible(
    found: Figures, steps: float | None, accepted: float | None, proposed: float | None
) -> str | None:
    if found.length is not None and found.length < 1 and (accepted is None or not steps):
        # Some scripts leave the bonus token out; adding it on a guess would invent a number.
        return "an accept length below 1: printed without the bonus token, or damaged"
    if accepted is not None and proposed is not None and accepted > proposed:
        return "more drafts accepted than proposed"
    if accepted is not None and steps and accepted > steps * MAX_POSITIONS:
        return "more drafts accepted than any step proposes"
    if any(not 0 <= share <= 1 + 1e-9 for share in found.positions) or not 0 <= (found.rate or 0) <= 1 + 1e-9:
        return "shares below 0 or above 1"
    return None


def _shares(
    found: Figures, steps: float | None, proposed: float | None, notes: list[str]
) -> tuple[float, ...]:
    """By position: from counts where there are some, as far as drafts went."""
    shares, counted = found.positions, True
    if found.position_counts and steps:
        shares = tuple(count / steps for count in found.position_counts)
    elif found.histogram and steps and math.fsum(found.histogram) == steps:
        left, made = steps, []
        for count in found.histogram[:-1]:
            left -= count
            made.append(left / steps)
        shares = tuple(made)
    else:
        counted = False
    if any(share > 1 + 1e-9 for share in shares):
        return ()
    if proposed and steps:
        drafted = min(max(1, math.ceil(proposed / steps - 1e-9)), MAX_POSITIONS)
        if counted:  # counts stop where nothing more was accepted
            shares = (*shares, *(0.0 for _ in range(len(shares), drafted)))
        while len(shares) > drafted and shares[-1] == 0:
            shares = shares[:-1]
        beyond = len(found.positions) - len(shares)
        if found.positions and beyond > 0:
            notes.append(
                f"{len(found.positions)} positions are printed, {drafted} were drafted: the other {beyond} never were"
            )
    return shares[:MAX_POSITIONS]
