"""A drafter's forward pass as its trainer computes it: speculators' own class, watched from outside.

The class is built from the folder's config and given the folder's weights as float32; a config in another dialect is
put into its own first. Nothing is fetched, and no code of the folder is run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eagle3lab.checkpoint import Checkpoint, open_checkpoint
from eagle3lab.checkpoint.config import speculators_config
from eagle3lab.errors import InputError
from lab.reference import Target

# Names in a checkpoint that a forward pass has no use for.
_IDLE = ("t2d", "verifier_norm.weight", "verifier_lm_head.weight", "rotary_emb.inv_freq")


@dataclass(frozen=True, slots=True)
class TrainerHead:
    """A head in speculators' class.

    Attributes:
        model: `Eagle3DraftModel`, float32.
        token_ids: `[D]`, the target id of every draft id; None where drafts are target ids.
    """

    model: Any
    token_ids: Tensor | None

    def trace(self, tokens: Tensor, states: Tensor, steps: int) -> list[dict[str, Tensor]]:
        """Everything that each of `steps` draft steps computes, the recorded tokens being fed to each.

        Args:
            tokens: `[T]` int64, the token after each state.
            states: `[T, k × Ht]` float32 of the target.
            steps: Draft steps. One more is run, to see what it is given.
        """
        seen: list[dict[str, Tensor]] = []
        # Where there is a GPU, speculators compiles its forward, past the hooks.
        eager = torch.compiler.set_stance("force_eager")
        with _watched(self.model, seen), torch.inference_mode(), eager:
            self.model(
                hidden_states=states[None],
                input_ids=tokens[None],
                document_ids=torch.zeros(1, len(tokens), dtype=torch.int64),
                ttt_steps=steps + 1,
            )
        for now, after in pairwise(seen):
            now["recurrence"] = after["layer input"]
        for now in seen:
            drafts = now["logits"].argmax(-1)
            now["drafted tokens"] = drafts if self.token_ids is None else self.token_ids[drafts]
        seen[0]["target states"] = states
        return seen[:steps]


def load_trainer_head(folder: Path, target: Target) -> TrainerHead:
    """The head in `folder` as speculators has it.

    Args:
        folder: A drafter checkpoint in any dialect, with any trainer's names.
        target: Lends its embedding, or the rows of its head, where the folder has none.

    Raises:
        InputError: speculators is not installed, or its class cannot be this head.
    """
    checkpoint = open_checkpoint(folder)
    model = _build(checkpoint)
    tensors = _tensors(checkpoint, model)
    own = model.state_dict()
    token_ids = None
    if model.use_draft_vocab:
        if "d2t" not in tensors:
            raise InputError(
                "has no d2t, and its draft vocabulary is not the target's",
                path=folder,
                advice="The trainer's side needs the map: give the folder that the trainer saved as --trained.",
            )
        token_ids = tensors["d2t"].to(torch.int64) + torch.arange(len(tensors["d2t"]))
    tensors.setdefault("embed_tokens.weight", target.embedding)
    if "lm_head.weight" not in tensors:
        head = target.lm_head
        tensors["lm_head.weight"] = head if token_ids is None else head[token_ids.clamp(0, len(head) - 1)]
    needed = [name for name in own if name not in (*_IDLE, "d2t")]
    for name in needed:
        if name not in tensors:
            raise InputError(
                "is missing, and speculators' class computes with it",
                path=folder,
                tensor=name,
                advice="Give the folder that the trainer saved as --trained.",
            )
        if tensors[name].shape != own[name].shape:
            raise InputError(
                f"has shape {list(tensors[name].shape)}; by config.json it is {list(own[name].shape)}",
                path=folder,
                tensor=name,
            )
    model.load_state_dict({name: tensors[name].to(torch.float32) for name in needed}, strict=False)
    return TrainerHead(model, token_ids)


def _build(checkpoint: Checkpoint) -> Any:
    """The class with the folder's config, its weights still to come."""
    try:
        from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    except ImportError as error:
        raise InputError(
            f"the trainer's side needs the speculators library: {error}",
            path=checkpoint.path,
            advice="Install it: pip install 'eagle3lab[train]'",
        ) from None
    config = checkpoint.config
    if config.num_hidden_layers != 1:
        raise InputError(
            f"has {config.num_hidden_layers} decoder layers; heads of one layer are compared",
            path=checkpoint.path,
        )
    if config.bias and config.dialect != "speculators":
        raise InputError(
            "its config cannot be put into speculators' dialect: fc has no bias there", path=checkpoint.path
        )
    raw = dict(config.raw)
    if config.dialect != "speculators":
        # How many layers there are is all that the class makes of their ids.
        raw = speculators_config(config, tuple(range(config.num_aux_hidden_states)), "", [])
    try:
        settings = Eagle3SpeculatorConfig(**{key: value for key, value in raw.items() if key != "auto_map"})
        settings.transformer_layer_config._attn_implementation = "eager"
        model = Eagle3DraftModel(config=settings)
    except (ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise InputError(
            f"speculators does not take this config: {' '.join(str(error).split())[:300]}",
            path=checkpoint.path / "config.json",
        ) from None
    return model.to(torch.float32).eval()


def _tensors(checkpoint: Checkpoint, model: Any) -> dict[str, Tensor]:
    """The folder's tensors by speculators' names."""
    known, found = set(model.state_dict()), dict[str, Tensor]()
    for name in checkpoint.tensors:
        plain = name.removeprefix("model.").replace("midlayer.", "layers.0.")
        if plain not in known and plain not in _IDLE and plain != "d2t":
            raise InputError(
                "is nothing that speculators' class has",
                path=checkpoint.path,
                tensor=name,
                advice="Give the folder that the trainer saved as --trained.",
            )
        if plain in known or plain == "d2t":
            found[plain] = torch.from_numpy(checkpoint.read(name).copy())
    return found


@contextlib.contextmanager
def _watched(model: Any, seen: list[dict[str, Tensor]]) -> Iterator[None]:
    """Write down what the modules of `model` are given and give; a step begins with its embedding."""
    before: dict[str, Tensor] = {}
    layer, handles = model.layers[0], []

    def output(module: Any, name: str) -> None:
        def keep(_: Any, __: Any, result: Any) -> None:
            seen[-1][name] = (result[0] if isinstance(result, tuple) else result)[0].clone()

        handles.append(module.register_forward_hook(keep))

    def begin(_: Any, __: Any, result: Tensor) -> None:
        seen.append({"embedding": result[0].clone(), **before})
        before.clear()

    def fused(_: Any, given: tuple[Tensor], result: Tensor) -> None:
        before.update({"fc input": given[0][0].clone(), "fc": result[0].clone()})

    def entered(_: Any, given: tuple[Tensor, ...], named: dict[str, Any]) -> None:
        both = given[0] if given else named["hidden_states"]
        seen[-1]["layer input"] = both[0].chunk(2, dim=-1)[1].clone()
        seen[-1]["positions"] = named["position_ids"][0].clone()

    def rotated(_: Any, __: Any, named: dict[str, Any], ___: Any) -> None:
        from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

        width = model.layers[0].self_attn.head_dim
        pair = [
            seen[-1][name].unflatten(-1, (-1, width)).transpose(0, 1)[None] for name in ("queries", "keys")
        ]
        turned = apply_rotary_pos_emb(*pair, *named["position_embeddings"])
        for name, rows in zip(("rotated queries", "rotated keys"), turned, strict=True):
            seen[-1][name] = rows[0].transpose(0, 1)

    def residual(_: Any, given: tuple[Tensor]) -> None:
        seen[-1]["attention residual"] = given[0][0].clone()

    handles.append(model.fc.register_forward_hook(fused))
    handles.append(model.embed_tokens.register_forward_hook(begin))
    handles.append(layer.register_forward_pre_hook(entered, with_kwargs=True))
    for name, module in _modules(layer):
        output(module, name)
    handles.append(layer.self_attn.register_forward_hook(rotated, with_kwargs=True))
    handles.append(layer.post_attention_layernorm.register_forward_pre_hook(residual))
    output(layer, "layer output")
    output(model.norm, "final norm")
    output(model.lm_head, "logits")
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _modules(layer: Any) -> Iterator[tuple[str, Callable[..., Any]]]:
    yield "input norm", layer.input_layernorm
    yield "hidden norm", layer.hidden_norm
    attention = layer.self_attn
    yield "queries", attention.q_proj
    yield "keys", attention.k_proj
    yield "values", attention.v_proj
    yield "attention", attention
    yield "mlp", layer.mlp
