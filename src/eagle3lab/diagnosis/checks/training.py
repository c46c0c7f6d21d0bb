"""Training: whether the head is wired right and simply predicts badly, or was trained for something else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from eagle3lab.diagnosis.framework import SkipCheck, check
from eagle3lab.diagnosis.inputs import (
    Config,
    DraftedIds,
    DrafterFolder,
    Earlier,
    Target,
    TargetFolder,
    Tensors,
    Text,
)
from eagle3lab.diagnosis.model import Finding, Impact, Severity, seen

if TYPE_CHECKING:
    from eagle3lab.diagnosis.log import Log
    from eagle3lab.engines.launch.reading import Launch

_ANOTHER = "Serve the head with the target it was trained for."
# With one of these the map does not say what can be drafted.
_WRONG_MAP = ("vocab.absolute", "vocab.double-offset", "vocab.missing", "vocab.zero", "vocab.range")
# Below this share of a text, even a perfect head of this vocabulary is worth little.
_POOR = 0.7
_WEAK = ("weak-training", "partial", "below-expectation", "recurrence-cliff", "dead-positions")
_FOLDERS = frozenset(
    {
        "models",
        "model",
        "checkpoints",
        "checkpoint",
        "ckpt",
        "data",
        "weights",
        "output",
        "outputs",
        "runs",
        "home",
        "mnt",
    }
)
_NAME = re.compile(r"[A-Za-z][\w.-]*/[\w.-]*[A-Za-z][\w.-]*\Z")


@check(
    "E3L-T02",
    "training.pairing",
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="The head predicts another model's text: fewer drafts are accepted.",
)
def pairing(config: Config, target: Target | None, launch: Launch | None) -> Iterator[Finding]:
    """The head was trained for another target than the one being served.

    Seen: The drafter's config names its verifier, and the target's name is another.
    Why: A head of the base or instruct model is served with a finetune or a distilled model of the same shape.
    Effect: Shapes fit, so nothing complains; acceptance falls with the distance between the two models.
    Repair: Serve the head with its own target, or train one on this target's answers.
    Sources: speculators `speculators_config.verifier.name_or_path`.
    """
    trained = config.verifier
    if trained is None:
        raise SkipCheck("the drafter does not name the target it was trained for")
    names = [target.name if target else None, launch.model if launch else None]
    served = next((name for name in names if name and _is_hub_name(name)), None)
    if served is None or not _is_hub_name(trained):
        raise SkipCheck("the name of the target being served is not known")
    if _bare(served) == _bare(trained):
        return
    yield Finding(
        f"The head was trained for {trained}, and {served} is served",
        (
            seen(f"speculators_config.verifier.name_or_path is {trained}", "config.json"),
            seen(f"the target is {served}"),
        ),
        f"Serve it with {trained}, or train a head for {served}.",
        confidence=0.85,
    )


def _is_hub_name(name: str) -> bool:
    """Whether this is `organisation/model`, not a path that looks like one."""
    return _NAME.fullmatch(name) is not None and name.partition("/")[0].lower() not in _FOLDERS


def _bare(name: str) -> str:
    return name.rstrip("/").rsplit("/", 1)[-1].lower()


@check(
    "E3L-T03",
    "training.pairing",
    after=("vocab.range",),
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="Ids stand for other tokens, or the embeddings do not fit.",
)
def tokenizer(config: Config, target: Target) -> Iterator[Finding]:
    """The drafter was made for another vocabulary than the target's.

    Seen: `vocab_size` of the drafter and of the target differ.
    Why: The tokenizer was extended after the training, or the head is for another model of the family.
    Effect: Engines replace the embeddings; where the drafter ships its own, loading stops on the row count.
    Repair: Serve the head with its own target.
    Sources: SGLang `layers/vocab_parallel_embedding.py`.
    """
    own, other = config.vocab_size, target.vocab_size
    if other is None or own == other:
        return
    yield Finding(
        f"The drafter was made for {own} tokens, and the target has {other}",
        (seen(f"vocab_size is {own} ({config.sources['vocab_size']})", "config.json"),
         seen(f"the target's vocab_size is {other}")),
        "Serve the head with the target it was trained for.",
        confidence=0.75,
    )  # fmt: skip


@check(
    "E3L-T04",
    "training.pairing",
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="The head predicts another model's text: fewer drafts are accepted.",
)
def embeddings_of_another_target(tensors: Tensors, config: Config, target: TargetFolder) -> Iterator[Finding]:
    """The drafter's frozen embeddings are not this target's.

    Seen: Both folders hold embeddings of the same shape and dtype; rows are alike, and few are equal.
    Why: Trainers copy the target's embeddings and freeze them, so they tell which target a head was trained with.
    Effect: The target is a finetune of the one in training, or the other way round.
    Repair: Serve the head with its own target, or train one on this target's answers.
    Sources: speculators saves embed_tokens with the drafter; `embed_requires_grad` is false by default.
    """
    from eagle3lab.diagnosis.rows import likeness

    weights = target.checkpoint is not None and bool(target.checkpoint.tensors)
    if not weights or config.raw.get("embed_requires_grad") is True:
        raise SkipCheck("the target's weights are not given, or the drafter's embeddings were trained")
    name = tensors.find("embed_tokens.weight")
    found = likeness(tensors.checkpoint, name, target.checkpoint) if name and target.checkpoint else None
    if found is None:
        raise SkipCheck("there are no two embeddings of the same shape and dtype to compare")
    equal, cosine = found
    if equal >= 0.5 or cosine < 0.5:
        return  # the same ones; or never trained, which is another matter
    yield Finding(
        "The drafter's embeddings are a relative of this target's, not the same",
        (
            seen(
                f"{equal:.0%} of the rows compared are equal, their median cosine is {cosine:.2f}",
                tensor=name,
            ),
        ),
        "Serve the head with the target it was trained for, or train one on this target's answers.",
        confidence=0.75,
    )


@check(
    "E3L-T05",
    "training.pairing",
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="Ids stand for other tokens than in training.",
)
def token_table(folder: DrafterFolder, target: TargetFolder) -> Iterator[Finding]:
    """The tokenizer beside the drafter is not the target's.

    Seen: Both folders hold a tokenizer, and some tokens have another id or are absent in the target's.
    Why: The head was trained with another model of the family, or the tokenizer was rebuilt since.
    Effect: The head proposes ids that mean other tokens to this target.
    Repair: Serve the head with its own target; tokens that the target has on top do no harm.
    Sources: transformers `tokenizer.json`: `model.vocab` and `added_tokens`.
    """
    from eagle3lab.diagnosis.tokenizer import TOKENIZER, same_table, token_ids

    same = same_table(folder.path, target.path)
    if same is None:
        raise SkipCheck("there are no two tokenizers to compare")
    if same:
        return
    own, theirs = token_ids(folder.path), token_ids(target.path)
    if not own or not theirs:
        raise SkipCheck("the tokenizers differ in bytes, and one of them lists no tokens")
    moved = [token for token, at in own.items() if theirs.get(token, at) != at]
    gone = [token for token in own if token not in theirs]
    if not moved and not gone:
        return
    share = (len(moved) + len(gone)) / len(own)
    examples = ", ".join(repr(token) for token in (moved + gone)[:4])
    yield Finding(
        "The tokenizer beside the drafter is not the target's",
        (
            seen(
                f"of {len(own)} tokens, {len(moved)} have another id in the target and {len(gone)} are absent: "
                f"{examples}",
                TOKENIZER,
            ),
        ),
        _ANOTHER,
        confidence=0.85 if share > 0.01 else 0.5,
    )


@check(
    "E3L-T06",
    "training.pairing",
    severity=Severity.NOTE,
    impact=Impact.PARTIAL,
    effect="The head saw other text around each message than it is served with: somewhat fewer drafts are accepted.",
)
def template(folder: DrafterFolder, target: TargetFolder) -> Iterator[Finding]:
    """The chat template beside the drafter is not the target's.

    Seen: Both folders hold a chat template, and the two differ.
    Why: The template was changed after training, or the head was trained on text without it.
    Effect: Every answer begins after tokens that the head never saw there; the loss is mostly small.
    Repair: Serve the template of the training (`--chat-template`), or train on answers in the one being served.
    Sources: transformers `chat_template.jinja` and `tokenizer_config.json`.
    """
    from eagle3lab.diagnosis.tokenizer import chat_template

    own, theirs = chat_template(folder.path), chat_template(target.path)
    if own is None or theirs is None:
        raise SkipCheck("there are no two chat templates to compare")
    if own == theirs:
        return
    at = next(
        (n for n, (a, b) in enumerate(zip(own.split("\n"), theirs.split("\n"), strict=False), 1) if a != b),
        min(own.count("\n"), theirs.count("\n")) + 2,
    )
    yield Finding(
        "The chat template beside the drafter is not the target's",
        (seen(f"they first differ in line {at}; {len(own)} against {len(theirs)} characters"),),
        "Serve the template of the training, or train on answers in the one being served.",
        confidence=0.5,
    )


@check(
    "E3L-T07",
    "training.pairing",
    after=_WRONG_MAP,
    severity=Severity.NOTE,
    impact=Impact.PARTIAL,
    effect="The last token of each answer is never drafted: one verify step more an answer.",
)
def end_of_answer(target: TargetFolder, drafted: DraftedIds) -> Iterator[Finding]:
    """The draft vocabulary has no token that ends an answer.

    Seen: None of the target's end tokens is among the ids that d2t stands for.
    Why: The draft vocabulary was counted over text without the chat template.
    Effect: The head can never propose the end. It costs little by itself; it is a sign of training on other text.
    Repair: Count the draft vocabulary over answers in the chat template, and train again.
    Sources: `eos_token_id` of the target's generation_config.json or config.json.
    """
    from eagle3lab.diagnosis.tokenizer import end_tokens

    ends = end_tokens(target.path)
    if not ends:
        raise SkipCheck("the target names no end token")
    if any(one in drafted for one in ends):
        return
    yield Finding(
        "The draft vocabulary has no token that ends an answer",
        (seen(f"the target ends an answer with {', '.join(map(str, ends))}, which d2t never stands for"),),
        "Count the draft vocabulary over answers in the chat template, and train again.",
        confidence=0.6,
    )


@check(
    "E3L-T08",
    "training.weak",
    after=_WRONG_MAP,
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="Tokens outside the draft vocabulary are never drafted: each ends a run of accepted drafts.",
)
def coverage(text: Text, drafted: DraftedIds, launch: Launch | None) -> Iterator[Finding]:
    """The draft vocabulary covers too little of the text being served.

    Seen: Of the text given, less than 70 % of the tokens are in the draft vocabulary.
    Why: The vocabulary was counted over another language or domain, or is too small.
    Effect: However well the head predicts, its runs of accepted drafts end at the next uncovered token.
    Repair: Count the draft vocabulary over text like that being served, and train again.
    Sources: `eagle3lab.vocabulary.coverage`: the accept length that this vocabulary allows at most.
    """
    import numpy as np

    from eagle3lab.vocabulary.coverage import measure_coverage

    steps = (launch.steps if launch else None) or 3
    tokenizer, tokens = text.tokenizer, text.tokens
    found = measure_coverage(tokens, np.fromiter(drafted, dtype=np.int64), steps)
    if found.coverage >= _POOR:
        return
    limit = found.accept_length_ceiling
    missing = ", ".join(str(tokenizer.show(int(one)) or one) for one in found.uncovered_ids[:6])
    yield Finding(
        f"The draft vocabulary covers {found.coverage:.0%} of the text",
        (
            seen(
                f"{found.covered} of {found.tokens} tokens; the most frequent outside are {missing}",
                text.name,
            ),
            *(
                [seen(f"with {steps} draft steps the accept length is at most {limit:.2f} on this text")]
                if limit is not None
                else []
            ),
        ),
        "Count the draft vocabulary over text like that being served, and train again.",
        confidence=0.8,
    )


@check(
    "E3L-T01",
    "training.weak",
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="The head is wired right and predicts badly.",
)
def weak(log: Log, earlier: Earlier, tensors: Tensors | None) -> Iterator[Finding]:
    """Wired right, and acceptance decays smoothly from a low start.

    Seen: Some drafts are accepted, later positions fall off smoothly, and no other fault explains the loss.
    Why: Too little training, unsuitable data, another chat template or reasoning mode than in training.
    Effect: Low acceptance at every position, with the shape of a working drafter.
    Repair: Train longer, or on this target's own answers in the template being served.
    Sources: `eagle3lab.acceptance.signature`; fact sheets of the trainers' per-position accuracies.
    """
    observed = log.observed
    if observed.signature not in _WEAK:
        return
    if any(one.severity is not Severity.NOTE and one.impact is not Impact.NONE for one in earlier):
        raise SkipCheck("another finding explains the loss")
    sure = observed.signature == "weak-training"
    later = observed.signature in ("recurrence-cliff", "dead-positions")
    layers = tensors.layers if tensors is not None else 1
    yield Finding(
        "The first draft is good and later ones are not: the head fails on what it hands itself"
        if later
        else "The head is wired right as far as can be seen, and predicts badly",
        (
            seen(observed.reason, log.path),
            *([seen("positions: " + ", ".join(f"{share:.2f}" for share in observed.per_position))]
              if observed.per_position else []),
            *([seen(f"the weights hold {layers} decoder layers")] if later and layers > 1 else []),
        ),
        "Train with as many steps as are drafted (training-time test), and compare with one draft step."
        if later
        else "Train longer, or on this target's own answers in the chat template being served.",
        confidence=0.7 if sure else 0.5,
    )  # fmt: skip


_COMPLETIONS = re.compile(r'"POST /(?:v1/completions|generate)\b[^"]{0,40}" 200')
_CHATS = re.compile(r'"POST /v1/(?:chat/completions|messages|responses)\b')


@check(
    "E3L-T09",
    "training.pairing",
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="The head sees text without the chat template that it was trained on: it predicts next to nothing.",
)
def raw_prompts(log: Log, earlier: Earlier) -> Iterator[Finding]:
    """The requests were sent as raw prompts, without the chat template.

    Seen: Acceptance is poor, nothing else explains it, and the log's requests all go to /v1/completions or /generate.
    Why: Benchmarks send raw prompts by default, and heads are trained on answers in the chat template.
    Effect: Between one and 1.2 tokens a step for a head that reaches 2.5 with the template.
    Repair: Send the requests to /v1/chat/completions, or apply the template to the prompts.
    Sources: InferenceX#1737: 1.09 with raw prompts, 2.3 to 2.7 with the template.
    """
    if log.observed.signature not in (*_WEAK, "dead", "near-dead", "random-head"):
        raise SkipCheck("acceptance is not poor, or was not observed")
    if any(
        one.severity is not Severity.NOTE and one.impact is not Impact.NONE
        for one in earlier
        if one.fault != "training.weak"
    ):
        raise SkipCheck("another finding explains the loss")
    from eagle3lab.acceptance.lines import read_lines

    sent = 0
    for line in read_lines(log.path):
        if _CHATS.search(line.text):
            return
        sent += _COMPLETIONS.search(line.text) is not None
    if not sent:
        return
    yield Finding(
        "The requests are raw prompts: were they in the chat template that the head was trained on?",
        (
            seen(
                f"{sent} requests went to /v1/completions or /generate, none to /v1/chat/completions",
                log.path,
            ),
            seen(log.observed.reason, log.path),
        ),
        "Send the same requests to /v1/chat/completions, and compare before blaming the head.",
        confidence=0.7,
    )
