"""Metric: whether the number is read rightly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eagle3lab.diagnosis.framework import check
from eagle3lab.diagnosis.model import Finding, Impact, Severity, seen

if TYPE_CHECKING:
    from eagle3lab.diagnosis.log import Log

_WITH_BONUS = ("len/D", "len/(steps+1)", "len/steps")


@check(
    "E3L-M01",
    "metric.rate-formula",
    severity=Severity.WARNING,
    impact=Impact.NONE,
    effect="Zero acceptance looks like a quarter or a fifth.",
)
def rate_formula(log: Log) -> Iterator[Finding]:
    """The printed accept rate counts the bonus token, so its floor is not zero.

    Seen: The accept length is about 1.00, and the printed rate about 1 / D: the floor of this release's formula.
    Why: SGLang 0.5.3.post2 to 0.5.10 divide accepted drafts plus the bonus token by the draft tokens.
    Effect: 0.25 with four draft tokens means that nothing is accepted; from 0.5.11 on it means a quarter.
    Repair: Read the accept length; the rate of drafts is (length − 1) / (D − 1).
    Sources: SGLang 0.5.9 `scheduler_metrics_mixin.py:369-390`, 0.5.23 `metrics_reporter.py:968-1005`.
    """
    report = log.report
    if report is None or report.accept_length is None or report.accept_rate_reported is None:
        return
    if report.signature.name not in ("dead", "near-dead") or report.reading.formula not in _WITH_BONUS:
        return
    yield Finding(
        f"A rate of {report.accept_rate_reported:.2f} is the floor of this formula: nothing is accepted",
        (
            seen(
                f"the mean accept length is {report.accept_length.mean:.2f}: 1.00 is no draft accepted",
                log.path,
            ),
            seen(report.reading.note),
        ),
        "Read the accept length, or (length − 1) / (draft tokens − 1).",
        confidence=report.reading.confidence,
    )


@check(
    "E3L-M02",
    "metric.no-data",
    severity=Severity.WARNING,
    impact=Impact.NONE,
    effect="Nothing was drafted in these intervals, so nothing was measured.",
)
def no_data(log: Log) -> Iterator[Finding]:
    """Idle intervals are no measurement.

    Seen: Every interval is without drafted tokens: nan, or 0 of 0.
    Why: No request was running.
    Effect: None.
    Repair: Send requests and read again.
    Sources: vLLM `spec_decode/metrics.py`: the rate of an interval without drafts is nan.
    """
    report = log.report
    if report is None or report.signature.name != "no-data" or not report.idle:
        return
    yield Finding(
        "Nothing was measured: every interval is idle",
        (seen(report.signature.reason, log.path),),
        "Send requests and read the log again.",
        confidence=report.signature.confidence,
        severity=Severity.WARNING,
    )
