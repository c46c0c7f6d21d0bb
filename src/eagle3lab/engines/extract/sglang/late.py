"""What stops a server after its weights are loaded: attention backends that refuse the target, the head or the tree.

Read from the registry of attention backends, from the factory that gives the drafter its own, and from the classes
that both construct. Kept are the refusals whose conditions are all about the launch arguments, the machine's compute
capability, and whether the model's attention is MLA.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Iterator

from eagle3lab.engines.arguments.rules import LatePlace, LateRule
from eagle3lab.engines.extract.syntax import ClassRef, Module, Syntax, called, dotted_name, text_of

_REGISTRY, _FACTORY = "layers/attention/attention_registry.py", "speculative/draft_utils.py"
_REGISTERS = "register_attention_backend"
_PLACES: dict[str, LatePlace] = {
    "create_decode_backend": "draft decode",
    "create_draft_extend_backend": "draft extend",
}
_ARGUMENTS = re.compile(r"(?:\w+\.)*(?:server_args|get_global_server_args\(\)|get_spec\(\))\.(\w+)")
_OWN = {"topk": "speculative_eagle_topk", "speculative_num_steps": "speculative_num_steps"}
_KNOWN = {"args", "mla", "major", "minor"}


def read_late(syntax: Syntax) -> tuple[LateRule, ...]:
    """The refusals; none where the release has neither file."""
    rules = []
    registry = syntax.module(_REGISTRY)
    for function in registry.functions.values() if registry else ():
        for decorator in function.decorator_list:
            if called(decorator) == _REGISTERS and isinstance(decorator, ast.Call) and registry:
                name = text_of(decorator.args[0]) or ""
                rules += list(
                    _Walk(syntax, registry, None, "runner", name).block(function.body, function, ())
                )
    factory = syntax.module(_FACTORY)
    cls = factory.classes.get("DraftBackendFactory") if factory else None
    for method, place in _PLACES.items():
        made = cls.method(method) if cls else None
        if factory is not None and cls is not None and made is not None:
            rules += list(_by_map(syntax, factory, cls.node, made, place))
    return tuple(dict.fromkeys(rules))


def _by_map(
    syntax: Syntax, module: Module, cls: ast.ClassDef, function: ast.FunctionDef, place: LatePlace
) -> Iterator[LateRule]:
    """What the factory makes by the backend's name, and that it has nothing for other names."""
    made = next((node for node in ast.walk(function) if isinstance(node, ast.Dict)), None)
    chosen = next((node for node in ast.walk(function) if called(node) == "_create_backend"), None)
    methods = {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef)}
    raised = next(
        (node for node in ast.walk(methods["_create_backend"]) if isinstance(node, ast.Raise)), None
    )
    if made is None or not isinstance(chosen, ast.Call) or raised is None:
        return
    walk = _Walk(syntax, module, methods, place, "")
    early = tuple(walk.early(function.body))
    names = [name for name in map(text_of, made.keys) if name]
    template = next((text for text in map(text_of, reversed(chosen.args)) if text), "")
    where = str(module.source(raised))
    yield LateRule(place, "", (*early, f"backend not in {names!r}"), "ValueError", repr(template), where)
    for key, value in zip(made.keys, made.values, strict=True):
        one = _Walk(syntax, module, methods, place, text_of(key) or "")
        ways = [(value, early)]
        if isinstance(value, ast.IfExp):
            test = one.text(value.test)
            ways = [(value.body, (*early, test)), (value.orelse, (*early, f"not ({test})"))]
        for way, when in ways:
            name = (dotted_name(way) or "").removeprefix("self.")
            if name in methods:
                yield from one.block(methods[name].body, methods[name], when)


