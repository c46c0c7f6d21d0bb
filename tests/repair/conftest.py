"""Fixtures of the repair tests."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncing hundreds of small files takes minutes on a busy disk and shows nothing that a test could see."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
