"""The permutation target: a Llama whose acceptance with each of its heads is known exactly, from theory.

Its eight layers add nothing (`o_proj` and `down_proj` are zero) and the rows of `lm_head` are set so that
the next token is a fixed permutation π of the last one. Three heads go with it:

- `copies-one-state` sees only the last auxiliary state, that of token x, and says π(π(x)): the first draft
  is right. Later drafts repeat it, for the hidden state it hands on is still x's. On a long cycle the
  accept length is exactly 2; on a fixed point every draft is right.
- `copies-one-state-reduced` is the same over a draft vocabulary of 48 ids: exactly 2 on the cycle that the
  vocabulary covers, exactly 1 on the one that it does not.
- `uses-every-tensor` finds its own token by attention, writes it into its state, and drafts π of it: every
  draft is right on either kind of prompt. Without any one of its tensors no draft is right on a cycle:
  accept length exactly 1.

Everything is arithmetic without chance, so the script gives the same bytes every time.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

VOCAB_SIZE = HIDDEN = 64
LAYERS = 8
HEADS, HEAD_DIM = 2, 32
INTERMEDIATE = 16
DRAFT_VOCAB = 48
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>")
#: Tokens on the cycle that every draft vocabulary covers, and on the one that the reduced vocabulary lacks.
COVERED_CYCLE, UNCOVERED_CYCLE = 40, 12
AUX_OUTPUT_LAYERS = (1, LAYERS // 2 - 1, LAYERS - 4)
DRAFT_STEPS = 3

_CODE = 16  # width of a token's code
_CONST = 16
# Dimensions of the state of `uses-every-tensor`: a constant, an alarm that is zero while all is well, the
# code that attention found, and the code that the MLP made of it.
_FLAG, _ALARM = 20, 21
FOUND, MADE = slice(32, 48), slice(48, 64)
# RMS norm multiplies by sqrt(H / squared length): an embedding has three ones; a state 2 + 2 ones and the
# flag, 2.
_EMBED_GAIN = math.sqrt(HIDDEN / 3)
_STATE_GAIN = math.sqrt(HIDDEN / 8)
_NORM = 8.0


def cycles() -> tuple[list[int], list[int], list[int]]:
    """Token ids of the covered cycle, the uncovered cycle and the fixed points, scattered over the ids."""
    ids = sorted(
        range(len(SPECIAL_TOKENS), VOCAB_SIZE),
        key=lambda token: hashlib.sha256(f"permutation {token}".encode()).digest(),
    )
    covered, rest = ids[:COVERED_CYCLE], ids[COVERED_CYCLE:]
    return covered, rest[:UNCOVERED_CYCLE], rest[UNCOVERED_CYCLE:]


def permutation() -> list[int]:
    """π: the token that follows each token. Special tokens and nine others follow themselves."""
    following = list(range(VOCAB_SIZE))
    for cycle in cycles()[:2]:
        for token, successor in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            following[token] = successor
    return following


def draft_ids() -> list[int]:
    """Ids of the reduced draft vocabulary, ascending: special tokens, covered cycle, five fixed points."""
    covered, _, fixed = cycles()
    room = DRAFT_VOCAB - len(SPECIAL_TOKENS) - len(covered)
    return sorted([*range(len(SPECIAL_TOKENS)), *covered, *fixed[:room]])


def prompts() -> dict[str, list[int]]:
    """Token ids of the three prompts: a stretch of each cycle and a fixed point, repeated."""
    covered, uncovered, fixed = cycles()
    return {
        "covered-cycle": covered[:12],
        "uncovered-cycle": uncovered[:8],
        "fixed-point": [fixed[0]] * 8,
    }


def expected_accept_lengths() -> dict[str, dict[str, float]]:
    """Accept length in theory, by head and prompt, with three draft steps (four draft tokens)."""
    full = float(DRAFT_STEPS + 1)
    return {
        "copies-one-state": {"covered-cycle": 2.0, "uncovered-cycle": 2.0, "fixed-point": full},
        "copies-one-state-reduced": {"covered-cycle": 2.0, "uncovered-cycle": 1.0, "fixed-point": full},
        "uses-every-tensor": {"covered-cycle": full, "uncovered-cycle": 1.0, "fixed-point": full},
    }


def token_code(token: int) -> torch.Tensor:
    """A token's code, float32 `[16]`: a one in each half; distinct tokens share at most one of them."""
    import torch

    code = torch.zeros(_CODE)
    code[token // 8] = code[8 + token % 8] = 1.0
    return code


def predecessors(times: int) -> list[int]:
    """π to the power of minus `times`, by token."""
    following = permutation()
    result = list(range(VOCAB_SIZE))
    for _ in range(times):
        result = [following.index(token) for token in result]
    return result


def target_tensors() -> dict[str, torch.Tensor]:
    """The target's tensors, float32, under their Hugging Face names."""
    import torch

    before = predecessors(1)
    embedding, lm_head = torch.zeros(VOCAB_SIZE, HIDDEN), torch.zeros(VOCAB_SIZE, HIDDEN)
    for token in range(VOCAB_SIZE):
        embedding[token, :_CODE] = token_code(token)
        embedding[token, _CONST] = 1.0
        lm_head[token, :_CODE] = token_code(before[token])
    tensors = {
        "model.embed_tokens.weight": embedding,
        "model.norm.weight": torch.ones(HIDDEN),
        "lm_head.weight": lm_head,
    }
    for layer in range(LAYERS):
        for name, tensor in _idle_layer(HIDDEN).items():
            tensors[f"model.layers.{layer}.{name}"] = tensor
    return tensors


def _idle_layer(width: int) -> dict[str, torch.Tensor]:
    """A layer that adds nothing to its input; `width` is what q, k and v read."""
    import torch

    attention = HEADS * HEAD_DIM
    return {
        "input_layernorm.weight": torch.ones(HIDDEN),
        "self_attn.q_proj.weight": torch.zeros(attention, width),
        "self_attn.k_proj.weight": torch.zeros(attention, width),
        "self_attn.v_proj.weight": torch.zeros(attention, width),
        "self_attn.o_proj.weight": torch.zeros(HIDDEN, attention),
        "post_attention_layernorm.weight": torch.ones(HIDDEN),
        "mlp.gate_proj.weight": torch.zeros(INTERMEDIATE, HIDDEN),
        "mlp.up_proj.weight": torch.zeros(INTERMEDIATE, HIDDEN),
        "mlp.down_proj.weight": torch.zeros(HIDDEN, INTERMEDIATE),
    }


def input_ones() -> tuple[float, float]:
    """In `working_head`: what `input_layernorm` makes of a one in an embedding, and `hidden_norm` of one in a state."""
    return _NORM * _EMBED_GAIN, _NORM * _STATE_GAIN


def copying_head(ids: list[int]) -> dict[str, torch.Tensor]:
    """`copies-one-state` over the draft vocabulary `ids`: fc keeps the last state, the head says π(π(x))."""
    import torch

    before = predecessors(2)
    fc = torch.zeros(HIDDEN, 3 * HIDDEN)
    fc[range(HIDDEN), range(2 * HIDDEN, 3 * HIDDEN)] = 1.0
    layer = _idle_layer(2 * HIDDEN) | {"hidden_norm.weight": torch.ones(HIDDEN)}
    lm_head = torch.zeros(len(ids), HIDDEN)
    for row, token in enumerate(ids):
        lm_head[row, :_CODE] = token_code(before[token])
    return _head_tensors(layer, fc, torch.ones(HIDDEN), lm_head, ids)


def working_head(ids: list[int]) -> dict[str, torch.Tensor]:
    """`uses-every-tensor` over the draft vocabulary `ids`.

    A state holds its token's code twice (found, made) and a constant. The first draft starts from a state
    that fc makes of the last token the target read. Attention looks up the code of the token at hand and
    takes away the old one; the MLP does the same from *found* to *made*, and the head reads *made*. What
    is not renewed stays at the token before, whose successor is the token at hand: never the next one on a
    cycle. Where that alone would not do, row 0 of the head (a special token, never right) takes over: by
    the alarm, when the two sides of the input are out of balance, or by the constant, when the final norm
    does not hold it down.
    """
    import torch

    eye, ones = torch.eye(_CODE), torch.ones(HIDDEN)
    fc = torch.zeros(HIDDEN, 3 * HIDDEN)
    fc[_FLAG, _CONST] = 2.0
    fc[FOUND, HIDDEN : HIDDEN + _CODE] = eye
    fc[MADE, 2 * HIDDEN : 2 * HIDDEN + _CODE] = eye

    # Head 0 looks the token up by its code, through the slowest rotary pairs, in which distance hardly
    # counts; halves of a head form the pairs. Head 1 carries the alarm and may look anywhere.
    layer = _idle_layer(2 * HIDDEN) | {"hidden_norm.weight": _NORM * ones}
    layer["input_layernorm.weight"] = _NORM * ones
    layer["post_attention_layernorm.weight"] = _NORM * ones
    slow = [*range(8, 16), *range(24, 32)]
    for name in ("q", "k"):
        layer[f"self_attn.{name}_proj.weight"][slow, range(_CODE)] = 0.3125
    value, output = layer["self_attn.v_proj.weight"], layer["self_attn.o_proj.weight"]
    value[:_CODE, :_CODE] = eye
    value[_CODE : 2 * _CODE, HIDDEN + FOUND.start : HIDDEN + FOUND.stop] = eye
    embed_side, state_side = 1 / (_NORM * _EMBED_GAIN), 1 / (_NORM * _STATE_GAIN)
    output[FOUND, :_CODE] = embed_side * eye
    output[FOUND, _CODE : 2 * _CODE] = -state_side * eye
    value[HEAD_DIM, _CONST] = value[HEAD_DIM + 1, HIDDEN + _FLAG] = 1.0
    output[_ALARM, HEAD_DIM], output[_ALARM, HEAD_DIM + 1] = embed_side, -state_side / 2

    # The gate is open (4) while the constant is there; the MLP then adds found - made to made.
    opened = 4.0
    layer["mlp.gate_proj.weight"][:, _FLAG] = opened * state_side / 2
    layer["mlp.up_proj.weight"][:, FOUND] = eye
    layer["mlp.up_proj.weight"][:, MADE] = -eye
    layer["mlp.down_proj.weight"][MADE] = eye * state_side * (1 + math.exp(-opened)) / opened

    norm = torch.full((HIDDEN,), 4.0)
    norm[_FLAG] = 0.125
    before = predecessors(1)
    lm_head = torch.zeros(len(ids), HIDDEN)
    for row, token in enumerate(ids):
        lm_head[row, MADE] = token_code(before[token])
    lm_head[0] = 0.0
    lm_head[0, _FLAG] = lm_head[0, _ALARM] = 8.0
    return _head_tensors(layer, fc, norm, lm_head, ids)


def _head_tensors(
    layer: Mapping[str, torch.Tensor],
    fc: torch.Tensor,
    norm: torch.Tensor,
    lm_head: torch.Tensor,
    ids: list[int],
) -> dict[str, torch.Tensor]:
    """All tensors of a head; with the whole vocabulary there is no d2t and no t2d, as trainers do it."""
    import torch

    tensors = {f"midlayer.{name}": tensor for name, tensor in layer.items()}
    tensors |= {"fc.weight": fc, "norm.weight": norm, "lm_head.weight": lm_head}
    if len(ids) < VOCAB_SIZE:
        chosen = torch.tensor(ids)
        tensors["d2t"] = chosen - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(VOCAB_SIZE, dtype=torch.bool).index_fill(0, chosen, True)
    return tensors


def llama_config(**own: Any) -> dict[str, Any]:
    """config.json of the target and of its heads, with the fields of `own`."""
    return {
        "attention_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": 2048,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "pad_token_id": 0,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB_SIZE,
        **own,
    }


def word_tokenizer() -> dict[str, Any]:
    """`tokenizer.json` of a word-level tokenizer: `t07 t61` and so on, special tokens by their names."""
    words = [*SPECIAL_TOKENS, *(f"t{token:02d}" for token in range(len(SPECIAL_TOKENS), VOCAB_SIZE))]
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": word, **added} for i, word in enumerate(SPECIAL_TOKENS)],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {word: token for token, word in enumerate(words)},
            "unk_token": "<pad>",
        },
    }


