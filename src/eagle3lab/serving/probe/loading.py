"""A drafter until it serves: built, loaded, given matrices of the target, its token map; and the layers captured."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from eagle3lab.runs.events import Built, Captured, Loaded, Shared, TokenMap
from eagle3lab.serving.hooks import FailSafe
from eagle3lab.serving.probe.recorder import Recorder, now
from eagle3lab.serving.probe.writes import LoadResult, LoadWatch

CAPTURE = "set_eagle3_layers_to_capture"
"""The target's method that is told which layers' states to hand to the drafter."""

_SHARING = ("set_embed", "set_embed_and_head", "set_lm_head_from_target")
_FIRST_IDS = 8


def built(role: Literal["drafter", "target"], model: torch.nn.Module, model_config: Any) -> Built:
    """The event about a model that was just built."""
    config = getattr(model, "config", None) or getattr(model_config, "hf_config", None)
    fc = dict(model.named_parameters()).get("model.fc.weight")
    return Built(
        time=now(),
        role=role,
        cls=type(model).__name__,
        module=type(model).__module__,
        architectures=[str(name) for name in getattr(config, "architectures", None) or ()],
        hidden_size=size(config, "hidden_size"),
        fc_in=None if fc is None or fc.dim() != 2 else fc.shape[1],
        fc_out=None if fc is None or fc.dim() != 2 else fc.shape[0],
        draft_vocab_size=size(config, "draft_vocab_size"),
        parameters=sum(1 for _ in model.named_parameters()),
    )


def size(config: Any, name: str) -> int | None:
    """A size from a config or the text config inside it."""
    for place in (config, getattr(config, "text_config", None)):
        value = getattr(place, name, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


@dataclass(slots=True)
class CaptureWatch:
    """Watches the call on every part of the target that has it: a wrapper hands it on to its language model."""

    recorder: Recorder
    safe: FailSafe
    _chain: list[str] = field(default_factory=list)
    _depth: int = 0

    def install(self, target: torch.nn.Module) -> None:
        """Watch this target; the calls are wrapped on the instances."""
        for module in target.modules():
            if callable(getattr(type(module), CAPTURE, None)):
                self._watch(module)

    def _watch(self, module: Any) -> None:
        original = getattr(module, CAPTURE)

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
                self.safe.run("capture", self._report, module, args, kwargs)
            return result

        setattr(module, CAPTURE, call)

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


@dataclass(slots=True)
class DrafterWatch:
    """Watches one drafter model from its construction until the server is ready.

    Attributes:
        model: The drafter.
        recorder: Where events go.
        safe: Runs the watching.
        target_vocab_size: V of the target; None leaves the token map unjudged.
        loaded: Called when its `load_weights` has returned, with what can be said of it then: which of its matrices
            the target will provide is not known yet, so embedding and lm_head are not among what is missing.
    """

    model: torch.nn.Module
    recorder: Recorder
    safe: FailSafe
    target_vocab_size: int | None
    loaded: Callable[[Loaded, TokenMap], None]
    _result: LoadResult | None = None
    _provided: set[str] = field(default_factory=set)

    def install(self) -> None:
        """Wrap, on this instance, how it is loaded and given matrices."""
        model: Any = self.model
        original = model.load_weights

        @functools.wraps(original)
        def load_weights(weights: Any, *args: Any, **kwargs: Any) -> Any:
            # Once: what is loaded into a running server later is another story.
            del model.load_weights
            load = self.safe.run("loading", LoadWatch, model)
            if load is None:
                return original(weights, *args, **kwargs)
            try:
                result = original(load.names(weights), *args, **kwargs)
            except BaseException:
                self.safe.run("loading", load.finish)  # the parameters are put back as they were
                raise
            self.safe.run("loading", self._loaded, load)
            return result

        model.load_weights = load_weights
        for call in _SHARING:
            if callable(getattr(type(model), call, None)):
                setattr(model, call, self._sharing(call, getattr(model, call)))

    def settle(self) -> None:
        """The server is ready: report what was loaded, now that it is known what the target provides."""
        if self._result is not None:  # None: loaded in another way than by names, or not at all
            self.recorder.emit(self._event(self._result, self._provided))

    def _loaded(self, load: LoadWatch) -> None:
        self._result = load.finish()
        config = getattr(self.model, "config", None)
        draft_size = size(config, "draft_vocab_size")
        token_map = token_map_event(
            getattr(self.model, "hot_token_id", None),
            load.maps,
            self.target_vocab_size,
            draft_size,
            draft_size in (None, size(config, "vocab_size")),
        )
        self.recorder.emit(token_map)
        later = {
            name for name, _ in self.model.named_parameters() if "embed_tokens" in name or "lm_head" in name
        }
        self.loaded(self._event(self._result, later), token_map)

    def _event(self, result: LoadResult, provided: set[str]) -> Loaded:
        return Loaded(
            time=now(),
            offered=result.offered,
            placed=result.placed,
            dropped=result.dropped,
            never_written=[name for name in result.never_written if name not in provided],
            partly_written=[name for name in result.partly_written if name not in provided],
            untraced=result.untraced,
        )

    def _sharing(self, call: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def share(*args: Any, **kwargs: Any) -> Any:
            before = dict(self.model.named_parameters())
            result = original(*args, **kwargs)
            self.safe.run("sharing", self._shared, call, before)
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


def token_map_event(
    hot: torch.Tensor | None,
    maps: Mapping[str, torch.Tensor],
    vocab_size: int | None,
    draft_vocab_size: int | None,
    whole: bool,
) -> TokenMap:
    """The event about hot_token_id as the engine holds it, and what the d2t it came from is found to hold.

    Args:
        hot: The drafter's hot_token_id, None without one.
        maps: d2t and t2d as the checkpoint had them, where it had them.
        vocab_size: V of the target; None leaves ranges unjudged.
        draft_vocab_size: D of the drafter's config; None takes the map's length.
        whole: Whether the drafter's own config says that its vocabulary is not reduced.
    """
    kind, evidence = _judge_map(maps, vocab_size, draft_vocab_size, whole)
    if hot is None:
        return TokenMap(time=now(), present=False, kind=kind, evidence=evidence)
    ids = hot.detach().reshape(-1).cpu()
    whole_ids = torch.nan_to_num(ids.double()).round().long() if ids.is_floating_point() else ids.long()
    outside = (whole_ids < 0) | (whole_ids >= vocab_size) if vocab_size is not None else whole_ids < 0
    return TokenMap(
        time=now(),
        present=True,
        dtype=str(hot.dtype),
        rows=len(ids),
        minimum=int(whole_ids.min()) if len(ids) else None,
        maximum=int(whole_ids.max()) if len(ids) else None,
        distinct=len(torch.unique(whole_ids)),
        out_of_range=int(outside.sum()),
        first=whole_ids[:_FIRST_IDS].tolist(),
        kind=kind,
        evidence=evidence,
    )


def _judge_map(
    maps: Mapping[str, torch.Tensor], vocab_size: int | None, draft_vocab_size: int | None, whole: bool
) -> tuple[str, list[str]]:
    if vocab_size is None:
        return "", []
    from eagle3lab.vocabulary.kinds import MapKind
    from eagle3lab.vocabulary.token_map import analyse_token_map

    # numpy has no bfloat16.
    arrays = {
        name: (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
        for name, tensor in maps.items()
    }
    dtype = "BF16" if "d2t" in maps and maps["d2t"].dtype == torch.bfloat16 else None
    report = analyse_token_map(
        arrays.get("d2t"), arrays.get("t2d"), vocab_size, draft_vocab_size, d2t_dtype=dtype
    )
    if whole and report.kind in (MapKind.MISSING, MapKind.ZERO_BY_MISTAKE):
        # A target whose vocabulary is padded is larger than that of a drafter that has all of it.
        return str(MapKind.NOT_NEEDED), []
    return str(report.kind), list(report.evidence)
