"""The page *engine atlas*: what every SGLang release does with a drafter, written from the shipped facts."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from eagle3lab.book.claims import inline_html
from eagle3lab.book.sphinx_book import figure_html
from eagle3lab.book.tables import html_table
from eagle3lab.engines.arguments import (
    HOPPER,
    UNKNOWN,
    ResolvedLaunch,
    release_rules,
    resolve_launch,
)
from eagle3lab.engines.arguments import releases as rules_are_known_of
from eagle3lab.engines.atlas.changes import Change, changes_by_release, target_rule
from eagle3lab.engines.atlas.data import entries, release_facts
from eagle3lab.engines.extract import ReleaseFacts
from eagle3lab.engines.proof.loaders import Setting, parameter_names, predicted
from eagle3lab.engines.release import releases


def runs_of(releases: Iterable[str], cells: Callable[[str], list[str]]) -> list[tuple[list[str], list[str]]]:
    """Neighbouring releases that agree in all `cells`, in the order given, each run with its cells."""
    runs: list[tuple[list[str], list[str]]] = []
    for release in releases:
        shown = cells(release)
        if runs and runs[-1][1] == shown:
            runs[-1][0].append(release)
        else:
            runs.append(([release], shown))
    return runs


def span_of(run: Sequence[str]) -> str:
    """A run's name: `0.5.9`, or `0.5.9 to 0.5.12`."""
    return run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}"


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

    rows = ([span_of(run), *map(inline_html, shown)] for run, shown in runs_of(rules_are_known_of(), cells))
    return html_table(["Releases", *(inline_html(title) for title, *_ in _COLUMNS)], rows)


def _cell(release: str, options: str, target: str, show: Callable[[ResolvedLaunch], str]) -> str:
    words = ["--model-path", "target", *options.split()]
    config = {"architectures": [target]}
    return show(
        resolve_launch(words, release_rules(release), target=config, drafter=_DRAFTER, machine=HOPPER)
    )


# What trainers write, and one tensor that stands for the family.
_FAMILIES = (
    ("`midlayer.*`", "midlayer.self_attn.q_proj.weight"),
    ("`layers.0.*`", "layers.0.self_attn.q_proj.weight"),
    ("`model.layers.0.*`", "model.layers.0.self_attn.q_proj.weight"),
    ("`model.midlayer.*`", "model.midlayer.self_attn.q_proj.weight"),
    ("`midlayer.0.*`", "midlayer.0.self_attn.q_proj.weight"),
    ("`module.*`, `draft_model.*`", "module.midlayer.self_attn.q_proj.weight"),
    ("`d2t` inside any name", "module.d2t"),
    ("`q_norm`, `k_norm`", "midlayer.self_attn.q_norm.weight"),
    ("`q_proj.bias`", "midlayer.self_attn.q_proj.bias"),
    ("`fc_norm.0` (with the config key)", "fc_norm.0.weight"),
    ("`input_norm` (with the config key)", "input_norm.weight"),
)
_WORDS = {
    "loaded": "loaded",
    "nothing": "dropped, nothing said",
    "warned": "dropped with a warning",
    "token map": "the token map",
}


