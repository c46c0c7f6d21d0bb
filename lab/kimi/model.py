"""The tiny Kimi-K2.5: the case study's own classes as a permutation target, its drafters, and their folder.

`KimiK25ForConditionalGeneration` wraps a vision tower, a projector and a `DeepseekV3ForCausalLM` with multi-head
latent attention (MLA). Twelve dense layers add nothing to their input, and `lm_head` makes the next token the
permutation of the last one, as in `lab.specimen.permutation`: the same prompts, tokens and theory hold.

The Llama heads are those of `lab.specimen.permutation`, made for a target of twelve layers; those that copy a
state have grouped queries (GQA). The MLA head, `Eagle3DeepseekV2ForCausalLM`, works as `uses-every-tensor` does, its
attention rewritten: a latent holds the code of the token at hand beside the one that the state brought along.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3lab.checkpoint import open_checkpoint
from lab.specimen import permutation
from lab.specimen.permutation import HIDDEN, SPECIAL_TOKENS, VOCAB_SIZE, cycles, target_tensors
from lab.specimen.variant import write_variant

if TYPE_CHECKING:
    import torch

LAYERS = 12
INTERMEDIATE = 128
HEADS, NOPE, ROPE, VALUE = 4, 16, 8, 16
"""Attention heads; per head the width of a key without position, of its rotary part, of a value."""
Q_LORA, KV_LORA = 64, 64
"""Ranks of the latents that queries, and keys with values, are made from."""

MEDIA_TOKEN = "<|media_pad|>"
"""The token that stands for an image in a prompt; SGLang looks it up when it starts."""

_VISION, _PATCH, _GRID = 32, 14, 4

# Kimi's own scaling in miniature. SGLang's MLA drafter refuses to start on a CPU without one.
ROPE_SCALING = {
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "factor": 4.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 128,
    "type": "yarn",
}


def media_token_id() -> int:
    """Id of `MEDIA_TOKEN`: the last fixed point, which no prompt of ours holds."""
    return cycles()[2][-1]


def mla_config() -> dict[str, Any]:
    """What a config says of multi-head latent attention, for the target's text model and for an MLA drafter."""
    return {
        "attention_bias": False,
        "bos_token_id": SPECIAL_TOKENS.index("<bos>"),
        "eos_token_id": SPECIAL_TOKENS.index("<eos>"),
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "kv_lora_rank": KV_LORA,
        "max_position_embeddings": 512,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "pad_token_id": SPECIAL_TOKENS.index("<pad>"),
        "q_lora_rank": Q_LORA,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "rms_norm_eps": 1e-6,
        "rope_scaling": ROPE_SCALING,
        "rope_theta": 50000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "v_head_dim": VALUE,
        "vocab_size": VOCAB_SIZE,
    }


def target_config() -> dict[str, Any]:
    """config.json of the target, in Kimi-K2.5's own layout."""
    return {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "bos_token_id": SPECIAL_TOKENS.index("<bos>"),
        "eos_token_id": SPECIAL_TOKENS.index("<eos>"),
        "media_placeholder_token_id": media_token_id(),
        "model_type": "kimi_k25",
        "pad_token_id": SPECIAL_TOKENS.index("<pad>"),
        "text_config": mla_config()
        | {
            "architectures": ["DeepseekV3ForCausalLM"],
            # As many dense layers as there are layers: no experts, which would add nothing to what is shown.
            "first_k_dense_replace": LAYERS,
            "intermediate_size": INTERMEDIATE,
            "model_type": "kimi_k2",
            "moe_intermediate_size": 32,
            "moe_layer_freq": 1,
            "n_group": 1,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "num_experts_per_tok": 2,
            "num_hidden_layers": LAYERS,
            "routed_scaling_factor": 1.0,
            "scoring_func": "sigmoid",
            "topk_group": 1,
            "topk_method": "noaux_tc",
        },
        "torch_dtype": "bfloat16",
        "vision_config": _vision_config(),
    }


