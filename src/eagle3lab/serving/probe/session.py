"""The probe in one process of a server: what it does at each hook, and the drafts that each verification accepts.

The hooked functions have these names in 0.4.6, 0.4.9, 0.5.3, 0.5.6, 0.5.9, 0.5.11, 0.5.16 and 0.5.23 (read in their
source; run with 0.5.9 and 0.5.23). One that a release does not have is told, and what hangs on it is not observed.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from eagle3lab.runs.events import (
    SCHEMA_VERSION,
    Attached,
    Configured,
    Counters,
    Loaded,
    Quiet,
    TokenMap,
    Verified,
)
from eagle3lab.serving.guard.judge import GuardFault, announce, judge_start, judge_steps
from eagle3lab.serving.hooks import FailSafe, Hook
from eagle3lab.serving.probe import Settings
from eagle3lab.serving.probe.recorder import Recorder, now

if TYPE_CHECKING:
    from eagle3lab.serving.probe.boundary import BoundaryWatch
    from eagle3lab.serving.probe.loading import DrafterWatch

_RUNNER = "sglang.srt.model_executor.model_runner"
_LOADER = "sglang.srt.model_loader.loader"
_SCHEDULER = "sglang.srt.managers.scheduler"

# The count of accepted drafts in managers/schedule_batch.py: of 0.5.16 and 0.5.23, of 0.5.11, of 0.5.6 and 0.5.9.
_ACCEPTED = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accepted_tokens")
_SEEN = "_eagle3lab_seen"
_WRITE_EVERY_S = 1.0


class Probe:
    """Watches this process, if it turns out to be a rank.

    Args:
        settings: What is asked for.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.recorder = Recorder(settings)
        self.safe = FailSafe(self._failed)
        self._scheduler: Any = None
        self._attached: Attached | None = None
        self._runner: Any = None
        self._target_vocab_size: int | None = None
        self._drafters: list[DrafterWatch] = []
        self._boundary: BoundaryWatch | None = None
        self._verify: VerifyWatch | None = None
        self._judged_steps = False
        self._results = Hook(_SCHEDULER, "Scheduler.process_batch_result", self._on_results)
        self.hooks = (
            Hook(_RUNNER, "ModelRunner.load_model", self._on_model_loaded, self._on_load_model),
            Hook(_LOADER, "_initialize_model", self._on_built),
            Hook(_SCHEDULER, "Scheduler.__init__", self._on_ready, self._on_scheduler),
            self._results,
        )

    def install(self) -> None:
        """Hook each function as its module is imported."""
        for hook in self.hooks:
            hook.install(self.safe)

    def _failed(self, where: str, problem: str) -> None:
        self.recorder.emit(Quiet(time=now(), where=where, problem=problem))

    def _begin(self, holder: Any) -> Attached:
        """The first event, written once this process is seen to be a rank."""
        if self._attached is None:
            self._attached = Attached(
                time=now(),
                schema_version=SCHEMA_VERSION,
                release=_release(),
                pid=os.getpid(),
                **_ranks(self._scheduler, holder),
                ways=[hook.path for hook in self.hooks if hook.attached],
                missing=[f"{hook.module}.{hook.path}" for hook in self.hooks if not hook.attached],
            )
            self.recorder.begin(self._attached)
        return self._attached

    def _on_scheduler(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """The scheduler begins to be constructed; it loads the models meanwhile, and knows its ranks by then."""
        self._scheduler = args[0]

    def _on_load_model(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._runner = args[0]
        self._begin(self._runner)

    def _on_model_loaded(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        self._runner = None

    def _on_built(self, args: tuple[Any, ...], kwargs: dict[str, Any], model: Any) -> None:
        """A model stands, with nothing loaded into it."""
        from eagle3lab.serving.probe.loading import CaptureWatch, DrafterWatch, built

        model_config = args[0] if args else kwargs.get("model_config")
        runner = self._runner
        drafts = getattr(model_config, "is_draft_model", False) if runner is None else runner.is_draft_worker
        self._begin(model_config if runner is None else runner)
        self.recorder.emit(built("drafter" if drafts else "target", model, model_config))
        if not drafts:
            vocab_size = getattr(model_config, "vocab_size", None)
            self._target_vocab_size = vocab_size if isinstance(vocab_size, int) else None
            CaptureWatch(self.recorder, self.safe).install(model)
            return
        if runner is not None:
            self._configured(runner.server_args, model)
        drafter = DrafterWatch(
            model, self.recorder, self.safe, self._target_vocab_size, self._on_drafter_loaded
        )
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
                self.safe,
                max(self.settings.full_steps, self.settings.tensors),
                self.settings.tensors,
                self.recorder.writer.path.with_name(f"boundary-{self._attached.tp_rank}-{os.getpid()}"),
            )
        self._boundary.install(model)

    def _configured(self, arguments: Any, drafter: Any) -> Configured:
        """How the server was asked to speculate; told as soon as it is known."""
        if (known := self.recorder.last(Configured)) is not None:
            return known
        eagle_config = getattr(getattr(drafter, "config", None), "eagle_config", None)
        uses = eagle_config.get("use_aux_hidden_state") if isinstance(eagle_config, dict) else None
        configured = Configured(
            time=now(),
            algorithm=str(arguments.speculative_algorithm or ""),
            steps=arguments.speculative_num_steps,
            topk=arguments.speculative_eagle_topk,
            draft_tokens=arguments.speculative_num_draft_tokens,
            target=str(arguments.model_path),
            drafter=arguments.speculative_draft_model_path,
            use_aux_hidden_state=uses if isinstance(uses, bool) else None,
            target_vocab_size=self._target_vocab_size,
        )
        self.recorder.emit(configured)
        return configured

    def _on_drafter_loaded(self, loaded: Loaded, token_map: TokenMap) -> None:
        """What is certain now stops a server before its graphs are captured; the rest is said when it is ready."""
        if self.settings.guard == "refuse":
            faults = judge_start([*self.recorder.start, loaded, token_map])
            # Whether the target is asked to capture all the same may not be known yet.
            faults = [fault for fault in faults if fault.code != "capture.disabled"]
            if any(fault.certain for fault in faults):
                self._announce(faults, "start")

    def _on_ready(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: None) -> None:
        """The scheduler stands: everything is loaded and shared, and no request has come yet."""
        scheduler = args[0]
        self._begin(scheduler)
        configured = self._configured(
            scheduler.server_args, self._drafters[0].model if self._drafters else None
        )
        for drafter in self._drafters:
            self.safe.run("loading", drafter.settle)
        if self._boundary is not None:
            self._boundary.ready = True
        if not configured.algorithm:
            self._results.remove()
            return
        self._verify = VerifyWatch(
            self.recorder, self.settings.full_steps, configured.draft_tokens or 0, self._write_counters
        )
        if self.settings.guard != "off":
            self._announce(judge_start(self.recorder.start), "start")

    def _on_results(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A batch was processed: in the scheduler's own counts its verification is done."""
        if self._verify is None:
            return
        batch = args[1] if len(args) > 1 else kwargs["batch"]
        self._verify.on_results(batch.reqs)
        if self._judged_steps or self.settings.guard == "off":
            return
        faults = judge_steps(self._verify.verifications, self._verify.accepted)
        if faults is not None:
            self._judged_steps = True
            if self.recorder.writer is None:
                self._results.remove()
            self._announce(faults, "steps")

    def _announce(self, faults: list[GuardFault], stage: Literal["start", "steps"]) -> None:
        assert self._attached is not None
        announce(faults, stage, self._attached, self.recorder, self.settings.guard)

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


@dataclass(slots=True)
class VerifyWatch:
    """Accepted drafts per verify step of one rank, from the counts that SGLang keeps in its requests.

    The counts are those that end in a request's `meta_info`: what is reported here and what a client is told is one
    number.

    Attributes:
        recorder: Where events go.
        full_steps: Verify steps reported one by one.
        draft_tokens: D.
        write_counters: Called when the counters should be written: when no request is left, at most once a second
            otherwise.
        verifications: Requests verified, each in each step.
        accepted: Drafts accepted.
        per_position: How often the draft at position 1, 2, … was.
    """

    recorder: Recorder
    full_steps: int
    draft_tokens: int
    write_counters: Callable[[], None]
    verifications: int = 0
    accepted: int = 0
    per_position: list[int] = field(default_factory=list)
    _step: int = 0
    _written_at: float = 0.0
    _dirty: bool = False

    def on_results(self, requests: list[Any]) -> None:
        """A batch was processed: see what its requests count now."""
        accepted, ids = [], []
        for request in requests:
            steps, total = request.spec_verify_ct, _accepted(request)
            before = getattr(request, _SEEN, (0, 0))
            if (steps, total) == before:
                continue
            setattr(request, _SEEN, (steps, total))
            if steps == before[0] + 1:
                accepted.append(total - before[1])
                ids.append(str(request.rid))
        if accepted:
            self._count(accepted, ids)
        if self._dirty and (
            time.monotonic() - self._written_at > _WRITE_EVERY_S
            or all(request.finished() for request in requests)
        ):
            self._dirty, self._written_at = False, time.monotonic()
            self.write_counters()

    def _count(self, accepted: list[int], ids: list[str]) -> None:
        self._dirty = True
        self.verifications += len(accepted)
        self.accepted += sum(accepted)
        self.per_position.extend([0] * (max(accepted) - len(self.per_position)))
        for count in accepted:
            for position in range(count):
                self.per_position[position] += 1
        step, self._step = self._step, self._step + 1
        if step < self.full_steps:
            self.recorder.emit(
                Verified(
                    time=now(), step=step, draft_tokens=self.draft_tokens, accepted=accepted, requests=ids
                )
            )


def _accepted(request: Any) -> int:
    """Drafts that this request had accepted so far."""
    for name in _ACCEPTED:
        if (count := getattr(request, name, None)) is not None:
            return int(count)
    # 0.4.6 to 0.5.5 count verifications only; each adds its accepted drafts and one more to what prefill began.
    return max(0, len(request.output_ids) - 1 - int(request.spec_verify_ct))


def _ranks(*holders: Any) -> dict[str, Any]:
    """Ranks of this process, as `Attached` has them.

    The scheduler knows them all (in 0.5.9 a model runner keeps no dp_rank), newer releases have a process-wide context,
    and where a release has neither, what holds the model may know some.
    """
    places = list(holders)
    with contextlib.suppress(Exception):
        from sglang.srt.runtime_context import get_parallel

        places.insert(1, get_parallel())

    def rank(name: str) -> int | None:
        for place in places:
            with contextlib.suppress(Exception):  # the context raises for what is not set yet
                value = getattr(place, name)
                if isinstance(value, int):
                    return value
        return None

    replicas = [getattr(getattr(holder, "server_args", None), "dp_size", None) for holder in holders]
    several = any(isinstance(count, int) and count > 1 for count in replicas) or (rank("dp_size") or 1) > 1
    return {
        "tp_rank": rank("tp_rank") or 0,
        "tp_size": rank("tp_size") or 1,
        "dp_rank": rank("dp_rank") if several else None,
    }


def _release() -> str:
    """SGLang's own version, also where it was put beside an environment that has another."""
    from importlib import import_module

    return str(getattr(import_module("sglang.version"), "__version__", "unknown"))
