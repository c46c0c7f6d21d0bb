"""The inputs of a diagnosis and the functions that make them: of what was given, and of one another.

Whatever is damaged becomes a reason or evidence, not a crash. Heavy modules are imported by the provider that needs
them, so that a diagnosis without a log imports no numpy.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from eagle3lab.diagnosis.framework import Missing, SkipCheck, provider
from eagle3lab.engines.release import INSTALLED, Release, nearest_known, newest_release, parse_release
from eagle3lab.engines.target import TargetConfig, read_target
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint, DrafterConfig
    from eagle3lab.diagnosis.crash import Crash
    from eagle3lab.diagnosis.load import Load
    from eagle3lab.diagnosis.log import Log
    from eagle3lab.diagnosis.model import Finding
    from eagle3lab.diagnosis.witnessed import Witnessed
    from eagle3lab.engines.arguments.refusals import DefiniteRefusal
    from eagle3lab.engines.capture import CapturePlan
    from eagle3lab.engines.extract.model import ReleaseFacts
    from eagle3lab.engines.extract.vllm import VllmFacts
    from eagle3lab.engines.facts import EngineFacts
    from eagle3lab.engines.launch.reading import Launch
    from eagle3lab.vocabulary.coverage import TargetTokenizer
    from eagle3lab.vocabulary.readings import Ids
    from eagle3lab.vocabulary.source import TokenMap

# Inputs that are another module's type, under the name by which checks ask for them.
Config: TypeAlias = "DrafterConfig"
RawConfig: TypeAlias = Mapping[str, Any]
RawTarget: TypeAlias = Mapping[str, Any]
Refused: TypeAlias = "tuple[DefiniteRefusal, ...]"
Target: TypeAlias = TargetConfig
Engine: TypeAlias = Release
Sglang: TypeAlias = Release
SglangRelease: TypeAlias = Release
Vllm: TypeAlias = Release
VllmRelease: TypeAlias = Release
SglangLoad: TypeAlias = "Load"
VllmLoad: TypeAlias = "Load"
Algorithm: TypeAlias = str
ServerArguments: TypeAlias = Mapping[str, Any]
Earlier: TypeAlias = "list[Finding]"
Cleared: TypeAlias = set[str]
DraftedIds: TypeAlias = frozenset[int]

_NOT_SIMULATED = "the load of a quantised drafter is not simulated"


@dataclass(frozen=True, slots=True)
class Given:
    """What the user gave; every part is optional.

    Attributes:
        drafter: The drafter's folder, or what it holds already opened (or only planned).
        target: The target's folder, or the same; a config.json in it is enough.
        engine: `sglang==0.5.9`, `vllm==0.20.2`, `installed`, or a source tree.
        launch: The launch command, or a file that holds it.
        log: The server's log.
        events: The folder of a probe's events.
        text: A text file (UTF-8) like that which is served.
    """

    drafter: Path | Checkpoint | None = None
    target: Path | Checkpoint | None = None
    engine: str | None = None
    launch: str | None = None
    log: str | None = None
    events: Path | None = None
    text: str | None = None


# ---- drafter ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DrafterFolder:
    """The drafter's folder: its checkpoint, or why it cannot be opened."""

    path: Path
    checkpoint: Checkpoint | None
    error: InputError | None


@provider
def _drafter_folder(given: Given, launch: Launch | None, started: Started | None) -> DrafterFolder | Missing:
    from eagle3lab.checkpoint import open_checkpoint

    named = launch.drafter if launch else started.drafter if started else None
    place = given.drafter or _folder_named(named, launch)
    if place is None:
        return Missing(f"the drafter that is named, {named}, is not here" if named else "no drafter given")
    if not isinstance(place, Path):
        return DrafterFolder(place.path, place, None)
    try:
        return DrafterFolder(place, open_checkpoint(place), None)
    except InputError as error:
        return DrafterFolder(place, None, error)