def engine_atlas_page() -> str:
    """The page (MyST Markdown)."""
    names = releases()
    parts = [
        "# Engine atlas",
        f"What {len(names)} releases of SGLang, {names[0]} to {names[-1]}, do with an EAGLE-3 drafter. Every entry was "
        "read from the release's own source, which was not run for it, and the loaders' rules were checked against the "
        "loaders themselves, name by name. `eagle3lab engines` prints the same, and "
        "`eagle3lab engines sglang==A sglang==B` what is different between two releases; a path in place of a "
        "release reads a checkout or a fork.",
        "## Which tensor names a release loads",
        "One tensor stands for each family, a query projection for a layer's. *Dropped, nothing said*: the server "
        "starts with that part of the drafter as memory held it.",
        _ranges_table("Names in the checkpoint", _FAMILIES, _fate),
        "## Which targets hand over hidden states, and what becomes of layer ids",
        "A target that is not listed for a release stops the server when it is asked to capture. *ids +1*: an id in "
        "`eagle_config` names the layer whose output is captured; *verbatim*: whose input is. The defaults are capture "
        "points already.",
        _targets_table(),
        figure_html(_targets_figure()),
        "## Which layer ids are read",
        _releases_table(_WIRING, _wiring),
        "## How the logged accept rate is computed",
        "The accept length is `(accepted+forwards)/forwards` in all of them: 1.00 when no draft is accepted.",
        _releases_table((("Accept rate", ""),), _rate),
        "## Drafter classes",
        "Registered classes whose forward pass starts from the target's hidden states. *Other* are the layers for "
        "multi-token prediction that particular targets bring along. Drafters of whole blocks (DFLASH, DSPARK) get the "
        "states in another way and are not listed.",
        _drafters_table(),
        "## What becomes of launch arguments",
        "Each cell is a command resolved by that release's own rules: `EAGLE3` with a draft model, on one node with "
        "Hopper GPUs. `eagle3lab launch` resolves yours.",
        launch_table(),
        "## What changed at each release",
        html_table(("Release", "Changes"), _changes_rows("sglang"), search="Find a change:"),
        "## vLLM",
        f"The minor releases of vLLM from {releases('vllm')[0]} to {releases('vllm')[-1]}, and what changed at each. "
        "Its layer ids are taken as they stand: they name the layers whose inputs are captured.",
        html_table(("Release", "Changes"), _changes_rows("vllm"), search="Find a change:"),
        "## The wheels",
        "The facts come from these files.",
        html_table(
            ("Release", "Wheel", "SHA-256"),
            (
                (e.release, f"<code>{html.escape(e.wheel)}</code>", f"<code>{e.sha256}</code>")
                for e in entries()
            ),
        ),
    ]
    return "\n\n".join(parts) + "\n"


_Cell = Callable[[ReleaseFacts, str], str]


def _ranges(keys: Sequence[str], cell: _Cell) -> list[tuple[str, list[str]]]:
    """Runs of releases that agree in all of `keys`, oldest first, each with its cells."""

    def cells(release: str) -> list[str]:
        return [cell(release_facts(release), key) for key in keys]

    return [(span_of(run), shown) for run, shown in runs_of(releases(), cells)]


def _ranges_table(title: str, rows: Sequence[tuple[str, str]], cell: _Cell) -> str:
    """One row a thing, one column a run of releases."""
    columns = _ranges([key for _, key in rows], cell)
    body = (
        [inline_html(name), *(inline_html(cells[number]) for _, cells in columns)]
        for number, (name, _) in enumerate(rows)
    )
    return html_table([title, *(span for span, _ in columns)], body)


def _releases_table(columns: Sequence[tuple[str, str]], cell: _Cell) -> str:
    """One row a run of releases, one column a thing."""
    rows = _ranges([key for _, key in columns], cell)
    body = ([span, *map(inline_html, cells)] for span, cells in rows)
    return html_table(["Releases", *(title for title, _ in columns)], body)


def _fate(facts: ReleaseFacts, name: str) -> str:
    if facts.names is None or facts.parameters is None:
        return "unknown"
    fate = predicted(name, facts.names, set(parameter_names("sglang", facts.parameters, Setting())))
    return f"stops with {fate[1]}" if fate[0] == "raised" else _WORDS[str(fate[0])]


_WIRING = (
    ("Ids are read from", "ids"),
    ("Capture is switched off by", "switch"),
    ("CUDA graphs capture", "graphs"),
)


def _wiring(facts: ReleaseFacts, key: str) -> str:
    wiring = facts.wiring
    if wiring is None:
        return "unknown"
    if key == "ids":
        return ", ".join(f"`{k}`" for k in dict.fromkeys(reading.key for reading in wiring.ids)) or "nowhere"
    if key == "switch":
        return f"`{wiring.use_aux_hidden_state.key}`" if wiring.use_aux_hidden_state else "nothing"
    return wiring.graphs


def _rate(facts: ReleaseFacts, _: str) -> str:
    if facts.acceptance is None:
        return "unknown"
    return "not logged" if facts.acceptance.rate_key == "none" else f"`{facts.acceptance.rate_formula}`"


def _targets() -> dict[str, dict[str, str]]:
    """Architecture to release to what becomes of its ids, drafters left out."""
    found: dict[str, dict[str, str]] = {}
    for release in releases():
        facts = release_facts(release)
        drafters = {drafter.name for drafter in facts.drafters}
        for target in facts.targets:
            for name in target.architectures or (target.name,):
                if name not in drafters:
                    found.setdefault(name, {})[release] = target_rule(target)
    return dict(sorted(found.items(), key=lambda item: (releases().index(next(iter(item[1]))), item[0])))


