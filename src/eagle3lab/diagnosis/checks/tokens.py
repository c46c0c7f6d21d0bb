"""Tokens: whether drafter and target mean the same text, and how much of it the draft vocabulary can propose."""

from __future__ import annotations

from collections.abc import Iterator

from eagle3lab.diagnosis.checks.base import Found, SkipCheck, check, seen
from eagle3lab.diagnosis.evidence.investigation import Investigation
from eagle3lab.diagnosis.model import Impact, Severity

_ANOTHER = "Serve the head with the target it was trained for."
# With one of these the map does not say what can be drafted.
_WRONG_MAP = ("vocab.absolute", "vocab.double-offset", "vocab.missing", "vocab.zero", "vocab.range")
# Below this share of a text, even a perfect head of this vocabulary is worth little.
_POOR = 0.7


@check(
    "E3L-T05",
    "training.pairing",
    needs=("drafter", "target"),
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="Ids stand for other tokens than in training.",
)
def token_table(case: Investigation) -> Iterator[Found]:
    """The tokenizer beside the drafter is not the target's.

    Seen: Both folders hold a tokenizer, and some tokens have another id or are absent in the target's.
    Why: The head was trained with another model of the family, or the tokenizer was rebuilt since.
    Effect: The head proposes ids that mean other tokens to this target.
    Repair: Serve the head with its own target; tokens that the target has on top do no harm.
    Sources: transformers `tokenizer.json`: `model.vocab` and `added_tokens`.
    """
    from eagle3lab.diagnosis.evidence.tokenizer import TOKENIZER, same_table, token_ids

    assert case.drafter_path is not None and case.target_path is not None
    same = same_table(case.drafter_path, case.target_path)
    if same is None:
        raise SkipCheck("there are no two tokenizers to compare")
    if same:
        return
    own, theirs = token_ids(case.drafter_path), token_ids(case.target_path)
    if not own or not theirs:
        raise SkipCheck("the tokenizers differ in bytes, and one of them lists no tokens")
    moved = [token for token, at in own.items() if theirs.get(token, at) != at]
    gone = [token for token in own if token not in theirs]
    if not moved and not gone:
        return
    share = (len(moved) + len(gone)) / len(own)
    examples = ", ".join(repr(token) for token in (moved + gone)[:4])
    yield Found(
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
    needs=("drafter", "target"),
    severity=Severity.NOTE,
    impact=Impact.PARTIAL,
    effect="The head saw other text around each message than it is served with: somewhat fewer drafts are accepted.",
)
def template(case: Investigation) -> Iterator[Found]:
    """The chat template beside the drafter is not the target's.

    Seen: Both folders hold a chat template, and the two differ.
    Why: The template was changed after training, or the head was trained on text without it.
    Effect: Every answer begins after tokens that the head never saw there; the loss is mostly small.
    Repair: Serve the template of the training (`--chat-template`), or train on answers in the one being served.
    Sources: transformers `chat_template.jinja` and `tokenizer_config.json`.
    """
    from eagle3lab.diagnosis.evidence.tokenizer import chat_template

    assert case.drafter_path is not None and case.target_path is not None
    own, theirs = chat_template(case.drafter_path), chat_template(case.target_path)
    if own is None or theirs is None:
        raise SkipCheck("there are no two chat templates to compare")
    if own == theirs:
        return
    at = next(
        (n for n, (a, b) in enumerate(zip(own.split("\n"), theirs.split("\n"), strict=False), 1) if a != b),
        min(own.count("\n"), theirs.count("\n")) + 2,
    )
    yield Found(
        "The chat template beside the drafter is not the target's",
        (seen(f"they first differ in line {at}; {len(own)} against {len(theirs)} characters"),),
        "Serve the template of the training, or train on answers in the one being served.",
        confidence=0.5,
    )


@check(
    "E3L-T07",
    "training.pairing",
    needs=("drafter", "config", "target", "map"),
    after=_WRONG_MAP,
    severity=Severity.NOTE,
    impact=Impact.PARTIAL,
    effect="The last token of each answer is never drafted: one verify step more an answer.",
)
def end_of_answer(case: Investigation) -> Iterator[Found]:
    """The draft vocabulary has no token that ends an answer.

    Seen: None of the target's end tokens is among the ids that d2t stands for.
    Why: The draft vocabulary was counted over text without the chat template.
    Effect: The head can never propose the end. It costs little by itself; it is a sign of training on other text.
    Repair: Count the draft vocabulary over answers in the chat template, and train again.
    Sources: `eos_token_id` of the target's generation_config.json or config.json.
    """
    from eagle3lab.diagnosis.evidence.tokenizer import end_tokens

    assert case.target_path is not None and case.config is not None
    ends = end_tokens(case.target_path)
    drafted = case.drafted_ids
    if not ends or drafted is None:
        raise SkipCheck("the target names no end token, or the draft vocabulary is whole")
    if any(one in drafted for one in ends):
        return
    yield Found(
        "The draft vocabulary has no token that ends an answer",
        (seen(f"the target ends an answer with {', '.join(map(str, ends))}, which d2t never stands for"),),
        "Count the draft vocabulary over answers in the chat template, and train again.",
        confidence=0.6,
    )


@check(
    "E3L-T08",
    "training.weak",
    needs=("drafter", "config", "map", "text"),
    after=_WRONG_MAP,
    severity=Severity.WARNING,
    impact=Impact.PARTIAL,
    effect="Tokens outside the draft vocabulary are never drafted: each ends a run of accepted drafts.",
)
def coverage(case: Investigation) -> Iterator[Found]:
    """The draft vocabulary covers too little of the text being served.

    Seen: Of the text given, less than 70 % of the tokens are in the draft vocabulary.
    Why: The vocabulary was counted over another language or domain, or is too small.
    Effect: However well the head predicts, its runs of accepted drafts end at the next uncovered token.
    Repair: Count the draft vocabulary over text like that being served, and train again.
    Sources: `eagle3lab.vocabulary.coverage`: the accept length that this vocabulary allows at most.
    """
    drafted = case.drafted_ids
    if drafted is None:
        raise SkipCheck("the draft vocabulary is whole")
    import numpy as np

    from eagle3lab.vocabulary.coverage import measure_coverage

    steps = (case.launch.steps if case.launch else None) or 3
    tokenizer, tokens = case.text_tokens
    found = measure_coverage(tokens, np.fromiter(drafted, dtype=np.int64), steps)
    if found.coverage >= _POOR:
        return
    limit = found.accept_length_ceiling
    missing = ", ".join(str(tokenizer.show(int(one)) or one) for one in found.uncovered_ids[:6])
    yield Found(
        f"The draft vocabulary covers {found.coverage:.0%} of the text",
        (
            seen(
                f"{found.covered} of {found.tokens} tokens; the most frequent outside are {missing}",
                case.text_name,
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
