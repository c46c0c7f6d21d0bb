"""What one line of a log says: decode lines, metrics, timings of a request, figures of a script, events.

A field is read only when its whole value has the form that the engine prints (two decimals, a whole number): a damaged
number makes the line unparsed, it is never repaired.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from itertools import pairwise

from eagle3lab.acceptance.formulas import HALF_CENT
from eagle3lab.acceptance.lines import Line, Prefix, Unwrapper, parse_prefix
from eagle3lab.acceptance.observations import (
    LENGTH,
    NAN,
    SHARES,
    Event,
    Figures,
    Observation,
    Unparsed,
    figure_of,
    measurement,
)

Said = Observation | Event | Unparsed | None

_QUOTES = re.compile(r"['\"{}]")


def parse_line(text: str) -> Said:
    """What a raw line says, without the context of its log; None when it says nothing about acceptance."""
    for line in Unwrapper().unwrap(text, 1):
        found = said(line)
        if found is None:
            found = _figures(line.text)
        if found is not None:
            return found
    return None


def said(line: Line) -> Said:
    """What a line of an engine says; None when it is none, or says nothing about acceptance."""
    for read in _READERS:
        if (found := read(line.head, line.text)) is not None:
            return found
    return None


# --- SGLang ---------------------------------------------------------------------------------------------------------

_DECODE = re.compile(r"Decode batch(?:\.| \[(\d{1,18})\],|,) ")
_HEAD_END = re.compile(r"(?:^|[\])>|:]|\s-|\s[A-Z]+|:\d+)\s*$")
_CENTS = re.compile(r"\d{1,4}\.\d\d")
_COUNT = re.compile(r"\d{1,15}")
_DECIMAL = re.compile(r"\d{1,15}\.\d{1,6}")
_GRAPH = re.compile(r"[a-z]{1,12} graph")

_NUMBERS: dict[str, re.Pattern[str]] = {
    "#running-req": _COUNT,
    "#token": _COUNT,
    "accept len": _CENTS,
    "accept rate": _CENTS,
    "cap len": _CENTS,
    "block accept len": _CENTS,
    "spec tokens": _COUNT,
    "spec rounds": _COUNT,
    "gen throughput (token/s)": _DECIMAL,
    "#cache_miss": _COUNT,
}


def decode_line(before: str, text: str) -> Observation | Unparsed | None:
    """An SGLang decode line, whole or as an excerpt that begins with "accept len"; None when it is neither.

    Args:
        before: The head that was taken off the line.
        text: The rest.
    """
    match = _DECODE.search(text)
    if match is not None:
        head, body = text[: match.start()], text[match.end() :]
        if len(head) > 400 or _QUOTES.search(head) or not _HEAD_END.search(head):
            return Unparsed("a decode line quoted inside another line")
    else:
        at = text.find("accept len: ")
        if at < 0:
            return Unparsed("damaged accept fields") if "accept len" in text else None
        head, body = text[:at], text[at:]
        if head.strip() and not head.rstrip().endswith(("]", ")")):
            return Unparsed("accept fields outside a decode line")
    lengths = body.count("accept len") - body.count(", block accept len: ")
    if lengths != body.count(", accept len: ") + body.startswith("accept len: "):
        return Unparsed("damaged accept fields")
    if lengths > 1:
        return Unparsed("two decode lines run together")
    fields = _fields(body)
    if isinstance(fields, Unparsed):
        return fields
    return _decoded(before + head, body, fields, match[1] if match else None)


def _fields(body: str) -> dict[str, str] | Unparsed:
    fields: dict[str, str] = {}
    for item in body.rstrip().rstrip(",").split(", "):
        name, colon, value = item.partition(": ")
        name = name.strip()
        if not colon:
            continue
        form = _NUMBERS.get(name)
        if form is not None and not form.fullmatch(value):
            if name.startswith("accept "):
                return Unparsed(f"the value of '{name}' is damaged")
            continue  # another field's damage does not touch the accept length
        if name in fields and name.startswith("accept "):
            return Unparsed(f"'{name}' stands twice")
        fields[name] = value
    return fields


def _decoded(head: str, body: str, fields: dict[str, str], iteration: str | None) -> Observation | Unparsed:
    prefix = parse_prefix(head)
    length, rate = fields.get("accept len"), fields.get("accept rate")
    if "accept rate" in body and rate is None:
        return Unparsed("damaged accept fields")
    throughput = fields.get("gen throughput (token/s)")
    if length is None and throughput is None:
        return Unparsed("a decode line that breaks off")
    if length is not None and float(length) < 1:
        return Unparsed("an accept length below 1 is impossible")
    if rate is not None and float(rate) > 1:
        return Unparsed("an accept rate above 1 is impossible")
    graph = next((name for name in fields if _GRAPH.fullmatch(name)), None)
    running, tokens = fields.get("#running-req"), fields.get("#token")
    rounds, kept = int(fields.get("spec rounds", 0)), int(fields.get("spec tokens", 0))
    exact = rounds > 0 and kept >= rounds and length is not None
    if exact and abs(kept / rounds - float(length or 0)) > HALF_CENT + 1e-9:
        return Unparsed("spec tokens, spec rounds and the accept length contradict each other")
    return Observation(
        source="sglang-jax" if "#cache_miss" in fields else "sglang",
        time=prefix.time,
        label=prefix.label,
        accept_length=kept / rounds if exact else float(length) if length else None,
        accept_rate=float(rate) if rate else None,
        verify_steps=float(rounds) if exact else None,
        running=int(running) if running else None,
        tokens=int(tokens) if tokens else None,
        throughput=float(throughput) if throughput else None,
        graph_label=graph,
        graph={"True": True, "False": False}.get(fields[graph]) if graph else None,
        iteration=int(iteration) if iteration else None,
        speculating=length is not None,
        ranks=prefix.ranks,
        extra={name: float(fields[name]) for name in ("cap len", "block accept len") if name in fields},
    )


_CORRECT = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num")
_PROPOSED = ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num")
HISTOGRAMS = ("spec_correct_drafts_histogram", "spec_accept_histogram")
"""Verify steps by the number of drafts accepted in them, as 0.5.23 and 0.5.9 name it; equal where both are given."""


def request(meta: dict[str, object], *, time: float = NAN) -> Observation | Unparsed:
    """One request's `meta_info`, answered at `time`.

    Its own accept length, completion_tokens / verify steps, counts the token of the prefill too; where the
    accepted drafts are given the length is 1 + accepted / verify steps, which is exactly 1 for none accepted.
    Names by release: `spec_accept_token_num`/`spec_draft_token_num` up to 0.5.10, `spec_accepted_drafts`/
    `spec_proposed_drafts` from 0.5.11, `spec_num_correct_drafts`/`spec_num_proposed_drafts` from 0.5.12
    (srt/managers/tokenizer_manager.py of 0.5.9 and 0.5.23).
    """
    steps = _plain(meta.get("spec_verify_ct"))
    if steps is None or steps < 0 or 0 < steps < 1:
        return Unparsed("spec_verify_ct is not a count")
    if steps == 0:
        return Observation("sglang-request", time, "", idle=True)
    accepted, proposed, histogram = (
        next((meta[name] for name in names if name in meta), None)
        for names in (_CORRECT, _PROPOSED, HISTOGRAMS)
    )
    completion, printed = _plain(meta.get("completion_tokens")), _plain(meta.get("spec_accept_length"))
    if completion is not None and completion < 0:
        return Unparsed("a request without a usable accept length")
    length = printed if printed is not None else completion / steps if completion is not None else None
    counts = [_plain(one) for one in histogram] if isinstance(histogram, list) else []
    whole = bool(counts) and len(counts) <= 65 and all(one is not None and one >= 0 for one in counts)
    found = measurement(
        Figures(
            length=None if _plain(accepted) is not None else length,
            steps=steps,
            accepted=_plain(accepted),
            proposed=_plain(proposed),
            histogram=tuple(one or 0.0 for one in counts)
            if whole and sum(one or 0 for one in counts) == steps
            else (),
        ),
        "sglang-request",
        time=time,
    )
    usable = isinstance(found, Observation) and (found.accept_length or 0) >= 1
    return (
        found  # type: ignore[return-value]
        if usable or isinstance(found, Unparsed)
        else Unparsed("a request without a usable accept length")
    )


def _plain(value: object) -> float | None:
    """A number as JSON writes it, None for a string of digits too."""
    from eagle3lab.acceptance.observations import number

    return None if isinstance(value, str) else number(value)


_ANSWER = re.compile(r"out=(?=\{)|'meta_info': (?=\{)")


def finish_line(before: str, text: str) -> Observation | Unparsed | None:
    """SGLang's log of a finished request (`--log-requests`): `Finish: obj=…, out={'meta_info': {…}}`."""
    if "spec_verify_ct" not in text or "Finish: " not in text[:200]:
        return None
    for match in list(_ANSWER.finditer(text))[::-1]:  # what is quoted before the last is the user's
        meta: object = None
        try:
            meta = ast.literal_eval(_balanced(text[match.end() : match.end() + (1 << 20)]))
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        meta = meta.get("meta_info", meta) if isinstance(meta, dict) else None
        if isinstance(meta, dict) and "spec_verify_ct" in meta:
            return request(meta, time=parse_prefix(before).time)
    return Unparsed("a finished request whose figures cannot be read")


