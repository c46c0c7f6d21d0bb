"""The few places of SGLang that the probe wraps; everything else it reaches through what it finds there.

They are methods and a function that have these names in 0.4.6, 0.4.9, 0.5.3, 0.5.6, 0.5.9, 0.5.11, 0.5.16 and 0.5.23
(read in their source; run with 0.5.9 and 0.5.23). They are wrapped when their module has been imported, whichever door
the probe came in by; a name that a release does not have is told, and what hangs on it is not observed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from eagle3lab.serving.after_import import after_import
from eagle3lab.serving.probe.careful import Careful

Before = Callable[[tuple[Any, ...], dict[str, Any]], Any]
After = Callable[[Any, Any], None]


@dataclass(slots=True)
class Seam:
    """A function of SGLang and what is called around it.

    Attributes:
        module: `sglang.srt.managers.scheduler`.
        path: `Scheduler.__init__`, or a function's name.
        before: Called with the arguments; what it returns goes to `after`.
        after: Called with that and the result, unless the function failed.
        seen: Whether the module was imported.
        attached: Whether the function was there and is wrapped.
    """

    module: str
    path: str
    before: Before
    after: After
    seen: bool = False
    attached: bool = False
    _undo: Callable[[], None] | None = field(default=None, repr=False)

    def install(self, careful: Careful) -> None:
        """Wrap the function as soon as its module is imported."""
        after_import(self.module, lambda module: careful.run(self.path, self._wrap, module, careful))

    def remove(self) -> None:
        """Put the function back as it was."""
        if self._undo is not None:
            self._undo()
            self._undo, self.attached = None, False

    def _wrap(self, module: ModuleType, careful: Careful) -> None:
        self.seen = True
        *owners, name = self.path.split(".")
        owner: Any = module
        for part in owners:
            owner = getattr(owner, part, None)
        original = None if owner is None else getattr(owner, name, None)
        if original is None:
            return
        wrapper = wrapped(original, self.path, self.before, self.after, careful)
        inherited = name not in vars(owner)
        setattr(owner, name, wrapper)
        self.attached = True

        def undo() -> None:
            if vars(owner).get(name) is not wrapper:
                return  # somebody else wrapped it again: taking ours out would take theirs out too
            if inherited:
                delattr(owner, name)
            else:
                setattr(owner, name, original)

        self._undo = undo


def wrapped(
    original: Callable[..., Any], where: str, before: Before, after: After, careful: Careful
) -> Callable[..., Any]:
    """`original` with something done before and after it; it is called exactly once, whatever becomes of that."""

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        begun = careful.run(where, before, args, kwargs)
        result = original(*args, **kwargs)
        careful.run(where, after, begun, result)
        return result

    return wrapper


def nothing_before(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """For a seam that only looks at what comes out: keeps the arguments for `after`."""
    return args, kwargs
