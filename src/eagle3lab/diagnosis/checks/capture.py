"""Capture: whether the drafter receives the target hidden states it was trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eagle3lab.diagnosis.framework import SkipCheck, check
from eagle3lab.diagnosis.inputs import (
    Algorithm,
    Captured,
    Config,
    Engine,
    Head,
    ServerArguments,
    Sglang,
    Started,
    Target,
    TargetFolder,
    Tensors,
    Vllm,
)
from eagle3lab.diagnosis.model import Evidence, Finding, Impact, Severity, seen
from eagle3lab.diagnosis.releases import first_release
from eagle3lab.engines.capture import NESTED, CapturePlan, can_capture, capture_plan, target_refusal
from eagle3lab.engines.release import or_later

if TYPE_CHECKING:
    from eagle3lab.diagnosis.load import Load
    from eagle3lab.diagnosis.log import Log
    from eagle3lab.engines.extract.model import ReleaseFacts
    from eagle3lab.engines.extract.vllm import VllmFacts
    from eagle3lab.engines.launch.reading import Launch
    from eagle3lab.engines.loading.plan import TensorPlan

_CONFIG = "config.json"
_OTHER = "The drafter reads other hidden states than it was trained on: fewer drafts are accepted."


def _evidence(plan: CapturePlan) -> tuple[Evidence, ...]:
    """What the ids mean, what they meant in training, and which line of the engine decides."""
    stated = f"{plan.place} is {list(plan.ids)}" if plan.ids else "config.json states no layer ids"
    captured = f"captured are the inputs of layers {list(plan.points or ())}"
    return (
        seen(f"{stated}: {plan.evidence}", _CONFIG),
        seen(f"{captured}, trained {list(plan.trained or ())}{f' ({plan.source})' if plan.source else ''}"),
    )


def _fix(plan: CapturePlan, config: Config, target: Target, engine: Engine) -> str:
    """The ids to write, else the release to move to, else that there is neither."""
    wanted = f"the inputs of layers {list(plan.trained or ())}"
    later = first_release(
        engine.number, lambda facts: capture_plan(target, config, facts).verdict == "as trained", engine.kind
    )
    elsewhere = f"{engine.name} {later} and later capture {wanted} as it is." if later else ""
    if plan.needed is not None:
        nested = plan.needed_at == NESTED
        written = f'"eagle_aux_hidden_state_layer_ids": {list(plan.needed)}'
        where = "into eagle_config in config.json" if nested else "at the top level of config.json"
        return f"Write {written} {where}.{elsewhere and f' Or move: {elsewhere}'}"
    if elsewhere:
        return f"Move to another release: {elsewhere}"
    if plan.trained and max(plan.trained) > (target.layers or 0):
        return f"Serve it with the target it was trained for, which has at least {max(plan.trained)} layers."
    return f"No ids and no later release capture {wanted} of this target: use another engine, or train on others."


@check(
    "E3L-C01",
    "capture.algorithm",
    effect="No auxiliary states are captured, fc is skipped and the target's head replaces the drafter's: "
    "little or nothing is accepted, without any error.",
)
def algorithm(
    head: Head,
    tensors: Tensors,
    algorithm: Algorithm,
    sglang: Sglang,
    arguments: ServerArguments,
    target: Target | None,
    facts: ReleaseFacts | None,
    log: Log | None,
) -> Iterator[Finding]:
    """--speculative-algorithm is EAGLE or NEXTN for an EAGLE-3 head.

    Seen: The head is an EAGLE-3 head (2H-wide attention, a fused fc, a token map), and the algorithm is not EAGLE3.
    Why: The three names look alike, and NEXTN is an alias of EAGLE.
    Effect: The worker injects the target's embeddings and head, never reads d2t, and the target hands over one
        state, so fc is skipped: 1.00 to 1.05 in the case study, 1.56 with this book's specimen; no error.
    Repair: `--speculative-algorithm EAGLE3`.
    Sources: SGLang 0.5.9 `speculative/eagle_worker.py:155-182`; pull request 21272, closed unmerged.
    """
    if not head.eagle3 or algorithm not in ("EAGLE", "NEXTN"):
        return
    fc = tensors.shape("fc.weight")
    evidence = [
        seen(f"--speculative-algorithm is {algorithm}"),
        seen("the attention reads embedding and hidden state side by side, as only EAGLE-3 heads do"),
    ]
    if fc is not None:
        evidence.append(seen(f"fc is {list(fc)}: it fuses several states", tensor=tensors.find("fc.weight")))
    if log is not None and arguments.get("speculative_algorithm"):
        evidence.append(seen("the log's server_args name the same algorithm", log.path))
    yield Finding(
        f"{algorithm} is for EAGLE-1/2 heads; this is an EAGLE-3 head",
        tuple(evidence),
        "Use --speculative-algorithm EAGLE3." + _without_hook(target, sglang, facts),
        confidence=0.99,
    )


def _without_hook(target: Target | None, engine: Engine, facts: ReleaseFacts | None) -> str:
    name = target.architecture if target else None
    if name is None or facts is None or can_capture(facts, name):
        return ""
    later = first_release(engine.number, lambda facts: can_capture(facts, name))
    return f" For {name} that needs SGLang {later} or later." if later else ""


@check(
    "E3L-C02",
    "capture.disabled",
    effect="The drafter gets one state, as wide as its embedding, so fc is never applied: acceptance is at chance.",
)
def disabled(
    config: Config, head: Head, tensors: Tensors, sglang: Sglang, facts: ReleaseFacts | None
) -> Iterator[Finding]:
    """use_aux_hidden_state is false on a head that fuses several states.

    Seen: `use_aux_hidden_state` is false and fc is several states wide; or it is false on a release that ignores it.
    Why: The flag was copied from another head's config.
    Effect: From 0.5.8 on the final state is handed over and fc is skipped; before, auxiliary states arrive anyway.
    Repair: Set `use_aux_hidden_state` to true, or leave it out.
    Sources: SGLang 0.5.9 `speculative/eagle_worker.py:195-200`.
    """
    if config.use_aux_hidden_state or not head.eagle3:
        return
    fc, hidden = tensors.shape("fc.weight"), config.hidden_size
    fused = fc is not None and len(fc) == 2 and fc[1] > hidden
    wiring = facts.wiring if facts else None
    reads = facts is None or (wiring is not None and wiring.use_aux_hidden_state is not None)
    if fused != reads:
        return
    place = config.sources["use_aux_hidden_state"]
    yield Finding(
        "use_aux_hidden_state is false, and fc is made for fused states"
        if fused
        else "use_aux_hidden_state is false, and this release does not read it",
        (
            seen(f"{place} is false", _CONFIG),
            seen(f"fc is {list(fc)}" if fc else "there is no fc", tensor=tensors.find("fc.weight")),
        ),
        "Set use_aux_hidden_state to true in eagle_config."
        if fused
        else f"Use {or_later('reads use_aux_hidden_state')}, which reads the flag.",
        confidence=0.97,
    )


@check(
    "E3L-C03",
    "capture.target-unsupported",
    effect="The server stops while it starts: the target's class cannot capture hidden states.",
    impact=Impact.STOPS,
)
def target_unsupported(
    target: Target, engine: Sglang, facts: ReleaseFacts, algorithm: Algorithm | None
) -> Iterator[Finding]:
    """The target's class has no capture hook in this release.

    Seen: The target's class got set_eagle3_layers_to_capture in a later release than this one.
    Why: Each target class needs the hook of its own; wrappers for images need to hand it on.
    Effect: An AttributeError (ValueError from 0.5.23 on) on every rank while the server starts.
    Repair: Use a release whose class has the hook.
    Sources: The EntryClass list of 0.5.9 and 0.5.23, read with a parser; string scan of the others.
    """
    if algorithm is not None and algorithm != "EAGLE3":
        raise SkipCheck(f"with {algorithm} no hidden states are captured")
    classes = target.architectures
    refusal, doubt = target_refusal(facts, classes)
    if doubt:
        raise SkipCheck(doubt)
    if refusal is None:
        return
    name = classes[0]
    later = first_release(engine.number, lambda facts: target_refusal(facts, classes) == (None, ""))
    yield Finding(
        f"{name} cannot capture hidden states in {engine}",
        (
            seen(f"the target's class is {name}", "config.json"),
            seen(f"{refusal.exception}: {refusal.message}{f' ({refusal.source})' if refusal.source else ''}"),
            *([seen(f"it has the hook from SGLang {later} on")] if later else []),
        ),
        f"Use SGLang {later} or later."
        if later
        else "No SGLang release in the atlas can: use another engine.",
        confidence=0.95 if later else 0.75,
    )


@check(
    "E3L-C11",
    "capture.target-incomplete",
    others=("capture.target-unsupported",),
    after=("capture.target-unsupported",),
    effect="The server stops while it starts, or at the first batch: the target's class lacks what speculation needs.",
    impact=Impact.STOPS,
)
def target_incomplete(
    target: Target, folder: TargetFolder, engine: Engine, vllm: VllmFacts | None, algorithm: Algorithm | None
) -> Iterator[Finding]:
    """The target's class lacks one of the other things that this release asks it for.

    Seen: In SGLang, the class has no get_embed_and_head, or its decoder does not read what its hook writes. In vLLM,
        its model type is on no list of this release, or its class does not declare the interface for EAGLE-3.
    Why: Each target class is taught apart from the others; a wrapper can inherit a hook that its inner class lacks.
    Effect: An AttributeError, a RuntimeError, or "too many values to unpack" while graphs are captured.
    Repair: Use a release whose class for this target has all of it.
    Sources: Read by syntax from every release, through ancestors, wrappers and constructors.
    """
    from eagle3lab.engines.messages import target_needs

    if algorithm is not None and algorithm not in ("EAGLE3", "eagle3"):
        raise SkipCheck(f"with {algorithm} no hidden states are captured")
    name = target.architecture
    needs = target_needs(engine, name) if name else None
    if name is None or needs is None:
        raise SkipCheck("the target's config names no class" if name is None else f"no facts about {engine}")
    kind = _model_type(folder)
    listed = vllm.allowed if vllm and vllm.allowed and vllm.allowed.model_types else None
    if listed and kind and not any(one in kind for one in listed.model_types):
        yield Finding(
            f"{engine} takes no target of type {kind} for EAGLE-3",
            (
                seen(f"the target's model_type is {kind}", _CONFIG),
                seen(f"the release takes {', '.join(listed.model_types)} ({listed.source})"),
            ),
            "Use a later release of vLLM, or another engine.",
            fault="capture.target-unsupported",
        )
        return
    sure = [one for one in needs if one.sure and one.what != "hook"]
    for one in sure[:1]:
        yield Finding(
            f"{name} lacks what {engine} asks a target for"
            if one.what == "embeddings"
            else f"{name} hands over no hidden states in {engine}",
            (seen(f"the target's class is {name}", _CONFIG), seen(f"{one.reason} ({one.source})")),
            "Use a release whose class for this target has it.",
            confidence=0.9,
            fault="capture.target-incomplete" if one.what == "embeddings" else "capture.target-unsupported",
        )
    if not sure and needs:
        raise SkipCheck(f"undecided: {needs[0].reason}")


def _model_type(folder: TargetFolder) -> str:
    """The type of the target's language model; "" where its config does not say."""
    raw = folder.checkpoint.raw_config if folder.checkpoint else {}
    inner = raw.get("text_config")
    stated = inner.get("model_type") if isinstance(inner, dict) else None
    return str(stated or raw.get("model_type") or "")


