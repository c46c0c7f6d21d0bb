"""The other side of the oracle: a release's own `load_weights`, taken from its source, run on stand-in parameters.

Started as a script in a process of its own, never imported by eagle3lab; it needs neither torch nor the release.
It reads one JSON request on stdin, `{"source", "parameters", "config", "model", "names", "switches"}`, and writes one
JSON reply: for each name, or list of names, offered to a fresh drafter, what happened. `source` is a module with a
class `Drafter`; names it uses and does not define are stand-ins.
"""

from __future__ import annotations

import ast
import builtins
import json
import re
import sys
import types
from typing import Any


class Tensor:
    """A tensor that can only be added to."""

    shape = (8, 8)
    dtype = "bfloat16"

    def __add__(self, other: object) -> Tensor:
        return self


class StandIn:
    """A module or function nobody looks into: any attribute, any call."""

    def __getattr__(self, name: str) -> StandIn:
        return StandIn()

    def __call__(self, *args: Any, **kwargs: Any) -> StandIn:
        """Whatever it is given."""
        return StandIn()

    def arange(self, *args: Any, **kwargs: Any) -> Tensor:
        """As torch's, for adding to."""
        return Tensor()


class Variables:
    """The release's environment variables, with what they are when nobody sets them."""

    def __init__(self, switches: dict[str, bool]) -> None:
        self._switches = switches

    def __getattr__(self, name: str) -> Any:
        return types.SimpleNamespace(get=lambda: self._switches[name])


class Log:
    """What a loader does with one name."""

    def __init__(self) -> None:
        self.reached: list[list[Any]] = []
        self.warned = False


def parameter(name: str, log: Log) -> Any:
    """A parameter whose loader only notes that it was called."""

    def load(param: Any, weight: Any, shard: Any = None, *rest: Any) -> None:
        log.reached.append([name, shard])

    return types.SimpleNamespace(weight_loader=load, data=Tensor(), shape=(8, 8))


def undefined(tree: ast.Module) -> set[str]:
    """Names that the module reads and does not bind."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return {node.id for node in names} - bound - set(dir(builtins))


def offer(
    drafter_class: Any, names: list[str], request: dict[str, Any], scope: dict[str, Any]
) -> dict[str, Any]:
    """Load tensors of these names into a fresh drafter."""
    log = Log()

    def warning(*args: Any, **kwargs: Any) -> None:
        log.warned = True

    scope["logger"] = types.SimpleNamespace(
        warning=warning, warning_once=warning, error=warning, info=print_nothing, debug=print_nothing
    )
    drafter = drafter_class.__new__(drafter_class)
    parameters = {known: parameter(known, log) for known in request["parameters"]}
    drafter.named_parameters = parameters.items
    drafter.config = types.SimpleNamespace(**request["config"])
    drafter.model = types.SimpleNamespace(**request["model"])
    drafter.pp_group = types.SimpleNamespace(is_first_rank=True, is_last_rank=True, world_size=1)
    drafter.hot_token_id = None
    try:
        drafter.load_weights([(name, Tensor()) for name in names])
    except Exception as error:
        return {"exception": type(error).__name__}
    return {
        "reached": log.reached,
        "warned": log.warned,
        "token_map": drafter.hot_token_id is not None,
    }


def print_nothing(*args: Any, **kwargs: Any) -> None:
    """A message that says nothing about the name."""


def main() -> None:
    """Answer the request on stdin."""
    request = json.loads(sys.stdin.read())
    tree = ast.parse(request["source"])
    scope: dict[str, Any] = {name: StandIn() for name in undefined(tree)}
    scope |= {"__name__": "oracle", "re": re, "torch": StandIn(), "envs": Variables(request["switches"])}
    # Whether weights are loaded for the second time: they are not.
    scope["QuantizedRLModelLoader"] = types.SimpleNamespace(is_reload_scenario=lambda model: False)
    exec(compile(tree, "load_weights", "exec"), scope)
    offered = [[entry] if isinstance(entry, str) else entry for entry in request["names"]]
    replies = [offer(scope["Drafter"], names, request, scope) for names in offered]
    json.dump(replies, sys.stdout)


if __name__ == "__main__":
    main()
