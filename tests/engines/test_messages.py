"""The engines' own words: as their sources have them, matched with their values, and what a target's class lacks."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3lab.engines.extract.syntax import Syntax
from eagle3lab.engines.extract.tree import SourceTree, open_sglang
from eagle3lab.engines.messages import match, releases, said, target_needs
from eagle3lab.engines.messages.extract import Reader, Template, texts_of
from eagle3lab.engines.messages.targets import read_lacks
from eagle3lab.engines.release import Release
from tests.extract.trees import root_of
from tests.vllm.sources import SAMPLE
from tests.vllm.sources import tree as vllm_tree


def _sglang(release: str) -> SourceTree:
    return open_sglang(root_of(release))


def _only(source: str) -> Template:
    [(template, _)] = texts_of(source)
    return template


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_messages_of_sglang_stand_where_they_are_said_to_stand(release: str) -> None:
    _stands("sglang", release, _sglang(release))


@pytest.mark.parametrize("release", SAMPLE)
def test_messages_of_vllm_stand_where_they_are_said_to_stand(release: str) -> None:
    _stands("vllm", release, vllm_tree(release))


def _stands(kind: str, release: str, tree: SourceTree) -> None:
    """Every message stands in its line of the release's source, and its text is found again by what it says."""
    known = said(kind, release)
    assert len(known) > 700
    missed = 0
    for one in known:
        lines = (tree.text(one.file) or "").split("\n")
        line = lines[one.line - 1].strip()
        assert line.startswith(("raise", "assert")), one
        template = one.template
        if template.code:
            assert template.code == line[:400]
        if not template.pieces or sum(map(len, template.pieces[::2])) < 20:
            continue
        text = "".join(part if n % 2 == 0 else str(n) for n, part in enumerate(template.pieces))
        found = match(kind, template.error, text, release=release)
        missed += found is None or found.release != release or not _alike(found.template, template)
    assert missed == 0


def _alike(found: Template, template: Template) -> bool:
    """The same text, or one that has a gap where this one has words."""
    return "".join(found.pieces[::2]) == "".join(template.pieces[::2]) or len(found.pieces) != len(
        template.pieces
    )


@pytest.mark.parametrize("release", ["0.5.9", "0.5.23"])
def test_what_is_shipped_is_what_is_read(release: str) -> None:
    tree = _sglang(release)
    assert {(one.template, one.file) for one in Reader("sglang").read(tree)} == {
        (one.template, one.file) for one in said("sglang", release)
    }
    lacks = read_lacks(tree, "sglang")
    for name, found in lacks.items():
        assert target_needs(Release("sglang", release), name) == tuple(found)


def test_texts_with_their_gaps() -> None:
    def pieces(source: str) -> tuple[str, ...]:
        return _only(source).pieces

    assert pieces('raise ValueError(f"got {a.b} and {n + 1:d}")') == ("got ", "a.b", " and ", "n + 1", "")
    assert pieces('raise ValueError("got %s and %d" % (a, b))') == ("got ", "a", " and ", "b", "")
    assert pieces('raise ValueError("got {} and {}".format(a, b))') == ("got ", "a", " and ", "b", "")
    assert pieces('raise KeyError("no " + name)') == ("no ", "name", "")
    assert pieces('msg = f"no {x}"\nraise E(f"{msg}: give it")'.replace("E(", "KeyError(")) == (
        "no ",
        "x",
        ": give it",
    )
    guarded = _only('if top_k > 1:\n    raise ValueError("only top 1")')
    assert (guarded.condition, guarded.words) == ("top_k > 1", "only top 1")
    bare = _only("assert a % tp == 0")
    assert (bare.error, bare.pieces, bare.code) == ("AssertionError", (), "assert a % tp == 0")
    assert list(texts_of("def broken(:")) == [] and list(texts_of("raise")) == []


def test_a_message_is_known_with_values_place_and_releases() -> None:
    text = (
        "--disaggregation-decode-enable-radix-cache is incompatible with speculative decoding "
        "(--speculative-algorithm EAGLE3)"
    )
    found = match("sglang", "ValueError", text, release="0.5.16")
    assert found is not None and found.release == "0.5.16" and found.source.endswith(".py:42")
    assert list(found.values.values()) == ["EAGLE3"]
    assert found.flags == ("--disaggregation-decode-enable-radix-cache", "--speculative-algorithm")
    assert (found.since, found.until) == ("0.5.13", "0.5.18")
    before = match("sglang", "ValueError", text, release="0.5.10")
    assert before is not None and before.release == "0.5.12.post1"  # the release asked for does not say so


