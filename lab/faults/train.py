"""Heads trained wrongly on purpose, and one trained rightly for as long: what training faults are injected with.

Each is trained from nothing on the target's own answers, with the same rows, order and number of steps, so that the
control differs from a wrong one in its fault alone. They are kept in a cache folder and taken up again when a training
was interrupted. `python -m lab.faults` makes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from eagle3lab.errors import InputError
from lab.specimen import corpus, head, regenerate, tokenizer
from lab.specimen.paths import checkout_folder, drafter_dir, specimen_dir
from lab.specimen.recipe import FULL
from lab.specimen.target import TrainPlan, load_target

#: Called with what is being done, steps done, steps in all, and a note.
Report = Callable[[str, int, int, str], None]
#: Training rows: prompts of the corpus answered by the target. Enough for the steps below to see each about once.
ROWS, HELD_OUT = 2000, 64
#: As the specimen's head is trained, in fewer steps.
PLAN = replace(
    FULL.head, steps=500, warmup=60, horizon=None, cooldown=150, report_every=50, checkpoint_every=50
)


@dataclass(frozen=True, slots=True)
class Training:
    """How one head is trained.

    Attributes:
        what: In words.
        steps: Optimiser steps.
        ttt_steps: Draft steps unrolled.
        shifted: Whether a hidden state goes with the token after its own.
        layers: Target layers whose input is an auxiliary state.
        rope_base: Of the head's layer.
        switches: Of speculators.
    """

    what: str
    steps: int = PLAN.steps
    ttt_steps: int = 3
    shifted: bool = True
    layers: tuple[int, ...] = (2, 4, 5)
    rope_base: float = 10000.0
    switches: Mapping[str, bool] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """Everything that decides what comes out, but the target."""
        return asdict(self) | {"plan": asdict(PLAN), "rows": ROWS}


TRAININGS: Mapping[str, Training] = {
    "control": Training("as the specimen's head, for as many steps as the others"),
    "norm-before-residual": Training(
        "with norm_before_residual: the residual is taken behind hidden_norm",
        switches={"norm_before_residual": True},
    ),
    "one-state": Training("on one auxiliary state, the input of layer 5, instead of three", layers=(5,)),
    "layers-off-by-one": Training(
        "on the outputs of layers 2, 4 and 5 where their inputs were meant", layers=(3, 5, 6)
    ),
    "rope-base": Training("with a rotary base of 100 instead of 10 000", rope_base=100.0),
    "one-step": Training(
        "without training-time test: one draft step, on the target's states alone", ttt_steps=1
    ),
    "unshifted-tokens": Training(
        "with each hidden state beside its own token instead of the next", shifted=False
    ),
    "norm-output": Training(
        "with norm_output: its own hidden state is handed on behind the final norm",
        switches={"norm_output": True},
    ),
    "norm-before-fc": Training(
        "with norm_before_fc: a norm over the three states in front of fc", switches={"norm_before_fc": True}
    ),
    "few-steps": Training("for sixty steps", steps=60),
}


def cache_folder() -> Path:
    """Where trained heads are kept: `.cache/faults` of the checkout."""
    return checkout_folder().parent / ".cache" / "faults"


def _digest(training: Training) -> str:
    digest = hashlib.sha256(json.dumps(training.as_json(), sort_keys=True).encode())
    for name in ("target/model.safetensors", "drafter/model.safetensors"):
        digest.update((specimen_dir() / name).read_bytes())
    return digest.hexdigest()[:12]


def head_folder(name: str) -> Path:
    """Where the head of this training lies once it is made."""
    return cache_folder() / f"{name}-{_digest(TRAININGS[name])}"


def trained_head(name: str) -> Path:
    """The folder of a trained head, as speculators saved it.

    Raises:
        InputError: It has not been made.
    """
    folder = head_folder(name)
    if not (folder / "config.json").is_file():
        raise InputError(
            f"the head {name!r} has not been trained here",
            path=folder,
            advice="Run python -m lab.faults",
        )
    return folder


def train(name: str, report: Report) -> Path:
    """Train the head `name`, or go on where it was interrupted; nothing is done where it is there.

    Raises:
        ImportError: speculators is not installed.
    """
    training, folder = TRAININGS[name], head_folder(name)
    if (folder / "config.json").is_file():
        return folder
    specimen = specimen_dir()
    model = load_target(specimen / "target")
    rows = _rows(model, report)
    maps = load_file(drafter_dir() / "model.safetensors")
    torch.manual_seed(PLAN.seed)
    eagle = head.new_head(
        FULL.shape,
        specimen / "target",
        maps["d2t"],
        maps["t2d"],
        training.ttt_steps,
        layers=training.layers,
        rope_base=training.rope_base,
        **training.switches,
    )
    plan = _plan(training)
    head.train_head(
        eagle,
        model,
        plan,
        rows[HELD_OUT:],
        rows[:HELD_OUT],
        cache_folder() / "states" / f"{folder.name}.pt",
        lambda step, record: report(name, step, plan.steps, f"loss {record['loss']:.3f}"),
        training.ttt_steps,
        shifted=training.shifted,
    )
    partial = folder.with_suffix(".partial")
    head.save_head(eagle, partial)
    partial.replace(folder)
    return folder


def _plan(training: Training) -> TrainPlan:
    share = training.steps / PLAN.steps
    return replace(
        PLAN,
        steps=training.steps,
        warmup=max(1, round(PLAN.warmup * share)),
        cooldown=round(PLAN.cooldown * share),
    )


def _rows(model: LlamaForCausalLM, report: Report) -> list[list[int]]:
    """Prompts with the target's greedy answers, from the cache when this target has given them before."""
    digest = hashlib.sha256((specimen_dir() / "target" / "model.safetensors").read_bytes())
    kept = cache_folder() / f"answers-{ROWS}-{digest.hexdigest()[:12]}.json"
    if kept.is_file():
        return [list(row) for row in json.loads(kept.read_text(encoding="utf-8"))]
    tok = tokenizer.load_tokenizer(specimen_dir() / "target")
    asked = [each.question for each in corpus.dialogues(FULL.modules) if each.split == "train"]
    chosen = asked[:: max(1, len(asked) // ROWS)][:ROWS]
    rows = regenerate.answer(
        model,
        [regenerate.prompt_ids(tok, question) for question in chosen],
        max_new_tokens=96,
        report=lambda done: report("answers", done, len(chosen), ""),
    )
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(rows), encoding="utf-8")
    return rows
