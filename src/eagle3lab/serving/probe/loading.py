"""A drafter from its construction until it is ready: built, loaded, given the target's matrices."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from eagle3lab.runs.events import Built, Loaded, Shared
from eagle3lab.serving.probe.careful import Careful
from eagle3lab.serving.probe.recorder import Recorder, now
from eagle3lab.serving.probe.token_map import summary
from eagle3lab.serving.probe.writes import LoadResult, LoadWatch

_SHARING = ("set_embed", "set_embed_and_head", "set_lm_head_from_target")


@dataclass(slots=True)
class DrafterWatch:
    """Watches one drafter model.

    Attributes:
        model: The drafter.
        recorder: Where events go.
        careful: Runs the watching.
    """

    model: torch.nn.Module
    recorder: Recorder
    careful: Careful
    _load: LoadWatch | None = None
    _result: LoadResult | None = None
    _maps: dict[str, torch.Tensor] = field(default_factory=dict)
    _provided: set[str] = field(default_factory=set)

    def install(self) -> None:
        """Wrap, on this instance, how it is loaded and given matrices."""
        model: Any = self.model
        original = model.load_weights

        @functools.wraps(original)
        def load_weights(weights: Any, *args: Any, **kwargs: Any) -> Any:
            # Once: what is loaded into a running server later is another story.
            del model.load_weights
            load = self.careful.run("loading", LoadWatch, model)
            try:
                return original(weights if load is None else load.names(weights), *args, **kwargs)
            finally:
                if load is not None:
                    self.careful.run("loading", self._loaded, load)

        model.load_weights = load_weights
        for call in _SHARING:
            if callable(getattr(type(model), call, None)):
                setattr(model, call, self._sharing(call, getattr(model, call)))

    def settle(self, target_vocab_size: int | None) -> None:
        """The server is ready: report what was loaded, now that it is known what the target provides."""
        result, config = self._result, getattr(self.model, "config", None)
        if result is None:
            return  # loaded in another way than by names, or not at all
        self.recorder.emit(
            Loaded(
                time=now(),
                offered=result.offered,
                placed=result.placed,
                dropped=result.dropped,
                never_written=[name for name in result.never_written if name not in self._provided],
                partly_written=[name for name in result.partly_written if name not in self._provided],
                untraced=result.untraced,
            )
        )
        draft_size, own_size = _size(config, "draft_vocab_size"), _size(config, "vocab_size")
        self.recorder.emit(
            summary(
                getattr(self.model, "hot_token_id", None),
                self._maps,
                target_vocab_size,
                draft_size,
                draft_size in (None, own_size),
            )
        )
        self._maps = {}

    def _loaded(self, load: LoadWatch) -> None:
        self._result, self._maps = load.finish(), load.maps

    def _sharing(self, call: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def share(*args: Any, **kwargs: Any) -> Any:
            before = dict(self.model.named_parameters())
            result = original(*args, **kwargs)
            self.careful.run("sharing", self._shared, call, before)
            return result

        return share

    def _shared(self, call: str, before: dict[str, torch.nn.Parameter]) -> None:
        after = dict(self.model.named_parameters())
        replaced = {name for name, parameter in before.items() if after.get(name) is not parameter}
        self._provided |= replaced
        self.recorder.emit(
            Shared(
                time=now(),
                call=call,
                embed=any("embed" in name for name in replaced),
                head=any("lm_head" in name for name in replaced),
            )
        )


def built(role: Any, model: torch.nn.Module, model_config: Any) -> Built:
    """The event about a model that was just built."""
    config = getattr(model, "config", None) or getattr(model_config, "hf_config", None)
    fc = dict(model.named_parameters()).get("model.fc.weight")
    return Built(
        time=now(),
        role=role,
        cls=type(model).__name__,
        module=type(model).__module__,
        architectures=[str(name) for name in getattr(config, "architectures", None) or ()],
        hidden_size=_size(config, "hidden_size"),
        fc_in=None if fc is None or fc.dim() != 2 else fc.shape[1],
        fc_out=None if fc is None or fc.dim() != 2 else fc.shape[0],
        draft_vocab_size=_size(config, "draft_vocab_size"),
        parameters=sum(1 for _ in model.named_parameters()),
    )


def _size(config: Any, name: str) -> int | None:
    """A size from a config or the text config inside it."""
    for place in (config, getattr(config, "text_config", None)):
        value = getattr(place, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None
