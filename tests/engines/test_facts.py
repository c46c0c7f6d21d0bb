"""The facts: complete, consistent, and said by the line of the release that they name."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.facts import EngineFacts, config_class, sources
from eagle3lab.engines.ground_truth import find_installation
from eagle3lab.engines.loading import drafter as built
from tests.engines.drafters import INSTALLED


def source_root(engine: EngineFacts) -> Path:
    """Where the release's `srt` folder is on this machine."""
    folder = find_installation(engine).folder
    if folder is not None:
        return folder / "sglang" / "srt"
    spec = find_spec("sglang")
    assert spec is not None and spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations))) / "srt"


@pytest.mark.engine
@pytest.mark.parametrize("spec", INSTALLED)
def test_every_fact_stands_in_the_line_it_names(spec: str) -> None:
    engine = resolve_engine(spec)
    root, found = source_root(engine), set(sources(engine))
    assert len(found) > 25
    for source in found:
        line = (root / source.file).read_text(encoding="utf-8").splitlines()[source.line - 1]
        assert line.strip() == source.text, f"{spec}: {source}"


@pytest.mark.parametrize("spec", INSTALLED)
def test_rules_sizes_and_switches_are_known(spec: str) -> None:
    engine = resolve_engine(spec)
    for rule in engine.construction:
        assert rule.rule in built._RULES
        assert (rule.size is not None) == (rule.rule in ("size divisible", "vocabulary divisible"))
    assert engine.drafter.architectures[0] == engine.drafter.name
    assert len({p.name for p in engine.parameters}) == len(engine.parameters)


def test_the_two_rates() -> None:
    old, new = resolve_engine("sglang==0.5.9").acceptance, resolve_engine("sglang==0.5.23").acceptance
    assert (old.rate_formula, old.rate_key) == ("(accepted+bonus)/(forwards*draft_tokens)", "len/D")
    assert (new.rate_formula, new.rate_key) == ("accepted/(forwards*(draft_tokens-1))", "(len-1)/(D-1)")
    assert old.length_formula == new.length_formula == "(accepted+forwards)/forwards"


def test_capture_defaults() -> None:
    for spec in INSTALLED:
        capture = resolve_engine(spec).capture
        assert capture.default_layers == ("2", "n//2", "n-3")
        assert capture.shift == 1


def test_config_classes() -> None:
    llama = config_class("llama")
    assert llama is not None and llama["num_key_value_heads"] == "num_attention_heads"
    assert config_class("no such model") is None
