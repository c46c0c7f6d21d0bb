"""What the specimen is made from: every number of its making in one place, at full size and in miniature."""

from __future__ import annotations

from dataclasses import dataclass, field

from lab.specimen.corpus import MODULES
from lab.specimen.target import TargetShape, TrainPlan


@dataclass(frozen=True, slots=True)
class Recipe:
    """How to make target and drafter.

    Attributes:
        modules: Standard modules whose documentation is the corpus.
        shape: The target's sizes; the drafter's layer has the same.
        target: Training of the target.
        head: Training of the drafter.
        draft_vocab_size: Ids the drafter can say.
        invented: Questions about objects that do not exist, answered greedily for the drafter's training.
        sampled: Of those, how many are answered a second time by sampling.
        corpus_rows: Dialogues of the corpus as they stand that the drafter is trained on besides.
        dialogues: Upper bound on training dialogues; None takes all.
        max_new_tokens: Length at which a regenerated answer is cut.
        prompts: Held-out prompts that are written out and measured.
        measure_tokens: Tokens generated for each of them.
    """

    modules: tuple[str, ...] = MODULES
    shape: TargetShape = field(default_factory=TargetShape)
    target: TrainPlan = field(default_factory=lambda: TrainPlan(steps=1700, horizon=3000, cooldown=300))
    head: TrainPlan = field(
        default_factory=lambda: TrainPlan(
            steps=6600,
            tokens_per_step=288,
            peak_rate=2e-3,
            warmup=200,
            horizon=12000,
            cooldown=1600,
            weight_decay=0.01,
            seed=21,
            report_every=100,
        )
    )
    draft_vocab_size: int = 704
    invented: int = 3000
    sampled: int = 1000
    corpus_rows: int = 1000
    dialogues: int | None = None
    max_new_tokens: int = 112
    prompts: int = 32
    measure_tokens: int = 64


FULL = Recipe()

#: The same course in well under a minute, for a test: it learns a little and is of no other use.
MINIATURE = Recipe(
    modules=("bisect", "heapq", "keyword", "math", "textwrap"),
    shape=TargetShape(
        vocab_size=320, hidden_size=64, layers=8, heads=2, kv_heads=2, head_dim=32, intermediate_size=64
    ),
    target=TrainPlan(steps=20, tokens_per_step=512, warmup=5, checkpoint_every=10, report_every=5),
    head=TrainPlan(
        steps=16, tokens_per_step=256, peak_rate=2e-3, warmup=4, checkpoint_every=8, report_every=4
    ),
    draft_vocab_size=192,
    invented=4,
    sampled=2,
    corpus_rows=8,
    dialogues=48,
    max_new_tokens=16,
    prompts=2,
    measure_tokens=8,
)
