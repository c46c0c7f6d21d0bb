"""What releases report: formulas are those that lines were read with by hand, fields are where servers have them."""

from __future__ import annotations

import re

import pytest

from eagle3lab.engines.atlas.changes import describe
from eagle3lab.engines.atlas.data import release_facts
from eagle3lab.engines.release import releases
from tests.acceptance.loglines import row_of


@pytest.mark.parametrize("release", releases())
def test_the_log_reader_takes_the_formula_that_the_source_has(release: str) -> None:
    facts = release_facts(release)
    assert facts.acceptance is not None
    assert facts.acceptance.rate_key == row_of(release).formula


def _first(item: str, topic: str) -> str:
    return next(one for one in releases() if item in describe(release_facts(one))[topic])


@pytest.mark.parametrize(
    ("topic", "item", "release"),
    [
        ("server info", "/get_server_info", "0.4.6"),
        ("server info", "/server_info", "0.5.6"),
        ("server info", "avg_spec_accept_length", "0.4.6"),
        ("fields of meta_info", "spec_verify_ct", "0.4.6"),
        ("fields of meta_info", "spec_accept_rate", "0.5.3.post2"),
        ("fields of meta_info", "spec_accept_token_num", "0.5.5.post3"),
        ("metrics", "sglang:spec_accept_rate", "0.5.3.post2"),
        ("metrics", "sglang:spec_num_steps", "0.5.13"),
    ],
)
def test_when_a_field_came(topic: str, item: str, release: str) -> None:
    assert _first(item, topic) == release


def test_the_exception_of_a_target_that_cannot_capture_changes_at_0_5_23() -> None:
    kinds = [describe(release_facts(one))["layer ids"]["a target that cannot"] for one in releases()]
    assert kinds == ["AttributeError"] * (len(kinds) - 1) + ["ValueError"]


def test_every_release_runs_fc_only_where_widths_differ() -> None:
    for release in releases():
        wiring = release_facts(release).wiring
        assert wiring is not None
        assert any(re.match(r"models/llama_eagle3\.py:\d+", str(one)) for one in wiring.fc_if_wider), release
