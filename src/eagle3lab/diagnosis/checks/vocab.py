"""Vocab: what the draft-to-target token map makes of the drafter's choices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from eagle3lab.diagnosis.framework import SkipCheck, check
from eagle3lab.diagnosis.inputs import Algorithm, Config, DraftVocabulary, Engine, Sglang, Tensors
from eagle3lab.diagnosis.model import Finding, Impact, Severity, seen
from eagle3lab.diagnosis.releases import skipped

if TYPE_CHECKING:
    from eagle3lab.engines.extract.vllm import VllmFacts
    from eagle3lab.engines.launch.reading import Launch
    from eagle3lab.vocabulary.token_map import TokenMapReport

_FILES = ("files.unindexed-shard", "files.stale-safetensors")
_SHIFTED = "Draft ids are translated to other tokens than the head means: nothing but luck is accepted."


def _report(vocabulary: DraftVocabulary, fault: str) -> TokenMapReport | None:
    """The analysis of the map if it names this fault."""
    if vocabulary.proven is not None:
        return None
    report = vocabulary.map.report
    return report if report.fault == fault else None


def _refuse_whole_head(config: Config) -> None:
    """Skip a head that is whole by its own config: a target with more tokens is another matter than a map."""
    if config.draft_vocab_size in (None, config.vocab_size):
        raise SkipCheck("the draft vocabulary is not reduced, by the drafter's own config")


def _found(vocabulary: DraftVocabulary, report: TokenMapReport, title: str, otherwise: str) -> Finding:
    d2t = vocabulary.map.d2t
    evidence = tuple(seen(text, tensor=d2t.name if d2t else None) for text in report.evidence)
    fix = f"Write d2t again: {report.repair.reason}." if report.repair else otherwise
    return Finding(title, evidence, fix, confidence=report.confidence)


@check("E3L-V01", "vocab.absolute", effect=_SHIFTED)
def absolute(vocabulary: DraftVocabulary) -> Iterator[Finding]:
    """d2t holds absolute target ids.

    Seen: d2t itself lists the tokens that t2d marks, or is the only reading that stays inside the vocabulary.
    Why: A converter stored the target ids instead of their distance from the draft id.
    Effect: Engines add arange, so every id but the first is shifted, the later ones beyond the vocabulary.
    Repair: Subtract arange from d2t, once.
    Sources: SGLang `models/llama_eagle3.py`: hot_token_id = d2t + arange; all trainers write offsets.
    """
    if report := _report(vocabulary, "vocab.absolute"):
        yield _found(
            vocabulary, report, "d2t holds absolute ids where engines add arange", "Subtract arange from d2t."
        )


@check("E3L-V02", "vocab.double-offset", effect=_SHIFTED)
def double_offset(vocabulary: DraftVocabulary) -> Iterator[Finding]:
    """The position was subtracted twice: arange was subtracted from a d2t that already held offsets.

    Seen: d2t + 2·arange lists the tokens that t2d marks; d2t + arange repeats or leaves the vocabulary.
    Why: Someone took offsets for absolute ids and subtracted arange a second time.
    Effect: Engines get the former offsets as ids: the same low ids again and again.
    Repair: Add arange to d2t, once.
    Sources: The case study; SGLang `models/llama_eagle3.py`.
    """
    if report := _report(vocabulary, "vocab.double-offset"):
        yield _found(vocabulary, report, "arange was subtracted from d2t twice", "Add arange to d2t once.")


@check(
    "E3L-V08",
    "vocab.discarded",
    severity=Severity.WARNING,
    impact=Impact.NONE,
    effect="The map given by the option does nothing; the drafter's own is used.",
)
def discarded(
    launch: Launch, sglang: Sglang, algorithm: Algorithm | None, tensors: Tensors | None
) -> Iterator[Finding]:
    """A token map given by option is ignored.

    Seen: `--speculative-token-map` stands beside `--speculative-algorithm EAGLE3`.
    Why: The option is for EAGLE-2 heads with a full vocabulary; an EAGLE-3 head brings its own map.
    Effect: None on a head with a d2t; a head without one keeps draft ids as target ids.
    Repair: Leave the option out, and store the map in the head as d2t.
    Sources: SGLang `speculative/eagle_worker.py:155-182` (0.5.9): ignored with a warning.
    """
    if algorithm != "EAGLE3":
        raise SkipCheck("the algorithm is not EAGLE3")
    if launch.has("speculative-token-map"):
        lacking = tensors is not None and tensors.find("d2t") is None
        yield Finding(
            "--speculative-token-map is ignored with EAGLE3",
            (seen("--speculative-token-map is given"),),
            "Leave it out; an EAGLE-3 head's own d2t is used.",
            severity=Severity.ERROR if lacking else Severity.WARNING,
            impact=Impact.ZERO if lacking else Impact.NONE,
        )


@check("E3L-V03", "vocab.missing", after=(*_FILES, "vocab.discarded"), effect=_SHIFTED)
def missing(vocabulary: DraftVocabulary, config: Config) -> Iterator[Finding]:
    """The draft vocabulary is reduced and there is no d2t.

    Seen: lm_head has fewer rows than the target has tokens, and no tensor is a token map.
    Why: The map was left in a side file, or a converter kept it only together with t2d.
    Effect: Engines from 0.4.9 on take draft ids for target ids: tokens 0 to D − 1. Earlier ones stop.
    Repair: Store the map that the head was trained with as d2t.
    Sources: SGLang `models/llama_eagle3.py`: hot_token_id stays None; speculators' converter before 0.5.
    """
    _refuse_whole_head(config)
    if report := _report(vocabulary, "vocab.missing"):
        yield _found(
            vocabulary,
            report,
            "The draft vocabulary is reduced, and there is no d2t",
            "Store the map of the training run as d2t: int64, target id − draft id.",
        )


@check("E3L-V04", "vocab.zero", effect=_SHIFTED)
def zero(vocabulary: DraftVocabulary, config: Config) -> Iterator[Finding]:
    """d2t is all zeros although the draft vocabulary is reduced.

    Seen: Every entry of d2t is zero, and the target has more tokens than the head has rows.
    Why: The buffer is made of zeros by the trainer's model class, and the mapping was never loaded into it.
    Effect: Draft ids are taken for target ids; a few low ids are right by luck.
    Repair: Store the map of the training run.
    Sources: SafeAILab `model/cnets.py:538`; AngelSlim `llama_eagle3.py:560`; ModelOpt `megatron_eagle.py:512`.
    """
    _refuse_whole_head(config)
    if report := _report(vocabulary, "vocab.zero"):
        yield _found(
            vocabulary,
            report,
            "d2t is all zeros: the mapping was never filled in",
            "Store the map of the training run as d2t: int64, target id − draft id.",
        )


@check("E3L-V05", "vocab.range", effect=_SHIFTED)
def out_of_range(vocabulary: DraftVocabulary) -> Iterator[Finding]:
    """d2t + arange leaves the vocabulary or repeats a token.

    Seen: The ids that an engine computes are not distinct tokens of the target, and no other reading explains it.
    Why: The map is of another tokenizer, or is damaged.
    Effect: An index outside the embedding stops a GPU server at the first such draft; repeated ids lose tokens.
    Repair: Store the map of the run that trained this head, for this target's tokenizer.
    Sources: SGLang `layers/vocab_parallel_embedding.py:472-493` (0.5.9).
    """
    if report := _report(vocabulary, "vocab.range"):
        yield _found(
            vocabulary,
            report,
            "The ids that engines compute are not distinct tokens of the target",
            "Store the map of the run that trained this head, for this target's tokenizer.",
        )


@check("E3L-V06", "vocab.dtype", effect=_SHIFTED)
def dtype(vocabulary: DraftVocabulary) -> Iterator[Finding]:
    """d2t is not a tensor of integers.

    Seen: d2t is stored as a float; bf16 has eight bits of mantissa, so offsets above 256 are rounded.
    Why: A blanket cast of the whole state dict.
    Effect: A float cannot index; cast back, most ids are off by up to half a rounding step.
    Repair: Store the original integers; rounded ones can be recovered from t2d only.
    Sources: SGLang `models/llama_eagle3.py`.
    """
    if report := _report(vocabulary, "vocab.dtype"):
        yield _found(
            vocabulary, report, "d2t is not a tensor of integers", "Store d2t as int64, from before the cast."
        )


@check(
    "E3L-V07",
    "vocab.t2d",
    severity=Severity.WARNING,
    effect="If the head belongs to t2d's vocabulary, most rows stand for other tokens than d2t says.",
)
def disagreement(
    vocabulary: DraftVocabulary, vllm: VllmFacts | None, engine: Engine | None
) -> Iterator[Finding]:
    """t2d and d2t describe different draft vocabularies.

    Seen: The tokens that t2d marks and those that d2t names are two different sets.
    Why: One of them, and perhaps the head, comes from another training run.
    Effect: Engines read d2t only; where the head was trained with the other set, acceptance is near chance. On vLLM,
        whose loader is seen to leave t2d aside, this is a note.
    Repair: Take both tensors and lm_head from the same run.
    Sources: SpecForge `compact_teacher.py:217`: nonzero(t2d) == d2t + arange. vLLM `models/llama_eagle3.py`: t2d is
        skipped; measured on 0.32.0, the accept length is that of the head with its own t2d.
    """
    if report := _report(vocabulary, "vocab.t2d"):
        found = _found(
            vocabulary,
            report,
            "t2d and d2t describe different draft vocabularies",
            "Take d2t, t2d and lm_head from the same training run.",
        )
        rule = skipped(vllm, "t2d") if vllm else None
        if rule is None:
            yield found
        else:
            yield replace(
                found,
                evidence=(*found.evidence, seen(f"{engine} does not read t2d ({rule.source})")),
                severity=Severity.NOTE,
                impact=Impact.NONE,
                effect="None by itself; if the head belongs to t2d's vocabulary, its rows stand for other tokens.",
            )
