"""The stage: everything Jupyter Book reads, put together from prose, executed notebooks and generated pages.

Nothing runs here. Executed notebooks are rewritten so that the site needs no plug-in to show them: Plotly's
JSON becomes the book's own `<figure>`, and each claim gets an anchor that the claims page links to.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from eagle3lab.book import case_record, digest, engine_atlas, fault_pages, landing, pages
from eagle3lab.book.chapters import ChapterRun, Layout, read_record
from eagle3lab.book.claims import CLAIM_MIME, Claim
from eagle3lab.book.sphinx_plotly import PLOTLY_MIME, figure_html
from eagle3lab.errors import Eagle3labError, InputError
from eagle3lab.figures.token_path import token_strip

CONFIG, TOC = "_config.yml", "_toc.yml"


class StaleChapters(Eagle3labError):
    """Chapters that the book lists have no run that still counts."""

    def __init__(self, reasons: Mapping[str, str]) -> None:
        self.reasons = dict(reasons)
        listed = "\n".join(f"  {chapter}: {reason}" for chapter, reason in reasons.items())
        super().__init__(f"nothing to render from for\n{listed}\nRun `python -m eagle3lab.book` first.")


def toc_pages(toc: Path) -> list[str]:
    """The pages that `_toc.yml` lists, in order, without suffix.

    Raises:
        InputError: It cannot be read or lists nothing.
    """
    try:
        data = yaml.safe_load(toc.read_text("utf-8"))
    except OSError as error:
        raise InputError(error.strerror or "cannot be read", path=toc) from error
    except yaml.YAMLError as error:
        raise InputError(f"not YAML ({error})", path=toc) from error
    listed = [data["root"], *_files(data)] if isinstance(data, dict) and "root" in data else []
    if not listed:
        raise InputError("lists no pages", path=toc)
    return [page.removesuffix(".ipynb").removesuffix(".md") for page in listed]


def _files(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("file"), str):
            yield node["file"]
        for value in node.values():
            yield from _files(value)
    elif isinstance(node, list):
        for value in node:
            yield from _files(value)


def current_runs(layout: Layout, *, allow_stale: bool = False) -> dict[str, ChapterRun]:
    """The run of every chapter that `_toc.yml` lists.

    Raises:
        StaleChapters: One of them was never run, failed, or (without `allow_stale`) has changed since.
    """
    around = digest.surroundings(layout.root)
    runs: dict[str, ChapterRun] = {}
    reasons: dict[str, str] = {}
    for page in toc_pages(layout.root / TOC):
        if not page.startswith("notebooks/"):
            continue
        notebook = layout.root / f"{page}.ipynb"
        chapter = notebook.stem
        record = read_record(layout, chapter)
        if not notebook.is_file():
            reasons[chapter] = f"{TOC} lists it, but notebooks/ has no such notebook"
        elif record is None:
            reasons[chapter] = "never run"
        elif record.failure is not None:
            reasons[chapter] = f"failed: {record.failure.message.splitlines()[0]}"
        elif not allow_stale and record.digest != digest.of_chapter(notebook, record.parameters, around):
            reasons[chapter] = "it, the package, the specimen or a lock changed since its last run"
        elif not (layout.executed / notebook.name).is_file():
            reasons[chapter] = "its executed notebook is gone"
        else:
            runs[chapter] = record
    if reasons:
        raise StaleChapters(reasons)
    return runs


def build_stage(layout: Layout, stage: Path, *, allow_stale: bool = False) -> None:
    """Fill the folder `stage`, which is emptied first.

    Raises:
        StaleChapters: See `current_runs`.
        InputError: A figure without a title, a file that cannot be read.
    """
    runs = current_runs(layout, allow_stale=allow_stale)
    shutil.rmtree(stage, ignore_errors=True)
    shutil.copytree(layout.root / "book", stage / "book")
    for name in (CONFIG, TOC):
        shutil.copy(layout.root / name, stage)
    (stage / "notebooks").mkdir()
    for chapter in runs:
        source = layout.executed / f"{chapter}.ipynb"
        notebook = json.loads(source.read_text("utf-8"))
        try:
            rewrite_outputs(notebook)
        except InputError as error:
            raise InputError(error.problem, path=source, advice=error.advice) from error
        _show_stage(notebook, chapter)
        (stage / "notebooks" / source.name).write_text(json.dumps(notebook, ensure_ascii=False), "utf-8")
    titles = {chapter: title_of(stage / "notebooks" / f"{chapter}.ipynb") for chapter in runs}
    record = json.loads(layout.claims.read_text("utf-8"))
    generated = {
        "claims.md": pages.claims_page(record, titles),
        "status.md": pages.status_page(record, titles),
        "engine-atlas.md": engine_atlas.engine_atlas_page(),
        **landing.landing_parts(),
    }
    faults = layout.root / "book" / "faults" / "faults.yaml"
    if faults.is_file():
        taxonomy = yaml.safe_load(faults.read_text("utf-8"))
        cases = case_record.read_record(faults.with_name("examples.json"))
        generated["faults/table.md"] = pages.faults_table(taxonomy)
        generated["faults/cases.md"] = fault_pages.cases_section(cases)
        for name, text in fault_pages.fault_pages(taxonomy, cases).items():
            generated[f"faults/{name}"] = text
    for name, text in generated.items():
        (stage / "book" / name).write_text(text, "utf-8")


def rewrite_outputs(notebook: dict[str, Any]) -> None:
    """Turn the outputs of an executed notebook (its JSON, changed in place) into what the site shows.

    Raises:
        InputError: A figure without a title.
    """
    number = 0
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if CLAIM_MIME in data:
                number += 1
                output["data"] = {
                    "text/html": Claim.from_json(data[CLAIM_MIME]).to_html(pages.anchor(number))
                }
            elif PLOTLY_MIME in data:
                output["data"] = {"text/html": figure_html(data[PLOTLY_MIME])}


def _show_stage(notebook: dict[str, Any], chapter: str) -> None:
    """Put the line that says where the chapter is on a token's way under its heading."""
    strip = token_strip(chapter)
    first = notebook["cells"][0]
    if strip and first["cell_type"] == "markdown":
        heading, _, rest = "".join(first["source"]).partition("\n")
        first["source"] = f"{heading}\n\n{strip}\n{rest}"


def title_of(notebook: Path) -> str:
    """The first heading of a notebook, or its name."""
    for cell in json.loads(notebook.read_text("utf-8"))["cells"]:
        if cell["cell_type"] == "markdown":
            for line in "".join(cell["source"]).splitlines():
                if line.startswith("# "):
                    return line.removeprefix("# ").strip()
    return notebook.stem
