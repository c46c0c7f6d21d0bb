"""`claims.json`: the claims of every chapter, with the timings and versions they were made under."""

from __future__ import annotations

import json
import sys
from importlib import metadata

from eagle3lab.book.chapters import Layout, read_record

VERSIONED = (
    "eagle3lab", "numpy", "torch", "transformers", "sglang", "speculators", "safetensors",
    "papermill", "ipykernel", "plotly", "jupyter-book", "Sphinx",
)  # fmt: skip


def write_claims(layout: Layout) -> None:
    """Write `claims.json` from the records of every chapter that the project has and that ever ran."""
    runs = [read_record(layout, path.stem) for path in sorted(layout.notebooks.glob("*.ipynb"))]
    known = [run for run in runs if run is not None]
    data = {
        "schema_version": 1,
        "claims": [
            {
                "chapter": run.chapter,
                "cell": made.cell,
                "text": made.claim.text,
                "measured": made.claim.measured,
                "expected": made.claim.expected,
                "passed": made.claim.passed,
            }
            for run in known
            for made in run.claims
        ],
        "chapters": [
            {
                "chapter": run.chapter,
                "seconds": run.seconds,
                "claims": len(run.claims),
                "parameters": dict(run.parameters),
                "failure": run.failure.message if run.failure else None,
            }
            for run in known
        ],
        "versions": versions(),
    }
    layout.claims.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def versions() -> dict[str, str]:
    """Python and the packages that a chapter's outcome may depend on, where installed."""
    found = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in VERSIONED:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
