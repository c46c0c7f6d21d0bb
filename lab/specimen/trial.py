"""A drafter tried out beside the specimen's target in the reference: what a fault costs, in seconds.

This is not a server. It follows the engines' semantics and counts as they do. Without an engine it shows what a
checkpoint can reach when it is wired as its config says; with one, what that release would make of it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from lab.reference import (
    Speculation,
    Target,
    load_as_served,
    load_as_trained,
    load_reference_target,
    speculate,
)
from lab.specimen import build, regenerate, tokenizer
from lab.specimen.paths import specimen_dir
from lab.specimen.progress import quiet


@dataclass(frozen=True, slots=True)
class Trial:
    """The specimen's target with some of its held-out prompts, ready to try drafters on.

    Attributes:
        target: The target, float32.
        prompts: Token ids of each prompt, chat template applied.
        stop_ids: Ids that end an answer.
    """

    target: Target
    prompts: tuple[tuple[int, ...], ...]
    stop_ids: tuple[int, ...]

    def run(
        self,
        drafter: Path,
        *,
        steps: int = 3,
        max_new_tokens: int = 48,
        drop: Collection[str] = (),
        engine: str | None = None,
        algorithm: str = "EAGLE3",
    ) -> Speculation:
        """Answer all prompts with `drafter` drafting.

        Args:
            drafter: Folder of a drafter for this target, in any dialect.
            steps: Draft steps before each verification (draft tokens less one).
            max_new_tokens: Length at which an answer is cut.
            drop: Tensors, named without a layer prefix, treated as if they never reached their parameter; without
                an engine only.
            engine: The release that serves it, `sglang==0.5.9`; None for the drafter as it was trained.
            algorithm: `--speculative-algorithm`, with an engine only.

        Raises:
            EngineStops: The release would not start with it, or die.
        """
        if engine is None:
            head = load_as_trained(drafter, self.target, drop=drop)
        else:
            head = load_as_served(drafter, self.target, engine, algorithm=algorithm).drafter
        return speculate(
            self.target,
            head,
            self.prompts,
            steps=steps,
            max_new_tokens=max_new_tokens,
            stop_ids=self.stop_ids,
        )


def load_trial(prompts: int = 8, folder: Path | None = None) -> Trial:
    """The target of `folder` (the specimen by default) with `prompts` of its held-out prompts, both kinds in turn."""
    quiet()
    folder = folder or specimen_dir()
    tok = tokenizer.load_tokenizer(folder / "target")
    by_kind: dict[str, list[str]] = {}
    for entry in build.read_prompts(folder / "prompts.jsonl"):
        by_kind.setdefault(entry["kind"], []).append(entry["prompt"])
    turns = islice(cycle(map(iter, by_kind.values())), prompts)
    chosen = [text for turn in turns if (text := next(turn, None)) is not None]
    ids = tuple(tuple(regenerate.prompt_ids(tok, text)) for text in chosen)
    return Trial(load_reference_target(folder / "target"), ids, (tokenizer.END_ID,))
