"""Everything the user gave, as one lazy, read-only bundle. Whatever is damaged becomes evidence, not a crash."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3lab.engines.launch.reading import Launch, read_launch
from eagle3lab.engines.release import INSTALLED, Release, nearest_known, parse_release
from eagle3lab.engines.target import TargetConfig, read_target
from eagle3lab.errors import InputError

if TYPE_CHECKING:
    from eagle3lab.checkpoint import Checkpoint, DrafterConfig
    from eagle3lab.diagnosis.evidence.events import Witnessed
    from eagle3lab.diagnosis.evidence.load import Load
    from eagle3lab.diagnosis.evidence.log import Log
    from eagle3lab.diagnosis.model import Finding
    from eagle3lab.engines.capture import CapturePlan
    from eagle3lab.engines.extract.model import ReleaseFacts
    from eagle3lab.engines.facts import EngineFacts
    from eagle3lab.vocabulary import TokenMap
    from eagle3lab.vocabulary.readings import Ids
    from eagle3lab.vocabulary.tokens import TargetTokenizer

Place = str | PathLike[str]

_VLLM = "of vLLM, diagnosis knows the load and some rules"


class Investigation:
    """What is known of one case. Every part is optional, and read when a check asks for it.

    Args:
        drafter: The drafter's folder, or what it holds already opened (or only planned).
        target: The target's folder, or the same; a config.json in it is enough.
        engine: `sglang==0.5.9`, `vllm==0.20.2`, `installed`, or a source tree.
        launch: The launch command, or a file that holds it.
        log: The server's log.
        events: The folder of a probe's events.
        text: A text file (UTF-8) like that which is served.

    Raises:
        InputError: A path leads nowhere, or the engine or the command cannot be understood at all.
    """

    def __init__(
        self,
        drafter: Place | Checkpoint | None = None,
        target: Place | Checkpoint | None = None,
        engine: str | None = None,
        launch: str | None = None,
        log: Place | None = None,
        events: Place | None = None,
        text: Place | None = None,
    ) -> None:
        self._given_drafter, self.drafter_path = _opened_or_folder(drafter)
        self._given_target, self.target_path = _opened_or_folder(target)
        self.launch: Launch | None = read_launch(launch) if launch is not None else None
        self.log_path = None if log is None else fspath(log)
        self._events_path = _folder(events)
        self.text_name = None if text is None else fspath(text)
        self._spec = engine
        self.found: list[Finding] = []
        """Findings of the checks before; only the runner adds to it."""
        if engine is not None:
            _ = self.engine
        if log is not None:
            _ = self.log
        if events is not None:
            _ = self.events
        if text is not None:
            _ = self.text_tokens

    def with_drafter(self, drafter: Checkpoint) -> Investigation:
        """The case with another drafter, and without log and events, which are of the one that was served."""
        other = object.__new__(Investigation)
        kept = (
            "target_path",
            "launch",
            "text_name",
            "_spec",
            "_given_target",
            "_resolved",
            "_engine_facts",
            "_target",
        )
        other.__dict__.update({name: self.__dict__[name] for name in kept if name in self.__dict__})
        other.drafter_path, other._given_drafter = drafter.path, drafter
        other.log_path, other._events_path, other.found = None, None, []
        return other

    # ---- drafter --------------------------------------------------------------------------------------------

    @cached_property
    def _opened(self) -> tuple[Checkpoint | None, InputError | None]:
        from eagle3lab.checkpoint import open_checkpoint

        if self._given_drafter is not None or self.drafter_path is None:
            return self._given_drafter, None
        try:
            return open_checkpoint(self.drafter_path), None
        except InputError as error:
            return None, error

    @property
    def drafter(self) -> Checkpoint | None:
        """The drafter's checkpoint; None where none was given or it cannot be opened."""
        return self._opened[0]

    @property
    def drafter_error(self) -> InputError | None:
        """Why the drafter cannot be opened."""
        return self._opened[1]

    @cached_property
    def _parsed(self) -> tuple[DrafterConfig | None, InputError | None]:
        if self.drafter is None:
            return None, None
        try:
            return self.drafter.config, None
        except InputError as error:
            return None, error

    @property
    def config(self) -> DrafterConfig | None:
        """The drafter's config; None where it cannot be read."""
        return self._parsed[0]

    @property
    def config_error(self) -> InputError | None:
        """Why the drafter's config cannot be read."""
        return self._parsed[1]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of the drafter's tensors."""
        return tuple(self.drafter.tensors) if self.drafter else ()

    def tensor(self, ending: str) -> str | None:
        """The first tensor called `ending` or `….ending`; None where there is none."""
        return next((name for name in self.names if name == ending or name.endswith(f".{ending}")), None)

    def shape(self, ending: str) -> tuple[int, ...] | None:
        """The shape of that tensor."""
        name = self.tensor(ending)
        return None if name is None or self.drafter is None else self.drafter.tensors[name].shape

    @cached_property
    def layers(self) -> int:
        """Decoder layers that the drafter's weights hold, counted by their down projections."""
        return sum(name.endswith("mlp.down_proj.weight") for name in self.names)

    @cached_property
    def is_eagle3(self) -> bool:
        """Whether the weights are an EAGLE-3 head: its attention reads embedding and state side by side, 2H wide."""
        if self.config is None:
            return False
        wide = 2 * self.config.hidden_size
        read = self.shape("self_attn.q_proj.weight") or self.shape("self_attn.q_a_proj.weight")
        return (read is not None and len(read) == 2 and read[1] == wide) or self.tensor("d2t") is not None

    @cached_property
    def is_mla(self) -> bool:
        """Whether the layer's attention is MLA, with low-rank projections."""
        return any(
            name.endswith(("self_attn.q_a_proj.weight", "kv_a_proj_with_mqa.weight")) for name in self.names
        )

    @property
    def takes_one_state(self) -> bool:
        """Whether the head says that it takes the final state alone, on a release that reads that."""
        if self.config is None or self.config.use_aux_hidden_state:
            return False
        wiring = self.release.wiring if self.release else None
        return wiring is not None and wiring.use_aux_hidden_state is not None

    @cached_property
    def trainer(self) -> str:
        """Who wrote the drafter, or "unknown"."""
        if self.drafter is None:
            return "unknown"
        from eagle3lab.checkpoint.provenance import find_provenance

        try:
            return find_provenance(self.drafter).trainer
        except InputError:
            return "unknown"

    # ---- target ---------------------------------------------------------------------------------------------

    @cached_property
    def _target(self) -> tuple[Checkpoint | None, TargetConfig | None, InputError | None]:
        from eagle3lab.checkpoint import open_checkpoint

        if self.target_path is None:
            return None, None, None
        try:
            checkpoint = self._given_target or open_checkpoint(self.target_path)
            return checkpoint, read_target(checkpoint.raw_config), None
        except InputError as error:
            return None, self._target_config_alone(), error

    def _target_config_alone(self) -> TargetConfig | None:
        """The config of a target whose weights are damaged or incomplete: it says enough for most checks."""
        from eagle3lab.checkpoint.files import CONFIG_FILE
        from eagle3lab.diagnosis.evidence.tokenizer import read_json

        assert self.target_path is not None
        raw = read_json(self.target_path, CONFIG_FILE)
        return None if raw is None else read_target(raw)

    @property
    def target(self) -> TargetConfig | None:
        """The target's config; None where none was given or it cannot be read."""
        return self._target[1]

    @property
    def target_checkpoint(self) -> Checkpoint | None:
        """The target's folder."""
        return self._target[0]

    @property
    def target_error(self) -> InputError | None:
        """Why the target cannot be opened."""
        return self._target[2]

    # ---- engine ---------------------------------------------------------------------------------------------

    @cached_property
    def _resolved(self) -> tuple[Release | None, ReleaseFacts | None, str]:
        if self._spec is None:
            kind = self.launch.engine if self.launch else None
            return (Release(kind) if kind else None), None, "no engine release given"
        from eagle3lab.engines.atlas.resolve import is_path, resolve_release

        if self._spec.strip() != INSTALLED and not is_path(self._spec):
            named = parse_release(self._spec)
            if not named.simulated:
                return named, None, f"{named.kind} is not simulated"
            if not named.number:
                return named, None, "no engine release given"
            if named.kind == "vllm":
                return named, None, _VLLM
            if nearest_known(named) is None:
                return named, None, f"no facts about {named}"
        found = resolve_release(self._spec)
        if found.release.kind == "vllm":
            return found.release, None, _VLLM
        return found.release, found.facts, "; ".join(found.notes)

    @property
    def engine(self) -> Release | None:
        """The engine, as given or as the command names it; None when not known."""
        return self._resolved[0]

    @property
    def release(self) -> ReleaseFacts | None:
        """Everything known of the release; of a neighbouring one where it has no facts itself."""
        return self._resolved[1]

    @property
    def release_note(self) -> str:
        """Why nothing is known of it, or whose facts they are."""
        return self._resolved[2]

    @cached_property
    def _engine_facts(self) -> tuple[EngineFacts | None, str]:
        if self.release is None:
            return None, self.release_note
        try:
            return self.release.engine_facts(str(self.engine)), ""
        except InputError as error:
            return None, error.problem

    @property
    def facts(self) -> EngineFacts | None:
        """The facts of the release that a load is simulated from."""
        return self._engine_facts[0]

    @property
    def facts_note(self) -> str:
        """Why there are none."""
        return self._engine_facts[1]

    # ---- what follows from several of them ------------------------------------------------------------------

    @cached_property
    def _load(self) -> tuple[Load | None, str]:
        from eagle3lab.diagnosis.evidence.load import simulated

        if self.drafter is None or self.config is None or self.facts is None:
            return None, "the drafter or the release's facts are missing"
        if self.is_mla and not self.facts.serving(self.config.architectures).joins_halves:
            return (
                None,
                "an MLA head, and the class that its config leads to in this release is not made for one",
            )
        if self.config.raw.get("quantization_config"):
            return None, "the load of a quantised drafter is not simulated"
        if not self.is_eagle3 and self.algorithm in ("EAGLE", "NEXTN"):
            return None, f"the head is not an EAGLE-3 head, and is served as {self.algorithm}"
        tp = self.launch.tp if self.launch else 1
        return simulated(self.config, self.drafter.contents.offered, self.facts, tp, self.layers)

    @property
    def load(self) -> Load | None:
        """The simulated load; None where it cannot be simulated."""
        return self._load[0]

    @property
    def load_note(self) -> str:
        """Why it cannot."""
        return self._load[1]

    @cached_property
    def _vllm_load(self) -> tuple[Load | None, str]:
        if self.engine is None or self.engine.kind != "vllm":
            return None, "the engine is not vLLM"
        from eagle3lab.diagnosis.evidence.vllm import load_by_vllm

        if self.drafter is None or self.config is None:
            return None, "the drafter cannot be read"
        if self.config.raw.get("quantization_config"):
            return None, "the load of a quantised drafter is not simulated"
        if self.algorithm is not None and self.algorithm.lower() != "eagle3":
            return None, f"the command serves it as {self.algorithm}, which is for other heads"
        tp = self.launch.tp if self.launch else 1
        return load_by_vllm(self.config, self.drafter.contents.offered, self.engine, tp, self.layers)

    @property
    def vllm_load(self) -> Load | None:
        """The simulated load by vLLM; None for another engine, and where it cannot be simulated.

        Apart from `load`, since the same fate is another thing there: a name that SGLang drops stops vLLM.
        """
        return self._vllm_load[0]

    @property
    def vllm_load_note(self) -> str:
        """Why it cannot."""
        return self._vllm_load[1]

    @cached_property
    def capture(self) -> CapturePlan | None:
        """What the release captures for EAGLE3, beside what was trained; None where target, release or config lack."""
        from eagle3lab.diagnosis.evidence.vllm import vllm_facts
        from eagle3lab.engines.capture import Launch, capture_plan

        vllm = self.engine is not None and self.engine.kind == "vllm"
        facts = vllm_facts(self.engine) if self.engine is not None and vllm else self.release
        if self.config is None or self.target is None or self.target.layers is None or facts is None:
            return None
        launch = Launch(cuda_graphs=self.launch is None or not self.launch.has("disable-cuda-graph"))
        return capture_plan(self.target, self.config, facts, launch, engine=str(self.engine))

    @cached_property
    def states(self) -> int | None:
        """How many auxiliary states fc fuses, by the width that the config states; None where it is no multiple."""
        shape, config = self.shape("fc.weight"), self.config
        if shape is None or len(shape) != 2 or config is None:
            return None
        width = config.target_hidden_size
        return shape[1] // width if shape[1] % width == 0 else None

    @cached_property
    def proven_ids(self) -> list[int] | None:
        """The target ids of the head's rows, where t2d proves d2t; None where the map needs a closer look."""
        from eagle3lab.diagnosis.evidence.token_map import proven_ids

        if self.drafter is None or self.config is None:
            return None
        vocab = self.target.vocab_size if self.target else None
        return proven_ids(self.drafter, vocab or self.config.vocab_size)

    @cached_property
    def _map(self) -> tuple[TokenMap | None, str]:
        from eagle3lab.vocabulary.source import read_token_map

        if self.drafter is None or self.config is None:
            return None, "the drafter cannot be read"
        vocab = self.target.vocab_size if self.target else None
        try:
            found = read_token_map(self.drafter, vocab)
            _ = found.report
        except InputError as error:
            return None, str(error)
        return found, ""

    @property
    def token_map(self) -> TokenMap | None:
        """The drafter's token map, analysed; None where it cannot be read."""
        return self._map[0]

    @property
    def map_note(self) -> str:
        """Why it cannot."""
        return self._map[1]

    @cached_property
    def log(self) -> Log | None:
        """The server's log, read; None where none was given."""
        if self.log_path is None:
            return None
        from eagle3lab.diagnosis.evidence.log import read_log

        launch = self.launch
        return read_log(
            self.log_path,
            str(self.engine) if self.engine else None,
            launch.effective_draft_tokens if launch else None,
            launch.steps if launch else None,
        )

    @cached_property
    def events(self) -> Witnessed | None:
        """What a probe saw inside the server; None where nothing was given."""
        if self._events_path is None:
            return None
        from eagle3lab.diagnosis.evidence.events import read_witnessed

        return read_witnessed(self._events_path)

    @cached_property
    def text_tokens(self) -> tuple[TargetTokenizer, Ids]:
        """The tokenizer beside the target, else beside the drafter, and the text's tokens, int64 [N].

        Raises:
            InputError: No text was given, it cannot be read, or there is no tokenizer for it.
        """
        from eagle3lab.vocabulary.tokens import TargetTokenizer, read_text

        folder = self.target_path or self.drafter_path
        if self.text_name is None or folder is None:
            raise InputError(
                "a text is of use with a tokenizer only", advice="Give the target's folder as well."
            )
        tokenizer = TargetTokenizer(folder)
        return tokenizer, tokenizer.encode(read_text(Path(self.text_name)))

    @cached_property
    def drafted_ids(self) -> frozenset[int] | None:
        """Target ids that the head can propose; None where the draft vocabulary is whole or the map unread."""
        if self.proven_ids is not None:
            return frozenset(self.proven_ids)
        whole = self.config is None or self.config.draft_vocab_size in (None, self.config.vocab_size)
        if whole or self.token_map is None or not self.token_map.served_ids.size:
            return None
        return frozenset(self.token_map.served_ids.tolist())

    @property
    def server_arguments(self) -> Mapping[str, Any]:
        """What the log says the server was started with; empty where it does not say."""
        return self.log.server.arguments if self.log and self.log.server else {}

    @cached_property
    def algorithm(self) -> str | None:
        """The speculative algorithm: of the command, else of the server's own arguments."""
        if self.launch is not None:
            return self.launch.algorithm
        value = self.server_arguments.get("speculative_algorithm")
        return value.upper() if isinstance(value, str) else None

    def blames(self, *faults: str) -> bool:
        """Whether a check before has found one of these faults."""
        return any(finding.fault in faults for finding in self.found)


def _opened_or_folder(place: Place | Checkpoint | None) -> tuple[Checkpoint | None, Path | None]:
    """A checkpoint that is open already and its folder, or the folder alone.

    Raises:
        InputError: There is no such folder.
    """
    if place is None or isinstance(place, str | PathLike):
        return None, _folder(place)
    return place, place.path


def _folder(place: Place | None) -> Path | None:
    """The path of a folder that must at least be there.

    Raises:
        InputError: It is not.
    """
    if place is None:
        return None
    path = Path(place)
    try:
        if path.is_dir():
            return path
        there = path.exists()
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be opened: {error}", path=path) from None
    raise InputError(
        "is a file, not a folder" if there else "does not exist", path=path, advice="Give the model's folder."
    )
