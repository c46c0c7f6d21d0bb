"""What a release makes of a drafter folder: the reference drafter, its weights placed and its switches set.

Names and shapes go where the simulated load of the release puts them (`eagle3lab.engines.loading`), layers, token map
and head come from where its facts say. A parameter that nothing fills is a matter of chance in an engine; here it is
seeded noise, norms stay at one (as SGLang makes them), and fc as torch initialises a linear layer.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from eagle3lab.checkpoint import Checkpoint, open_checkpoint
from eagle3lab.engines.capture import CapturePlan, Launch, capture_plan
from eagle3lab.engines.loading import LoadPlan, ParameterPlan, TensorPlan, simulate
from eagle3lab.engines.loading.drafter import Settings, engine_config
from eagle3lab.engines.release import Release
from eagle3lab.errors import InputError
from lab.reference.forward import Drafter, EngineStops, Shape, Target, Wiring

if TYPE_CHECKING:
    from eagle3lab.engines.extract.model import ReleaseFacts
    from eagle3lab.engines.facts import EngineFacts

#: Reads every name that trainers write: what a head "as trained" is loaded by.
KNOWS_ALL_NAMES = "sglang==0.5.23"
#: Standard deviation of the noise in a parameter that nothing fills.
NOISE = 0.02
_UNFILLED = ("left as initialised", "partly loaded")
_HEAD, _EMBEDDING, _MAP = "lm_head.weight", "embed_tokens.weight", "hot_token_id"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A drafter as it would be served, with the record of its load.

    Attributes:
        drafter: Ready to draft.
        plan: What became of each tensor and parameter.
        uninitialised: Parameters that nothing filled, or not all of, and that drafting uses: seeded noise stands in.
    """

    drafter: Drafter
    plan: LoadPlan
    uninitialised: tuple[str, ...]

    @property
    def dropped(self) -> tuple[str, ...]:
        """Names in the checkpoint that reached nothing."""
        return tuple(tensor.name for tensor in self.plan.tensors_with("dropped"))


def load_as_served(
    folder: Path,
    target: Target,
    engine: str,
    *,
    algorithm: str = "EAGLE3",
    attention_backend: str = "",
    seed: int = 0,
) -> Loaded:
    """The drafter in `folder` as this release would serve it under this `--speculative-algorithm`.

    Args:
        folder: A drafter checkpoint.
        target: The target it is served with.
        engine: `sglang==0.5.9` and the like.
        algorithm: EAGLE3, EAGLE or NEXTN.
        attention_backend: `--attention-backend`, of which "triton" matters in old releases.
        seed: Of the noise that stands in for parameters that nothing fills.

    Raises:
        InputError: The folder, the config or the engine cannot be read.
        EngineStops: The release would not start with it.
    """
    release, facts = _facts(engine)
    checkpoint = open_checkpoint(folder)
    known = facts.drafter.architectures
    if not set(checkpoint.config.architectures) & set(known):
        raise EngineStops("ValueError", f"no model class for {list(checkpoint.config.architectures)}")
    names = release.algorithms.aliases if release.algorithms else {}
    meant = names.get(algorithm, algorithm)
    plan = _capture(checkpoint, release, target, meant)
    wiring = _served_wiring(plan, checkpoint, release, attention_backend)
    return _load(checkpoint, target, facts, wiring, eagle3=meant == "EAGLE3", seed=seed)


