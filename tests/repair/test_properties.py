"""Faults injected into a healthy head: the copy is complete, is healthy itself, and can be undone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3lab.engines.atlas.resolve import known_engines
from eagle3lab.repair import undo_repair, write_repair
from tests.repair.heads import OLD, faults, hashes, plan, specforge
from tests.support.make_case import materialise

PREFIXES = {"midlayer.": None, "layers.0.": None, "midlayer.0.": None, "model.layers.0.": None}
OUTER = [None, "module.*", "draft_model.*", "model.*"]
MAPS = {"offset": None, "unsorted": None, "absolute": "vocab.absolute", "double": "vocab.double-offset"}

FAULTS = st.fixed_dictionaries(
    {
        "prefix": st.sampled_from(sorted(PREFIXES)),
        "outer": st.sampled_from(OUTER),
        "d2t": st.sampled_from(sorted(MAPS)),
        "dtype": st.sampled_from(["I64", "I32", "F32", "F64"]),
        "tied": st.booleans(),
        "embed": st.booleans(),
        "architecture": st.sampled_from(
            ["LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLM"]
        ),
        "sharded": st.sampled_from(["one", "two", "bin"]),
    }
)


def injected(chosen: dict[str, Any]) -> dict[str, Any]:
    files: Any = {
        "one": "safetensors",
        "bin": "bin",
        "two": {
            "mode": "sharded",
            "shards": {
                "model-00001-of-00002.safetensors": ["*d2t", "*lm_head*"],
                "model-00002-of-00002.safetensors": ["*"],
            },
        },
    }[chosen["sharded"]]
    edits = {} if chosen["outer"] is None else {"rename": {"*": chosen["outer"]}}
    return specforge(
        template__prefix=chosen["prefix"],
        template__d2t=chosen["d2t"],
        template__d2t_dtype=chosen["dtype"],
        template__embed=chosen["embed"],
        config__tie_word_embeddings=chosen["tied"],
        config__architectures=[chosen["architecture"]],
        files=files,
        edits=edits,
    )


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(chosen=FAULTS, engine=st.sampled_from(known_engines()))
def test_any_mixture_of_faults(chosen: dict[str, Any], engine: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = materialise(injected(chosen), folder / "case") / "drafter"
        before = hashes(source)
        planned = plan(source, engine)
        assert planned.status in ("repairable", "unchanged"), planned.refusals
        if chosen["tied"]:
            assert "head.tied" in faults(planned)
        if MAPS[chosen["d2t"]]:
            assert {MAPS[chosen["d2t"]], "vocab.dtype"} & set(faults(planned))
        written = write_repair(planned, folder / "out")
        assert {p.name for p in written.load.parameters if p.status != "loaded"} <= {
            "model.embed_tokens.weight"
        }
        assert written.load.tensors_with("dropped") == ()
        again = plan(folder / "out", engine)
        assert (again.status, again.changes) == ("unchanged", ())
        undo_repair(folder / "out", folder / "undone")
        assert hashes(folder / "undone") == before == hashes(source)


def test_a_repair_of_a_repair_is_undone_step_by_step(tmp_path: Path) -> None:
    source = materialise(specforge(template__prefix="layers.0."), tmp_path / "case") / "drafter"
    write_repair(plan(source, OLD), tmp_path / "old")
    target = tmp_path / "case" / "target"
    back = plan(tmp_path / "old", "speculators", target)
    assert faults(back) == ["head-kind.config-dialect", "names.dropped"]
    write_repair(back, tmp_path / "vllm")
    undo_repair(tmp_path / "vllm", tmp_path / "old again")
    assert hashes(tmp_path / "old again") == hashes(tmp_path / "old")
    undo_repair(tmp_path / "old again", tmp_path / "source again")
    assert hashes(tmp_path / "source again") == hashes(source)
