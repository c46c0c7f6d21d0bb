"""Pages of single faults: what the checks' docstrings say, and an example from the case corpus."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3lab.book.case_record import HEALTHY, CaseOutcome, Example, confusion, marks_held
from eagle3lab.book.claims import inline_html
from eagle3lab.book.tables import html_table
from eagle3lab.diagnosis.checks import Check, all_checks
from eagle3lab.text import printable

_SENTENCE = 1200
_SERVER = {
    True: "*Silent*: the server starts, answers and says nothing.",
    False: "*Reported*: something stops or complains, though not always about the cause.",
}
_WRAP = "white-space:pre-wrap;overflow-wrap:anywhere"


def page_name(slug: str) -> str:
    """The page of a fault, without suffix: `vocab-double-offset` for `vocab.double-offset`."""
    return slug.replace(".", "-")


def fault_pages(taxonomy: Mapping[str, Any], outcomes: Sequence[CaseOutcome]) -> dict[str, str]:
    """Name to text (MyST Markdown) of a page for every fault, `healthy` excepted.

    Args:
        taxonomy: The content of `faults.yaml`.
        outcomes: The recorded cases, of which each page shows one.
    """
    return {
        f"{page_name(slug)}.md": fault_page(slug, fault, outcomes)
        for slug, fault in taxonomy["faults"].items()
        if slug != HEALTHY
    }


def fault_page(slug: str, fault: Mapping[str, Any], outcomes: Sequence[CaseOutcome]) -> str:
    """The page (MyST Markdown) of one fault.

    Args:
        slug: Its name.
        fault: Its `silent` and `what`.
        outcomes: The recorded cases.
    """
    parts = [
        f"# {slug}",
        f"<p>{inline_html(fault['what'])}</p>",
        f"{_SERVER[fault['silent']]} One of [all faults](index.md).",
        *(_check(check) for check in checks_of(slug)),
    ]
    if shown := example_of(slug, outcomes):
        parts.append(_example(*shown))
    return "\n\n".join(parts) + "\n"


def link(slug: str) -> str:
    """The slug as HTML, linked from a page beside it; `healthy` has no page."""
    shown = f"<code>{html.escape(slug)}</code>"
    return shown if slug == HEALTHY else f'<a href="{html.escape(page_name(slug))}.html">{shown}</a>'


def checks_of(slug: str) -> list[Check]:
    """The checks that can find `slug`, those that look for nothing else first."""
    able = [check for check in all_checks() if slug in (check.fault, *check.others)]
    return sorted(able, key=lambda check: check.fault != slug)


def example_of(slug: str, outcomes: Sequence[CaseOutcome]) -> tuple[CaseOutcome, Example] | None:
    """The case that shows `slug` best: where it is what comes first, and else where it is found at all."""
    able = [(case, one) for case in outcomes for one in case.examples if one.fault == slug]
    # Stable, so the corpus's own order decides between equals. One fault alone is plainer than several.
    able.sort(
        key=lambda pair: (
            pair[0].first != slug,
            pair[0].expected != slug,
            len(pair[0].examples),
            not pair[1].repair,
        )
    )
    return able[0] if able else None


def cases_section(outcomes: Sequence[CaseOutcome]) -> str:
    """The section (MyST Markdown) that says how the diagnosis fares on the corpus."""
    held = marks_held(outcomes)
    total, healthy = len(outcomes), sum(one.expected == HEALTHY for one in outcomes)
    exact = sum(count for (expected, first), count in confusion(outcomes).items() if expected == first)
    parts = [
        "## How the diagnosis does on the case corpus",
        f"Of {total} small cases with a known answer, {healthy} are healthy. The report names the right fault first, "
        f"or one that the case allows in its place, in {held['first']}; it finds everything it should in "
        f"{held['found']}, comes to the right verdict in {held['verdict']}, and raises no false alarm in "
        f"{held['no_alarm']}. Exactly the expected slug stands first in {exact}"
        + (". The others:" if exact < total else "."),
    ]
    off = [(one, one.expected, one.first) for one in outcomes if one.expected != one.first]
    if off:
        rows = [(_plain(one.title), link(expected), link(first)) for one, expected, first in off]
        parts.append(html_table(("Case", "Expected", "First in the report"), rows))
    parts.append("`make cases` runs them and prints the matrix.")
    return "\n\n".join(parts) + "\n"


def _check(check: Check) -> str:
    """A check's docstring, which is Markdown by its contract."""
    page = check.page
    terms = "\n\n".join(f"{name}\n: {text}" for name, text in page.parts.items())
    return f"## {page.title}\n\nCheck `{check.code}`\n\n{terms}"


def _example(case: CaseOutcome, found: Example) -> str:
    """A case and its finding as HTML: all of it comes from files."""
    scale = ": a head scaled down, its proportions kept" if "the drafter" in case.given else ""
    engine = case.engine.replace("sglang==", "SGLang ").replace("vllm==", "vLLM ")
    given = ", ".join((*([f"the release ({engine})"] if engine else []), *case.given))
    evidence = "".join(
        f"<li>{_plain(text)}" + (f" <code>{_plain(where)}</code>" if where else "") + "</li>"
        for text, where in found.evidence
    )
    parts = [
        "## Example",
        f"<p><strong>{_plain(case.title)}.</strong> Given: {_plain(given)}.</p>",
        f'<pre style="{_WRAP}">{_command(case.launch)}</pre>' if case.launch else "",
        f"<p>The report (<code>{_plain(found.code)}</code>): <strong>{_plain(found.title)}.</strong></p>",
        f"<ul>{evidence}</ul>" if evidence else "",
        _terms({"Effect": found.effect, "Fix": found.fix, "eagle3lab repair": found.repair}),
        f"<p>Case <code>{_plain(case.case)}</code> of the corpus{scale}.</p>",
    ]
    return "\n\n".join(part for part in parts if part)


def _terms(terms: Mapping[str, str]) -> str:
    inside = "".join(f"<dt>{name}</dt><dd>{_plain(text)}</dd>" for name, text in terms.items() if text)
    return f'<dl class="simple myst">{inside}</dl>'


def _command(launch: str) -> str:
    """A launch command, a line for each option."""
    return _plain(launch).replace(" --", " \\\n  --")


def _plain(text: str) -> str:
    return html.escape(printable(text, _SENTENCE))