class _Walk:
    """The refusals on the ways through one function, and through what it constructs.

    Args:
        syntax: The release.
        module: The function's file.
        methods: Methods of its class by name; None for a plain function.
        place: Where the backend is made.
        backend: Its name.
        owner: The class whose constructor it is; None for others.
    """

    def __init__(
        self,
        syntax: Syntax,
        module: Module,
        methods: dict[str, ast.FunctionDef] | None,
        place: LatePlace,
        backend: str,
        owner: ClassRef | None = None,
    ) -> None:
        self.owner = owner
        self.syntax = syntax
        self.module = module
        self.methods = methods or {}
        self.place = place
        self.backend = backend

    def text(self, node: ast.expr) -> str:
        """An expression in terms of `args`, `mla`, `major` and `minor`."""
        return ast.unparse(_Terms(self.module).visit(copy.deepcopy(node)))

    def early(self, body: list[ast.stmt]) -> Iterator[str]:
        """Conditions on the arguments that lead past all that follows, turned round."""
        for node in body:
            if isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return) and not node.orelse:
                test = self.text(node.test)
                if _is_known(test):
                    yield f"not ({test})"

    def block(
        self, body: list[ast.stmt], function: ast.FunctionDef, when: tuple[str, ...]
    ) -> Iterator[LateRule]:
        """The refusals among some statements of `function`, which are reached under `when`."""
        for node in body:
            if isinstance(node, ast.If):
                test = self.text(node.test)
                yield from self.block(node.body, function, (*when, test))
                yield from self.block(node.orelse, function, (*when, f"not ({test})"))
                if isinstance(node.body[-1], ast.Return | ast.Raise) and not node.orelse:
                    when = (*when, f"not ({test})")
            elif isinstance(node, ast.Assert):
                said = node.msg if node.msg is not None else ast.Constant("")
                yield from self._rule((*when, f"not ({self.text(node.test)})"), "AssertionError", said, node)
            elif isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                said = node.exc.args[0] if node.exc.args else ast.Constant("")
                yield from self._rule(when, called(node.exc) or "Exception", said, node)
            elif isinstance(node, ast.Return) and node.value is not None:
                yield from self._constructed(node.value, function, when)
            elif isinstance(node, ast.Expr) and ast.unparse(node).startswith("super().__init__("):
                above = self.syntax.bases(self.owner) if self.owner is not None else ()
                inherited = next((base for base in above if base.method("__init__")), None)
                if inherited is not None:
                    yield from self._initialised(inherited, when)

    def _rule(
        self, when: tuple[str, ...], exception: str, said: ast.expr, node: ast.stmt
    ) -> Iterator[LateRule]:
        if all(map(_is_known, when)):
            where = str(self.module.source(node))
            yield LateRule(self.place, self.backend, when, exception, self.text(said), where)

    def _constructed(
        self, value: ast.expr, function: ast.FunctionDef, when: tuple[str, ...]
    ) -> Iterator[LateRule]:
        for node in ast.walk(value):
            name = called(node)
            if name is None:
                continue
            if name in self.methods:
                yield from self.block(self.methods[name].body, self.methods[name], when)
            for imported in ast.walk(function):
                if not isinstance(imported, ast.ImportFrom) or not (imported.module or "").startswith(
                    "sglang.srt."
                ):
                    continue
                original = next((a.name for a in imported.names if (a.asname or a.name) == name), None)
                file = f"{str(imported.module).removeprefix('sglang.srt.').replace('.', '/')}.py"
                there = self.syntax.module(file) if original else None
                cls = there.classes.get(original or "") if there else None
                if cls is not None:
                    yield from self._initialised(cls, when)

    def _initialised(self, cls: ClassRef, when: tuple[str, ...]) -> Iterator[LateRule]:
        """What the constructor of a class refuses, its own or that which it inherits."""
        found = self.syntax.method(cls, "__init__")
        if found is not None:
            owner, made = found
            inner = _Walk(self.syntax, owner.module, None, self.place, self.backend, owner)
            yield from inner.block(made.body, made, when)


class _Terms(ast.NodeTransformer):
    """The release's ways of asking, in one form."""

    def __init__(self, module: Module) -> None:
        self.module = module

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """An argument, or whether the model is MLA."""
        if node.attr in ("use_mla_backend", "use_mla"):
            return ast.Name("mla", ast.Load())
        match = _ARGUMENTS.fullmatch(ast.unparse(node))
        if match is not None:
            return ast.parse(f"args.{match[1]}", mode="eval").body
        if isinstance(node.value, ast.Name) and node.value.id == "self" and node.attr in _OWN:
            return ast.parse(f"args.{_OWN[node.attr]}", mode="eval").body
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A parameter that is an argument; `_is_musa`, which is asked once for the module."""
        if node.id in _OWN:
            return ast.parse(f"args.{_OWN[node.id]}", mode="eval").body
        stated = self.module.constants.get(node.id)
        asked = called(stated) if stated is not None else None
        return ast.Call(ast.Name(asked, ast.Load()), [], []) if asked and asked.startswith("is_") else node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """The method of older releases, and the capability in one piece."""
        if called(node) == "use_mla_backend":
            return ast.Name("mla", ast.Load())
        self.generic_visit(node)
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """`torch.cuda.get_device_capability()[0]`."""
        if called(node.value) == "get_device_capability" and isinstance(node.slice, ast.Constant):
            return ast.Name("minor" if node.slice.value == 1 else "major", ast.Load())
        self.generic_visit(node)
        return node


def _is_known(condition: str) -> bool:
    """Whether a condition is about what is known of a launch."""
    tree = ast.parse(condition, mode="eval")
    calls = {
        node.func.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - calls
    plain = not any(
        isinstance(node, ast.Call) and not isinstance(node.func, ast.Name) for node in ast.walk(tree)
    )
    return plain and names <= _KNOWN and all(name.startswith("is_") for name in calls)
