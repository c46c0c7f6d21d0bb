"""What is wrong with a drafter as it is served, judged from what the probe saw.

The guard asks inside a server as it starts, the diagnosis asks of a run that is over, and each puts the answer in words
of its own. Only what was seen counts, and what was not seen is not judged. The names in a judgement come from
checkpoints and are untrusted, as those of the events are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from eagle3lab.runs.events import Boundary, Built, Captured, Configured, Event, Loaded, Shared, TokenMap
from eagle3lab.vocabulary.kinds import MapKind

# Names that every EAGLE-3 loader leaves aside by design: the inverse map, and what is computed from the config.
_LEFT_ASIDE = ("t2d", "inv_freq")
_SCALES = ("_scale", "_scale_inv", "_zero_point", "scales", "qzeros", "g_idx")
# A vocabulary's matrix is padded, and padding is written by nobody.
_PADDED = ("embed_tokens", "lm_head")
# d2t alone is read, so another t2d need not matter; d2t of another length stops a server or is sound as far as it goes.
_NOT_CERTAIN = (MapKind.DISAGREES_WITH_T2D, MapKind.WRONG_LENGTH)
_E = TypeVar("_E", bound=Event)


@dataclass(frozen=True, slots=True)
class Start:
    """What was seen until the server was ready.

    Attributes:
        drafter: As it was built; None if that was not seen.
        loaded: What became of the checkpoint's names.
        token_map: hot_token_id.
        captured: The first call that asked the target for auxiliary hidden states; None if there was none.
        captured_last: The last such call.
        shared: Each time the target's matrices were given to the drafter.
        algorithm: As in the server's arguments, None if not seen.
        use_aux_hidden_state: As the drafter's config says, None where it does not or was not seen.
        target_vocab_size: Tokens of the target, None if unknown.
    """

    drafter: Built | None
    loaded: Loaded | None
    token_map: TokenMap | None
    captured: Captured | None
    captured_last: Captured | None
    shared: tuple[Shared, ...]
    algorithm: str | None
    use_aux_hidden_state: bool | None
    target_vocab_size: int | None

    @classmethod
    def of(cls, events: Iterable[Event]) -> Start:
        """The start of one rank, or of several that did the same."""
        events = list(events)
        configured = _first(events, Configured)
        return cls(
            drafter=next((one for one in events if isinstance(one, Built) and one.role == "drafter"), None),
            loaded=_first(events, Loaded),
            token_map=_first(events, TokenMap),
            captured=_first(events, Captured),
            captured_last=_first(reversed(events), Captured),
            shared=tuple(one for one in events if isinstance(one, Shared)),
            algorithm=None if configured is None else configured.algorithm,
            use_aux_hidden_state=None if configured is None else configured.use_aux_hidden_state,
            target_vocab_size=None if configured is None else configured.target_vocab_size,
        )

    @property
    def eagle3(self) -> Built | None:
        """The drafter if it is an EAGLE-3 head; None if not.

        The drafters of other methods (multi-token prediction layers) take a few of the target's own tensors and drop
        the rest by design: nothing can be said about those.
        """
        return self.drafter if self.drafter and "eagle3" in self.drafter.cls.lower() else None


@dataclass(frozen=True, slots=True)
class Misloaded:
    """Parameters without trained values, or tensors that went nowhere; what does not matter is left out.

    Attributes:
        never_written: Parameters that nothing wrote.
        partly_written: Parameters of which a region was not written.
        dropped: Names of the checkpoint whose values went nowhere.
    """

    never_written: tuple[str, ...]
    partly_written: tuple[str, ...]
    dropped: tuple[str, ...]

    @property
    def unfilled(self) -> int:
        """How many parameters hold no trained values, or not all of theirs."""
        return len(self.never_written) + len(self.partly_written)

    @property
    def fault(self) -> str:
        """The fault's slug."""
        if not self.unfilled:
            return "names.unsupported-tensor"
        return "names.dropped" if self.dropped else "names.missing"


@dataclass(frozen=True, slots=True)
class OneState:
    """A trained fc that is skipped, because no fused states come in.

    Attributes:
        fault: The fault's slug.
        fc_in: What fc takes, columns; None if not known.
        width: What arrives instead, columns: as it was seen, else the hidden size. None if not known.
    """

    fault: Literal["capture.algorithm", "capture.disabled", "capture.width"]
    fc_in: int | None
    width: int | None


@dataclass(frozen=True, slots=True)
class Recaptured:
    """The layers that the drafter's config names were asked for, and later replaced by others.

    Up to 0.5.10 the runner that captures CUDA graphs asks the target once more, without the drafter's layers, and the
    release's default ones take their place.

    Attributes:
        asked: Layers whose inputs were to be captured, as the target held them after the first call.
        held: Those that it held after the last.
    """

    asked: tuple[int, ...]
    held: tuple[int, ...]
    fault: str = "capture.graph-defaults"


@dataclass(frozen=True, slots=True)
class WrongMap:
    """A token map that leads to wrong tokens.

    Attributes:
        kind: What it is; `kind.fault` and `kind.meaning` say more.
        held: What was seen of it.
        guessed: Whether it rests on the first few ids alone.
    """

    kind: MapKind
    held: TokenMap
    guessed: bool = False

    @property
    def fault(self) -> str:
        """The fault's slug."""
        assert self.kind.fault is not None
        return self.kind.fault


