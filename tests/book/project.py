"""A book project in a temporary folder: notebooks from strings, prose, the repository's own configuration."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import nbformat
import yaml
from nbformat import NotebookNode, v4

from eagle3lab.book import chapters
from eagle3lab.book.chapters import ChapterRun, Layout, collect_claims, write_claims
from tests.support.project import ROOT

CLAIM = "from eagle3lab.book import claim\nclaim('this chapter ran', True, 1)"


class Project:
    """A project at `root`; `chapter` adds a notebook, `prose` what a rendered book needs besides."""

    def __init__(self, root: Path) -> None:
        self.layout = Layout.of(root)
        self.layout.notebooks.mkdir(parents=True)

    def chapter(self, name: str, *code: str, parameters: str = "", text: str = "Text.") -> Path:
        """Write a notebook: a heading and `text`, `parameters` if given, a cell for each of `code`."""
        cells = [v4.new_markdown_cell(f"# Chapter {name}\n\n{text}", id="heading")]
        if parameters:
            cells.append(v4.new_code_cell(parameters, id="parameters", metadata={"tags": ["parameters"]}))
        cells += [v4.new_code_cell(source, id=f"cell-{number}") for number, source in enumerate(code)]
        spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
        path = self.layout.notebooks / f"{name}.ipynb"
        nbformat.write(v4.new_notebook(cells=cells, metadata={"kernelspec": spec}), path)
        return path

    def pretend_it_ran(self, notebook: Path, *outputs: NotebookNode) -> None:
        """Leave what a successful run of `notebook` leaves, with `outputs` in its last cell; no kernel starts."""
        executed = nbformat.read(notebook, as_version=4)
        executed.cells[-1].outputs = [*outputs]
        self.layout.executed.mkdir(parents=True, exist_ok=True)
        nbformat.write(executed, self.layout.executed / notebook.name)
        known = chapters.digest_of_chapter(notebook, {}, chapters.surroundings(self.layout.root))
        result = ChapterRun(notebook.stem, known, {}, 1.0, collect_claims(executed.cells))
        (self.layout.executed / f"{notebook.stem}.json").write_bytes(msgspec.json.encode(result))
        write_claims(self.layout)

    def prose(self, **pages: str) -> None:
        """Write `book/` with `pages`, and a table of contents of everything there is."""
        book = self.layout.root / "book"
        shutil.copytree(ROOT / "book" / "_static", book / "_static", dirs_exist_ok=True)
        shutil.copytree(ROOT / "book" / "_extra", book / "_extra", dirs_exist_ok=True)
        shutil.copy(ROOT / "_config.yml", self.layout.root)
        for name, text in pages.items():
            (book / f"{name}.md").write_text(text, "utf-8")
        chapters = [f"notebooks/{path.stem}" for path in sorted(self.layout.notebooks.glob("*.ipynb"))]
        others = [f"book/{name}" for name in (*pages, "claims", "status") if name != "intro"]
        listed = [{"file": name} for name in chapters + others]
        toc = {"format": "jb-book", "root": "book/intro", "chapters": listed}
        (self.layout.root / "_toc.yml").write_text(yaml.safe_dump(toc), "utf-8")
