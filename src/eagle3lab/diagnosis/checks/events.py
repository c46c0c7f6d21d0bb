"""Events: what the probe saw happen inside the server."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from eagle3lab.diagnosis.framework import Missing, SkipCheck, check, listed, provider
from eagle3lab.diagnosis.inputs import Config, Target
from eagle3lab.diagnosis.model import Finding, Impact, Severity, seen

if TYPE_CHECKING:
    from eagle3lab.diagnosis.load import Load
    from eagle3lab.diagnosis.witnessed import Witnessed
    from eagle3lab.runs.judgement import Start

# These are seen; of the others the event does not say whether t2d proves them or they are likely.
_ARITHMETIC = ("vocab.range", "vocab.missing", "vocab.dtype")


@check(
    "E3L-E01",
    "names.dropped",
    others=("names.missing", "names.unsupported-tensor"),
    effect="Parameters hold whatever was in memory: the drafter computes noise, and nothing but luck is accepted.",
)
def unwritten(witnessed: Witnessed, start: Start, load: Load | None) -> Iterator[Finding]:
    """The server left parameters of the drafter unwritten.

    Seen: The probe watched every name being offered; parameters remain that nothing wrote, or of which a part (the
        rows of k_proj in qkv_proj) was not written. What the target provides, and scales, do not count.
    Why: Their names are not those of this release, or the checkpoint does not have them.
    Effect: What was in memory stays in the parameter, differently at each start: 1.00 and a little.
    Repair: `eagle3lab repair` for this release, or a release that takes these names.
    Sources: The event `Loaded` of `eagle3lab.runs.events`.
    """
    from eagle3lab.runs.judgement import judge_loading

    if start.eagle3 is None or start.loaded is None:
        raise SkipCheck("the probe did not see an EAGLE-3 drafter being loaded")
    found = judge_loading(start)
    if found is None:
        return
    path, offered = witnessed.path, start.loaded.offered
    dropped = seen(f"{len(found.dropped)} of {offered} names were dropped: {listed(found.dropped)}", path)
    if not found.unfilled:
        if load is None:  # where the files are given, what each name is for is known better
            yield Finding(
                f"The server dropped {len(found.dropped)} tensor(s) of the checkpoint, and filled every parameter",
                (dropped,),
                "See whether the drafter was trained with them: eagle3lab load-plan.",
                fault=found.fault,
                confidence=0.6,
                severity=Severity.NOTE,
                impact=Impact.PARTIAL,
                effect="If the drafter was trained with them, fewer drafts are right.",
            )
        return
    evidence = []
    if found.never_written:
        evidence.append(seen(f"nothing wrote {listed(found.never_written)}", path))
    if found.partly_written:
        evidence.append(seen(f"written in part: {listed(found.partly_written)}", path))
    evidence.append(dropped if found.dropped else seen(f"of {offered} names none was dropped", path))
    yield Finding(
        f"The server left {found.unfilled} parameter(s) of the drafter unwritten"
        if found.never_written
        else f"The server wrote {found.unfilled} parameter(s) of the drafter only in part",
        tuple(evidence),
        "Write the tensors under the names of this release: eagle3lab repair DRAFTER --for this release."
        if found.dropped
        else "Add the tensors, or take the checkpoint from the run that trained it.",
        fault=found.fault,
    )


@check(
    "E3L-E02",
    "capture.algorithm",
    others=("capture.disabled", "capture.width"),
    effect="fc is skipped and the drafter reads a state it was not trained on: acceptance is at chance.",
)
def one_state(witnessed: Witnessed, start: Start) -> Iterator[Finding]:
    """At the boundary one state arrived where fc fuses several.

    Seen: The incoming hidden states were H wide while prompts were read, and fc was never applied; or, before any
        prompt, the target was never asked to capture and the server's algorithm or the head's config says why.
    Why: The target was never asked to capture (another algorithm, or use_aux_hidden_state is false), or what was
        captured has the width of the embedding.
    Effect: `hidden_states.shape[-1] != embeds.shape[-1]` is false, so fc is skipped without a word: 1.00 to 1.05.
    Repair: `--speculative-algorithm EAGLE3`, and a release whose target class captures.
    Sources: SGLang `models/llama_eagle3.py`; the events `Boundary` and `Captured` of `eagle3lab.runs.events`.
    """
    from eagle3lab.runs.judgement import judge_states

    prompts = witnessed.prompts
    found = judge_states(start, prompts)
    if found is None:
        if not prompts or start.eagle3 is None or start.eagle3.fc_in is None:
            raise SkipCheck("the probe saw no pass of an EAGLE-3 drafter with an fc")
        return
    fixes = {
        "capture.algorithm": "Use --speculative-algorithm EAGLE3, with a release whose target class captures.",
        "capture.disabled": "Set use_aux_hidden_state to true.",
        "capture.width": "Compare the target's width with what fc was trained for.",
    }
    yield Finding(
        "The drafter was handed one hidden state, and its fc never ran"
        if prompts
        else "The target was not asked for the hidden states that the drafter's fc fuses",
        (
            seen(
                f"{found.width} columns {'arrived' if prompts else 'will arrive'} where fc takes {found.fc_in}",
                witnessed.path,
            ),
            seen(
                "the target was never asked to capture auxiliary hidden states"
                if start.captured is None
                else f"the target was asked to capture the inputs of layers {start.captured.layers}"
            ),
            *([seen(f"the server's speculative algorithm is {start.algorithm}")] if start.algorithm else []),
        ),
        fixes[found.fault],
        fault=found.fault,
        confidence=0.97,
    )


@check(
    "E3L-E03",
    "vocab.range",
    others=("vocab.absolute", "vocab.double-offset", "vocab.zero", "vocab.missing", "vocab.dtype"),
    effect="Draft ids are translated to other tokens than the head means.",
)
def served_map(witnessed: Witnessed, start: Start) -> Iterator[Finding]:
    """The map that the engine holds cannot be right.

    Seen: The d2t that the server read is found to hold absolute ids, doubled offsets, zeros or no integers; or
        hot_token_id leaves the target's vocabulary, repeats ids, or is absent with a reduced draft vocabulary.
    Why: The checkpoint's d2t is absent, all zero, or was shifted once too often.
    Effect: Proposals stand for other tokens; ids outside the vocabulary can end the server.
    Repair: Store the offsets of the run that trained this head: `eagle3lab vocab` shows what is there.
    Sources: The event `TokenMap` of `eagle3lab.runs.events`: hot_token_id = d2t + arange.
    """
    from eagle3lab.runs.judgement import judge_map

    held = start.token_map
    if start.eagle3 is None or held is None:
        raise SkipCheck("the probe did not see an EAGLE-3 drafter's token map")
    found = judge_map(start)
    if found is None:
        return
    evidence = [
        seen(
            f"of {held.rows} ids ({held.minimum} to {held.maximum}), {held.out_of_range} are outside and "
            f"{held.distinct} are distinct"
            if held.present
            else f"draft_vocab_size is {start.eagle3.draft_vocab_size}, hot_token_id is None",
            witnessed.path,
        ),
        *(seen(text) for text in held.evidence),
    ]
    if found.guessed:
        evidence.append(
            seen(f"they begin with {listed(tuple(map(str, held.first)))}: as if d2t were all zeros")
        )
    lost = found.fault in ("vocab.missing", "vocab.zero")
    yield Finding(
        f"The engine translates drafts to wrong tokens: {found.kind.meaning.rstrip('.')}",
        tuple(evidence),
        "Store the d2t of the run that trained this head."
        if lost
        else "Store offsets in d2t: target id − draft id, int64.",
        fault=found.fault,
        confidence=0.9 if found.guessed else 1.0 if found.fault in _ARITHMETIC else 0.97,
    )


@check(
    "E3L-E04",
    "capture.graph-defaults",
    effect="In graphs the drafter gets the states of other layers than it was trained on: acceptance is far lower.",
)
def replaced_layers(witnessed: Witnessed, start: Start) -> Iterator[Finding]:
    """The target holds other layers to capture than the drafter asked for.

    Seen: Two calls of `set_eagle3_layers_to_capture`, the first with the drafter's layer ids, and different layers held
        after the last.
    Why: Up to SGLang 0.5.10 the runner that captures CUDA graphs calls it again, without the drafter's ids.
    Effect: The release's default layers are captured; how much is lost depends on how far they are from the right ones.
    Repair: A later release, or `--disable-cuda-graph`.
    Sources: SGLang 0.5.9 `model_executor/cuda_graph_runner.py:361`; the event `Captured` of `eagle3lab.runs.events`.
    """
    from eagle3lab.runs.judgement import judge_captures

    if start.captured is None:
        raise SkipCheck("the probe saw no call that asks for layers")
    found = judge_captures(start)
    if found is not None:
        yield Finding(
            "The layers that the drafter asked for were replaced by others",
            (
                seen(f"asked for: the inputs of layers {list(found.asked)}", witnessed.path),
                seen(f"held in the end: {list(found.held)}", witnessed.path),
            ),
            "Use a release whose CUDA graphs keep the drafter's layers, or --disable-cuda-graph.",
            fault=found.fault,
            confidence=0.95,
        )


@provider
def _start(witnessed: Witnessed, config: Config | None, target: Target | None) -> Start | Missing:
    """What was seen of the start, and of what was not what the files say."""
    start = witnessed.start
    if start.algorithm is None and config is not None:
        start = replace(start, use_aux_hidden_state=config.use_aux_hidden_state)
    if start.target_vocab_size is None:
        whole = target.vocab_size if target else config.vocab_size if config else None
        start = replace(start, target_vocab_size=whole)
    return start
