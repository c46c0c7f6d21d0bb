"""What training promises, and when a measurement excludes it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from eagle3lab.acceptance.expectation import (
    CONDITIONAL,
    FULL,
    STEP,
    Accuracies,
    contradiction,
    expect,
    read_accuracies,
    speed_up,
)
from eagle3lab.errors import InputError


def steps(*values: float) -> Accuracies:
    return Accuracies(values, STEP, "a test")


def test_a_chain_multiplies() -> None:
    found = expect(steps(0.8, 0.5, 0.5), 4)
    assert found.per_position == pytest.approx((0.8, 0.4, 0.2))
    assert found.accept_length == pytest.approx(2.4)
    assert found.accept_rate == pytest.approx(1.4 / 3)


def test_fewer_and_more_steps_than_measured() -> None:
    assert expect(steps(0.8, 0.5, 0.5), 2).accept_length == pytest.approx(1.8)
    longer = expect(steps(0.8, 0.5), 4)
    assert longer.per_position == pytest.approx((0.8, 0.4, 0.2))
    assert any("last accuracy" in sentence for sentence in longer.assumptions)


def test_coverage_bounds_every_step() -> None:
    assert expect(steps(1.0, 1.0), 3, coverage=0.9).accept_length == pytest.approx(1 + 0.9 + 0.81)


def test_the_impossible_gap() -> None:
    """74.5 % right at step 0 and an accept length of 1.00, or 1.05, is no weak head."""
    promise = expect(steps(0.745, 0.69, 0.66), 5)
    for measured in (1.00, 1.05):
        said = contradiction(promise, measured)
        assert said is not None
        assert "74.5%" in said
        assert "1.75" in said  # rounds 1.745
    assert contradiction(promise, 1.6) is None
    assert contradiction(expect(steps(0.1), 5), 1.0) is None


@pytest.mark.parametrize(
    ("text", "kind", "conditional"),
    [
        ("[0.745, 0.69]", STEP, (0.745, 0.69)),
        ('{"accuracies": [0.5, 0.4]}', STEP, (0.5, 0.4)),
        # speculators' val_metrics.json: full_acc_k counts positions where every step up to k was right
        (
            json.dumps({"loss_epoch": 1.0, "full_acc_0_epoch": 0.8, "cond_acc_0_epoch": 0.8, "full_acc_1_epoch": 0.4,
                        "cond_acc_1_epoch": 0.5, "full_acc_2_epoch": 0.1, "cond_acc_2_epoch": 0.25}),
            FULL, (0.8, 0.5, 0.25),
        ),
        ('{"cond_acc_0": 0.7, "cond_acc_1": 0.6}', CONDITIONAL, (0.7, 0.6)),
        ('{"eval/acc_0": 0.7, "eval/acc_1": 0.6, "eval/ploss_0": 3.0}', STEP, (0.7, 0.6)),
        ('{"train/acc_0": 0.1}\n{"train/acc_0": 0.7, "train/acc_1": 0.6}\n', STEP, (0.7, 0.6)),
        (
            "Eval - Step 9 [10/20], position 0,  Acc: 0.10\nEval - Step 19, position 0,  Acc: 0.75\n"
            "Eval - Step 19, position 1,  Acc: 0.70\nEval - Step 19, position 0, pLoss: 1.20\n",
            STEP, (0.75, 0.70),
        ),
    ],
)  # fmt: skip
def test_files_of_trainers(text: str, kind: str, conditional: tuple[float, ...], tmp_path: Path) -> None:
    file = tmp_path / "training.json"
    file.write_text(text)
    found = read_accuracies(file)
    assert found.kind == kind
    assert found.conditional == pytest.approx(conditional)


@pytest.mark.parametrize(
    "text",
    [
        *("", "hello", "[]", "[1.5]", "[-0.1]", '["a"]', "[true]", "{}", "[[0.5]]", "[NaN]", "[" * 5000, "\x00"),
        '{"full_acc_0": 0.4, "full_acc_1": 0.6}',
    ],
)  # fmt: skip
def test_files_that_hold_none(text: str, tmp_path: Path) -> None:
    file = tmp_path / "training.json"
    file.write_text(text)
    with pytest.raises(InputError, match="accurac"):
        read_accuracies(file)


def test_absent_and_binary_files(tmp_path: Path) -> None:
    binary = tmp_path / "x.bin"
    binary.write_bytes(b"\xff\xfe\x00\x80")
    for path in (tmp_path / "absent.json", binary, tmp_path):
        with pytest.raises(InputError, match="cannot read"):
            read_accuracies(path)


def test_speed_up_and_break_even() -> None:
    found = speed_up(2.4, draft_cost=0.05, verify_cost=1.05, steps=3)
    assert found.break_even == pytest.approx(1.2)
    assert found.ratio == pytest.approx(2.0)
    assert speed_up(1.0, 0.05, 1.05, 3).ratio < 1  # nothing accepted costs time
    with pytest.raises(InputError):
        speed_up(2.0, -1.0, 0.5, 3)


@pytest.mark.parametrize(("draft_tokens", "coverage"), [(1, 1.0), (4, 0.0), (4, 1.5)])
def test_senseless_expectations(draft_tokens: int, coverage: float) -> None:
    with pytest.raises(InputError):
        expect(steps(0.5), draft_tokens, coverage)
