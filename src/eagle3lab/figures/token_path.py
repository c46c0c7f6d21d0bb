"""The way of a token, drawn: from the checkpoint on disk to an accepted draft, with the faults of each stage.

The drawing is SVG in the page's own colours, so it follows light and dark. Each stage links to the chapter that looks
at it, and its last line to the faults there. Wide pages get three columns, narrow ones a single one.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from itertools import pairwise

WIDTH, HEIGHT, GAP_X, GAP_Y = 270, 104, 36, 44  # of a stage, and between stages, in SVG units


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage between a checkpoint on disk and an accepted token.

    Attributes:
        title: What happens there.
        detail: What goes in and comes out, H being the hidden size.
        chapter: The notebook that looks at it, without folder and suffix.
        families: Families of faults that sit there.
    """

    title: str
    detail: str
    chapter: str
    families: tuple[str, ...]


STAGES = (
    Stage(
        "Checkpoint on disk",
        "config.json, *.safetensors",
        "02-what-the-checkpoint-holds",
        ("files", "head-kind"),
    ),
    Stage("load_weights", "tensor names to parameters", "03-what-the-engine-loads", ("names",)),
    Stage("Target layers tapped", "three states, each H wide", "06-the-hidden-states", ("capture",)),
    Stage("fc fuses them", "3H in, H out", "06-the-hidden-states", ("capture",)),
    Stage("Decoder layer", "state beside embedding, 2H", "05-head-and-embeddings", ("layer",)),
    Stage("lm_head", "scores over the draft vocabulary", "05-head-and-embeddings", ("head",)),
    Stage("d2t", "draft id + offset = target id", "04-the-token-map", ("vocab",)),
    Stage("Verify", "one target pass over D tokens", "07-the-server", ("flags", "runtime")),
    Stage("Accept length", "tokens per verify step, 1 to D", "08-acceptance", ("metric", "training")),
)
"""In the order in which a drafted token passes them."""


def token_path(up: str = "../", *, columns: int = 3, current: str | None = None) -> str:
    """The drawing as one `<svg>` element.

    Args:
        up: From the page that shows it to the folder that holds `book/` and `notebooks/`.
        columns: Stages side by side; rows run left to right, then right to left.
        current: A chapter whose stages are marked: "you are here".
    """
    places = [_place(index, columns) for index in range(len(STAGES))]
    rows = -(-len(STAGES) // columns)
    width, height = columns * (WIDTH + GAP_X) - GAP_X + 4, rows * (HEIGHT + GAP_Y) - GAP_Y + 4
    tip = f"eagle3lab-tip-{columns}"  # of its own: a marker in a hidden drawing is not drawn elsewhere
    arrows = [_arrow(start, end, tip) for start, end in pairwise(places)]
    stages = [
        _stage(number, stage, place, up, stage.chapter == current)
        for number, (stage, place) in enumerate(zip(STAGES, places, strict=True), 1)
    ]
    return (
        f'<svg class="eagle3lab-path eagle3lab-path-{columns}" viewBox="0 0 {width} {height}" role="group" '
        'aria-label="The way of a token: nine stages from the checkpoint to the accept length, each with its faults">'
        f'<defs><marker id="{tip}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" markerHeight="6" '
        'orient="auto"><path d="M0 0 8 4 0 8z" class="tip"/></marker></defs>'
        + "".join(arrows + stages)
        + "</svg>"
    )


def token_strip(current: str, up: str = "../") -> str:
    """The stages as one line of links, those of a chapter marked: "you are here". Empty for a chapter without one.

    Args:
        current: The notebook, without folder and suffix.
        up: As for `token_path`.
    """
    if current not in {stage.chapter for stage in STAGES}:
        return ""
    links = "".join(
        f'<li><a href="{up}notebooks/{stage.chapter}.html"'
        + (' aria-current="step"' if stage.chapter == current else "")
        + f">{html.escape(stage.title)}</a></li>"
        for stage in STAGES
    )
    return f'<nav class="eagle3lab-strip" aria-label="The way of a token"><ol>{links}</ol></nav>'


def _place(index: int, columns: int) -> tuple[float, float]:
    row, column = divmod(index, columns)
    if row % 2:
        column = columns - 1 - column
    return 2 + column * (WIDTH + GAP_X), 2 + row * (HEIGHT + GAP_Y)


def _arrow(start: tuple[float, float], end: tuple[float, float], tip: str) -> str:
    (x1, y1), (x2, y2) = start, end
    if y1 == y2:
        out, into = (WIDTH, 0) if x2 > x1 else (0, WIDTH)
        line = f"M{x1 + out} {y1 + HEIGHT / 2}H{x2 + into}"
    else:
        line = f"M{x1 + WIDTH / 2} {y1 + HEIGHT}V{y2}"
    return f'<path class="arrow" d="{line}" marker-end="url(#{tip})"/>'


def _stage(number: int, stage: Stage, place: tuple[float, float], up: str, marked: bool) -> str:
    x, y = place
    faults = " · ".join(
        f'<a href="{up}book/faults/index.html#{family}" aria-label="Faults: {family}">'
        f'<tspan class="fault">{family}</tspan></a>'
        for family in stage.families
    )
    return (
        f'<a href="{up}notebooks/{stage.chapter}.html">'
        f'<rect class="stage{" here" if marked else ""}" x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="8"/>'
        f'<text class="title" x="{x + 14}" y="{y + 30}">{number}. {html.escape(stage.title)}</text>'
        f'<text class="detail" x="{x + 14}" y="{y + 55}">{html.escape(stage.detail)}</text></a>'
        f'<text class="detail" x="{x + 14}" y="{y + 86}">faults: {faults}</text>'
    )
