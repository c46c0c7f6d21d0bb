"""A drafter tried out beside the specimen's target, in the plain greedy loop: what a fault costs, in seconds.

This is not a server. It follows the engines' semantics and counts as they do, so it shows what a checkpoint can reach
when it is wired as its config says; what an engine makes of it is measured by serving it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from eagle3lab.specimen.greedy import Speculation, speculate
from eagle3lab.specimen.paths import specimen_dir


@dataclass(frozen=True, slots=True)
class Trial:
    """The specimen's target with some of its held-out prompts, ready to try drafters on.

    Attributes:
        target: The target, float32.
        prompts: Token ids of each prompt, chat template applied.
        stop_ids: Ids that end an answer.
    """

    target: Any
    prompts: tuple[tuple[int, ...], ...]
    stop_ids: tuple[int, ...]

    def run(
        self, drafter: Path, *, steps: int = 3, max_new_tokens: int = 48, drop: Collection[str] = ()
    ) -> Speculation:
        """Answer all prompts with `drafter` drafting.

        Args:
            drafter: Folder of a drafter for this target, in any dialect.
            steps: Draft steps before each verification (draft tokens less one).
            max_new_tokens: Length at which an answer is cut.
            drop: Tensors, named without a layer prefix, treated as if they never reached their parameter.
        """
        from eagle3lab.specimen.drafter import load_drafter

        head = load_drafter(drafter, self.target.get_input_embeddings().weight.detach(), drop=frozenset(drop))
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
    from eagle3lab.specimen.quiet import quiet

    quiet()
    from eagle3lab.specimen import build, regenerate, target, tokenizer

    folder = folder or specimen_dir()
    tok = tokenizer.load_tokenizer(folder / "target")
    by_kind: dict[str, list[str]] = {}
    for entry in build.read_prompts(folder / "prompts.jsonl"):
        by_kind.setdefault(entry["kind"], []).append(entry["prompt"])
    turns = islice(cycle(map(iter, by_kind.values())), prompts)
    chosen = [text for turn in turns if (text := next(turn, None)) is not None]
    ids = tuple(tuple(regenerate.prompt_ids(tok, text)) for text in chosen)
    return Trial(target.load_target(folder / "target"), ids, (tokenizer.END_ID,))
