"""Instrumentation of an unmodified SGLang: typed events about a drafter, from its loading to what is accepted.

It enters by the plugin entry point where a release has one (0.5.11 and later) and as Python starts where it has not
(`entry`), wraps four functions (`seams`) and the model instances it finds there, and appends events to one file a
rank (`eagle3lab.runs.events`). Whatever fails in it is told once and goes quiet (`careful`).
"""

from __future__ import annotations

from pathlib import Path

from eagle3lab.serving.overlay import Overlay
from eagle3lab.serving.probe.settings import GuardMode, Settings

_ENTRY = "eagle3lab.serving.probe.entry"
# The first release that loads plugins in every process (`sglang/srt/plugins/__init__.py`).
_PLUGINS_SINCE = (0, 5, 11)


def probe_overlay(
    release: str,
    *,
    events: Path | None,
    full_steps: int = 100,
    tensors: int = 0,
    guard: GuardMode = "off",
) -> Overlay:
    """What to put into a server of this release so that it is watched.

    Args:
        release: `0.5.23`; one that is not understood is entered as Python starts.
        events: Folder for the events, one file a rank; None for none, where only the guard is wanted.
        full_steps: Passes of the drafter and verify steps that are reported one by one before only counting.
        tensors: Passes of the drafter whose tensors are saved beside the events.
        guard: Whether it judges what it saw, and whether it stops the server.
    """
    environment = Settings(
        None if events is None else events.absolute(), guard, full_steps, tensors
    ).environment()
    if _has_plugins(release):
        return Overlay(plugins={"eagle3lab-probe": f"{_ENTRY}:plugin"}, environment=environment)
    return Overlay(startup=(f"{_ENTRY}:startup",), environment=environment)


def _has_plugins(release: str) -> bool:
    parts = release.split(".")[:3]
    return len(parts) == 3 and all(map(str.isdigit, parts)) and tuple(map(int, parts)) >= _PLUGINS_SINCE
