"""What chapters say of a measured run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eagle3lab.acceptance.run import Counts
from eagle3lab.book.tables import dropped, printed
from eagle3lab.serving.account import Measurement, Seen

RUN = Measurement(Counts(10, 0), "requests", 5, "0.5.9", (), 0, 1.0, None, None, Path("run"))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Decode batch. accept len: 1.00, accept rate: 0.20, cuda graph: False", "1.00, 0.20"),
        ("Decode batch. accept len: 1.00, cuda graph: False", ""),
        (None, ""),
    ],
)
def test_length_and_rate_are_those_of_the_line(line: str | None, expected: str) -> None:
    assert printed(replace(RUN, last_decode_line=line)) == expected


def test_the_trainer_s_mask_does_not_count_as_dropped() -> None:
    names = ("layers.0.mlp.up_proj.weight", "t2d", "fc.t2d")
    seen = Seen(1, None, (), 14, names, (), None, (), ())
    assert dropped(replace(RUN, seen=seen)) == ["layers.0.mlp.up_proj.weight", "fc.t2d"]


def test_without_the_probe_nothing_is_known_to_be_dropped() -> None:
    with pytest.raises(ValueError, match="without the probe"):
        dropped(RUN)