def _folder_named(name: str | None, launch: Launch | None) -> Path | None:
    """The folder that a command or a log names, from here or from where the command's file lies; None if not here."""
    if not name or "\0" in name or len(name) > 4096:
        return None
    beside = (launch.path.parent,) if launch and launch.path else ()
    try:
        return next((place / name for place in (Path(), *beside) if (place / name).is_dir()), None)
    except OSError:
        return None


@dataclass(frozen=True)
class Tensors:
    """The drafter's tensors, at least one.

    Attributes:
        checkpoint: The folder that they stand in.
    """

    checkpoint: Checkpoint

    @cached_property
    def names(self) -> tuple[str, ...]:
        """As stored, in the order an engine is offered them."""
        return tuple(self.checkpoint.tensors)

    def find(self, ending: str) -> str | None:
        """The first tensor called `ending` or `….ending`; None where there is none."""
        return next((name for name in self.names if name == ending or name.endswith(f".{ending}")), None)

    def shape(self, ending: str) -> tuple[int, ...] | None:
        """The shape of that tensor."""
        name = self.find(ending)
        return None if name is None else self.checkpoint.tensors[name].shape

    @cached_property
    def layers(self) -> int:
        """Decoder layers that the weights hold, counted by their down projections."""
        return sum(name.endswith("mlp.down_proj.weight") for name in self.names)

    @cached_property
    def trainer(self) -> str:
        """Who wrote the drafter, or "unknown"; asked for only where it decides, since values may have to be read."""
        from eagle3lab.checkpoint.provenance import find_provenance

        try:
            return find_provenance(self.checkpoint).trainer
        except InputError:
            return "unknown"

    @cached_property
    def mla(self) -> bool:
        """Whether the layer's attention is MLA, with low-rank projections."""
        return any(
            name.endswith(("self_attn.q_a_proj.weight", "kv_a_proj_with_mqa.weight")) for name in self.names
        )


@provider
def _tensors(folder: DrafterFolder) -> Tensors | Missing:
    if folder.checkpoint is None:
        return Missing("the drafter's files cannot be read")
    return (
        Tensors(folder.checkpoint)
        if folder.checkpoint.tensors
        else Missing("the drafter's folder holds no weights")
    )


@provider
def _raw_config(folder: DrafterFolder) -> RawConfig | Missing:
    if folder.checkpoint is None:
        return Missing("the drafter's files cannot be read")
    return folder.checkpoint.raw_config


@provider
def _config(folder: DrafterFolder, own: OwnMtp | None) -> Config | Missing:
    if own is not None:
        return Missing("the drafter is the target's own prediction layer")
    unread = Missing("the drafter's config.json cannot be read as a drafter's")
    try:
        return unread if folder.checkpoint is None else folder.checkpoint.config
    except InputError:
        return unread


@dataclass(frozen=True, slots=True)
class OwnMtp:
    """What shows that the drafter is the target's own multi-token-prediction layer, in sentences."""

    seen: tuple[str, ...]


_LAYERS_OF_ITS_OWN = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers")
_MTP_TENSORS = ("eh_proj.weight", "enorm.weight", "hnorm.weight")


@provider
def _own_mtp(
    folder: DrafterFolder | None, target: TargetFolder | None, launch: Launch | None
) -> OwnMtp | Missing:
    checkpoint = folder.checkpoint if folder else None
    names = tuple(checkpoint.tensors) if checkpoint else ()
    said = []
    if launch is not None and launch.drafter is not None and launch.drafter == launch.model:
        said.append(f"the command names the same folder, {launch.model}, as target and as drafter")
    elif folder is not None and target is not None and folder.path.resolve() == target.path.resolve():
        said.append("target and drafter are the same folder")
    raw = checkpoint.raw_config if checkpoint is not None and checkpoint.has_config else {}
    inner = raw.get("text_config")
    stated = {**raw, **(inner if isinstance(inner, dict) else {})}
    own = [name for name in names if name.endswith(_MTP_TENSORS)]
    fused = any(name == "d2t" or name.endswith("fc.weight") for name in names)
    if own and not fused:
        layers = next((f"{key} is {stated[key]}" for key in _LAYERS_OF_ITS_OWN if stated.get(key)), "")
        said.append(f"{own[0]} is a tensor of such a layer{f', and {layers}' if layers else ''}")
    return OwnMtp(tuple(said)) if said else Missing("the drafter is no prediction layer of the target")


