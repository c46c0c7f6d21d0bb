"""Which tests share a process when they run in several: `pytest -n 2 --dist loadgroup --no-loadscope-reorder`.

Real servers run one after the other, first, in one process; every other module stays in one for its fixtures.
"""

from __future__ import annotations

import os

import pytest

# Tensors of tests are tiny, and several processes share the cores: more threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests with servers first and into one group, the tests of each other module into one of its own."""
    items.sort(key=lambda item: item.get_closest_marker("server") is None)
    for item in items:
        server = item.get_closest_marker("server") is not None
        item.add_marker(pytest.mark.xdist_group("servers" if server else item.nodeid.partition("::")[0]))
