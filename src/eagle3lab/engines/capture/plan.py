"""Which of the target's hidden states reach a drafter, how wide they are, and what the drafter does with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from eagle3lab.engines.capture.points import (
    Convention,
    Points,
    convention_of,
    find_chain,
    ids_for,
    last_point,
    meant,
    points_of,
    shift_of,
)
from eagle3lab.engines.capture.shape import TargetShape, target_shape

if TYPE_CHECKING:
    from eagle3lab.checkpoint import DrafterConfig
    from eagle3lab.engines.extract.model import ReleaseFacts, Target

PhaseName = Literal["extend", "draft_extend", "decode"]
Fc = Literal["runs", "skipped", "fails"]
SETTER = "set_eagle3_layers_to_capture"
_CAPTURING = ("EAGLE3",)


@dataclass(frozen=True, slots=True)
class Launch:
    """What of a launch decides about capture.

    Attributes:
        algorithm: As the release resolves it: EAGLE3, EAGLE, ….
        cuda_graphs: Whether CUDA graphs are captured.
    """

    algorithm: str = "EAGLE3"
    cuda_graphs: bool = True


@dataclass(frozen=True, slots=True)
class Refusal:
    """The server stops while it starts.

    Attributes:
        exception: Type of the exception.
        message: Its text.
        source: `file:line` in the release; empty where Python itself raises it.
    """

    exception: str
    message: str
    source: str


@dataclass(frozen=True, slots=True)
class Phase:
    """One kind of the drafter's forward passes.

    Attributes:
        name: "extend" follows the target's pass over a prompt, "draft_extend" its verify pass, "decode" one of the
            drafter's own.
        graphs: Whether the pass that supplies the states runs in a CUDA graph.
        points: The capture points whose states arrive, side by side, in this order; () for one state that is not
            captured: the target's last, or the drafter's own.
        width: Elements of the states of one token; None where it is not known.
        fc: Whether fc is applied: it "runs" where the states are not as wide as the embeddings and as wide as fc
            takes them, is "skipped" where they are as wide as the embeddings, and "fails" otherwise with a shape
            error; None where that is not known.
    """

    name: PhaseName
    graphs: bool
    points: Points
    width: int | None
    fc: Fc | None


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """What a release captures of a target for a drafter.

    Attributes:
        engine: The release.
        chain: The classes that the call goes through, the one that captures last.
        refusal: Why the server stops; None where it starts.
        captures: Whether auxiliary hidden states are captured at all.
        why_not: In words, where they are not; empty where they are.
        ids: Layer ids as the drafter's config states them; None where it states none.
        place: The JSON path they stand at; empty without.
        read: Whether the release reads ids at that place.
        shift: What it adds to them, for this target and these ids; None where they are not read.
        default: The capture points where no ids are read.
        phases: The passes, in the order in which they come: the prompt's, a verify pass's, the drafter's own.
        fc_in: Elements that fc takes; None where it is not known.
        convention: Which convention the ids follow; None where there are none.
        certain: Whether the convention follows from the values, not from habit.
        trained: The capture points that the ids mean by that convention.
        written_as: For each convention, the ids that this release needs in `eagle_config` to capture what the stated
            ids mean in it; None where no ids do that.
        sources: `file:line` in the release of what decided, by what it decided.
        unknown: What could not be told, and why.
    """

    engine: str
    chain: tuple[str, ...]
    refusal: Refusal | None
    captures: bool
    why_not: str
    ids: Points | None
    place: str
    read: bool
    shift: int | None
    default: Points
    phases: tuple[Phase, ...]
    fc_in: int | None
    convention: Convention | None
    certain: bool
    trained: Points | None
    written_as: Mapping[Convention, Points | None]
    sources: Mapping[str, str]
    unknown: tuple[str, ...]

    def phase(self, name: PhaseName) -> Phase:
        """One of the phases."""
        return next(phase for phase in self.phases if phase.name == name)


def capture_plan(
    target: Mapping[str, Any],
    drafter: DrafterConfig,
    facts: ReleaseFacts,
    launch: Launch | None = None,
    *,
    engine: str = "",
    trainer: Callable[[], str] = lambda: "unknown",
) -> CapturePlan:
    """What a release captures of a target for a drafter.

    Args:
        target: The target's config.json.
        drafter: The drafter's config.
        facts: The release.
        launch: How it is launched; EAGLE3 with CUDA graphs where that is left out.
        engine: What to call the release.
        trainer: Says who wrote the drafter; asked only where the ids leave their convention open.
    """
    return _Plan(target_shape(target), drafter, facts, launch or Launch(), engine, trainer).result()


class _Plan:
    """One plan in the making."""

    def __init__(
        self,
        shape: TargetShape,
        drafter: DrafterConfig,
        facts: ReleaseFacts,
        launch: Launch,
        engine: str,
        trainer: Callable[[], str],
    ) -> None:
        self.shape = shape
        self.drafter = drafter
        self.facts = facts
        self.launch = launch
        self.engine = engine or (f"sglang=={facts.release}" if facts.release else "the source")
        self.trainer = trainer
        self.unknown: list[str] = []
        self.chain = find_chain(facts, shape.architectures)
        self.hook = self.chain[-1][1] if self.chain else None
        self.ids = drafter.aux_hidden_state_layer_ids or None
        self.place = drafter.sources["aux_hidden_state_layer_ids"] if self.ids else ""
        wiring = facts.wiring
        self.reads = wiring is not None and self.place in {one.key for one in wiring.ids}

    def result(self) -> CapturePlan:
        layers = self.shape.layers
        if layers is None:
            self.unknown.append("the target's config does not state num_hidden_layers")
        why_not = self._why_not()
        refusal = None if why_not else self._refusal()
        shift = self._shift(layers)
        default = self._default(layers)
        configured = self._configured(layers, shift, default)
        convention, certain = (
            convention_of(self.ids, self.place, layers, self.trainer) if layers else (None, False)
        )
        captures = not why_not and refusal is None
        fc_in = self._fc_in()
        return CapturePlan(
            engine=self.engine,
            chain=tuple(name for name, _ in self.chain),
            refusal=refusal,
            captures=captures,
            why_not=why_not,
            ids=self.ids,
            place=self.place,
            read=self._read,
            shift=shift if self._read else None,
            default=default,
            phases=() if refusal else self._phases(configured, default, captures, layers, fc_in),
            fc_in=fc_in,
            convention=convention,
            certain=certain,
            trained=meant(self.ids, convention) if self.ids and convention else None,
            written_as=self._written_as(layers),
            sources=self._sources(),
            unknown=tuple(self.unknown),
        )

    @property
    def _read(self) -> bool:
        return bool(self.ids) and self.reads and (self.hook is None or self.hook.takes_ids)

    def _why_not(self) -> str:
        if self.launch.algorithm not in _CAPTURING:
            return f"the algorithm is {self.launch.algorithm}, under which only the last hidden state is handed on"
        wiring = self.facts.wiring
        if (
            not self.drafter.use_aux_hidden_state
            and wiring is not None
            and wiring.use_aux_hidden_state is not None
        ):
            return f"{wiring.use_aux_hidden_state.key} is false"
        return ""

    def _refusal(self) -> Refusal | None:
        """What is raised where a class on the way has no such method."""
        if not self.shape.architectures:
            self.unknown.append("the target's config names no class")
            return None
        if self.hook is not None:
            return None
        if any(entry.fact.startswith("targets") for entry in self.facts.unknown):
            self.unknown.append("the target classes of this release were not read completely")
            return None
        # The first class that has no hook: the target's own, or the one that it hands the call to.
        known = {name for one in self.facts.targets for name in one.architectures}
        name = next((one for one in self.shape.architectures if one not in known), None)
        if name is None:
            self.unknown.append(f"which class {self.shape.architectures[0]} hands the call to is not known")
            return None
        missing = self.facts.wiring.missing if self.facts.wiring else None
        if missing is not None and name == self.shape.architectures[0]:
            return Refusal(missing.exception, missing.message.replace("{class}", name), str(missing.source))
        return Refusal("AttributeError", f"'{name}' object has no attribute '{SETTER}'", "")

    def _shift(self, layers: int | None) -> int | None:
        if self.hook is None:
            return self.facts.capture.shift if self.facts.capture else None
        if not self.ids or not self._read or layers is None:
            return None
        shift = shift_of(self.hook, self.ids, layers)
        if shift is None:
            self.unknown.append(f"what {self.hook.name} does with these ids is not understood")
        return shift

    def _default(self, layers: int | None) -> Points:
        expressions = self.hook.default_layers if self.hook else None
        if expressions is None and self.facts.capture is not None:
            expressions = self.facts.capture.default_layers
        return points_of(expressions, layers) if expressions and layers else ()

    def _configured(self, layers: int | None, shift: int | None, default: Points) -> Points | None:
        """The capture points that the config asks for; None where they cannot be told."""
        if not self._read:
            return default or None
        if shift is None or layers is None or self.ids is None:
            return None
        return tuple(one + shift for one in self.ids)

    def _phases(
        self,
        configured: Points | None,
        default: Points,
        captures: bool,
        layers: int | None,
        fc_in: int | None,
    ) -> tuple[Phase, ...]:
        wiring = self.facts.wiring
        graphs_default = wiring is not None and bool(wiring.ids) and wiring.graphs == "default layers"
        graphs = self.launch.cuda_graphs
        verified = (default or None) if graphs and graphs_default else configured
        own = Phase("decode", graphs, (), self.drafter.hidden_size, "skipped")
        return (
            self._supplied("extend", False, configured, captures, layers, fc_in),
            self._supplied("draft_extend", graphs, verified, captures, layers, fc_in),
            own,
        )

    def _supplied(
        self,
        name: PhaseName,
        graphs: bool,
        points: Points | None,
        captures: bool,
        layers: int | None,
        fc_in: int | None,
    ) -> Phase:
        """A pass whose states come from the target. Layers hand theirs over in their own order, each once."""
        width = self.shape.hidden_size
        if not captures:
            return Phase(name, graphs, (), width, self._fc(width, fc_in))
        if points is None or layers is None:
            return Phase(name, graphs, (), None, None)
        last = last_point(self.hook, layers)
        arriving = tuple(sorted({point for point in points if 0 <= point <= last}))
        total = None if width is None else len(arriving) * width
        return Phase(name, graphs, arriving, total, self._fc(total, fc_in))

    def _fc(self, width: int | None, fc_in: int | None) -> Fc | None:
        wiring = self.facts.wiring
        if width is None or wiring is None or not wiring.fc_if_wider:
            return None
        if width == self.drafter.hidden_size:
            return "skipped"
        if fc_in is None:
            return None
        return "runs" if width == fc_in else "fails"

    def _fc_in(self) -> int | None:
        """Columns of fc, as this release builds it from the drafter's config."""
        from eagle3lab.engines.loading.settings import Settings, engine_config
        from eagle3lab.errors import InputError

        try:
            engine = self.facts.engine_facts(self.engine)
            settings = Settings(engine_config(self.drafter, engine), engine)
            weight = next((one for one in engine.parameters if one.name.endswith("fc.weight")), None)
            return settings.product(weight.columns) if weight is not None else None
        except InputError as error:
            self.unknown.append(f"how wide fc is: {error.problem}")
            return None

    def _written_as(self, layers: int | None) -> dict[Convention, Points | None]:
        if not self.ids or layers is None or self.hook is None or not self.hook.takes_ids:
            return {}
        hook: Target = self.hook
        conventions: tuple[Convention, ...] = ("output of layer", "input of layer")
        return {one: ids_for(meant(self.ids, one), hook, layers) for one in conventions}

    def _sources(self) -> dict[str, str]:
        wiring = self.facts.wiring
        found = {f"capture by {name}": str(hook.source) for name, hook in self.chain}
        if wiring is not None:
            found |= {f"{one.key} read": str(one.source) for one in wiring.ids}
            found |= {"CUDA graphs": str(wiring.graphs_source)}
            if wiring.fc_if_wider:
                found["fc where widths differ"] = str(wiring.fc_if_wider[-1])
        return found
