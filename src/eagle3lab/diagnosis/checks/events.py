"""Events: what the probe saw happen inside the server."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3lab.diagnosis.checks.base import Found, SkipCheck, check, listed, seen
from eagle3lab.diagnosis.evidence.investigation import Investigation


@check(
    "E3L-E01",
    "names.dropped",
    needs=("events",),
    others=("names.missing",),
    effect="Parameters hold whatever was in memory: the drafter computes noise, and nothing but luck is accepted.",
)
def unwritten(case: Investigation) -> Iterator[Found]:
    """The server left parameters of the drafter unwritten.

    Seen: The probe watched every name being offered; parameters remain that nothing wrote.
    Why: Their names are not those of this release, or the checkpoint does not have them.
    Effect: What was in memory stays in the parameter, differently at each start: 1.00 and a little.
    Repair: `eagle3lab repair` for this release, or a release that takes these names.
    Sources: The event `Loaded` of `eagle3lab.runs.events`.
    """
    assert case.events is not None
    loaded = case.events.loaded
    if loaded is None:
        raise SkipCheck("the probe did not see the drafter being loaded")
    if not loaded.never_written:
        return
    evidence = [
        seen(f"nothing wrote {listed(tuple(loaded.never_written))}", case.events.path),
        seen(f"{len(loaded.dropped)} of {loaded.offered} names were dropped", case.events.path),
    ]
    if loaded.dropped:
        evidence.append(seen(f"dropped: {listed(tuple(loaded.dropped))}"))
    yield Found(
        f"The server left {len(loaded.never_written)} parameters of the drafter unwritten",
        tuple(evidence),
        "Write the tensors under the names of this release: eagle3lab repair DRAFTER --for this release."
        if loaded.dropped
        else "Add the tensors, or take the checkpoint from the run that trained it.",
        fault="names.dropped" if loaded.dropped else "names.missing",
    )


@check(
    "E3L-E02",
    "capture.algorithm",
    needs=("events",),
    others=("capture.disabled", "capture.width"),
    effect="fc is skipped and the drafter reads a state it was not trained on: acceptance is at chance.",
)
def one_state(case: Investigation) -> Iterator[Found]:
    """At the boundary one state arrived where fc fuses several.

    Seen: The incoming hidden states were H wide while prompts were read, and fc was never applied.
    Why: The target was never asked to capture (another algorithm, or use_aux_hidden_state is false), or what was
        captured has the width of the embedding.
    Effect: `hidden_states.shape[-1] != embeds.shape[-1]` is false, so fc is skipped without a word: 1.00 to 1.05.
    Repair: `--speculative-algorithm EAGLE3`, and a release whose target class captures.
    Sources: SGLang `models/llama_eagle3.py`; the events `Boundary` and `Captured` of `eagle3lab.runs.events`.
    """
    assert case.events is not None
    built, prompts = case.events.built, case.events.prompts
    if built is None or built.fc_in is None or built.fc_out is None or not prompts:
        raise SkipCheck("the probe saw no pass of a drafter with an fc")
    if built.fc_in <= built.fc_out or any(one.fc_ran for one in prompts):
        return
    width = prompts[0].hidden_shape[-1] if prompts[0].hidden_shape else 0
    asked = case.events.captured
    fault = "capture.width" if asked is not None else "capture.algorithm"
    if asked is None and case.config is not None and not case.config.use_aux_hidden_state:
        fault = "capture.disabled"
    yield Found(
        "The drafter was handed one hidden state, and its fc never ran",
        (
            seen(f"{width} columns arrived where fc takes {built.fc_in}", case.events.path),
            seen(
                "the target was never asked to capture auxiliary hidden states"
                if asked is None
                else f"the target was asked to capture the inputs of layers {asked.layers}"
            ),
        ),
        "Set use_aux_hidden_state to true."
        if fault == "capture.disabled"
        else "Use --speculative-algorithm EAGLE3, with a release whose target class captures."
        if asked is None
        else "Compare the target's width with what fc was trained for.",
        fault=fault,
        confidence=0.97,
    )


@check(
    "E3L-E03",
    "vocab.range",
    needs=("events",),
    others=("vocab.missing", "vocab.zero"),
    effect="Draft ids are translated to other tokens than the head means.",
)
def served_map(case: Investigation) -> Iterator[Found]:
    """The map that the engine holds cannot be right.

    Seen: hot_token_id leaves the target's vocabulary or repeats ids, is just 0, 1, 2 …, or is absent, although the
        draft vocabulary is reduced.
    Why: The checkpoint's d2t is absent, all zero, or was shifted once too often.
    Effect: Proposals stand for other tokens; ids outside the vocabulary can end the server.
    Repair: Store the offsets of the run that trained this head: `eagle3lab vocab` shows what is there.
    Sources: The event `TokenMap` of `eagle3lab.runs.events`: hot_token_id = d2t + arange.
    """
    assert case.events is not None
    held, built = case.events.token_map, case.events.built
    if held is None:
        raise SkipCheck("the probe did not see the token map")
    reduced = _reduced(case)
    if not held.present:
        if reduced and built is not None:
            yield Found(
                "The draft vocabulary is reduced, and the engine holds no token map",
                (
                    seen(
                        f"draft_vocab_size is {built.draft_vocab_size}, hot_token_id is None",
                        case.events.path,
                    ),
                ),
                "Add the d2t of the run that trained this head.",
                fault="vocab.missing",
            )
        return
    identity = held.minimum == 0 and held.maximum == held.rows - 1 and held.first == [*range(len(held.first))]
    if held.out_of_range or held.distinct < held.rows:
        yield Found(
            "The token map that the engine holds leaves the vocabulary or repeats tokens",
            (
                seen(
                    f"of {held.rows} ids ({held.minimum} to {held.maximum}), {held.out_of_range} are outside and "
                    f"{held.distinct} are distinct",
                    case.events.path,
                ),
            ),
            "Store offsets in d2t: target id − draft id.",
        )
    elif identity and reduced:
        yield Found(
            "The token map that the engine holds is 0, 1, 2 …",
            (seen(f"hot_token_id counts from 0 to {held.maximum} in order", case.events.path),),
            "Store the d2t of the run that trained this head.",
            fault="vocab.zero",
            confidence=0.9,
        )


def _reduced(case: Investigation) -> bool:
    """Whether the draft vocabulary is smaller than the target's, as far as is known."""
    built = case.events.built if case.events else None
    size = built.draft_vocab_size if built else None
    whole = case.target.vocab_size if case.target else case.config.vocab_size if case.config else None
    return size is not None and whole is not None and size < whole
