"""A repair written out: rewritten files streamed, the others linked or copied, a journal, and all or nothing."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3lab import __version__
from eagle3lab.checkpoint import open_checkpoint
from eagle3lab.checkpoint.json_input import LARGEST_JSON_FILE, read_json_object
from eagle3lab.checkpoint.safetensors import TensorToWrite, stored_parts, write_parts, write_safetensors
from eagle3lab.checkpoint.store import CONFIG_FILE, INDEX_FILE
from eagle3lab.checkpoint.tensors import DTYPE_BITS
from eagle3lab.engines.loading import differences, simulate_load
from eagle3lab.errors import Eagle3labError, InputError
from eagle3lab.repair.folder import atomic_folder, carry, check_out, list_folder, plain_mode
from eagle3lab.repair.journal import JOURNAL, SCHEMA_VERSION, SHA256_UP_TO, WEIGHTS, Kept, digest, pieces
from eagle3lab.repair.model import IndexEdit, RepairPlan, change_to_dict, load_summary

if TYPE_CHECKING:
    from eagle3lab.engines.loading import LoadPlan
    from eagle3lab.repair.copy import PlannedTensor

_ITSELF = 8  # alignment of the first tensor of a safetensors file, in bytes


class RepairError(Eagle3labError):
    """The written copy is not what was planned; it has been removed again."""


@dataclass(frozen=True, slots=True)
class Written:
    """A repaired folder.

    Attributes:
        path: The folder.
        load: Its simulated load, after writing.
        verified: Whether the release's own loader was run and did the same; None if it was not asked for.
    """

    path: Path
    load: LoadPlan
    verified: bool | None


def write_repair(plan: RepairPlan, out: Path, *, verify: bool = False, sync: bool = False) -> Written:
    """Write the planned copy into the new folder `out`; the drafter itself is only read.

    The copy is opened and loaded in simulation before it gets its name, so that `out` is complete and does what the
    plan says, or does not exist.

    Args:
        plan: Without refusals.
        out: A folder that does not exist yet, outside the drafter's.
        verify: Whether the release's own loader is run on the copy as well.
        sync: Whether it must be on the disk, not in memory alone, before it gets its name.

    Raises:
        InputError: The plan was refused, `out` cannot be made or written, a file changed meanwhile, or the release
            is not on this machine.
        RepairError: The copy does not load as planned.
    """
    if plan.refusals:
        raise InputError(f"cannot be repaired for {plan.engine}: {plan.refusals[0].reason}", path=plan.path)
    check_out(out, plan.path)
    if verify:
        _check_verifiable(plan)
    writer = _Writer(plan)
    with atomic_folder(out, sync=sync) as folder:
        writer.write(folder)
        copied = open_checkpoint(folder)
        load = simulate_load(copied, plan.copy.engine)
        if plan.after is not None and (unlike := differences(plan.after, load)):
            raise RepairError(f"{out}: the copy does not load as planned ({unlike[0]})")
        if verify:
            from eagle3lab.engines.ground_truth import simulated_beside_real

            if unlike := list(simulated_beside_real(copied, plan.copy.engine).differences):
                raise RepairError(f"{out}: {plan.engine}'s own loader does something else ({unlike[0]})")
        writer.write_journal(folder, load, verify)
    return Written(out, load, True if verify else None)


def _check_verifiable(plan: RepairPlan) -> None:
    """Before anything is written: whether there is a loader to verify the copy with.

    Raises:
        InputError: There is none.
    """
    if plan.copy.engine.kind != "sglang":
        raise InputError(
            f"there is no loader of {plan.engine} to verify the copy with", advice="Leave --verify out."
        )
    from eagle3lab.engines.ground_truth.locate import find_installation

    find_installation(plan.copy.engine)


class _Writer:
    """The files of the copy, and what is needed to make the original of them again."""

    def __init__(self, plan: RepairPlan) -> None:
        self._plan = plan
        self._checkpoint = plan.checkpoint
        self._root = plan.path.resolve()
        self._files, self._folders = list_folder(self._root)
        self._digests = _Digests(self._root, self._files)
        self._pieces: dict[str, list[dict[str, Any]]] = {}
        self._new_files: dict[str, str] = {}

    def write(self, folder: Path) -> None:
        """Everything but the journal."""
        for name in self._folders:
            (folder / name).mkdir()
        rewritten = self._rewritten()
        config_changed = self._plan.copy.raw != dict(self._checkpoint.raw_config)
        for name in self._files:
            if name in rewritten:
                self._rewrite(folder, name, rewritten[name])
            elif (name == CONFIG_FILE and config_changed) or (
                name == INDEX_FILE and self._index_changed(rewritten)
            ):
                self._write_json(folder, name)
            elif name == JOURNAL:  # of an earlier repair: kept in the new one
                self._pieces[name] = pieces(self._root / name, ())
            else:
                carry(self._root / name, folder / name, link=name.endswith(WEIGHTS))
                size = (folder / name).stat().st_size
                self._pieces[name] = pieces(self._root / name, [Kept(0, size, name, 0)])
        if len(self._new_files) > 1 and INDEX_FILE not in self._files:
            self._write_json(folder, INDEX_FILE)

    def _rewritten(self) -> dict[str, list[PlannedTensor]]:
        """Files that have to be written anew, with their tensors; of a torch checkpoint all or none."""
        files: dict[str, list[PlannedTensor]] = {}
        for tensor in self._plan.copy.tensors:
            files.setdefault(tensor.info.file, []).append(tensor)
        changed = {file for file, tensors in files.items() if any(tensor.changed for tensor in tensors)}
        if self._checkpoint.files.format == "torch" and changed:
            changed = set(files)
            numbered = {
                file: f"model-{i:05}-of-{len(files):05}.safetensors" for i, file in enumerate(files, 1)
            }
            self._new_files = numbered if len(files) > 1 else dict.fromkeys(files, "model.safetensors")
        return {file: files[file] for file in files if file in changed}

    def _rewrite(self, folder: Path, name: str, tensors: list[PlannedTensor]) -> None:
        ordered = _layout(tensors)
        new = self._new_files.get(name, name)
        offsets = write_safetensors(
            folder / new,
            [
                TensorToWrite(
                    tensor.info.name, tensor.info.dtype, tensor.info.shape, partial(self._parts, tensor)
                )
                for tensor in ordered
            ],
            self._metadata(name),
        )
        (folder / new).chmod(plain_mode((self._root / name).stat().st_mode))
        kept = [
            Kept(tensor.origin.offset, tensor.origin.nbytes, new, at)
            for tensor, at in zip(ordered, offsets, strict=True)
            if tensor.origin is not None
            and tensor.values is None
            and self._checkpoint.strides(tensor.origin) is None
        ]
        self._pieces[name] = pieces(self._root / name, kept)

    def _parts(self, tensor: PlannedTensor) -> Iterable[Any]:
        if tensor.values is not None:
            return tensor.values.parts()
        assert tensor.origin is not None
        return stored_parts(self._checkpoint, tensor.origin)

    def _metadata(self, name: str) -> dict[str, str]:
        if self._checkpoint.files.format != "safetensors":
            return {"format": "pt"}
        from eagle3lab.checkpoint.safetensors import read_header

        return read_header(self._root / name, name).metadata or {"format": "pt"}

    def _index_changed(self, rewritten: dict[str, list[PlannedTensor]]) -> bool:
        edits = (edit for change in self._plan.changes for edit in change.edits)
        if self._checkpoint.files.index is None:
            return bool(self._new_files)
        return bool(rewritten) or any(isinstance(edit, IndexEdit) for edit in edits)

    def _write_json(self, folder: Path, name: str) -> None:
        value = self._plan.copy.raw if name == CONFIG_FILE else self._index()
        write_parts(folder / name, [(json.dumps(value, indent=2) + "\n").encode("ascii")])
        if name in self._files:
            (folder / name).chmod(plain_mode((self._root / name).stat().st_mode))
            self._pieces[name] = pieces(self._root / name, ())

    def _index(self) -> dict[str, Any]:
        """The index with the copy's tensors; entries for tensors that are in no file stay as they are."""
        before = {tensor.name for tensor in self._checkpoint.contents.offered}
        raw = {"metadata": {}} if self._new_files else read_json_object(self._root / INDEX_FILE)[0]
        indexed = {name: file for name, file in raw.get("weight_map", {}).items() if name not in before}
        planned = {
            tensor.info.name: self._new_files.get(tensor.info.file, tensor.info.file)
            for tensor in self._plan.copy.tensors
        }
        total = sum(tensor.info.nbytes for tensor in self._plan.copy.tensors)
        metadata = raw.get("metadata")
        metadata = {**metadata, "total_size": total} if isinstance(metadata, dict) else metadata
        return {**raw, "metadata": metadata, "weight_map": {**indexed, **planned}}

    def write_journal(self, folder: Path, load: LoadPlan, verified: bool) -> None:
        """The journal, last: a folder without one is not complete."""
        plan = self._plan
        originals = [
            {
                "name": name,
                **self._digests.of(name),
                "mode": f"{stat.S_IMODE((self._root / name).stat().st_mode):04o}",
                "pieces": self._pieces[name],
            }
            for name in self._files
        ]
        journal = {
            "schema_version": SCHEMA_VERSION,
            "eagle3lab": __version__,
            "engine": plan.engine,
            "source": {"folder": plan.path.resolve().name, "folders": self._folders, "files": originals},
            "changes": [change_to_dict(change) for change in plan.changes],
            "notes": list(plan.notes),
            "load": {"before": load_summary(plan.before), "after": load_summary(load)},
            "verified_by_own_loader": verified,
        }
        text = (json.dumps(journal, indent=1) + "\n").encode("ascii")
        if len(text) > LARGEST_JSON_FILE:
            raise InputError(
                "the journal would be too large to be read again",
                path=plan.path,
                advice="Repair it in smaller steps.",
            )
        write_parts(folder / JOURNAL, [text])


