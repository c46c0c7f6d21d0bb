"""The facts of a vLLM release read from its source: as text and syntax tree, never imported."""

from __future__ import annotations

from eagle3lab.engines.extract.model import VllmFacts

__all__ = ["VllmFacts"]