@check(
    "E3L-C04",
    "capture.ids-ignored",
    impact=Impact.PARTIAL,
    effect=_OTHER,
)
def ids_ignored(plan: Captured, config: Config, target: Target, engine: Engine) -> Iterator[Finding]:
    """Layer ids stand where this release does not read them.

    Seen: The ids stand at the top level of config.json, or the release reads none, and they differ from its default.
    Why: speculators and vLLM keep them at the top level, SGLang in `eagle_config`; DeepSpec and NeMo Automodel under
        names of their own.
    Effect: The release captures [2, n//2, n−3] instead; how much that costs grows with the distance.
    Repair: Put the ids into `eagle_config` as outputs of layers (input-of-layer ids minus one).
    Sources: SGLang 0.5.9 `model_runner.py:353-368`; 0.5.23 `spec_aux_hidden_state.py:185-196`.
    """
    if plan.verdict == "ids not read":
        yield Finding(
            "The layer ids stand where this release does not read them",
            _evidence(plan),
            _fix(plan, config, target, engine),
            confidence=0.9 if plan.certain else 0.85,
        )


@check(
    "E3L-C05",
    "capture.ids-convention",
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="Every captured layer is off by one: acceptance is lower, not zero.",
)
def ids_convention(plan: Captured, config: Config, target: Target, engine: Engine) -> Iterator[Finding]:
    """Layer ids follow the other convention, so every captured layer is off by one.

    Seen: The ids in `eagle_config` are exactly the default *inputs* of layers, where the release adds one; or they
        are outputs of layers where the release takes ids verbatim for this target.
    Why: vLLM and speculators count inputs of layers, SpecForge, ModelOpt and SGLang outputs.
    Effect: Neighbouring layers resemble each other, so acceptance falls and does not vanish.
    Repair: Convert the ids to the convention that this release expects for this target.
    Sources: SGLang `models/llama.py:929-941` (0.5.23), `models/deepseek_v2.py:3458-3473`.
    """
    if plan.verdict == "other convention":
        yield Finding(
            f"The layer ids are {plan.convention} ids, and this release "
            + (f"adds {plan.shift} to them" if plan.shift else "takes them as inputs of layers"),
            _evidence(plan),
            _fix(plan, config, target, engine),
            confidence=0.9 if plan.certain else 0.6,
        )


