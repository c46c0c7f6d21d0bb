"""What a check is: a function with a code, a fault, the inputs it needs, and a docstring that is its page.

The docstring has a title line and the parts Seen, Why, Effect, Repair and Sources; `page` reads them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from eagle3lab.diagnosis.evidence.investigation import Investigation
from eagle3lab.diagnosis.model import Evidence, Finding, Impact, Severity

PARTS = ("Seen", "Why", "Effect", "Repair", "Sources")


class SkipCheck(Exception):
    """Raised by a check that cannot be done; its text is the reason."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a check yields; what is None is taken from the check.

    Attributes:
        title: One line.
        evidence: What was seen, the deciding things first.
        fix: The one change that repairs it.
        confidence: 0 to 1.
        severity: See `Severity`.
        impact: See `Impact`.
        effect: What it does to acceptance.
        fault: The slug, for checks that can find several.
    """

    title: str
    evidence: tuple[Evidence, ...]
    fix: str
    confidence: float = 1.0
    severity: Severity | None = None
    impact: Impact | None = None
    effect: str | None = None
    fault: str | None = None


CheckFunction = Callable[[Investigation], Iterator[Found]]


@dataclass(frozen=True, slots=True)
class Page:
    """A check's docstring, taken apart for the book: each part is Markdown."""

    title: str
    parts: dict[str, str]


@dataclass(frozen=True, slots=True)
class Check:
    """One check.

    Attributes:
        code: Stable, such as E3L-N01.
        fault: The slug it looks for.
        others: Further slugs it can find.
        needs: Inputs without which it is skipped: keys of `NEEDS`.
        engine: The engine it is about; None for any.
        after: Faults that make it moot once found.
        severity: Of its findings, unless they say otherwise.
        impact: Likewise.
        effect: Likewise: what the fault does to acceptance, in one sentence.
        run: The function.
    """

    code: str
    fault: str
    others: tuple[str, ...]
    needs: tuple[str, ...]
    engine: str | None
    after: tuple[str, ...]
    severity: Severity
    impact: Impact
    effect: str
    run: CheckFunction

    @property
    def page(self) -> Page:
        """Its docstring as title and parts."""
        text = inspect.cleandoc(self.run.__doc__ or "")
        title, _, rest = text.partition("\n")
        pieces = re.split(rf"^({'|'.join(PARTS)}): ", rest, flags=re.MULTILINE)
        parts = {name: " ".join(body.split()) for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}
        return Page(title.rstrip("."), parts)

    def finding(self, found: Found) -> Finding:
        """A `Found` with the check's own fields filled in."""
        return Finding(
            fault=found.fault or self.fault,
            code=self.code,
            severity=found.severity or self.severity,
            confidence=found.confidence,
            title=found.title,
            evidence=found.evidence,
            effect=found.effect or self.effect,
            fix=found.fix,
            impact=found.impact or self.impact,
        )

    def obstacle(self, case: Investigation) -> str | None:
        """Why it cannot be done; None if it can."""
        if self.engine is not None and (case.engine is None or case.engine.kind != self.engine):
            named = f"the engine is {case.engine}" if case.engine else "the engine is not known"
            return f"concerns {self.engine}; {named}"
        for need in self.needs:
            if (reason := NEEDS[need](case)) is not None:
                return reason
        earlier = [finding.code for finding in case.found if finding.fault in self.after]
        return f"moot until {', '.join(sorted(set(earlier)))} is repaired" if earlier else None


def _need_drafter(case: Investigation) -> str | None:
    if case.drafter_path is None:
        return "no drafter given"
    if case.drafter is None:
        return "the drafter's files cannot be read"
    return None if case.names else "the drafter's folder holds no weights"


def _need_config(case: Investigation) -> str | None:
    if case.drafter_path is None:
        return "no drafter given"
    return None if case.config is not None else "the drafter's config.json cannot be read as a drafter's"


def _need_target(case: Investigation) -> str | None:
    if case.target_path is None:
        return "no target config given"
    return None if case.target is not None else "the target's config.json cannot be read"


def _need_atlas(case: Investigation) -> str | None:
    return None if case.release is not None else case.release_note


def _need_release(case: Investigation) -> str | None:
    return None if case.engine is not None and case.engine.number else "no engine release given"


def _need_facts(case: Investigation) -> str | None:
    return None if case.facts is not None else case.facts_note


def _need_load(case: Investigation) -> str | None:
    if case.load is not None:
        return None
    return _need_drafter(case) or _need_config(case) or _need_facts(case) or case.load_note


def _need_any_load(case: Investigation) -> str | None:
    if case.engine is None or case.engine.kind != "vllm":
        return _need_load(case)
    if case.vllm_load is not None:
        return None
    return _need_drafter(case) or _need_config(case) or case.vllm_load_note


def _need_capture(case: Investigation) -> str | None:
    if case.capture is not None:
        return None
    if case.target is not None and case.target.layers is None:
        return "the target states no number of layers"
    unread = "what this release does with this target was not understood"
    return _need_config(case) or _need_atlas(case) or _need_target(case) or unread


def _need_map(case: Investigation) -> str | None:
    if case.proven_ids is not None or case.token_map is not None:
        return None
    return _need_drafter(case) or _need_config(case) or case.map_note


def _need_launch(case: Investigation) -> str | None:
    return None if case.launch is not None else "no launch command given"


def _need_algorithm(case: Investigation) -> str | None:
    if case.algorithm is not None:
        return None
    return "neither a launch command nor a log names the speculative algorithm"


def _need_log(case: Investigation) -> str | None:
    return None if case.log is not None else "no log given"


def _need_events(case: Investigation) -> str | None:
    return None if case.events is not None else "no events of a probe given"


def _need_text(case: Investigation) -> str | None:
    return None if case.text_name is not None else "no text given"


NEEDS: dict[str, Callable[[Investigation], str | None]] = {
    "drafter": _need_drafter,
    "config": _need_config,
    "target": _need_target,
    "release": _need_release,
    "atlas": _need_atlas,
    "facts": _need_facts,
    "load": _need_load,
    "any load": _need_any_load,
    "capture": _need_capture,
    "map": _need_map,
    "launch": _need_launch,
    "algorithm": _need_algorithm,
    "log": _need_log,
    "events": _need_events,
    "text": _need_text,
}

REGISTRY: dict[str, Check] = {}


def check(
    code: str,
    fault: str,
    *,
    effect: str,
    severity: Severity = Severity.ERROR,
    impact: Impact = Impact.ZERO,
    needs: tuple[str, ...] = (),
    engine: str | None = None,
    after: tuple[str, ...] = (),
    others: tuple[str, ...] = (),
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check; the arguments are the attributes of `Check`."""

    def register(function: CheckFunction) -> CheckFunction:
        if code in REGISTRY:
            raise ValueError(f"{code} is taken")
        REGISTRY[code] = Check(code, fault, others, needs, engine, after, severity, impact, effect, function)
        return function

    return register


def seen(text: str, file: str | None = None, tensor: str | None = None, line: int | None = None) -> Evidence:
    """A piece of evidence."""
    return Evidence(text, file, tensor, line)


def listed(names: tuple[str, ...], most: int = 4) -> str:
    """`a, b, c and 7 more`."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
