"""Tensor names short enough for an axis."""

from __future__ import annotations

from collections.abc import Iterable

from eagle3lab.text import printable

_IMPLIED = {"weight", "self_attn", "mlp", "model", "midlayer", "layers"}


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Full name → a label without the parts that every drafter has; the full name where two would be equal.

    `layers.0.self_attn.q_proj.weight` becomes `q_proj`. Names are untrusted and come out printable.
    """
    names = list(names)
    labels = {name: _shorten(name) for name in names}
    shared = {label for label in labels.values() if list(labels.values()).count(label) > 1}
    return {name: printable(name if label in shared else label, 40) for name, label in labels.items()}


def _shorten(name: str) -> str:
    parts = [part for part in name.split(".") if part not in _IMPLIED and not part.isdigit()]
    return ".".join(parts) or name