def _vision_config() -> dict[str, Any]:
    """A tower of one layer, in both spellings: one is read for the tower, one for the projector."""
    own = {"hidden_size": _VISION, "intermediate_size": 2 * _VISION, "num_attention_heads": 2}
    own["num_hidden_layers"] = 1
    return {
        **own,
        **{f"vt_{name}": value for name, value in own.items()},
        "init_pos_emb_height": _GRID,
        "init_pos_emb_time": _GRID,
        "init_pos_emb_width": _GRID,
        "merge_kernel_size": [2, 2],
        "merge_type": "sd2_tpool",
        "mm_hidden_size": _VISION,
        "patch_size": _PATCH,
        "pos_emb_type": "divided_fixed",
        "text_hidden_size": HIDDEN,
        "video_attn_type": "spatial_temporal",
    }


def target_weights() -> dict[str, torch.Tensor]:
    """The target's tensors, float32, under Kimi-K2.5's names."""
    import torch

    llama = target_tensors()
    text = {
        name: llama[name] for name in ("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight")
    }
    for layer in range(LAYERS):
        for name, shape in mla_layer_shapes(HIDDEN, INTERMEDIATE).items():
            norm = name.endswith("norm.weight")
            text[f"model.layers.{layer}.{name}"] = torch.ones(shape) if norm else torch.zeros(shape)
    return {f"language_model.{name}": tensor for name, tensor in text.items()} | _vision_weights()


def mla_layer_shapes(width: int, intermediate: int) -> dict[str, tuple[int, ...]]:
    """Shapes of a dense decoder layer with MLA by tensor name; `width` is what q and kv read."""
    return {
        "input_layernorm.weight": (HIDDEN,),
        "self_attn.q_a_proj.weight": (Q_LORA, width),
        "self_attn.q_a_layernorm.weight": (Q_LORA,),
        "self_attn.q_b_proj.weight": (HEADS * (NOPE + ROPE), Q_LORA),
        "self_attn.kv_a_proj_with_mqa.weight": (KV_LORA + ROPE, width),
        "self_attn.kv_a_layernorm.weight": (KV_LORA,),
        "self_attn.kv_b_proj.weight": (HEADS * (NOPE + VALUE), KV_LORA),
        "self_attn.o_proj.weight": (HIDDEN, HEADS * VALUE),
        "post_attention_layernorm.weight": (HIDDEN,),
        "mlp.gate_proj.weight": (intermediate, HIDDEN),
        "mlp.up_proj.weight": (intermediate, HIDDEN),
        "mlp.down_proj.weight": (HIDDEN, intermediate),
    }


def _vision_weights() -> dict[str, torch.Tensor]:
    """Tower and projector: zeros, for no image is ever shown to them; they are there because the class has them."""
    import torch

    merged = 4 * _VISION
    block = {"wqkv": (3 * _VISION, _VISION), "wo": (_VISION, _VISION)}
    block |= {"mlp.fc0": (2 * _VISION, _VISION), "mlp.fc1": (_VISION, 2 * _VISION)}
    linear: dict[str, tuple[int, ...]] = {
        "vision_tower.patch_embed.proj": (_VISION, 3, _PATCH, _PATCH),
        **{f"vision_tower.encoder.blocks.0.{name}": shape for name, shape in block.items()},
        "mm_projector.proj.0": (merged, merged),
        "mm_projector.proj.2": (HIDDEN, merged),
    }
    norms = ["encoder.blocks.0.norm0", "encoder.blocks.0.norm1", "encoder.final_layernorm"]
    tensors = {"vision_tower.patch_embed.pos_emb.weight": torch.zeros(_GRID, _GRID, _VISION)}
    for name, shape in linear.items():
        tensors |= {f"{name}.weight": torch.zeros(shape), f"{name}.bias": torch.zeros(shape[0])}
    for name in [*(f"vision_tower.{norm}" for norm in norms), "mm_projector.pre_norm"]:
        tensors |= {f"{name}.weight": torch.ones(_VISION), f"{name}.bias": torch.zeros(_VISION)}
    return tensors


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
    """A head with one head of keys and values for all queries, which an attention that adds nothing may have."""
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


