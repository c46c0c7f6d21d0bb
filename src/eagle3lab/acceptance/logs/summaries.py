"""One-off figures: the end of a benchmark or script, llama.cpp's timings, and per-request JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from eagle3lab.acceptance.counts import LARGEST, MAX_POSITIONS
from eagle3lab.acceptance.logs.observations import Observation, Unparsed

NAN = float("nan")

_LENGTH = re.compile(
    r"(?:.{0,200}, )?(?:mean acceptance length|Mean acceptance length|Acceptance length|Accept length"
    r"|Average Accept length|Average accept length):\s+(?P<length>\d{1,4}\.\d{1,16})\s*"
)
_LOOKS = re.compile(r"(?i)accept(?:ance)? length\s*[:=]")
_POSITION = re.compile(r"acceptance at token (?P<index>\d{1,2}):\s*(?P<share>[01]\.\d{1,16})\s*")
_LLAMA = re.compile(
    r"draft acceptance\s*=\s*(?P<rate>[01]\.\d+) "
    r"\(\s*(?P<accepted>\d{1,15}) accepted /\s*(?P<drafted>\d{1,15}) generated\)"
    r"(?:, mean acceptance length\s*=\s*(?P<length>\d{1,4}\.\d+))?"
    r"(?:, acceptance rate per position\s*=\s*\((?P<shares>[01]\.\d+(?:, [01]\.\d+)*)\))?\s*$"
)


def summary_line(text: str) -> Observation | Unparsed | None:
    """The accept length that a benchmark or script prints at its end."""
    match = _LENGTH.fullmatch(text)
    if match is None:
        return Unparsed("an accept length that cannot be read") if _LOOKS.search(text) else None
    length = float(match["length"])
    if length < 1:
        # Some scripts leave the bonus token out; adding it on a guess would invent a number.
        return Unparsed("an accept length below 1: printed without the bonus token, or damaged")
    return Observation("summary", NAN, "", accept_length=length)


def position_line(text: str) -> tuple[int, float] | None:
    """`acceptance at token 2:0.13` as (0-based draft position, share of verify steps)."""
    match = _POSITION.fullmatch(text)
    if match is None or float(match["share"]) > 1 or int(match["index"]) >= MAX_POSITIONS:
        return None
    return int(match["index"]), float(match["share"])


def llama_line(text: str) -> Observation | Unparsed | None:
    """llama.cpp's print_timing line of one request."""
    if "draft acceptance" not in text:
        return None
    match = _LLAMA.search(text)
    if match is None:
        return Unparsed("damaged draft acceptance") if "draft acceptance =" in text else None
    accepted, drafted = int(match["accepted"]), int(match["drafted"])
    if accepted > drafted or (drafted and abs(accepted / drafted - float(match["rate"])) > 1e-4):
        return Unparsed("accepted, generated and the rate contradict each other")
    length = float(match["length"]) if match["length"] else None
    if length is not None and length < 1:
        return Unparsed("an accept length below 1 is impossible")
    shares = tuple(float(share) for share in match["shares"].split(", ")) if match["shares"] else ()
    if length is not None and shares and abs(length - 1 - sum(shares)) > 0.005 + 0.0005 * len(shares) + 1e-9:
        return Unparsed("the mean length and the per-position rates contradict each other")
    steps = accepted / (length - 1) if length and length > 1 else None
    return Observation(
        source="llama.cpp",
        time=NAN,
        label="",
        accept_length=None if not drafted else length,
        accept_rate=accepted / drafted if drafted else None,
        verify_steps=steps,
        accepted=float(accepted),
        proposed=float(drafted),
        per_position=shares,
        idle=drafted == 0,
    )


_YEAR_10000 = 253_402_300_800

_CORRECT = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
"""Verify steps by the number of drafts accepted in them, as 0.5.23 and 0.5.9 name it; equal where both are given."""


def json_line(text: str) -> list[Observation | Unparsed]:
    """Requests (their `meta_info`) or a benchmark's result in a line of JSON; empty when it holds neither.

    Names by release: `spec_accept_token_num`/`spec_draft_token_num` up to 0.5.10, `spec_accepted_drafts`/
    `spec_proposed_drafts` from 0.5.11, `spec_num_correct_drafts`/`spec_num_proposed_drafts` from 0.5.12
    (srt/managers/tokenizer_manager.py of 0.5.9 and 0.5.23).
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return [Unparsed("JSON that cannot be read")]
    items = document if isinstance(document, list) else [document]
    found: list[Observation | Unparsed] = []
    for item in items:
        if not isinstance(item, dict):
            continue
        meta = item.get("meta_info", item)
        if item.get("phase") == "warm-up":  # a run's own requests: these are in no count
            continue
        if isinstance(meta, dict) and "spec_verify_ct" in meta:
            ended = _number(item.get("ended_s"))
            time = NAN if ended is None or not 0 < ended < _YEAR_10000 else ended
            found.append(request(meta, time=time))
        elif "accept_length" in item and item["accept_length"] is not None:
            length = _number(item["accept_length"])
            bad = length is None or length < 1
            found.append(
                Unparsed("an accept length that cannot be read")
                if bad
                else Observation("summary", NAN, "", accept_length=length)
            )
    return found


def request(meta: dict[str, object], *, time: float = NAN) -> Observation | Unparsed:
    """One request's `meta_info`, answered at `time`.

    Its own accept length, completion_tokens / verify steps, counts the token of the prefill too; where the
    accepted drafts are given the length is 1 + accepted / verify steps, which is exactly 1 for none accepted.
    """
    steps = _number(meta.get("spec_verify_ct"))
    if steps is None or steps < 0 or 0 < steps < 1:
        return Unparsed("spec_verify_ct is not a count")
    if steps == 0:
        return Observation("sglang-request", time, "", idle=True)
    accepted = _number(next((meta[name] for name in _CORRECT if name in meta), None))
    proposed = _number(next((meta[name] for name in _PROPOSED if name in meta), None))
    printed = _number(meta.get("spec_accept_length"))
    completion = _number(meta.get("completion_tokens"))
    length = (
        1 + accepted / steps
        if accepted is not None
        else printed
        if printed is not None
        else completion / steps
        if completion is not None
        else None
    )
    negative = any(value is not None and value < 0 for value in (accepted, proposed, completion))
    if length is None or length < 1 or negative:
        return Unparsed("a request without a usable accept length")
    if accepted is not None and proposed is not None and accepted > proposed:
        return Unparsed("more drafts accepted than proposed")
    return Observation(
        source="sglang-request",
        time=time,
        label="",
        accept_length=length,
        accept_rate=accepted / proposed if accepted is not None and proposed else None,
        verify_steps=steps,
        accepted=accepted,
        proposed=proposed,
        per_position=tuple(_shares(meta, steps, round(proposed / steps) if proposed else 0)),
    )


def _shares(meta: dict[str, object], steps: float, drafts: int) -> Iterator[float]:
    """By position, from the histogram, which goes as far as something was accepted and may stop before `drafts`."""
    histogram = next((meta[name] for name in HISTOGRAMS if name in meta), None)
    if not isinstance(histogram, list) or not 1 <= len(histogram) <= MAX_POSITIONS + 1:
        return
    counts = [_number(count) for count in histogram]
    if any(count is None or count < 0 for count in counts) or sum(c or 0 for c in counts) != steps:
        return
    left = steps
    for count in counts[:-1]:
        left -= count or 0
        yield left / steps
    yield from (0.0 for _ in range(len(counts) - 1, min(drafts, MAX_POSITIONS)))


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if abs(number) <= LARGEST else None
