"""Accepted drafts from the requests' own counts, as releases keep them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from eagle3lab.serving.probe import Settings
from eagle3lab.serving.probe.recorder import Recorder
from eagle3lab.serving.probe.session import VerifyWatch


def watch() -> tuple[VerifyWatch, list[tuple[int, int]]]:
    written: list[tuple[int, int]] = []
    made = VerifyWatch(
        Recorder(Settings()), 10, 4, lambda: written.append((made.verifications, made.accepted))
    )
    return made, written


def request(name: str, over: bool = False) -> Any:
    made = SimpleNamespace(rid="r", spec_verify_ct=0, output_ids=[1], over=over)
    made.finished = lambda: made.over
    setattr(made, name, 0)
    return made


def verify(made: Any, name: str, accepted: int) -> None:
    made.spec_verify_ct += 1
    made.output_ids += [0] * (accepted + 1)
    if name != "unused":
        setattr(made, name, getattr(made, name) + accepted)


@pytest.mark.parametrize(
    "name", ["spec_num_correct_drafts", "spec_accepted_drafts", "spec_accepted_tokens", "unused"]
)
def test_each_release_s_way_of_counting(name: str) -> None:
    counts, written = watch()
    one = request(name)
    counts.on_results([one])
    for accepted in (3, 0, 2):
        verify(one, name, accepted)
        one.over = accepted == 2
        counts.on_results([one])
    assert (counts.verifications, counts.accepted, counts.per_position) == (3, 5, [2, 2, 1])
    assert written[-1] == (3, 5)


def test_what_was_counted_is_not_counted_again_and_nothing_new_is_not_written() -> None:
    counts, written = watch()
    one = request("spec_accepted_tokens", over=True)
    verify(one, "spec_accepted_tokens", 1)
    for _ in range(4):  # a finished request may pass by once more under overlap
        counts.on_results([one])
    assert counts.verifications == 1 and len(written) == 1


def test_a_request_whose_counts_jump_is_left_out_until_it_goes_on() -> None:
    counts, _ = watch()
    one = request("spec_accepted_tokens")
    one.spec_verify_ct, one.spec_accepted_tokens = 5, 9
    counts.on_results([one])
    assert counts.verifications == 0
    verify(one, "spec_accepted_tokens", 2)
    counts.on_results([one])
    assert (counts.verifications, counts.accepted) == (1, 2)
