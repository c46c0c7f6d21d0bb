"""Source trees to read: the installed releases, and copies of them with something changed."""

from __future__ import annotations

import os
import shutil
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from eagle3lab.engines.extract import ReleaseFacts, extract
from eagle3lab.engines.extract.syntax import Syntax
from eagle3lab.engines.extract.tree import open_sglang

PROJECT = Path(__file__).parents[2]
INSTALLED = ("0.5.9", "0.5.23")
LOADER = "models/llama_eagle3.py"
# What the facts of the EAGLE-3 class are read from, and what marks a tree as SGLang.
NEEDED = (
    "server_args.py", "models/registry.py", "managers/scheduler.py", LOADER, "models/llama.py", "layers/linear.py",
    "layers/vocab_parallel_embedding.py", "layers/utils/common.py", "layers/utils/__init__.py",
    "layers/radix_attention.py",
    "layers/activation.py", "layers/logits_processor.py", "distributed/utils.py", "speculative/spec_info.py",
    "model_executor/model_runner.py", "model_executor/cuda_graph_runner.py",
    "managers/scheduler_metrics_mixin.py", "utils/hf_transformers_utils.py",
    # Its other drafter classes.
    "models/llama_eagle.py", "models/qwen2.py", "models/qwen2_eagle.py",
)  # fmt: skip


def root_of(release: str) -> Path:
    """The `srt` folder of an installed release."""
    beside = PROJECT / ".engines" / f"sglang-{release}" / "sglang" / "srt"
    if beside.is_dir():
        return beside
    spec = find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip(f"sglang {release} is not installed")
    root = Path(next(iter(spec.submodule_search_locations))) / "srt"
    if not list(root.parent.parent.glob(f"sglang-{release}.dist-info")):
        pytest.skip(f"sglang {release} is not installed")
    return root


@cache
def syntax_of(release: str) -> Syntax:
    """The syntax of an installed release."""
    return Syntax(open_sglang(root_of(release)))


@cache
def facts_of(release: str) -> ReleaseFacts:
    """What is read from an installed release."""
    return extract(root_of(release))


def small_copy(
    folder: Path, changes: dict[str, tuple[str, str]] | None = None, release: str = "0.5.9"
) -> Path:
    """A checkout with the few files that matter; in each file of `changes` the first text is replaced by the second."""
    root, source = folder / "python" / "sglang" / "srt", root_of(release)
    for name in NEEDED:
        if (source / name).is_file():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, root / name)
    (root.parent / "version.py").write_text(f'__version__ = "{release}"\n')
    (root.parent.parent / "pyproject.toml").write_text('dependencies = [\n  "transformers==4.57.1",\n]\n')
    for name, (old, new) in (changes or {}).items():
        change(root / name, old, new)
    return folder


def linked_copy(folder: Path, release: str) -> Path:
    """The whole tree with every file a symbolic link, as some installers make it."""
    shutil.copytree(
        root_of(release),
        folder / "sglang" / "srt",
        copy_function=os.symlink,
        ignore=shutil.ignore_patterns("__pycache__", "*.so", "*.json"),
    )
    return folder


def change(file: Path, old: str, new: str) -> None:
    """Replace `old`, which must be there, by `new`; a link is replaced by a file."""
    text = file.read_text()
    assert old in text, f"{file.name} does not hold {old!r}"
    file.unlink()
    file.write_text(text.replace(old, new))
