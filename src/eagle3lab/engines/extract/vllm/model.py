"""What can be read from a vLLM source tree, typed: what there is to say of SGLang too, and what only vLLM has."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from eagle3lab.engines.extract.model import ReleaseFacts
from eagle3lab.engines.facts import AllowList, ConfigTranslation, EngineFacts, ModuleNames, NameRules


@dataclass(frozen=True, slots=True)
class VllmFacts(ReleaseFacts):
    """Everything read from one vLLM source tree. None means unknown, and `unknown` says why.

    Sources are relative to the package `vllm`.

    Attributes:
        translation: How a config in the format of the speculators library is read.
        allowed: Which targets are taken for EAGLE-3.
    """

    kind: ClassVar[str] = "vllm"
    engine: ClassVar[str] = "vLLM"

    translation: ConfigTranslation | None = None
    allowed: AllowList | None = None

    def engine_facts(self, label: str | None = None) -> EngineFacts:
        """The facts a load is simulated from.

        Args:
            label: Stands for the release where the package names none.

        Raises:
            InputError: One of them is unknown.
        """
        broken = {entry.fact.partition(".")[0] for entry in self.unknown}
        if {"translation", "from_target"} & broken:
            raise self._not_shown("; ".join(str(entry) for entry in self.unknown))
        return replace(ReleaseFacts.engine_facts(self, label), speculators=self.translation)

    def further_topics(self) -> dict[str, dict[str, str]]:
        """What there is to say of vLLM only, for people."""
        return {
            "walk through modules": _walk(self.names),
            "skipped names": _unused(self.names),
            "config of speculators": _translated(self.translation),
            "targets allowed": {"": "unknown"}
            if self.allowed is None
            else dict.fromkeys(self.allowed.model_types, "model_type contains it")
            or {"": "any that can capture"},
        }


def _walk(names: NameRules | None) -> dict[str, str]:
    if not isinstance(names, ModuleNames) or names.token_map is None or names.own_prefix is None:
        return {"": "unknown"}
    words = {
        f"{names.token_map.old} in a name": f"becomes {names.token_map.new}, a parameter",
        "other names": f"get {names.own_prefix.text} in front, unless they contain {names.own_prefix.unless}",
        "leads nowhere": names.missing,
        "leads nowhere in the inner model": names.inner_missing or names.missing,
    }
    if names.fused_missing is not None:
        words["leads nowhere in a fused layer"] = names.fused_missing
    return words | {f"{end} that leads nowhere": "is dropped without a message" for end in names.optional}


def _unused(names: NameRules | None) -> dict[str, str]:
    words = {}
    for rule in names.unused if isinstance(names, ModuleNames) else ():
        words[rule.text] = (
            f"unless a name contains {rule.unless_shipped}"
            if rule.unless_shipped
            else f"unless {rule.unless_on} is on"
            if rule.unless_on
            else "always"
        )
    return words


def _translated(translation: ConfigTranslation | None) -> dict[str, str]:
    if translation is None:
        return {"": "unknown"}
    words = {
        key.key: "as it is, if true" if key.if_true else f"as it is, {key.default} where it is not stated"
        for key in translation.keys
    }
    for model_type, architecture in translation.architectures.items():
        words[f"layer of type {model_type}" if model_type else "any layer"] = architecture
    return words
