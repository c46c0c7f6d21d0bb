"""vLLM's SpecDecoding metrics in every layout, and the counters of V0.

V1 prints one interval a line; the names are vLLM's: "mean acceptance length" is our accept length (bonus included),
"draft acceptance rate" our true accept rate, "per-position acceptance rate" our unconditional share per position.
V0 prints counters since the start, which the reader turns into intervals.
"""

from __future__ import annotations

import re
from itertools import pairwise

from eagle3lab.acceptance.formulas import HALF_CENT
from eagle3lab.acceptance.logs.observations import Observation, Unparsed
from eagle3lab.acceptance.logs.prefix import Prefix, parse_prefix
from eagle3lab.acceptance.logs.sglang import source_label

_V1 = "SpecDecoding metrics: "
_V0 = "Speculative metrics: "
_FIELD = re.compile(r"(?P<name>[A-Z][A-Za-z -]*?): (?P<value>.*?)(?=, [A-Z]|\.?\s*$)")
_FORMS = {
    "Mean acceptance length": re.compile(r"\d{1,4}\.\d\d|nan"),
    "Draft acceptance rate": re.compile(r"\d{1,3}\.\d%|nan%"),
    "Avg Draft acceptance rate": re.compile(r"\d{1,3}\.\d%|nan%"),
    "Accepted": re.compile(r"\d{1,15} tokens"),
    "Drafted": re.compile(r"\d{1,15} tokens"),
    "Per-position acceptance rate": re.compile(r"(?:\d\.\d{3}|nan)(?:, (?:\d\.\d{3}|nan))*|"),
}
_FORMS_V0 = {
    "Draft acceptance rate": re.compile(r"\d\.\d{3}|nan"),
    "Number of speculative tokens": re.compile(r"\d{1,3}"),
    "Number of accepted tokens": re.compile(r"\d{1,15}"),
    "Number of draft tokens": re.compile(r"\d{1,15}"),
    "Number of emitted tokens": re.compile(r"\d{1,15}"),
}
_QUOTES = re.compile(r"['\"{}]")


def metrics_line(text: str) -> Observation | Unparsed | None:
    """A line of SpecDecoding metrics (V1) or Speculative metrics (V0); None when it is neither."""
    for marker, forms, read in ((_V1, _FORMS, _interval), (_V0, _FORMS_V0, _counters)):
        head, found, body = text.partition(marker)
        if not found:
            continue
        if len(head) > 400 or _QUOTES.search(head):
            return Unparsed("metrics quoted inside another line")
        fields: dict[str, str] = {}
        for field in _FIELD.finditer(body):
            name, value = field["name"], field["value"]
            form = forms.get(name)
            if form is not None and (not form.fullmatch(value) or name in fields):
                return Unparsed(f"the value of '{name}' is damaged")
            fields[name] = value
        prefix = parse_prefix(head)
        return read(fields, prefix)
    return Unparsed("damaged metrics") if "SpecDecoding metrics" in text else None


def _interval(fields: dict[str, str], prefix: Prefix) -> Observation | Unparsed:
    if "Accepted" not in fields or "Drafted" not in fields:
        return Unparsed("metrics that break off")
    accepted = int(fields["Accepted"].split()[0])
    drafted = int(fields["Drafted"].split()[0])
    label = source_label(prefix.label, prefix.pid)
    if drafted == 0:
        if accepted:
            return Unparsed("tokens accepted of none drafted")
        return Observation(
            "vllm", prefix.time, label, accepted=0.0, proposed=0.0, idle=True, ranks=prefix.ranks
        )
    printed = fields.get("Avg Draft acceptance rate") or fields.get("Draft acceptance rate")
    length = fields.get("Mean acceptance length")
    positions = fields.get("Per-position acceptance rate") or ""
    if "nan" in (length or "") or "nan" in positions or (printed or "").startswith("nan"):
        return Unparsed("nan although tokens were drafted")
    shares = tuple(float(share) for share in positions.split(", ")) if positions else ()
    rate = float(printed[:-1]) / 100 if printed else None
    problem = _contradiction(accepted, drafted, rate, float(length) if length else None, shares)
    if problem:
        return Unparsed(problem)
    steps = _verify_steps(accepted, drafted, shares, float(length) if length else None)
    exact = 1 + accepted / steps if steps else float(length) if length else None
    return Observation(
        source="vllm",
        time=prefix.time,
        label=label,
        accept_length=exact,
        accept_rate=rate,
        verify_steps=steps,
        accepted=float(accepted),
        proposed=float(drafted),
        per_position=shares,
        ranks=prefix.ranks,
    )


def _contradiction(
    accepted: int, drafted: int, rate: float | None, length: float | None, shares: tuple[float, ...]
) -> str | None:
    """Numbers of one line that cannot all be right: one of them is damaged, and which one cannot be told."""
    if accepted > drafted:
        return "more tokens accepted than drafted"
    if rate is not None and abs(rate - accepted / drafted) > 0.00051:
        return "accepted, drafted and the acceptance rate contradict each other"
    if length is not None and length < 1:
        return "an accept length below 1 is impossible"
    if any(share > 1 for share in shares) or any(b > a + 0.0011 for a, b in pairwise(shares)):
        return "per-position rates that rise or exceed 1"
    if (
        length is not None
        and shares
        and abs(length - 1 - sum(shares)) > HALF_CENT + 0.0005 * len(shares) + 1e-9
    ):
        return "the mean length and the per-position rates contradict each other"
    return None


def _verify_steps(
    accepted: int, drafted: int, shares: tuple[float, ...], length: float | None
) -> float | None:
    """Verify steps: drafted / positions where every step drafted them all, else from the per-position sum."""
    if shares:
        steps = drafted / len(shares)
        if steps.is_integer() and (length is None or abs(1 + accepted / steps - length) <= HALF_CENT + 1e-9):
            return steps
        if sum(shares) > 0:
            return accepted / sum(shares)
    if length is not None and length > 1:
        return accepted / (length - 1)
    return None


def _counters(fields: dict[str, str], prefix: Prefix) -> Observation | Unparsed:
    names = ("speculative", "accepted", "draft", "emitted")
    if any(f"Number of {name} tokens" not in fields for name in names):
        return Unparsed("metrics that break off")
    k, accepted, drafted, emitted = (int(fields[f"Number of {name} tokens"]) for name in names)
    label = source_label(prefix.label, prefix.pid)
    if k < 1 or accepted > drafted or emitted > drafted // k * (k + 1):
        return Unparsed("counters that contradict each other")
    steps = drafted / k
    idle = drafted == 0
    rate = fields.get("Draft acceptance rate")
    if rate not in (None, "nan") and not idle and abs(float(rate or 0) - accepted / drafted) > 0.00051:
        return Unparsed("accepted, drafted and the acceptance rate contradict each other")
    return Observation(
        source="vllm-v0",
        time=prefix.time,
        label=label,
        accept_length=None if idle else emitted / steps,
        accept_rate=None if idle else accepted / drafted,
        verify_steps=steps,
        accepted=float(accepted),
        proposed=float(drafted),
        idle=idle,
        ranks=prefix.ranks,
        extra={"k": float(k), "emitted": float(emitted)},
    )
