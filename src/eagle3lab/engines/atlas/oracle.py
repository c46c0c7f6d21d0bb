"""A release's own `load_weights`, run on stand-in parameters, and the simulator's answer beside it.

The loader's code is cut out of the source tree and executed in a process of its own, isolated and with a time
limit. This executes code of the tree; reading facts from it never does. Only the check commands do so.
"""

from __future__ import annotations

import ast
import copy
import json
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from eagle3lab.engines.atlas.oracle_names import Offer
from eagle3lab.engines.extract.sglang.discover import eagle3_class, find_drafters
from eagle3lab.engines.extract.syntax import ClassRef, Module, Syntax, dotted_name
from eagle3lab.engines.facts import NameRules, Parameter
from eagle3lab.engines.loading.names import Waiting, route
from eagle3lab.errors import Eagle3labError, InputError

LIMIT_SECONDS = 60
# ("nothing",), ("warned",), ("token map",), ("raised", type) or ("loaded", parameter, shard).
Fate = tuple[str | int | None, ...]


class OracleError(Eagle3labError):
    """The loader's code could not be run."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A name, or several offered together, of which the release and the simulator say different things."""

    name: Offer
    release: Fate
    simulator: Fate


def parameter_names(parameters: Sequence[Parameter], *, tied: bool = False, layers: int = 1) -> list[str]:
    """Names of the parameters of a drafter with three auxiliary states and every option on.

    Args:
        parameters: The class's.
        tied: The head is the embedding and no parameter of its own.
        layers: Its number of layers.
    """
    names: list[str] = []
    for parameter in parameters:
        if parameter.when == ("own_head" if tied else "tied"):
            continue
        numbers = range(3) if "{aux}" in parameter.name else range(1)
        for layer in range(0 if parameter.first_layer else 1, layers):
            written = parameter.name.replace("{layer}", str(layer))
            names += [written.replace("{aux}", str(n)) for n in numbers]
    return list(dict.fromkeys(names))


def simulated(
    offer: Offer, rules: NameRules, parameters: Collection[str], *, tied: bool = False, layers: int = 1
) -> Fate:
    """What the simulator says of a name, or of several offered one after the other."""
    if isinstance(offer, str):
        return _alone(offer, rules, parameters, tied, layers)
    waiting: Waiting[str] = Waiting()
    fates: list[Fate] = []
    for name in offer:
        half = route(name, rules, parameters).half
        complete = half is not None and half.part is not None and waiting.arrived(half, name) is not None
        fate = _alone(name, rules, parameters, tied, layers, complete=complete)
        if fate[0] == "raised":
            return fate
        fates.append(fate)
    said = [fate for fate in fates if fate[0] != "nothing"]
    if not said:
        return ("nothing",)
    # That it happened is seen, not how often; only parameters count how often they are reached.
    return (
        said[0] if len(said) == 1 or {*said} < {("token map",), ("warned",)} else ("loaded more than once",)
    )


def _alone(
    name: str,
    rules: NameRules,
    parameters: Collection[str],
    tied: bool,
    layers: int,
    complete: bool = False,
) -> Fate:
    way = route(name, rules, parameters, ("tied",) if tied else (), layers)
    if way.half is not None and not complete:
        return ("nothing",) if way.half.part is not None else ("raised", "KeyError")
    if way.half is not None:
        return ("loaded", way.parameter, None) if way.parameter is not None else ("nothing",)
    if way.special is not None:
        return ("token map",) if way.special.effect == "hot_token_id" else ("nothing",)
    if way.parameter is not None:
        return "loaded", way.parameter, None if way.stacked is None else way.stacked.shard
    if way.exception is not None:
        return "raised", way.exception
    return ("warned",) if way.warned else ("nothing",)


