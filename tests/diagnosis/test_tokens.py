"""Tokenizers, chat templates, end tokens and a text, on the shipped specimen and on folders made from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from eagle3lab.diagnosis import Diagnosis, diagnose
from eagle3lab.errors import InputError
from lab.specimen.paths import drafter_dir, prompts_file, target_dir
from tests.diagnosis.corpus import inputs

TARGET = target_dir()
TABLE, CONFIG = "tokenizer.json", "tokenizer_config.json"


@pytest.fixture
def drafter(tmp_path: Path) -> Path:
    """The specimen's drafter with the target's tokenizer beside it, as many trainers save it."""
    folder = tmp_path / "drafter"
    shutil.copytree(drafter_dir(), folder)
    for name in (TABLE, CONFIG):
        shutil.copy(TARGET / name, folder)
    return folder


def edit(path: Path, change: Any) -> None:
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def code(found: Diagnosis, code: str) -> str:
    """`passed`, the reason why it was skipped, or the title of what was found."""
    titles = [one.title for one in found.findings if one.code == code]
    reasons = [one.reason for one in found.skipped if one.code == code]
    return titles[0] if titles else "passed" if code in found.passed else reasons[0]


def test_equal_tokenizers_and_templates_pass(drafter: Path) -> None:
    found = diagnose(drafter, target=TARGET)
    assert [code(found, f"E3L-T0{n}") for n in (5, 6, 7)] == ["passed"] * 3


def test_a_reformatted_tokenizer_with_fewer_tokens_is_still_the_same(drafter: Path) -> None:
    edit(drafter / TABLE, lambda raw: raw["added_tokens"].pop())
    assert code(diagnose(drafter, target=TARGET), "E3L-T05") == "passed"


def test_a_tokenizer_with_other_ids_is_found(drafter: Path) -> None:
    def swap(raw: Any) -> None:
        vocab = raw["model"]["vocab"]
        names = list(vocab)
        for one, other in zip(names[100:160:2], names[101:160:2], strict=True):
            vocab[one], vocab[other] = vocab[other], vocab[one]
        vocab["no such \x1b[31mtoken"] = len(vocab) + 9

    edit(drafter / TABLE, swap)
    found = diagnose(drafter, target=TARGET)
    finding = next(one for one in found.findings if one.code == "E3L-T05")
    assert finding.fault == "training.pairing" and finding.confidence == 0.85
    assert "60 have another id in the target and 1 are absent" in finding.evidence[0].text
    assert "\x1b" not in finding.evidence[0].text


@pytest.mark.parametrize("junk", ["", "{", "[]", '{"model": {"vocab": 3}}', '{"model": []}'])
def test_a_damaged_tokenizer_is_a_reason_not_a_crash(drafter: Path, junk: str) -> None:
    (drafter / TABLE).write_text(junk)
    found = diagnose(drafter, target=TARGET)
    assert code(found, "E3L-T05") not in ("passed", "The tokenizer beside the drafter is not the target's")


def test_another_chat_template_is_noted_with_the_line(drafter: Path) -> None:
    template = json.loads((TARGET / CONFIG).read_text())["chat_template"]
    (drafter / "chat_template.jinja").write_text(template + "\n{# more #}\n")
    found = diagnose(drafter, target=TARGET)
    finding = next(one for one in found.findings if one.code == "E3L-T06")
    assert finding.severity == "note" and "first differ in line 2" in finding.evidence[0].text
    (drafter / "chat_template.jinja").write_text(template + "  \n")
    assert code(diagnose(drafter, target=TARGET), "E3L-T06") == "passed"


def test_an_end_token_outside_the_draft_vocabulary_is_noted(drafter: Path, tmp_path: Path) -> None:
    ids = inputs(drafter=drafter).get("DraftedIds")
    outside = next(one for one in range(1024) if one not in ids)
    target = tmp_path / "target"
    shutil.copytree(TARGET, target)
    edit(target / "generation_config.json", lambda raw: raw.update(eos_token_id=[outside]))
    found = diagnose(drafter, target=target)
    assert code(found, "E3L-T07") == "The draft vocabulary has no token that ends an answer"
    edit(target / "generation_config.json", lambda raw: raw.update(eos_token_id=[outside, max(ids)]))
    assert code(diagnose(drafter, target=target), "E3L-T07") == "passed"


def test_a_text_of_another_kind_is_found_and_one_of_its_own_is_not(drafter: Path, tmp_path: Path) -> None:
    own = " ".join(json.loads(line)["prompt"] for line in prompts_file().open())
    text = tmp_path / "text.txt"
    text.write_text(own)
    assert code(diagnose(drafter, target=TARGET, text=text), "E3L-T08") == "passed"
    text.write_text("§¶ÆØÅ ŁŻ ЖЩЮ 漢字仮名交じり文 " * 40)
    found = diagnose(drafter, target=TARGET, text=text)
    finding = next(one for one in found.findings if one.code == "E3L-T08")
    assert finding.fault == "training.weak" and "the accept length is at most" in finding.evidence[1].text


def test_a_text_that_cannot_be_read_is_one_error(drafter: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent\.txt"):
        diagnose(drafter, target=TARGET, text=tmp_path / "absent.txt")
    (tmp_path / "text.txt").write_text("words")
    with pytest.raises(InputError, match=r"tokenizer\.json"):
        diagnose(drafter_dir(), text=tmp_path / "text.txt")


@pytest.mark.parametrize(
    ("dtype", "order", "found"),
    [
        ("bfloat16", "none", True),
        ("float32", "none", True),
        ("float32", "right", False),
        ("float32", "scratch", False),
    ],
)
def test_rows_of_the_target_in_no_order(tmp_path: Path, dtype: str, order: str, found: bool) -> None:
    """The head is the target's rows: shuffled as stored, shuffled after a cast, only cast, or of no target at all."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "drafter"
    shutil.copytree(drafter_dir(), folder)
    tensors = load_file(folder / "model.safetensors")
    head = tensors["lm_head.weight"].to(getattr(torch, dtype))
    generator = torch.Generator().manual_seed(5)
    if order == "none":
        head = head[torch.randperm(len(head), generator=generator)]
    elif order == "scratch":
        head = torch.randn(head.shape, generator=generator)
    save_file(tensors | {"lm_head.weight": head.contiguous()}, folder / "model.safetensors")
    codes = [one.code for one in diagnose(folder, target=TARGET).findings]
    assert ("E3L-H06" in codes) is found