@check(
    "E3L-C06",
    "capture.ids-range",
    impact=Impact.STOPS,
    effect="Fewer states arrive than fc was made for: the first forward pass stops on a size error.",
)
def ids_range(plan: Captured, config: Config, target: Target, engine: Sglang) -> Iterator[Finding]:
    """A layer id lies outside what this target and release can capture.

    Seen: An id, with the one that the release adds, names the input of a layer that the target does not have.
    Why: The ids are of a deeper target, or the output of the last layer is named on a release that cannot capture it.
    Effect: The loop over layers never meets that id; fewer states reach fc, and the first forward pass stops.
    Repair: Use ids within the target, or a release that captures the last layer.
    Sources: SGLang `models/llama.py`: states are taken before layer i, i < n; `models/gpt_oss.py:1337-1352`.
    """
    if plan.verdict == "out of range":
        yield Finding(
            f"Layer ids {list(plan.ids or ())} reach beyond what {engine} captures of {target.layers} layers",
            (*_evidence(plan), seen(f"the last input that can be captured is that of layer {plan.last}")),
            _fix(plan, config, target, engine),
            confidence=0.97,
        )


@check(
    "E3L-C07",
    "capture.ids-count",
    impact=Impact.STOPS,
    effect="fc is built or fed for another number of states than it was trained for: the server stops.",
)
def ids_count(
    config: Config,
    head: Head,
    tensors: Tensors,
    target: Target | None,
    engine: Engine | None,
    load: Load | None,
) -> Iterator[Finding]:
    """The number of layer ids disagrees with the width of fc.

    Seen: fc is k states wide, and the config names another number of layers.
    Why: An id for another purpose (the last layer, for the target's own head) was kept in the list.
    Effect: The parameter is built for as many states as there are ids, so the tensor does not fit; or the wrong
        number of states arrives.
    Repair: List exactly the layers whose states fc fuses.
    Sources: SGLang `models/kimi_k25_eagle3.py`, `models/llama_eagle3.py`: fc is hidden size × states.
    """
    ids, states = config.aux_hidden_state_layer_ids, head.states
    if states is None or not head.eagle3:
        return
    if ids is None or len(ids) == states:
        yield from _fc_refused(load, states, engine)
        return
    if states == 1:
        raise SkipCheck("fc takes a single state, which is looked at by itself")
    beyond = [one for one in ids if target and target.layers and one >= target.layers]
    kept = [one for one in ids if one not in beyond]
    yield Finding(
        f"{len(ids)} layer ids, and fc is {states} states wide",
        (
            seen(f"{config.sources['aux_hidden_state_layer_ids']} is {list(ids)}", _CONFIG),
            seen(f"fc is {list(tensors.shape('fc.weight') or ())}", tensor=tensors.find("fc.weight")),
        ),
        f"List the {states} layers that fc fuses" + (f": {kept}." if len(kept) == states else "."),
        confidence=0.97,
    )


