"""A measurement written out: as JSON for programs and the run folder, as lines and tables for people."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from eagle3lab.acceptance.counts import PerPosition
from eagle3lab.acceptance.formulas import LEN_STEPS1, NONE, formula_of, formula_texts, printed_rate
from eagle3lab.engines.release import parse_release
from eagle3lab.errors import InputError
from eagle3lab.runs.folder import RunFolder
from eagle3lab.text import printable

if TYPE_CHECKING:
    from rich.console import RenderableType

    from eagle3lab.serving.account import Measurement, Seen
    from eagle3lab.serving.workload import Bench, Workload

SCHEMA_VERSION = 1
CPU_PROFILE = (
    "the CPU profile: SGLang's own code in float32 with its kernels in plain torch; exact, small and slow"
)
_PRINTED = re.compile(r"accept len: ([\d.]+)(?:, accept rate: ([\d.]+))?")
_MOST_NAMES = 12


def per_position(measurement: Measurement) -> PerPosition | None:
    """Acceptance by position, or None where no source tells."""
    if measurement.counts.positions is None:
        return None
    steps = measurement.verify_steps
    return PerPosition.from_unconditional(tuple(n / steps for n in measurement.counts.positions), steps)


def _positions(measurement: Measurement) -> list[tuple[int, int, float, float | None]] | None:
    """Each position, its accepted drafts, and their share of all steps and of those that accepted all before."""
    counts, shares = measurement.counts.positions, per_position(measurement)
    if counts is None or shares is None:
        return None
    return list(zip(range(1, len(counts) + 1), counts, shares.unconditional, shares.conditional, strict=True))


def printed(measurement: Measurement) -> tuple[str, float] | None:
    """The formula of the release's decode line, and what it makes of the accept length; None where it prints none."""
    if measurement.release is None:
        return None
    try:
        formula = formula_of(parse_release(f"sglang=={measurement.release}"))
    except InputError:  # a development build
        return None
    if formula is None or formula == NONE:
        return None
    steps = RunFolder(measurement.run_dir).plan().get("steps") if formula == LEN_STEPS1 else None
    return formula, printed_rate(formula, measurement.accept_length, measurement.draft_tokens, steps)


def as_json(measurement: Measurement, workload: Workload | Bench) -> dict[str, Any]:
    """The measurement as plain values, schema version 1. Holds no secret."""
    folder = RunFolder(measurement.run_dir)
    plan = folder.plan()
    positions, formula = _positions(measurement), printed(measurement)
    last = _PRINTED.search(measurement.last_decode_line or "")
    return {
        "schema_version": SCHEMA_VERSION,
        "engine": f"sglang=={measurement.release}" if measurement.release else "sglang",
        "cpu_profile": plan.get("device") == "cpu",
        "plan": plan,
        "workload": workload.as_json(),
        "tokens": measurement.tokens,
        "seconds": round(measurement.seconds, 3),
        "acceptance": {
            "counted_from": measurement.counted_from,
            "draft_tokens": measurement.draft_tokens,
            "verify_steps": measurement.verify_steps,
            "accepted": measurement.accepted,
            "accept_length": measurement.accept_length,
            "accept_rate": measurement.accept_rate,
            "printed_rate": {"formula": formula[0], "rate": formula[1]} if formula else None,
            "last_printed": {
                "accept_length": float(last[1]),
                "accept_rate": float(last[2]) if last[2] else None,
            }
            if last
            else None,
            "per_position": [
                {"position": place, "accepted": accepted, "unconditional": share, "conditional": conditional}
                for place, accepted, share, conditional in positions
            ]
            if positions is not None
            else None,
        },
        "probe": _probe_json(measurement.seen) if measurement.seen else None,
        "run_dir": str(measurement.run_dir),
    }


def _probe_json(seen: Seen) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(seen))
    values["captured_layers"], values["capture_chain"] = values.pop("captured"), values.pop("chain")
    return values


