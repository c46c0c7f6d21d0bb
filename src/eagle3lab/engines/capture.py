"""Which of the target's hidden states reach a drafter, and whether they are those that it was trained on.

Point i is the input of layer i, so it is the output of layer i - 1; point n is the output of the last layer. Layer
ids in a config mean points in one convention (speculators, vLLM: "input of layer") and layer outputs in the other
(SpecForge, ModelOpt, SGLang's own: point = id + 1). Everything that says something about layer ids asks this module.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from eagle3lab.engines.target import TargetConfig, read_target

if TYPE_CHECKING:
    from eagle3lab.checkpoint import DrafterConfig
    from eagle3lab.engines.extract.model import ReleaseFacts, Target

Convention = Literal["input of layer", "output of layer"]
Points = tuple[int, ...]
PhaseName = Literal["extend", "draft_extend", "decode"]
Fc = Literal["runs", "skipped", "fails"]
Verdict = Literal[
    "as trained",
    "ids not read",
    "other convention",
    "out of range",
    "other defaults",
    "defaults in CUDA graphs",
    "nothing captured",
    "refused",
    "unknown",
]

TOP_LEVEL = "eagle_aux_hidden_state_layer_ids"
TRAINERS = ("target_layer_ids", "aux_layer_ids", "aux_hidden_state_layers", "eagle_layer_ids")
"""Keys of trainers' own (DeepSpec's `modeling/eagle3/common.py`, NeMo Automodel), which no engine reads; they name
outputs of layers."""
NESTED = f"eagle_config.{TOP_LEVEL}"
#: What every trainer takes where it is not told otherwise: the inputs of these layers of n.
USUAL = ("2", "n//2", "n-3")
SETTER = "set_eagle3_layers_to_capture"
#: Verdicts that other ids in the config may change.
OF_IDS: tuple[Verdict, ...] = ("ids not read", "other convention", "out of range", "other defaults")
_FAULTS: dict[Verdict, str] = {
    "ids not read": "capture.ids-ignored",
    "other convention": "capture.ids-convention",
    "out of range": "capture.ids-range",
    "other defaults": "capture.engine-defect",
    "defaults in CUDA graphs": "capture.graph-defaults",
    "refused": "capture.target-unsupported",
}
_MOST_LAYERS = 1000


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
        fc: Whether fc is applied: it "runs", is "skipped" (in SGLang where the states are as wide as the
            embeddings), or "fails" with a shape error where they are not as wide as fc takes them; None where that
            is not known.
    """

    name: PhaseName
    graphs: bool
    points: Points
    width: int | None
    fc: Fc | None


@dataclass(frozen=True, slots=True)
class CapturePlan:
    """What a release captures of a target for a drafter, beside what the drafter was trained on.

    Attributes:
        engine: The release.
        verdict: What it comes to.
        chain: The classes that the call goes through, the one that captures last.
        refusal: Why the server stops; None where it starts.
        captures: Whether auxiliary hidden states are captured at all.
        why_not: In words, where they are not; empty where they are.
        ids: Layer ids as the drafter's config states them; None where it states none.
        place: The JSON path they stand at; empty without.
        read: Whether the release reads ids at that place.
        shift: What it adds to them, for this target and these ids; None where they are not read.
        points: The points that the release is asked to capture; None where that cannot be told.
        last: The highest point that this target can capture; None where that is not known.
        default: The points captured where no ids are read; () where that cannot be told.
        phases: The passes, in the order in which they come: the prompt's, a verify pass's, the drafter's own.
        fc_in: Elements that fc takes; None where it is not known.
        trained: The points that the head was trained on; None where that cannot be told.
        convention: The convention in which the ids mean these points; None without ids.
        certain: Whether the values themselves, or two places that agree, decide what was trained; not habit.
        evidence: What decides it, a sentence.
        needed: The ids to state so that `trained` is captured, where it is not; None where nothing has to be stated,
            or no ids do it.
        needed_at: The JSON path to state them at; empty without.
        sources: `file:line` in the release of what decided, by what it decided.
        unknown: What could not be told, and why.
    """

    engine: str
    verdict: Verdict
    chain: tuple[str, ...]
    refusal: Refusal | None
    captures: bool
    why_not: str
    ids: Points | None
    place: str
    read: bool
    shift: int | None
    points: Points | None
    last: int | None
    default: Points
    phases: tuple[Phase, ...]
    fc_in: int | None
    trained: Points | None
    convention: Convention | None
    certain: bool
    evidence: str
    needed: Points | None
    needed_at: str
    sources: Mapping[str, str]
    unknown: tuple[str, ...]

    @property
    def fault(self) -> str | None:
        """The fault that the verdict is; None where it is none."""
        return _FAULTS.get(self.verdict)

    @property
    def source(self) -> str:
        """The line in the release that says what is captured of this target; empty where it was not read."""
        return next((line for what, line in self.sources.items() if what.startswith("capture by")), "")

    def phase(self, name: PhaseName) -> Phase:
        """One of the phases."""
        return next(phase for phase in self.phases if phase.name == name)


