"""The probe in one process of a server: what it does at each seam."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

from eagle3lab.runs.events import SCHEMA_VERSION, Attached, Configured, Counters, Quiet
from eagle3lab.serving.guard.judge import judge_start, judge_steps
from eagle3lab.serving.guard.speak import speak
from eagle3lab.serving.probe.careful import Careful
from eagle3lab.serving.probe.recorder import Recorder, now
from eagle3lab.serving.probe.seams import Seam, nothing_before
from eagle3lab.serving.probe.settings import Settings

if TYPE_CHECKING:
    from eagle3lab.serving.probe.boundary import BoundaryWatch
    from eagle3lab.serving.probe.loading import DrafterWatch
    from eagle3lab.serving.probe.verify import VerifyWatch

_RUNNER = "sglang.srt.model_executor.model_runner"
_LOADER = "sglang.srt.model_loader.loader"
_SCHEDULER = "sglang.srt.managers.scheduler"


class Probe:
    """Watches this process, if it turns out to be a rank.

    Args:
        settings: What is asked for.
        door: How the probe came in: `plugin` or `startup`.
    """

    def __init__(self, settings: Settings, door: str) -> None:
        self.settings = settings
        self.door = door
        self.careful = Careful(self._quiet)
        self.recorder = Recorder(settings)
        self._attached: Attached | None = None
        self._role: str | None = None
        self._drafters: list[DrafterWatch] = []
        self._boundary: BoundaryWatch | None = None
        self._verify: VerifyWatch | None = None
        self._judged_steps = False
        self._results = Seam(_SCHEDULER, "Scheduler.process_batch_result", nothing_before, self._on_results)
        self.seams = (
            Seam(_RUNNER, "ModelRunner.load_model", self._on_load_model, self._on_model_loaded),
            Seam(_LOADER, "_initialize_model", nothing_before, self._on_built),
            Seam(_SCHEDULER, "Scheduler.__init__", nothing_before, self._on_ready),
            self._results,
        )

    def install(self) -> None:
        """Wrap each seam as its module is imported."""
        for seam in self.seams:
            seam.install(self.careful)

    def _quiet(self, where: str, problem: str) -> None:
        self.recorder.emit(Quiet(time=now(), where=where, problem=problem))

    def _begin(self, holder: Any) -> Attached:
        """The first event, written once this process is seen to be a rank."""
        if self._attached is None:
            ranks = _Ranks(holder)
            self._attached = Attached(
                time=now(),
                schema_version=SCHEMA_VERSION,
                release=_release(),
                pid=os.getpid(),
                tp_rank=ranks.get("tp_rank") or 0,
                tp_size=ranks.get("tp_size") or 1,
                dp_rank=ranks.get("dp_rank") if (ranks.get("dp_size") or 1) > 1 else None,
                ways=[f"{seam.path}: {self.door}" for seam in self.seams if seam.attached],
                missing=[f"{seam.module}.{seam.path}" for seam in self.seams if not seam.attached],
            )
            self.recorder.begin(self._attached)
        return self._attached

    def _on_load_model(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._role = "drafter" if args[0].is_draft_worker else "target"
        self._begin(args[0])

    def _on_model_loaded(self, begun: None, result: Any) -> None:
        self._role = None

    def _on_built(self, called: tuple[tuple[Any, ...], dict[str, Any]], model: Any) -> None:
        """A model stands, with nothing loaded into it."""
        from eagle3lab.serving.probe.capture import CaptureWatch
        from eagle3lab.serving.probe.loading import DrafterWatch, built

        args, kwargs = called
        model_config = args[0] if args else kwargs.get("model_config")
        drafts = getattr(model_config, "is_draft_model", False)
        role = self._role or ("drafter" if drafts else "target")
        self._begin(model_config)
        self.recorder.emit(built(role, model, model_config))
        if role == "target":
            CaptureWatch(self.recorder, self.careful).install(model)
            return
        drafter = DrafterWatch(model, self.recorder, self.careful)
        drafter.install()
        self._drafters.append(drafter)
        if self.recorder.writer is not None:
            self._watch_boundary(model)

    def _watch_boundary(self, model: Any) -> None:
        from eagle3lab.serving.probe.boundary import BoundaryWatch

        if self._boundary is None:
            assert self._attached is not None and self.recorder.writer is not None
            self._boundary = BoundaryWatch(
                self.recorder,
                self.careful,
                max(self.settings.full_steps, self.settings.tensors),
                self.settings.tensors,
                self.recorder.writer.path.with_name(f"boundary-{self._attached.tp_rank}-{os.getpid()}"),
            )
        self._boundary.install(model)

    def _on_ready(self, called: tuple[tuple[Any, ...], dict[str, Any]], result: None) -> None:
        """The scheduler stands: everything is loaded and shared, and no request has come yet."""
        from eagle3lab.serving.probe.verify import VerifyWatch

        scheduler = called[0][0]
        self._begin(scheduler)
        configured = _configured(scheduler, self._drafters[0].model if self._drafters else None)
        self.recorder.emit(configured)
        for drafter in self._drafters:
            self.careful.run("loading", drafter.settle, configured.target_vocab_size)
        if self._boundary is not None:
            self._boundary.ready = True
        if not configured.algorithm:
            self._results.remove()
            return
        self._verify = VerifyWatch(
            self.recorder, self.settings.full_steps, configured.draft_tokens or 0, self._write_counters
        )
        if self.settings.guard != "off":
            self._speak(judge_start(self.recorder.start), "start")

    def _on_results(self, called: tuple[tuple[Any, ...], dict[str, Any]], result: Any) -> None:
        """A batch was processed: in the scheduler's own counts its verification is done."""
        if self._verify is None:
            return
        args, kwargs = called
        batch = args[1] if len(args) > 1 else kwargs["batch"]
        self._verify.on_results(batch.reqs)
        if self._judged_steps or self.settings.guard == "off":
            return
        faults = judge_steps(self._verify.verifications, self._verify.accepted)
        if faults is not None:
            self._judged_steps = True
            if self.recorder.writer is None:
                self._results.remove()
            self._speak(faults, "steps")

    def _speak(self, faults: Any, stage: Any) -> None:
        assert self._attached is not None
        speak(faults, stage, self._attached, self.recorder, self.settings.guard)

    def _write_counters(self) -> None:
        assert self._verify is not None
        boundary = self._boundary
        self.recorder.emit(
            Counters(
                time=now(),
                verify_steps=self._verify.verifications,
                accepted=self._verify.accepted,
                per_position=list(self._verify.per_position),
                draft_tokens=self._verify.draft_tokens,
                boundaries={} if boundary is None else dict(boundary.passes),
                widths={} if boundary is None else dict(boundary.widths),
            )
        )