def _balanced(text: str) -> str:
    """The Python dictionary that `text` begins with."""
    depth, quote, escaped = 0, "", False
    for place, char in enumerate(text):
        if quote:
            escaped, quote = (not escaped and char == "\\"), "" if char == quote and not escaped else quote
        elif char in "'\"":
            quote = char
        elif char in "{[(":
            depth += 1
        elif char in "}])":
            depth -= 1
            if depth == 0:
                return text[: place + 1]
    return text


# --- vLLM -----------------------------------------------------------------------------------------------------------
# V1 prints one interval a line; the names are vLLM's: "mean acceptance length" is our accept length (bonus included),
# "draft acceptance rate" our true accept rate, "per-position acceptance rate" our unconditional share per position.
# V0 prints counters since the start, which the reader turns into intervals.

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


def metrics_line(before: str, text: str) -> Observation | Unparsed | None:
    """A line of SpecDecoding metrics (V1) or Speculative metrics (V0); None when it is neither."""
    for marker, forms, read in (
        ("SpecDecoding metrics: ", _FORMS, _interval),
        ("Speculative metrics: ", _FORMS_V0, _counters),
    ):
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
        return read(fields, parse_prefix(before + head))
    return Unparsed("damaged metrics") if "SpecDecoding metrics" in text else None


