"""`eagle3lab measure`: serve a drafter with real SGLang, and count what is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from eagle3lab.cli.output import Format, console, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from eagle3lab.serving.account import Measurement
    from eagle3lab.serving.engine import Engine
    from eagle3lab.serving.logs import Progress
    from eagle3lab.serving.plan import LaunchPlan
    from eagle3lab.serving.workload import Answered, Bench, Workload

_FAILED, _INTERRUPTED = 3, 130
_ATTACH_S = 3.0
_WIDTH_WITHOUT_TERMINAL = 120


class Profile(StrEnum):
    """Where the server runs."""

    cpu = "cpu"
    gpu8 = "gpu8"


def measure(
    drafter: Annotated[
        Optional[str],  # noqa: UP045  (typer reads the annotation at run time)
        typer.Argument(help="Folder of the drafter, served as it is.", show_default=False),
    ] = None,
    target: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(help="Folder of the target."),
    ] = None,
    engine: Annotated[str, typer.Option(help="sglang==X.Y.Z on this machine, or installed.")] = "installed",
    profile: Annotated[
        Profile, typer.Option(help="cpu: here, exact, small and slow. gpu8: eight GPUs of this machine.")
    ] = Profile.cpu,
    algorithm: Annotated[str, typer.Option(help="Speculative algorithm, as SGLang spells it.")] = "EAGLE3",
    steps: Annotated[int, typer.Option(min=1, max=1024, help="Draft steps.")] = 3,
    topk: Annotated[int, typer.Option(min=1, max=1024, help="Branches of the draft tree.")] = 1,
    draft_tokens: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=2, max=1024, help="Draft tokens of a verify step; steps + 1 unless given."),
    ] = None,
    tp: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, max=1024, help="Tensor-parallel size; the profile's unless given."),
    ] = None,
    settings: Annotated[
        Optional[list[str]],  # noqa: UP045
        typer.Option("--set", metavar="KEY[=VALUE]", help="A further argument of SGLang's; may be repeated."),
    ] = None,
    prompts: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(
            help="JSONL with prompt, text, input_ids or messages; specimen/prompts.jsonl of a checkout."
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Put the texts of --prompts into the target's chat template.")
    ] = False,
    limit: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option(min=1, help="Only so many of the prompts."),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Length at which an answer is cut.")] = 64,
    concurrency: Annotated[int, typer.Option(min=1, max=4096, help="Requests under way at once.")] = 4,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 for greedy text.")] = 0.0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Cut all answers at the same length.")
    ] = False,
    warm_up: Annotated[int, typer.Option(min=0, help="Prompts asked beforehand, in no count.")] = 0,
    bench: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(
            metavar="ARGUMENTS",
            help='Run sglang.bench_serving with these arguments instead of prompts; "" for random token ids.',
        ),
    ] = None,
    run_dir: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="New folder for everything about the run; runs/DATE-TIME unless given."),
    ] = None,
    attach: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(metavar="URL", help="Ask a server that already runs; needs no drafter and no target."),
    ] = None,
    log: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option(help="The log of the server at --attach, if it can be read from here."),
    ] = None,
    api_key: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option(envvar="EAGLE3LAB_API_KEY", help="Of the server at --attach; written down nowhere."),
    ] = None,
    no_probe: Annotated[bool, typer.Option("--no-probe", help="Do not look inside the server.")] = False,
    tensors: Annotated[
        int,
        typer.Option(min=0, help="Passes of the drafter whose tensors the probe keeps in the run folder."),
    ] = 0,
    start_timeout: Annotated[
        float,
        typer.Option(
            min=1.0, help="Seconds until the server must be ready; loading a large target takes long."
        ),
    ] = 1800.0,
    stall: Annotated[
        float,
        typer.Option(min=1.0, help="Seconds without an answer or a word in the log until it is given up."),
    ] = 600.0,
    format: Annotated[Format, typer.Option(help="text or json.")] = Format.text,
) -> None:
    """Serve a drafter with real SGLang, ask it, stop it, and say what was accepted.

    Exit status: 0 measured, 2 the inputs are wrong, 3 the server failed, 130 interrupted.
    """
    import time

    from eagle3lab.errors import InputError
    from eagle3lab.serving.client import ServerError
    from eagle3lab.serving.workload import Workload, read_prompts

    if attach is None and (drafter is None or target is None):
        raise InputError("there is nothing to measure", advice="Give DRAFTER and --target, or --attach URL")
    if attach is None and log is not None:
        raise InputError("--log belongs to --attach", advice="The log of a new server is in its run folder")
    if bench is not None and (attach is not None or prompts is not None):
        raise InputError("--bench goes with neither --attach nor --prompts", advice="Leave one of them out")
    if attach is not None and (drafter is not None or target is not None):
        raise InputError("a server that already runs has its drafter and target", advice="Leave them out")
    if bench is None and prompts is None:
        raise InputError(
            "there is nothing to ask", advice='Give --prompts FILE, or --bench "" for random token ids'
        )
    folder = (run_dir or Path("runs", time.strftime("%Y%m%d-%H%M%S"))).absolute()
    try:
        workload: Workload | Bench
        if prompts is not None:
            questions = read_prompts(prompts, limit, as_chat=chat)
            workload = Workload(
                questions, max_new_tokens, concurrency, temperature, not ignore_eos, warm_up, str(prompts)
            )
        else:
            workload = _bench(bench or "")
        with _watched() as watch:
            if attach is not None:
                assert isinstance(workload, Workload)
                found = _ask(attach, log, api_key, workload, folder, watch, stall)
            else:
                speculation = {"algorithm": algorithm, "steps": steps, "topk": topk}
                speculation["draft_tokens"] = draft_tokens or steps + 1
                plan, release = _plan(profile, engine, target, drafter, speculation, tp, settings or [])
                found = _serve(
                    plan, release, workload, folder, watch, start_timeout, stall, not no_probe, tensors
                )
    except ServerError as error:
        typer.echo(f"eagle3lab: {error}\nWhat the run left behind is in {folder}", err=True)
        if (folder / "server.log").is_file():
            typer.echo("`eagle3lab diagnose` with its command.sh and server.log may know why", err=True)
        raise typer.Exit(_FAILED) from None
    except KeyboardInterrupt:
        typer.echo(f"eagle3lab: interrupted. What the run left behind is in {folder}", err=True)
        raise typer.Exit(_INTERRUPTED) from None
    _print(found, workload, format)


def _bench(arguments: str) -> Bench:
    import shlex

    from eagle3lab.errors import InputError
    from eagle3lab.serving.workload import Bench

    try:
        words = shlex.split(arguments)
    except ValueError as error:
        raise InputError(f"--bench: {error}", advice="Quote the arguments as for a shell") from None
    return Bench(words) if words else Bench()


def _plan(
    profile: Profile,
    engine: str,
    target: str | None,
    drafter: str | None,
    speculation: dict[str, Any],
    tp: int | None,
    settings: list[str],
) -> tuple[LaunchPlan, Engine]:
    from eagle3lab.errors import InputError
    from eagle3lab.serving.engine import find_engine
    from eagle3lab.serving.plan import read_fields
    from eagle3lab.serving.profiles import cpu, gpu8

    assert target is not None
    release = find_engine(engine)
    fields = speculation | ({} if tp is None else {"tp": tp})
    given = read_fields([word for setting in settings for word in _words(setting)])
    if twice := sorted(given.keys() & {"model", "drafter", *speculation, "tp"}):
        raise InputError(
            f"--set cannot set {', '.join(twice)}", advice="This command has an argument or option for it"
        )
    if profile is Profile.cpu:
        return cpu(target, drafter, release=release.release, **fields | given), release
    return gpu8(target, drafter, **fields | given), release


def _words(setting: str) -> list[str]:
    """`max_total_tokens=4096` and `--enable-foo` as words of SGLang's command."""
    name, equals, value = setting.partition("=")
    flag = "--" + name.strip().lstrip("-").replace("_", "-")
    return [f"{flag}={value}"] if equals else [flag]


