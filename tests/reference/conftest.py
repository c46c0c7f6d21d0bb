"""The permutation target and its heads, computed by the reference."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from lab.reference import Drafter, Target, load_as_trained, load_reference_target
from lab.specimen import permutation_dir


@pytest.fixture(scope="session")
def permuting() -> Target:
    return load_reference_target(permutation_dir("target"))


@pytest.fixture(scope="session")
def perfect(permuting: Target) -> Drafter:
    return load_as_trained(permutation_dir("uses-every-tensor"), permuting)