class _Ranks:
    """Ranks and sizes, from an object that may have them (0.5.9) or from the process-wide context (0.5.23)."""

    def __init__(self, holder: Any) -> None:
        self._places = [holder, getattr(holder, "server_args", None)]
        with contextlib.suppress(Exception):
            from sglang.srt.runtime_context import get_parallel

            self._places.insert(1, get_parallel())

    def get(self, name: str) -> int | None:
        for place in self._places:
            with contextlib.suppress(Exception):  # the context raises for what is not set yet
                value = getattr(place, name)
                if isinstance(value, int):
                    return value
        return None


def _release() -> str:
    """SGLang's own version, also where it was put beside an environment that has another."""
    from importlib import import_module

    return str(getattr(import_module("sglang.version"), "__version__", "unknown"))


def _configured(scheduler: Any, drafter: Any) -> Configured:
    arguments = scheduler.server_args
    eagle_config = getattr(getattr(drafter, "config", None), "eagle_config", None)
    uses = eagle_config.get("use_aux_hidden_state") if isinstance(eagle_config, dict) else None
    size = getattr(getattr(scheduler, "model_config", None), "vocab_size", None)
    return Configured(
        time=now(),
        algorithm=str(arguments.speculative_algorithm or ""),
        steps=arguments.speculative_num_steps,
        topk=arguments.speculative_eagle_topk,
        draft_tokens=arguments.speculative_num_draft_tokens,
        target=str(arguments.model_path),
        drafter=arguments.speculative_draft_model_path,
        use_aux_hidden_state=uses if isinstance(uses, bool) else None,
        target_vocab_size=size if isinstance(size, int) else None,
    )