def drawn(measurement: Measurement, workload: Workload | Bench) -> Iterator[RenderableType]:
    """The measurement for a console."""
    from rich.table import Table
    from rich.text import Text

    plan = RunFolder(measurement.run_dir).plan()
    engine = f"SGLang {measurement.release}" if measurement.release else "SGLang"
    if plan.get("device") == "cpu":
        yield Text(f"This is {CPU_PROFILE}. Acceptance is real, speed is not.")
    asked = f"{plan.get('algorithm')}, draft tokens {measurement.draft_tokens}, steps {plan.get('steps')}"
    speed = f" ({measurement.tokens / measurement.seconds:.0f} a second)" if measurement.seconds else ""
    yield Text(
        printable(
            f"{engine}: {asked}, topk {plan.get('topk')}, tp {plan.get('tp')}; "
            f"{_asked(measurement, workload)}, {measurement.tokens} tokens{speed}"
        )
    )
    table = Table(title="Acceptance", title_justify="left")
    for heading in ("what", "value", "how it is counted"):
        table.add_column(heading, overflow="fold")
    for row in _rows(measurement):
        table.add_row(*map(Text, row))
    yield table
    positions = _positions(measurement)
    if positions is not None:
        table = Table(title="By position of the draft", title_justify="left")
        for heading in ("position", "accepted", "of all verify steps", "of those that accepted all before"):
            table.add_column(heading, justify="right")
        for place, accepted, share, conditional in positions:
            table.add_row(
                str(place),
                str(accepted),
                f"{share:.1%}",
                "-" if conditional is None else f"{conditional:.1%}",
            )
        yield table
    if measurement.seen is not None:
        yield from _probe_drawn(measurement.seen)
    yield Text(printable(f"Run folder: {measurement.run_dir}"))


def _asked(measurement: Measurement, workload: Workload | Bench) -> str:
    if not measurement.outputs:
        return workload.source
    return f"{len(measurement.outputs)} requests ({workload.source})"


def _rows(measurement: Measurement) -> Iterator[tuple[str, str, str]]:
    whose = {
        "requests": "from each answer's own counts",
        "events": "from the probe's totals, warm-up included",
    }
    yield (
        "accept length",
        f"{measurement.accept_length:.3f}",
        f"tokens per verify step, bonus included: 1 + {measurement.accepted} / {measurement.verify_steps}, "
        f"{whose[measurement.counted_from]}",
    )
    yield "accept rate", f"{measurement.accept_rate:.3f}", "accepted drafts / proposed drafts: the true rate"
    formula = printed(measurement)
    if formula is not None:
        yield (
            "accept rate as its log prints it",
            f"{formula[1]:.3f}",
            f"{formula[0]}: {formula_texts()[formula[0]]}",
        )
    last = _PRINTED.search(measurement.last_decode_line or "")
    if last is not None:
        rate = f", rate {last[2]}" if last[2] else ""
        yield "last line of the log", f"len {last[1]}{rate}", "over its last few verify steps only"


def _probe_drawn(seen: Seen) -> Iterator[RenderableType]:
    from rich.table import Table
    from rich.text import Text

    if seen.boundary:
        table = Table(title="What came into the drafter", title_justify="left")
        for heading in ("phase", "width of the states", "fused by fc", "passes", "for example"):
            table.add_column(heading)
        for each in seen.boundary:
            ran = "not known" if each.fused is None else "yes" if each.fused else "no"
            if each.fused is not None and each.fc_ran is None:
                ran += ", by the width"
            shape = " × ".join(map(str, each.hidden_shape)) or "-"
            table.add_row(
                each.phase,
                str(each.width),
                ran,
                "rehearsals only" if each.rehearsal and not each.passes else str(each.passes),
                shape,
            )
        yield table
    if seen.captured is not None:
        chain = " → ".join(seen.chain)
        yield Text(printable(f"Layers captured: {', '.join(map(str, seen.captured))} ({chain})"))
    elif seen.boundary:
        yield Text("The target was not asked to capture any layer's states.")
    if seen.offered is not None:
        yield Text(
            f"Drafter's names: {len(seen.dropped)} of {seen.offered} dropped, "
            f"{len(seen.never_written)} parameters never written"
        )
        for what, names in (("dropped", seen.dropped), ("never written", seen.never_written)):
            if names:
                more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
                yield Text(f"  {what}: {', '.join(map(printable, names[:_MOST_NAMES]))}{more}")
        if any(name.endswith("t2d") for name in seen.dropped):
            yield Text("  (t2d is a trainer's mask; SGLang has no use for it)")
    for note in seen.notes:
        yield Text(f"note: {note}")
