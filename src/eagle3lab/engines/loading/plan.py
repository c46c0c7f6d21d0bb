"""The report of a load, simulated or real, and as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from eagle3lab.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType


# ---- the report ------------------------------------------------------------------------------------------------------


Outcome = Literal["loaded", "dropped", "rejected", "special", "not reached"]
Status = Literal["loaded", "partly loaded", "left as initialised", "taken from target"]
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Slice:
    """Which rows and columns of a tensor reach which rows and columns of a parameter on one rank.

    Every range is [start, stop). Columns are named only where not all of the tensor's land in all of the
    parameter's, in order; a range of one that meets a range of many is repeated.

    Attributes:
        parameter_rows: Rows of the local parameter that are written.
        tensor_rows: Rows of the tensor they come from.
        parameter_columns: Columns of the local parameter; None for all.
        tensor_columns: Columns of the tensor; None for all.
        zero_rows: Rows of the local parameter that the loader fills with zeros instead; None for none.
        zero_columns: The same for columns.
    """

    parameter_rows: Range
    tensor_rows: Range
    parameter_columns: Range | None = None
    tensor_columns: Range | None = None
    zero_rows: Range | None = None
    zero_columns: Range | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON, without what is None."""
        pairs = ((name, getattr(self, name)) for name in self.__slots__)
        return {name: list(value) for name, value in pairs if value is not None}


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """What becomes of one tensor of the checkpoint.

    Attributes:
        name: Its name in the checkpoint (untrusted).
        outcome: "loaded", "dropped" (nothing happens, nothing is said), "rejected" (the engine stops here),
            "special" (consumed, but not as a weight) or "not reached" (the engine had stopped before).
        parameter: The drafter's parameter it reaches, or "hot_token_id"; None if none.
        slices: Which part reaches which part; empty where that cannot be told in ranges.
        reason: In plain words.
        exception: Type of the exception, for "rejected".
        waits: Whether it was dropped although its name is right, because the tensor it is joined with never came.
    """

    name: str
    outcome: Outcome
    parameter: str | None
    slices: tuple[Slice, ...]
    reason: str
    exception: str | None = None
    waits: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As JSON. `slice` is an object, null, or a list of objects where a tensor fills several stretches."""
        parts = [part.to_dict() for part in self.slices]
        whole: Any = None if not parts else parts[0] if len(parts) == 1 else parts
        report = {
            "name": self.name,
            "outcome": self.outcome,
            "parameter": self.parameter,
            "slice": whole,
            "reason": self.reason,
        }
        return report if self.exception is None else {**report, "exception": self.exception}


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """What is in one parameter of the drafter after loading.

    Attributes:
        name: The parameter.
        shape: Of this rank's part.
        status: "loaded", "partly loaded", "left as initialised", or "taken from target" where the engine
            puts the target's own weight there.
        reason: In plain words.
        replaced_by_target: Whether the target's own weight takes its place after loading, under the class's own
            algorithm, whatever was loaded: what the checkpoint has for it, or lacks, then makes no difference.
    """

    name: str
    shape: tuple[int, ...]
    status: Status
    reason: str
    replaced_by_target: bool = False

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "status": self.status,
            "reason": self.reason,
            "replaced_by_target": self.replaced_by_target,
        }


@dataclass(frozen=True, slots=True)
class ConstructionError:
    """Why the drafter could not be built: type and message of the exception."""

    type: str
    message: str

    def to_dict(self) -> dict[str, str]:
        """As JSON."""
        return {"type": self.type, "message": self.message}


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What one rank of an engine release makes of a checkpoint.

    Attributes:
        engine: The release, `sglang==0.5.9`.
        drafter_class: The engine's class for it.
        tp_size: Number of tensor-parallel ranks.
        tp_rank: This one, from 0.
        tensors: One entry a tensor, in the order the engine is offered them.
        parameters: One entry a parameter of the drafter on this rank; empty if it could not be built.
        construction_error: Why it could not be built; None if it could.
        notes: What a reader should know besides.
        algorithm: The algorithm the class is made for, "EAGLE3" or "EAGLE".
    """

    engine: str
    drafter_class: str
    tp_size: int
    tp_rank: int
    tensors: tuple[TensorPlan, ...]
    parameters: tuple[ParameterPlan, ...]
    construction_error: ConstructionError | None = None
    notes: tuple[str, ...] = ()
    algorithm: str = "EAGLE3"

    def tensors_with(self, outcome: Outcome) -> tuple[TensorPlan, ...]:
        """The tensors with this outcome."""
        return tuple(tensor for tensor in self.tensors if tensor.outcome == outcome)

    def parameters_with(self, status: Status) -> tuple[ParameterPlan, ...]:
        """The parameters with this status."""
        return tuple(parameter for parameter in self.parameters if parameter.status == status)

    @property
    def rejected(self) -> TensorPlan | None:
        """The tensor at which the engine stops; None if it loads to the end."""
        return next(iter(self.tensors_with("rejected")), None)

    def to_dict(self) -> dict[str, Any]:
        """As JSON."""
        error = self.construction_error
        return {
            "engine": self.engine,
            "drafter_class": self.drafter_class,
            "tp_size": self.tp_size,
            "tp_rank": self.tp_rank,
            "tensors": [tensor.to_dict() for tensor in self.tensors],
            "parameters": [parameter.to_dict() for parameter in self.parameters],
            "construction_error": None if error is None else error.to_dict(),
            "notes": list(self.notes),
        }


