"""Pages of the book that are written from data: the claims, the status of the run, the taxonomy of faults."""

from __future__ import annotations

import html
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from eagle3lab.book.claims import inline_html, show
from eagle3lab.book.fault_pages import link
from eagle3lab.book.tables import html_table


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