def _interval(fields: dict[str, str], prefix: Prefix) -> Observation | Unparsed:
    if "Accepted" not in fields or "Drafted" not in fields:
        return Unparsed("metrics that break off")
    accepted, drafted = (int(fields[name].split()[0]) for name in ("Accepted", "Drafted"))
    if drafted == 0:
        if accepted:
            return Unparsed("tokens accepted of none drafted")
        return Observation(
            "vllm", prefix.time, prefix.label, accepted=0.0, proposed=0.0, idle=True, ranks=prefix.ranks
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
    return Observation(
        source="vllm",
        time=prefix.time,
        label=prefix.label,
        accept_length=1 + accepted / steps if steps else float(length) if length else None,
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
    if k < 1 or accepted > drafted or emitted > drafted // k * (k + 1):
        return Unparsed("counters that contradict each other")
    steps = drafted / k
    idle = drafted == 0
    rate = fields.get("Draft acceptance rate")
    if rate not in (None, "nan") and not idle and abs(float(rate or 0) - accepted / drafted) > 0.00051:
        return Unparsed("accepted, drafted and the acceptance rate contradict each other")
    if not idle and emitted < steps:
        return Unparsed("fewer tokens emitted than steps verified")
    return Observation(
        source="vllm-v0",
        time=prefix.time,
        label=prefix.label,
        accept_length=None if idle else emitted / steps,
        accept_rate=None if idle else accepted / drafted,
        verify_steps=steps,
        accepted=float(accepted),
        proposed=float(drafted),
        idle=idle,
        ranks=prefix.ranks,
        extra={"k": float(k), "emitted": float(emitted)},
    )


# --- llama.cpp, scripts and benchmarks ------------------------------------------------------------------------------

_LLAMA = re.compile(
    r"draft acceptance\s*=\s*(?P<rate>[01]\.\d+) "
    r"\(\s*(?P<accepted>\d{1,15}) accepted /\s*(?P<drafted>\d{1,15}) generated\)"
    r"(?:, mean acceptance length\s*=\s*(?P<length>\d{1,4}\.\d+))?"
    r"(?:, acceptance rate per position\s*=\s*\((?P<shares>[01]\.\d+(?:, [01]\.\d+)*)\))?\s*$"
)


def llama_line(before: str, text: str) -> Observation | Unparsed | None:
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
    if steps is None and shares and sum(shares) > 0:
        steps = accepted / sum(shares)
    return Observation(
        source="llama.cpp",
        time=parse_prefix(before).time,
        label="",
        accept_length=None if not drafted else 1 + accepted / steps if steps else length,
        accept_rate=accepted / drafted if drafted else None,
        verify_steps=steps,
        accepted=float(accepted),
        proposed=float(drafted),
        per_position=shares,
        idle=drafted == 0,
    )


_PAIR = re.compile(
    r"[|\s*>+-]{0,20}(?P<name>#?[A-Za-z][A-Za-z0-9 _/().%#-]{1,60}?)\s*[:=|]\s*"
    r"(?P<value>-?\d{1,15}(?:\.\d{1,16})?)\s?(?P<percent>%?)(?P<unit> ?[A-Za-z/]{0,10})(?=\s*(?:[,;|]|$))[,;|]?"
)
_POSITION = re.compile(
    r"[|\s*>-]{0,20}(?:acceptance (?:rate )?at (?:token|position)|position|pos) ?(?P<index>\d{1,2})\s*[:=|]\s*"
    r"(?P<share>\d{1,3}(?:\.\d{1,16})?)\s?(?P<percent>%?)\s*\|?\s*",
    re.IGNORECASE,
)
_LIST = re.compile(
    r"\s*(?P<name>[A-Za-z][A-Za-z0-9 _-]{1,60}?)(?P<percent> ?\(%\))?\s*[:=]\s*[\[(](?P<values>[\d., ]{1,1000})[\])]\s*"
)
_HEADING = re.compile(r"\s*per[- ]position acceptance[^:]{0,30}?(?P<percent>\(%\))?:?\s*$", re.IGNORECASE)
_LOOKS = re.compile(r"(?i)accept(?:ance)? len(?:gth)?\s*[:=]")
SEPARATOR = re.compile(r"\s*(?:[-=*#_]{4,}.*|)$")
"""A line that divides a report, or an empty one."""


def figures_line(text: str) -> dict[str, object] | None:
    """The figures that a line of a script or benchmark prints as `label: number`, by `figure_of`'s names.

    A share by position is under its number, 0-based; a heading of such shares is an empty dictionary, or
    `{"percent": True}`. None where the line is no such line; unknown labels alone give an empty dictionary.
    """
    if match := _AVERAGE.match(text):  # trtllm-bench: tokens a step, under the name of a rate
        return {LENGTH: float(match[1])}
    if match := _POSITION.fullmatch(text):
        share = float(match["share"])
        return {match["index"]: share / 100 if match["percent"] else share}
    if match := _HEADING.fullmatch(text):
        return {"percent": True} if match["percent"] else {}
    if (match := _LIST.fullmatch(text)) and figure_of(match["name"]) == SHARES:
        values = [float(one) for one in match["values"].replace(",", " ").split() if one.count(".") <= 1]
        return {SHARES: [one / 100 for one in values] if match["percent"] else values}
    found: dict[str, object] = {}
    at, known = 0, False
    while match := _PAIR.match(text, at):
        at, known = match.end(), True
        name = match["name"].strip()
        if (figure := figure_of(name)) is not None and match["unit"].strip() in (
            "",
            "tokens",
            "tok",
            "drafts",
        ):
            percent = match["percent"] or "%" in name
            found.setdefault(figure, float(match["value"]) / 100 if percent else float(match["value"]))
    if not known or text[at:].strip(" ,;|"):
        # After words of its own a line may end in the figure: "Throughput: 3 tok/s, Acceptance length: 2".
        tail = text.rpartition(", ")[2]
        if tail != text and (match := _PAIR.fullmatch(tail)) and figure_of(match["name"].strip()) == LENGTH:
            return {LENGTH: float(match["value"])}
        return None
    return found


_CELL = re.compile(r"\s*[|│,\t]\s*")
_AVERAGE = re.compile(r"\[AR\] AVERAGE\s*: (\d{1,4}\.\d{1,6})\s*$")


def cells(text: str) -> list[str]:
    """The cells of a row of a table: Markdown, CSV, tabs or drawn lines."""
    return _CELL.split(text.strip().strip("|│").strip())


def table_columns(text: str) -> list[str | None] | None:
    """For the head of a table with an accept length in it, which figure each column holds; None for other lines."""
    names = cells(text)
    if not 3 <= len(names) <= 80 or any(re.match(r"[-\d.]*$", name) for name in names):
        return None
    found = [figure_of(name) for name in names]
    return found if LENGTH in found else None


def looks_like_length(text: str) -> bool:
    """Whether a line seems to print an accept length in a form that is not read."""
    return _LOOKS.search(text) is not None


def _figures(text: str) -> Observation | Unparsed | None:
    """The figures of one line by themselves, for `parse_line`."""
    found = figures_line(text)
    if not found or LENGTH not in found:
        return (
            Unparsed("an accept length that cannot be read")
            if found is None and _LOOKS.search(text)
            else None
        )
    figures = Figures.of(found)
    return figures if isinstance(figures, Unparsed) else measurement(figures)


# --- Events ---------------------------------------------------------------------------------------------------------

_MARKERS = (
    ("The server is fired up and ready to roll!", "ready"),
    ("speculative_num_draft_tokens is adjusted to speculative_num_steps + 1", "draft_tokens_adjusted"),
    ("Traceback (most recent call last):", "traceback"),
    ("EAGLE model with distinct embed_tokens weights", "embed_distinct"),
    ("EAGLE model with embed_tokens identical to the target model", "embed_shared"),
)
_AUX = re.compile(r"Using auxiliary layers from speculative config: \((\d{1,4}(?:, \d{1,4})*),?\)")
_ERROR = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:: .*)?")
_ARGUMENTS = {
    "model_path": str,
    "speculative_algorithm": str,
    "speculative_draft_model_path": str,
    "speculative_num_steps": int,
    "speculative_eagle_topk": int,
    "speculative_num_draft_tokens": int,
    "tp_size": int,
    "dp_size": int,
    "ep_size": int,
    "pp_size": int,
    "decode_log_interval": int,
}
_ARGUMENT = re.compile(
    r"(?:(?<=[(, {])'?)(?P<name>" + "|".join(_ARGUMENTS) + r")'?(?:=|: )"
    r"(?P<value>None|\d{1,9}(?![\d.])|'(?:[^'\\]|\\.){0,4096}'|\"(?:[^\"\\]|\\.){0,4096}\")"
)
_SERVER_ARGS = re.compile(r"(?:^|[\]:>)] )server_args=(?:ServerArgs\(|\{)")
_VLLM_START = re.compile(r"Initializing an? (?:V1 )?LLM engine \(v(?P<release>[\w.+-]{1,80})\)")
_VLLM_VALUE = re.compile(
    r"(?P<name>(?<![\w.])model|method|num_spec_tokens|num_speculative_tokens|tensor_parallel_size)"
    r"=(?P<value>'[^'\n]{0,4096}'|\d{1,9}|None)"
)


def event_line(before: str, text: str) -> Event | None:
    """The event that a line reports, or None."""
    if match := _SERVER_ARGS.search(text):
        return Event(
            "server_args", *_where(before + text[: match.start() + 1]), values=_arguments(text, match.end())
        )
    if (match := _VLLM_START.search(text)) and match.start() <= 400:
        return Event(
            "engine_start", *_where(before + text[: match.start()]), values=_vllm_values(text, match)
        )
    for marker, kind in _MARKERS:
        at = text.find(marker)
        if 0 <= at <= 400:
            prefix = parse_prefix(before + text[:at])
            ranks: dict[str, object] = dict(prefix.ranks)
            return Event(kind, prefix.time, prefix.label, values=ranks)
    if match := _AUX.search(text):
        ids = tuple(int(part) for part in match[1].split(", "))
        return Event("aux_layers", NAN, "", values={"ids": ids})
    return None


def _where(head: str) -> tuple[float, str]:
    prefix = parse_prefix(head)
    return prefix.time, prefix.label


def _arguments(text: str, start: int) -> dict[str, object]:
    """What SGLang starts with, as it resolved it: `server_args=ServerArgs(…)` or, later, a dict."""
    values: dict[str, object] = {}
    for argument in _ARGUMENT.finditer(text, start - 1):
        name, raw = argument["name"], argument["value"]
        if raw == "None":
            values.setdefault(name, None)
        elif _ARGUMENTS[name] is int and raw.isdecimal():
            values.setdefault(name, int(raw))
        elif _ARGUMENTS[name] is str and raw[0] in "'\"":
            values.setdefault(name, raw[1:-1])
    return values


def _vllm_values(text: str, start: re.Match[str]) -> dict[str, object]:
    """What vLLM starts with, by the names of SGLang's arguments: release, method, draft tokens, models."""
    values: dict[str, object] = {"release": start["release"]}
    config = text[start.end() : start.end() + 20_000]
    speculative = config.partition("speculative_config=")[2]
    if speculative.startswith("None"):
        values["speculative_algorithm"] = None
    for where, inside in ((config.partition("speculative_config=")[0], False), (speculative, True)):
        for match in _VLLM_VALUE.finditer(where.partition(")")[0] if inside else where):
            name, raw = match["name"], match["value"].strip("'")
            if name == "model":
                values.setdefault("speculative_draft_model_path" if inside else "model_path", raw)
            elif name == "method" and inside:
                values.setdefault("speculative_algorithm", raw)
            elif name.startswith("num_spec") and raw.isdecimal() and 0 < int(raw) < 1024:
                values.setdefault("speculative_num_steps", int(raw))
                values.setdefault("speculative_num_draft_tokens", int(raw) + 1)
    if (ranks := re.search(r"tensor_parallel_size=(\d{1,5})", config)) is not None:
        values["tp_size"] = int(ranks[1])
    return values


def error_of_traceback(text: str) -> str | None:
    """The exception that ends a traceback, when this line is that; frames are indented."""
    if (
        not text
        or text[0].isspace()
        or text.startswith(("Traceback", "During handling", "The above exception"))
    ):
        return None
    return text if _ERROR.fullmatch(text) else None


_READERS: tuple[Callable[[str, str], Said], ...] = (
    finish_line,
    decode_line,
    metrics_line,
    llama_line,
    event_line,
)
