"""Where engines are looked for: what is found there is run, so only where the user or the project itself said."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.ground_truth import find_installation
from eagle3lab.engines.ground_truth import locate as module
from eagle3lab.errors import InputError


def _planted(folder: Path) -> Path:
    package = folder / "sglang-0.5.9" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('a stranger's code')")
    return package.parent


def test_a_strangers_folder_is_not_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(module.ENGINES_VARIABLE, raising=False)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "lib/site-packages/eagle3lab/a/b/locate.py"))
    below = tmp_path / "shared" / "mine"
    for folder in (below, below.parent, tmp_path, tmp_path / "lib", tmp_path / "lib" / "site-packages"):
        _planted(folder / ".engines")
    monkeypatch.chdir(below)
    with pytest.raises(InputError, match="not on this machine"):
        find_installation(resolve_engine("sglang==0.5.9"))


def test_the_folder_that_is_named_and_the_projects_own_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(module.ENGINES_VARIABLE, raising=False)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "src/eagle3lab/engines/ground_truth/locate.py"))
    ours = _planted(tmp_path / ".engines")
    with pytest.raises(InputError):
        find_installation(resolve_engine("sglang==0.5.9"))  # a folder called src that belongs to no project
    (tmp_path / "pyproject.toml").touch()
    assert find_installation(resolve_engine("sglang==0.5.9")).folder == ours
    named = _planted(tmp_path / "named")
    monkeypatch.setenv(module.ENGINES_VARIABLE, str(tmp_path / "named"))
    assert find_installation(resolve_engine("sglang==0.5.9")).folder == named
