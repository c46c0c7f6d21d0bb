"""Flags: whether the launch command asks for what was intended."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3lab.diagnosis.framework import SkipCheck, check, listed
from eagle3lab.diagnosis.inputs import Algorithm, Earlier, Head, OwnMtp, Sglang, SglangRelease
from eagle3lab.diagnosis.log import Log
from eagle3lab.diagnosis.model import Finding, Impact, Severity, seen
from eagle3lab.engines.launch.reading import Launch
from eagle3lab.engines.release import or_later

_EAGLE = ("EAGLE", "EAGLE3", "NEXTN")


@check(
    "E3L-G01",
    "flags.draft-path",
    impact=Impact.STOPS,
    effect="The target is loaded a second time as the drafter, and the server stops.",
)
def draft_path(launch: Launch, algorithm: Algorithm) -> Iterator[Finding]:
    """EAGLE3 without --speculative-draft-model-path.

    Seen: The command says EAGLE3 and names no drafter.
    Why: EAGLE without a path is right for targets with prediction layers of their own (MTP), so nothing checks it.
    Effect: The target is taken for the drafter and has no set_embed or hot_token_id: AttributeError.
    Repair: Give `--speculative-draft-model-path`.
    Sources: SGLang issue 36528.
    """
    if launch.drafter is not None or algorithm not in ("EAGLE3", "eagle3"):
        return
    if launch.engine == "vllm":
        missing, fix = (
            '"model" in --speculative-config',
            'Add "model" with the drafter\'s folder to --speculative-config.',
        )
    else:
        missing, fix = (
            "--speculative-draft-model-path",
            "Add --speculative-draft-model-path with the drafter's folder.",
        )
    yield Finding(
        "The command asks for EAGLE3 and names no drafter",
        (seen(f"{missing} is not given"),),
        fix,
        confidence=0.98,
    )


@check(
    "E3L-G02",
    "flags.method",
    effect="The head is not run as what it is: the server stops, or drafts nothing.",
)
def method(launch: Launch, head: Head | None) -> Iterator[Finding]:
    """The speculative method named is for another kind of drafter, or none is named.

    Seen: A drafter is given and no algorithm is, or the algorithm is for stand-alone models, n-grams or other heads.
    Why: The option was forgotten, or the command was made for another drafter.
    Effect: Without an algorithm SGLang drafts nothing, whatever the other options say; with another method the head
        is loaded as something it is not.
    Repair: `--speculative-algorithm EAGLE3` (SGLang), `"method": "eagle3"` (vLLM).
    Sources: SGLang `server_args.py`; vLLM `config/speculative.py`.
    """
    eagle3 = head is not None and head.eagle3
    if launch.engine == "vllm":
        if launch.algorithm not in (None, "eagle3") and eagle3:
            yield Finding(
                f"vLLM's method is {launch.algorithm}; this is an EAGLE-3 head",
                (seen(f'--speculative-config has "method": "{launch.algorithm}"'),
                 seen("the attention reads embedding and hidden state side by side, as only EAGLE-3 heads do")),
                'Use "method": "eagle3" in --speculative-config.',
                confidence=0.97,
            )  # fmt: skip
        return
    if launch.algorithm is None:
        if (eagle3 or launch.drafter is not None) and any(
            option.startswith("speculative") for option in launch.options
        ):
            yield Finding(
                "Options of speculation are given, and no --speculative-algorithm",
                (seen("--speculative-algorithm is not given"),),
                "Add --speculative-algorithm EAGLE3.",
                confidence=0.97,
                effect="Nothing is drafted.",
            )
        return
    if launch.algorithm not in _EAGLE and eagle3:
        yield Finding(
            f"--speculative-algorithm {launch.algorithm} is not for an EAGLE-3 head",
            (seen(f"--speculative-algorithm is {launch.algorithm}"),),
            "Use --speculative-algorithm EAGLE3.",
            confidence=0.95,
        )


@check(
    "E3L-G03",
    "flags.draft-tokens",
    severity=Severity.WARNING,
    impact=Impact.NONE,
    effect="The engine rewrites the number of draft tokens or stops; rates are over another number than asked for.",
)
def draft_tokens(launch: Launch, sglang: Sglang, log: Log | None) -> Iterator[Finding]:
    """Steps, topk and draft tokens do not fit together.

    Seen: A chain (topk 1) is asked for with another number of draft tokens than steps + 1, a tree with more tokens
        than it has nodes, or only some of the three are given.
    Why: The number of draft tokens counts the verified root; options were copied from a tree.
    Effect: The engine rewrites the number to steps + 1 with a warning, so rates are over that; or it stops.
    Repair: With topk 1, draft tokens = steps + 1.
    Sources: SGLang 0.5.9 `server_args.py:2363-2460`.
    """
    if launch.algorithm not in _EAGLE:
        raise SkipCheck("no EAGLE algorithm is named")
    steps, topk, tokens = launch.steps, launch.topk, launch.draft_tokens
    if steps is None and (topk is not None or tokens is not None):
        yield Finding(
            "Draft tokens or topk are given without steps, on which SGLang stops",
            (seen("--speculative-num-steps is not given"),),
            "Give --speculative-num-steps, --speculative-eagle-topk and --speculative-num-draft-tokens together.",
            severity=Severity.ERROR,
            impact=Impact.STOPS,
            confidence=0.85,
        )
    if steps is None or topk is None or tokens is None:
        return
    if topk == 1 and tokens != steps + 1:
        yield Finding(
            f"A chain of {steps} steps has {steps + 1} draft tokens, not {tokens}",
            (
                seen(f"--speculative-num-steps {steps}, --speculative-eagle-topk 1, "
                     f"--speculative-num-draft-tokens {tokens}"),
                *([seen("the log says that the number was adjusted", log.path)]
                  if log and log.server and log.server.adjusted else []),
            ),
            f"Use --speculative-num-draft-tokens {steps + 1}.",
            confidence=0.97,
        )  # fmt: skip
    nodes = 1 + topk + max(0, steps - 1) * topk * topk
    if topk > 1 and tokens > nodes:
        yield Finding(
            f"A tree of {steps} steps and topk {topk} has {nodes} nodes, fewer than {tokens} draft tokens",
            (seen(f"--speculative-num-draft-tokens is {tokens}"),),
            f"Use at most {nodes} draft tokens.",
            confidence=0.85,
        )


@check(
    "E3L-G04",
    "flags.backend",
    impact=Impact.STOPS,
    effect="The server stops while it checks its options.",
)
def backend(launch: Launch, engine: Sglang) -> Iterator[Finding]:
    """The attention backend or the page size does not fit the draft tree.

    Seen: A tree (topk > 1) with trtllm_mha, or with a page size above one on a backend that cannot do it.
    Why: Backends differ in the masks that they support; a chain needs none.
    Effect: ValueError at start.
    Repair: Use topk 1, page size 1, or another backend.
    Sources: SGLang 0.5.9 `server_args.py:2440,2458`.
    """
    if launch.algorithm not in _EAGLE or (launch.topk or 1) <= 1:
        return
    attention = launch.text("attention-backend") or launch.text("decode-attention-backend")
    if attention == "trtllm_mha":
        yield Finding(
            f"trtllm_mha drafts chains only, and topk is {launch.topk}",
            (seen("--attention-backend is trtllm_mha"), seen(f"--speculative-eagle-topk is {launch.topk}")),
            "Use --speculative-eagle-topk 1, or another --attention-backend.",
            confidence=0.98,
        )
    pages = launch.number("page-size") or 1
    paged = attention in ("flashinfer", "fa3", "triton")
    rule = "refuses a tree with large pages"
    if pages > 1 and attention is not None and not paged and engine.holds(rule):
        yield Finding(
            f"A tree with pages of {pages} tokens does not work with {attention}",
            (seen(f"--page-size is {pages}"), seen(f"--speculative-eagle-topk is {launch.topk}")),
            "Use --page-size 1 or --speculative-eagle-topk 1.",
            confidence=0.8,
        )


@check(
    "E3L-G05",
    "flags.incompatible",
    impact=Impact.STOPS,
    effect="The server stops while it checks its options.",
)
def incompatible(launch: Launch, engine: SglangRelease) -> Iterator[Finding]:
    """Another feature in the command does not go together with EAGLE3 in this release.

    Seen: LoRA is asked for on a release that allows it with NGRAM only.
    Why: The combination came later.
    Effect: ValueError at start.
    Repair: Serve without LoRA, or use a release that allows it.
    Sources: SGLang 0.5.9 `server_args.py:5338`; 0.5.20 allows it.
    """
    if launch.algorithm not in _EAGLE:
        raise SkipCheck("no EAGLE algorithm is named")
    lora = launch.has("enable-lora") or launch.has("lora-paths")
    if lora and engine.holds("refuses LoRA with EAGLE3"):
        yield Finding(
            f"SGLang {engine.number} refuses LoRA together with {launch.algorithm}",
            (
                seen("--enable-lora or --lora-paths is given"),
                seen(engine.source("refuses LoRA with EAGLE3")),
            ),
            f"Serve without LoRA, or use {or_later('allows LoRA with EAGLE3')}.",
            confidence=0.95,
        )


@check(
    "E3L-G06",
    "flags.own-mtp",
    impact=Impact.STOPS,
    effect="The layer is asked for a token map and auxiliary states that it does not have: the server stops.",
)
def own_mtp(own: OwnMtp, launch: Launch | None, algorithm: Algorithm | None) -> Iterator[Finding]:
    """The drafter is the target's own prediction layer, served as an EAGLE-3 head.

    Seen: Target and drafter are one folder, or the drafter's tensors are those of such a layer (eh_proj, enorm,
        hnorm), and the algorithm is EAGLE3.
    Why: GLM, DeepSeek, Qwen3.5 and others ship a multi-token-prediction layer, which is served with EAGLE.
    Effect: AttributeError: the class of the layer has no `set_embed` and no token map.
    Repair: `--speculative-algorithm EAGLE` (NEXTN) and no draft path; vLLM: `"method": "mtp"`.
    Sources: SGLang `models/deepseek_nextn.py`, `arg_groups/speculative_hook.py`; sgl-project/sglang#36829.
    """
    if algorithm is None or algorithm.upper() != "EAGLE3":
        return
    vllm = launch is not None and launch.engine == "vllm"
    yield Finding(
        "The drafter is the target's own prediction layer, and it is served as an EAGLE-3 head",
        (*map(seen, own.seen), seen(f"the algorithm is {algorithm}")),
        'Use "method": "mtp" in --speculative-config, without "model".'
        if vllm
        else "Use --speculative-algorithm EAGLE (NEXTN is another name for it) and leave out the draft path.",
        confidence=0.95,
    )


@check(
    "E3L-G07",
    "flags.incompatible",
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="A variable of the command may change what target or drafter compute.",
)
def unweighed(launch: Launch, log: Log, earlier: Earlier) -> Iterator[Finding]:
    """Acceptance is poor, nothing explains it, and the command sets variables whose effect is not known here.

    Seen: Variables of the engine or of a plug-in for other hardware (VLLM_ASCEND_*, SGLANG_*) are set, and the log
        shows poor acceptance that no file explains.
    Why: Such switches change parallelism, kernels or precision, and seldom are tried with speculation.
    Effect: Unknown; with vLLM-Ascend's FLASHCOMM1 the first position fell from 0.6 to 0.2.
    Repair: Serve once without each of them.
    Sources: vllm-project/vllm-ascend#5825.
    """
    names = launch.unweighed()
    if not names:
        return
    if log.observed.signature not in _POOR or any(one.severity is not Severity.NOTE for one in earlier):
        raise SkipCheck("acceptance is not poor, or another finding explains it")
    yield Finding(
        f"The command sets what is not weighed here: {listed(names)}",
        (
            seen(log.observed.reason, log.path),
            *(seen(f"{name}={launch.environment[name]}") for name in names[:4]),
        ),
        f"Serve once without {listed(names)}, and compare.",
        confidence=0.6,
    )


_POOR = (
    "dead",
    "near-dead",
    "random-head",
    "partial",
    "weak-training",
    "below-expectation",
    "recurrence-cliff",
)
