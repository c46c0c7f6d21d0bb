#!/usr/bin/env python3
"""Materialise one test case:  make_case.py CASE.json OUTDIR

Writes, as far as the case has them:
    OUTDIR/drafter/            config.json and the tensor files
    OUTDIR/target/config.json
    OUTDIR/launch.sh           the launch command, one line, never executed
    OUTDIR/server.log
    OUTDIR/engine.txt          e.g. "sglang==0.5.9"
The schema is described in cases/README.md. Needs Python >= 3.10 and numpy only: safetensors
and pytorch_model.bin are written by hand, so the tests of a tool need neither package.
"""

import fnmatch
import io
import json
import math
import shutil
import struct
import sys
import zipfile
import zlib
from pathlib import Path

import numpy as np

SIZE = {"BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I64": 8, "I32": 4, "BOOL": 1, "U8": 1, "F8_E4M3": 1}
TORCH_STORAGE = {
    "BF16": "BFloat16Storage",
    "F16": "HalfStorage",
    "F32": "FloatStorage",
    "F64": "DoubleStorage",
    "I64": "LongStorage",
    "I32": "IntStorage",
    "BOOL": "BoolStorage",
    "U8": "ByteStorage",
}


# ------------------------------------------------------------------ encoding
def encode(array, dtype):
    """Little-endian bytes of `array` in a safetensors dtype."""
    if dtype == "BF16":  # the top 16 bits of float32, rounded to nearest even
        bits = np.ascontiguousarray(array, dtype="<f4").view("<u4").astype(np.uint64)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
    if dtype == "F8_E4M3":  # only ever filled with arbitrary finite codes
        return np.ascontiguousarray(array, dtype="u1").tobytes()
    kind = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "I64": "<i8", "I32": "<i4", "BOOL": "u1", "U8": "u1"}[
        dtype
    ]
    return np.ascontiguousarray(array).astype(kind).tobytes()


def safetensors_bytes(tensors, metadata=None):
    header, blobs, at = {}, [], 0
    if metadata:
        header["__metadata__"] = metadata
    for name, (array, dtype) in tensors.items():
        blob = encode(array, dtype)
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + b"".join(blobs)


def torch_bin_bytes(tensors, unsafe=False):
    """A state dict in torch's zip format, assembled from pickle opcodes (no torch needed)."""

    def uni(s):
        raw = s.encode()
        return b"X" + struct.pack("<I", len(raw)) + raw

    def num(n):
        return b"J" + struct.pack("<i", n)

    def tup(items):
        return b"(" + b"".join(items) + b"t"

    out = [b"\x80\x02", b"}", b"("]
    blobs = []
    for key, (name, (array, dtype)) in enumerate(tensors.items()):
        strides, step = [], 1
        for dim in reversed(array.shape):
            strides.insert(0, step)
            step *= dim
        storage = (
            tup(
                [
                    uni("storage"),
                    b"ctorch\n" + TORCH_STORAGE[dtype].encode() + b"\n",
                    uni(str(key)),
                    uni("cpu"),
                    num(int(array.size)),
                ]
            )
            + b"Q"
        )
        args = [
            storage,
            num(0),
            tup([num(d) for d in array.shape]),
            tup([num(s) for s in strides]),
            b"\x89",
            b"ccollections\nOrderedDict\n)R",
        ]
        out += [uni(name), b"ctorch._utils\n_rebuild_tensor_v2\n", tup(args), b"R"]
        blobs.append(encode(array, dtype))
    if unsafe:  # a harmless call (os.getcwd), but code all the same: a safe reader must refuse it
        out += [uni("trainer_state"), b"cos\ngetcwd\n", b")", b"R"]
    out += [b"u", b"."]
    buf = io.BytesIO()
    with zipfile.ZipFile(buf, "w", zipfile.ZIP_STORED) as z:

        def put(path, raw):
            z.writestr(zipfile.ZipInfo(f"pytorch_model/{path}", (2025, 1, 1, 0, 0, 0)), raw)

        put("data.pkl", b"".join(out))
        put("byteorder", b"little")
        for key, blob in enumerate(blobs):
            put(f"data/{key}", blob)
        put("version", b"3\n")
    return buf.getvalue()


