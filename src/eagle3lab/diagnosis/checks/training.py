"""Training: whether the head is wired right and simply predicts badly, or was trained for something else."""

from __future__ import annotations

import re
from collections.abc import Iterator

from eagle3lab.diagnosis.checks.base import Found, SkipCheck, check, seen
from eagle3lab.diagnosis.evidence.investigation import Investigation
from eagle3lab.diagnosis.model import Impact, Severity

_WEAK = ("weak-training", "partial", "below-expectation")
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
    needs=("config",),
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="The head predicts another model's text: fewer drafts are accepted.",
)
def pairing(case: Investigation) -> Iterator[Found]:
    """The head was trained for another target than the one being served.

    Seen: The drafter's config names its verifier, and the target's name is another.
    Why: A head of the base or instruct model is served with a finetune or a distilled model of the same shape.
    Effect: Shapes fit, so nothing complains; acceptance falls with the distance between the two models.
    Repair: Serve the head with its own target, or train one on this target's answers.
    Sources: speculators `speculators_config.verifier.name_or_path`.
    """
    assert case.config is not None
    trained = case.config.verifier
    if trained is None:
        raise SkipCheck("the drafter does not name the target it was trained for")
    names = [case.target.name if case.target else None, case.launch.model if case.launch else None]
    served = next((name for name in names if name and _is_hub_name(name)), None)
    if served is None or not _is_hub_name(trained):
        raise SkipCheck("the name of the target being served is not known")
    if _bare(served) == _bare(trained):
        return
    yield Found(
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
    needs=("config", "target"),
    after=("vocab.range",),
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="Ids stand for other tokens, or the embeddings do not fit.",
)
def tokenizer(case: Investigation) -> Iterator[Found]:
    """The drafter was made for another vocabulary than the target's.

    Seen: `vocab_size` of the drafter and of the target differ.
    Why: The tokenizer was extended after the training, or the head is for another model of the family.
    Effect: Engines replace the embeddings; where the drafter ships its own, loading stops on the row count.
    Repair: Serve the head with its own target.
    Sources: SGLang `layers/vocab_parallel_embedding.py`.
    """
    assert case.config is not None and case.target is not None
    own, other = case.config.vocab_size, case.target.vocab_size
    if other is None or own == other:
        return
    yield Found(
        f"The drafter was made for {own} tokens, and the target has {other}",
        (seen(f"vocab_size is {own} ({case.config.sources['vocab_size']})", "config.json"),
         seen(f"the target's vocab_size is {other}")),
        "Serve the head with the target it was trained for.",
        confidence=0.75,
    )  # fmt: skip


@check(
    "E3L-T04",
    "training.pairing",
    needs=("drafter", "config", "target"),
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="The head predicts another model's text: fewer drafts are accepted.",
)
def embeddings_of_another_target(case: Investigation) -> Iterator[Found]:
    """The drafter's frozen embeddings are not this target's.

    Seen: Both folders hold embeddings of the same shape and dtype; rows are alike, and few are equal.
    Why: Trainers copy the target's embeddings and freeze them, so they tell which target a head was trained with.
    Effect: The target is a finetune of the one in training, or the other way round.
    Repair: Serve the head with its own target, or train one on this target's answers.
    Sources: speculators saves embed_tokens with the drafter; `embed_requires_grad` is false by default.
    """
    from eagle3lab.diagnosis.evidence.rows import likeness

    assert case.drafter is not None and case.config is not None
    weights = case.target_checkpoint is not None and bool(case.target_checkpoint.tensors)
    if not weights or case.config.raw.get("embed_requires_grad") is True:
        raise SkipCheck("the target's weights are not given, or the drafter's embeddings were trained")
    name = case.tensor("embed_tokens.weight")
    found = likeness(case.drafter, name, case.target_checkpoint) if name and case.target_checkpoint else None
    if found is None:
        raise SkipCheck("there are no two embeddings of the same shape and dtype to compare")
    equal, cosine = found
    if equal >= 0.5 or cosine < 0.5:
        return  # the same ones; or never trained, which is another matter
    yield Found(
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
    "E3L-T01",
    "training.weak",
    needs=("log",),
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="The head is wired right and predicts badly.",
)
def weak(case: Investigation) -> Iterator[Found]:
    """Wired right, and acceptance decays smoothly from a low start.

    Seen: Some drafts are accepted, later positions fall off smoothly, and no other fault explains the loss.
    Why: Too little training, unsuitable data, another chat template or reasoning mode than in training.
    Effect: Low acceptance at every position, with the shape of a working drafter.
    Repair: Train longer, or on this target's own answers in the template being served.
    Sources: `eagle3lab.acceptance.signature`; fact sheets of the trainers' per-position accuracies.
    """
    assert case.log is not None
    observed = case.log.observed
    if observed.signature not in _WEAK:
        return
    if any(one.severity is not Severity.NOTE and one.impact is not Impact.NONE for one in case.found):
        raise SkipCheck("another finding explains the loss")
    sure = observed.signature == "weak-training"
    yield Found(
        "The head is wired right as far as can be seen, and predicts badly",
        (
            seen(observed.reason, case.log.path),
            *([seen("positions: " + ", ".join(f"{share:.2f}" for share in observed.per_position))]
              if observed.per_position else []),
        ),
        "Train longer, or on this target's own answers in the chat template being served.",
        confidence=0.7 if sure else 0.5,
    )  # fmt: skip
