"""The drafters of the tiny Kimi-K2.5: Llama heads and a head with multi-head latent attention.

The Llama heads are those of `lab.specimen.permutation`, made for a target of twelve layers; those that copy a
state have grouped queries (GQA). The MLA head, `Eagle3DeepseekV2ForCausalLM`, works as `uses-every-tensor` does, its
attention rewritten: a latent holds the code of the token at hand beside the one that the state brought along.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3lab.checkpoint import open_checkpoint
from lab.kimi.folder import kimi_dir
from lab.kimi.target import (
    HEADS,
    KV_LORA,
    LAYERS,
    NOPE,
    Q_LORA,
    ROPE,
    VALUE,
    mla_config,
    mla_layer_shapes,
)
from lab.specimen import permutation
from lab.specimen.permutation import HIDDEN, VOCAB_SIZE
from lab.specimen.variant import write_variant

if TYPE_CHECKING:
    import torch

AUX_OUTPUT_LAYERS = (1, LAYERS // 2 - 1, LAYERS - 4)
"""Layers whose *output* the heads were made for: SGLang's default, which it states as inputs 2, 6, 9."""

_CODE = 16  # width of a token's code; also NOPE and VALUE, so that a head carries one


@dataclass(frozen=True, slots=True)
class Head:
    """A drafter and what theory says of it.

    Attributes:
        config: config.json.
        tensors: float32 by checkpoint name; d2t int64 and t2d bool where the draft vocabulary is reduced.
        accept_length: With EAGLE3, three draft steps and the prompt `covered-cycle`.
    """

    config: dict[str, Any]
    tensors: dict[str, torch.Tensor]
    accept_length: float


def heads() -> dict[str, Head]:
    """The heads by name."""
    everything, reduced = list(range(VOCAB_SIZE)), permutation.draft_ids()
    theory = permutation.expected_accept_lengths()
    copying = {
        "copies-one-state": (everything, permutation.copying_head(everything)),
        "copies-one-state-reduced": (reduced, permutation.copying_head(reduced)),
    }
    made = {
        name: Head(_llama_config(len(ids), key_heads=1), _grouped(tensors), theory[name]["covered-cycle"])
        for name, (ids, tensors) in copying.items()
    }
    made["uses-every-tensor"] = Head(
        _llama_config(len(reduced), key_heads=permutation.HEADS),
        permutation.working_head(reduced),
        theory["uses-every-tensor"]["covered-cycle"],
    )
    mla = Head(_mla_config(len(reduced)), mla_head(reduced), theory["uses-every-tensor"]["covered-cycle"])
    return {**made, "mla": mla}


def renamed_head(name: str, out: Path) -> Path:
    """A copy of a head in the new folder `out`, its layer's tensors named `layers.0.*` as speculators names them."""
    source = open_checkpoint(kimi_dir(name))
    return write_variant(source, out, rename=lambda tensor: tensor.replace("midlayer.", "layers.0."))


def _drafter_config(draft_vocab_size: int) -> dict[str, Any]:
    return {
        "draft_vocab_size": draft_vocab_size,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(AUX_OUTPUT_LAYERS),
            "use_aux_hidden_state": True,
        },
        "num_hidden_layers": 1,
        "target_hidden_size": HIDDEN,
    }


def _llama_config(draft_vocab_size: int, key_heads: int) -> dict[str, Any]:
    config = permutation.llama_config(architectures=["LlamaForCausalLMEagle3"], num_key_value_heads=key_heads)
    return config | _drafter_config(draft_vocab_size)


def _grouped(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same with one head of keys and values for all queries, which an attention that adds nothing may have."""
    return {
        name: tensor[: permutation.HEAD_DIM] if name.endswith(("k_proj.weight", "v_proj.weight")) else tensor
        for name, tensor in tensors.items()
    }


def _mla_config(draft_vocab_size: int) -> dict[str, Any]:
    return (
        mla_config()
        | {
            "architectures": ["Eagle3DeepseekV2ForCausalLM"],
            "intermediate_size": permutation.INTERMEDIATE,
            "model_type": "kimi_k2",
        }
        | _drafter_config(draft_vocab_size)
    )


def mla_head(ids: list[int]) -> dict[str, torch.Tensor]:
    """The MLA head over the draft vocabulary `ids`; every draft is right on a cycle that `ids` covers.

    fc, MLP, norms and head are those of `uses-every-tensor`. Of the input, the token's code and the state's
    *found* code go into one latent, whose length is always that of four ones; head 0 looks up the tokens of the
    same code, without position, and adds what the token's code has over the old one to *found*.
    """
    import torch

    llama = permutation.working_head(ids)
    tensors = {name: tensor for name, tensor in llama.items() if ".self_attn." not in name}
    eye = torch.eye(_CODE)
    attention = {
        name: torch.ones(shape) if name.endswith("norm.weight") else torch.zeros(shape)
        for name, shape in mla_layer_shapes(2 * HIDDEN, permutation.INTERMEDIATE).items()
        if name.startswith("self_attn.")
    }
    found = slice(HIDDEN + permutation.FOUND.start, HIDDEN + permutation.FOUND.stop)
    # What the two norms before the latents make of a one in an embedding and in a state.
    embed_one, state_one = permutation.input_ones()

    attention["self_attn.q_a_proj.weight"][:_CODE, :_CODE] = eye
    attention["self_attn.kv_a_proj_with_mqa.weight"][:_CODE, :_CODE] = eye / embed_one
    attention["self_attn.kv_a_proj_with_mqa.weight"][_CODE : 2 * _CODE, found] = eye / state_one
    # After their own norms a one is sqrt(rank / ones) in each latent: two ones for a query, four for a key.
    query_one, latent_one = math.sqrt(Q_LORA / 2), math.sqrt(KV_LORA / 4)
    # Another token shares one of the two ones: sharp enough that its weight is nothing beside the token's own.
    sharp = 40.0 * math.sqrt(NOPE + ROPE)
    attention["self_attn.q_b_proj.weight"][:_CODE, :_CODE] = eye * sharp / query_one
    rows = attention["self_attn.kv_b_proj.weight"]
    rows[:NOPE, :_CODE] = eye / latent_one
    rows[NOPE : NOPE + VALUE, :_CODE] = eye / latent_one
    rows[NOPE : NOPE + VALUE, _CODE : 2 * _CODE] = -eye / latent_one
    attention["self_attn.o_proj.weight"][permutation.FOUND, :VALUE] = eye
    assert _CODE == NOPE == VALUE and HEADS * VALUE == HIDDEN
    return tensors | {f"midlayer.{name}": tensor for name, tensor in attention.items()}
