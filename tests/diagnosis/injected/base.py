"""What an injection is: a function that changes a healthy case and names the slugs that are right then.

None means that the fault cannot be put into this case (the release has another way, or the head is of another kind).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

from eagle3lab.engines.release import parse_release

Case = dict[str, Any]
Expected = tuple[str, ...] | None
Injection = Callable[[Case], Expected]
INJECTIONS: dict[str, Injection] = {}


def injection(function: Injection) -> Injection:
    INJECTIONS[function.__name__] = function
    return function


def without_log(case: Case) -> Case:
    """A copy to be changed, without the log of the healthy server."""
    return copy.deepcopy(case) | {"log": []}


def before(case: Case, release: str) -> bool:
    return parse_release(case["engine"]).within(until=release)


def template(case: Case) -> dict[str, Any]:
    return case["drafter"]["template"]  # type: ignore[no-any-return]


def config(case: Case) -> dict[str, Any]:
    return case["drafter"]["config"]  # type: ignore[no-any-return]


def target(case: Case) -> dict[str, Any]:
    raw = case["target"]["config"]
    return raw.get("text_config", raw)  # type: ignore[no-any-return]


def mla(case: Case) -> bool:
    return template(case)["kind"] == "eagle3-mla"


def reduced(case: Case) -> bool:
    return bool(config(case)["draft_vocab_size"] < config(case)["vocab_size"])


def option(case: Case, name: str, value: str) -> None:
    stripped = re.sub(rf" {name}(?: [^-]\S*)?(?= |$)", "", case["launch"])
    case["launch"] = f"{stripped} {name} {value}".rstrip()
