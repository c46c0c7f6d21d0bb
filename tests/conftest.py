"""How tests share two processes: `pytest -n 2 --dist loadscope --no-loadscope-reorder`.

Real servers run one after the other, first, in one process; every other module stays in one for its fixtures.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

# Tensors of tests are tiny, and several processes share the cores: more threads would wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Modules with tests that start servers; who collects in another process knows names alone.
SERVERS = ("test_servers.py", "test_case_study.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the modules with servers first: they take longest."""
    for item in items:
        assert not item.get_closest_marker("server") or item.path.name in SERVERS, (
            f"{item.nodeid}: a test with a server stands in a module called {SERVERS[0]}"
        )
    items.sort(key=lambda item: item.path.name not in SERVERS)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Distribute by module, all modules with servers being one."""
    from xdist.scheduler import LoadScopeScheduling

    class ByModule(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            return "servers" if module.endswith(SERVERS) else module

    return ByModule(config, log)
