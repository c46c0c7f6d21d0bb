"""Acceptance pooled from the server's own per-request counts."""

from __future__ import annotations

import pytest

from eagle3lab.serving.client import Generation
from eagle3lab.serving.errors import ServerError
from eagle3lab.serving.measure import count


def answer(verify_steps: int, rate: float) -> Generation:
    return Generation("", (1, 2), {"spec_verify_ct": verify_steps, "spec_accept_rate": rate})


def test_requests_are_weighted_by_their_verifications() -> None:
    # 10 steps x 3 drafts, all accepted; 30 steps x 3 drafts, none.
    measured = count([answer(10, 1.0), answer(30, 0.0)], 4)
    assert (measured.verify_steps, measured.accepted) == (40, 30)
    assert measured.accept_length == 1.75
    assert measured.accept_rate == 0.25


@pytest.mark.parametrize(("rate", "accepted"), [(1 / 3, 7), (0.3333333333333333, 7), (2 / 21, 2)])
def test_counts_come_back_whole_from_the_rate(rate: float, accepted: int) -> None:
    assert count([answer(7, rate)], 4).accepted == accepted


def test_the_last_line_with_an_accept_length_is_kept() -> None:
    log = ["Decode batch, accept len: 1.00", "Decode batch, accept len: 2.00", "Prefill batch"]
    assert count([answer(1, 0.0)], 4, log).last_decode_line == log[1]
    assert count([answer(1, 0.0)], 4).last_decode_line is None


@pytest.mark.parametrize("meta", [{}, {"spec_verify_ct": None, "spec_accept_rate": 0.0}])
def test_a_server_that_does_not_speculate_is_said(meta: dict[str, object]) -> None:
    with pytest.raises(ServerError, match="decodes without it"):
        count([Generation("", (), meta)], 4)
