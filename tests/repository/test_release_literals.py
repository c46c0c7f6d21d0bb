"""What a release does is data: no code of the package names a release, except to explain itself in a docstring."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "eagle3lab"
# SGLang's and vLLM's numbers; an address, 0.0.0.0, and a tree without a number, 0.0.0, are none.
RELEASE = re.compile(r"(?<![\d.])0\.(?!0\.0)\d+\.\d+(?:\.?(?:post|rc|dev)\d+)*(?![\d.]*\.\d)")


def named(module: str) -> Iterator[tuple[int, str]]:
    """Line and text of each string of a module that names a release; docstrings and comments aside."""
    tree = ast.parse(module)
    explained = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in explained else None
        if isinstance(text, str) and RELEASE.search(text):
            yield node.lineno, text


@pytest.mark.parametrize(
    "module", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE))
)
def test_no_release_is_named_in_code(module: Path) -> None:
    assert list(named(module.read_text("utf-8"))) == []


def test_it_would_be_found() -> None:
    assert [line for line, _ in named('"""0.5.9"""\nfirst = "0.5.10.post1"\nhost = "0.0.0.0"\n')] == [2]
    assert list(named('text = f"sglang==0.5.23 {first}"'))
