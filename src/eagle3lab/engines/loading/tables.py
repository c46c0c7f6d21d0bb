"""A load plan as tables for a terminal. rich is imported only when one is drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eagle3lab.engines.loading.plan import LoadPlan, Range, TensorPlan
from eagle3lab.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

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