def test_an_assertion_without_a_text_is_known_by_its_line_and_file() -> None:
    code = "assert self.total_num_heads % tp_size == 0"
    place = "/usr/lib/python3.12/site-packages/sglang/srt/models/llama.py"
    found = match("sglang", "AssertionError", "", release="0.5.6", file=place, code=code)
    assert found is not None and found.file == "models/llama.py"
    assert match("sglang", "AssertionError", "", release="0.5.6", file="/home/me/train.py", code=code) is None
    assert match("sglang", "ValueError", "nothing in any engine says this") is None


def test_what_a_target_lacks() -> None:
    def lacks(release: str, name: str) -> list[tuple[str, bool]]:
        return [(one.what, one.sure) for one in target_needs(Release("sglang", release), name) or ()]

    assert lacks("0.5.9", "LlamaForCausalLM") == []
    assert lacks("0.5.9", "NoSuchForCausalLM") == [("hook", True)]
    assert lacks("0.5.9", "Qwen2MoeForCausalLM") == [("embeddings", True)]
    assert lacks("0.5.19", "Qwen3_5MoeForConditionalGeneration") == [("decoder", True)]
    assert lacks("0.5.22", "Qwen3_5MoeForConditionalGeneration") == []
    assert lacks("0.5.9", "Llama4ForConditionalGeneration") == [
        ("decoder", False)
    ]  # its inner class is not named
    assert lacks("0.5.9", "Mistral3ForConditionalGeneration") == [("hook", False)]  # __getattr__ hands on
    assert lacks("0.5.12", "KimiK25ForConditionalGeneration") == []
    vllm = Release("vllm", releases("vllm")[-1])
    assert target_needs(vllm, "LlamaForCausalLM") == ()
    [unknown] = target_needs(vllm, "NoSuchForCausalLM") or ()
    assert unknown.what == "interface" and not unknown.sure  # a general class may serve it
    [lacking] = target_needs(Release("vllm", "0.11.2"), "Gemma3ForConditionalGeneration") or ()
    assert lacking.what == "interface" and lacking.sure
    assert target_needs(Release("tensorrt-llm", "1.0"), "LlamaForCausalLM") is None


def test_a_decoder_that_does_not_read_what_the_hook_writes(tmp_path: Path) -> None:
    """A small tree with the forms that targets have: delegation, a constructor's default, `hasattr`."""
    source = """
class Inner:
    def forward(self):
        return [x for x in self.layers if getattr(x, "_is_layer_to_capture", False)]

class Reads(Inner):
    def forward(self):
        return super().forward(), self.layers_to_capture

class Outer:
    def __init__(self, config, language_model_cls=Inner):
        self.model = language_model_cls(config)
    def get_embed_and_head(self):
        return 1, 2
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        if hasattr(self.model, "set_eagle3_layers_to_capture"):
            self.model.set_eagle3_layers_to_capture(layer_ids)
        else:
            self.model.layers_to_capture = layer_ids

class Other(Outer):
    def __init__(self, config, language_model_cls=Reads):
        super().__init__(config, language_model_cls)

class Wrapper:
    def __init__(self, config):
        self.language_model = Outer(config)
    def get_embed_and_head(self):
        return self.language_model.get_embed_and_head()
    def set_eagle3_layers_to_capture(self, layer_ids=None):
        self.language_model.set_eagle3_layers_to_capture(layer_ids)

EntryClass = [Outer, Other, Wrapper]
"""
    root = tmp_path / "srt"
    for name, text in {
        "models/outer.py": source,
        "speculative/eagle_worker.py": "embed, head = target.get_embed_and_head()\n",
        "server_args.py": "",
        "models/registry.py": "",
        "managers/scheduler.py": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    found = read_lacks(open_sglang(root), "sglang")
    assert [one.what for one in found["Outer"]] == ["decoder"] and "Inner" in found["Outer"][0].reason
    assert found["Other"] == [] and [one.what for one in found["Wrapper"]] == ["decoder"]
    assert Syntax(open_sglang(root)).broken == {}
