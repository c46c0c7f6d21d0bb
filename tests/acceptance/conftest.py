"""What the tests of acceptance share."""

from __future__ import annotations

import pytest

from eagle3lab.acceptance import log as reader


@pytest.fixture(params=["line by line", "at once"])
def both_ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks read line by line, as those of a small log are, or as columns, as those of a large one are."""
    monkeypatch.setattr(reader, "SMALL", 1 << 30 if request.param == "line by line" else 0)
