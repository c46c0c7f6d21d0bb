"""A page of its own around a report: one HTML document without a script or an outside request."""

from __future__ import annotations

from html import escape

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page_around(body: str, title: str) -> str:
    """A complete HTML document; its policy forbids scripts and every outside request.

    Args:
        body: The report as one element, escaped already.
        title: The document's title; untrusted.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title></head>"
        f'<body style="margin:2rem auto;max-width:62rem;padding:0 1rem">{body}</body></html>\n'
    )