# ---- a target's class in a release -------------------------------------------------------------------------------


def find_chain(facts: ReleaseFacts, architectures: tuple[str, ...]) -> tuple[tuple[str, Target], ...]:
    """The classes that the call goes through, each with its method's facts; () where the target's class cannot.

    Args:
        facts: The release.
        architectures: The target's class, and the class of the language model in it where the config names one.
    """
    chain: list[tuple[str, Target]] = []
    waiting = list(architectures)
    while waiting:
        name = waiting.pop(0)
        hook = next((one for one in facts.targets if name in (*one.architectures, one.name)), None)
        if hook is None or any(name == known for known, _ in chain):
            return ()
        chain.append((name, hook))
        if hook.delegates_to is None:
            return tuple(chain)
        if not waiting and hook.holds is not None:
            waiting.append(hook.holds)
    return ()


def can_capture(facts: ReleaseFacts, architecture: str) -> bool:
    """Whether the class of this name has the hook in this release."""
    return any(architecture in target.architectures for target in facts.targets)


def target_refusal(facts: ReleaseFacts, architectures: tuple[str, ...]) -> tuple[Refusal | None, str]:
    """What is raised where a class on the way has no hook, and what could not be told; None and "" where it has."""
    if not architectures:
        return None, "the target's config names no class"
    if find_chain(facts, architectures):
        return None, ""
    name, known = architectures[0], {name for one in facts.targets for name in one.architectures}
    if facts.kind != "sglang" or any(one.fact.startswith("targets") for one in facts.unknown):
        return None, f"how this release captures of {name} was not read completely"
    # The first class that has no hook: the target's own, or the one that it hands the call to.
    lacking = next((one for one in architectures if one not in known), None)
    if lacking is None:
        return None, f"which class {name} hands the call to is not known"
    missing = facts.wiring.missing if facts.wiring else None
    if missing is not None and lacking == name:
        return Refusal(missing.exception, missing.message.replace("{class}", name), str(missing.source)), ""
    return Refusal("AttributeError", f"'{lacking}' object has no attribute '{SETTER}'", ""), ""


def shift_of(hook: Target, ids: Points, layers: int) -> int | None:
    """What the target's class adds to explicit ids; None where its condition is not one that is understood."""
    for shift in hook.shifts:
        if not shift.when:
            return shift.added
        if match := re.fullmatch(r"layer_ids\[0\] == (\d+)", shift.when):
            holds = bool(ids) and ids[0] == int(match[1])
        elif shift.when == "max(layer_ids) == n":
            holds = bool(ids) and max(ids) == layers
        else:
            return None
        if holds:
            return shift.added
    return None


def points_of(expressions: tuple[str, ...], layers: int) -> Points:
    """Capture points from expressions in n."""
    return tuple(_evaluate(expression, layers) for expression in expressions)


def _evaluate(expression: str, n: int) -> int:
    value = 0
    for sign, term in re.findall(r"(^|[+-])(n//\d+|n|\d+)", expression.replace(" ", "")):
        number = n // max(1, int(term[3:])) if term.startswith("n//") else n if term == "n" else int(term)
        value += -number if sign == "-" else number
    return value


