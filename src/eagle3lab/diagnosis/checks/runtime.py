"""Runtime: whether the server's behaviour, or the way its numbers are read, explains them, and not the checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eagle3lab.diagnosis.crash import FAULTS, Crash
from eagle3lab.diagnosis.framework import check
from eagle3lab.diagnosis.inputs import Cleared, Earlier
from eagle3lab.diagnosis.model import Finding, Impact, Severity, seen

if TYPE_CHECKING:
    from eagle3lab.diagnosis.log import Log
    from eagle3lab.engines.launch.reading import Launch


def _shows(log: Log, signature: str) -> bool:
    """Whether acceptance in the log has this signature."""
    return log.observed.signature == signature


@check(
    "E3L-R01",
    "runtime.not-speculating",
    effect="Nothing is drafted: one token per step, as without.",
)
def not_speculating(log: Log) -> Iterator[Finding]:
    """The log has decode lines without accept fields.

    Seen: Decode lines are printed, and none has an accept length.
    Why: No algorithm was given, or the drafter was never loaded.
    Effect: The server decodes as without speculation.
    Repair: Give `--speculative-algorithm EAGLE3` with the drafter's path, and look for accept len in the log.
    Sources: SGLang's decode line: `accept len` is printed whenever a speculative algorithm runs.
    """
    if _shows(log, "not-speculating"):
        yield Finding(
            "The server decodes without drafting",
            (seen(log.observed.reason, log.path),),
            "Add --speculative-algorithm EAGLE3 to the launch command.",
            confidence=log.observed.confidence,
        )


@check(
    "E3L-R02",
    "runtime.crash",
    others=FAULTS,
    impact=Impact.STOPS,
    effect="The server died: nothing is served.",
)
def crash(crash: Crash, log: Log, earlier: Earlier, cleared: Cleared) -> Iterator[Finding]:
    """The server died; the first traceback of any rank is the cause.

    Seen: A traceback in the log, or a line that says that a process ended; whatever stands in front of the lines.
        Later tracebacks and signals of other ranks follow from the first.
    Why: Named by the engine's own words where it stops itself, with file and line of the release; by the exception,
        its values and its frames where Python or torch raise it. Out of memory and the like have no cause in the
        drafter. What accepted drafts before it died was loaded right.
    Effect: Nothing is served.
    Repair: As the exception says; where it points at the checkpoint, as that finding says.
    Sources: The texts of raise and assert statements of every release; `crashes.toml` for what they are about, and
        for exceptions that are not the engine's.
    """
    died = crash.without(cleared)
    if any(one.fault in died.explains for one in earlier):
        return  # ranking adds the traceback to that finding
    place = seen(f"{died.rank or 'the server'}: {died.error}", log.path, line=died.line)
    fault = died.explains[0] if died.alone and died.explains else "runtime.crash"
    can_be = [] if died.alone else [seen(f"it can come from {one}") for one in died.explains]
    yield Finding(
        f"The server died: {died.meaning}",
        (place, *map(seen, died.seen), *can_be),
        died.fix,
        fault=fault,
        confidence=died.sure or (0.8 if died.explains else 0.7),
    )


@check(
    "E3L-R03",
    "runtime.switched-off",
    severity=Severity.WARNING,
    impact=Impact.NONE,
    effect="Under load nothing is drafted; the head itself works.",
)
def switched_off(log: Log) -> Iterator[Finding]:
    """Acceptance is 1.00 only at high concurrency.

    Seen: Intervals with many running requests have an accept length of 1.00, those with few a useful one.
    Why: The engine stops drafting above a batch size, or verification falls back to plain decoding.
    Effect: No gain under load, and averages that hide a working head.
    Repair: Raise the threshold, or measure at the concurrency that matters.
    Sources: SGLang's decode lines: #running-req beside accept len.
    """
    if _shows(log, "switched-off"):
        yield Finding(
            "Drafting stops when many requests run",
            (seen(log.observed.reason, log.path),),
            "Raise the batch size up to which the engine drafts, or look at the intervals with few requests.",
            confidence=log.observed.confidence,
        )


@check(
    "E3L-R04",
    "runtime.degenerate",
    effect="The target's output has collapsed: acceptance says nothing about the drafter.",
)
def degenerate(log: Log) -> Iterator[Finding]:
    """The target's output collapsed.

    Seen: Acceptance was good and fell to nothing at one moment; an output in the log is one character again and again.
    Why: NaN in the target (quantisation, cache, overflow), not the drafter.
    Effect: Both models repeat one token or disagree for ever; the numbers after that moment mean nothing.
    Repair: Look at the target's answers without speculation first.
    Sources: Public reports of runs of exclamation marks: token 0 of the tokenizer is printed for NaN logits.
    """
    if not _shows(log, "collapse"):
        return
    evidence = [seen(log.observed.reason, log.path)]
    if log.repeated:
        character, line = log.repeated
        evidence.append(
            seen(f"an output is the character {character!r} again and again", log.path, line=line)
        )
    yield Finding(
        "Acceptance fell to nothing at one moment"
        + (", and the target repeats one character" if log.repeated else ""),
        tuple(evidence),
        "Check the target's output without speculation; restart the server.",
        confidence=0.95 if log.repeated else 0.7,
        severity=Severity.ERROR if log.repeated else Severity.WARNING,
    )


@check(
    "E3L-R05",
    "runtime.drift",
    severity=Severity.WARNING,
    impact=Impact.NONE,
    effect="The head is as good as at the start; what it is fed gets worse.",
)
def drift(log: Log, launch: Launch | None) -> Iterator[Finding]:
    """Acceptance falls with uptime or with context length.

    Seen: The accept length falls steadily or in steps while the server runs.
    Why: Stale cache entries, growing contexts, or a change of the requests; the checkpoint does not change.
    Effect: A good head looks weak in averages over hours.
    Repair: Restart, serve without prefix caching, and compare; look at context lengths over time.
    Sources: `eagle3lab.acceptance`: trend and change points.
    """
    dip = log.dip
    if not _shows(log, "drift") and dip is None:
        return
    caching = launch is not None and launch.has("enable-prefix-caching")
    shown = (
        f"{dip[0]:.2f} tokens a step, then {dip[1]:.2f}, and {dip[2]:.2f} again: the same head all the while"
        if dip
        else log.observed.reason
    )
    yield Finding(
        "Acceptance is lost while the server runs, and comes back"
        if dip
        else "Acceptance falls while the server runs",
        (
            seen(shown, log.path),
            *([seen("--enable-prefix-caching is given")] if caching else []),
        ),
        "Look at what happened in between: the cache's state, context lengths, another kind of requests."
        if dip
        else "Restart without prefix caching and compare; look at context lengths over time.",
        confidence=0.85 if dip else log.observed.confidence,
    )


_CACHES = (
    "enable-hierarchical-cache", "hicache-ratio", "hicache-size", "enable-lmcache", "disaggregation-mode",
    "enable-prefix-caching", "kv-transfer-config", "kv-offloading-size",
)  # fmt: skip


@check(
    "E3L-R06",
    "runtime.cache",
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="Where the target's cache is restored and the drafter's is not, the drafter attends to nothing useful.",
)
def cache(log: Log, launch: Launch) -> Iterator[Finding]:
    """Acceptance is lost while cached prefixes are served from another place.

    Seen: The log shows a stretch of poor acceptance between good ones, or a fall, and the command keeps caches in
        another tier, hands them over between servers, or shares prefixes.
    Why: Hierarchical caches and transfers were made for the target's keys and values; the drafter's are not always
        restored with them.
    Effect: Requests with a restored prefix are drafted badly until the cache is flushed.
    Repair: Serve once without that cache, or flush it, and compare.
    Sources: sgl-project/sglang#32176, #31600.
    """
    given = [option for option in _CACHES if launch.has(option)]
    dip = log.dip
    if dip is None:  # a shared prefix alone is no more than a remark on a fall
        given = [option for option in given if option != "enable-prefix-caching"]
    if not given or (dip is None and not _shows(log, "drift") and not _shows(log, "collapse")):
        return
    shown = (
        f"{dip[0]:.2f} tokens a step, then {dip[1]:.2f}, and {dip[2]:.2f} again"
        if dip
        else log.observed.reason
    )
    yield Finding(
        f"Acceptance is lost while the server runs with --{given[0]}",
        (seen(shown, log.path), *(seen(f"--{option} is given") for option in given[:3])),
        f"Serve once without --{given[0]} and compare; flushing the cache should bring acceptance back.",
        confidence=0.9 if dip else 0.7,
    )


# ---- metric: whether the number is read rightly ---------------------------------------------------------------------

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