def load_as_trained(
    folder: Path, target: Target, *, drop: Collection[str] = (), noise: float = NOISE, seed: int = 0
) -> Drafter:
    """The drafter in `folder` computed as its config says that it was trained.

    Args:
        folder: A drafter checkpoint in any dialect, with any trainer's names.
        target: Its target.
        drop: Tensors, named without a layer prefix, that are kept from their parameters.
        noise: Standard deviation of what stands in for them.
        seed: Of that noise.

    Raises:
        InputError: The folder or the config cannot be read, or a tensor is missing that is not in `drop`.
    """
    release, facts = _facts(KNOWS_ALL_NAMES)
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    plan = _capture(checkpoint, release, target, "EAGLE3")
    wiring = Wiring(
        capture=plan.trained or plan.phase("extend").points,
        fc_by_width=False,
        residual_normed=config.norm_before_residual,
        recurrence_normed=config.norm_output,
    )
    try:
        loaded = _load(checkpoint, target, facts, wiring, eagle3=True, without=drop, noise=noise, seed=seed)
    except EngineStops as stop:
        raise InputError(str(stop), path=folder, advice="This is no head that can draft.") from None
    unfilled = [
        one for one in loaded.plan.parameters if one.status in _UNFILLED and not one.replaced_by_target
    ]
    if unfilled and not drop:
        raise InputError(
            f"no tensor of the drafter fills {unfilled[0].name} ({unfilled[0].status})",
            path=folder,
            advice="It cannot draft without.",
        )
    return loaded.drafter


def _facts(engine: str) -> tuple[ReleaseFacts, EngineFacts]:
    from eagle3lab.engines.atlas.resolve import resolve_release

    resolved = resolve_release(engine)
    return resolved.facts, resolved.facts.engine_facts(resolved.label)


def _served_wiring(
    plan: CapturePlan, checkpoint: Checkpoint, release: ReleaseFacts, attention_backend: str
) -> Wiring:
    if plan.refusal is not None:
        raise EngineStops(plan.refusal.exception, plan.refusal.message)
    engine = Release("sglang", release.release or "")
    return Wiring(
        capture=plan.phase("extend").points if plan.captures else None,
        fc_by_width=release.wiring is not None and bool(release.wiring.fc_if_wider),
        recurrence_normed=checkpoint.config.norm_output and engine.holds("reads norm_output"),
        position_gap=int(engine.holds("draft steps skip a position")),
        accepted_twice=attention_backend == "triton" and engine.holds("Triton counts accepted tokens twice"),
    )


def _capture(checkpoint: Checkpoint, release: ReleaseFacts, target: Target, algorithm: str) -> CapturePlan:
    config = checkpoint.config
    launch = Launch(algorithm, cuda_graphs=False)
    return capture_plan(target.config, config, release, launch)


def _shape(settings: Settings, checkpoint: Checkpoint, facts: EngineFacts) -> Shape:
    config, flat = checkpoint.config, settings.flat
    scaling: Mapping[str, Any] = config.rope_scaling or {}
    base = config.rope_theta
    if not Release(facts.kind, facts.release).holds("reads rope_parameters"):
        # As with the transformers 4 that such a release asks for; under transformers 5 it finds neither.
        base = float(flat.get("rope_theta") or 10000.0)
        scaling = flat.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in ("default", "linear"):
        raise InputError(
            f"the reference does not compute RoPE scaling of type {kind!r}", path=checkpoint.path
        )
    return Shape(
        settings.size("num_attention_heads"),
        settings.size("num_key_value_heads"),
        settings.size("head_dim"),
        config.rms_norm_eps,
        base,
        float(scaling.get("factor", 1.0)) if kind == "linear" else 1.0,
        config.hidden_act,
    )