_PROCESSOR = Path(__file__).with_name("text_only_processor.py")
_COMPLETE = "expected.json"


def kimi_dir(name: str = "") -> Path:
    """The tiny Kimi-K2.5's folder, or one folder in it: `target` or a head's name.

    It is made where it is not there yet: under `$XDG_CACHE_HOME` (`~/.cache`), named after the source that makes it,
    so that a change of the source makes it anew. Two processes may ask at once.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "eagle3lab"
    folder = root / f"kimi-{_source_digest()}"
    if not (folder / _COMPLETE).is_file():
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root, prefix="kimi-making-") as making:
            made = Path(making) / "kimi"
            write_kimi(made)
            try:
                made.rename(folder)
            except OSError:  # another process was first, or what lies there was never finished
                if not (folder / _COMPLETE).is_file():
                    shutil.rmtree(folder)
                    made.rename(folder)
    return folder / name


def _source_digest() -> str:
    sources = [Path(permutation.__file__), *sorted(Path(__file__).parent.glob("*.py"))]
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def write_kimi(folder: Path) -> None:
    """Write target, heads and `expected.json` under `folder`: the same bytes every time, about 3 MB.

    `target/` holds seven files as Kimi-K2.5's own folder does, in small, with a processor that takes texts only;
    each head has `config.json` and `model.safetensors` (bfloat16, d2t int64, t2d bool).
    """
    from lab.kimi.model import target_config, target_weights

    made = heads()
    permutation.write_model(folder / "target", target_config(), target_weights())
    write_companions(folder / "target")
    for name, head in made.items():
        permutation.write_model(folder / name, head.config, head.tensors)
    permutation.write_json(
        folder / _COMPLETE,
        {
            "accept_length": {name: head.accept_length for name, head in made.items()},
            "draft_steps": permutation.DRAFT_STEPS,
            "prompt": permutation.prompts()["covered-cycle"],
        },
    )


def write_companions(folder: Path) -> None:
    """Write what lies beside the target's weights: tokenizer, processor, its settings, generation defaults."""
    tokenizer = permutation.word_tokenizer()
    vocabulary: dict[str, int] = tokenizer["model"]["vocab"]
    word = next(word for word, token in vocabulary.items() if token == media_token_id())
    tokenizer["model"]["vocab"] = {
        MEDIA_TOKEN if text == word else text: token for text, token in vocabulary.items()
    }
    tokenizer["added_tokens"].append(
        tokenizer["added_tokens"][0] | {"id": media_token_id(), "content": MEDIA_TOKEN}
    )
    special = permutation.SPECIAL_TOKENS
    files: dict[str, Any] = {
        "generation_config.json": {"eos_token_id": special.index("<eos>"), "pad_token_id": 0},
        "preprocessor_config.json": {
            "auto_map": {"AutoProcessor": f"{_PROCESSOR.stem}.TextOnlyProcessor"},
            "media_proc_cfg": {
                "fixed_output_tokens": None,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5],
                "in_patch_limit": 64,
                "merge_kernel_size": 2,
                "patch_limit_on_one_side": 8,
                "patch_size": 14,
            },
        },
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": {
            "bos_token": "<bos>",
            "clean_up_tokenization_spaces": False,
            "eos_token": "<eos>",
            "model_max_length": 512,
            "pad_token": "<pad>",
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    }
    for name, value in files.items():
        permutation.write_json(folder / name, value)
    shutil.copyfile(_PROCESSOR, folder / _PROCESSOR.name)


def expected(folder: Path) -> dict[str, Any]:
    """`expected.json` of a folder that `write_kimi` wrote."""
    contents: dict[str, Any] = json.loads((folder / _COMPLETE).read_text(encoding="utf-8"))
    return contents
