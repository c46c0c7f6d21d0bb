"""Which layers the target is told to capture, and through which objects the call goes."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any

from eagle3lab.runs.events import Captured
from eagle3lab.serving.probe.careful import Careful
from eagle3lab.serving.probe.recorder import Recorder, now

CALL = "set_eagle3_layers_to_capture"
_WHERE = "capture"


@dataclass(slots=True)
class CaptureWatch:
    """Watches the call on every part of the target that has it: a wrapper hands it on to its language model."""

    recorder: Recorder
    careful: Careful
    _chain: list[str] = field(default_factory=list)
    _depth: int = 0

    def install(self, target: Any) -> None:
        """Watch this target; calls are wrapped on the instances."""
        for module in target.modules():
            if callable(getattr(type(module), CALL, None)):
                self._watch(module)

    def _watch(self, module: Any) -> None:
        original = getattr(module, CALL)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self._depth == 0:
                self._chain = []
            self._depth += 1
            self._chain.append(type(module).__name__)
            try:
                result = original(*args, **kwargs)
            finally:
                self._depth -= 1
            if self._depth == 0:
                self.careful.run(_WHERE, self._report, module, args, kwargs)
            return result

        setattr(module, CALL, call)

    def _report(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = args[0] if args else next(iter(kwargs.values()), None)
        held = (getattr(part, "layers_to_capture", None) for part in module.modules())
        layers = next((list(ids) for ids in held if ids), [])
        self.recorder.emit(
            Captured(
                time=now(),
                chain=list(self._chain),
                given=None if given is None else [int(layer) for layer in given],
                layers=[int(layer) for layer in layers],
            )
        )
