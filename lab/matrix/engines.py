"""Where vLLM and SGLang differ: the same faulty head in both, compared verification by verification, and why."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lab.matrix.records import Cell, Matrix, Way
from lab.matrix.vllm import ENGINE

SGLANG = "sglang==0.5.23"

_LAYERS = "vLLM captures what enters the layer that an id names, SGLang what leaves it"
_EMBEDDING = (
    "vLLM keeps the head's own embeddings where they differ from the target's; SGLang puts the target's in"
)
_READS = "vLLM reads {} and computes as the head was trained"
_CLASS = "vLLM puts Eagle3 in front of a class's name where it is not there, and has a class of that name"
_NAMES = "vLLM stops at a name that leads nowhere; SGLang skips it"
_MEMORY = "parameters that nothing fills hold whatever their memory held, in either engine"

REASONS: dict[str, str] = {
    "capture.ids-convention/inputs-for-outputs": f"{_LAYERS}: these are the right ids there.",
    "capture.ids-convention/twice-converted": f"{_LAYERS}.",
    "capture.ids-convention/early-layers": f"{_LAYERS}.",
    "capture.ids-range": f"{_LAYERS}: 8 is the output of the last of eight layers there, and exists.",
    "capture.ids-ignored": _READS.format("the ids at the top level of config.json, which SGLang does not,")
    + ".",
    "capture.width/named": f"vLLM runs fc whatever the widths are, SGLang skips it where they are equal; {_LAYERS}.",
    "head-kind.architecture": f"{_CLASS}.",
    "head-kind.architecture/unknown": f"{_CLASS}.",
    "head-kind.config-dialect": "vLLM translates the config of speculators and takes the name layers.0.",
    "head.embedding/own": f"{_EMBEDDING}.",
    "head.lm-head-missing": "vLLM shares the target's head, whose rows are target ids; SGLang leaves one unfilled.",
    "head.tied": "vLLM does not read tie_word_embeddings of an EAGLE-3 head.",
    "layer.context": "SGLang stops where the head's longest position is shorter than the target's; vLLM serves it, and "
    "drafts nothing good beyond.",
    "layer.norm-before-residual": _READS.format("norm_before_residual, which SGLang does not,") + ".",
    "layer.quantisation": f"{_NAMES}, and the weights are read without their scales.",
    "names.dropped/module": f"{_NAMES}.",
    "names.unsupported-tensor": f"{_NAMES}.",
    "training.pairing/other-target": f"{_EMBEDDING}: of the two things that no longer fit, the states alone are left.",
    "vocab.double-offset": "vLLM writes scores to the ids, where negative ones count from the end; SGLang looks ids up "
    "by row.",
    "vocab.dtype": "vLLM casts d2t to whole numbers when it loads it: the rounded ids are drafted.",
    "vocab.range/repeated": "vLLM writes scores to the ids: of two rows with one id the other's score is lost. In "
    "SGLang both rows compete.",
}
"""By fault, why vLLM's figures are not SGLang's."""

LEFT_TO_CHANCE: frozenset[str] = frozenset(
    {
        "files.unindexed-shard",
        "head-kind.layer-count",
        "layer.bias",
        "layer.bias/fc",
        "names.missing/down-projection",
        "names.missing/fc",
        "names.missing/gate-projection",
        "names.missing/k-projection",
        "names.missing/o-projection",
        "names.missing/q-projection",
        "names.missing/up-projection",
        "names.missing/v-projection",
        "names.missing/whole-layer",
    }
)
"""Faults that leave parameters unfilled: vLLM fills none either, and its figures may differ from run to run."""

Relation = Literal["alike", "both stop", "differs", "chance", "one only"]
"""`alike`: every verification accepts the same. `chance`: parameters are left unfilled. `one only`: the fault does not
apply to one of them, or has no figures there."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One fault in both.

    Attributes:
        fault: Name of the injector.
        vllm: Measured by vLLM.
        sglang: Of the reference as SGLang 0.5.23, or of its server where the reference has no figures; None where
            there is neither.
        relation: See `Relation`.
        why: Why they differ; empty where they do not.
    """

    fault: str
    vllm: Cell
    sglang: Cell | None
    relation: Relation
    why: str


def compare(matrix: Matrix) -> tuple[Comparison, ...]:
    """Every cell of vLLM beside SGLang's of the same fault, in the order of the matrix."""
    rows = []
    for cell in matrix.of(engine=ENGINE):
        other = _sglang(matrix, cell.fault)
        relation = _relation(cell, other)
        why = (
            _MEMORY + "."
            if relation == "chance"
            else REASONS.get(cell.fault, "")
            if relation == "differs"
            else ""
        )
        rows.append(Comparison(cell.fault, cell, other, relation, why))
    return tuple(rows)


def _sglang(matrix: Matrix, fault: str) -> Cell | None:
    ways: tuple[Way, ...] = ("reference", "server")
    cells = [cell for way in ways if (cell := matrix.cell(fault, SGLANG, way)) is not None]
    return next((cell for cell in cells if cell.outcome != "not modelled"), None)


def _relation(cell: Cell, other: Cell | None) -> Relation:
    known = ("measured", "stops")
    if other is None or cell.outcome not in known or other.outcome not in known:
        return "one only"
    if cell.outcome == other.outcome == "stops":
        return "both stop"
    if cell.fault in LEFT_TO_CHANCE:
        return "chance"
    figures = [(one.outcome, one.answers, one.histograms, one.rounds) for one in (cell, other)]
    if not (cell.rounds and other.rounds):
        figures = [(*one[:3], ()) for one in figures]
    return "alike" if figures[0] == figures[1] else "differs"