@dataclass(frozen=True)
class _Watch:
    """Where to say what is going on."""

    progress: Callable[[Progress], None]
    answered: Answered


@contextmanager
def _watched() -> Iterator[_Watch]:
    """Progress on stderr: one line that changes on a terminal, a line for each stage elsewhere."""
    import sys

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.text import Text

        with Console(stderr=True).status("starting") as status:
            yield _Watch(
                lambda step: status.update(
                    Text(
                        f"{step.elapsed_s:4.0f} s  {step.stage}: {step.detail}",
                        overflow="ellipsis",
                        no_wrap=True,
                    )
                ),
                lambda phase, done, total: status.update(f"{phase}: {done} of {total} requests answered"),
            )
        return
    stage = ""

    def progress(step: Progress) -> None:
        nonlocal stage
        if step.stage != stage:
            stage = step.stage
            typer.echo(f"{step.elapsed_s:6.1f} s  {step.stage}: {step.detail}", err=True)

    def answered(phase: str, done: int, total: int) -> None:
        if done in (1, total):
            typer.echo(f"{phase}: {done} of {total} requests answered", err=True)

    yield _Watch(progress, answered)


def _serve(
    plan: LaunchPlan,
    engine: Engine,
    workload: Workload | Bench,
    folder: Path,
    watch: _Watch,
    start_timeout_s: float,
    stall_s: float,
    probe: bool,
    tensors: int,
) -> Measurement:
    from eagle3lab.serving.measure import measure
    from eagle3lab.serving.report import CPU_PROFILE

    if plan.device == "cpu":
        typer.echo(f"eagle3lab: this is {CPU_PROFILE}", err=True)
    return measure(
        plan,
        engine,
        workload,
        folder,
        probe=probe,
        tensors=tensors,
        progress=watch.progress,
        answered=watch.answered,
        start_timeout_s=start_timeout_s,
        stall_s=stall_s,
    )


def _ask(
    url: str,
    log: Path | None,
    api_key: str | None,
    workload: Workload,
    folder: Path,
    watch: _Watch,
    stall_s: float,
) -> Measurement:
    from eagle3lab.serving.client import attach
    from eagle3lab.serving.measure import measure_running

    with attach(url, log, api_key=api_key, timeout_s=_ATTACH_S) as server:
        return measure_running(server, workload, folder, answered=watch.answered, stall_s=stall_s)


def _print(found: Measurement, workload: Workload | Bench, format: Format) -> None:
    from eagle3lab.serving.report import as_json, drawn

    if format is Format.json:
        print_json(as_json(found, workload), allow_nan=False)
        return
    out = console(_WIDTH_WITHOUT_TERMINAL)
    for part in drawn(found, workload):
        out.print(part)