def _fc_refused(load: Load | None, states: int, engine: Engine | None) -> Iterator[Finding]:
    """The config agrees with fc, or names no layers, and this release builds fc for another number of states."""
    refused = _refused_fc(load)
    if refused is None or states == 1:
        return
    yield Finding(
        f"fc is {states} states wide, and {engine} builds it for another number",
        (seen(refused.reason, tensor=refused.name),),
        f"Name the layers that fc fuses in eagle_config, on {or_later('reads fc_norm')}; earlier releases take three."
        if engine is None or engine.kind != "vllm"
        else "Name the layers that fc fuses in config.json, where this release of vLLM reads them.",
        confidence=0.9,
    )


def _refused_fc(load: Load | None) -> TensorPlan | None:
    """The tensor of fc, where the simulated load of either engine stops at its shape."""
    refused = load.rejected if load is not None else None
    return refused if refused is not None and (refused.parameter or "").endswith("fc.weight") else None


@check(
    "E3L-C08",
    "capture.graph-defaults",
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    after=("capture.ids-range", "capture.target-unsupported"),
    effect="Prefill captures the configured layers and decode the default ones: a loss, not a collapse.",
)
def graph_defaults(plan: Captured, engine: Sglang) -> Iterator[Finding]:
    """This release's CUDA graphs capture the default layers whatever the config says.

    Seen: The ids are read and differ from the default, on a release from 0.4.9 to 0.5.10 with CUDA graphs on.
    Why: The graph runner calls the setter without ids before it captures; the configured ids apply only afterwards.
    Effect: Decode and verify, which run in graphs, read the default layers; prefill reads the configured ones.
    Repair: Use 0.5.11 or later, or test with `--disable-cuda-graph`.
    Sources: SGLang 0.5.9 `cuda_graph_runner.py:365`; pull request 22836.
    """
    if not plan.read or not plan.phases or plan.phase("extend").points == plan.phase("draft_extend").points:
        return
    own = first_release(engine.number, lambda f: f.wiring is not None and f.wiring.graphs == "config ids")
    yield Finding(
        "CUDA graphs of this release capture the default layers, not the configured ones",
        (
            seen(
                f"{plan.place} is {list(plan.ids or ())}: inputs of layers {list(plan.points or ())}", _CONFIG
            ),
            seen(f"graphs capture the inputs of layers {list(plan.default)} ({plan.sources['CUDA graphs']})"),
        ),
        f"Use SGLang {own} or later, or --disable-cuda-graph.",
        confidence=0.9,
    )


