"""`python -m eagle3lab.book.render`: the executed chapters and the prose as a site that needs no network."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from eagle3lab.book import digest
from eagle3lab.book.chapters import Layout
from eagle3lab.book.staging import build_stage
from eagle3lab.errors import Eagle3labError

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
    return digest.surroundings(layout.root) + digest.tree(stage)


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
