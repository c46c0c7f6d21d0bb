"""Files: whether the folder holds what an engine will read."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3lab.diagnosis.checks.base import Found, check, seen
from eagle3lab.diagnosis.evidence.investigation import Investigation
from eagle3lab.diagnosis.model import Evidence, Impact
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
def unreadable(case: Investigation) -> Iterator[Found]:
    """A tensor file or the config cannot be read.

    Seen: A safetensors file ends before the last offset in its header, a header is no JSON, a Git LFS pointer stands
        where a file should be, or the pickle of a `.bin` calls a function.
    Why: A download stopped half way, a repository was cloned without LFS, or the file is not what its name says.
    Effect: The engine stops while loading, with an error about the file and not about the drafter.
    Repair: Copy or download the file again; never load a pickle that calls functions.
    Sources: The safetensors format; SGLang `model_loader/weight_utils.py`.
    """
    for error in (case.drafter_error, _config_damage(case)):
        if error is not None and not _is_missing(error):
            yield Found(
                "The drafter's files cannot be read",
                (_problem(error),),
                error.advice or "Copy the file again.",
            )


def _config_damage(case: Investigation) -> InputError | None:
    """What is wrong with config.json as a file; None where it is JSON and only its content is wrong."""
    if case.drafter is None or not case.drafter.has_config:
        return None
    try:
        _ = case.drafter.raw_config
    except InputError as error:
        return error
    return None


@check("E3L-F02", "files.missing", effect=_STOPPED, impact=Impact.STOPS)
def missing(case: Investigation) -> Iterator[Found]:
    """Weights, config.json or a shard are not in the folder.

    Seen: The folder holds no weights or no config.json, or `model.safetensors.index.json` names a shard that is not
        there.
    Why: A partial download or copy, or an export that wrote the weights elsewhere.
    Effect: The engine stops, or leaves the parameters of the absent shard as they were initialised.
    Repair: Copy or download what is missing.
    Sources: SGLang `model_loader/loader.py`, `_prepare_weights`.
    """
    error = case.drafter_error
    if error is not None and _is_missing(error):
        yield Found(
            "The drafter is not complete on disk", (_problem(error),), error.advice or "Copy what is missing."
        )
    elif case.drafter is not None and not case.names:
        yield Found(
            "The drafter's folder holds no weights",
            (seen("no *.safetensors, *.bin or *.pt that an engine reads", str(case.drafter_path)),),
            "Export the drafter's weights into this folder.",
        )
    elif case.drafter is not None and not case.drafter.has_config:
        yield Found(
            "The drafter has no config.json",
            (seen("config.json is not in the folder", str(case.drafter_path)),),
            "Copy config.json from where the drafter was saved.",
        )


@check(
    "E3L-F03",
    "files.unindexed-shard",
    needs=("drafter",),
    effect="The parameters of the file that is passed over stay as they were initialised: acceptance is at chance.",
)
def unindexed(case: Investigation) -> Iterator[Found]:
    """A shard on disk is not named in the index.

    Seen: A safetensors file lies in the folder, and `model.safetensors.index.json` does not name it.
    Why: The index is of an earlier export, or a converter wrote a second file and did not extend it.
    Effect: The engine filters such files out without a word; the parameters they hold stay uninitialised.
    Repair: Write the index again so that it names every shard, or merge the shards into one file and delete it.
    Sources: SGLang `model_loader/weight_utils.py`, `filter_duplicate_safetensors_files`.
    """
    assert case.drafter is not None
    passed = [one for one in case.drafter.files.ignored if one.reason.startswith("not in ")]
    if passed:
        yield Found(
            "A weight file is not named in the index, so the engine skips it",
            tuple(seen(f"{one.name} is {one.reason}", one.name) for one in passed),
            "Write model.safetensors.index.json again so that it names every shard.",
        )


@check(
    "E3L-F04",
    "files.stale-safetensors",
    needs=("drafter",),
    effect="The engine reads the other file: what the trained weights hold never reaches it.",
)
def stale(case: Investigation) -> Iterator[Found]:
    """A safetensors file shadows the file with the real weights.

    Seen: The folder holds `*.safetensors` and `*.bin` (or `*.pt`), and the first lack parameters of a drafter, or
        hold other values than the second.
    Why: An old or partial conversion was left beside the trained weights.
    Effect: Engines take the first pattern that matches anything and never open the other file.
    Repair: Remove the stale file, or convert the trained weights again.
    Sources: SGLang `model_loader/loader.py`, `_prepare_weights`: safetensors, then bin, then pt.
    """
    assert case.drafter is not None
    shadowed = [one for one in case.drafter.files.ignored if one.reason.startswith("shadowed")]
    if not shadowed:
        return
    from eagle3lab.diagnosis.evidence.shadow import differences

    read = case.drafter.files.read[0]
    differing = differences(case.drafter, shadowed[0].name)
    lacking = [part for part in ("fc.weight", "down_proj.weight", "norm.weight") if case.tensor(part) is None]
    if lacking or differing:
        yield Found(
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
