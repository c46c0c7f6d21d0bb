"""Pages written from data: the claims, the status of the run, the taxonomy of faults, and a page of each fault."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from eagle3lab.book.case_record import HEALTHY, CaseOutcome, Example, confusion, marks_held
from eagle3lab.book.claims import inline_html, show
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


def anchor(number: int) -> str:
    """The id of a chapter's claim `number` (1-based, in order) on the chapter's page."""
    return f"claim-{number}"


def claims_page(record: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """The page (MyST Markdown) of every claim, by chapter, each linked to the place where it is made.

    Args:
        record: The content of `claims.json`.
        titles: Chapter to the title of its page, for the chapters in the book.
    """
    claims = [made for made in record["claims"] if made["chapter"] in titles]
    held = sum(made["passed"] for made in claims)
    parts = [
        "# Claims",
        "What the chapters conclude, each sentence checked by the run that made these pages: "
        f"{held} of {len(claims)} hold. A sentence links to the place where it is shown.",
    ]
    for chapter, group in groupby(claims, key=lambda made: str(made["chapter"])):
        rows = [
            (
                "✓" if made["passed"] else "✗",
                _link(chapter, inline_html(made["text"]), anchor(number)),
                _code(made["measured"]),
                _code(made["expected"]),
            )
            for number, made in enumerate(group, start=1)
        ]
        parts += [
            f"## [{titles[chapter]}](../notebooks/{chapter}.ipynb)",
            html_table(("", "Claim", "Measured", "Expected"), rows),
        ]
    return "\n\n".join(parts) + "\n"


def status_page(record: Mapping[str, Any], titles: Mapping[str, str]) -> str:
    """The page (MyST Markdown) that says what ran, for how long, and with which versions.

    Args:
        record: The content of `claims.json`.
        titles: Chapter to the title of its page, for the chapters in the book.
    """
    chapters = [one for one in record["chapters"] if one["chapter"] in titles]
    rows = [
        (
            _link(one["chapter"], html.escape(titles[one["chapter"]])),
            "passed" if one["failure"] is None else "failed",
            f"{one['claims']}",
            f"{one['seconds']:.1f}",
            ", ".join(_code(f"{name} = {value}") for name, value in one["parameters"].items()) or "defaults",
        )
        for one in chapters
    ]
    versions = [(html.escape(name), _code(version)) for name, version in record["versions"].items()]
    total = sum(one["seconds"] for one in chapters)
    parts = [
        "# Status",
        f"The run behind these pages: {len(chapters)} chapters, {total:.0f} s in all, several at a time.",
        "## Chapters",
        html_table(("Chapter", "Result", "Claims", "Seconds", "Parameters"), rows),
        "## Versions",
        html_table(("Package", "Version"), versions),
    ]
    return "\n\n".join(parts) + "\n"


def faults_table(taxonomy: Mapping[str, Any]) -> str:
    """The taxonomy of faults, one section a family: slug, linked to its page, silent or not, what is wrong.

    Args:
        taxonomy: The content of `faults.yaml`: `families` and `faults`, slug to `silent` and `what`.
    """
    parts: list[str] = []
    for family, slugs in groupby(taxonomy["faults"], key=lambda slug: str(slug).split(".")[0]):
        parts.append(f"## {family}")
        if family in taxonomy["families"]:  # `healthy` is a slug without a family
            parts.append(taxonomy["families"][family])
        rows = [
            (
                link(slug),
                "silent" if taxonomy["faults"][slug]["silent"] else "reported",
                inline_html(taxonomy["faults"][slug]["what"]),
            )
            for slug in slugs
        ]
        parts.append(html_table(("Slug", "Server", "What is wrong"), rows))
    return "\n\n".join(parts) + "\n"


def _link(chapter: str, text: str, target: str = "") -> str:
    fragment = f"#{target}" if target else ""
    return f'<a href="../notebooks/{html.escape(chapter, quote=True)}.html{fragment}">{text}</a>'


def _code(value: Any) -> str:
    return "" if value is None else f"<code>{html.escape(show(value))}</code>"