def _load(
    checkpoint: Checkpoint,
    target: Target,
    facts: EngineFacts,
    wiring: Wiring,
    *,
    eagle3: bool,
    seed: int,
    without: Collection[str] = (),
    noise: float = NOISE,
) -> Loaded:
    config = checkpoint.config
    settings = Settings(engine_config(config, facts), facts)
    if not checkpoint.contents.offered:
        raise EngineStops("RuntimeError", "no weights that an engine would find")
    offered = [tensor for tensor in checkpoint.contents.offered if _plain(tensor.name) not in without]
    plan = simulate(config, offered, facts)
    if plan.construction_error is not None:
        raise EngineStops(plan.construction_error.type, plan.construction_error.message)
    if plan.rejected is not None:
        raise EngineStops(plan.rejected.exception or "", plan.rejected.reason)
    chance = torch.Generator().manual_seed(seed)
    weights = {_plain(p.name, keep_layer=True): _initial(p, noise, chance) for p in plan.parameters}
    token_ids: Tensor | None = None
    for tensor in plan.tensors:
        if tensor.outcome == "special" and tensor.parameter == _MAP:
            offsets = torch.from_numpy(checkpoint.read(tensor.name).copy())
            token_ids = offsets + torch.arange(len(offsets))
        elif tensor.outcome == "loaded" and tensor.parameter is not None:
            _place(weights[_plain(tensor.parameter, keep_layer=True)], tensor, checkpoint)
    taken = {_plain(p.name, keep_layer=True): p for p in plan.parameters}
    embedding, head = weights.pop(_EMBEDDING), weights.pop(_HEAD, None)
    empty = [p for p in plan.parameters if p.status in _UNFILLED and not _norm(p.name)]
    if not eagle3 or taken[_EMBEDDING].replaced_by_target:
        embedding = target.embedding
        empty = [p for p in empty if not p.name.endswith(_EMBEDDING)]
    if (
        head is None and not eagle3
    ):  # embedding and head are deleted before the target's take their place: twice the same
        raise EngineStops("AttributeError", "'VocabParallelEmbedding' object has no attribute 'weight'")
    if head is None:  # tied: the engine reads the scores of the first D embeddings
        head = embedding[: settings.size("draft_vocab_size")]
    elif taken[_HEAD].status == "taken from target":
        head = target.lm_head
    elif eagle3:
        head = head[: settings.size("draft_vocab_size")]  # without the rows it is padded with
    if not eagle3:
        # The head is the target's; the scores behind the first D are cut off all the same.
        head, token_ids = target.lm_head[: config.draft_vocab_size], None
        empty = [p for p in empty if not p.name.endswith(_HEAD)]
    drafter = Drafter(
        weights=weights,
        embedding=embedding,
        lm_head=head,
        token_ids=token_ids,
        shape=_shape(settings, checkpoint, facts),
        wiring=wiring,
        layers=settings.size("num_hidden_layers"),
        vocabulary=len(target.embedding),
    )
    return Loaded(drafter, plan, tuple(p.name for p in empty))


def _plain(name: str, *, keep_layer: bool = False) -> str:
    """A name without `model.`; the layer is called `layers.0.`, or nothing at all."""
    plain = name.removeprefix("model.").replace("midlayer.", "layers.0.")
    return plain if keep_layer else plain.removeprefix("layers.0.")


def _norm(name: str) -> bool:
    return "norm" in name.rsplit(".", 2)[-2] or ".fc_norm." in name


def _initial(parameter: ParameterPlan, noise: float, chance: torch.Generator) -> Tensor:
    """What a parameter holds before anything is loaded into it."""
    if _norm(parameter.name):
        return torch.ones(parameter.shape)
    if parameter.name.endswith("fc.weight"):
        bound = noise and 1 / math.sqrt(parameter.shape[1])
        return torch.empty(parameter.shape).uniform_(-bound, bound, generator=chance)
    return torch.randn(parameter.shape, generator=chance) * noise


def _place(parameter: Tensor, plan: TensorPlan, checkpoint: Checkpoint) -> None:
    """Write a tensor's parts where they belong."""
    values = torch.from_numpy(checkpoint.read(plan.name).copy()).to(torch.float32)
    if not plan.slices:
        parameter.copy_(values)
    for part in plan.slices:
        rows, columns = slice(*part.parameter_rows), slice(*(part.parameter_columns or (None, None)))
        source = values[slice(*part.tensor_rows)]
        if parameter.ndim > 1:
            parameter[rows, columns] = source[:, slice(*(part.tensor_columns or (None, None)))]
        else:
            parameter[rows] = source
        for zeros in _zeros(parameter, part.zero_rows, part.zero_columns):
            zeros.zero_()


def _zeros(
    parameter: Tensor, rows: tuple[int, int] | None, columns: tuple[int, int] | None
) -> Iterator[Tensor]:
    if rows is not None:
        yield parameter[slice(*rows)]
    if columns is not None:
        yield parameter[:, slice(*columns)]
