"""The other side of vLLM's oracle: a release's own loaders, taken from its source, run on stand-in modules.

Started as a script in a process of its own, never imported by eagle3lab; it needs neither torch nor the release. It
reads one JSON request on stdin, `{"source", "parameters", "names", "switches", "fused"}`, and writes one JSON reply:
for each name, alone in a checkpoint offered to a fresh drafter, what happened. `source` is a module with the classes
`Drafter` and `Inner` and those of the fused layers; names it uses and does not define are stand-ins.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import itertools
import json
import sys
from collections.abc import Iterator
from typing import Any


class Tensor:
    """A tensor that nobody looks into."""

    shape = (8, 8)
    dtype = "bfloat16"

    def detach(self) -> Tensor:
        """The same values in another object."""
        return Tensor()


class Parameter:
    """A parameter whose loader only notes that it was called, and for which shard."""

    shape = (8, 8)
    dtype = "bfloat16"

    def __init__(self, name: str, reached: list[list[Any]]) -> None:
        self.name = name
        self.reached = reached

    def weight_loader(self, param: Parameter, weight: Tensor, shard: Any = None) -> None:
        """Note it down."""
        self.reached.append([param.name, shard])


class Module:
    """As much of torch's module as the loaders ask for."""

    quant_config = None
    prefix = ""
    bias = None

    def __init__(self) -> None:
        self._modules: dict[str, Module] = {}
        self._parameters: dict[str, Parameter] = {}

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Modules right below."""
        return iter(self._modules.items())

    def children(self) -> Iterator[Module]:
        """The same without names."""
        return iter(self._modules.values())

    def named_modules(self, prefix: str = "", **_: Any) -> Iterator[tuple[str, Module]]:
        """This one and all below."""
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(f"{prefix}.{name}".lstrip("."))

    def named_parameters(self, recurse: bool = True, **_: Any) -> Iterator[tuple[str, Parameter]]:
        """Its parameters, and those of the modules below."""
        yield from self._parameters.items()
        for name, module in self._modules.items() if recurse else ():
            for inner, parameter in module.named_parameters():
                yield f"{name}.{inner}", parameter

    def named_buffers(self, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """None."""
        return iter(())

    def get_submodule(self, path: str) -> Module:
        """A module below; torch's error where there is none."""
        module = self
        for part in path.split("."):
            if part not in module._modules:
                raise AttributeError(part)
            module = module._modules[part]
        return module

    def validate_shard_id(self, shard: Any) -> bool:
        """Every shard is right here."""
        return True

    def _get_name(self) -> str:
        return type(self).__name__


class StandIn:
    """A module or function nobody looks into: any attribute, any call; a class where one is named."""

    def __getattr__(self, name: str) -> Any:
        return type(name, (), {}) if name[:1].isupper() else StandIn()

    def __call__(self, *args: Any, **kwargs: Any) -> StandIn:
        """Whatever it is given."""
        return StandIn()


def undefined(tree: ast.Module) -> set[str]:
    """Names that the module reads and does not bind."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return {node.id for node in names} - bound - set(dir(builtins))


def build(request: dict[str, Any], scope: dict[str, Any], reached: list[list[Any]]) -> Any:
    """A fresh drafter."""
    drafter, inner = scope["Drafter"](), scope["Inner"]()
    drafter._modules["model"] = drafter.model = inner
    drafter.use_parallel_drafting = False
    for name, on in request["switches"].items():
        setattr(inner, name, on)
    for name in request["parameters"]:
        *path, last = name.split(".")
        module = drafter
        for part in path:
            kind = scope[request["fused"][part]] if part in request["fused"] else Module
            module = module._modules.setdefault(part, kind())
        # An inner model that loads its own sees its names without what is in front of them.
        module._parameters[last] = Parameter(name, reached)
        setattr(module, last, module._parameters[last])
    return drafter


def offer(name: str, request: dict[str, Any], scope: dict[str, Any]) -> dict[str, Any]:
    """Load a checkpoint with one tensor of that name."""
    reached: list[list[Any]] = []
    drafter = build(request, scope, reached)
    try:
        drafter.load_weights([(name, Tensor())])
    except Exception as error:
        return {"exception": type(error).__name__}
    return {"reached": reached}


def main() -> None:
    """Answer the request on stdin."""
    request = json.loads(sys.stdin.read())
    tree = ast.parse(request["source"])
    scope: dict[str, Any] = {
        name: type(name, (), {}) if name[:1].isupper() else StandIn() for name in undefined(tree)
    }
    scope |= {"__name__": __name__, "itertools": itertools, "Module": Module}
    scope |= {name: getattr(dataclasses, name) for name in ("dataclass", "field", "replace")}
    exec(compile(tree, "load_weights", "exec"), scope)
    replies = [offer(name, request, scope) for name in request["names"]]
    json.dump(replies, sys.stdout)


if __name__ == "__main__":
    main()