def judge_loading(start: Start) -> Misloaded | None:
    """Whether every parameter of an EAGLE-3 head was written and every name went somewhere; None if so or not seen."""
    loaded = start.loaded
    if start.eagle3 is None or loaded is None:
        return None
    one_state = start.use_aux_hidden_state is False

    def matters(parameter: str) -> bool:
        return not parameter.endswith(_SCALES) and not (one_state and "fc." in parameter)

    found = Misloaded(
        tuple(name for name in loaded.never_written if matters(name)),
        tuple(
            name
            for name in loaded.partly_written
            if matters(name) and not any(part in name for part in _PADDED)
        ),
        tuple(name for name in loaded.dropped if not _replaceable(name, start.shared)),
    )
    return found if found.unfilled or found.dropped else None


def fused(fc_ran: bool | None, width: int | None, drafter: Built) -> bool | None:
    """Whether fc fused the states of a pass; None where that cannot be known.

    Where it was not seen, as when a CUDA graph is replayed, the width tells: every release's drafter applies fc to
    states that are not as wide as its embeddings.

    Args:
        fc_ran: What was seen.
        width: Columns of the states that came in.
        drafter: As it was built.
    """
    if fc_ran is not None or width is None or drafter.fc_in == drafter.fc_out:
        return fc_ran
    return True if width == drafter.fc_in else False if width == drafter.fc_out else None


def judge_states(start: Start, prompts: Sequence[Boundary] = ()) -> OneState | None:
    """Whether an EAGLE-3 head gets the auxiliary hidden states that its fc was trained on; None if so or not seen.

    Args:
        start: The start.
        prompts: Passes over prompts and accepted tokens, where fused states should arrive; none before the server is
            ready. That fc ran in one of them clears the head, that it ran in none is proof.
    """
    drafter = start.eagle3
    if drafter is None:
        return None
    told = [
        (one, fused(one.fc_ran, one.hidden_shape[-1] if one.hidden_shape else None, drafter))
        for one in prompts
    ]
    prompts = [one for one, ran in told if ran is not None]
    if any(ran for _, ran in told) or not _has_fc(start, drafter, bool(prompts)):
        return None
    shape = prompts[0].hidden_shape if prompts else []
    width = shape[-1] if shape else drafter.hidden_size
    if start.captured is not None:
        return OneState("capture.width", drafter.fc_in, width) if prompts else None
    if start.algorithm and start.algorithm.upper() != "EAGLE3":
        return OneState("capture.algorithm", drafter.fc_in, width)
    if start.use_aux_hidden_state is False:
        return OneState("capture.disabled", drafter.fc_in, width)
    return OneState("capture.algorithm", drafter.fc_in, width) if prompts else None


def judge_captures(start: Start) -> Recaptured | None:
    """Whether the layers that the drafter asked for were replaced afterwards; None if not or not seen."""
    first, last = start.captured, start.captured_last
    if start.eagle3 is None or first is None or last is None or first.given is None:
        return None
    if not first.layers or not last.layers or first.layers == last.layers:
        return None
    return Recaptured(tuple(first.layers), tuple(last.layers))


def judge_map(start: Start) -> WrongMap | None:
    """Whether the map that the engine holds leads an EAGLE-3 head's drafts to wrong tokens; None if not or not seen."""
    drafter, held = start.eagle3, start.token_map
    if drafter is None or held is None:
        return None
    kind = MapKind(held.kind) if held.kind in list(MapKind) else None
    size, whole = drafter.draft_vocab_size, start.target_vocab_size
    reduced = size is not None and whole is not None and size < whole
    if not held.present:
        # What the checkpoint has may not have reached the engine; a target may be padded, a drafter's config knows.
        needed = kind is MapKind.MISSING or (
            reduced and kind not in (MapKind.NOT_NEEDED, MapKind.ZERO_BY_RIGHT)
        )
        return WrongMap(MapKind.MISSING, held) if needed else None
    if kind is not None and kind.fault is not None and kind not in (*_NOT_CERTAIN, MapKind.MISSING):
        return WrongMap(kind, held)
    if held.out_of_range:
        return WrongMap(MapKind.OUT_OF_RANGE, held)
    if held.distinct < held.rows:
        return WrongMap(MapKind.REPEATING, held)
    counts = held.first == [*range(len(held.first))] and (held.minimum, held.maximum) == (0, held.rows - 1)
    if kind is None and reduced and counts:
        return WrongMap(MapKind.ZERO_BY_MISTAKE, held, guessed=True)
    return None


def _has_fc(start: Start, drafter: Built, ran: bool) -> bool:
    """Whether the head came with an fc that must run."""
    loaded, fc_in, fc_out = start.loaded, drafter.fc_in, drafter.fc_out
    if start.use_aux_hidden_state is False and fc_in is not None and fc_in == fc_out:
        return False  # made for the one state that its config asks for: that fc is skipped shows nothing
    if loaded is None:
        return ran and fc_in is not None
    placed = any("fc.weight" in place for places in loaded.placed.values() for place in places)
    unseen = bool(loaded.untraced) and fc_in is not None
    return placed or (unseen and not any("fc.weight" in name for name in loaded.never_written))


def _replaceable(name: str, shared: Sequence[Shared]) -> bool:
    """Whether a dropped name does not matter: left aside by design, or the target provides the matrix."""
    return (
        name.endswith(_LEFT_ASIDE)
        or ("embed_tokens" in name and any(call.embed for call in shared))
        or ("lm_head" in name and any(call.head for call in shared))
    )


def _first(events: Iterable[Event], kind: type[_E]) -> _E | None:
    return next((one for one in events if isinstance(one, kind)), None)