# ------------------------------------------------------------------ values
def projection(rng, shape, state):
    """A matrix as training leaves it (a few strong directions) or as initialisation leaves it."""
    if state == "init":
        return rng.normal(0, 0.02, shape)
    std = rng.uniform(0.02, 0.05)
    w = rng.normal(0, std, shape)
    if len(shape) == 2 and min(shape) >= 4:
        rank = 3
        u, v = rng.normal(0, 1, (shape[0], rank)), rng.normal(0, 1, (rank, shape[1]))
        w = 0.85 * w + std * 0.45 * (u * [1.0, 0.7, 0.5]) @ v / math.sqrt(rank)
        w *= np.exp(rng.normal(0, 0.12, (shape[0], 1)))
    return w


def norm_weight(rng, size, state):
    if state == "init":
        return np.ones(size)
    return np.abs(rng.uniform(0.75, 1.3) + rng.normal(0, 0.12, size))


def token_rows(rng, rows, hidden, state):
    """Embedding or output rows: unequal norms and a common direction once trained."""
    if state == "init":
        return rng.normal(0, 0.02, (rows, hidden))
    w = rng.normal(0, 0.03, (rows, hidden)) + rng.normal(0, 0.02, (rows, 3)) @ rng.normal(0, 1, (3, hidden))
    return w * np.exp(rng.normal(-0.1, 0.3, (rows, 1))) + rng.normal(0, 0.008, (1, hidden))