def text(token_ids: list[int]) -> str:
    """The words of `token_ids`, as a server would be sent them."""
    words = [*SPECIAL_TOKENS, *(f"t{token:02d}" for token in range(len(SPECIAL_TOKENS), VOCAB_SIZE))]
    return " ".join(words[token] for token in token_ids)


def write_permutation(folder: Path) -> None:
    """Write target, heads and `expected.json` under `folder`: the same bytes every time.

    `target/` and one folder a head, each with `config.json` and `model.safetensors` (bfloat16, d2t int64, t2d
    bool); the target has a tokenizer too.
    """
    target = llama_config(architectures=["LlamaForCausalLM"], num_hidden_layers=LAYERS)
    write_model(folder / "target", target, target_tensors())
    write_json(folder / "target" / "tokenizer.json", word_tokenizer())
    write_json(
        folder / "target" / "tokenizer_config.json",
        {
            "bos_token": "<bos>",
            "clean_up_tokenization_spaces": False,
            "eos_token": "<eos>",
            "model_max_length": 2048,
            "pad_token": "<pad>",
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    everything = list(range(VOCAB_SIZE))
    heads = {
        "copies-one-state": (everything, copying_head(everything)),
        "copies-one-state-reduced": (draft_ids(), copying_head(draft_ids())),
        "uses-every-tensor": (draft_ids(), working_head(draft_ids())),
    }
    for name, (ids, tensors) in heads.items():
        config = llama_config(
            architectures=["LlamaForCausalLMEagle3"],
            draft_vocab_size=len(ids),
            eagle_config={
                "eagle_aux_hidden_state_layer_ids": list(AUX_OUTPUT_LAYERS),
                "use_aux_hidden_state": True,
            },
            num_hidden_layers=1,
            target_hidden_size=HIDDEN,
        )
        write_model(folder / name, config, tensors)
    write_json(
        folder / "expected.json",
        {
            "accept_length": expected_accept_lengths(),
            "draft_steps": DRAFT_STEPS,
            "prompts": {name: {"text": text(ids), "token_ids": ids} for name, ids in prompts().items()},
        },
    )


def write_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    """Write `config.json` and `model.safetensors` (floating point as bfloat16) into `folder`."""
    import torch
    from safetensors.torch import save_file

    stored = {
        name: tensor.to(torch.bfloat16).contiguous() if tensor.is_floating_point() else tensor.contiguous()
        for name, tensor in tensors.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    # A single metadata key: with more than one, their order in the file is not fixed.
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", config)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` with sorted keys: the same bytes every time."""
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
