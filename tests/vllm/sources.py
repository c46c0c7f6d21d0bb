"""vLLM's source distributions, where they have been fetched, and copies of one with something changed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.engines.atlas.data import release_facts
from eagle3lab.engines.extract.syntax import Syntax
from eagle3lab.engines.extract.tree import SourceTree, open_vllm
from eagle3lab.engines.extract.vllm import VllmFacts
from eagle3lab.engines.facts import sources
from tests.engines.cases import SPECULATORS
from tests.engines.drafters import stated

PROJECT = Path(__file__).parents[2]
# A loop of its own in the inner model; a walk through modules.
SAMPLE = ("0.11.2", "0.32.0")
LOADER = "model_executor/models/llama_eagle3.py"
ALGORITHMS = "transformers_utils/configs/speculators/algos.py"
# What vLLM knows a config in the format of the speculators library by.
KNOWN = {"speculators_config": {"algorithm": "eagle3"}}


def sdist(release: str) -> Path:
    """The source distribution of a release of the sample, which `make setup` fetches."""
    path = PROJECT / ".cache" / "wheels" / f"vllm-{release}.tar.gz"
    if not path.is_file():
        fetch = f"python -m eagle3lab.engines.atlas.sdists {release}"
        pytest.skip(f"vLLM's source distribution {release} is not there: {fetch}")
    return path


@cache
def tree(release: str) -> SourceTree:
    """It, opened."""
    return open_vllm(sdist(release))


def syntax(release: str) -> Syntax:
    """Its syntax, nothing parsed yet."""
    return Syntax(tree(release))


def facts(release: str) -> VllmFacts:
    """What the atlas says of a release."""
    found = release_facts(release, "vllm")
    assert isinstance(found, VllmFacts)
    return found


def small_copy(folder: Path, release: str, changes: dict[str, tuple[str, str]] | None = None) -> Path:
    """A checkout with the files that facts are read from; in each of `changes` the first text becomes the second."""
    opened = tree(release)
    known = facts(release)
    read = (known.classes(), known.translation, known.wiring, known.log, known.vocabulary, known.allowed)
    files = {source.file for source in sources(read)} | {
        known.algorithms.source.file if known.algorithms else ""
    }
    files |= {
        f"model_executor/models/{name}.py" for name in ("utils", "interfaces", "registry", "llama_eagle3")
    }
    files |= {"v1/spec_decode/eagle.py", "transformers_utils/configs/eagle.py"}
    for file in files:
        text = opened.text(file)
        assert text is not None, file
        old, new = (changes or {}).get(file, ("", ""))
        assert old in text, f"{file} does not hold {old!r}"
        path = folder / "vllm" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace(old, new) if old else text)
    (folder / "PKG-INFO").write_text(f"Name: vllm\nVersion: {release}\nRequires-Dist: transformers>=4.56.0\n")
    return folder


def speculators_config(layer_type: str = "llama", **changes: Any) -> dict[str, Any]:
    """A config in the format, some keys at the top changed; ABSENT takes one out."""
    raw = {**SPECULATORS, **KNOWN, **changes}
    layer = {"model_type": layer_type, "head_dim": 8, "hidden_act": "silu", "rms_norm_eps": 1e-5}
    raw["transformer_layer_config"] = {**raw["transformer_layer_config"], **layer}
    return stated(raw)
