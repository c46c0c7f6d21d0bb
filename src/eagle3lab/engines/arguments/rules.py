"""What a release does with its launch arguments, as data: the options it takes, and procedures that resolve them.

A procedure is a function of the release reduced to steps. Expressions keep the release's own terms, with three names
put in for however that release spells them: `args` for the arguments, `target` for the target's config, `env` for
environment variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

OptionKind = Literal["text", "integer", "amount", "number", "switch", "list", "json", "unknown"]
LatePlace = Literal["runner", "draft decode", "draft extend"]
StepKind = Literal["if", "else", "set", "declare", "do", "refuse", "check", "say", "return", "forget"]


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the launch command.

    Attributes:
        spellings: How it is written, dashes included.
        field: The argument that it sets.
        kind: What its value is; an "amount" may have a unit, "switch" takes none, "list" takes several, of "unknown"
            it could not be read.
        choices: The values it takes; None where every value is taken, or the list is made while it runs.
    """

    spellings: tuple[str, ...]
    field: str
    kind: OptionKind
    choices: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Step:
    """One statement.

    Attributes:
        depth: How many conditions it stands under within its procedure.
        kind: "if" runs the deeper steps after it where `expression` holds, "else" where the "if" before it on the
            same depth did not. "set" gives `subject` (fields or local names, comma between them) the value;
            "declare" sets the fields of a mapping. "do" is a call. "refuse" raises the exception `subject`,
            "check" does so where `expression` does not hold. "say" logs at level `subject`. "return" ends the
            procedure. "forget" makes the values of `subject` unknown: it stands for statements not followed.
        subject: See `kind`.
        expression: See `kind`; of "check", the condition and its message, joined by a line break.
        line: In the procedure's file, 1-based.
    """

    depth: int
    kind: StepKind
    subject: str
    expression: str
    line: int


@dataclass(frozen=True, slots=True)
class Procedure:
    """A function of the release.

    Attributes:
        file: Relative to the engine's source root.
        parameters: Names of what it is given besides the arguments themselves, in order.
        defaults: Expressions for those not given.
        steps: What it does.
    """

    file: str
    parameters: tuple[str, ...]
    defaults: Mapping[str, str]
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class DraftContextRule:
    """The drafter is run with the target's context.

    Attributes:
        handed_at: `file:line` where it is given the target's.
        refused_at: `file:line` of the ValueError where its own config does not reach that far.
        allowed: Whether it is run so all the same where the environment does not say, with a warning.
    """

    handed_at: str
    refused_at: str
    allowed: bool


@dataclass(frozen=True, slots=True)
class LateRule:
    """A refusal that comes after the weights are loaded, where an attention backend is made.

    Attributes:
        place: "runner" for each model's own backend, by the registry; "draft decode" and "draft extend" for those of
            the drafter's steps, by a factory.
        backend: The backend; empty for the rule about those that the factory does not know.
        when: Conditions, all of which hold: of `args`, `mla` (whether the model's attention is MLA), `major` and
            `minor` (the compute capability), `backend`, and what is asked of the machine by function.
        exception: Type of what is raised.
        message: Expression of its text.
        source: `file:line` in the release.
    """

    place: LatePlace
    backend: str
    when: tuple[str, ...]
    exception: str
    message: str
    source: str


@dataclass(frozen=True, slots=True)
class ArgumentRules:
    """How one release resolves a launch command, as far as speculation is concerned.

    Attributes:
        release: The release; empty for a source tree that does not say.
        options: The options, in the order in which they are declared.
        defaults: Field → expression of its default; a field without one must be given.
        procedures: By name.
        entries: The procedures that are run, in order.
        environment: Variables that are read → expressions of their defaults.
        elsewhere: Fields that are decided in places not followed here: known only where the command gives them.
        unknown: What could not be read.
        draft_context: How long a context the drafter is run with; None where that could not be read.
        late: What stops the server after its weights are loaded; empty for releases without a registry of backends.
    """

    release: str
    options: tuple[Option, ...]
    defaults: Mapping[str, str]
    procedures: Mapping[str, Procedure]
    entries: tuple[str, ...]
    environment: Mapping[str, str]
    elsewhere: tuple[str, ...]
    unknown: tuple[str, ...]
    draft_context: DraftContextRule | None = None
    late: tuple[LateRule, ...] = ()
