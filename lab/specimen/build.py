"""From nothing to the specimen: corpus, tokenizer, target, its own answers, drafter, measurements.

Each stage leaves its result in a work folder and takes it up again, so an interrupted run goes on where it
was.
"""

from __future__ import annotations

import hashlib
import json
import platform
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab import reference
from lab.specimen import corpus, head, regenerate, target, tokenizer
from lab.specimen.cards import write_cards
from lab.specimen.permutation import write_permutation
from lab.specimen.progress import quiet
from lab.specimen.recipe import Recipe

if TYPE_CHECKING:
    from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

#: Called with a stage, its steps done, its steps in all and a note (empty, or the newest loss).
Progress = Callable[[str, int, int, str], None]


@dataclass(frozen=True, slots=True)
class _Text:
    """The dialogues of a recipe, and those of the target's training as token ids."""

    train: list[corpus.Dialogue]
    held_out: list[corpus.Dialogue]
    train_rows: list[list[int]]
    held_out_rows: list[list[int]]


def build(out: Path, work: Path, recipe: Recipe, progress: Progress) -> dict[str, Any]:
    """Make the whole specimen under `out` and return what `training.json` says.

    Args:
        out: The specimen's folder; files of an earlier one are replaced.
        work: Training states and regenerated answers, kept to resume from.
        recipe: Every size and length.
        progress: Told of each step.
    """
    quiet()
    _quiet_speculators()
    progress("permutation target", 0, 1, "")
    write_permutation(out / "permutation")
    progress("permutation target", 1, 1, "")
    work.mkdir(parents=True, exist_ok=True)

    tok, text = _prepare(out / "target", recipe)
    model, target_curve = target.train_target(
        recipe.shape,
        recipe.target,
        text.train_rows,
        text.held_out_rows,
        work / "target.pt",
        lambda step, record: progress("target", step, recipe.target.steps, f"loss {record['loss']:.3f}"),
    )
    target.save_target(model, out / "target")
    # From here on the target is the one on disk: bfloat16 weights, computed in float32.
    model = target.load_target(out / "target")

    rows, held_out = _regenerated(model, tok, text, recipe, work, progress)
    d2t, t2d = head.vocabulary_map(rows, recipe.shape.vocab_size, recipe.draft_vocab_size)
    eagle = head.new_head(recipe.shape, out / "target", d2t, t2d)
    head_curve = head.train_head(
        eagle,
        model,
        recipe.head,
        rows,
        held_out,
        work / "head.pt",
        lambda step, record: progress("drafter", step, recipe.head.steps, f"loss {record['loss']:.3f}"),
    )
    head.save_head(eagle, out / "drafter")

    write_prompts(out / "prompts.jsonl", text.held_out, recipe.prompts)
    training = {
        "made": datetime.now(UTC).date().isoformat(),
        "versions": _versions(),
        "recipe": asdict(recipe),
        "corpus": {
            "train_dialogues": len(text.train),
            "train_tokens": sum(map(len, text.train_rows)),
            "held_out_dialogues": len(text.held_out),
        },
        "target": {
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
            "seconds": target_curve[-1]["seconds"],
            "curve": target_curve,
        },
        "drafter": {
            "parameters": sum(p.numel() for p in eagle.parameters() if p.requires_grad),
            "rows": len(rows),
            "tokens": sum(map(len, rows)),
            "coverage": {"train": head.coverage(rows, t2d), "held_out": head.coverage(held_out, t2d)},
            "seconds": head_curve[-1]["seconds"],
            "curve": head_curve,
        },
        "acceptance": measure(out, recipe.measure_tokens, progress),
    }
    (out / "training.json").write_text(
        json.dumps(training, indent=1, sort_keys=True) + "\n", encoding="utf-8"
    )
    write_cards(out, training)
    return training


def _quiet_speculators() -> None:
    from loguru import logger

    logger.disable("speculators")


def _prepare(folder: Path, recipe: Recipe) -> tuple[PreTrainedTokenizerFast, _Text]:
    """Tokenizer (saved into `folder`) and the dialogues in its ids."""
    dialogues = corpus.dialogues(recipe.modules)
    train = [each for each in dialogues if each.split == "train"][: recipe.dialogues]
    held_out = [each for each in dialogues if each.split != "train"]
    texts = (f"{each.question}\n{each.answer}" for each in train)
    tok = tokenizer.train_tokenizer(texts, recipe.shape.vocab_size)
    tokenizer.save_tokenizer(tok, folder)

    def rows(some: Sequence[corpus.Dialogue]) -> list[list[int]]:
        return [tok.apply_chat_template(d.messages(), tokenize=True, return_dict=False) for d in some]

    return tok, _Text(train, held_out, rows(train), rows(held_out))