def kept_tokens(rng, vocab, draft):
    """Target ids a trainer keeps: mostly frequent (low) ids, and always a special token at the end."""
    if draft >= vocab:
        return np.arange(vocab)
    weight = 1.0 / (np.arange(vocab) + 0.15 * vocab)
    weight[: min(16, draft // 4)] = 1.0
    weight[vocab - 2] = 1.0
    ids = rng.choice(vocab, size=draft, replace=False, p=weight / weight.sum())
    if vocab - 2 not in ids:
        ids[-1] = vocab - 2
    return np.sort(ids)


def vocabulary_map(rng, tpl, ids):
    """(d2t or None, t2d or None, target id of each draft row)."""
    vocab, draft, mode = tpl["vocab"], len(ids), tpl.get("d2t", "offset")
    ar = np.arange(draft)
    rows = ids
    if mode in ("unsorted", "absolute-unsorted"):
        # frequency order: roughly ascending, far from sorted
        rows = ids[np.argsort(ar + rng.normal(0, draft * 0.3, draft))]
    if mode in ("offset", "unsorted"):
        d2t = rows - ar
    elif mode in ("absolute", "absolute-unsorted"):
        d2t = rows.copy()
    elif mode == "double":
        d2t = rows - 2 * ar
    elif mode == "zeros":
        d2t = np.zeros(draft, dtype=np.int64)
    elif mode == "arange":
        d2t = ar.copy()
    elif mode == "range":  # ids of a larger tokenizer
        d2t = np.sort(rng.choice(int(vocab * tpl.get("range_factor", 1.25)), draft, replace=False)) - ar
        d2t[-1] = int(vocab * tpl.get("range_factor", 1.25)) - 2 - (draft - 1)
    elif mode == "repeat":  # some tokens listed twice
        dup = rows.copy()
        at = rng.choice(np.arange(1, draft), size=max(3, draft // 20), replace=False)
        dup[at] = dup[at - 1]
        d2t = dup - ar
    elif mode == "missing":
        d2t = None
    else:
        raise SystemExit(f"unknown d2t mode {mode!r}")
    if d2t is not None and "d2t_len" in tpl:
        d2t = d2t[: tpl["d2t_len"]]

    t2d = np.zeros(vocab, dtype=bool)
    mark = tpl.get("t2d", "match")
    if mark == "match":
        t2d[rows] = True
    elif mark == "other":  # the same size, from another corpus
        other = kept_tokens(np.random.default_rng(rng.integers(1 << 31)), vocab, draft)
        t2d[other] = True
    elif mark == "first-n":
        t2d[:draft] = True
    elif mark == "d2t-len":
        t2d[rows[: tpl["d2t_len"]]] = True
    elif mark == "missing":
        t2d = None
    else:
        raise SystemExit(f"unknown t2d mode {mark!r}")
    return d2t, t2d, rows


# ------------------------------------------------------------------ templates
def attention(tpl, put, p, width):
    h, nh, kv, hd = tpl["hidden"], tpl["heads"], tpl["kv_heads"], tpl["head_dim"]
    put(p + "self_attn.q_proj.weight", (nh * hd, width))
    put(p + "self_attn.k_proj.weight", (kv * hd, width))
    put(p + "self_attn.v_proj.weight", (kv * hd, width))
    put(p + "self_attn.o_proj.weight", (h, nh * hd))
    extra = tpl.get("with", [])
    if "qk_norm" in extra:
        put(p + "self_attn.q_norm.weight", (hd,))
        put(p + "self_attn.k_norm.weight", (hd,))
    if "qkv_bias" in extra:
        for n, k in (("q", nh * hd), ("k", kv * hd), ("v", kv * hd)):
            put(p + f"self_attn.{n}_proj.bias", (k,), "bias")


def mla(tpl, put, p, width):
    h, nh = tpl["hidden"], tpl["heads"]
    ql, kl, nope, rope, v = (tpl[k] for k in ("q_lora", "kv_lora", "nope", "rope", "v_dim"))
    put(p + "self_attn.q_a_proj.weight", (ql, width))
    put(p + "self_attn.q_a_layernorm.weight", (ql,))
    put(p + "self_attn.q_b_proj.weight", (nh * (nope + rope), ql))
    put(p + "self_attn.kv_a_proj_with_mqa.weight", (kl + rope, width))
    put(p + "self_attn.kv_a_layernorm.weight", (kl,))
    put(p + "self_attn.kv_b_proj.weight", (nh * (nope + v), kl))
    put(p + "self_attn.o_proj.weight", (h, nh * v))


def feed_forward(tpl, put, p):
    h, i = tpl["hidden"], tpl["intermediate"]
    put(p + "mlp.gate_proj.weight", (i, h))
    put(p + "mlp.up_proj.weight", (i, h))
    put(p + "mlp.down_proj.weight", (h, i))


def build(tpl, seed):
    """name -> (array, dtype), in the order a trainer would save them."""
    rng = np.random.default_rng(seed)
    dtype, state, kind = tpl.get("dtype", "BF16"), tpl.get("state", "trained"), tpl["kind"]
    out = {}

    def put(name, shape, what=None):
        if what is None:
            what = "norm" if len(shape) == 1 else "proj"
        value = {
            "norm": lambda: norm_weight(rng, shape, state),
            "proj": lambda: projection(rng, shape, state),
            "bias": lambda: rng.normal(0, 0.05, shape),
        }[what]()
        out[name] = (value, dtype)

    h, vocab = tpl["hidden"], tpl["vocab"]
    if kind == "plain-llama":
        out["model.embed_tokens.weight"] = (token_rows(rng, vocab, h, state), dtype)
        for i in range(tpl["layers"]):
            p = f"model.layers.{i}."
            attention(tpl, put, p, h)
            feed_forward(tpl, put, p)
            put(p + "input_layernorm.weight", (h,))
            put(p + "post_attention_layernorm.weight", (h,))
        put("model.norm.weight", (h,))
        return out
    if kind == "eagle1":  # one bare decoder layer, fc over [embedding, state], nothing else
        out["embed_tokens.weight"] = (token_rows(rng, vocab, h, state), dtype)
        put("fc.weight", (h, 2 * h))
        put("fc.bias", (h,), "bias")
        attention(tpl, put, "layers.0.", h)
        feed_forward(tpl, put, "layers.0.")
        put("layers.0.post_attention_layernorm.weight", (h,))
        return out

    draft = tpl.get("draft_vocab", vocab)
    ids = kept_tokens(rng, vocab, draft)
    d2t, t2d, rows = vocabulary_map(rng, tpl, ids)
    target_rows = token_rows(rng, vocab, h, "trained")  # stands for the target's own rows
    extra = tpl.get("with", [])
    ht, aux = tpl.get("target_hidden", h), tpl.get("aux", 3)

    embed = tpl.get("embed", False)
    if embed:  # True / "target": as the target's; "init": never trained
        out["embed_tokens.weight"] = (
            token_rows(rng, vocab, h, "init") if embed == "init" else target_rows,
            dtype,
        )
    if aux:
        put("fc.weight", (h, aux * ht))
    if "fc_bias" in extra:
        put("fc.bias", (h,), "bias")
    if "input_norm" in extra:
        put("input_norm.weight", (aux * ht,))
    if "fc_norm" in extra:
        for i in range(aux):
            put(f"fc_norm.{i}.weight", (ht,))
    if "mask_hidden" in extra:
        out["mask_hidden"] = (rng.normal(0, 0.5, (1, 1, aux * ht)), dtype)
    for i in range(tpl.get("layers", 1)):
        p = tpl.get("prefix", "midlayer.").replace("{i}", str(i))
        width = 2 * h if i == 0 else h
        (mla if kind == "eagle3-mla" else attention)(tpl, put, p, width)
        feed_forward(tpl, put, p)
        put(p + "hidden_norm.weight", (h,))
        put(p + "input_layernorm.weight", (h,))
        put(p + "post_attention_layernorm.weight", (h,))
    put("norm.weight", (h,))

    head = tpl.get("lm_head", True)
    n_rows = tpl.get("lm_head_rows", draft)
    if head is True:
        value = token_rows(rng, n_rows, h, state)
    elif head == "target-rows":  # frozen rows of the target, in the order of the map
        value = target_rows[rows]
    elif head == "target-rows-sorted":  # the same rows in another order than the map's
        value = target_rows[np.sort(rows)]
    elif head == "target-rows-rolled":
        value = np.roll(target_rows[rows], 1, axis=0)
    elif head == "indexed-by-offset":  # a full head indexed with offsets instead of ids
        value = token_rows(rng, vocab, h, state)[rows - np.arange(len(rows))]
    elif head is not False:
        raise SystemExit(f"unknown lm_head mode {head!r}")
    if head is not False:
        out["lm_head.weight"] = (value, dtype)
    if d2t is not None:
        out["d2t"] = (d2t, tpl.get("d2t_dtype", "I64"))
    if t2d is not None:
        out["t2d"] = (t2d, "BOOL")
    return out


def filled(rng, shape, fill):
    """The values of a tensor that a case adds."""
    match fill:
        case "normal":
            return projection(rng, shape, "trained")
        case "init":
            return projection(rng, shape, "init")
        case "norm":
            return norm_weight(rng, shape, "trained")
        case "ones":
            return np.ones(shape)
        case "zeros":
            return np.zeros(shape)
        case "arange":
            return np.arange(shape[0])
        case "scale":
            return np.full(shape, 0.0021)
        case "bias":
            return rng.normal(0, 0.05, shape)
        case "fp8":
            return rng.integers(0, 0x60, shape) | (rng.integers(0, 2, shape) << 7)
        case _:
            raise SystemExit(f"unknown fill {fill!r}")


def apply_edits(tensors, edits, seed):
    for old, new in edits.get("rename", {}).items():
        if old.endswith("*"):
            tensors = {
                (new[:-1] + k[len(old) - 1 :]) if k.startswith(old[:-1]) else k: v for k, v in tensors.items()
            }
        else:
            tensors = {new if k == old else k: v for k, v in tensors.items()}
    for pattern in edits.get("drop", []):
        hit = [k for k in tensors if fnmatch.fnmatchcase(k, pattern)]
        if not hit:
            raise SystemExit(f"nothing to drop for {pattern!r}")
        for k in hit:
            del tensors[k]
    rng = np.random.default_rng(seed + 1)
    for name, spec in edits.get("add", {}).items():
        shape, fill = tuple(spec["shape"]), spec.get("fill", "normal")
        value = filled(rng, shape, fill)
        tensors[name] = (value, spec.get("dtype", "BF16"))
    return tensors


# ------------------------------------------------------------------ files
def damage(raw, how):
    if how == "truncate":
        return raw[: int(len(raw) * 0.6)]
    if how == "bad-header":  # header length beyond the file
        return struct.pack("<Q", 1 << 40) + raw[8:]
    if how == "lfs-pointer":
        return (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:"
            + b"3f9c0d1e" * 8
            + b"\nsize %d\n" % (len(raw) * 4096)
        )
    if how == "empty":
        return b""
    raise SystemExit(f"unknown damage {how!r}")


def write_files(root, tensors, files, corrupt, stale):
    mode = files if isinstance(files, str) else files["mode"]
    meta = {"format": "pt"}
    hurt = (lambda raw: damage(raw, corrupt)) if corrupt and corrupt != "unsafe-pickle" else (lambda raw: raw)
    if mode == "none":
        return
    if mode == "safetensors":
        (root / "model.safetensors").write_bytes(hurt(safetensors_bytes(tensors, meta)))
    elif mode in ("bin", "safetensors+bin"):
        (root / "pytorch_model.bin").write_bytes(hurt(torch_bin_bytes(tensors, corrupt == "unsafe-pickle")))
        if mode == "safetensors+bin":
            (root / "model.safetensors").write_bytes(safetensors_bytes(stale, meta))
    elif mode == "sharded":  # files: {file: [patterns]}; first match wins
        placed, index = set(), {}
        for name, patterns in files["shards"].items():
            part = {
                k: v
                for k, v in tensors.items()
                if k not in placed and any(fnmatch.fnmatchcase(k, p) for p in patterns)
            }
            placed |= set(part)
            if name not in files.get("unindexed", []):
                index.update(dict.fromkeys(part, name))
            if name not in files.get("absent", []):
                (root / name).write_bytes(hurt(safetensors_bytes(part, meta)))
        if placed != set(tensors):
            raise SystemExit(f"tensors in no shard: {sorted(set(tensors) - placed)}")
        total = sum(tensors[k][0].size * SIZE[tensors[k][1]] for k in index)
        (root / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": int(total)}, "weight_map": index}, indent=1) + "\n"
        )
    else:
        raise SystemExit(f"unknown files mode {mode!r}")


def materialise(case, outdir):
    out = Path(outdir)
    out.mkdir(parents=True, exist_ok=True)
    for sub in ("drafter", "target"):
        shutil.rmtree(out / sub, ignore_errors=True)
    for name in ("launch.sh", "server.log", "engine.txt"):
        (out / name).unlink(missing_ok=True)
    drafter = case.get("drafter")
    if drafter:
        root = out / "drafter"
        root.mkdir()
        if drafter.get("config") is not None:
            (root / "config.json").write_text(json.dumps(drafter["config"], indent=2) + "\n")
        files = drafter.get("files", "safetensors")
        if files != "none":
            seed = drafter.get("seed", zlib.crc32(case["id"].encode()))
            edits = drafter.get("edits", {})
            tensors = apply_edits(build(drafter["template"], seed), edits, seed)
            stale = None
            if isinstance(files, dict) and "stale" in files:
                over = files["stale"]
                stale = build({**drafter["template"], **over.get("template", {})}, seed + 7)
                if "keep" in over:
                    stale = {
                        k: v for k, v in stale.items() if any(fnmatch.fnmatchcase(k, p) for p in over["keep"])
                    }
            write_files(root, tensors, files, drafter.get("corrupt"), stale)
    if case.get("target"):
        (out / "target").mkdir()
        (out / "target" / "config.json").write_text(json.dumps(case["target"]["config"], indent=2) + "\n")
    if case.get("launch"):
        (out / "launch.sh").write_text(case["launch"].strip() + "\n")
    if case.get("log"):
        (out / "server.log").write_text("\n".join(case["log"]) + "\n")
    if case.get("engine"):
        (out / "engine.txt").write_text(case["engine"] + "\n")
    return out


def main(argv):
    if len(argv) != 3:
        print(__doc__.strip().splitlines()[0], file=sys.stderr)
        return 2
    case = json.loads(Path(argv[1]).read_text())
    out = materialise(case, argv[2])
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        print(f"{path.stat().st_size:9d}  {path.relative_to(out)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
