"""Text in the target's own words: what a drafter has to foresee, and so what it is trained on.

The corpus says what the documentation says; the target, asked the same question, says something slightly
different, and it is the target that a drafter is measured against. The EAGLE papers regenerate their
training data for this reason.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from lab.specimen.corpus import QUESTION_FORMS, Entry
from lab.specimen.tokenizer import ASSISTANT_ID, END_ID, PAD_ID


def prompt_ids(tokenizer: PreTrainedTokenizerFast, question: str) -> list[int]:
    """Token ids of `question` in the chat template, up to where the answer starts."""
    ids: list[int] = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, tokenize=True, return_dict=False
    )
    return ids


def answer_start(ids: Sequence[int]) -> int:
    """Index of the first token of the answer."""
    return ids.index(ASSISTANT_ID) + 1


def invented_questions(entries: Sequence[Entry], count: int, seed: int) -> list[str]:
    """Questions about objects that do not exist: names put together from those that do.

    The target answers them in its usual words, without having learnt an answer by heart; a drafter that
    has seen only answers learnt by heart would be a stranger to every new prompt.
    """
    chooser = random.Random(seed)
    known = {entry.name for entry in entries}
    questions: list[str] = []
    while len(questions) < count:
        one, other = chooser.choice(entries), chooser.choice(entries)
        name = f"{one.name.rpartition('.')[0]}.{other.name.rpartition('.')[2]}"
        if name not in known:
            made = Entry(name, one.kind, one.parent, one.signature, one.summary)
            questions.append(chooser.choice(QUESTION_FORMS)(made)[0])
    return questions


def answer(
    target: LlamaForCausalLM,
    prompts: Sequence[list[int]],
    *,
    max_new_tokens: int,
    temperature: float = 0.0,
    seed: int = 0,
    batch: int = 96,
    report: Callable[[int], None] = lambda done: None,
) -> list[list[int]]:
    """Each prompt with the target's answer behind it, in the order given; an answer ends with END or is cut.

    Args:
        target: The float32 target.
        prompts: Token ids, the chat template included.
        max_new_tokens: Length at which an answer is cut.
        temperature: 0 takes the likeliest token, more samples.
        seed: Of the sampling.
        batch: Prompts at a time; prompts of like length go together.
        report: Called with the number of prompts done after each batch.
    """
    torch.manual_seed(seed)
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    rows: list[list[int]] = [[] for _ in prompts]
    sampling = {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    for start in range(0, len(order), batch):
        chosen = order[start : start + batch]
        width = max(len(prompts[i]) for i in chosen)
        ids = torch.full((len(chosen), width), PAD_ID)
        mask = torch.zeros_like(ids)
        for place, index in enumerate(chosen):
            ids[place, width - len(prompts[index]) :] = torch.tensor(prompts[index])
            mask[place, width - len(prompts[index]) :] = 1
        with torch.inference_mode():
            output = target.generate(
                input_ids=ids,
                attention_mask=mask,
                max_new_tokens=max_new_tokens,
                pad_token_id=PAD_ID,
                **sampling,
            )
        for place, index in enumerate(chosen):
            new = output[place, width:].tolist()
            if END_ID in new:
                new = new[: new.index(END_ID) + 1]
            rows[index] = [*prompts[index], *new]
        report(start + len(chosen))
    return rows
