"""All cells, each measured once for the inputs it has: what was measured before, of other inputs, is not taken up."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from eagle3lab.errors import InputError
from lab.faults import FAULTS
from lab.matrix import vllm
from lab.matrix.cell import (
    Prepared,
    by_reference,
    by_server,
    diagnosed,
    faults_of,
    inputs_digest,
    prepare,
    sglang_command,
)
from lab.matrix.records import AND, HEALTHY, Cell, Way, read_matrix, write_matrix
from lab.specimen.trial import Trial, load_trial

ENGINES = ("sglang==0.5.9", "sglang==0.5.23")
#: Those that can be named; vLLM is measured by itself alone, where `make engines` has made its environment.
CHOICES = (*ENGINES, vllm.ENGINE)
#: Prompts and tokens of a cell.
PROMPTS, TOKENS = 16, 64
_PACKAGES = ("torch", "transformers", "sglang", "triton", "numpy")
_CELL = "lab/matrix/cell.py"
_DECIDES: Mapping[str, tuple[str, ...]] = {
    "reference": ("lab/reference", "src/eagle3lab/engines", _CELL),
    "server": ("src/eagle3lab/serving/cpu_kernels", _CELL),
    vllm.ENGINE: ("lab/matrix/vllm.py", "lab/matrix/vllm_worker.py", _CELL),
}
Told = Callable[[Cell, bool, int, int], None]
"""Called with each cell, whether it was there already, how many are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class Job:
    """A cell to be measured."""

    fault: str
    engine: str
    way: Way


def jobs(
    ways: Sequence[Way] = ("reference",),
    engines: Sequence[str] = ENGINES,
    faults: Sequence[str] | None = None,
) -> list[Job]:
    """Every combination, the healthy head first; a name may be that of two faults, with `AND` between them.

    Raises:
        InputError: There is no fault of a name given, or vLLM is to be measured by the reference.
    """
    if vllm.ENGINE in engines and "reference" in ways:
        raise InputError(
            f"the reference does not compute as {vllm.ENGINE} does",
            advice="Measure it with `--way server`, apart from SGLang's reference cells.",
        )
    for name in faults or ():
        faults_of(name)
    return [
        Job(fault, engine, way)
        for fault in faults or (HEALTHY, *FAULTS)
        for way in ways
        for engine in engines
    ]


def run(
    todo: Sequence[Job],
    path: Path,
    told: Told,
    *,
    prompts: int = PROMPTS,
    tokens: int = TOKENS,
    trusting: bool = False,
) -> list[Cell]:
    """Measure what `path` does not hold for the same inputs and code, and write it after every cell.

    Args:
        todo: The cells.
        path: The matrix file; other cells in it are kept, but for those of faults that there are no more.
        told: Called with each cell.
        prompts: Prompts a cell.
        tokens: Length at which an answer is cut.
        trusting: Take cells over that other code measured, after a change of it that changes no figure.

    Returns:
        The cells of `todo`, in its order.
    """
    trial = load_trial(prompts=prompts)
    there = read_matrix(path).cells if path.is_file() else ()
    kept = {cell.key: cell for cell in there if {HEALTHY, *FAULTS}.issuperset(cell.fault.split(AND))}
    if len(kept) < len(there):  # faults that have gone
        write_matrix(kept.values(), path)
    code, versions, done = {part: code_digest(part) for part in _DECIDES}, _versions(), []
    for number, job in enumerate(todo, 1):
        with tempfile.TemporaryDirectory(prefix="eagle3lab-cell-") as scratch:
            if job.engine == vllm.ENGINE:
                prepared = vllm.prepare(job.fault, trial, tokens, Path(scratch))
            else:
                prepared = prepare(job.fault, job.engine, job.way, trial, tokens, Path(scratch))
            known = kept.get((job.fault, job.engine, job.way))
            decides = vllm.ENGINE if job.engine == vllm.ENGINE else job.way
            inputs = inputs_digest(prepared, trial)
            # Its head is trained elsewhere: what is recorded stands.
            unmade = prepared.cell.outcome == "not made"
            taken = known is not None and (
                unmade or (known.inputs == inputs and (trusting or known.code == code[decides]))
            )
            if taken and known is not None:
                cell = known
            else:
                cell = _measured(prepared, trial, Path(scratch))
                cell = msgspec.structs.replace(cell, versions=cell.versions or versions)
            if not (taken and unmade):
                cell = msgspec.structs.replace(cell, inputs=inputs, code=code[decides])
                # The diagnosis may have learnt since. Of a server that stopped it is made with the log, which is gone.
                if job.way == "reference" or cell.outcome == "measured" or decides == vllm.ENGINE:
                    command = vllm.command if decides == vllm.ENGINE else sglang_command
                    said = diagnosed(Prepared(cell, prepared.served), command=command)
                    cell = msgspec.structs.replace(cell, diagnosis=said)
        if cell != known:
            kept[cell.key] = cell
            write_matrix(kept.values(), path)
        done.append(cell)
        told(cell, taken, number, len(todo))
    return done


def _measured(prepared: Prepared, trial: Trial, scratch: Path) -> Cell:
    if prepared.served is None:
        return prepared.cell
    if prepared.cell.engine == vllm.ENGINE:
        return vllm.by_vllm(prepared, trial)
    if prepared.cell.way == "server":
        return by_server(prepared, trial, scratch / "run")
    return by_reference(prepared, trial)


def code_digest(part: str) -> str:
    """Digest of the code that decides the figures of cells measured one way, or by vLLM."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for place in (root / name for name in _DECIDES[part]):
        for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if file.suffix in (".py", ".toml"):
                digest.update(file.read_bytes())
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
