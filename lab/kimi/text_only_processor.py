"""The processor of a tiny Kimi-K2.5: texts only. Copied into the model's folder, where a server loads it.

SGLang asks a Kimi-K2.5 folder for its processor even to serve texts, and transformers' own does not offer what
SGLang reads. This module stands alone: it must not import eagle3lab.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

from transformers import AutoTokenizer
from transformers.processing_utils import ProcessorMixin


class MediaSettings:
    """What SGLang reads of the processor for images: its settings."""

    def __init__(self, media_proc_cfg: dict[str, Any]) -> None:
        self.media_proc_cfg = media_proc_cfg

    def media_tokens_calculator(self, media: object) -> int:
        """Refuse: there is no image to count the tokens of."""
        raise ValueError("this tiny Kimi-K2.5 takes texts only, no images")


class TextOnlyProcessor(ProcessorMixin):  # type: ignore[no-any-unimported,misc,unused-ignore]
    """A tokenizer with the attributes that SGLang expects of Kimi-K2.5's processor."""

    attributes: ClassVar[list[str]] = ["tokenizer"]
    tokenizer_class = "AutoTokenizer"

    def __init__(self, tokenizer: Any, media_proc_cfg: dict[str, Any]) -> None:
        super().__init__(tokenizer)
        self.image_processor = None
        self.media_processor = MediaSettings(media_proc_cfg)

    @classmethod
    def from_pretrained(cls, folder: str, *args: object, **options: object) -> TextOnlyProcessor:
        """The processor of the model in `folder`, which is never downloaded."""
        settings = json.loads((Path(folder) / "preprocessor_config.json").read_text(encoding="utf-8"))
        return cls(AutoTokenizer.from_pretrained(folder), settings["media_proc_cfg"])

    def __call__(self, text: Any = None, images: object = None, medias: object = None, **options: Any) -> Any:
        """Token ids of `text`; images are refused."""
        if images or medias:
            raise ValueError("this tiny Kimi-K2.5 takes texts only, no images")
        return self.tokenizer(text, **options)
