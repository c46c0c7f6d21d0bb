"""A claim is shown, counted and believed only when it is true."""

from __future__ import annotations

import json

import numpy as np
import pytest

from eagle3lab.book.chapters import collect_claims
from eagle3lab.book.claims import CLAIM_MIME, Claim, ClaimFailed, as_value, claim


def test_a_true_claim_passes_in_silence_outside_a_notebook(capsys: pytest.CaptureFixture[str]) -> None:
    assert claim("one is one", 1 == 1, 1) is None
    assert capsys.readouterr().out == ""


def test_a_false_claim_raises_and_names_itself_and_the_value() -> None:
    with pytest.raises(
        ClaimFailed, match=r"the head is trained \(measured 0\.25; expected 0\.745\)"
    ) as caught:
        claim("the head is trained", False, 0.25, expected=0.745)
    assert caught.value.claim.measured == 0.25


@pytest.mark.parametrize("passed", ["yes", 1, None, [True], np.array([True])])
def test_only_a_bool_is_a_verdict(passed: object) -> None:
    with pytest.raises(TypeError, match="must be a bool"):
        claim("something", passed)  # type: ignore[arg-type]


def test_numpy_bools_are_verdicts() -> None:
    claim("numpy says so", np.float64(1.0) < np.float64(2.0))
    with pytest.raises(ClaimFailed):
        claim("numpy denies", np.float64(1.0) > np.float64(2.0))


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (None, None),
        (7168, 7168),
        (True, True),
        (0.1, 0.1),
        ("text", "text"),
        (np.int64(3), 3),
        (np.float32(0.5), 0.5),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (np.float64("inf"), "inf"),
        ((1, 2), "(1, 2)"),
        ([2, 30, 58], "[2, 30, 58]"),
    ],
)
def test_values_become_json_scalars_of_their_own_type(value: object, stored: object) -> None:
    kept = as_value(value)
    assert kept == stored
    assert type(kept) is type(stored)
    json.dumps(kept, allow_nan=False)


def test_every_representation_shows_text_value_and_mark() -> None:
    made = Claim("`fc` is skipped", True, 7168, 21504)
    assert made.to_text() == "✓ `fc` is skipped (measured 7168; expected 21504)"
    assert "<code>fc</code> is skipped" in made.to_html()
    assert "<code>7168</code>" in made.to_html()
    assert Claim("no", False).to_text() == "✗ no"
    assert 'id="claim-3"' in made.to_html("claim-3")


def test_floats_are_shown_short_and_kept_whole() -> None:
    made = Claim("x", True, 0.123456789)
    assert made.to_text() == "✓ x (measured 0.1235)"
    assert made.to_mime()[CLAIM_MIME]["measured"] == 0.123456789


def test_names_from_files_cannot_write_html_or_reach_the_terminal() -> None:
    made = Claim("tensor <script>alert(1)</script>\x1b[31m", True, "<img src=x>\x1b[0m")
    assert "<script" not in made.to_html()
    assert "<img" not in made.to_html()
    for text in (made.to_html(), made.to_text()):
        assert "\x1b" not in text


def test_claims_are_collected_from_outputs_with_the_cell_that_made_them() -> None:
    first, second = Claim("a", True, 1), Claim("b", False, None, "x")
    cells = [
        {"cell_type": "markdown", "source": "# Title"},
        {"cell_type": "code", "source": "", "outputs": []},
        {"cell_type": "code", "source": "x", "outputs": [{"output_type": "stream", "text": "hello"}]},
        {
            "cell_type": "code",
            "source": ["y"],
            "outputs": [{"data": first.to_mime()}, {"data": second.to_mime()}],
        },
    ]
    assert [(made.cell, made.claim) for made in collect_claims(cells)] == [(2, first), (2, second)]
