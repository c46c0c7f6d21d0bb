"""A byte-level BPE tokenizer of 1024 tokens with a chat template, trained on the corpus.

Saved as `tokenizer.json` and `tokenizer_config.json` with the template inside, so that every engine finds it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

#: A multiple of 64, which engines pad the vocabulary to.
VOCAB_SIZE = 1024
PAD, BEGIN, END, USER, ASSISTANT, SYSTEM = SPECIAL_TOKENS = (
    "<|pad|>",
    "<|begin|>",
    "<|end|>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
)
#: Token ids of the special tokens: their places in `SPECIAL_TOKENS`.
PAD_ID, BEGIN_ID, END_ID, USER_ID, ASSISTANT_ID, SYSTEM_ID = range(len(SPECIAL_TOKENS))

CHAT_TEMPLATE = (
    "{{ bos_token }}"
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def train_tokenizer(texts: Iterable[str], vocab_size: int = VOCAB_SIZE) -> PreTrainedTokenizerFast:
    """A byte-level BPE over `texts`; the special tokens take the first ids, the 256 bytes follow."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    # tokenizers' stubs leave this one constructor untyped.
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call, unused-ignore]
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token=BEGIN,
        eos_token=END,
        pad_token=PAD,
        chat_template=CHAT_TEMPLATE,
        model_max_length=2048,
        clean_up_tokenization_spaces=False,
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` into `folder`, the chat template in the latter.

    transformers 5 writes the template to a file of its own, which older engines do not look for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save_pretrained(folder, save_jinja_files=False)
    config_path = folder / "tokenizer_config.json"
    config = json.loads(config_path.read_text(encoding="utf-8"))
    # The name that transformers 4 and 5 both know; version 5 writes a class of its own.
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config_path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def load_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer saved in `folder`."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def asked(question: str) -> str:
    """A user's question as text, up to where the assistant answers: what `CHAT_TEMPLATE` makes of it."""
    return f"{BEGIN}{USER}{question}{END}{ASSISTANT}"
