"""The target: a Llama of two million parameters, trained on the corpus's dialogues.

Small in every direction but depth: eight layers keep the three auxiliary hidden states of an EAGLE-3 head
apart. The shape obeys what engines ask for: head_dim 32 (vLLM on a CPU), an intermediate size that eight
tensor-parallel ranks can share, a vocabulary that is a multiple of 64.
"""

from __future__ import annotations

import copy
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from lab.specimen.tokenizer import BEGIN_ID, END_ID, PAD_ID


@dataclass(frozen=True, slots=True)
class TargetShape:
    """The sizes of the target, in elements; `aux_layers` is what speculators takes by default."""

    vocab_size: int = 1024
    hidden_size: int = 128
    layers: int = 8
    heads: int = 8
    kv_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 384

    @property
    def aux_layers(self) -> list[int]:
        """Layers whose input is an auxiliary hidden state: [2, n // 2, n - 3]."""
        return [2, self.layers // 2, self.layers - 3]


@dataclass(frozen=True, slots=True)
class TrainPlan:
    """How long and how fast to train.

    Attributes:
        steps: Optimiser steps.
        tokens_per_step: Upper bound of a batch, padding included.
        peak_rate: Learning rate after the warm-up.
        warmup: Steps over which the rate rises from zero.
        horizon: Step at which the cosine would reach its end; `steps` when None. Beyond `steps` it keeps
            the rate high until the cool-down.
        cooldown: Last steps, over which the rate falls to zero on a straight line besides.
        weight_decay: AdamW's.
        seed: Of initialisation and order.
        checkpoint_every: Steps between saved training states.
        report_every: Steps between records of the curve.
    """

    steps: int
    tokens_per_step: int = 2048
    peak_rate: float = 3e-3
    warmup: int = 100
    horizon: int | None = None
    cooldown: int = 0
    weight_decay: float = 0.02
    seed: int = 20
    checkpoint_every: int = 100
    report_every: int = 25


def target_config(shape: TargetShape) -> LlamaConfig:
    """The Hugging Face configuration of `shape`: untied head, no biases, rotary base 10 000."""
    return LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=2048,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        bos_token_id=BEGIN_ID,
        eos_token_id=END_ID,
        pad_token_id=PAD_ID,
        rope_theta=10000.0,
    )


def learning_rate(step: int, plan: TrainPlan) -> float:
    """Linear warm-up to `peak_rate`, a cosine down to a twentieth of it at the horizon, and the cool-down."""
    if step < plan.warmup:
        return plan.peak_rate * (step + 1) / plan.warmup
    progress = (step - plan.warmup) / max(1, (plan.horizon or plan.steps) - plan.warmup)
    cosine = 0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    cooling = min(1.0, (plan.steps - step) / plan.cooldown) if plan.cooldown else 1.0
    return plan.peak_rate * cosine * cooling


