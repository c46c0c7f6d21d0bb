"""What stands before the message of a log line: colours, process and logger prefixes, time and ranks."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime

_ANSI = re.compile(
    r"\x1b\[[0-9;:?]*[ -/]*[@-~]"  # a real escape sequence
    r"|\[(?:\d{1,3}(?:;\d{1,3})*)?m"  # one whose escape byte a viewer or a copy dropped
)
_TIME = re.compile(r"(\d{4})-(\d\d)-(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,6}))?")
_SHORT_TIME = re.compile(r"(?<!\d)(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?!\d)")
_RANK = re.compile(r"(?<![A-Za-z0-9])((?:ATTN_|MOE_)?(?:DP|TP|PP|EP|CP))(\d{1,5})(?![A-Za-z0-9])")
_PID = re.compile(r"\bpid[=:]\s*(\d{1,10})")

YEARLESS = 2000
"""The year given to times that print none (vLLM): a leap year, so that every day of a year is one."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the head of a line says.

    time: seconds since the epoch as if UTC (logs print local time without a zone), NaN when absent.
    ranks: e.g. {"DP": 0, "TP": 1}.
    pid: process id, when printed.
    """

    time: float
    ranks: dict[str, int]
    pid: int | None

    @property
    def label(self) -> str:
        """`DP0 TP1`, in the order DP, PP, CP, TP, EP that SGLang prints."""
        return " ".join(f"{name}{rank}" for name, rank in self.ranks.items())


def strip_colours(text: str) -> str:
    """`text` without ANSI colour sequences, with their escape byte or without it."""
    if "[" not in text or ("\x1b" not in text and "m" not in text):
        return text
    return _ANSI.sub("", text)


def parse_prefix(head: str) -> Prefix:
    """Read time, ranks and process id from the part of a line before its message."""
    ranks: dict[str, int] = {}
    for name, number in _RANK.findall(head.replace("_TP", " TP").replace("_EP", " EP").replace("_PP", " PP")):
        ranks.setdefault(name, int(number))
    pid = _PID.search(head)
    return Prefix(_time(head), ranks, int(pid[1]) if pid else None)


def _time(head: str) -> float:
    nan = float("nan")
    if match := _TIME.search(head):
        year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
        micro = int((match[7] or "0").ljust(6, "0"))
    elif match := _SHORT_TIME.search(head):
        month, day, hour, minute, second = (int(part) for part in match.groups())
        year, micro = YEARLESS, 0
    else:
        return nan
    try:
        return datetime(year, month, day, hour, minute, second, micro, tzinfo=UTC).timestamp()
    except ValueError:
        return nan