def run_loader(
    syntax: Syntax,
    parameters: Sequence[str],
    names: Sequence[Offer],
    *,
    tied: bool = False,
    layers: int = 1,
    drafter: str | None = None,
) -> list[Fate]:
    """What a loader of a source tree does with each name.

    Args:
        syntax: The tree.
        parameters: Names of the parameters that its drafter has.
        names: What it is offered, each to a fresh drafter.
        tied: What its config says of the embeddings.
        layers: What its config says of the layers.
        drafter: Its class; None for the one that serves EAGLE-3 drafters with a Llama layer.

    Raises:
        InputError: There is no such class.
        OracleError: Its code cannot be run alone, or takes too long.
    """
    return Loader.of(syntax, drafter).run(parameters, names, tied=tied, layers=layers)


@dataclass(frozen=True, slots=True)
class Loader:
    """A release's loader, cut out and ready to be run.

    Attributes:
        source: See `loader_source`.
        switches: The release's environment variables that are true or false, with their defaults.
        counts_layers: Whether its model says which layers it holds.
    """

    source: str
    switches: Mapping[str, bool]
    counts_layers: bool

    @classmethod
    def of(cls, syntax: Syntax, drafter: str | None = None) -> Loader:
        """The loader of a class of a source tree; see `run_loader`."""
        found = _class(syntax, drafter)
        counts = "self.start_layer" in (syntax.tree.text(found.module.file) or "")
        return cls(loader_source(syntax, found), _switches(syntax), counts)

    def run(
        self, parameters: Sequence[str], names: Sequence[Offer], *, tied: bool = False, layers: int = 1
    ) -> list[Fate]:
        """See `run_loader`."""
        request = {
            "source": self.source,
            "parameters": list(parameters),
            "config": {"tie_word_embeddings": tied, "num_hidden_layers": layers},
            "model": {"start_layer": 0, "end_layer": layers} if self.counts_layers else {},
            "names": list(names),
            "switches": dict(self.switches),
        }
        return run_worker("oracle_worker.py", request)


def run_worker(script: str, request: Mapping[str, object]) -> list[Fate]:
    """What the script beside this module, given the request, says became of each name.

    Raises:
        OracleError: The release's code cannot be run alone, or takes too long.
    """
    command = [sys.executable, "-I", str(Path(__file__).with_name(script))]
    try:
        answer = subprocess.run(
            command,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
            env={},
        )
    except subprocess.TimeoutExpired:
        raise OracleError(f"load_weights took longer than {LIMIT_SECONDS} s") from None
    if answer.returncode:
        raise OracleError(f"load_weights cannot be run alone: {answer.stderr.strip()[-500:]}")
    return [_fate(reply) for reply in json.loads(answer.stdout)]


def _class(syntax: Syntax, drafter: str | None) -> ClassRef:
    drafters = find_drafters(syntax)
    if drafter is None:
        found = eagle3_class(syntax, drafters)
        if found is not None:
            return found[0]
    for one in drafters:
        module = syntax.module(one.source.file)
        if module is not None and one.name == drafter:
            return module.classes[drafter]
    raise InputError(f"no class {drafter or 'for EAGLE-3 drafters'}", path=syntax.tree.path)


def _switches(syntax: Syntax) -> dict[str, bool]:
    """Environment variables of the release that are true or false, with what they are when nobody sets them."""
    module = syntax.module("environ.py")
    found = {}
    for node in ast.walk(module.tree) if module else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args:
            default = node.value.args[0]
            if dotted_name(node.value.func) == "EnvBool" and isinstance(default, ast.Constant):
                found[ast.unparse(node.targets[0])] = bool(default.value)
    return found


def _fate(reply: Mapping[str, object]) -> Fate:
    if "exception" in reply:
        return "raised", str(reply["exception"])
    reached = reply["reached"]
    assert isinstance(reached, list)
    # Only SGLang's worker knows of the next two.
    warned = reply.get("warned")
    if reply.get("token_map"):
        return ("token map", "and more") if reached or warned else ("token map",)
    if reached:
        return ("loaded", *reached[0]) if len(reached) == 1 else ("loaded more than once",)
    return ("warned",) if warned else ("nothing",)


