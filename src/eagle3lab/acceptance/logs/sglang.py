"""SGLang's decode lines and start-up lines, one at a time and with care.

The bulk of a large log goes through `fast`; what does not look exactly like the common line comes here.
A field is read only when its whole value has the form that SGLang prints (two decimals, a whole number): a damaged
number makes the line unparsed, it is never repaired.
"""

from __future__ import annotations

import re

from eagle3lab.acceptance.logs.observations import Event, Observation, Unparsed
from eagle3lab.acceptance.logs.prefix import parse_prefix

_DECODE = re.compile(r"Decode batch(?:\.| \[(\d{1,18})\],|,) ")
_HEAD_END = re.compile(r"(?:^|[\])>|:]|\s-|\s[A-Z]+|:\d+)\s*$")
_QUOTES = re.compile(r"['\"{}]")
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
    "gen throughput (token/s)": _DECIMAL,
    "#cache_miss": _COUNT,
}


def decode_line(text: str) -> Observation | Unparsed | None:
    """An SGLang decode line, whole or as an excerpt that begins with "accept len"; None when it is neither."""
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
    return _observation(head, body, fields, match[1] if match else None)


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


def _observation(
    head: str, body: str, fields: dict[str, str], iteration: str | None
) -> Observation | Unparsed | None:
    prefix = parse_prefix(head)
    length = fields.get("accept len")
    rate = fields.get("accept rate")
    if "accept rate" in body and rate is None:
        return Unparsed("damaged accept fields")
    if length is None and "gen throughput (token/s)" not in fields:
        return Unparsed("a decode line that breaks off")
    if length is not None and float(length) < 1:
        return Unparsed("an accept length below 1 is impossible")
    if rate is not None and float(rate) > 1:
        return Unparsed("an accept rate above 1 is impossible")
    graph = next((name for name in fields if _GRAPH.fullmatch(name)), None)
    running = fields.get("#running-req")
    tokens = fields.get("#token")
    return Observation(
        source="sglang-jax" if "#cache_miss" in fields else "sglang",
        time=prefix.time,
        label=source_label(prefix.label, prefix.pid),
        accept_length=float(length) if length else None,
        accept_rate=float(rate) if rate else None,
        running=int(running) if running else None,
        tokens=int(tokens) if tokens else None,
        throughput=float(fields["gen throughput (token/s)"])
        if "gen throughput (token/s)" in fields
        else None,
        graph_label=graph,
        graph={"True": True, "False": False}.get(fields[graph]) if graph else None,
        iteration=int(iteration) if iteration else None,
        speculating=length is not None,
        ranks=prefix.ranks,
        extra={name: float(fields[name]) for name in ("cap len", "block accept len") if name in fields},
    )


def source_label(ranks: str, pid: int | None) -> str:
    """The name of a source of lines: its ranks, and its process where the line names one."""
    return " ".join(part for part in (ranks, f"pid {pid}" if pid is not None else "") if part)


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


def server_args_line(text: str) -> Event | None:
    """The arguments a server starts with, as it resolved them: `server_args=ServerArgs(…)` or, later, a dict."""
    match = _SERVER_ARGS.search(text)
    if match is None:
        return None
    prefix = parse_prefix(text[: match.start()] + text[match.start() : match.start() + 1])
    values: dict[str, object] = {}
    for argument in _ARGUMENT.finditer(text, match.end() - 1):
        name, raw = argument["name"], argument["value"]
        if raw == "None":
            values.setdefault(name, None)
        elif _ARGUMENTS[name] is int and raw.isdecimal():
            values.setdefault(name, int(raw))
        elif _ARGUMENTS[name] is str and raw[0] in "'\"":
            values.setdefault(name, raw[1:-1])
    return Event("server_args", prefix.time, source_label(prefix.label, prefix.pid), values=values)
