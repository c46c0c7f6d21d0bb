"""What every SGLang release does: the facts of all releases from 0.4.6 on, read from the releases themselves."""

from __future__ import annotations

from eagle3lab.engines.atlas.data import Entry, entries, nearest_older, release_facts, releases
from eagle3lab.engines.atlas.order import release_key

__all__ = ["Entry", "entries", "nearest_older", "release_facts", "release_key", "releases"]
