"""The folder of the tiny Kimi-K2.5: written by arithmetic alone in a second or two, and kept in a cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from lab.specimen import permutation

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
    from lab.kimi.heads import heads
    from lab.kimi.target import target_config, target_weights

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
    from lab.kimi.target import MEDIA_TOKEN, media_token_id

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
