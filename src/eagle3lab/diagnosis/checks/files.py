"""Files: whether the folder holds what an engine will read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from eagle3lab.diagnosis.framework import check
from eagle3lab.diagnosis.inputs import DrafterFolder, Tensors
from eagle3lab.diagnosis.model import Evidence, Finding, Impact, seen
from eagle3lab.errors import InputError

_GONE = (
    "does not exist",
    "does not hold it",
    "has no config.json",
    "holds neither",
    "but none that an engine reads",
)
_STOPPED = "The engine stops while it loads the drafter."


def _is_missing(error: InputError) -> bool:
    return any(words in error.problem for words in _GONE)


def _problem(error: InputError) -> Evidence:
    return seen(error.problem, error.path, error.tensor, error.line)


@check("E3L-F01", "files.unreadable", effect=_STOPPED, impact=Impact.STOPS)
def unreadable(folder: DrafterFolder) -> Iterator[Finding]:
    """A tensor file or the config cannot be read.

    Seen: A safetensors file ends before the last offset in its header, a header is no JSON, a Git LFS pointer stands
        where a file should be, or the pickle of a `.bin` calls a function.
    Why: A download stopped half way, a repository was cloned without LFS, or the file is not what its name says.
    Effect: The engine stops while loading, with an error about the file and not about the drafter.
    Repair: Copy or download the file again; never load a pickle that calls functions.
    Sources: The safetensors format; SGLang `model_loader/weight_utils.py`.
    """
    for error in (folder.error, _config_damage(folder)):
        if error is not None and not _is_missing(error):
            yield Finding(
                "The drafter's files cannot be read",
                (_problem(error),),
                error.advice or "Copy the file again.",
            )


def _config_damage(folder: DrafterFolder) -> InputError | None:
    """What is wrong with config.json as a file; None where it is JSON and only its content is wrong."""
    if folder.checkpoint is None or not folder.checkpoint.has_config:
        return None
    try:
        _ = folder.checkpoint.raw_config
    except InputError as error:
        return error
    return None


@check("E3L-F02", "files.missing", effect=_STOPPED, impact=Impact.STOPS)
def missing(folder: DrafterFolder) -> Iterator[Finding]:
    """Weights, config.json or a shard are not in the folder.

    Seen: The folder holds no weights or no config.json, or `model.safetensors.index.json` names a shard that is not
        there; or it is a trainer's own checkpoint (DCP, ZeRO, Megatron), an adapter, or the folder above checkpoints.
    Why: A partial download or copy, or an export that wrote the weights elsewhere.
    Effect: The engine stops, or leaves the parameters of the absent shard as they were initialised.
    Repair: Copy or download what is missing.
    Sources: SGLang `model_loader/loader.py`, `_prepare_weights`.
    """
    error = folder.error
    incomplete = (
        folder.checkpoint is None or not folder.checkpoint.tensors or not folder.checkpoint.has_config
    )
    instead = _something_else(folder.path) if incomplete else None
    if instead is not None:
        what, fix = instead
        yield Finding(
            f"This folder holds {what}", (seen(f"it holds {what}", str(folder.path)),), fix, confidence=0.95
        )
    elif error is not None and _is_missing(error):
        yield Finding(
            "The drafter is not complete on disk", (_problem(error),), error.advice or "Copy what is missing."
        )
    elif folder.checkpoint is not None and not folder.checkpoint.tensors:
        yield Finding(
            "The drafter's folder holds no weights",
            (seen("no *.safetensors, *.bin or *.pt that an engine reads", str(folder.path)),),
            "Export the drafter's weights into this folder.",
        )
    elif folder.checkpoint is not None and not folder.checkpoint.has_config:
        yield Finding(
            "The drafter has no config.json",
            (seen("config.json is not in the folder", str(folder.path)),),
            "Copy config.json from where the drafter was saved.",
        )


_MOST_ENTRIES = 4096
# What trainers leave in a folder that is no export, and what makes one of it.
_OTHER_FOLDERS = (
    (
        re.compile(r".+\.distcp|\.metadata"),
        "a distributed checkpoint of torch (DCP), which no engine reads",
        "Convert it with `python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER FILE`, and export "
        "the drafter from that with the trainer's script.",
    ),
    (
        re.compile(r"zero_to_fp32\.py|.*zero_pp_rank_\d+.*|global_step\d+"),
        "a DeepSpeed ZeRO checkpoint, which no engine reads",
        "Run the zero_to_fp32.py that lies in it, and export the drafter from the result.",
    ),
    (
        re.compile(r"latest_checkpointed_iteration\.txt|iter_\d{7}|common\.pt"),
        "a Megatron checkpoint, which no engine reads",
        "Export it with the trainer's converter to the Hugging Face format (ModelOpt: export_mcore_gpt_to_hf).",
    ),
    (
        re.compile(r"adapter_config\.json|adapter_model\..+"),
        "a LoRA adapter, not a drafter",
        "Merge it into the head that it was trained on (peft: merge_and_unload), and serve the result.",
    ),
)
_WEIGHTS = (".safetensors", ".bin", ".pt")


def _something_else(path: Path) -> tuple[str, str] | None:
    """What a folder without a complete drafter is instead, and what to do; None where that is not known."""
    try:
        with os.scandir(path) as entries:
            names = {entry.name: entry.is_dir() for entry in islice(entries, _MOST_ENTRIES)}
    except OSError:
        return None
    for pattern, what, fix in _OTHER_FOLDERS:
        if any(pattern.fullmatch(name) for name in names):
            return what, fix
    below = [name for name, is_folder in names.items() if is_folder and _holds_drafter(path / name)]
    if not below:
        return None
    last = max(below, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])
    return f"{len(below)} checkpoint(s), and is none itself", f"Did you mean {path / last}?"


def _holds_drafter(path: Path) -> bool:
    try:
        with os.scandir(path) as entries:
            names = [entry.name for entry in islice(entries, _MOST_ENTRIES)]
    except OSError:
        return False
    return "config.json" in names and any(name.endswith(_WEIGHTS) for name in names)


@check(
    "E3L-F03",
    "files.unindexed-shard",
    effect="The parameters of the file that is passed over stay as they were initialised: acceptance is at chance.",
)
def unindexed(tensors: Tensors) -> Iterator[Finding]:
    """A shard on disk is not named in the index.

    Seen: A safetensors file lies in the folder, and `model.safetensors.index.json` does not name it.
    Why: The index is of an earlier export, or a converter wrote a second file and did not extend it.
    Effect: The engine filters such files out without a word; the parameters they hold stay uninitialised.
    Repair: Write the index again so that it names every shard, or merge the shards into one file and delete it.
    Sources: SGLang `model_loader/weight_utils.py`, `filter_duplicate_safetensors_files`.
    """
    passed = [one for one in tensors.checkpoint.files.ignored if one.reason.startswith("not in ")]
    if passed:
        yield Finding(
            "A weight file is not named in the index, so the engine skips it",
            tuple(seen(f"{one.name} is {one.reason}", one.name) for one in passed),
            "Write model.safetensors.index.json again so that it names every shard.",
        )


@check(
    "E3L-F04",
    "files.stale-safetensors",
    effect="The engine reads the other file: what the trained weights hold never reaches it.",
)
def stale(tensors: Tensors) -> Iterator[Finding]:
    """A safetensors file shadows the file with the real weights.

    Seen: The folder holds `*.safetensors` and `*.bin` (or `*.pt`), and the first lack parameters of a drafter, or
        hold other values than the second.
    Why: An old or partial conversion was left beside the trained weights.
    Effect: Engines take the first pattern that matches anything and never open the other file.
    Repair: Remove the stale file, or convert the trained weights again.
    Sources: SGLang `model_loader/loader.py`, `_prepare_weights`: safetensors, then bin, then pt.
    """
    shadowed = [one for one in tensors.checkpoint.files.ignored if one.reason.startswith("shadowed")]
    if not shadowed:
        return
    from eagle3lab.diagnosis.rows import differences

    read = tensors.checkpoint.files.read[0]
    differing = differences(tensors.checkpoint, shadowed[0].name)
    lacking = [
        part for part in ("fc.weight", "down_proj.weight", "norm.weight") if tensors.find(part) is None
    ]
    if lacking or differing:
        yield Finding(
            "A stale safetensors file hides the trained weights"
            if lacking
            else f"{read} hides {shadowed[0].name}, which holds other weights",
            (
                *([seen(f"{read} is read, and has no {', '.join(lacking)}", read)] if lacking else []),
                *(seen(text, shadowed[0].name) for text in differing[:4]),
                *(seen(f"{one.name} is not read ({one.reason})", one.name) for one in shadowed),
            ),
            f"Keep the file with the trained weights; if that is {shadowed[0].name}, remove {read}.",
            confidence=0.97 if lacking else 0.85,
        )
