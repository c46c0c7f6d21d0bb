"""Why a release does not start with a command: every refusal that is certain, with its fault and what mends it.

Three kinds: what the argument parser and the argument checks raise, what an attention backend raises after the weights
are loaded, and a drafter whose context is too short. `eagle3lab launch` prints them, and each is a finding of
`eagle3lab diagnose` in the same words. A mending change is offered only where, with it made, nothing is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from eagle3lab.engines.arguments.data import release_rules, releases
from eagle3lab.engines.arguments.machine import AMPERE, BLACKWELL, HOPPER, SM120, Machine
from eagle3lab.engines.arguments.resolve import Refusal, ResolvedLaunch, resolve_launch
from eagle3lab.engines.arguments.rules import ArgumentRules
from eagle3lab.engines.launch.reading import Launch, long_spelling
from eagle3lab.engines.release import Release, version_of

GPUS = (HOPPER, BLACKWELL, SM120, AMPERE)
"""The machines that a refusal must come on where none is named."""

_BACKENDS = ("fa3", "flashinfer", "triton", "trtllm_mha", "trtllm_mla", "fa4")
_OPTION = re.compile(r"--?[A-Za-z]")


@dataclass(frozen=True, slots=True)
class DefiniteRefusal:
    """A release that does not start with a command.

    Attributes:
        refusal: What it raises, and where.
        fault: Slug of the fault.
        flags: The options of the command that it is about, with their values.
        fix: The change with which it starts, or the release to move to, or that neither is known.
    """

    refusal: Refusal
    fault: str
    flags: tuple[str, ...]
    fix: str

    @property
    def text(self) -> str:
        """The release's own words."""
        return f"{self.refusal.exception}: {self.refusal.message}"


def refusals(
    launch: Launch,
    rules: ArgumentRules,
    target: Mapping[str, Any] | None = None,
    drafter: Mapping[str, Any] | None = None,
    machine: Machine | None = None,
) -> tuple[DefiniteRefusal, ...]:
    """Every certain refusal of a launch, in the order in which they would come.

    Args:
        launch: The launch of an SGLang server.
        rules: The release's, from `argument_rules`.
        target: The target's config.json; without it, what depends on it is not certain.
        drafter: The drafter's, likewise.
        machine: Where it runs; without it, a refusal is certain where none of `GPUS` starts.
    """
    asked = _Asked(rules, target, drafter, machine, launch.environment)
    launch = replace(launch, words=_evaluated(launch))
    found = asked.refused(launch.words)
    return tuple(
        DefiniteRefusal(one, fault_of(one), _flags(one, launch), _fix(one, launch, asked)) for one in found
    )


@dataclass(frozen=True, slots=True)
class _Asked:
    rules: ArgumentRules
    target: Mapping[str, Any] | None
    drafter: Mapping[str, Any] | None
    machine: Machine | None
    environment: Mapping[str, str]

    def refused(self, words: tuple[str, ...]) -> tuple[Refusal, ...]:
        """What is refused for certain on the machine; without one, where each of `GPUS` refuses, what they share.

        Where each refuses for a reason of its own, that of the machine where it is about speculation.
        """
        machines = GPUS if self.machine is None else (self.machine,)
        found = [self._resolved(words, machine).certain for machine in machines]
        if not all(found):
            return ()
        shared = tuple(one for one in found[0] if all(one in other for other in found[1:]))
        return shared or max(found, key=lambda own: "speculative" in f"{own[0].message} {own[0].when}")

    def starts(self, words: tuple[str, ...], refusal: Refusal) -> bool:
        """Whether nothing is refused for certain any more, and this refusal not even possibly."""
        if self.refused(words):
            return False
        machines = GPUS if self.machine is None else (self.machine,)
        possible = [one for machine in machines for one in self._possible(words, machine)]
        return all(one.message != refusal.message for one in possible)

    def _possible(self, words: tuple[str, ...], machine: Machine) -> tuple[Refusal, ...]:
        resolved = self._resolved(words, machine)
        return (*resolved.refusals, *resolved.late)

    def _resolved(self, words: tuple[str, ...], machine: Machine) -> ResolvedLaunch:
        return resolve_launch(
            words,
            self.rules,
            target=self.target,
            drafter=self.drafter,
            machine=machine,
            environment=self.environment,
        )


def _evaluated(launch: Launch) -> tuple[str, ...]:
    """The words of a launch without the options whose values only a shell could have evaluated."""
    if not launch.problems:
        return launch.words
    unknown = tuple(option for option, value in launch.options.items() if re.search(r"[$`]|^<", value))
    spelled = {word.lstrip("-").partition("=")[0] for word in launch.words if _OPTION.match(word)}
    written = tuple(name for name in spelled if long_spelling(name) in unknown)
    return _without(launch.words, tuple(name.replace("_", "-") for name in written))


