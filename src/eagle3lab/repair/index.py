"""Shards that lie in the folder and that the index does not name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3lab.checkpoint.files import INDEX_FILE, safe_file
from eagle3lab.checkpoint.safetensors_header import read_header
from eagle3lab.errors import InputError
from eagle3lab.repair.model import Change, IndexEdit
from eagle3lab.repair.working_copy import PlannedTensor

if TYPE_CHECKING:
    from eagle3lab.repair.working_copy import WorkingCopy


def repair_index(copy: WorkingCopy) -> Change | None:
    """Name the shards in the index whose tensors have no namesake in those that it names already.

    Whether the tensors are the drafter's is what the simulated load of the whole copy shows at the end.
    """
    files = copy.checkpoint.files
    plan = copy.simulate()
    lacking = [p for p in plan.parameters if p.status in ("left as initialised", "partly loaded")]
    if files.index is None or not lacking:
        return None
    root = copy.checkpoint.path.resolve()
    names = {info.name for info in copy.infos}
    edits: list[IndexEdit] = []
    shards = []
    for ignored in files.ignored:
        if not ignored.name.endswith(".safetensors") or ignored.name.startswith("."):
            continue
        try:
            header = read_header(safe_file(root, ignored.name), ignored.name)
        except InputError:
            continue
        if names & {tensor.name for tensor in header.tensors}:
            continue
        names |= {tensor.name for tensor in header.tensors}
        copy.tensors += [PlannedTensor(tensor, tensor) for tensor in header.tensors]
        edits += [IndexEdit(tensor.name, ignored.name) for tensor in header.tensors]
        shards.append(ignored.name)
    if not edits:
        return None
    return Change(
        "files.unindexed-shard",
        f"{INDEX_FILE} names {', '.join(shards)}",
        (
            f"{len(edits)} tensors of {', '.join(shards)} are in no entry of {INDEX_FILE}, so engines skip them",
        ),
        "none of them stands in another shard, and the drafter is loaded completely with them",
        tuple(edits),
    )
