"""The model cards: `README.md` of the specimen and its folders, every figure taken from the measurements."""
# ruff: noqa: E501 - the text is Markdown with figures in it; its own lines are what should be short.

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_LICENCE = """\
## Data and licence

The training text is the documentation of Python itself (docstrings of the standard library and the language
reference in `pydoc_data.topics`), © Python Software Foundation, under the
[PSF License Agreement](https://docs.python.org/3/license.html), which allows redistribution of derived works.
Nothing else went in. The weights are under this project's own licence, Apache-2.0, with that notice.
"""


def write_cards(out: Path, training: Mapping[str, Any]) -> None:
    """Write the four cards under `out` from what `training.json` holds."""
    cards = {
        ".": _overview(training),
        "target": _target(training),
        "drafter": _drafter(training),
        "permutation": _PERMUTATION,
    }
    for folder, text in cards.items():
        (out / folder / "README.md").write_text(_wrapped(text), encoding="utf-8")


def _wrapped(text: str) -> str:
    """`text` with its paragraphs, but no table or heading, filled to lines of at most 110 characters."""
    blocks = [
        block if block.startswith(("|", "#")) else textwrap.fill(block, 110, break_on_hyphens=False)
        for block in re.split(r"\n{2,}", text.strip())
    ]
    return "\n\n".join(blocks) + "\n"


def _overview(training: Mapping[str, Any]) -> str:
    both = training["acceptance"]["all"]
    return f"""\
# The specimen

A target and an EAGLE-3 drafter small enough for a repository and real enough to be served: every chapter, test and
fault of eagle3lab can be run on them without a GPU.

| folder | what it is |
|---|---|
| `target/` | a trained Llama of {training["target"]["parameters"]:,} parameters with tokenizer and chat template |
| `drafter/` | its EAGLE-3 head, trained and saved by speculators {training["versions"]["speculators"]} |
| `permutation/` | a target whose acceptance is known exactly, with three heads |
| `prompts.jsonl` | {both["prompts"]} prompts that neither model was trained on |
| `training.json` | recipe, versions, training curves, accuracies, acceptance |
| `matrix.jsonl` | every fault put into the head and measured, release by release (`make matrix`) |
| `pairs.jsonl` | two faults in one head, by the reference and by a real server (`make matrix WAYS="--pairs --way reference --way server"`) |

Mean accept length on those prompts: **{both["accept_length"]:.2f}** with four draft tokens
(`python -m lab.specimen --measure` measures it again).

`python -m lab.specimen` (or `make specimen`) remakes everything; it takes up to an hour on two CPU cores and goes on
where it was when it is interrupted. The permutation target comes out byte for byte; trained weights do not, since
sums of floats differ from machine to machine, but their figures are about the same.

{_LICENCE}"""


def _recipe_line(plan: Mapping[str, Any], seconds: float) -> str:
    return (
        f"{plan['steps']:,} steps of at most {plan['tokens_per_step']:,} tokens (padding included), AdamW, peak rate "
        f"{plan['peak_rate']:g} after {plan['warmup']} steps of warm-up, a cosine towards step "
        f"{plan['horizon'] or plan['steps']:,}, the last {plan['cooldown']} steps down to zero; seed {plan['seed']}; "
        f"{seconds / 60:.0f} minutes on two shared CPU cores"
    )


def _target(training: Mapping[str, Any]) -> str:
    shape, curve, corpus = training["recipe"]["shape"], training["target"]["curve"], training["corpus"]
    versions = training["versions"]
    return f"""\
# Specimen target

A `LlamaForCausalLM` of {training["target"]["parameters"]:,} parameters that answers questions about Python's standard
library, to be served with an EAGLE-3 drafter. It shows how speculation works; it is no source of knowledge.

| | |
|---|---|
| layers | {shape["layers"]} |
| hidden size | {shape["hidden_size"]} |
| attention | {shape["heads"]} heads, {shape["kv_heads"]} for keys and values, head_dim {shape["head_dim"]} |
| intermediate size | {shape["intermediate_size"]} |
| vocabulary | {shape["vocab_size"]}, byte-level BPE, six special tokens |
| head | untied |
| weights | bfloat16 |

## Training

{corpus["train_dialogues"]:,} dialogues ({corpus["train_tokens"]:,} tokens): three forms of question about each documented
object, and the language reference's topics. {_recipe_line(training["recipe"]["target"], training["target"]["seconds"])}.
Final training loss {curve[-1]["loss"]:.3f}, loss on held-out dialogues {curve[-1]["validation_loss"]:.3f} nats a token (the curve
is in `../training.json`). Made on {training["made"]} with Python {versions["python"]}, torch {versions["torch"]},
transformers {versions["transformers"]}.

Of the objects, one in 32 appears in no training dialogue (`new-entry`); of the other questions, one in 32 was left out
(`new-question`).

## Limits

It knows its answers by heart: asked about an object it has not seen, it makes up an answer in the same style. English
and Python only; no context of more than about 300 tokens was ever trained. Do not use it for anything but trying out
speculative decoding.

{_LICENCE}"""


