"""Faults of the checkpoint's tensors: their names, the head, the token map, the files they lie in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from eagle3lab.checkpoint import Checkpoint, open_checkpoint
from eagle3lab.engines.extract import ReleaseFacts
from lab.faults.model import DEAD, NONE, PARTIAL, STOPS, fault, variant
from lab.specimen.paths import target_dir
from lab.specimen.variant import write_variant

SEED = 7


def _drops_layer_names(facts: ReleaseFacts) -> str | None:
    from eagle3lab.diagnosis.releases import takes_name

    taken = takes_name(facts, "layers.0.mlp.down_proj.weight")
    return "this release takes the name layers.0." if taken else None


variant(
    "names.dropped/layers.0",
    "The decoder layer's tensors are called layers.0.* as speculators writes them, instead of midlayer.*.",
    DEAD,
    applies=_drops_layer_names,
    rename=lambda name: name.replace("midlayer.", "layers.0."),
)


variant(
    "names.dropped/module",
    "Every tensor's name begins with module., as a wrapped model saves it.",
    DEAD,
    rename=lambda name: f"module.{name}",
)


for _what, _pattern, _expected in (
    ("fc", "fc.weight", DEAD),
    ("q-projection", "*q_proj.weight", PARTIAL),
    ("k-projection", "*k_proj.weight", PARTIAL),
    ("v-projection", "*v_proj.weight", PARTIAL),
    ("o-projection", "*o_proj.weight", PARTIAL),
    ("gate-projection", "*gate_proj.weight", PARTIAL),
    ("up-projection", "*up_proj.weight", PARTIAL),
    ("down-projection", "*down_proj.weight", PARTIAL),
    ("final-norm", "norm.weight", "little effect: the norm's weight stays at one"),
    ("hidden-norm", "*hidden_norm.weight", "little effect: the norm's weight stays at one"),
    ("input-norm", "*input_layernorm.weight", "some effect: the norm's weight stays at one"),
    (
        "post-attention-norm",
        "*post_attention_layernorm.weight",
        "some effect: the norm's weight stays at one",
    ),
    ("whole-layer", "midlayer.*", DEAD),
):
    variant(
        f"names.missing/{_what}", f"No tensor {_pattern} is in the checkpoint.", _expected, drop=[_pattern]
    )


@fault("names.shape/narrow-fc", "fc.weight lacks its last column.", STOPS)
def _(head: Checkpoint, out: Path) -> None:
    fc = np.ascontiguousarray(head.read("fc.weight")[:, :-1])
    write_variant(head, out, replace={"fc.weight": fc})


variant(
    "names.shape/cut-feed-forward",
    "config.json states intermediate_size 256 where the tensors have 384 rows.",
    "the loader cuts rows and columns off without a word, or stops",
    config={"intermediate_size": 256},
)


def _drops_unknown_names(facts: ReleaseFacts) -> str | None:
    stops = facts.names is None or facts.names.unmatched != "dropped without a message"
    return (
        None
        if stops
        else "this release drops a name that it does not know, and nothing is lost with this one"
    )


variant(
    "names.rejected",
    "A counter that belongs to training, step, lies among the tensors.",
    STOPS,
    applies=_drops_unknown_names,
    replace={"step": np.zeros(1, dtype=np.int64)},
)


@fault(
    "names.unsupported-tensor",
    "The attention has weights of a norm of queries and one of keys, all ones, which no engine applies.",
    "as much is lost as the head relies on them",
)
def _(head: Checkpoint, out: Path) -> None:
    width = head.config.head_dim
    ones = {f"midlayer.self_attn.{part}_norm.weight": np.ones(width, dtype=np.float32) for part in "qk"}
    write_variant(head, out, replace=ones)


@fault(
    "layer.quantisation",
    "The layer's matrices are stored as int8 with a scale for each row, and config.json does not say so.",
    DEAD,
)
def _(head: Checkpoint, out: Path) -> None:
    replace: dict[str, NDArray[Any]] = {}
    for name in head.tensors:
        if name.startswith("midlayer.") and name.endswith("_proj.weight"):
            matrix = np.asarray(head.read(name), dtype=np.float32)
            scale = np.abs(matrix).max(axis=1, keepdims=True) / 127
            replace[name] = np.rint(matrix / scale).astype(np.int8)
            replace[f"{name}_scale"] = scale
    write_variant(head, out, replace=replace)


variant("head.lm-head-missing", "No lm_head.weight is in the checkpoint.", DEAD, drop=["lm_head.weight"])


@fault("head.lm-head-rows", "lm_head.weight has the target's 1024 rows, draft_vocab_size is 704.", STOPS)
def _(head: Checkpoint, out: Path) -> None:
    rows = open_checkpoint(target_dir()).read("lm_head.weight")
    write_variant(head, out, replace={"lm_head.weight": np.asarray(rows, dtype=np.float32)})


variant(
    "head.tied",
    "tie_word_embeddings is true, so that the scores of the first 704 embeddings are read for the head's.",
    DEAD,
    config={"tie_word_embeddings": True},
)


def _rows(name: str, change: str, order: Callable[[int], NDArray[Any]]) -> None:
    @fault(f"head.row-order/{name}", change, DEAD)
    def _(head: Checkpoint, out: Path) -> None:
        rows = np.asarray(head.read("lm_head.weight"), dtype=np.float32)
        write_variant(head, out, replace={"lm_head.weight": np.ascontiguousarray(rows[order(len(rows))])})


_rows("shuffled", "The rows of lm_head are shuffled.", lambda n: np.random.default_rng(SEED).permutation(n))
_rows("rolled", "The rows of lm_head are moved down by one.", lambda n: np.roll(np.arange(n), 1))


@fault(
    "head.row-order/half-shuffled",
    "Every second row of lm_head is exchanged with the one after it, but for the first 64.",
    PARTIAL,
)
def _(head: Checkpoint, out: Path) -> None:
    rows = np.asarray(head.read("lm_head.weight"), dtype=np.float32)
    order = np.arange(len(rows))
    order[64:] = order[64:].reshape(-1, 2)[:, ::-1].reshape(-1)
    write_variant(head, out, replace={"lm_head.weight": np.ascontiguousarray(rows[order])})


@fault(
    "head.embedding/own",
    "The head's embeddings have their dimensions in another order, and its layer is made for them; the engine puts the "
    "target's in their place. With its own it would draft exactly as the healthy head.",
    PARTIAL,
)
def _(head: Checkpoint, out: Path) -> None:
    order = np.random.default_rng(SEED).permutation(head.config.hidden_size)
    embedding = np.asarray(head.read("embed_tokens.weight"), dtype=np.float32)[:, order]
    norm = np.asarray(head.read("midlayer.input_layernorm.weight"), dtype=np.float32)[order]
    replace = {"embed_tokens.weight": embedding, "midlayer.input_layernorm.weight": norm}
    columns = np.concatenate([order, np.arange(len(order), 2 * len(order))])
    for part in "qkv":
        name = f"midlayer.self_attn.{part}_proj.weight"
        replace[name] = np.asarray(head.read(name), dtype=np.float32)[:, columns]
    write_variant(head, out, replace={name: np.ascontiguousarray(value) for name, value in replace.items()})


def _map(
    name: str, change: str, expected: str, wrong: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
) -> None:
    @fault(name, change, expected)
    def _(head: Checkpoint, out: Path) -> None:
        offsets = np.asarray(head.read("d2t"), dtype=np.int64)
        write_variant(head, out, replace={"d2t": wrong(offsets, np.arange(len(offsets)))})


_map(
    "vocab.absolute/all",
    "d2t holds target ids where the engine adds arange; ids from the upper rows leave the vocabulary.",
    "the engine stops when it drafts one of them",
    lambda offsets, ramp: offsets + ramp,
)
_map(
    "vocab.absolute/in-range",
    "d2t holds target ids where the engine adds arange, each cut to the last id of the target.",
    DEAD,
    lambda offsets, ramp: np.minimum(offsets + ramp, 1023 - ramp),
)
_map(
    "vocab.double-offset",
    "arange was subtracted once more from d2t.",
    DEAD,
    lambda offsets, ramp: offsets - ramp,
)
_map("vocab.zero", "d2t is all zeros.", DEAD, lambda offsets, ramp: np.zeros_like(offsets))
_map(
    "vocab.range/beyond",
    "The last 64 rows of d2t point 512 ids further, beyond the target's vocabulary.",
    "the engine stops when it drafts one of them, and else nothing is seen",
    lambda offsets, ramp: offsets + np.where(ramp >= len(ramp) - 64, 512, 0),
)
_map(
    "vocab.range/repeated",
    "Every second row of d2t names the target id of the row before it.",
    PARTIAL,
    lambda offsets, ramp: (offsets + ramp)[ramp - ramp % 2] - ramp,
)


variant("vocab.missing", "No d2t is in the checkpoint.", DEAD, drop=["d2t"])


@fault(
    "vocab.dtype",
    "d2t was cast to bfloat16 with the rest: offsets above 256 are rounded, and the sum is no integer any more.",
    "the engine stops at the first draft, or drafts neighbours",
)
def _(head: Checkpoint, out: Path) -> None:
    offsets = np.asarray(head.read("d2t"), dtype=np.float32).view(np.uint32)
    rounded = ((offsets + 0x7FFF + ((offsets >> 16) & 1)) >> 16).astype(np.uint16)
    write_variant(head, out, replace={"d2t": rounded})


@fault("vocab.t2d", "t2d marks another vocabulary than d2t: the ids below 704.", NONE)
def _(head: Checkpoint, out: Path) -> None:
    other = np.zeros_like(np.asarray(head.read("t2d"), dtype=bool))
    other[:704] = True
    write_variant(head, out, replace={"t2d": other})


@fault(
    "vocab.discarded",
    "The map is no d2t in the checkpoint but a file named by --speculative-token-map, which EAGLE-3 ignores.",
    DEAD,
)
def _(head: Checkpoint, out: Path) -> Mapping[str, Any]:
    offsets = np.asarray(head.read("d2t"), dtype=np.int64)
    hot = write_variant(head, out, drop=["d2t"]) / "hot-token-ids.pt"
    torch.save(torch.from_numpy(offsets + np.arange(len(offsets))), hot)
    return {"extra": ("--speculative-token-map", str(hot))}


@fault("files.unreadable", "model.safetensors is cut off in the middle.", STOPS)
def _(head: Checkpoint, out: Path) -> None:
    weights = write_variant(head, out) / "model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[: len(content) // 2])


@fault("files.missing", "The folder holds config.json and no weights.", STOPS)
def _(head: Checkpoint, out: Path) -> None:
    (write_variant(head, out) / "model.safetensors").unlink()


def _sharded(head: Checkpoint, out: Path) -> Mapping[str, str]:
    """Two shards, the decoder layer in the second; the index's map, not yet written."""
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    scratch = out.parent / "shard"
    layer = [name for name in head.tensors if name.startswith("midlayer.")]
    rest = [name for name in head.tensors if name not in layer]
    write_variant(head, out, drop=layer)
    (out / "model.safetensors").rename(out / first)
    (write_variant(head, scratch, drop=rest) / "model.safetensors").rename(out / second)
    return dict.fromkeys(rest, first) | dict.fromkeys(layer, second)


def _index(out: Path, weight_map: Mapping[str, str]) -> None:
    index = {"metadata": {}, "weight_map": weight_map}
    (out / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


@fault(
    "files.unindexed-shard",
    "The decoder layer lies in a shard that model.safetensors.index.json does not name.",
    DEAD,
)
def _(head: Checkpoint, out: Path) -> None:
    weight_map = _sharded(head, out)
    _index(out, {name: file for name, file in weight_map.items() if not name.startswith("midlayer.")})


@fault(
    "files.stale-safetensors",
    "The trained tensors are in pytorch_model.bin; model.safetensors beside it holds an untrained head.",
    DEAD,
)
def _(head: Checkpoint, out: Path) -> None:
    chance = np.random.default_rng(SEED)
    trained = {name: head.read(name) for name in head.tensors}
    fresh = {
        name: np.asarray(chance.normal(0, 0.02, values.shape), dtype=np.float32)
        for name, values in trained.items()
        if values.ndim == 2 and not name.startswith(("embed", "lm_head"))
    }
    write_variant(head, out, replace=fresh)
    state = {name: torch.from_numpy(np.array(values)) for name, values in trained.items()}
    torch.save(state, out / "pytorch_model.bin")
