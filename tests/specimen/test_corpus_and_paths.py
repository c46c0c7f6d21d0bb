"""Held-out dialogues stay held out, importing the package is cheap, a missing specimen is explained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eagle3lab.errors import InputError
from lab.specimen import corpus, paths, specimen_dir

MODULES = ("bisect", "collections", "heapq", "json", "math", "string", "textwrap")


def test_import_loads_no_heavy_package() -> None:
    heavy = ("torch", "transformers", "speculators", "numpy", "safetensors", "rich")
    code = f"import sys, lab.specimen; print([n for n in {heavy} if n in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_held_out_questions_are_never_trained() -> None:
    dialogues = corpus.dialogues(MODULES)
    trained = {each.question for each in dialogues if each.split == "train"}
    kinds = {each.split for each in dialogues}
    assert kinds == {"train", "new-entry", "new-question"}
    assert all(each.question not in trained for each in dialogues if each.split != "train")


def test_a_new_entry_is_in_no_training_dialogue() -> None:
    dialogues = corpus.dialogues(MODULES)
    for entry in corpus.entries(MODULES):
        own = {form(entry)[0] for form in corpus.QUESTION_FORMS}
        splits = {each.split for each in dialogues if each.question in own}
        assert "new-entry" not in splits or splits == {"new-entry"}


def test_corpus_is_the_same_every_time() -> None:
    assert corpus.dialogues(MODULES) == corpus.dialogues(MODULES)


def test_answers_are_one_line_of_ascii() -> None:
    for each in corpus.dialogues(MODULES):
        assert each.answer.isascii()
        assert each.answer.isprintable()
        assert " at 0x" not in each.answer


def test_specimen_folder_by_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(paths.VARIABLE, str(tmp_path))
    with pytest.raises(InputError, match=r"make specimen"):
        specimen_dir()
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "config.json").write_text("{}")
    assert specimen_dir() == tmp_path