class _Digests:
    """Digests of the original's files; those of large ones are worked out beside the copying, which waits for disks."""

    def __init__(self, root: Path, files: list[str]) -> None:
        self._root = root
        self._found: dict[str, dict[str, Any] | InputError] = {}
        large = [name for name in files if (root / name).stat().st_size > SHA256_UP_TO]
        self._worker = threading.Thread(target=self._read, args=(large,), daemon=True) if large else None
        if self._worker is not None:
            self._worker.start()

    def _read(self, files: list[str]) -> None:
        for name in files:
            try:
                self._found[name] = digest(self._root / name)
            except InputError as error:
                self._found[name] = error

    def of(self, name: str) -> dict[str, Any]:
        """As in the journal.

        Raises:
            InputError: The file cannot be read.
        """
        if self._worker is not None:
            self._worker.join()
        found = self._found.get(name) or digest(self._root / name)
        if isinstance(found, InputError):
            raise found
        return found


def _layout(tensors: list[PlannedTensor]) -> list[PlannedTensor]:
    """The order of values in the file: as it was, so that they are one stretch; by size where that would misalign."""
    ordered = sorted(tensors, key=_offset)
    at = 0
    for tensor in ordered:
        if at % _alignment(tensor):
            return sorted(ordered, key=lambda tensor: -_alignment(tensor))
        at += tensor.info.nbytes
    return ordered


def _offset(tensor: PlannedTensor) -> tuple[bool, int]:
    return tensor.origin is None, 0 if tensor.origin is None else tensor.origin.offset


def _alignment(tensor: PlannedTensor) -> int:
    """Bytes of an element, at least one."""
    return max(1, min(_ITSELF, DTYPE_BITS[tensor.info.dtype] // 8))
