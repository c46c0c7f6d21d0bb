"""Flags: whether the launch command asks for what was intended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from eagle3lab.diagnosis.framework import SkipCheck, check, listed
from eagle3lab.diagnosis.inputs import Algorithm, Earlier, Head, OwnMtp, Refused, Sglang
from eagle3lab.diagnosis.model import Finding, Impact, Severity, seen

if TYPE_CHECKING:
    from eagle3lab.diagnosis.log import Log
    from eagle3lab.engines.arguments.refusals import DefiniteRefusal
    from eagle3lab.engines.launch.reading import Launch

_LATE = "The server stops when its weights are loaded and it makes its attention backends."
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
    effect="The engine rewrites the number of draft tokens; rates are over another number than asked for.",
)
def draft_tokens(launch: Launch, sglang: Sglang, log: Log | None) -> Iterator[Finding]:
    """Steps, topk and draft tokens do not fit together.

    Seen: A chain (topk 1) is asked for with another number of draft tokens than steps + 1, or a tree with more tokens
        than it has nodes.
    Why: The number of draft tokens counts the verified root; options were copied from a tree.
    Effect: The engine rewrites the number to steps + 1 with a warning, so rates are over that.
    Repair: With topk 1, draft tokens = steps + 1.
    Sources: SGLang 0.5.9 `server_args.py:2363-2460`.
    """
    if launch.algorithm not in _EAGLE:
        raise SkipCheck("no EAGLE algorithm is named")
    steps, topk, tokens = launch.steps, launch.topk, launch.draft_tokens
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
def backend(sglang: Sglang, refused: Refused) -> Iterator[Finding]:
    """The attention backend or the page size does not fit the target, the head or the draft tree.

    Seen: The release's own argument checks, or the attention backends that it makes after the load, raise an exception
        with these options, this target and this head, whatever GPU it runs on.
    Why: Backends differ in the models that they serve and in the masks that they support; a chain needs none.
    Effect: The server stops while it checks its options, or minutes later, when the weights are loaded.
    Repair: The change with which nothing is refused: a backend of the drafter's own, a chain, another backend.
    Sources: The argument checks, the registry of attention backends and the factory of the drafter's, of each release.
    """
    yield from _refusals(sglang, [one for one in refused if one.fault == "flags.backend"])


@check(
    "E3L-G05",
    "flags.incompatible",
    others=("flags.draft-tokens", "flags.draft-path", "flags.method"),
    impact=Impact.STOPS,
    effect="The server stops while it checks its options.",
)
def incompatible(sglang: Sglang, refused: Refused) -> Iterator[Finding]:
    """The release refuses the command.

    Seen: The release's own argument checks raise an exception with these options and this target.
    Why: Two features do not go together in this release (LoRA, pipeline parallelism, disaggregation), or it does not
        know an option or a value.
    Effect: The server stops while it checks its options.
    Repair: The change with which the same checks refuse nothing, or the release that starts with the command.
    Sources: The functions that resolve and check arguments, read from each release.
    """
    # A context that the drafter does not reach is E3L-L07's.
    elsewhere = ("flags.backend", "layer.context")
    yield from _refusals(sglang, [one for one in refused if one.fault not in elsewhere])


def _refusals(sglang: Sglang, refused: Sequence[DefiniteRefusal]) -> Iterator[Finding]:
    for one in refused:
        late = one.refusal.stage == "load"
        where = f" ({one.refusal.source})" if one.refusal.source else ""
        yield Finding(
            f"{sglang if sglang.number else 'SGLang'} refuses this command"
            + (" after the load" if late else ""),
            (
                seen(f"{one.text}{where}"),
                *([seen(f"the command has {', '.join(one.flags)}")] if one.flags else []),
            ),
            one.fix,
            fault=one.fault,
            confidence=0.97 if sglang.number else 0.8,
            effect=_LATE if late else "",
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