@check(
    "E3L-C09",
    "capture.width",
    others=("head-kind.not-eagle3",),
    effect="fc is skipped in silence or fails: what reaches the layer is not what it was trained on.",
)
def width(
    config: Config,
    head: Head,
    tensors: Tensors,
    target: Target | None,
    engine: Engine | None,
    load: Load | None,
) -> Iterator[Finding]:
    """The fused state is as wide as the embedding, or the target's width is not the one fc expects.

    Seen: fc takes as many values as the embedding has; or the target's hidden size is not the one in the config.
    Why: fc is applied only where the incoming width differs from the embedding's, so a single state looks fused
        already; or the head is for another target.
    Effect: fc is skipped without a word, or the first forward pass stops on a size error.
    Repair: Train with several states; serve the head with its own target.
    Sources: SGLang `models/llama_eagle3.py:162` (0.5.9), `:238` (0.5.23).
    """
    config, fc = config, tensors.shape("fc.weight")
    if fc is None or len(fc) != 2 or not head.eagle3:
        return
    if target and target.hidden_size and target.hidden_size != config.target_hidden_size:
        yield Finding(
            f"The target's hidden size is {target.hidden_size}, the drafter's is for {config.target_hidden_size}",
            (
                seen(f"target_hidden_size is {config.target_hidden_size} "
                     f"({config.sources['target_hidden_size']})", _CONFIG),
                seen(f"the target's config states hidden_size {target.hidden_size}"),
                seen(f"fc is {list(fc)}", tensor=tensors.find("fc.weight")),
            ),
            "Serve the drafter with the target it was trained for, or state target_hidden_size.",
            impact=Impact.STOPS,
            confidence=0.95,
        )  # fmt: skip
    elif fc[1] == config.hidden_size and config.use_aux_hidden_state:
        refused = _refused_fc(load)
        yield Finding(
            f"fc takes one state, and {engine} builds it for another number"
            if refused
            else "fc takes a state as wide as the embedding, so engines skip it",
            (
                seen(
                    f"fc is {list(fc)}, hidden_size is {config.hidden_size}", tensor=tensors.find("fc.weight")
                ),
                seen(f"layer ids are {list(config.aux_hidden_state_layer_ids or ())}", _CONFIG),
                *([seen(refused.reason, tensor=refused.name)] if refused else []),
            ),
            "Train the head on several auxiliary states, or fold fc into the layer.",
            impact=Impact.STOPS if refused else Impact.ZERO,
            confidence=0.95,
        )
    elif head.states is None:
        yield Finding(
            f"fc is {fc[1]} wide, which is no multiple of the target's hidden size {config.target_hidden_size}",
            (seen(f"fc is {list(fc)}", tensor=tensors.find("fc.weight")),),
            "State target_hidden_size, or serve the drafter with its own target.",
            impact=Impact.STOPS,
            confidence=0.9,
        )