def loader_source(syntax: Syntax, cls: ClassRef) -> str:
    """A module with a class `Drafter` that has the class's `load_weights`, and its ancestors' where it calls them.

    With it go the methods that it hands the weights to and the class's tables; other methods do nothing.
    """
    bases = "object"
    found = syntax.function(cls.module, "get_layer_id") or _of_ancestors(syntax, cls, "get_layer_id")
    parts = [ast.unparse(_bare(found[1]))] if found else []
    owners = [owner for owner in (cls, *syntax.bases(cls)) if owner.method("load_weights") is not None]
    for number, owner in reversed(list(enumerate(owners))):
        name = "Drafter" if number == 0 else f"Ancestor{number}"
        body = "\n".join(_members(owner))
        parts.append(f"class {name}({bases}):\n{_indented(body)}\n\n{owner.name} = {name}")
        bases = name
    return "\n\n".join(parts)


def _of_ancestors(syntax: Syntax, cls: ClassRef, name: str) -> tuple[Module, ast.FunctionDef] | None:
    """A function as the modules of a class's ancestors know it."""
    found = (syntax.function(base.module, name) for base in syntax.bases(cls))
    return next((one for one in found if one is not None), None)


def _members(owner: ClassRef) -> list[str]:
    """The `load_weights` of a class and what of the class it uses."""
    waiting = ["load_weights"]
    taken: dict[str, ast.FunctionDef] = {}
    tables: list[ast.Assign] = []
    while waiting:
        name = waiting.pop()
        function = owner.method(name)
        if function is None or name in taken:
            continue
        used = {node.attr for node in ast.walk(function) if _is_own(node)}
        hands_on = name == "load_weights" or "weights" in [argument.arg for argument in function.args.args]
        taken[name] = _bare(function) if hands_on else _empty(function)
        if hands_on:
            waiting += sorted(used)
            for node in owner.node.body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in used:
                    tables.append(node)
    return [ast.unparse(node) for node in (*tables, *taken.values())]


def _is_own(node: ast.AST) -> TypeGuard[ast.Attribute]:
    """`self.something`."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _empty(function: ast.FunctionDef) -> ast.FunctionDef:
    """A method of that name that does nothing, whatever it is given."""
    parsed = ast.parse(f"def {function.name}(self, *args, **kwargs):\n    pass").body[0]
    assert isinstance(parsed, ast.FunctionDef)
    return parsed


class _Imports(ast.NodeTransformer):
    """Imports from the release become nothing: the names stand in for themselves."""

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        return ast.copy_location(ast.Pass(), node) if (node.module or "").startswith("sglang") else node


def _bare(function: ast.FunctionDef) -> ast.FunctionDef:
    """Without decorators and annotations, which would need names that are not there."""
    function = copy.deepcopy(function)
    function.decorator_list, function.returns = [], None
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    _Imports().visit(function)
    return function


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def disagreements(
    syntax: Syntax,
    rules: NameRules,
    parameters: Sequence[Parameter],
    names: Sequence[Offer],
    *,
    drafter: str | None = None,
    layers: Sequence[int] = (1,),
) -> list[Disagreement]:
    """What a source tree and the simulator say different things of, tied embeddings or not.

    Args:
        syntax: The tree.
        rules: What the simulator takes for the class's rules.
        parameters: What it takes for its parameters.
        names: Names, or several that are offered together.
        drafter: The class; None for the one that serves EAGLE-3 drafters with a Llama layer.
        layers: Numbers of layers to try.
    """
    found: list[Disagreement] = []
    loader = Loader.of(syntax, drafter)
    for tied in (False, True):
        for count in layers:
            known = parameter_names(parameters, tied=tied, layers=count)
            real = loader.run(known, names, tied=tied, layers=count)
            ours = [simulated(name, rules, set(known), tied=tied, layers=count) for name in names]
            pairs = zip(names, real, ours, strict=True)
            found += [Disagreement(name, one, other) for name, one, other in pairs if one != other]
    return found
