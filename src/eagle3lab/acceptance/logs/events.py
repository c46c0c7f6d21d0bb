"""Lines that say what happened to a server: started, ready, settings rewritten, an exception."""

from __future__ import annotations

import re

from eagle3lab.acceptance.logs.observations import Event
from eagle3lab.acceptance.logs.prefix import parse_prefix
from eagle3lab.acceptance.logs.sglang import server_args_line, source_label

SERVES = re.compile(r"fired up and ready to roll|Application startup complete|Decode batch|HTTP/1\.1\" 200")
"""A line that only a living server writes, whichever rank died before: it became ready, or it answered."""

_READY = "The server is fired up and ready to roll!"
_ADJUSTED = "speculative_num_draft_tokens is adjusted to speculative_num_steps + 1"
_TRACEBACK = "Traceback (most recent call last):"
_EMBED_OWN = "EAGLE model with distinct embed_tokens weights"
_EMBED_SHARED = "EAGLE model with embed_tokens identical to the target model"
_AUX = re.compile(r"Using auxiliary layers from speculative config: \((\d{1,4}(?:, \d{1,4})*),?\)")
_ERROR = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:: .*)?")


def event_line(text: str) -> Event | None:
    """The event that a line reports, or None."""
    if (start := server_args_line(text)) is not None:
        return start
    for marker, kind in (
        (_READY, "ready"),
        (_ADJUSTED, "draft_tokens_adjusted"),
        (_TRACEBACK, "traceback"),
        (_EMBED_OWN, "embed_distinct"),
        (_EMBED_SHARED, "embed_shared"),
    ):
        at = text.find(marker)
        if 0 <= at <= 400:
            prefix = parse_prefix(text[:at])
            ranks: dict[str, object] = dict(prefix.ranks)
            return Event(kind, prefix.time, source_label(prefix.label, prefix.pid), values=ranks)
    if match := _AUX.search(text):
        ids = tuple(int(part) for part in match[1].split(", "))
        return Event("aux_layers", float("nan"), "", values={"ids": ids})
    return None


def error_of_traceback(text: str) -> str | None:
    """The exception that ends a traceback, when this line is that; frames are indented."""
    if (
        not text
        or text[0].isspace()
        or text.startswith(("Traceback", "During handling", "The above exception"))
    ):
        return None
    return text if _ERROR.fullmatch(text) else None