def layers_of_its_own(target: TargetFolder | None) -> str:
    """The config field by which a target states prediction layers of its own, with its value; empty without."""
    raw = target.checkpoint.raw_config if target is not None and target.checkpoint is not None else {}
    inner = raw.get("text_config")
    stated = {**raw, **(inner if isinstance(inner, dict) else {})}
    return next((f"{key} is {stated[key]}" for key in _LAYERS_OF_ITS_OWN if stated.get(key)), "")


@dataclass(frozen=True, slots=True)
class Head:
    """What kind of head config and weights are together.

    Attributes:
        eagle3: Whether it is an EAGLE-3 head: its attention reads embedding and state side by side, 2H wide, or it
            has a token map.
        states: How many auxiliary states fc fuses, by the width that the config states; None where it is no multiple,
            or there is no fc.
    """

    eagle3: bool
    states: int | None


@provider
def _head(config: Config, tensors: Tensors) -> Head | Missing:
    read = tensors.shape("self_attn.q_proj.weight") or tensors.shape("self_attn.q_a_proj.weight")
    wide = read is not None and len(read) == 2 and read[1] == 2 * config.hidden_size
    fc, width = tensors.shape("fc.weight"), config.target_hidden_size
    fused = fc is not None and len(fc) == 2 and fc[1] % width == 0
    return Head(wide or tensors.find("d2t") is not None, fc[1] // width if fc is not None and fused else None)


# ---- target -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TargetFolder:
    """The target's folder: its checkpoint, or why it cannot be opened."""

    path: Path
    checkpoint: Checkpoint | None
    error: InputError | None


@provider
def _target_folder(given: Given, launch: Launch | None, started: Started | None) -> TargetFolder | Missing:
    from eagle3lab.checkpoint import open_checkpoint

    named = launch.model if launch else started.target if started else None
    place = given.target or _folder_named(named, launch)
    if place is None:
        return Missing(
            f"the target that is named, {named}, is not here" if named else "no target config given"
        )
    if not isinstance(place, Path):
        return TargetFolder(place.path, place, None)
    try:
        checkpoint = open_checkpoint(place)
        _ = checkpoint.raw_config
        return TargetFolder(place, checkpoint, None)
    except InputError as error:
        return TargetFolder(place, None, error)


@provider
def _raw_target(folder: TargetFolder) -> RawTarget | Missing:
    """The target's config.json, also where its weights are damaged or incomplete: it says enough for most checks."""
    from eagle3lab.checkpoint.store import CONFIG_FILE
    from eagle3lab.diagnosis.tokenizer import read_json

    raw = folder.checkpoint.raw_config if folder.checkpoint else read_json(folder.path, CONFIG_FILE)
    return Missing("the target's config.json cannot be read") if raw is None else raw


@provider
def _target(raw: RawTarget) -> Target:
    return read_target(raw)


# ---- engine -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resolved:
    """What the engine named comes to.

    Attributes:
        engine: As it was given, or as the command names it; None where nothing names one.
        facts: Everything known of a release of SGLang; of a neighbouring one where it has no facts itself.
        note: Why nothing is known of it, or whose facts they are.
    """

    engine: Release | None
    facts: ReleaseFacts | None
    note: str


@dataclass(frozen=True, slots=True)
class Started:
    """What the log's first lines say of the server: None for what they do not.

    Attributes:
        engine: Engine, and release where it is printed.
        method: The speculative method, as printed.
        target: The target's path.
        drafter: The drafter's.
        architectures: The classes that were resolved, in the order of print.
        start_line: The line that says it, shortened; empty without one.
    """

    engine: Release | None
    method: str | None
    target: str | None
    drafter: str | None
    architectures: tuple[str, ...]
    start_line: str = ""


_VLLM_START = re.compile(r"Initializing a V\d LLM engine \(v([^)\s]{1,60})\) with config: (.{0,2000})")
_VLLM_VERSION = re.compile(r"vLLM API server version (\S{1,60})|vllm[/ ]version[:= ]+(\S{1,60})")
_ARCHITECTURE = re.compile(r"Resolved architecture: (\w{1,80})")
_OF_VLLM = re.compile(r"SpecDecoding metrics|EngineCore|vllm/v1/|\(APIServer pid=")
_OF_SGLANG = re.compile(r"server_args=ServerArgs\(|Decode batch|sglang/srt/")
_START_LINES = 4000


@provider
def _started(given: Given) -> Started | Missing:
    if given.log is None:
        return Missing("no log given")
    from eagle3lab.acceptance.lines import read_lines

    kind, number, start, shown = "", "", None, dict[str, None]()
    for line in islice(read_lines(given.log), _START_LINES):
        text = line.text
        if found := _ARCHITECTURE.search(text):
            shown[found[1]] = None
        if start is None and (start := _VLLM_START.search(text)):
            kind, number = "vllm", start[1]
        elif found := _VLLM_VERSION.search(text):
            kind, number = "vllm", number or found[1] or found[2]
        elif not kind:
            kind = "vllm" if _OF_VLLM.search(text) else "sglang" if _OF_SGLANG.search(text) else ""
    config = start[2] if start else ""
    before, _, after = config.partition("speculative_config=")
    speculative = after.partition(")")[0]
    said = f"vLLM v{number}: {speculative})" if start else ""
    return Started(
        _release_named(kind, number),
        _stated("method", speculative),
        _stated("model", before),
        _stated("model", speculative),
        tuple(shown),
        said,
    )


def _stated(key: str, text: str) -> str | None:
    """The value of `key='…'` in a printed config."""
    found = re.search(rf"\b{key}='([^']{{1,400}})'", text)
    return found[1] if found else None


def _release_named(kind: str, number: str) -> Release | None:
    try:
        return parse_release(f"{kind}=={number}" if number else kind) if kind else None
    except InputError:
        return Release(kind)


@provider
def _resolved(given: Given, launch: Launch | None, started: Started | None) -> Resolved:
    shown = started.engine if started else None
    spec = given.engine
    if spec is None and launch is not None and launch.engine and (not shown or shown.kind != launch.engine):
        shown = Release(launch.engine)
    if spec is None and (shown is None or not shown.number):
        return Resolved(shown, None, "no engine release given")
    from eagle3lab.engines.atlas.resolve import is_path, resolve_release

    spec = spec or str(shown)
    if spec.strip() != INSTALLED and not is_path(spec):
        named = parse_release(spec)
        if not named.simulated:
            return Resolved(
                named, None, f"{named.name} is not simulated: what does not depend on the engine is checked"
            )
        if not named.number:
            return Resolved(named, None, "no engine release given")
        if named.kind == "vllm":
            return Resolved(named, None, _vllm_note(named))
        if nearest_known(named) is None:
            return Resolved(named, None, f"no facts about {named}")
    found = resolve_release(spec)
    if found.release.kind == "vllm":
        return Resolved(found.release, None, _vllm_note(found.release))
    return Resolved(found.release, found.facts, "; ".join(found.notes))


def _vllm_note(named: Release) -> str:
    near = nearest_known(named)
    facts = f"; its facts are those of {near}" if near is not None and near.number != named.number else ""
    return f"of vLLM, diagnosis knows the load, the captured layers and some rules{facts}"


@provider
def _engine(resolved: Resolved) -> Engine | Missing:
    return resolved.engine or Missing("the engine is not known")


@provider
def _release(engine: Engine) -> Release | Missing:
    return engine if engine.number else Missing("no engine release given")


def _of_kind(engine: Release | None, kind: str) -> Release | Missing:
    if engine is not None and engine.kind == kind:
        return engine
    return Missing(
        f"concerns {kind}; " + (f"the engine is {engine}" if engine else "the engine is not known")
    )


@provider
def _sglang(engine: Engine | None) -> Sglang | Missing:
    return _of_kind(engine, "sglang")


@provider
def _sglang_release(sglang: Sglang, release: Release) -> SglangRelease | Missing:
    return release


@provider
def _vllm(engine: Engine | None) -> Vllm | Missing:
    return _of_kind(engine, "vllm")


@provider
def _vllm_release(vllm: Vllm, release: Release) -> VllmRelease | Missing:
    return release


@provider
def _release_facts(resolved: Resolved) -> ReleaseFacts | Missing:
    return resolved.facts or Missing(resolved.note)


@provider
def _engine_facts(facts: ReleaseFacts, engine: Engine) -> EngineFacts | Missing:
    return facts.engine_facts(str(engine))


def vllm_facts(engine: Release) -> VllmFacts | None:
    """The facts of a vLLM release, or of the nearest older one; of the newest where no release is named.

    None for a release that is older than all that were read.
    """
    from eagle3lab.engines.atlas.data import release_facts
    from eagle3lab.engines.extract.vllm import VllmFacts

    known = nearest_known(engine) if engine.number else newest_release(engine.kind)
    facts = release_facts(known.number, known.kind) if known else None
    assert facts is None or isinstance(facts, VllmFacts)
    return facts


@provider
def _vllm_facts(vllm: Vllm) -> VllmFacts | Missing:
    return vllm_facts(vllm) or Missing(f"{vllm} is older than all vLLM releases that were read")


# ---- command, log, events, text ---------------------------------------------------------------------------------


@provider
def _launch(given: Given) -> Launch | Missing:
    from eagle3lab.engines.launch.reading import read_launch

    return Missing("no launch command given") if given.launch is None else read_launch(given.launch)


@provider
def _refused(
    given: Given, launch: Launch, sglang: Sglang, raw: RawConfig | None, target: RawTarget | None
) -> Refused | Missing:
    """What the release refuses in the command for certain; of the newest one where no release is named."""
    from eagle3lab.engines.arguments.data import argument_rules, release_rules
    from eagle3lab.engines.arguments.refusals import refusals
    from eagle3lab.engines.atlas.resolve import installed_engine, is_path

    if launch.engine not in (None, "sglang"):
        return Missing(f"the command launches {launch.engine}")
    spec = (given.engine or "").strip()
    if is_path(spec) or (spec == INSTALLED and installed_engine().own):
        return refusals(launch, argument_rules(spec), target, raw)
    known = nearest_known(sglang) if sglang.number else newest_release()
    if known is None:
        return Missing(f"nothing is known of the arguments of {sglang}")
    return refusals(launch, release_rules(known.number), target, raw)


@provider
def _log(given: Given, engine: Engine | None, launch: Launch | None) -> Log | Missing:
    if given.log is None:
        return Missing("no log given")
    from eagle3lab.diagnosis.log import read_log

    return read_log(
        given.log,
        str(engine) if engine else None,
        launch.effective_draft_tokens if launch else None,
        launch.steps if launch else None,
    )


@provider
def _crash(
    log: Log, engine: Engine | None, raw: RawConfig | None, config: Config | None, tensors: Tensors | None,
    target: Target | None,
) -> Crash | Missing:  # fmt: skip
    """What the server died of, its values held against the configs."""
    from eagle3lab.diagnosis.crash import Known, crash_of

    if log.death is None:
        return Missing("the server lives, as far as the log goes")
    rows = tensors.shape("lm_head.weight") if tensors else None
    sizes = {
        "the drafter's longest position": config.max_position_embeddings if config else None,
        "the draft vocabulary": config.draft_vocab_size if config else None,
        "the vocabulary of the target": target.vocab_size if target else None,
        "the rows of lm_head": rows[0] if rows else None,
    }
    known = {name: size for name, size in sizes.items() if size}
    useful = log.observed.signature in ("healthy", "partial", "below-expectation", "weak-training", "drift")
    architecture = (target.architecture if target else "") or ""
    return crash_of(log.death, Known(engine, raw, known, architecture, useful))


@provider
def _server_arguments(log: Log | None) -> ServerArguments:
    """What the log says the server was started with; empty where it does not say."""
    return log.server.arguments if log and log.server else {}


@provider
def _algorithm(
    launch: Launch | None, arguments: ServerArguments, started: Started | None
) -> Algorithm | Missing:
    """The speculative algorithm: of the command, else of the server's own arguments."""
    if launch is None and started is not None and started.method is not None:
        return started.method
    stated = launch.algorithm if launch else arguments.get("speculative_algorithm")
    if not isinstance(stated, str):
        return Missing("neither a launch command nor a log names the speculative algorithm")
    return stated if launch else stated.upper()


@provider
def _witnessed(given: Given) -> Witnessed | Missing:
    if given.events is None:
        return Missing("no events of a probe given")
    from eagle3lab.diagnosis.witnessed import read_witnessed

    return read_witnessed(given.events)


@dataclass(frozen=True, slots=True)
class Text:
    """A text like that which is served: its name, the tokenizer of target or drafter, and its tokens [N]."""

    name: str
    tokenizer: TargetTokenizer
    tokens: Ids


@provider
def _text(given: Given) -> Text | Missing:
    if given.text is None:
        return Missing("no text given")
    from eagle3lab.vocabulary.coverage import TargetTokenizer, read_text

    place = given.target or given.drafter
    if place is None:
        raise InputError("a text is of use with a tokenizer only", advice="Give the target's folder as well.")
    tokenizer = TargetTokenizer(place if isinstance(place, Path) else place.path)
    return Text(given.text, tokenizer, tokenizer.encode(read_text(Path(given.text))))


# ---- what follows from several of them --------------------------------------------------------------------------


@provider
def _sglang_load(
    config: Config,
    tensors: Tensors,
    facts: EngineFacts,
    head: Head,
    algorithm: Algorithm | None,
    launch: Launch | None,
) -> SglangLoad | Missing:
    from eagle3lab.diagnosis.load import simulate

    if tensors.mla and not facts.serving(config.architectures).joins_halves:
        return Missing(
            "an MLA head, and the class that its config leads to in this release is not made for one"
        )
    if config.raw.get("quantization_config"):
        return Missing(_NOT_SIMULATED)
    if not head.eagle3 and algorithm in ("EAGLE", "NEXTN"):
        return Missing(f"the head is not an EAGLE-3 head, and is served as {algorithm}")
    tp = launch.tp if launch else 1
    return simulate(config, tensors.checkpoint.contents.offered, facts, tp, tensors.layers)


@provider
def _vllm_load(
    config: Config,
    tensors: Tensors,
    vllm: Vllm,
    facts: VllmFacts,
    algorithm: Algorithm | None,
    launch: Launch | None,
) -> VllmLoad | Missing:
    """The load by vLLM: apart from SGLang's, since a name that SGLang drops stops vLLM."""
    from eagle3lab.diagnosis.load import simulate

    if config.raw.get("quantization_config"):
        return Missing(_NOT_SIMULATED)
    if algorithm is not None and algorithm.lower() != "eagle3":
        return Missing(f"the command serves it as {algorithm}, which is for other heads")
    tp = launch.tp if launch else 1
    engine_facts = facts.engine_facts(str(vllm))
    return simulate(config, tensors.checkpoint.contents.offered, engine_facts, tp, tensors.layers)


@provider
def _load(sglang: SglangLoad | Missing, vllm: VllmLoad | Missing, engine: Engine | None) -> Load | Missing:
    """The load by whichever engine serves it."""
    return vllm if engine is not None and engine.kind == "vllm" else sglang


@provider
def _capture_plan(
    config: Config,
    target: Target,
    engine: Engine,
    sglang: ReleaseFacts | None,
    vllm: VllmFacts | None,
    launch: Launch | None,
) -> CapturePlan | Missing:
    """What the release captures for EAGLE3, beside what was trained."""
    from eagle3lab.engines.capture import Launch as CaptureLaunch
    from eagle3lab.engines.capture import capture_plan

    facts = vllm if engine.kind == "vllm" else sglang
    if target.layers is None:
        return Missing("the target states no number of layers")
    if facts is None:
        return Missing(f"no facts about {engine}")
    graphs = CaptureLaunch(cuda_graphs=launch is None or not launch.has("disable-cuda-graph"))
    plan = capture_plan(target, config, facts, graphs, engine=str(engine))
    return plan or Missing("what this release does with this target was not understood")


@dataclass(frozen=True)
class DraftVocabulary:
    """The drafter's token map.

    Attributes:
        proven: The target ids of the head's rows [D], where t2d proves d2t; None where the map needs a closer look.
        tensors: What it is read from.
        vocab_size: V of the target; None where it is not known.
    """

    proven: list[int] | None
    tensors: Tensors
    vocab_size: int | None

    @cached_property
    def map(self) -> TokenMap:
        """The map, analysed.

        Raises:
            InputError: It cannot be read.
        """
        from eagle3lab.vocabulary.source import read_token_map

        found = read_token_map(self.tensors.checkpoint, self.vocab_size)
        _ = found.report
        return found

    @property
    def ids(self) -> list[int]:
        """The target ids of the head's rows, [D].

        Raises:
            SkipCheck: There is no token map.
        """
        if self.proven is not None:
            return self.proven
        found: Any = self.map.report.hot_token_id
        if found is None:
            raise SkipCheck("there is no token map to compare the head with")
        ids: list[int] = found.tolist()
        return ids


@provider
def _draft_vocabulary(config: Config, tensors: Tensors, target: Target | None) -> DraftVocabulary | Missing:
    from eagle3lab.diagnosis.token_map import proven_ids

    size = target.vocab_size if target else None
    found = DraftVocabulary(proven_ids(tensors.checkpoint, size or config.vocab_size), tensors, size)
    if found.proven is None:
        _ = found.map
    return found


@provider
def _drafted_ids(config: Config, vocabulary: DraftVocabulary) -> DraftedIds | Missing:
    """Target ids that the head can propose."""
    if vocabulary.proven is not None:
        return frozenset(vocabulary.proven)
    served = vocabulary.map.served_ids
    if config.draft_vocab_size in (None, config.vocab_size) or not served.size:
        return Missing("the draft vocabulary is whole")
    return frozenset(served.tolist())


Captured: TypeAlias = "CapturePlan"


@provider
def _captured(
    plan: CapturePlan, config: Config, head: Head, algorithm: Algorithm | None
) -> Captured | Missing:
    """What is captured for an EAGLE-3 head, under an algorithm that captures anything."""
    if algorithm is not None and algorithm not in ("EAGLE3", "EAGLE", "NEXTN", "eagle3"):
        return Missing(f"the algorithm is {algorithm}")
    if not head.eagle3:
        return Missing("the weights are not an EAGLE-3 head")
    return plan if config.use_aux_hidden_state else Missing("use_aux_hidden_state is false")
