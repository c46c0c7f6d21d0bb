"""The model cards: `README.md` of the specimen and its folders, every figure taken from the measurements.

Their text is in `cards/*.md`, with the names of figures in braces.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_KINDS = {"all": "all", "new-question": "known object, new question", "new-entry": "unknown object"}


def write_cards(out: Path, training: Mapping[str, Any]) -> None:
    """Write the four cards under `out` from what `training.json` holds."""
    recipe, target, drafter = training["recipe"], training["target"], training["drafter"]
    acceptance, layers = training["acceptance"], recipe["shape"]["layers"]
    figures: dict[str, dict[str, Any]] = {
        "overview": {"both": acceptance["all"]},
        "target": {
            "shape": recipe["shape"],
            "corpus": training["corpus"],
            "versions": training["versions"],
            "last": target["curve"][-1],
            "plan": _plan(recipe["target"], target["seconds"]),
        },
        "drafter": {
            "recipe": recipe,
            "own": drafter,
            "share": drafter["coverage"],
            "aux": f"2, {layers // 2} and {layers - 3}",
            "plan": _plan(recipe["head"], drafter["seconds"]),
            "steps": "\n".join(
                f"| {each['step']} | {each['full']:.3f} | {each['conditional']:.3f} |"
                for each in drafter["curve"][-1]["validation"]
            ),
            "acceptance": acceptance,
            "measured": "\n".join(
                f"| {name} | {run['prompts']} | {run['verify_steps']} | **{run['accept_length']:.2f}** | "
                f"{run['accept_rate']:.3f} | {' '.join(f'{rate:.3f}' for rate in run['position_rates'])} |"
                for kind, name in _KINDS.items()
                if (run := acceptance.get(kind))
            ),
        },
        "permutation": {},
    }
    for name, values in figures.items():
        template = Path(__file__).with_name("cards").joinpath(f"{name}.md").read_text(encoding="utf-8")
        text = template.format(training=training, **values) if values else template
        folder = out if name == "overview" else out / name
        (folder / "README.md").write_text(_wrapped(text), encoding="utf-8")


def _wrapped(text: str) -> str:
    """`text` with its paragraphs, but no table or heading, filled to lines of at most 110 characters."""
    blocks = [
        block if block.startswith(("|", "#")) else textwrap.fill(block, 110, break_on_hyphens=False)
        for block in re.split(r"\n{2,}", text.strip())
    ]
    return "\n\n".join(blocks) + "\n"


def _plan(plan: Mapping[str, Any], seconds: float) -> str:
    return (
        f"{plan['steps']:,} steps of at most {plan['tokens_per_step']:,} tokens (padding included), AdamW, peak rate "
        f"{plan['peak_rate']:g} after {plan['warmup']} steps of warm-up, a cosine towards step "
        f"{plan['horizon'] or plan['steps']:,}, the last {plan['cooldown']} steps down to zero; seed {plan['seed']}; "
        f"{seconds / 60:.0f} minutes on two shared CPU cores"
    )
