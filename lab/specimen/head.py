"""The EAGLE-3 head, trained with the real speculators model class and saved by it.

Each row (a prompt and the target's answer) goes through the target once; the head learns from the auxiliary
hidden states to say what the target would say, several steps ahead through its own hidden states
("training-time test"). Model, losses and file format are speculators' own; only the loop is here.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaForCausalLM

from lab.specimen.regenerate import answer_start
from lab.specimen.target import TargetShape, TrainPlan, batches, target_config, train
from lab.specimen.tokenizer import SPECIAL_TOKENS

#: Draft steps in training, as many as the specimen is served with (four draft tokens).
TTT_STEPS = 3
#: What the saved configuration calls the target: speculators writes the path it was given, ours must not
#: travel.
VERIFIER_NAME = "eagle3lab/specimen-target"


@dataclass(frozen=True, slots=True)
class StepAccuracy:
    """How often a draft step is right on held-out answers, the target's tokens being fed ("teacher forcing").

    Attributes:
        step: 1-based draft step.
        full: Share of all positions at which this step and all before it are right.
        conditional: The same among positions at which all steps before it are right.
    """

    step: int
    full: float
    conditional: float


def vocabulary_map(
    rows: Sequence[list[int]], vocab_size: int, draft_vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`d2t` `[D]` int64 offsets and `t2d` `[V]` bool: the answers' most frequent ids and all special ones."""
    from speculators.train.vocab_mapping import build_vocab_mappings_from_distribution

    counts = Counter(token for row in rows for token in row[answer_start(row) :])
    ceiling = counts.total() + 1
    for special in range(len(SPECIAL_TOKENS)):
        counts[special] = ceiling
    d2t, t2d = build_vocab_mappings_from_distribution(dict(counts), draft_vocab_size, vocab_size)
    return d2t, t2d


def coverage(rows: Sequence[list[int]], t2d: torch.Tensor) -> float:
    """The share of the answers' tokens that the draft vocabulary holds."""
    kept: list[bool] = t2d.tolist()
    answers = [token for row in rows for token in row[answer_start(row) :]]
    return sum(kept[token] for token in answers) / len(answers)


def new_head(
    shape: TargetShape,
    target_folder: Path,
    d2t: torch.Tensor,
    t2d: torch.Tensor,
    ttt_steps: int = TTT_STEPS,
    *,
    layers: Sequence[int] | None = None,
    rope_base: float | None = None,
    **switches: bool,
) -> Any:
    """A fresh `Eagle3DraftModel`: one Llama layer of the target's shape, embedding and head the target's.

    Args:
        shape: The target's sizes.
        target_folder: The target.
        d2t: `[D]` int64 offsets.
        t2d: `[V]` bool.
        ttt_steps: Draft steps to unroll in training.
        layers: Target layers whose input is an auxiliary state; the shape's if None.
        rope_base: Of the layer; the target's if None.
        switches: Of speculators, as `norm_before_residual=True`; all false unless given.
    """
    from speculators.models.eagle3 import Eagle3DraftModel

    layer = target_config(shape)
    layer.num_hidden_layers = 1
    if rope_base is not None:
        layer.rope_parameters = {**layer.rope_parameters, "rope_theta": rope_base}
    return Eagle3DraftModel.from_training_args(
        layer,
        t2d=t2d,
        d2t=d2t,
        draft_vocab_size=len(d2t),
        ttt_steps=ttt_steps,
        target_layer_ids=list(layers or shape.aux_layers),
        verifier_name_or_path=str(target_folder),
        draft_attn_impl="eager",
        **({"norm_before_residual": False} | switches),
    )


class _Targets:
    """The target's side of a training step: what it saw and what it would say."""

    def __init__(self, target: LlamaForCausalLM, aux_layers: Sequence[int], shifted: bool = True) -> None:
        self._target = target.requires_grad_(False).eval()
        self._aux_layers = aux_layers
        self._shifted = shifted
        self._last: torch.Tensor | None = None
        # speculators applies the final norm itself; transformers gives the last state only after it.
        target.model.norm.register_forward_pre_hook(self._remember)

    def _remember(self, module: object, inputs: tuple[torch.Tensor, ...]) -> None:
        self._last = inputs[0]

    def batch(self, ids: torch.Tensor, mask: torch.Tensor) -> dict[str, torch.Tensor]:
        """Arguments of the head's forward for rows `ids` `[B, T]`.

        The rows are laid end to end as documents of T - 1 tokens. The hidden state at t goes with the token
        at t + 1, and the target's last state at t + 1 tells what the head should say there.
        """
        with torch.no_grad():
            output = self._target.model(input_ids=ids, use_cache=False, output_hidden_states=True)
        assert self._last is not None
        aux = torch.cat([output.hidden_states[layer] for layer in self._aux_layers], dim=-1)
        count, width = ids.shape
        documents = torch.arange(count)[:, None].expand(count, width - 1)
        positions = torch.arange(1, width).expand(count, width - 1)
        starts = torch.tensor([answer_start(row) for row in ids.tolist()])[:, None]
        lasts = mask.sum(1, keepdim=True) - 1
        return {
            "hidden_states": aux[:, :-1].flatten(0, 1)[None],
            "input_ids": (ids[:, 1:] if self._shifted else ids[:, :-1]).flatten()[None],
            "document_ids": documents.where(mask[:, 1:], -1).flatten()[None],
            "position_ids": positions.flatten()[None],
            # Every answer token but the last asks for a draft of the one after it.
            "loss_mask": ((positions >= starts) & (positions < lasts)).flatten()[None],
            "verifier_last_hidden_states": self._last[:, 1:].flatten(0, 1)[None],
        }