def _targets_table() -> str:
    rows = []
    for name, rules in _targets().items():
        runs: list[tuple[list[str], str]] = []
        for release in releases():
            rule = rules.get(release)
            if rule is None:
                continue
            if runs and runs[-1][1] == rule and _follows(runs[-1][0][-1], release):
                runs[-1][0].append(release)
            else:
                runs.append(([release], rule))
        words = "<br>".join(f"{_since(covered)}: {html.escape(rule)}" for covered, rule in runs)
        rows.append((f"<code>{html.escape(name)}</code>", words))
    return html_table(("Architecture of the target", "Releases"), rows, search="Find a target:")


def _follows(one: str, other: str) -> bool:
    return releases().index(other) == releases().index(one) + 1


def _since(covered: Sequence[str]) -> str:
    return f"from {covered[0]} on" if covered[-1] == releases()[-1] else span_of(covered)


def _targets_figure() -> dict[str, object]:
    """Architecture by release: whether it captures, and what becomes of layer ids."""
    from eagle3lab.figures.theme import BAD, GOOD, NEUTRAL, PALETTE, figure

    targets = _targets()
    colours = ("rgba(0,0,0,0)", NEUTRAL, PALETTE["purple"], GOOD, BAD)
    made = figure("Targets that hand over hidden states, by release", height=90 + 17 * len(targets))
    made.add_heatmap(
        x=list(releases()),
        y=list(targets),
        z=[[_kind(rules.get(release)) for release in releases()] for rules in targets.values()],
        customdata=[
            [rules.get(release, "not supported") for release in releases()] for rules in targets.values()
        ],
        colorscale=[(edge / len(colours), colour) for n, colour in enumerate(colours) for edge in (n, n + 1)],
        zmin=-0.5,
        zmax=len(colours) - 0.5,
        colorbar={"tickvals": list(range(len(_KINDS))), "ticktext": list(_KINDS)},
        hovertemplate="%{y}<br>%{x}: %{customdata}<extra></extra>",
        xgap=1,
        ygap=1,
    )
    made.update_yaxes(autorange="reversed", tickfont={"size": 10})
    made.update_xaxes(tickfont={"size": 10}, type="category")
    spec: dict[str, object] = made.to_plotly_json()
    return spec


# What becomes of layer ids, as the figure's legend has it; the numbers are the figure's values.
_KINDS = ("no capture", "wrapper", "ids ignored", "ids +1", "depends on ids")


def _kind(rule: str | None) -> int:
    if rule is None:
        return 0
    if rule.startswith("handed on"):
        return 1
    if rule.startswith("ids ignored"):
        return 2
    return 4 if " if " in rule else 3


def _drafters_table() -> str:
    first: dict[str, tuple[str, str, str]] = {}
    last: dict[str, str] = {}
    for release in releases():
        for drafter in release_facts(release).drafters:
            first.setdefault(drafter.name, (release, drafter.kind, drafter.module))
            last[drafter.name] = release
    order = {"EAGLE-3": 0, "EAGLE-1": 1, "other": 2}
    rows = sorted(first.items(), key=lambda item: (order[item[1][1]], releases().index(item[1][0]), item[0]))
    newest = releases()[-1]
    return html_table(
        ("Class", "Kind", "Since", "Module"),
        (
            (
                f"<code>{html.escape(name)}</code>",
                kind,
                since if last[name] == newest else f"{since} to {last[name]}",
                f"<code>{html.escape(module)}</code>",
            )
            for name, (since, kind, module) in rows
        ),
        search="Find a class:",
    )


def _changes_rows(kind: str) -> Iterable[tuple[str, str]]:
    for release, changes in changes_by_release(kind).items():
        by_topic: dict[str, list[Change]] = {}
        for change in changes:
            by_topic.setdefault(change.topic, []).append(change)
        lines = (
            f"<b>{html.escape(topic)}</b>: " + "; ".join(html.escape(str(change)) for change in group)
            for topic, group in by_topic.items()
        )
        yield release, "<br>".join(lines) or "nothing about drafters"
