"""The delegating methods themselves, on classes of our own: added where they lack, left alone where they are."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

from lab.kimi.delegation import KIMI_DELEGATION, MISSING, add_delegation


class LanguageModel:
    lm_head = "the head"

    def __getattr__(self, name: str) -> Any:
        if name not in MISSING:
            raise AttributeError(name)
        return lambda *arguments, **options: (name, arguments, options)


def wrapper_of(cls: type) -> Any:
    module = ModuleType("kimi_k25")
    module.KimiK25ForConditionalGeneration = cls  # type: ignore[attr-defined]
    add_delegation(module)
    made = cls()
    made.language_model = LanguageModel()
    return made


def test_what_lacks_is_passed_on_with_its_arguments() -> None:
    wrapper = wrapper_of(type("Wrapper", (SimpleNamespace,), {}))
    assert wrapper.set_eagle3_layers_to_capture([1, 5, 8]) == (MISSING[2], ([1, 5, 8],), {})
    assert wrapper.get_embed_and_head() == (MISSING[0], (), {})
    assert wrapper.set_embed_and_head("embed", head="head") == (MISSING[1], ("embed",), {"head": "head"})
    assert wrapper.lm_head == "the head"


def test_a_release_that_has_the_methods_keeps_them() -> None:
    own: dict[str, Any] = {name: lambda self, *arguments: "own" for name in MISSING}
    wrapper = wrapper_of(type("Wrapper", (SimpleNamespace,), {**own, "lm_head": "own head"}))
    assert [getattr(wrapper, name)() for name in MISSING] == ["own"] * 3
    assert wrapper.lm_head == "own head"


def test_the_overlay_names_itself() -> None:
    assert KIMI_DELEGATION.startup == ("lab.kimi.delegation:startup",)