def fault_of(refusal: Refusal) -> str:
    """The slug of the fault that a refusal is."""
    if refusal.stage == "context":
        return "layer.context"
    text = f"{refusal.message} {refusal.when}"
    if "speculative-algo" in text or "speculative algorithm" in text.lower():
        return "flags.method" if re.search(r"invalid choice|[Uu]nknown", text) else "flags.incompatible"
    if refusal.stage == "load" or re.search(r"attention.backend|page.size|[Bb]ackend", text):
        return "flags.backend"
    if re.search(r"draft.tokens|num.steps|eagle.topk", text):
        return "flags.draft-tokens"
    return "flags.draft-path" if re.search(r"draft.model.path", text) else "flags.incompatible"


def _flags(refusal: Refusal, launch: Launch) -> tuple[str, ...]:
    """The options given that a refusal names, as the command has them."""
    text = f"{refusal.message} {refusal.when}".replace("_", "-").lower()
    named = [option for option in launch.options if re.search(rf"\b{re.escape(option)}\b", text)]
    near = [option for option in launch.options if "lora" in option and "lora" in text]
    backends = [
        f"{name}-backend"
        for name, value in launch.backends.items()
        if re.search(rf"\b{re.escape(value.replace('_', '-').lower())}\b", text)
    ]
    late = ("speculative-num-steps",) if refusal.stage == "load" else ()
    chosen = dict.fromkeys(one for one in (*named, *near, *backends) if one not in late)
    return tuple(f"--{option} {launch.options[option]}".rstrip() for option in chosen)


def _fix(refusal: Refusal, launch: Launch, asked: _Asked) -> str:
    for words, sentence in _changes(refusal, launch, asked.rules):
        if asked.starts(words, refusal):
            return sentence
    later = _first_without(refusal, launch, asked)
    if later is not None:
        return f"Use {later.name} {later.number} or later, which starts with this command."
    return "Change what the message names; no single option that is known here mends it."


def _changes(refusal: Refusal, launch: Launch, rules: ArgumentRules) -> Iterator[tuple[tuple[str, ...], str]]:
    """Commands with one thing changed, and the advice that each comes to, the smallest change first."""
    words, text = launch.words, f"{refusal.message} {refusal.when}"
    fields = {option.field for option in rules.options}
    if refusal.stage == "load":
        own = "speculative_draft_attention_backend"
        for name in _BACKENDS if own in fields and refusal.of_drafter else ():
            flag = ("--speculative-draft-attention-backend", name)
            yield (*words, *flag), f"Give the drafter a backend of its own: {' '.join(flag)}."
    if launch.steps and (launch.topk or 1) > 1:
        flags = f"--speculative-eagle-topk 1 --speculative-num-draft-tokens {launch.steps + 1}"
        yield (*words, *flags.split()), f"Draft a chain: {flags}."
    if "page" in text:
        yield (*words, "--page-size", "1"), "Use --page-size 1."
    if refusal.stage == "load" or "backend" in text.lower():
        without = _without(
            words, ("attention-backend", "prefill-attention-backend", "decode-attention-backend")
        )
        if without != words:
            yield without, "Leave the attention backend to the release: give none."
        for name in _BACKENDS:
            yield (*without, "--attention-backend", name), f"Use --attention-backend {name}."
    if launch.pp > 1 and "ipeline" in text:
        ranks = ("--pp-size", "1", "--tp-size", str(launch.tp * launch.pp))
        yield (*words, *ranks), f"Use tensor parallelism alone: {' '.join(ranks)}."
    adapters = tuple(name for name in launch.options if "lora" in name)
    if adapters and "lora" in text.lower():
        yield _without(words, adapters), f"Leave out {', '.join(f'--{name}' for name in adapters)}."
    named = [flag.partition(" ")[0].removeprefix("--") for flag in _flags(refusal, launch)]
    spared = ("model-path", "speculative-algorithm", "speculative-draft-model-path", "tp-size")
    unwanted = [name for name in named if name not in spared]
    for name in sorted(unwanted, key=lambda name: (f"--{name}" not in refusal.message, -len(name))):
        yield _without(words, (name,)), f"Leave out --{name}."
    if len(unwanted) > 1:
        yield _without(words, tuple(unwanted)), f"Leave out {', '.join(f'--{name}' for name in unwanted)}."


def _without(words: tuple[str, ...], names: tuple[str, ...]) -> tuple[str, ...]:
    """The words without some options and their values."""
    kept: list[str] = []
    dropping = False
    for word in words:
        if _OPTION.match(word):
            dropping = word.partition("=")[0].lstrip("-").replace("_", "-") in names
        if not dropping:
            kept.append(word)
    return tuple(kept)


def _first_without(refusal: Refusal, launch: Launch, asked: _Asked) -> Release | None:
    """The first later release that starts with the command as it is."""
    here = version_of(asked.rules.release)
    later = [one for one in releases() if here is not None and (version_of(one) or here) > here]
    if not later or replace(asked, rules=release_rules(later[-1])).refused(launch.words):
        return None
    found = next(one for one in later if not replace(asked, rules=release_rules(one)).refused(launch.words))
    return Release("sglang", found)
