"""How a diagnosis is put together: inputs, the providers that make them of one another, and checks that take them.

A check and a provider say by the types of their parameters what they need; an input is looked up by the name of its
type. A parameter of type `Config` is needed, one of type `Config | None` is given where there is one, one of type
`Config | Missing` gets the reason instead. An input that cannot be had is a `Missing`, whose reason becomes that of
each check that needs it:

    @provider
    def config(folder: DrafterFolder) -> Config | Missing: ...

    @check("E3L-H01", "head.lm-head-missing", effect="…")
    def lm_head_missing(config: Config, tensors: Tensors, launch: Launch | None) -> Iterator[Finding]: ...

A check concerns the engines whose inputs it takes: one that takes `Sglang` or `SglangLoad` is skipped for others.
A test calls `findings(lm_head_missing, config=…, tensors=…)`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from eagle3lab.diagnosis.model import Finding, Impact, Severity
from eagle3lab.errors import InputError

PARTS = ("Seen", "Why", "Effect", "Repair", "Sources")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Missing:
    """An input that cannot be had, and why; `error` is what its provider raised."""

    reason: str
    error: InputError | None = None


class SkipCheck(Exception):
    """Raised by a check that cannot be done; its text is the reason."""


@dataclass(frozen=True, slots=True)
class Page:
    """A check's docstring, taken apart for the book: each part is Markdown."""

    title: str
    parts: dict[str, str]


CheckFunction = Callable[..., Iterator[Finding]]


@dataclass(frozen=True)
class Check:
    """One check.

    Attributes:
        code: Stable, such as E3L-N01.
        fault: The slug it looks for.
        others: Further slugs it can find.
        after: Faults without which it says nothing new: once one is found, the check waits for its repair.
        severity: Of its findings, unless they say otherwise.
        impact: Likewise.
        effect: Likewise: what the fault does to acceptance, in one sentence.
        run: The function; its docstring has a title line and the parts Seen, Why, Effect, Repair and Sources.
    """

    code: str
    fault: str
    others: tuple[str, ...]
    after: tuple[str, ...]
    severity: Severity
    impact: Impact
    effect: str
    run: CheckFunction

    @property
    def page(self) -> Page:
        """Its docstring as title and parts."""
        text = inspect.cleandoc(self.run.__doc__ or "")
        title, _, rest = text.partition("\n")
        pieces = re.split(rf"^({'|'.join(PARTS)}): ", rest, flags=re.MULTILINE)
        parts = {name: " ".join(body.split()) for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}
        return Page(title.rstrip("."), parts)

    @cached_property
    def needs(self) -> dict[str, tuple[str, bool | None]]:
        """Parameter → the input's name, and whether the check is skipped without it; None if it takes the reason."""
        return _parameters(self.run)

    def findings(self, arguments: Mapping[str, Any]) -> list[Finding]:
        """What the check finds; what a finding leaves out is the check's own."""
        return [
            replace(
                found,
                code=self.code,
                fault=found.fault or self.fault,
                severity=found.severity or self.severity,
                impact=found.impact or self.impact,
                effect=found.effect or self.effect,
            )
            for found in self.run(**arguments)
        ]


CHECKS: dict[str, Check] = {}
_PROVIDERS: dict[str, Callable[..., Any]] = {}


def check(
    code: str,
    fault: str,
    *,
    effect: str,
    severity: Severity = Severity.ERROR,
    impact: Impact = Impact.ZERO,
    after: tuple[str, ...] = (),
    others: tuple[str, ...] = (),
) -> Callable[[CheckFunction], CheckFunction]:
    """Register a check; the arguments are the attributes of `Check`."""

    def register(function: CheckFunction) -> CheckFunction:
        if code in CHECKS:
            raise ValueError(f"{code} is taken")
        CHECKS[code] = Check(code, fault, others, after, severity, impact, effect, function)
        return function

    return register


def provider(function: Callable[..., Result]) -> Callable[..., Result]:
    """Register the function that makes the input named by its return type, `Config | Missing` or `Config`."""
    name = function.__annotations__["return"].partition(" | ")[0]
    if name in _PROVIDERS:
        raise ValueError(f"{name} is provided twice")
    _PROVIDERS[name] = function
    return function


def provided() -> frozenset[str]:
    """The names of all inputs that a provider makes."""
    return frozenset(_PROVIDERS)


def findings(function: CheckFunction, **inputs: Any) -> list[Finding]:
    """What a check finds in the inputs given by parameter; an optional one that is left out is None."""
    chosen = next(one for one in CHECKS.values() if one.run is function)
    optional = {name: None for name, (_, needed) in chosen.needs.items() if needed is False}
    return chosen.findings(optional | inputs)


@dataclass
class Inputs:
    """The inputs of one diagnosis: those that are given, and those that follow, each made when first asked for.

    Attributes:
        values: Input by the name of its type.
    """

    values: dict[str, Any] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """An input, or why it cannot be had; an InputError of its provider is such a reason."""
        if name not in self.values:
            function = _PROVIDERS[name]
            try:
                arguments = self.arguments(function)
                self.values[name] = arguments if isinstance(arguments, Missing) else function(**arguments)
            except InputError as error:
                self.values[name] = Missing(str(error), error)
        return self.values[name]

    def value(self, name: str) -> Any:
        """An input, or None where it cannot be had."""
        found = self.get(name)
        return None if isinstance(found, Missing) else found

    def arguments(self, function: Callable[..., Any]) -> dict[str, Any] | Missing:
        """The arguments for a function, or what keeps it from being called."""
        found = {}
        for parameter, (name, needed) in _parameters(function).items():
            value = self.get(name)
            if isinstance(value, Missing) and needed is not None:
                if needed:
                    return value
                value = None
            found[parameter] = value
        return found

    def call(self, function: Callable[..., Result]) -> Result:
        """The result of a function all of whose parameters are optional or can be had."""
        arguments = self.arguments(function)
        if isinstance(arguments, Missing):
            raise TypeError(f"{function.__name__} needs an input that is not there: {arguments.reason}")
        return function(**arguments)


def _parameters(function: Callable[..., Any]) -> dict[str, tuple[str, bool | None]]:
    """Parameter → its input's name, and whether it is needed; None for one that takes the `Missing` as well.

    Annotations are read as they are written, so that no type has to be imported for it.
    """
    found = {}
    for parameter, annotation in function.__annotations__.items():
        if parameter != "return":
            name, _, other = annotation.partition(" | ")
            found[parameter] = (name, None if other == "Missing" else other != "None")
    return found


def listed(names: tuple[str, ...], most: int = 4) -> str:
    """`a, b, c and 7 more`."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