def _drafter(training: Mapping[str, Any]) -> str:
    recipe, own, acceptance = training["recipe"], training["drafter"], training["acceptance"]
    last = own["curve"][-1]
    steps = "\n".join(
        f"| {each['step']} | {each['full']:.3f} | {each['conditional']:.3f} |" for each in last["validation"]
    )
    names = {"all": "all", "new-question": "known object, new question", "new-entry": "unknown object"}
    measured = "\n".join(
        f"| {name} | {run['prompts']} | {run['verify_steps']} | **{run['accept_length']:.2f}** | {run['accept_rate']:.3f} | "
        + " ".join(f"{rate:.3f}" for rate in run["position_rates"])
        + " |"
        for key, name in names.items()
        if (run := acceptance.get(key))
    )
    share = own["coverage"]
    return f"""\
# Specimen drafter

An EAGLE-3 head for the specimen target, trained with speculators {training["versions"]["speculators"]}
(`Eagle3DraftModel.from_training_args`) and saved by its own `save_pretrained`, in its own dialect: tensors
`layers.0.*`, a nested `transformer_layer_config`, layer ids at the top level of `config.json`.

One Llama layer ({own["parameters"]:,} trained parameters) over the *input* of the target's layers
{_aux(recipe)}; draft vocabulary {recipe["draft_vocab_size"]} of {recipe["shape"]["vocab_size"]} ids (the most frequent of
its training answers, special tokens always), `d2t` int64 offsets, `t2d` bool; embedding and head rows frozen at the
target's; bfloat16.

## Training

Prompts with the *target's own* answers, as the EAGLE papers advise: greedy ones to its training questions and to
{recipe["invented"]:,} questions about objects that do not exist, {recipe["sampled"]:,} sampled ones, and {recipe["corpus_rows"]:,} dialogues of
the corpus as they stand: {own["rows"]:,} rows, {own["tokens"]:,} tokens. KL divergence to the target's
distribution over the draft vocabulary, {acceptance["steps"]} draft steps unrolled, loss on answers only.
{_recipe_line(recipe["head"], own["seconds"])}.

The draft vocabulary holds {share["train"]:.2%} of the tokens of the training answers and {share["held_out"]:.2%} of the held-out ones.

Accuracy of each draft step on the target's answers to held-out questions (the target's tokens being fed):

| step | right, and all before it | right, given all before it |
|---|---|---|
{steps}

## Acceptance

Plain greedy loop, four draft tokens (three draft steps, topk 1), up to {acceptance["max_new_tokens"]} tokens for each prompt of
`../prompts.jsonl`, weights as saved, computed in float32. Accept length is tokens per verification, the bonus token
included; accept rate is accepted drafts / (verifications × 3); per position: the share of verifications that accepted it.

| prompts | number | verifications | accept length | accept rate | per position |
|---|---|---|---|---|---|
{measured}

## Changes to the saved files

Two, and no more. speculators writes the path of the target it was trained on into
`speculators_config.verifier.name_or_path`; it is replaced by the neutral name `eagle3lab/specimen-target`. The target
lies in `../target`, and loading the head with speculators itself needs that name set back to its folder. And
speculators lays the source of its configuration class (`config.py`, named in `auto_map`) beside the weights; it is left
out, nothing reads it.

## Limits

Good for this target and this text only. Four draft tokens were trained for; later drafts are worse.

{_LICENCE}"""


def _aux(recipe: Mapping[str, Any]) -> str:
    layers = recipe["shape"]["layers"]
    return f"2, {layers // 2} and {layers - 3}"


_PERMUTATION = """\
# The permutation target

A Llama whose layers add nothing and whose head makes the next token a fixed permutation π of the last one, with three
EAGLE-3 heads. What an engine must accept is not measured but known, so a test can ask for it exactly.

| head | what it does |
|---|---|
| `copies-one-state` | fc keeps the last auxiliary state; the head says π(π(x)); later drafts repeat the first; whole vocabulary |
| `copies-one-state-reduced` | the same over 48 of the 64 ids, with `d2t` and `t2d` |
| `uses-every-tensor` | attention finds the token at hand, the MLP passes it on, the head says π of it; 48 ids |

Accept length with four draft tokens (three draft steps, topk 1), greedy:

| head | covered-cycle | uncovered-cycle | fixed-point |
|---|---|---|---|
| `copies-one-state` | 2 | 2 | 4 |
| `copies-one-state-reduced` | 2 | 1 | 4 |
| `uses-every-tensor` | 4 | 1 | 4 |
| `uses-every-tensor`, any tensor of it missing | 1 | 1 | – |

The prompts are in `expected.json`, as token ids and as the words of the target's tokenizer. Never stop at an end token:
these texts have none. A missing matrix is taken as zeros here and a missing norm as ones; an engine may leave other
values in them.

The heads are in the flat dialect (`midlayer.*`, nested `eagle_config` with ids that mean a layer's *output*), so that
SGLang serves them as they are. Two attention heads: tensor parallel sizes 1 and 2.

No training, no data, no chance: `lab.specimen.permutation.write_permutation` writes the same bytes every time.
Licence: Apache-2.0.
"""
