"""`python -m eagle3lab.book.render`: the executed chapters and the prose as a site that needs no network.

Executed notebooks are rewritten so that the site needs no plug-in to show them: Plotly's JSON becomes the book's own
`<figure>`, and each claim gets an anchor that the claims page links to.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml

from eagle3lab.acceptance.formulas import formula_ranges
from eagle3lab.book import case_record, engine_atlas, pages
from eagle3lab.book.chapters import (
    ChapterRun,
    Layout,
    digest_of_chapter,
    digest_of_tree,
    read_record,
    surroundings,
)
from eagle3lab.book.claims import CLAIM_MIME, Claim
from eagle3lab.book.sphinx_book import PLOTLY_MIME, figure_html
from eagle3lab.book.tables import json_script
from eagle3lab.errors import Eagle3labError, InputError
from eagle3lab.figures.token_path import token_path, token_strip

_FIELD = """\
<div class="eagle3lab-rate">
<label for="eagle3lab-rate-line">Paste a decode line, or just its two numbers:</label>
<input id="eagle3lab-rate-line" type="text" spellcheck="false" autocomplete="off"
 value="accept len: 1.00, accept rate: 0.20">
<output for="eagle3lab-rate-line"><noscript>This field needs JavaScript; chapter 1 has the formulas.</noscript></output>
{ranges}
</div>
"""


def landing_parts() -> dict[str, str]:
    """Files that `book/intro.md` includes, by name: HTML."""
    ranges = [
        {"releases": f"{first} to {last}", "formula": formula} for first, last, formula in formula_ranges()
    ]
    return {
        "token-path.html": token_path() + "\n" + token_path(columns=1) + "\n",
        "rate-reader.html": _FIELD.format(ranges=json_script(ranges)),
    }


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
    around = surroundings(layout.root)
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
        elif not allow_stale and record.digest != digest_of_chapter(notebook, record.parameters, around):
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
        **landing_parts(),
    }
    faults = layout.root / "book" / "faults" / "faults.yaml"
    if faults.is_file():
        taxonomy = yaml.safe_load(faults.read_text("utf-8"))
        cases = case_record.read_record(faults.with_name("examples.json"))
        generated["faults/table.md"] = pages.faults_table(taxonomy)
        generated["faults/cases.md"] = pages.cases_section(cases)
        for name, text in pages.fault_pages(taxonomy, cases).items():
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
                    "text/html": msgspec.convert(data[CLAIM_MIME], Claim).to_html(pages.anchor(number))
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


_BUILDER = "from jupyter_book.cli.main import main; main()"  # jupyter_book has no __main__


class RenderFailed(Eagle3labError):
    """Jupyter Book warned or failed; the message holds what it said."""


def render(layout: Layout, *, force: bool = False, allow_stale: bool = False) -> bool:
    """Render the book into `layout.html`, unless it is there and nothing has changed.

    The new site replaces the old one only when it is complete.

    Args:
        layout: The project, whose chapters have run.
        force: Render even when nothing has changed.
        allow_stale: Take chapters as they last ran, whatever has changed since: for work on the prose.

    Returns:
        Whether it was rendered now.

    Raises:
        StaleChapters: A chapter must be run first.
        RenderFailed: Jupyter Book failed, or warned.
    """
    stage, work, mark = layout.out / "stage", layout.out / "site", _mark(layout)
    build_stage(layout, stage, allow_stale=allow_stale)
    known = _state(layout, stage)
    if not force and _is_current(layout, known):
        return False
    mark.unlink(missing_ok=True)
    shutil.rmtree(work, ignore_errors=True)  # doctrees of an earlier state would be taken for current
    command = [sys.executable, "-c", _BUILDER, "build", str(stage), "--path-output", str(work)]
    flags = ["-W", "-n", "--keep-going", "-q"]
    done = subprocess.run(
        [*command, *flags],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_COLOR": "1"},
    )
    log = layout.logs / "render.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(done.stdout + done.stderr, "utf-8")
    site = work / "_build" / "html"
    if done.returncode or not (site / "index.html").is_file():
        raise RenderFailed(f"Jupyter Book ended with status {done.returncode}:\n{done.stderr or done.stdout}")
    shutil.rmtree(layout.html, ignore_errors=True)
    site.rename(layout.html)
    shutil.rmtree(work)
    mark.write_text(known, "utf-8")
    return True


def is_current(layout: Layout) -> bool:
    """Whether the site that is there shows the project as it is now."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            build_stage(layout, Path(scratch, "stage"))
        except Eagle3labError:
            return False
        return _is_current(layout, _state(layout, Path(scratch, "stage")))


def _is_current(layout: Layout, known: str) -> bool:
    mark = _mark(layout)
    return (layout.html / "index.html").is_file() and mark.is_file() and mark.read_text("utf-8") == known


def _mark(layout: Layout) -> Path:
    return layout.out / "html.digest"


def _state(layout: Layout, stage: Path) -> str:
    return surroundings(layout.root) + digest_of_tree(stage)


def main(arguments: Sequence[str] | None = None) -> int:
    """Render and print the page to open.

    Returns:
        0 when the site is there, 1 when it could not be made.
    """
    parser = argparse.ArgumentParser(
        prog="python -m eagle3lab.book.render", description="Render the executed chapters as a site."
    )
    parser.add_argument("--force", action="store_true", help="render even when nothing has changed")
    parser.add_argument(
        "--allow-stale", action="store_true", help="take chapters as they last ran, changed since or not"
    )
    parser.add_argument("--root", type=Path, default=Path(), help="the project (default: here)")
    parser.add_argument("--out", type=Path, help="the build folder (default: ROOT/_build)")
    options = parser.parse_args(arguments)
    layout = Layout.of(options.root, options.out)
    try:
        fresh = render(layout, force=options.force, allow_stale=options.allow_stale)
    except Eagle3labError as error:
        print(f"eagle3lab.book.render: {error}", file=sys.stderr)
        return 1
    print("Rendered." if fresh else "Unchanged since it was last rendered.")
    print(f"Open {(layout.html / 'index.html').as_uri()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