def _accuracies(sums: Counter[str], ttt_steps: int) -> list[StepAccuracy]:
    return [
        StepAccuracy(
            step + 1,
            sums[f"full_acc_{step}_sum"] / sums[f"full_acc_{step}_total"],
            sums[f"cond_acc_{step}_sum"] / max(1.0, sums[f"cond_acc_{step}_total"]),
        )
        for step in range(ttt_steps)
    ]


def validate_head(
    head: Any, targets: _Targets, rows: Sequence[list[int]], tokens: int, ttt_steps: int
) -> tuple[float, list[StepAccuracy]]:
    """Mean loss (summed over the draft steps, nats) and accuracy of each step over `rows`."""
    source, sums, seen, number = batches(rows, tokens, 0), Counter[str](), 0, 0
    with torch.no_grad():
        while seen < len(rows):
            ids, mask = next(source)
            _, loss, metrics = head(**targets.batch(ids, mask), ttt_steps=ttt_steps, loss_config=_losses())
            sums["loss"] += loss.item()
            for name, value in metrics.items():
                sums[name] += value.item()
            seen, number = seen + len(ids), number + 1
    return sums["loss"] / number, _accuracies(sums, ttt_steps)


def _losses() -> Any:
    from speculators.losses import resolve_loss_config

    # The default losses are Triton kernels; these are the same formulas in plain torch.
    return resolve_loss_config("kl_div", "eager")


def train_head(
    head: Any,
    target: LlamaForCausalLM,
    plan: TrainPlan,
    rows: Sequence[list[int]],
    held_out: Sequence[list[int]],
    checkpoint: Path,
    report: Callable[[int, dict[str, Any]], None],
    ttt_steps: int = TTT_STEPS,
    *,
    shifted: bool = True,
) -> list[dict[str, Any]]:
    """Train `head` in place (or go on from `checkpoint`) and return its training curve.

    Args:
        head: From `new_head`.
        target: The float32 target, its bfloat16-rounded weights.
        plan: Steps, rate, seed; `tokens_per_step` also sets the attention's size, which grows with its
            square.
        rows: Token ids of prompts with the target's answers.
        held_out: The same for prompts that are only measured.
        checkpoint: File that keeps the state of an interrupted training; made when absent.
        report: Called with the step and the newest record every `report_every` steps.
        ttt_steps: Draft steps to unroll.
        shifted: Whether a hidden state goes with the token after its own, as it does in serving; false trains a head
            wrongly on purpose.

    Returns:
        One record every `report_every` steps: `step`, `loss` (summed over the draft steps, mean since the
        last record), `seconds`, and on every eighth `validation_loss` and `validation` (one `StepAccuracy`
        a step, as a dict).
    """
    targets = _Targets(target, head.target_layer_ids, shifted)

    def loss_of(ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        _, loss, _ = head(**targets.batch(ids, mask), ttt_steps=ttt_steps, loss_config=_losses())
        found: torch.Tensor = loss
        return found

    def validate() -> dict[str, Any]:
        loss, steps = validate_head(head, targets, held_out, plan.tokens_per_step, ttt_steps)
        return {"validation_loss": loss, "validation": [asdict(each) for each in steps]}

    made_with = {"plan": asdict(plan), "ttt_steps": ttt_steps}
    return train(head, plan, rows, loss_of, validate, 8, checkpoint, made_with, report)


def save_head(head: Any, folder: Path) -> None:
    """Save in bfloat16 by speculators' own `save_pretrained`, then take out what must not travel.

    speculators records where its target lay (`verifier.name_or_path`), for which a neutral name is put, and
    lays the source of its own configuration class beside the weights, which is taken away: a checkpoint
    needs no code. Nothing else is changed.
    """
    saved = copy.deepcopy(head).to(torch.bfloat16)
    saved.save_pretrained(folder)
    for source in folder.glob("*.py"):
        source.unlink()
    config_path = folder / "config.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    config["speculators_config"]["verifier"]["name_or_path"] = VERIFIER_NAME
    for part in (config, config["transformer_layer_config"]):
        part.pop("_name_or_path", None)
    config_path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
