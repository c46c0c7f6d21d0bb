"""Repairs of tensors: names, shards that the index passes over, a bias that nobody trained, a head that is missing.

Each takes the working copy, changes it and says what it changed, or leaves it and returns None.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from eagle3lab.checkpoint.safetensors import read_header
from eagle3lab.checkpoint.store import INDEX_FILE, safe_file
from eagle3lab.checkpoint.tensors import DTYPE_BITS
from eagle3lab.engines.atlas.resolve import resolve_engine
from eagle3lab.engines.loading.names import route
from eagle3lab.engines.release import newest_release
from eagle3lab.engines.target import read_target
from eagle3lab.errors import InputError
from eagle3lab.repair.copy import Held, TargetRows
from eagle3lab.repair.model import IndexEdit, Mend
from eagle3lab.text import printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eagle3lab.checkpoint import Checkpoint
    from eagle3lab.engines.facts import EngineFacts, NameRules
    from eagle3lab.repair.copy import WorkingCopy

# How trainers and engines number a decoder layer: layers.0, midlayer, midlayer.0 (Megatron), with anything before.
_LAYER = re.compile(
    r"(?P<outer>(?:.*\.)?)(?:layers\.(?P<number>\d+)|midlayer(?:\.(?P<deep>\d+))?)\.(?P<tail>.+)"
)
# Token maps are found by a part of their name; a strict reader wants the whole.
_MAPS = ("d2t", "t2d")
_HEAD, _FC, _FC_BIAS = "lm_head.weight", "fc.weight", "fc.bias"
_EMPTY = ("left as initialised", "partly loaded")


def loadable_names(parameters: Iterable[str], rules: NameRules) -> tuple[str, ...]:
    """A checkpoint name for everything the drafter has: each parameter, and each shard of a fused one."""
    known = frozenset(parameters)
    added = [*rules.prefixes, *([rules.own_prefix.text] if rules.own_prefix else [])]
    names: list[str] = []
    for parameter in known:
        for bare in sorted({parameter.removeprefix(prefix) for prefix in added}, key=len):
            parts = [bare.replace(rule.fused, rule.part) for rule in rules.stacked if rule.fused in bare]
            parts += [
                bare.replace(pair.fused, half)
                for pair in rules.joined
                if pair.fused in bare
                for half in pair.parts
            ]
            parts = parts or [bare]
            if all(route(part, rules, known).parameter == parameter for part in parts):
                names += parts
                break
    return tuple(sorted(names))


@cache
def format_facts() -> EngineFacts:
    """The names of the speculators format: those of the parameters of SGLang's class, taken strictly.

    The layer is the one that this class has, so it describes what must be there and in which shape; vLLM and the
    library stop at any other name.
    """
    newest = resolve_engine(str(newest_release()))
    return replace(newest, names=replace(newest.names, renames=()), construction=())


def rename(copy: WorkingCopy, *, strict: bool = False) -> Mend | None:
    """Rename the tensors that reach no parameter to names that do.

    Args:
        copy: The copy, changed in place.
        strict: Whether every tensor gets the name that the speculators format has for it, which vLLM and the
            library stop without, and not only those that the release does not find.

    Returns:
        What was renamed; None where nothing is, or more than one tensor could be meant by a name.
    """
    strict = strict or copy.engine.kind == "vllm"
    facts = format_facts() if strict else copy.engine
    parameters = [parameter.name for parameter in copy.simulate(facts).parameters]
    mapping = _renaming(copy, facts.names, parameters, strict)
    if not mapping:
        return None
    example, new = next(iter(mapping.items()))
    return Mend(
        f"{len(mapping)} tensors are renamed ({printable(example)} becomes {new})",
        f"simulated under the new names, they reach the parameters of {copy.engine.drafter.name} that they are made "
        "for: every shape fits, and no two tensors claim the same place",
        copy.rename(mapping),
    )


def _renaming(copy: WorkingCopy, rules: NameRules, parameters: list[str], strict: bool) -> dict[str, str]:
    """Old name → new one, for the one set of tensors that can be meant; empty if there is none or more than one."""
    known = frozenset(parameters)
    layers: dict[tuple[int, str], str] = {}
    outside: list[str] = []
    for name in loadable_names(parameters, rules):
        inside = _LAYER.fullmatch(name)
        if inside is None:
            outside.append(name)
        else:
            layers[int(inside["number"] or inside["deep"] or 0), inside["tail"]] = name
    names = [info.name for info in copy.checkpoint.contents.offered]
    taken, wanted = set(names), {}
    for name in names:
        way = route(name, rules, known)
        if not strict and (way.special is not None or way.parameter is not None):
            continue
        new = _wanted(name, layers, [*outside, *_MAPS])
        if new is not None and new != name and new not in taken:
            wanted[name] = new
    return _one_to_one(wanted)


def _wanted(name: str, layers: dict[tuple[int, str], str], outside: list[str]) -> str | None:
    inside = _LAYER.fullmatch(name)
    if inside is not None:
        return layers.get((int(inside["number"] or inside["deep"] or 0), inside["tail"]))
    ends = [bare for bare in outside if name == bare or name.endswith(f".{bare}")]
    return max(ends, key=len, default=None)


def _one_to_one(wanted: dict[str, str]) -> dict[str, str]:
    """`wanted` if no two tensors want one name; else the tensors of the only outermost prefix with no such clash."""
    if max(Counter(wanted.values()).values(), default=0) <= 1:
        return wanted
    groups: dict[str, dict[str, str]] = {}
    for name, new in wanted.items():
        groups.setdefault(name.partition(".")[0], {})[name] = new
    most = max(len(group) for group in groups.values())
    largest = [group for group in groups.values() if len(group) == most]
    only = largest[0] if len(largest) == 1 else {}
    return only if max(Counter(only.values()).values(), default=0) <= 1 else {}


def index_shards(copy: WorkingCopy) -> Mend | None:
    """Name the shards in the index whose tensors have no namesake in those that it names already."""
    if copy.files.index is None:
        return None
    root = copy.source.path.resolve()
    names = set(copy.checkpoint.tensors)
    edits: list[IndexEdit] = []
    shards = []
    for ignored in copy.files.ignored:
        if not ignored.name.endswith(".safetensors") or ignored.name.startswith("."):
            continue
        try:
            header = read_header(safe_file(root, ignored.name), ignored.name)
        except InputError:
            continue
        if not names & {tensor.name for tensor in header.tensors}:
            names |= {tensor.name for tensor in header.tensors}
            edits += copy.add_shard(ignored.name, header.tensors)
            shards.append(ignored.name)
    if not edits:
        return None
    return Mend(
        f"{INDEX_FILE} names {', '.join(map(printable, shards))}",
        "none of them stands in another shard, and the drafter is loaded completely with them",
        tuple(edits),
    )


def fc_bias(copy: WorkingCopy) -> Mend | None:
    """Add a bias of zeros to fc, where the release makes one that the config does not ask for.

    SGLang 0.4.6 to 0.4.8 build fc with a bias whatever the config says, and leave it at random values.
    """
    plan, weight = copy.simulate(), copy.find(_FC)
    random = any(p.name == "model.fc.bias" and p.status == "left as initialised" for p in plan.parameters)
    if not random or copy.config.bias or weight is None or len(weight.shape) != 2 or not weight.is_float:
        return None
    rows = weight.shape[0]
    zeros = Held(bytes(rows * DTYPE_BITS[weight.dtype] // 8))
    return Mend(
        f"{_FC_BIAS} is added: {rows} zeros",
        "the head was trained without a bias, and zeros are no bias",
        (copy.put(_FC_BIAS, weight.dtype, (rows,), zeros),),
    )


def missing_head(copy: WorkingCopy) -> Mend | None:
    """A head from the target for a copy that has none: null for draft_vocab_size, or the target's rows.

    Raises:
        InputError: The target's config cannot be read.
    """
    plan = copy.simulate()
    lacking = any(p.name == _HEAD and p.status == "left as initialised" for p in plan.parameters)
    # A head that is there was refused or not reached: that is another fault.
    if copy.target is None or not lacking or copy.find(_HEAD) is not None:
        return None
    try:
        return _whole_head(copy, copy.target) or _rows(copy, copy.target)
    except InputError:
        return None


def _whole_head(copy: WorkingCopy, target: Checkpoint) -> Mend | None:
    """The whole vocabulary: the release takes the target's head itself when draft_vocab_size is null."""
    config, shape = copy.config, read_target(target.raw_config)
    sources = [
        r.source for r in copy.engine.from_target if (r.parameter, r.when_null) == (_HEAD, "draft_vocab_size")
    ]
    if not sources or config.draft_vocab_size != config.vocab_size:
        return None
    if (shape.vocab_size, shape.hidden_size) != (config.vocab_size, config.hidden_size):
        return None
    state = copy.state()
    edit = copy.set("draft_vocab_size", None)
    if copy.simulate().construction_error is not None:
        copy.restore(state)
        return None
    return Mend(
        "draft_vocab_size becomes null",
        f"the draft vocabulary is the whole one and the target has the same sizes; with null {copy.engine.spec} "
        f"takes the target's own head ({sources[0]}). It is the head the drafter was trained with unless one was "
        "trained and lost",
        (edit,),
    )


def _rows(copy: WorkingCopy, target: Checkpoint) -> Mend | None:
    """The target's rows that the token map names, where it names one for each row of the head.

    Raises:
        InputError: The target has no head, or the map cannot be read.
    """
    import numpy as np

    from eagle3lab.vocabulary.source import read_token_map
    from eagle3lab.vocabulary.target_rows import target_tensor

    config = copy.config
    name = target_tensor(target, "lm_head")
    source = target.info(name)
    ids = read_token_map(copy.checkpoint).served_ids
    count = config.draft_vocab_size or config.vocab_size
    fits = (
        source.shape == (config.vocab_size, config.hidden_size)
        and source.is_float
        and source.dtype[:2] != "F8"
    )
    if not fits or len(ids) != count or np.unique(ids).size != count:
        return None
    if not 0 <= ids.min() <= ids.max() < config.vocab_size:
        return None
    edit = copy.put(_HEAD, source.dtype, (count, config.hidden_size), TargetRows(target, name, ids))
    return Mend(
        f"{_HEAD} is added: {count} rows of the target's {name}",
        "row j is the target's row for draft id j, as the token map says; speculators trains with exactly these rows "
        "and keeps them frozen. Right unless a head of its own was trained and lost",
        (edit,),
    )