@check(
    "E3L-C10",
    "capture.engine-defect",
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect=_OTHER,
)
def engine_defect(
    target: Target, engine: Sglang, config: Config, plan: CapturePlan | None, launch: Launch | None
) -> Iterator[Finding]:
    """Config and head are right, and this release still captures the wrong states for this target.

    Seen: A defect is known of this release with this target and this command.
    Why: The hook of a target class differs from the others', or captures on one pipeline stage only.
    Effect: Some or all captured states are other layers' than configured.
    Repair: Use another release, state the ids explicitly, or serve without pipeline parallelism.
    Sources: SGLang `models/minimax_m3_vl.py`; `models/llama.py`.
    """
    if plan is not None and plan.verdict == "other defaults":
        yield Finding(
            f"Without explicit ids {engine} captures other layers of this target than trainers do",
            _evidence(plan),
            _fix(plan, config, target, engine),
            confidence=0.8,
        )
    if launch is not None and (launch.number("pp-size") or 1) > 1:
        yield Finding(
            "With pipeline parallelism only the last stage captures hidden states",
            (seen(f"--pp-size is {launch.number('pp-size')}"),),
            "Serve without --pp-size.",
            confidence=0.7,
        )


@check(
    "E3L-C12",
    "capture.algorithm",
    after=("capture.algorithm", "flags.method"),
    effect="No auxiliary states are captured, and the drafter reads a state that it was not trained on.",
)
def method_in_the_log(started: Started, vllm: Vllm, log: Log) -> Iterator[Finding]:
    """The log's own start line serves an EAGLE-3 class with another method.

    Seen: vLLM resolved an EAGLE-3 class for the drafter, and its start line names another method than eagle3.
    Why: `"method": "eagle"` is for EAGLE-1/2 heads; the class is chosen by the head's config all the same.
    Effect: The target hands over one state, fc does not see what it was trained on: next to nothing is accepted.
    Repair: `"method": "eagle3"`.
    Sources: vLLM `config/speculative.py`, `v1/spec_decode/eagle.py`.
    """
    classes = [name for name in started.architectures if "eagle3" in name.lower()]
    if not classes or started.method is None or started.method.lower() == "eagle3":
        return
    yield Finding(
        f"The server drafts with method {started.method}, and its drafter is an EAGLE-3 head",
        (
            seen(f"the start line: {started.start_line}", log.path),
            seen(f"the drafter's class was resolved as {classes[0]}", log.path),
        ),
        'Use "method": "eagle3" in --speculative-config.',
        confidence=0.9,
    )
