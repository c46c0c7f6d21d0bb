"""Reserved ports: kept from others while held, in a folder that is this user's own."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from eagle3lab.errors import InputError
from eagle3lab.serving.ports import reserve


@pytest.fixture(autouse=True)
def _temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_port_is_kept_from_others_until_it_is_let_go(tmp_path: Path) -> None:
    port, lock = reserve()
    with pytest.raises(InputError, match=f"port {port} on 127.0.0.1 is taken"):
        reserve(port)
    os.close(lock)
    again, lock = reserve(port)
    os.close(lock)
    assert again == port


def test_a_folder_that_another_may_have_made_is_not_used(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / f"eagle3lab-ports-{os.getuid()}").symlink_to(elsewhere)
    with pytest.raises(InputError, match="is not a folder of this user"):
        reserve()
    assert not list(elsewhere.iterdir())
