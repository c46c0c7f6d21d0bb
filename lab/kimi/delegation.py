"""The methods that SGLang 0.5.9's class for Kimi-K2.5 lacks, put in from outside.

As published, 0.5.9 cannot serve Kimi-K2.5 with any drafter: `KimiK25ForConditionalGeneration` neither passes
`set_eagle3_layers_to_capture` on to its language model (needed by EAGLE3) nor `get_embed_and_head` (needed by EAGLE).
The server in the case study answered, so its build had them. This overlay gives 0.5.9 what a build that serves must
have: three methods that delegate, as later releases have them, and the `lm_head` of the language model.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

from eagle3lab.serving.hooks import after_import
from eagle3lab.serving.overlay import Overlay

MISSING = ("get_embed_and_head", "set_embed_and_head", "set_eagle3_layers_to_capture")
"""The methods of `KimiK25ForConditionalGeneration` that 0.5.10 and later define and 0.5.9 does not."""

KIMI_DELEGATION = Overlay(startup=(f"{__name__}:startup",))
"""Put in when 0.5.9 serves the tiny Kimi-K2.5; harmless with a release that has the methods."""

CAPTURE_NOT_REACHED = Overlay(startup=(f"{__name__}:capture_not_reached",))
"""A target that is asked to capture and does not: as where a wrapper accepts the call and hands it to nobody."""


def startup() -> None:
    """Called by `sitecustomize` in every process of the server."""
    after_import("sglang.srt.models.kimi_k25", add_delegation)


def add_delegation(kimi_k25: ModuleType) -> None:
    """Give the module's `KimiK25ForConditionalGeneration` whatever it lacks of `MISSING`, and `lm_head`."""
    wrapper = kimi_k25.KimiK25ForConditionalGeneration
    for name in MISSING:
        if not hasattr(wrapper, name):
            setattr(wrapper, name, _delegating(name))
    if not hasattr(wrapper, "lm_head"):
        wrapper.lm_head = property(lambda self: self.language_model.lm_head)


def _delegating(name: str) -> Any:
    def method(self: Any, *arguments: Any, **options: Any) -> Any:
        return getattr(self.language_model, name)(*arguments, **options)

    method.__name__ = name
    return method


def capture_not_reached() -> None:
    """Called by `sitecustomize`: the served classes accept `set_eagle3_layers_to_capture` and do nothing."""
    for module, name in (("kimi_k25", "KimiK25ForConditionalGeneration"), ("llama", "LlamaForCausalLM")):
        after_import(f"sglang.srt.models.{module}", partial(_ignore_capture, name))


def _ignore_capture(name: str, module: ModuleType) -> None:
    getattr(module, name).set_eagle3_layers_to_capture = lambda self, layer_ids=None: None