def _regenerated(
    model: LlamaForCausalLM,
    tok: PreTrainedTokenizerFast,
    text: _Text,
    recipe: Recipe,
    work: Path,
    progress: Progress,
) -> tuple[list[list[int]], list[list[int]]]:
    """Rows for the drafter's training and held-out rows, the answers the target's own (see `Recipe`)."""
    entries = corpus.entries(recipe.modules)
    asked = [each.question for each in text.train]
    invented = regenerate.invented_questions(entries, recipe.invented, recipe.head.seed)
    sources: list[tuple[str, list[str], float]] = [
        ("train", asked, 0.0),
        ("invented", invented, 0.0),
        ("sampled", invented[: recipe.sampled], 0.8),
        ("held out", [each.question for each in text.held_out], 0.0),
    ]
    answers: dict[str, list[list[int]]] = {}
    for name, questions, temperature in sources:
        answers[name] = _answered(model, tok, name, questions, temperature, recipe, work, progress)
    chooser = random.Random(recipe.head.seed)
    own_words = chooser.sample(text.train_rows, min(recipe.corpus_rows, len(text.train_rows)))
    return [*answers["train"], *answers["invented"], *answers["sampled"], *own_words], answers["held out"]


def _answered(
    model: LlamaForCausalLM,
    tok: PreTrainedTokenizerFast,
    name: str,
    questions: list[str],
    temperature: float,
    recipe: Recipe,
    work: Path,
    progress: Progress,
) -> list[list[int]]:
    """The target's answers, from the work folder when this target has given them before."""
    digest = hashlib.sha256(json.dumps([questions, temperature, recipe.max_new_tokens]).encode())
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    kept = work / f"answers-{digest.hexdigest()[:16]}.json"
    if kept.exists():
        return [list(row) for row in json.loads(kept.read_text(encoding="utf-8"))]
    rows = regenerate.answer(
        model,
        [regenerate.prompt_ids(tok, question) for question in questions],
        max_new_tokens=recipe.max_new_tokens,
        temperature=temperature,
        seed=recipe.head.seed,
        report=lambda done: progress(f"answers: {name}", done, len(questions), ""),
    )
    kept.write_text(json.dumps(rows), encoding="utf-8")
    return rows


def write_prompts(path: Path, held_out: Sequence[corpus.Dialogue], count: int) -> None:
    """Write `count` held-out prompts, both kinds in equal number, spread over the whole corpus."""
    lines: list[str] = []
    for kind in ("new-question", "new-entry"):
        questions = [each.question for each in held_out if each.split == kind]
        wanted = min(count // 2, len(questions))
        for number in range(wanted):
            prompt = questions[number * len(questions) // wanted]
            lines.append(json.dumps({"id": len(lines) + 1, "kind": kind, "prompt": prompt}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """The prompts of `prompts.jsonl`: `id`, `kind` (`new-question` or `new-entry`), `prompt`."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def measure(folder: Path, max_new_tokens: int, progress: Progress) -> dict[str, Any]:
    """Acceptance of the specimen in `folder` on its held-out prompts, in all and by kind.

    Greedy decoding, three draft steps (four draft tokens), the bfloat16 weights computed in float32.
    """
    model = reference.load_reference_target(folder / "target")
    tok = tokenizer.load_tokenizer(folder / "target")
    eagle = reference.load_as_trained(folder / "drafter", model)
    prompts = read_prompts(folder / "prompts.jsonl")
    kinds = {"all": prompts} | {
        kind: [each for each in prompts if each["kind"] == kind] for kind in ("new-question", "new-entry")
    }
    result: dict[str, Any] = {"steps": head.TTT_STEPS, "max_new_tokens": max_new_tokens}
    for number, (kind, some) in enumerate(kinds.items()):
        progress("acceptance", number, len(kinds), "")
        if some:
            run = reference.speculate(
                model,
                eagle,
                [regenerate.prompt_ids(tok, each["prompt"]) for each in some],
                steps=head.TTT_STEPS,
                max_new_tokens=max_new_tokens,
                stop_ids=(tokenizer.END_ID,),
            )
            result[kind] = {
                "prompts": len(some),
                "tokens": sum(map(len, run.outputs)),
                "verify_steps": run.verify_steps,
                "accepted": list(run.accepted),
                "accept_length": run.accept_length,
                "accept_rate": run.accept_rate,
                "position_rates": list(run.position_rates),
            }
    progress("acceptance", len(kinds), len(kinds), "")
    return result


def _versions() -> dict[str, str]:
    packages = ("torch", "transformers", "tokenizers", "safetensors", "speculators")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}
