"""Head: whether lm_head and the embeddings are what the engine will use, and stand for the tokens they should."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from eagle3lab.diagnosis.framework import SkipCheck, check
from eagle3lab.diagnosis.inputs import (
    Config,
    DraftVocabulary,
    Engine,
    Head,
    Sglang,
    Target,
    TargetFolder,
    Tensors,
)
from eagle3lab.diagnosis.model import Finding, Impact, Severity, seen

if TYPE_CHECKING:
    from eagle3lab.diagnosis.log import Log

_CONFIG = "config.json"
_LARGEST_JUDGED = 2**28  # bytes; a pass over it takes a second
_FILES = ("files.unindexed-shard", "files.stale-safetensors", "files.unreadable", "files.missing")


@check(
    "E3L-H01",
    "head.lm-head-missing",
    after=(*_FILES, "head-kind.not-eagle3"),
    effect="The output head is random: accept length 1.00, without a message.",
)
def lm_head_missing(config: Config, tensors: Tensors, sglang: Sglang) -> Iterator[Finding]:
    """draft_vocab_size is set and lm_head.weight is absent.

    Seen: The config states `draft_vocab_size`, and the checkpoint has no lm_head.weight.
    Why: The trainer shares the target's head where the vocabulary is not reduced, and wrote `draft_vocab_size` all
        the same.
    Effect: The class builds a head of its own because the field is not null, and nobody fills it.
    Repair: Set `draft_vocab_size` to null where the vocabulary is not reduced (the target's head is used then), or
        store the head.
    Sources: SGLang 0.5.23 `models/llama_eagle3.py:302-312`, `models/kimi_k25_eagle3.py`; issue 27829.
    """
    if config.tie_word_embeddings or config.draft_vocab_size is None or tensors.find("lm_head.weight"):
        return
    full = config.draft_vocab_size == config.vocab_size
    yield Finding(
        "There is no lm_head.weight, and draft_vocab_size makes the engine build a head of its own",
        (
            seen(
                f"draft_vocab_size is {config.draft_vocab_size}, vocab_size is {config.vocab_size}", _CONFIG
            ),
            seen("no tensor is called lm_head.weight"),
        ),
        'Set "draft_vocab_size": null: the vocabulary is not reduced, and the target\'s head is used then.'
        if full
        else "Export the drafter again with lm_head.weight.",
        confidence=0.98,
    )


@check(
    "E3L-H02",
    "head.lm-head-rows",
    effect="The engine stops at lm_head on an assertion, or translates rows that do not exist.",
    impact=Impact.STOPS,
)
def lm_head_rows(config: Config, tensors: Tensors) -> Iterator[Finding]:
    """Rows of lm_head, draft_vocab_size and the length of d2t disagree.

    Seen: Two of the three numbers differ.
    Why: The head was not pruned, the wrong head was saved, or the config is of another run.
    Effect: The vocabulary loader asserts on the row count; a map of another length shifts or loses rows.
    Repair: Take lm_head, d2t and `draft_vocab_size` from one training run.
    Sources: SGLang `layers/vocab_parallel_embedding.py:430-460`.
    """
    head, mapping = tensors.shape("lm_head.weight"), tensors.shape("d2t")
    stated = config.draft_vocab_size or config.vocab_size
    numbers = {"draft_vocab_size" if config.draft_vocab_size else "vocab_size": stated}
    if head:
        numbers["rows of lm_head"] = head[0]
    if mapping:
        numbers["length of d2t"] = mapping[0]
    if len(set(numbers.values())) == 1 or (head is None and mapping is None):
        return
    if config.tie_word_embeddings and (not mapping or mapping[0] == stated):
        raise SkipCheck("the head is tied, so its rows are not used")
    yield Finding(
        ", ".join(f"{name} {number}" for name, number in numbers.items()) + " do not agree",
        (
            seen(f"draft_vocab_size is {config.draft_vocab_size}, vocab_size {config.vocab_size}", _CONFIG),
            *(
                [seen(f"lm_head.weight is {list(head)}", tensor=tensors.find("lm_head.weight"))]
                if head
                else []
            ),
            *([seen(f"d2t has {mapping[0]} entries", tensor=tensors.find("d2t"))] if mapping else []),
        ),
        "Take lm_head, d2t and draft_vocab_size from one training run.",
    )


@check(
    "E3L-H03",
    "head.tied",
    effect="The trained head is dropped, and the first rows of the target's embeddings speak in its place.",
)
def tied(config: Config, tensors: Tensors, sglang: Sglang, target: Target | None) -> Iterator[Finding]:
    """tie_word_embeddings is true although the head is one of its own.

    Seen: `tie_word_embeddings` is true and the draft vocabulary is reduced, or the target's own head is not tied.
    Why: The flag was copied from a small target whose head is its embedding.
    Effect: lm_head becomes an alias of the embeddings, so the trained rows are dropped; up to 0.5.4 the logits are as
        wide as the vocabulary and ids run past d2t, which stops a GPU server.
    Repair: Set `tie_word_embeddings` to false.
    Sources: SGLang `models/llama_eagle3.py`: `if self.config.tie_word_embeddings`; AngelSlim's configs.
    """
    if not config.tie_word_embeddings:
        return
    reduced = config.draft_vocab_size is not None and config.draft_vocab_size < config.vocab_size
    other = target is not None and not target.tied
    own = tensors.find("lm_head.weight") is not None
    if not reduced and not (other and own):
        return
    yield Finding(
        "tie_word_embeddings is true, so the drafter's own head is dropped",
        (
            seen("tie_word_embeddings is true", _CONFIG),
            seen(f"draft_vocab_size is {config.draft_vocab_size}, vocab_size {config.vocab_size}", _CONFIG)
            if reduced
            else seen("the target's own head is not tied to its embeddings"),
        ),
        'Set "tie_word_embeddings": false in the drafter\'s config.json.',
        confidence=0.98 if reduced else 0.8,
    )


@check(
    "E3L-H04",
    "head.embedding",
    after=_FILES,
    effect="The drafter embeds tokens with uninitialised memory: accept length 1.00.",
)
def own_embeddings_missing(config: Config, head: Head, tensors: Tensors, sglang: Sglang) -> Iterator[Finding]:
    """The head is narrower than the target and ships no embeddings of its own.

    Seen: `target_hidden_size` differs from `hidden_size`, and there is no embed_tokens.weight.
    Why: The exporter leaves embeddings out because engines usually share the target's.
    Effect: With different widths the engine does not share them, and nobody fills the drafter's own.
    Repair: Export the drafter with embed_tokens.weight.
    Sources: SGLang `models/llama.py:763-767` (0.5.9), `set_embed`.
    """
    if (
        not head.eagle3
        or config.target_hidden_size == config.hidden_size
        or tensors.find("embed_tokens.weight")
    ):
        return
    yield Finding(
        "The drafter needs embeddings of its own, and has none",
        (
            seen(
                f"hidden_size is {config.hidden_size}, target_hidden_size {config.target_hidden_size}",
                _CONFIG,
            ),
            seen("no tensor is called embed_tokens.weight"),
        ),
        "Export the drafter again with embed_tokens.weight.",
        confidence=0.98,
    )


@check(
    "E3L-H05",
    "head.embedding",
    effect="Ranks add up parts of two different embeddings: the drafter reads noise.",
)
def ranks_disagree(log: Log) -> Iterator[Finding]:
    """Ranks disagree about sharing the target's embeddings.

    Seen: In one server's log a rank keeps the drafter's embeddings and another shares the target's.
    Why: vLLM compares the two on each rank's part; parts that are equal on one rank are not on another.
    Effect: The sum over ranks mixes two embeddings.
    Repair: Leave embed_tokens out of the checkpoint where it should be the target's, or make it differ everywhere.
    Sources: vLLM 0.25.1 `llm_base_proposer.py:1454-1460`.
    """
    events = [event for event in log.reading.events if event.kind in ("embed_distinct", "embed_shared")]
    if len({event.kind for event in events}) < 2:
        return
    words = {"embed_distinct": "keeps the drafter's embeddings", "embed_shared": "shares the target's"}
    yield Finding(
        "Ranks disagree about whose embeddings the drafter uses",
        tuple(seen(f"{event.label or 'a rank'} {words[event.kind]}", log.path) for event in events[:8]),
        "Leave embed_tokens.weight out of the drafter, so that every rank shares the target's.",
        confidence=0.97,
    )


@check(
    "E3L-H07",
    "head.embedding",
    effect="The drafter reads other embeddings than it was trained with.",
)
def embeddings_of_its_own(config: Config, tensors: Tensors, engine: Engine) -> Iterator[Finding]:
    """The engine keeps embeddings that were never trained, or replaces ones that were.

    Seen: vLLM finds embed_tokens in the checkpoint and keeps it although it is as its initialisation left it; or
        `embed_requires_grad` is true and the engine puts the target's embeddings in place of the trained ones.
    Why: vLLM shares the target's embeddings only where the drafter ships none or equal ones; SGLang always shares
        them where the widths agree.
    Effect: Random embeddings: acceptance at chance. Replaced ones: a loss that grows with the training.
    Repair: Leave embed_tokens.weight out of the checkpoint for vLLM; serve trained embeddings with vLLM.
    Sources: SGLang 0.5.9 `models/llama.py:763-767`; vLLM `v1/spec_decode/llm_base_proposer.py`.
    """
    name = tensors.find("embed_tokens.weight")
    if name is None:
        raise SkipCheck("there are no embeddings in the checkpoint")
    if engine.kind == "vllm":
        if tensors.checkpoint.info(name).nbytes > _LARGEST_JUDGED:
            raise SkipCheck("the embeddings are too large to be judged in passing; eagle3lab inspect does it")
        from functools import partial

        from eagle3lab.checkpoint.statistics import tensor_statistics
        from eagle3lab.checkpoint.training_state import judge_tensor, sample_spectrum

        measured = tensor_statistics(tensors.checkpoint, [name]).get(name)
        judged = judge_tensor(
            tensors.checkpoint.info(name), measured, partial(sample_spectrum, tensors.checkpoint, name)
        )
        if judged.state in ("untouched", "constant", "broken"):
            yield Finding(
                "vLLM keeps the drafter's embeddings, and they were never trained",
                (seen(f"{judged.state}: {judged.reason}", tensor=name),),
                "Leave embed_tokens.weight out of the checkpoint, so that the target's are shared.",
                confidence=judged.confidence,
            )
    elif config.raw.get("embed_requires_grad") is True and (config.target_hidden_size == config.hidden_size):
        yield Finding(
            "The embeddings were trained, and SGLang puts the target's in their place",
            (
                seen("embed_requires_grad is true", _CONFIG),
                seen("the target's embeddings are shared", tensor=name),
            ),
            "Serve with vLLM, which keeps them, or train with frozen embeddings.",
            severity=Severity.WARNING,
            impact=Impact.PARTIAL,
            confidence=0.8,
        )


@check(
    "E3L-H06",
    "head.row-order",
    after=("vocab.absolute", "vocab.double-offset", "vocab.range", "vocab.dtype", "head.lm-head-rows"),
    effect="Each row of the head speaks for another token than the map says: accept length 1.00.",
)
def row_order(
    vocabulary: DraftVocabulary, tensors: Tensors, target: TargetFolder | None
) -> Iterator[Finding]:
    """Rows of lm_head do not line up with the tokens that d2t assigns them.

    Seen: Rows are byte-equal wherever their d2t entries are equal (the head was indexed with offsets); or they are
        byte-equal to rows of the embeddings or of the target's head, and not to the ones that d2t names.
    Why: A pruning step took `full_head[d2t]` for `full_head[d2t + arange]`, or rows or map were sorted alone.
    Effect: The head's choices are translated to unrelated tokens.
    Repair: Rebuild lm_head as target rows in the order of d2t + arange, or take head and map from one run.
    Sources: TorchSpec `tools/convert_to_hf.py:309` against `torchspec/data/preprocessing.py:482`.
    """
    from eagle3lab.diagnosis import rows

    if tensors.find("lm_head.weight") is None:
        raise SkipCheck("there is no lm_head to compare")
    for found in rows.misplaced(tensors.checkpoint, target.checkpoint if target else None, vocabulary.ids):
        yield Finding(
            found.title,
            tuple(seen(text, tensor=found.tensor) for text in found.evidence),
            "Rebuild lm_head from the target's head in the order of d2t + arange, or take both from one run.",
            confidence=found.confidence,
            severity=Severity.ERROR,
        )
