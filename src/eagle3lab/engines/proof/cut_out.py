"""A release's code for a drafter class: cut out of the source tree, and run on stand-ins in a process of its own."""

from __future__ import annotations

import ast
import copy
import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3lab.engines.extract.syntax import ClassRef, Module, Syntax, UnreadableError, called, dotted_name
from eagle3lab.engines.loading.names import FUSED
from eagle3lab.errors import Eagle3labError

LIMIT_SECONDS = 60
_STAND_INS = Path(__file__).with_name("stand_ins.py")


class CannotRunError(Eagle3labError):
    """The cut-out code could not be run, or took too long."""


def run(engine: str, code: CutOut, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What `stand_ins.py` answers.

    Args:
        engine: "sglang" or "vllm".
        code: The code it is to run.
        request: What it is asked besides.

    Raises:
        CannotRunError: There is no answer.
    """
    whole = {"engine": engine, "files": code.files, "start": code.start, **request}
    command = [sys.executable, "-I", str(_STAND_INS)]
    try:
        answer = subprocess.run(
            command,
            input=json.dumps(whole),
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
            env={},
        )
    except subprocess.TimeoutExpired:
        raise CannotRunError(f"took longer than {LIMIT_SECONDS} s") from None
    if answer.returncode:
        raise CannotRunError(f"cannot be run alone: {answer.stderr.strip()[-500:]}")
    replies: list[dict[str, Any]] = json.loads(answer.stdout)
    return replies


# Layers that `stand_ins.py` knows; others must make no parameters.
_KNOWN_LAYERS = (
    "VocabParallelEmbedding", "ParallelLMHead", "RMSNorm", "QKVParallelLinear", "MergedColumnParallelLinear",
    "ColumnParallelLinear", "ReplicatedLinear", "RowParallelLinear",
)  # fmt: skip
# `create_weights` is not among them: only a quantised layer calls it.
_MAKES_PARAMETERS = ("Parameter", "register_parameter")
_KEPT_DECORATORS = ("property", "staticmethod", "classmethod")


@dataclass(frozen=True, slots=True)
class CutOut:
    """Code cut out of a source tree, file by file, as `stand_ins.py` is given it.

    Attributes:
        files: File to its source, to what its names from other files mean, and to the layers it names that make
            parameters in a way that is not known.
        start: File and name of the drafter class.
    """

    files: dict[str, Any]
    start: tuple[str, str]

    @property
    def digest(self) -> str:
        """Sixteen characters that stand for the code."""
        text = json.dumps([self.files, self.start], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def constructors(syntax: Syntax, cls: ClassRef) -> CutOut:
    """The constructors of a class, of all model classes that it is built from, and what takes weights of a target."""
    folder = cls.module.file.rpartition("/")[0] + "/"
    cutting = _Cutting(syntax, folder, {"__init__", "set_embed", "set_embed_and_head"})
    while cutting.cut(cls):
        pass  # until no class has a method more that another one calls
    return CutOut(cutting.files(), (cls.module.file, cls.name))


class _Cutting:
    """Classes and functions of one folder, followed by their names.

    Attributes:
        methods: Names of the methods and class attributes that are kept.
    """

    def __init__(self, syntax: Syntax, folder: str, methods: set[str]) -> None:
        self._syntax, self._folder, self.methods = syntax, folder, methods
        self._nodes: dict[str, dict[str, ast.stmt]] = {}
        self._imports: dict[str, dict[str, tuple[str, str]]] = {}
        self._layers: dict[str, set[str]] = {}

    def cut(self, cls: ClassRef) -> bool:
        """Cut out what is reached from a class; whether more methods are asked for than were kept."""
        before = set(self.methods)
        self._nodes.clear()
        self._take(cls.module, cls.name)
        return self.methods != before

    def files(self) -> dict[str, Any]:
        """What was cut out."""
        return {
            file: {
                "source": "\n\n".join(
                    ast.unparse(node) for node in sorted(nodes.values(), key=lambda node: node.lineno)
                ),
                "imports": self._imports.get(file, {}),
                "layers": sorted(self._layers.get(file, ())),
            }
            for file, nodes in sorted(self._nodes.items())
        }

    def _take(self, module: Module, name: str) -> None:
        """The class, function or constant of that name, and what it names in turn."""
        here = self._nodes.setdefault(module.file, {})
        if name in here:
            return
        node: ast.stmt
        if name in module.classes:
            node = self._class(module.classes[name].node)
        elif name in module.functions:
            node = bare(module.functions[name])
        else:
            node = ast.Assign([ast.Name(name, ast.Store())], module.constants[name], lineno=0)
            ast.fix_missing_locations(node)
        here[name] = node
        for used in sorted({inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}):
            if used in module.imported and (used == name or not _defined(module, used)):
                self._import(module, used)
            elif used != name and _defined(module, used):
                self._take(module, used)

    def _import(self, module: Module, name: str) -> None:
        file, there = module.imported[name]
        found = self._syntax.resolve(module, name) if not _defined(module, name) else None
        if found is None:
            other = self._syntax.module(f"{file}.py")
            found = self._syntax.resolve(other, there) if other is not None else None
        if found is not None and found.module.file.startswith(self._folder):
            self._imports.setdefault(module.file, {})[name] = (found.module.file, found.name)
            self._take(found.module, found.name)
        elif found is not None:
            if found.name not in _KNOWN_LAYERS and not _parameter_free(found):
                self._layers.setdefault(module.file, set()).add(name)
        else:
            function = self._syntax.function(module, name)
            if function is not None and not function[0].file.startswith(self._folder):
                if _makes_parameters(function[1]):
                    self._layers.setdefault(module.file, set()).add(name)
            elif function is not None:
                self._imports.setdefault(module.file, {})[name] = (function[0].file, function[1].name)
                self._take(function[0], function[1].name)

    def _class(self, node: ast.ClassDef) -> ast.ClassDef:
        """The class with the methods and attributes that are asked for."""
        body: list[ast.stmt] = []
        for member in node.body:
            if isinstance(member, ast.FunctionDef) and member.name in self.methods:
                body.append(bare(member))
                self.methods |= {
                    inner.attr
                    for inner in ast.walk(member)
                    if isinstance(inner, ast.Attribute) and _own(inner)
                }
            elif isinstance(member, ast.Assign) and dotted_name(member.targets[0]) in self.methods:
                body.append(member)
        kept = ast.ClassDef(node.name, node.bases, [], body or [ast.Pass()], [])
        return ast.fix_missing_locations(ast.copy_location(kept, node))


def _own(node: ast.Attribute) -> bool:
    """`self.something`, `super().something`."""
    return dotted_name(node.value) in ("self", "cls") or called(node.value) == "super"


def _defined(module: Module, name: str) -> bool:
    """Whether a file defines the name, by more than a call whose answer depends on the machine."""
    constant = module.constants.get(name)
    simple = constant is not None and not any(isinstance(part, ast.Call) for part in ast.walk(constant))
    return name in module.classes or name in module.functions or simple


def _parameter_free(cls: ClassRef) -> bool:
    """Whether a class of the engine's layers makes no parameters: its constructor calls nothing that does."""
    constructor = cls.method("__init__")
    names = {called(node) or "" for node in ast.walk(constructor)} if constructor else set()
    return not any(name in _MAKES_PARAMETERS or name.endswith(("Linear", "Embedding")) for name in names)


def _makes_parameters(function: ast.FunctionDef) -> bool:
    """Whether a function of the engine calls a layer with parameters."""
    made = {*_MAKES_PARAMETERS, *_KNOWN_LAYERS, "Linear", "Embedding"}
    return any(called(node) in made for node in ast.walk(function))


class _Bare(ast.NodeTransformer):
    """Without docstrings, annotations, and imports from the engine, whose names stand in for themselves."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        self.generic_visit(node)
        node.returns = None
        kept = [one for one in node.decorator_list if dotted_name(one) in _KEPT_DECORATORS]
        node.decorator_list = list(kept)
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST | None:
        self.generic_visit(node)
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([node.target], node.value), node)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        engine = node.level or (node.module or "").startswith(("sglang", "vllm"))
        return ast.copy_location(ast.Pass(), node) if engine else node


def bare(function: ast.FunctionDef) -> ast.FunctionDef:
    """A function without what is of no account when it runs on stand-ins."""
    found = _Bare().visit(copy.deepcopy(function))
    assert isinstance(found, ast.FunctionDef)
    return ast.fix_missing_locations(found)


# ---- loaders -------------------------------------------------------------------------------------------------------

_LOADER = "load_weights"
_UTILITIES = "model_executor/models/utils.py"
_LINEAR = "model_executor/layers/linear.py"


def loader(syntax: Syntax, cls: ClassRef) -> CutOut:
    """The `load_weights` of a class as a file of its own, with a class `Drafter` and what its loading goes through.

    For SGLang these are the ancestors whose loaders it calls, and of all of them the methods that they hand the
    weights to; other methods do nothing. For vLLM they are the inner model, `AutoWeightsLoader`, `WeightsMapper`
    and the fused layers.

    Raises:
        UnreadableError: vLLM's inner model is not to be found.
    """
    source = _vllm_loader(syntax, cls) if syntax.tree.package == "vllm." else _sglang_loader(syntax, cls)
    return CutOut({_LOADER: {"source": source, "imports": {}, "layers": []}}, (_LOADER, "Drafter"))


def _sglang_loader(syntax: Syntax, cls: ClassRef) -> str:
    bases = "Module"
    found = syntax.function(cls.module, "get_layer_id") or _of_ancestors(syntax, cls, "get_layer_id")
    parts = [ast.unparse(bare(found[1]))] if found else []
    owners = [owner for owner in (cls, *syntax.bases(cls)) if owner.method(_LOADER) is not None]
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
    """The loader of a class and what of the class it uses."""
    waiting = [_LOADER]
    taken: dict[str, ast.FunctionDef] = {}
    tables: list[ast.Assign] = []
    while waiting:
        name = waiting.pop()
        function = owner.method(name)
        if function is None or name in taken:
            continue
        hands_on = name == _LOADER or "weights" in [argument.arg for argument in function.args.args]
        taken[name] = bare(function) if hands_on else _empty(function)
        if hands_on:
            attributes = (node for node in ast.walk(function) if isinstance(node, ast.Attribute))
            used = {node.attr for node in attributes if dotted_name(node.value) == "self"}
            waiting += sorted(used)
            for node in owner.node.body:
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in used:
                    tables.append(node)
    return [ast.unparse(node) for node in (*tables, *taken.values())]


def _empty(function: ast.FunctionDef) -> ast.FunctionDef:
    """A method of that name that does nothing, whatever it is given."""
    parsed = ast.parse(f"def {function.name}(self, *args, **kwargs):\n    pass").body[0]
    assert isinstance(parsed, ast.FunctionDef)
    return parsed


def _vllm_loader(syntax: Syntax, cls: ClassRef) -> str:
    inner = inner_model(syntax, cls)
    utilities, linear = syntax.module(_UTILITIES), syntax.module(_LINEAR)
    if inner is None or utilities is None:
        raise UnreadableError("its inner model is not understood", cls.source)
    tied = utilities.functions.get("_get_tied_embedding_params")
    parts = ["from __future__ import annotations", *([ast.unparse(bare(tied))] if tied else [])]
    for name in ("WeightsMapper", "AutoWeightsLoader"):
        if name in utilities.classes:
            node = copy.deepcopy(utilities.classes[name].node)
            node.body = [bare(one) if isinstance(one, ast.FunctionDef) else one for one in node.body]
            parts.append(ast.unparse(node))
    for name in FUSED.values():
        parts.append(_only_loading(name, linear.classes.get(name) if linear else None))
    return "\n\n".join([*parts, _only_loading("Inner", inner), _only_loading("Drafter", cls)])


def _only_loading(name: str, cls: ClassRef | None) -> str:
    """A class with the loader of `cls` and its table of names, and nothing else of it."""
    body: list[str] = []
    for node in cls.node.body if cls else ():
        if isinstance(node, ast.Assign) and dotted_name(node.targets[0]) == "hf_to_vllm_mapper":
            body.append(ast.unparse(node))
        elif isinstance(node, ast.FunctionDef) and node.name == _LOADER:
            body.append(ast.unparse(bare(node)))
    lines = "\n".join(body) or "pass"
    return f"class {name}(Module):\n{_indented(lines)}"


def inner_model(syntax: Syntax, cls: ClassRef) -> ClassRef | None:
    """The class of `self.model`; None if it is not understood."""
    constructor = cls.method("__init__")
    for node in ast.walk(constructor) if constructor else ():
        if isinstance(node, ast.Assign) and dotted_name(node.targets[0]) == "self.model":
            found = syntax.resolve(cls.module, called(node.value) or "")
            if found is not None:
                return found
    return None


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())
