"""Checkpoint files put together byte by byte, so that they can be wrong on purpose."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.make_case import safetensors_bytes, torch_bin_bytes

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLMEagle3"],
    "model_type": "llama",
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 1,
    "vocab_size": 40,
    "draft_vocab_size": 10,
    "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 8], "use_aux_hidden_state": True},
}


def entry(dtype: str, shape: list[Any], begin: Any, end: Any) -> dict[str, Any]:
    """One tensor's header entry."""
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def raw_safetensors(header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with exactly this header; `length` lies about the header's length."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def small_tensors(seed: int = 0) -> dict[str, tuple[np.ndarray, str]]:
    """A few tensors of a toy head: name → (values, dtype)."""
    rng = np.random.default_rng(seed)
    return {
        "fc.weight": (rng.normal(0, 0.02, (8, 24)), "BF16"),
        "midlayer.hidden_norm.weight": (np.ones(8), "F32"),
        "lm_head.weight": (rng.normal(0, 0.02, (10, 8)), "F16"),
        "d2t": (np.arange(10) * 3, "I64"),
        "t2d": (np.arange(40) % 4 == 0, "BOOL"),
    }


def small_safetensors() -> bytes:
    """A valid small safetensors file."""
    return safetensors_bytes(small_tensors(), {"format": "pt"})


def small_bin() -> bytes:
    """A valid small torch checkpoint."""
    return torch_bin_bytes(small_tensors())


def torch_zip(pickled: bytes, storages: dict[str, bytes] | None = None, **members: bytes) -> bytes:
    """A torch archive around any pickle."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("archive/data.pkl", pickled)
        for key, data in (storages or {}).items():
            archive.writestr(f"archive/data/{key}", data)
        for name, data in members.items():
            archive.writestr(f"archive/{name}", data)
    return buffer.getvalue()


class RunsCode:
    """An object whose unpickling would create the file `canary`."""

    def __init__(self, canary: Path) -> None:
        self.canary = canary

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.canary), "w"))


def malicious_pickle(canary: Path, protocol: int = 2) -> bytes:
    """A state dict that creates `canary` in an ordinary unpickler."""
    return pickle.dumps({"fc.weight": RunsCode(canary)}, protocol=protocol)


def write(folder: Path, **files: bytes | dict[str, Any]) -> Path:
    """Write files into `folder`; `__` in a keyword stands for a dot, dictionaries become JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        data = content if isinstance(content, bytes) else json.dumps(content, indent=2).encode()
        (folder / name.replace("__", ".")).write_bytes(data)
    return folder
