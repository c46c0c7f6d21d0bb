"""What the probe writes while a server runs: one JSON object a line, one file a rank, one type for each event.

The first line of a file is `Attached` and carries the schema's version. Names inside events come from checkpoints
and are untrusted: show them through `eagle3lab.text.printable`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from eagle3lab.errors import InputError
from eagle3lab.text import printable

SCHEMA_VERSION = 1

Phase = Literal["extend", "draft_extend", "decode"]
"""When the drafter runs: over a prompt, over the tokens that a verification accepted, or once per draft step."""


class Event(msgspec.Struct, frozen=True, tag_field="event", tag=True, kw_only=True):
    """Something that happened in one rank.

    Attributes:
        time: Seconds since the epoch.
    """

    time: float


class Attached(Event, frozen=True):
    """The probe is in a process; always the first event of a file.

    Attributes:
        schema_version: Of all events of this file.
        release: SGLang's own `__version__`.
        pid: Of the process.
        tp_rank: Rank of this process among the `tp_size` that share the model.
        tp_size: Tensor parallel size.
        dp_rank: Rank among replicas, None without data parallelism.
        ways: The functions that are hooked: `Scheduler.__init__`.
        missing: What this release does not have, or not where it was looked for.
    """

    schema_version: int
    release: str
    pid: int
    tp_rank: int
    tp_size: int
    dp_rank: int | None
    ways: list[str]
    missing: list[str]


class Built(Event, frozen=True):
    """A model was built.

    Attributes:
        role: Whether it drafts or verifies.
        cls: Name of its class.
        module: Where the class is defined.
        architectures: As its config says.
        hidden_size: H, None where the config does not say.
        fc_in: Columns of the drafter's fc on this rank, None without one.
        fc_out: Rows of it.
        draft_vocab_size: As the config says, None where it does not.
        parameters: Number of named parameters.
    """

    role: Literal["drafter", "target"]
    cls: str
    module: str
    architectures: list[str]
    hidden_size: int | None
    fc_in: int | None
    fc_out: int | None
    draft_vocab_size: int | None
    parameters: int


class Configured(Event, frozen=True):
    """The server is ready in this rank, and this is how it was asked to speculate.

    Attributes:
        algorithm: `EAGLE3`, as in the server's arguments; empty without speculation.
        steps: Draft steps.
        topk: Branches a step.
        draft_tokens: D, the root included.
        target: Path or name of the target.
        drafter: Path or name of the drafter.
        use_aux_hidden_state: As the drafter's eagle_config says, None where it does not.
        target_vocab_size: Tokens of the target, None if unknown.
    """

    algorithm: str
    steps: int | None
    topk: int | None
    draft_tokens: int | None
    target: str
    drafter: str | None
    use_aux_hidden_state: bool | None
    target_vocab_size: int | None


class Loaded(Event, frozen=True):
    """The drafter's checkpoint was offered, name by name, and what became of it.

    Attributes:
        offered: Number of names.
        placed: Checkpoint name to the places written: names of parameters, or `hot_token_id`.
        dropped: Names whose values went nowhere.
        never_written: Parameters that nothing wrote and nothing will: what `set_embed` and `set_embed_and_head`
            provide is not among them.
        partly_written: Parameters of which one region was not written, as when k_proj is missing from qkv_proj.
        untraced: Names of which it could not be seen where they went, such as when a loader reads them all
            before it writes any.
    """

    offered: int
    placed: dict[str, list[str]]
    dropped: list[str]
    never_written: list[str]
    partly_written: list[str] = []
    untraced: list[str] = []


class TokenMap(Event, frozen=True):
    """hot_token_id, the target id of each row of the draft vocabulary.

    Attributes:
        present: Whether the drafter has one; without it both vocabularies are taken for the same.
        dtype: `torch.int64`; empty without a map, as are the following.
        rows: Length.
        minimum: Least id.
        maximum: Greatest id.
        distinct: Number of different ids.
        out_of_range: Ids below 0 or not below the target's vocabulary.
        first: The first few ids.
        kind: What the checkpoint's d2t is found to hold, a value of `eagle3lab.vocabulary.MapKind`; empty if it
            was not analysed.
        evidence: What that rests on.
    """

    present: bool
    dtype: str = ""
    rows: int = 0
    minimum: int | None = None
    maximum: int | None = None
    distinct: int = 0
    out_of_range: int = 0
    first: list[int] = []
    kind: str = ""
    evidence: list[str] = []


class Shared(Event, frozen=True):
    """The target's matrices were given to the drafter.

    Attributes:
        call: `set_embed` or `set_embed_and_head`.
        embed: Whether the embedding was replaced.
        head: Whether the lm_head was.
    """

    call: str
    embed: bool
    head: bool


class Captured(Event, frozen=True):
    """The target was told which layers' inputs to capture as auxiliary hidden states.

    Attributes:
        chain: Classes that the call went through, outermost first.
        given: Layer ids in the call, None for the release's default.
        layers: Ids that the innermost model then holds, in its own convention.
    """

    chain: list[str]
    given: list[int] | None
    layers: list[int]


class Boundary(Event, frozen=True):
    """One forward pass of the drafter, as it was called.

    Norms are Euclidean, the mean over at most 256 rows spread over the tokens of the batch; None where a norm is not
    finite, there is no row, or what it is of was not seen.

    Attributes:
        step: Number of the pass in this process, from 0.
        phase: See `Phase`.
        hidden_shape: Of the hidden states that came in, [tokens, width]; rows that pad a CUDA graph are left out.
        embeds_shape: Of the token embeddings, [rows, H]; empty where they were not seen.
        fc_ran: Whether the drafter's fc was applied; None where a CUDA graph was replayed instead of the inner model's
            own forward, and nothing could be seen.
        hidden_norm: Norm of the hidden states.
        embeds_norm: Norm of the embeddings.
        fc_norm: Norm of what fc made of the hidden states.
        aux_norms: Norm of each auxiliary layer's part of the hidden states, in the first pass of each phase and width
            only, if fc was seen; empty otherwise.
        drafts: The ids, of the draft vocabulary, that the drafter ranks first after the last token, likeliest first;
            in the first pass of each phase and width only.
        tokens: What the token map makes of those: ids of the target.
        tensors: Name of the safetensors file beside the events that holds them, None if not kept.
        rehearsal: Whether the pass was made before the server was ready, as for capturing a CUDA graph: its
            numbers are dummies, its shapes are those of the passes that the graph repeats unseen. Only the first
            of each kind is written, with step −1, and none is counted.
    """

    step: int
    phase: Phase
    hidden_shape: list[int]
    embeds_shape: list[int]
    fc_ran: bool | None
    hidden_norm: float | None
    embeds_norm: float | None
    fc_norm: float | None = None
    aux_norms: list[float] = []
    drafts: list[int] = []
    tokens: list[int] = []
    tensors: str | None = None
    rehearsal: bool = False


class Verified(Event, frozen=True):
    """One verify step of the target over a batch.

    Attributes:
        step: Number of the step in this process, from 0.
        draft_tokens: D, the root included.
        accepted: Accepted drafts of each request, the bonus token not counted.
        requests: Ids of the requests in the same order; empty where they were not seen.
    """

    step: int
    draft_tokens: int
    accepted: list[int]
    requests: list[str] = []


class Counters(Event, frozen=True):
    """Totals since the start, written from time to time and at the end: the last one counts.

    Attributes:
        verify_steps: Verify steps, each request of a batch counted by itself.
        accepted: Accepted drafts, bonus tokens not counted.
        per_position: How often the draft at position 1, 2, … was accepted.
        draft_tokens: D, the root included; 0 before the first verification.
        boundaries: Passes of the drafter by phase.
        widths: Passes by `phase:width of the incoming hidden states`.
    """

    verify_steps: int
    accepted: int
    per_position: list[int]
    draft_tokens: int
    boundaries: dict[str, int]
    widths: dict[str, int]


class Guarded(Event, frozen=True):
    """The guard found something and said so in the server's log.

    Attributes:
        stage: `start`, or `steps` after the first verify steps.
        faults: A short code for each: `dropped-names`.
        text: What it printed.
    """

    stage: Literal["start", "steps"]
    faults: list[str]
    text: str


class Quiet(Event, frozen=True):
    """The probe failed somewhere and says nothing more from there; the server goes on.

    Attributes:
        where: Which of its parts.
        problem: The exception, in one line.
    """

    where: str
    problem: str


AnyEvent = (
    Attached
    | Built
    | Configured
    | Loaded
    | TokenMap
    | Shared
    | Captured
    | Boundary
    | Verified
    | Counters
    | Guarded
    | Quiet
)
_E = TypeVar("_E", bound=Event)
_NAME = re.compile(r"rank-(\d+)-(\d+)\.jsonl")
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(AnyEvent).decode


class _Version(msgspec.Struct):
    """What is read of a first line whatever the schema."""

    schema_version: int


def rank_file(folder: Path, tp_rank: int, pid: int) -> Path:
    """Where the process `pid`, rank `tp_rank`, writes its events."""
    return folder / f"rank-{tp_rank}-{pid}.jsonl"


class EventWriter:
    """Appends events to a rank's file; what is written survives the process being killed.

    Args:
        path: The file, from `rank_file`; its folder is made.

    Raises:
        OSError: It cannot be written. So does `write`.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._file = path.open("ab", buffering=0)

    def write(self, event: Event) -> None:
        """Append one event, in one system call."""
        self._file.write(_encode(event) + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()


@dataclass(frozen=True, slots=True)
class RankEvents:
    """What one process reported.

    Attributes:
        path: The file.
        attached: Its first event.
        events: All of them, in order, the first included.
        notes: What a reader should know, such as a last line that was cut off.
    """

    path: Path
    attached: Attached
    events: tuple[AnyEvent, ...]
    notes: tuple[str, ...] = ()

    def of(self, kind: type[_E]) -> tuple[_E, ...]:
        """The events of one type, in order."""
        return tuple(event for event in self.events if isinstance(event, kind))

    def last(self, kind: type[_E]) -> _E | None:
        """The last event of one type."""
        found = self.of(kind)
        return found[-1] if found else None


def read_events(folder: Path) -> tuple[RankEvents, ...]:
    """Read every rank's file in an events folder, ordered by rank.

    A last line that was cut off, as when a process is killed in the middle of a write, is left out with a note.

    Raises:
        InputError: There is no such folder, a file is not readable, has no event, holds something else than
            events, or has another schema version.
    """
    if not folder.is_dir():
        raise InputError(
            "there is no folder of events", path=folder, advice="Run the server with the probe attached"
        )
    found = sorted(
        (int(match[1]), int(match[2]), path)
        for path in folder.iterdir()
        if (match := _NAME.fullmatch(path.name)) is not None and path.is_file()
    )
    return tuple(read_rank(path) for _, _, path in found)


def read_rank(path: Path) -> RankEvents:
    """Read one rank's file; see `read_events`."""
    notes: list[str] = []
    try:
        events = tuple(_read(path, notes))
    except OSError as error:
        raise InputError(
            f"the events cannot be read: {error.strerror}", path=path, advice="Check its permissions"
        ) from None
    if not events:
        raise InputError("there is no whole event", path=path, advice="Was the disk full during the run?")
    attached = events[0]
    if not isinstance(attached, Attached):
        raise InputError(
            f"the first event is {type(attached).__name__}, not Attached",
            path=path,
            line=1,
            advice="This is no file that the probe wrote, or its beginning is lost",
        )
    return RankEvents(path, attached, events, tuple(notes))


def _read(path: Path, notes: list[str]) -> Iterator[AnyEvent]:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                notes.append(f"line {number} of {printable(path.name)} is cut off and was left out")
                return
            if number == 1:
                _check_version(path, line)
            try:
                yield _decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise InputError(
                    f"this is no event: {error}",
                    path=path,
                    line=number,
                    advice="Only the probe should write to this file; run the server again",
                ) from None


def _check_version(path: Path, line: bytes) -> None:
    try:
        version = msgspec.json.decode(line, type=_Version).schema_version
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return  # the decoder of events says what is wrong
    if version != SCHEMA_VERSION:
        raise InputError(
            f"events of schema version {version}; this eagle3lab reads version {SCHEMA_VERSION}",
            path=path,
            line=1,
            advice="Read them with the eagle3lab that wrote them",
        )
