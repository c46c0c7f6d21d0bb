"""What a target's class must have for EAGLE-3 in a release, and what each class lacks: read by syntax.

SGLang asks a target's class for three things: a hook that is told which states to capture, the weights of embedding
and head, and a decoder that reads what the hook writes. Each is looked for in the class that runs: through ancestors,
through a wrapper's language model, through a parameter of the constructor that says which inner class is built. vLLM
asks for one interface. What cannot be followed is said to be undecided.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from eagle3lab.engines.extract.sglang.discover import MODELS, SETTER, descendants, registered
from eagle3lab.engines.extract.syntax import ClassRef, Module, Syntax, called, dotted_name, text_of
from eagle3lab.engines.extract.tree import SourceTree

What = Literal["hook", "embeddings", "decoder", "interface"]
WEIGHTS = "get_embed_and_head"
_INTERFACE = "SupportsEagle3"
_VLLM_MODELS = "model_executor/models/"
_DEPTH = 6


@dataclass(frozen=True, slots=True)
class Lack:
    """One thing that a target's class does not have.

    Attributes:
        what: "hook" (nothing is told which states to capture), "embeddings" (no method gives embedding and head),
            "decoder" (its decoder does not read what the hook writes), "interface" (vLLM's, for EAGLE-3).
        reason: In a sentence, with class names.
        source: File and line that it rests on, "models/qwen3_vl.py:1638".
        sure: False where the class could not be followed to the end: then it may have it.
    """

    what: What
    reason: str
    source: str
    sure: bool = True


def read_lacks(tree: SourceTree, kind: str) -> dict[str, list[Lack]]:
    """Registered target class to what it lacks: of SGLang the classes that have a hook at all, of vLLM every one."""
    syntax = Syntax(tree)
    if kind == "vllm":
        return _vllm(syntax)
    roots = {cls.name for m in syntax.modules_holding(SETTER, MODELS) for cls in _defining(m, SETTER)}
    places = {name: m.file for m in syntax.modules_holding(SETTER, MODELS) for name in m.classes}
    asked = _asked(syntax)
    found: dict[str, list[Lack]] = {}
    for name, file in {
        **descendants(syntax, roots),
        **{n: f for n, f in places.items() if n in roots},
    }.items():
        module = syntax.module(file)
        cls = module.classes.get(name) if module else None
        if module is None or cls is None or name not in registered(module):
            continue
        hook = syntax.method(cls, SETTER)
        if hook is None:
            continue
        lacks = [_embeddings(syntax, cls, asked)] if asked else []
        lacks.append(_decoder(syntax, cls, *hook))
        found[name] = [lack for lack in lacks if lack is not None]
    for module in syntax.modules_holding("def __getattr__", MODELS):
        for cls in _defining(module, "__getattr__"):
            if cls.name in registered(module) and cls.name not in found:
                reason = f"{cls.name} hands on what it does not have itself: what it has is not followed"
                found[cls.name] = [Lack("hook", reason, str(cls.source), sure=False)]
    return dict(sorted(found.items()))


def _defining(module: Module, method: str) -> Iterator[ClassRef]:
    return (cls for cls in module.classes.values() if cls.method(method) is not None)


def _asked(syntax: Syntax) -> str:
    """Where a speculative worker calls for the target's weights; empty where none does."""
    for module in syntax.modules_holding(f".{WEIGHTS}()", "speculative/"):
        for node in ast.walk(module.tree):
            if called(node) == WEIGHTS:
                return f"{module.file}:{module.source(node).line}"
    return ""


def _embeddings(syntax: Syntax, cls: ClassRef, asked: str, depth: int = 0) -> Lack | None:
    """What keeps the class from giving embedding and head; None where nothing does."""
    method = syntax.method(cls, WEIGHTS)
    if method is None:
        sure = syntax.method(cls, "__getattr__") is None
        reason = f"{cls.name} has no {WEIGHTS}, which the speculative worker calls"
        return Lack("embeddings", reason, asked, sure)
    owner, function = method
    if depth > _DEPTH or "hasattr" in ast.unparse(function):
        return None
    for node in ast.walk(function):
        through = dotted_name(node.func) if isinstance(node, ast.Call) else None
        match = re.fullmatch(rf"self\.(\w+)\.{WEIGHTS}", through or "")
        if match is None:
            continue
        held = _held(syntax, cls, match[1])
        lacks = [_embeddings(syntax, inner, asked, depth + 1) for inner in held]
        if lacks and all(lacks):
            return lacks[0]
        if any(lacks):
            reason = f"one of the classes that {cls.name} can hold has no {WEIGHTS}"
            return Lack("embeddings", reason, str(owner.module.source(function)), sure=False)
    return None


def _decoder(
    syntax: Syntax, cls: ClassRef, owner: ClassRef, function: ast.FunctionDef, depth: int = 0
) -> Lack | None:
    """Whether the class that the hook writes to reads it: None where it does."""
    written: dict[str, set[str]] = {}  # attribute path of the holder, "" for the class itself, to names
    for node in _taken(syntax, cls, function.body):
        for holder, name in _writes(node):
            written.setdefault(holder, set()).add(name)
        through = re.fullmatch(rf"self\.(\w+)\.{SETTER}", _callee(node))
        if through is not None and depth < _DEPTH:
            held = _held(syntax, cls, through[1])
            inner = [(one, syntax.method(one, SETTER)) for one in held]
            if not held:
                reason = f"{cls.name} hands the ids to its {through[1]}, whose class is not followed"
                return Lack("decoder", reason, str(owner.module.source(node)), sure=False)
            answers = [
                _decoder(syntax, one, *found, depth + 1)
                if found
                else Lack(
                    "hook", f"{one.name}, which {cls.name} hands the ids to, has no hook", str(one.source)
                )
                for one, found in inner
            ]
            return answers[0] if all(answers) else None
    for holder, names in written.items():
        holders = [cls] if not holder else _held(syntax, cls, holder)
        names -= {"capture_aux_hidden_states"}
        if not names:
            continue
        source = str(owner.module.source(function))
        if not holders:
            reason = f"the hook of {cls.name} writes to its {holder}, whose class is not followed"
            return Lack("decoder", reason, source, sure=False)
        if not any(_reads(syntax, one, names) for one in holders):
            reads = sorted({name for one in holders for name in _flags(syntax, one)} - names)
            other = f"; it reads {', '.join(reads)}, which nothing sets" if reads else ""
            words = f"writes {', '.join(sorted(names))}, and {holders[0].name} does not read it{other}"
            return Lack("decoder", f"the hook of {cls.name} {words}", source)
    return None


def _taken(syntax: Syntax, cls: ClassRef, body: list[ast.stmt]) -> Iterator[ast.AST]:
    """The nodes of a method's statements, without the branch that a `hasattr(self.x, …)` excludes."""
    for node in body:
        if isinstance(node, ast.If) and called(node.test) == "hasattr" and isinstance(node.test, ast.Call):
            holder = (dotted_name(node.test.args[0]) or "").removeprefix("self.")
            held = _held(syntax, cls, holder)
            has = [syntax.method(one, text_of(node.test.args[1]) or "") is not None for one in held]
            if has and (all(has) or not any(has)):
                yield from _taken(syntax, cls, node.body if all(has) else node.orelse)
                continue
        yield from ast.walk(node)


def _callee(node: ast.AST) -> str:
    return (dotted_name(node.func) or "") if isinstance(node, ast.Call) else ""


def _writes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """(holder, attribute) of `self.holder.attribute = …` and of `setattr(self.holder.layers[i], "attribute", …)`."""
    for target in node.targets if isinstance(node, ast.Assign) else ():
        name = dotted_name(target) or ""
        if name.startswith("self."):
            holder, _, attribute = name.removeprefix("self.").rpartition(".")
            yield holder.partition(".")[0], attribute
    if _callee(node) == "setattr" and isinstance(node, ast.Call) and len(node.args) == 3:
        holder = (
            dotted_name(node.args[0].value if isinstance(node.args[0], ast.Subscript) else node.args[0]) or ""
        )
        parts = holder.split(".")
        stated = text_of(node.args[1])
        if parts[0] == "self" and len(parts) > 1 and stated is not None:
            yield "" if parts[1:] == ["layers"] else parts[1], stated


def _reads(syntax: Syntax, cls: ClassRef, names: set[str]) -> bool:
    """Whether a method of the class, other than a hook or the constructor, reads one of these attributes."""
    seen: set[str] = set()
    for owner in (cls, *syntax.bases(cls)):
        for method in owner.node.body:
            if not isinstance(method, ast.FunctionDef) or method.name in seen:
                continue
            if f"super().{method.name}(" not in ast.unparse(method):
                seen.add(method.name)
            if method.name == "__init__" or method.name.startswith("set_"):
                continue
            if any(_reading(node) in names for node in ast.walk(method)):
                return True
    return False


def _reading(node: ast.AST) -> str | None:
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        return node.attr
    if _callee(node) == "getattr" and isinstance(node, ast.Call) and len(node.args) > 1:
        return text_of(node.args[1])
    return None


def _flags(syntax: Syntax, cls: ClassRef) -> set[str]:
    """Attributes about capturing that the class reads outside its hooks."""
    return {
        name
        for owner in (cls, *syntax.bases(cls))
        for method in owner.node.body
        if isinstance(method, ast.FunctionDef) and not method.name.startswith(("set_", "__init__"))
        for node in ast.walk(method)
        if (name := _reading(node)) and re.search(r"layers?_to_capture$", name)
    }


def _held(syntax: Syntax, cls: ClassRef, attribute: str) -> list[ClassRef]:
    """The classes that the constructor can put into `self.attribute`, [] where they cannot be told."""
    for owner in (cls, *syntax.bases(cls)):
        init = owner.method("__init__")
        values = [
            node.value
            for node in ast.walk(init or ast.Pass())
            if isinstance(node, ast.Assign)
            and any(dotted_name(t) == f"self.{attribute}" for t in node.targets)
        ]
        found = [one for value in values for one in _built(syntax, cls, owner, value)]
        if values:
            return list({one.name: one for one in found}.values())
    return []


def _built(syntax: Syntax, cls: ClassRef, owner: ClassRef, value: ast.expr) -> Iterator[ClassRef]:
    if isinstance(value, ast.IfExp):
        yield from _built(syntax, cls, owner, value.body)
        yield from _built(syntax, cls, owner, value.orelse)
        return
    name = _callee(value)
    if name.startswith("self.") and name.count(".") == 1 and (stated := _stated(cls, syntax, name[5:])):
        yield stated
        return
    if name.startswith("self.") and (method := syntax.method(cls, name.removeprefix("self."))):
        for node in ast.walk(method[1]):
            if isinstance(node, ast.Return) and node.value is not None:
                yield from _built(syntax, cls, method[0], node.value)
        return
    found = syntax.resolve(owner.module, name) or _default(syntax, cls, name)
    if found is not None:
        yield found


def _stated(cls: ClassRef, syntax: Syntax, attribute: str) -> ClassRef | None:
    """The class that an attribute of the class itself names: `body_cls = Qwen3_5Model`."""
    for owner in (cls, *syntax.bases(cls)):
        for node in owner.node.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(node, ast.Assign | ast.AnnAssign) and any(
                isinstance(t, ast.Name) and t.id == attribute for t in targets
            ):
                return syntax.resolve(owner.module, dotted_name(node.value or node) or "")
    return None


def _default(syntax: Syntax, cls: ClassRef, parameter: str) -> ClassRef | None:
    """The class that a parameter of the constructor defaults to, in the class that runs."""
    for owner in (cls, *syntax.bases(cls)):
        init = owner.method("__init__")
        if init is None:
            continue
        names = [argument.arg for argument in init.args.args]
        defaults = dict(zip(reversed(names), reversed(init.args.defaults), strict=False))
        default = defaults.get(parameter)
        if default is not None:
            return syntax.resolve(owner.module, dotted_name(default) or "")
    return None


# ---- vLLM ----------------------------------------------------------------------------------------------------------

_HEADER = re.compile(r"^class\s+(\w+)\s*\(([^)]*)\)", re.MULTILINE)
_REGISTERED = re.compile(r'"(\w+)":\s*\(\s*"([\w.]+)",\s*"(\w+)"')


def _vllm(syntax: Syntax) -> dict[str, list[Lack]]:
    """Every registered architecture, with the interface lacking where neither its class nor an ancestor declares it."""
    bases: dict[str, set[str]] = {}
    for file in syntax.tree.files:
        if file.startswith(_VLLM_MODELS):
            for match in _HEADER.finditer(syntax.tree.text(file) or ""):
                bases.setdefault(match[1], set()).update(re.findall(r"\w+", match[2]))
    known = {name for name, parents in bases.items() if _INTERFACE in parents}
    while more := {name for name, parents in bases.items() if parents & known} - known:
        known |= more
    file = f"{_VLLM_MODELS}registry.py"
    found = {}
    for match in _REGISTERED.finditer(syntax.tree.text(file) or ""):
        name, module, cls = match.groups()
        reason = f"{cls}, which serves {name}, does not declare {_INTERFACE}"
        where = f"{_VLLM_MODELS}{module.replace('.', '/')}.py"
        found[name] = [] if cls in known else [Lack("interface", reason, where, sure=cls in bases)]
    return dict(sorted(found.items()))