def batches(rows: Sequence[list[int]], tokens: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Endless batches of rows of like length: `[B, T]` int64 ids padded on the right, `[B, T]` bool mask.

    Rows are shuffled anew each epoch, so a batch depends on `seed` and its place in the sequence alone.
    """
    shuffler = random.Random(seed)
    while True:
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i]) + shuffler.random() * 6, i))
        groups: list[list[int]] = [[]]
        for index in order:
            if (len(groups[-1]) + 1) * len(rows[index]) > tokens and groups[-1]:
                groups.append([])
            groups[-1].append(index)
        shuffler.shuffle(groups)
        for group in groups:
            width = max(len(rows[i]) for i in group)
            ids = torch.full((len(group), width), PAD_ID, dtype=torch.int64)
            mask = torch.zeros((len(group), width), dtype=torch.bool)
            for place, index in enumerate(group):
                length = len(rows[index])
                ids[place, :length] = torch.tensor(rows[index])
                mask[place, :length] = True
            yield ids, mask


def _loss(model: LlamaForCausalLM, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy in nats of every real next token."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    keep = mask[:, 1:]
    return torch.nn.functional.cross_entropy(logits[keep], ids[:, 1:][keep])


def validation_loss(model: LlamaForCausalLM, rows: Sequence[list[int]], tokens: int = 4096) -> float:
    """Mean cross entropy over `rows`, in nats a token, each row counted by its tokens."""
    source, total, count, seen = batches(rows, tokens, 0), 0.0, 0, 0
    with torch.no_grad():
        while seen < len(rows):
            ids, mask = next(source)
            weight = int(mask[:, 1:].sum())
            total += float(_loss(model, ids, mask)) * weight
            count, seen = count + weight, seen + len(ids)
    return total / count


def train_target(
    shape: TargetShape,
    plan: TrainPlan,
    rows: Sequence[list[int]],
    held_out: Sequence[list[int]],
    checkpoint: Path,
    report: Callable[[int, dict[str, float]], None],
) -> tuple[LlamaForCausalLM, list[dict[str, float]]]:
    """Train (or go on training from `checkpoint`) and return the float32 model and its training curve.

    Args:
        shape: Sizes of the model.
        plan: Steps, rate, seed.
        rows: Token ids of each training dialogue, special tokens included.
        held_out: The same for dialogues that are only measured.
        checkpoint: File that keeps the state of an interrupted training; made when absent.
        report: Called with the step and the newest measurements every `report_every` steps.

    Returns:
        The model, and one record every `report_every` steps: `step`, `loss` (mean since the last record),
        `seconds`, and `validation_loss` on every fourth.
    """
    torch.manual_seed(plan.seed)
    model = LlamaForCausalLM(target_config(shape))
    curve = train(
        model,
        plan,
        rows,
        lambda ids, mask: _loss(model, ids, mask),
        lambda: {"validation_loss": validation_loss(model, held_out)},
        4,
        checkpoint,
        {"shape": asdict(shape), "plan": asdict(plan)},
        report,
    )
    model.eval()
    return model, curve


def train(
    model: torch.nn.Module,
    plan: TrainPlan,
    rows: Sequence[list[int]],
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    validate: Callable[[], dict[str, Any]],
    validate_every: int,
    checkpoint: Path,
    made_with: dict[str, Any],
    report: Callable[[int, dict[str, Any]], None],
) -> list[dict[str, Any]]:
    """Train a model in place (or go on from `checkpoint`) and return its training curve.

    Args:
        model: Its parameters that require gradients are trained.
        plan: Steps, rate, seed.
        rows: Token ids.
        loss_of: The loss of a batch: `[B, T]` int64 ids, `[B, T]` bool mask.
        validate: What is measured on held-out rows.
        validate_every: At one record in so many, and at the last.
        checkpoint: File that keeps the state of an interrupted training; made when absent.
        made_with: Settings: a state that was made with others is not taken up.
        report: Called with the step and the newest record every `report_every` steps.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=plan.peak_rate, betas=(0.9, 0.95), weight_decay=plan.weight_decay
    )
    first, curve = 0, list[dict[str, Any]]()
    if checkpoint.exists():
        state: dict[str, Any] = torch.load(checkpoint, weights_only=True)
        if all(state.get(key) == value for key, value in made_with.items()):
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            first, curve = state["step"], state["curve"]
    source = batches(rows, plan.tokens_per_step, plan.seed)
    for _ in range(first):
        next(source)
    spent = curve[-1]["seconds"] if curve else 0.0
    start, total = time.monotonic(), 0.0
    for step in range(first, plan.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, plan)
        loss = loss_of(*next(source))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call, unused-ignore]
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        total += loss.item()
        done = step + 1
        last = done == plan.steps
        if done % plan.report_every == 0 or last:
            record: dict[str, Any] = {"step": done, "loss": total / ((done - 1) % plan.report_every + 1)}
            if done % (validate_every * plan.report_every) == 0 or last:
                record |= validate()
            record["seconds"] = spent + time.monotonic() - start
            curve.append(record)
            report(done, record)
            total = 0.0
        if done % plan.checkpoint_every == 0 or last:
            both = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            checkpoint.parent.mkdir(parents=True, exist_ok=True)
            partial = checkpoint.with_suffix(".partial")  # an interruption leaves the previous state whole
            torch.save({**made_with, **both, "step": done, "curve": curve}, partial)
            partial.replace(checkpoint)
    return curve


def save_target(model: LlamaForCausalLM, folder: Path) -> None:
    """Save as bfloat16 safetensors with `config.json` and `generation_config.json` (greedy by default)."""
    model = copy.deepcopy(model).to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        bos_token_id=BEGIN_ID, eos_token_id=END_ID, pad_token_id=PAD_ID, do_sample=False
    )
    model.save_pretrained(folder, safe_serialization=True)


def load_target(folder: Path) -> LlamaForCausalLM:
    """The saved target, its bfloat16 weights in float32 for computing, ready to evaluate."""
    return LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