def layers_with_defaults(points: Points) -> int | None:
    """The number of layers of a target whose usual points these are; None if there is none."""
    candidates = range(1, min(max(points, default=0), _MOST_LAYERS) + 8)
    return next((n for n in candidates if points_of(USUAL, n) == points), None)


# ---- the plan ----------------------------------------------------------------------------------------------------


def capture_plan(
    target: Mapping[str, Any] | TargetConfig | None,
    drafter: DrafterConfig,
    facts: ReleaseFacts,
    launch: Launch | None = None,
    *,
    engine: str = "",
) -> CapturePlan:
    """What a release captures of a target for a drafter, and whether it is what the drafter was trained on.

    Args:
        target: The target's config.json, read or not; None where it is not known.
        drafter: The drafter's config.
        facts: The release, of SGLang or vLLM.
        launch: How it is launched; EAGLE3 with CUDA graphs where that is left out.
        engine: What to call the release.
    """
    read = target if isinstance(target, TargetConfig) else read_target(target or {})
    return _Planner(read, drafter, facts, launch or Launch(), engine).plan()


class _Planner:
    """One plan in the making; what several of its parts need is worked out once."""

    def __init__(
        self, target: TargetConfig, drafter: DrafterConfig, facts: ReleaseFacts, launch: Launch, engine: str
    ) -> None:
        self.target = target
        self.drafter = drafter
        self.facts = facts
        self.launch = launch
        self.engine = engine or (f"{facts.kind}=={facts.release}" if facts.release else "the source")
        self.unknown: list[str] = []
        self.layers = target.layers
        self.chain = find_chain(facts, target.architectures)
        self.hook = self.chain[-1][1] if self.chain else None
        wiring = facts.wiring
        self.places = tuple(one.key for one in wiring.ids) if wiring is not None else ()
        stated = {key: ids for key in (NESTED, TOP_LEVEL, *TRAINERS) if (ids := _ids(drafter.raw, key))}
        place = next((key for key in self.places if key in stated), next(iter(stated), ""))
        self.stated, self.place, self.ids = stated, place, stated.get(place)
        self.read = place in self.places and (self.hook is None or self.hook.takes_ids)
        usual = points_of(USUAL, self.layers) if self.layers else ()
        default = self.hook.default_layers if self.hook else None
        if default is None and facts.capture is not None:
            default = facts.capture.default_layers
        self.usual, self.default = usual, points_of(default, self.layers) if default and self.layers else ()
        self.last = self._last()

    def plan(self) -> CapturePlan:
        if self.target == TargetConfig():
            self.unknown.append("no target is given")
        elif self.layers is None:
            self.unknown.append("the target's config does not state num_hidden_layers")
        why_not = self._why_not()
        refusal, doubt = (None, "") if why_not else target_refusal(self.facts, self.target.architectures)
        self.unknown += [doubt] if doubt else []
        shift = self._shift(self.ids) if self.ids and self.read else None
        points = self._points(self.ids, shift) if self.read and self.ids else self.default or None
        trained, convention, certain, evidence = self._trained()
        captures = not why_not and refusal is None
        fc_in = self._fc_in()
        verdict: Verdict = (
            "refused" if refusal else "nothing captured" if why_not else self._verdict(points, trained)
        )
        needed = self._needed(trained) if verdict in OF_IDS else None
        return CapturePlan(
            engine=self.engine,
            verdict=verdict,
            chain=tuple(name for name, _ in self.chain),
            refusal=refusal,
            captures=captures,
            why_not=why_not,
            ids=self.ids,
            place=self.place,
            read=self.read,
            shift=shift,
            points=points,
            last=self.last,
            default=self.default,
            phases=() if refusal else self._phases(points, captures, fc_in),
            fc_in=fc_in,
            trained=trained,
            convention=convention,
            certain=certain,
            evidence=evidence,
            needed=needed,
            needed_at=self.places[0] if needed else "",
            sources=self._sources(),
            unknown=tuple(dict.fromkeys(self.unknown)),
        )

    # ---- what the release does ---------------------------------------------------------------------------------

    def _why_not(self) -> str:
        if self.launch.algorithm.upper() != "EAGLE3":
            return f"the algorithm is {self.launch.algorithm}, under which only the last hidden state is handed on"
        switch = self.facts.wiring.use_aux_hidden_state if self.facts.wiring else None
        if not self.drafter.use_aux_hidden_state and switch is not None:
            return f"{switch.key} is false"
        return ""

    def _shift(self, ids: Points) -> int | None:
        if self.hook is None:
            return self.facts.capture.shift if self.facts.capture else None
        if self.layers is None:
            return None
        shift = shift_of(self.hook, ids, self.layers)
        if shift is None:
            self.unknown.append(f"what {self.hook.name} does with these ids is not understood")
        return shift

    def _points(self, ids: Points | None, shift: int | None) -> Points | None:
        return None if ids is None or shift is None else tuple(one + shift for one in ids)

    def _last(self) -> int | None:
        """The output of the last layer can be captured only where the target's class says so.

        Loops of vLLM differ in that from release to release and were not read; they are given the benefit.
        """
        if self.layers is None:
            return None
        beyond = self.hook is not None and any("== n" in one.when for one in self.hook.shifts)
        return self.layers if beyond or self.facts.kind == "vllm" else self.layers - 1

    def _in_range(self, points: Points) -> bool:
        return min(points, default=0) >= 0 and (self.last is None or max(points, default=0) <= self.last)

    # ---- what the head was trained on --------------------------------------------------------------------------

    def _trained(self) -> tuple[Points | None, Convention | None, bool, str]:
        """The points, the convention of the ids, whether that is certain, and why."""
        ids, top, nested = self.ids, self.stated.get(TOP_LEVEL), self.stated.get(NESTED)
        if ids is None:
            why = f"no layer ids are stated: trainers then take the inputs of layers {', '.join(USUAL)}"
            return self.usual or None, None, False, why
        outputs = tuple(one + 1 for one in ids)
        if top and nested and tuple(one + 1 for one in nested) == top:
            said = f"{TOP_LEVEL} {list(top)} and {NESTED} {list(nested)} name the same states in both conventions"
            return top, "output of layer" if self.place == NESTED else "input of layer", True, said
        if self.usual and ids == self.usual:
            said = f"{list(ids)} are the inputs of layers that trainers take of {self.layers} layers"
            return ids, "input of layer", True, said
        if self.usual and outputs == self.usual:
            said = f"{list(ids)} are the outputs of layers that trainers take of {self.layers} layers"
            return outputs, "output of layer", True, said
        if self.layers and max(ids) == self.layers:
            said = f"of {self.layers} layers none is number {self.layers} to name the output of, so inputs are meant"
            return ids, "input of layer", True, said
        if self.place == TOP_LEVEL or top == nested:
            return ids, "input of layer", False, f"ids at the top level ({TOP_LEVEL}) name inputs of layers"
        if self.layers is None and (layers := layers_with_defaults(ids)) is not None:
            self.unknown.append(
                f"if the target has {layers} layers, {list(ids)} are its defaults as inputs of layers"
            )
        return outputs, "output of layer", False, f"ids under {self.place} name outputs of layers"

    def _verdict(self, points: Points | None, trained: Points | None) -> Verdict:
        if self.layers is None and self.ids and not self.read and self.places:
            layers = layers_with_defaults(trained or ())
            if layers is None:
                return "ids not read"
            self.unknown.append(
                f"if the target has {layers} layers, the ids are its defaults and need not be read"
            )
        if points is None or trained is None:
            return "unknown"
        if self.read and not self._in_range(points):
            return "out of range"
        if points != trained:
            return (
                "other defaults" if self.ids is None else "other convention" if self.read else "ids not read"
            )
        graphs = self.facts.wiring is not None and self.facts.wiring.graphs == "default layers"
        if self.read and graphs and self.launch.cuda_graphs and points != self.default:
            return "defaults in CUDA graphs"
        return "as trained"

    def _needed(self, trained: Points | None) -> Points | None:
        """The ids from which the release captures what was trained; None where no ids do that, or none are needed."""
        if trained is None or not self.places or not self._in_range(trained):
            return None
        if self.hook is not None and not self.hook.takes_ids:
            return None
        known = [one.added for one in self.hook.shifts] if self.hook else []
        common = [self.facts.capture.shift] if self.hook is None and self.facts.capture else []
        for shift in dict.fromkeys([*known, *common]):
            ids = tuple(point - shift for point in trained)
            if min(ids, default=0) >= 0 and self._shift(ids) == shift:
                return None if self.read and ids == self.ids else ids
        return None

    # ---- the passes --------------------------------------------------------------------------------------------

    def _phases(self, points: Points | None, captures: bool, fc_in: int | None) -> tuple[Phase, ...]:
        wiring, graphs = self.facts.wiring, self.launch.cuda_graphs
        defaults = wiring is not None and bool(wiring.ids) and wiring.graphs == "default layers"
        verified = (self.default or None) if graphs and defaults else points
        return (
            self._supplied("extend", False, points, captures, fc_in),
            self._supplied("draft_extend", graphs, verified, captures, fc_in),
            Phase("decode", graphs, (), self.drafter.hidden_size, "skipped"),
        )

    def _supplied(
        self, name: PhaseName, graphs: bool, points: Points | None, captures: bool, fc_in: int | None
    ) -> Phase:
        """A pass whose states come from the target. Layers hand theirs over in their own order, each once."""
        width = self.target.hidden_size
        if not captures:
            return Phase(name, graphs, (), width, self._fc(width, False, fc_in))
        if points is None or self.last is None:
            return Phase(name, graphs, (), None, None)
        arriving = tuple(sorted({point for point in points if 0 <= point <= self.last}))
        total = None if width is None else len(arriving) * width
        return Phase(name, graphs, arriving, total, self._fc(total, True, fc_in))

    def _fc(self, width: int | None, captured: bool, fc_in: int | None) -> Fc | None:
        """SGLang runs fc where the states are not as wide as the embeddings, vLLM wherever they were captured."""
        by_width = self.facts.wiring is not None and bool(self.facts.wiring.fc_if_wider)
        if self.facts.kind == "vllm":
            skipped = not captured
        elif by_width and width is not None:
            skipped = width == self.drafter.hidden_size
        else:
            return None
        if skipped:
            return "skipped"
        if fc_in is None or width is None:
            return None
        return "runs" if width == fc_in else "fails"

    def _fc_in(self) -> int | None:
        """Columns of fc, as this release builds it from the drafter's config."""
        from eagle3lab.engines.loading.drafter import Settings, engine_config
        from eagle3lab.errors import InputError

        try:
            engine = self.facts.engine_facts(self.engine)
            settings = Settings(engine_config(self.drafter, engine), engine)
            weight = next((one for one in engine.parameters if one.name.endswith("fc.weight")), None)
            return settings.product(weight.columns) if weight is not None else None
        except InputError as error:
            self.unknown.append(f"how wide fc is: {error.problem}")
            return None

    def _sources(self) -> dict[str, str]:
        wiring, capture = self.facts.wiring, self.facts.capture
        found = {f"capture by {name}": str(hook.source) for name, hook in reversed(self.chain)}
        if not found and capture is not None:
            found["capture by a Llama target"] = str(capture.source)
        if wiring is not None:
            found |= {f"{one.key} read": str(one.source) for one in wiring.ids}
            found |= {"CUDA graphs": str(wiring.graphs_source)}
            if wiring.fc_if_wider:
                found["fc where widths differ"] = str(wiring.fc_if_wider[-1])
        return found


def _ids(raw: Mapping[str, Any], path: str) -> Points | None:
    """Layer ids at a JSON path; None where there are none. Their form was checked when the config was read."""
    place: Any = raw
    for key in path.split("."):
        place = place.get(key) if isinstance(place, Mapping) else None
    whole = isinstance(place, list) and all(
        isinstance(one, int) and not isinstance(one, bool) for one in place
    )
    return tuple(place) if whole and place else None
