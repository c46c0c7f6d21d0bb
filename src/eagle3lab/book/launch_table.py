"""What becomes of launch arguments, release by release: the same few commands resolved by each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from eagle3lab.book.claims import inline_html
from eagle3lab.book.release_runs import runs_of, span_of
from eagle3lab.book.tables import html_table
from eagle3lab.engines.arguments import (
    HOPPER,
    UNKNOWN,
    ResolvedLaunch,
    release_rules,
    releases,
    resolve_launch,
)

_DRAFT = "--speculative-algorithm EAGLE3 --speculative-draft-model-path drafter"
_CHAIN = "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 8 --page-size 1"
_TREE = "--speculative-num-steps 3 --speculative-eagle-topk 4 --speculative-num-draft-tokens 8 --page-size 64"
_DRAFTER: Mapping[str, Any] = {"architectures": ["LlamaForCausalLMEagle3"]}
_NUMBERS = ("speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens")


def _numbers(launch: ResolvedLaunch) -> str:
    if launch.refused is not None:
        return f"refused, {launch.refused.exception}"
    values = [launch.value(name) for name in _NUMBERS]
    return "unknown" if UNKNOWN in values else ", ".join(map(str, values))


def _quantisation(launch: ResolvedLaunch) -> str:
    if "speculative_draft_model_quantization" not in launch.values:
        return "as the target, no argument of its own"
    value = launch.value("speculative_draft_model_quantization")
    return "unknown" if value is UNKNOWN else f"`{value}`"


def _overlap(launch: ResolvedLaunch) -> str:
    value = launch.value("disable_overlap_schedule")
    return "unknown" if value is UNKNOWN else "off" if value else "on"


# Title, options, the target's architecture, what is shown.
_COLUMNS: tuple[tuple[str, str, str, Callable[[ResolvedLaunch], str]], ...] = (
    (
        "Nothing said, a Llama: steps, topk, draft tokens",
        f"{_DRAFT} --page-size 1",
        "LlamaForCausalLM",
        _numbers,
    ),
    ("Nothing said, a Qwen3", f"{_DRAFT} --page-size 1", "Qwen3ForCausalLM", _numbers),
    ("3, 1, 8 asked for", f"{_DRAFT} {_CHAIN}", "Qwen3ForCausalLM", _numbers),
    (
        "3, 4, 8 with pages of 64 on flashinfer",
        f"{_DRAFT} {_TREE} --attention-backend flashinfer",
        "Qwen3ForCausalLM",
        _numbers,
    ),
    ("On fa3", f"{_DRAFT} {_TREE} --attention-backend fa3", "Qwen3ForCausalLM", _numbers),
    ("On triton", f"{_DRAFT} {_TREE} --attention-backend triton", "Qwen3ForCausalLM", _numbers),
    (
        "Drafter's quantisation, the target in fp8",
        f"{_DRAFT} {_CHAIN} --quantization fp8",
        "Qwen3ForCausalLM",
        _quantisation,
    ),
    ("Overlap schedule", f"{_DRAFT} {_CHAIN}", "Qwen3ForCausalLM", _overlap),
)


def launch_table() -> str:
    """One row a run of releases that answer alike, one column a command."""

    def cells(release: str) -> list[str]:
        return [_cell(release, options, target, show) for _, options, target, show in _COLUMNS]

    rows = ([span_of(run), *map(inline_html, shown)] for run, shown in runs_of(releases(), cells))
    return html_table(["Releases", *(inline_html(title) for title, *_ in _COLUMNS)], rows)


def _cell(release: str, options: str, target: str, show: Callable[[ResolvedLaunch], str]) -> str:
    words = ["--model-path", "target", *options.split()]
    config = {"architectures": [target]}
    return show(
        resolve_launch(words, release_rules(release), target=config, drafter=_DRAFTER, machine=HOPPER)
    )