def differences(one: LoadPlan, other: LoadPlan) -> list[str]:
    """Where two plans of the same load disagree, one line each: wording apart, they should not.

    Compared are outcome, parameter, slices and exception type of every tensor, shape and status of every
    parameter, and the type of the construction error.
    """
    return [
        *_compare("construction error", [_error_type(one)], [_error_type(other)]),
        *_compare("tensor", map(_tensor_facts, one.tensors), map(_tensor_facts, other.tensors)),
        *_compare(
            "parameter", map(_parameter_facts, one.parameters), map(_parameter_facts, other.parameters)
        ),
    ]


def _compare(what: str, left: Iterable[object], right: Iterable[object]) -> list[str]:
    ours, theirs = list(left), list(right)
    if len(ours) != len(theirs):
        return [f"{what}: {len(ours)} against {len(theirs)}: {ours} / {theirs}"]
    return [f"{what}: {a} / {b}" for a, b in zip(ours, theirs, strict=True) if a != b]


def _error_type(plan: LoadPlan) -> str | None:
    return None if plan.construction_error is None else plan.construction_error.type


def _tensor_facts(tensor: TensorPlan) -> tuple[object, ...]:
    slices = tuple(part.to_dict() for part in tensor.slices)
    return tensor.name, tensor.outcome, tensor.parameter, slices, tensor.exception


def _parameter_facts(parameter: ParameterPlan) -> tuple[object, ...]:
    return parameter.name, parameter.shape, parameter.status


# ---- as tables -------------------------------------------------------------------------------------------------------


_STYLES = {
    "loaded": "green",
    "special": "cyan",
    "taken from target": "cyan",
    "dropped": "bold red",
    "rejected": "bold red",
    "left as initialised": "bold red",
    "partly loaded": "bold red",
    "not reached": "yellow",
}


def plan_tables(plan: LoadPlan) -> list[RenderableType]:
    """The plan as rich renderables: tensors, parameters, then what it comes to."""
    from rich.table import Table
    from rich.text import Text

    rank = f", rank {plan.tp_rank} of {plan.tp_size}" if plan.tp_size > 1 else ""
    tensors = Table(title=f"{plan.engine} · {plan.drafter_class}{rank}", title_justify="left")
    for heading in ("tensor", "outcome", "parameter", "rows and columns", "reason"):
        tensors.add_column(heading, overflow="fold")
    for tensor in plan.tensors:
        tensors.add_row(
            Text(printable(tensor.name)),
            Text(tensor.outcome, style=_STYLES[tensor.outcome]),
            Text(tensor.parameter or "-"),
            Text(_stretches(tensor)),
            Text(tensor.reason),
        )
    drawn: list[RenderableType] = [tensors]
    if plan.parameters:
        parameters = Table(title="parameters of the drafter on this rank", title_justify="left")
        for heading in ("parameter", "shape", "status", "reason"):
            parameters.add_column(heading, overflow="fold")
        for parameter in plan.parameters:
            parameters.add_row(
                Text(parameter.name),
                Text(" × ".join(map(str, parameter.shape))),
                Text(parameter.status, style=_STYLES[parameter.status]),
                Text(parameter.reason),
            )
        drawn.append(parameters)
    return [*drawn, *(Text(line) for line in summary(plan))]


def summary(plan: LoadPlan) -> list[str]:
    """What the plan comes to, one line each: stops, counts, notes."""
    lines = []
    if plan.construction_error is not None:
        error = plan.construction_error
        lines.append(f"The drafter cannot be built: {error.type}: {printable(error.message)}")
    elif plan.rejected is not None:
        lines.append(f"Loading stops at {printable(plan.rejected.name)}: {plan.rejected.reason}")
    harmless = [
        parameter.name
        for parameter in (
            *plan.parameters_with("left as initialised"),
            *plan.parameters_with("partly loaded"),
        )
        if parameter.replaced_by_target
    ]
    counts = {outcome: len(plan.tensors_with(outcome)) for outcome in ("loaded", "dropped", "special")}
    lines.append(
        f"{len(plan.tensors)} tensors: "
        + ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
        + f". {len(plan.parameters)} parameters: {len(plan.parameters_with('left as initialised'))} left as "
        f"initialised, {len(plan.parameters_with('partly loaded'))} partly loaded."
    )
    if harmless:
        lines.append(
            f"Of these the target's own weight replaces {', '.join(harmless)} under {plan.algorithm}."
        )
    return lines + [f"Note: {note}" for note in plan.notes]


def _stretches(tensor: TensorPlan) -> str:
    """`[32:64] → [0:32]`, from the tensor to the parameter, one line a stretch; columns after a comma."""
    lines = []
    for part in tensor.slices:
        source = _range(part.tensor_rows, part.tensor_columns)
        lines.append(f"{source} → {_range(part.parameter_rows, part.parameter_columns)}")
        if part.zero_rows is not None:
            lines.append(f"0 → {_range(part.zero_rows, None)}")
        if part.zero_columns is not None:
            lines.append(f"0 → {_range(part.parameter_rows, part.zero_columns)}")
    return "\n".join(lines)


def _range(rows: Range, columns: Range | None) -> str:
    text = f"{rows[0]}:{rows[1]}"
    return f"[{text}]" if columns is None else f"[{text}, {columns[0]}:{columns[1]}]"
