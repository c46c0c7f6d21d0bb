"""The syntax tree of a source tree's files: classes and their ancestors, functions, and the line of every node."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import PurePosixPath

from eagle3lab.engines.extract.tree import SourceTree
from eagle3lab.engines.facts import Source


class UnreadableError(Exception):
    """A statement has no form that is known here.

    Attributes:
        reason: What is not understood.
        source: The statement.
    """

    def __init__(self, reason: str, source: Source) -> None:
        super().__init__(reason)
        self.reason = reason
        self.source = source


_NEWLINE = re.compile(r"\r\n|\r|\n")


@dataclass(frozen=True, slots=True)
class ClassRef:
    """A class where it is defined."""

    module: Module
    node: ast.ClassDef

    @property
    def name(self) -> str:
        """Its name."""
        return self.node.name

    @property
    def source(self) -> Source:
        """Its first line."""
        return self.module.source(self.node)

    def method(self, name: str) -> ast.FunctionDef | None:
        """The method of that name in its own body; None if it only inherits one."""
        found = [n for n in self.node.body if isinstance(n, ast.FunctionDef) and n.name == name]
        return found[-1] if found else None


class Module:
    """One file, parsed."""

    def __init__(self, file: str, text: str, tree: ast.Module, package: str) -> None:
        self.file = file
        self.tree = tree
        self.package = package
        # As the parser counts them: str.splitlines would also break at form feeds.
        self._lines = _NEWLINE.split(text)

    @property
    def count(self) -> int:
        """Number of lines."""
        return len(self._lines)

    def source(self, node: ast.AST) -> Source:
        """Where `node` begins."""
        return self.line(getattr(node, "lineno", 1))

    def line(self, number: int) -> Source:
        """Line `number`, 1-based."""
        text = self._lines[number - 1].strip() if 0 < number <= len(self._lines) else ""
        return Source(self.file, number, text)

    def matching(self, words: str, start: int = 1, stop: int | None = None) -> Source | None:
        """The first line from `start` to `stop` that holds `words`."""
        for number, text in enumerate(self._lines[start - 1 : stop], start):
            if words in text:
                return self.line(number)
        return None

    @property
    def dotted(self) -> str:
        """As it is imported."""
        return self.package + self.file.removesuffix(".py").replace("/", ".")

    @cached_property
    def classes(self) -> dict[str, ClassRef]:
        """Classes of the file by name, those in top-level `if` and `try` blocks included; the last one wins."""
        return {
            node.name: ClassRef(self, node) for node in top_level(self.tree) if isinstance(node, ast.ClassDef)
        }

    @cached_property
    def functions(self) -> dict[str, ast.FunctionDef]:
        """Functions of the file by name."""
        return {node.name: node for node in top_level(self.tree) if isinstance(node, ast.FunctionDef)}

    @cached_property
    def constants(self) -> dict[str, ast.expr]:
        """What the file's top-level names are given by name; the last one wins."""
        return {
            target.id: node.value
            for node in top_level(self.tree)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }

    @cached_property
    def imported(self) -> dict[str, tuple[str, str]]:
        """Local name to (file, name there) for what is imported from other files of the engine."""
        names: dict[str, tuple[str, str]] = {}
        for node in top_level(self.tree):
            file = self._origin(node) if isinstance(node, ast.ImportFrom) else None
            if isinstance(node, ast.ImportFrom) and file is not None:
                names |= {alias.asname or alias.name: (file, alias.name) for alias in node.names}
        return names

    def _origin(self, node: ast.ImportFrom) -> str | None:
        """The file, without its ending, that an import is from; None for one of another package."""
        inside = (node.module or "").replace(".", "/")
        if node.level:
            return f"{PurePosixPath(self.file).parents[node.level - 1]}/{inside}"
        package = self.package.replace(".", "/")
        return inside.removeprefix(package) if inside.startswith(package) else None


class Syntax:
    """The files of a source tree, parsed on demand.

    Attributes:
        tree: The source tree.
        broken: Files that are not Python this interpreter can parse, with the reason.
    """

    def __init__(self, tree: SourceTree) -> None:
        self.tree = tree
        self.broken: dict[str, str] = {}
        self._modules: dict[str, Module | None] = {}

    def module(self, file: str) -> Module | None:
        """The file, parsed; None if it is absent or broken."""
        if file not in self._modules:
            self._modules[file] = self._parse(file)
        return self._modules[file]

    def modules_holding(self, word: str, under: str = "") -> Iterator[Module]:
        """The parsed files whose text holds `word`."""
        for file in self.tree.holding(word, under):
            module = self.module(file)
            if module is not None:
                yield module

    def resolve(self, module: Module, name: str) -> ClassRef | None:
        """The class that `name` means in `module`, followed through imports inside the engine."""
        seen: set[tuple[str, str]] = set()
        here: Module | None = module
        while here is not None and (here.file, name) not in seen:
            seen.add((here.file, name))
            if name in here.classes:
                return here.classes[name]
            same = here.constants.get(name)
            if isinstance(same, ast.Name):  # another name for a class
                name = same.id
                continue
            if name not in here.imported:
                return None
            file, name = here.imported[name]
            here = self.module(f"{file}.py") or self.module(f"{file}/__init__.py")
        return None

    def function(self, module: Module, name: str) -> tuple[Module, ast.FunctionDef] | None:
        """The function that `name` means in `module`, followed through imports inside the engine."""
        seen: set[str] = set()
        here: Module | None = module
        while here is not None and here.file not in seen:
            seen.add(here.file)
            if name in here.functions:
                return here, here.functions[name]
            if name not in here.imported and "*" not in here.imported:
                return None
            file, there = here.imported.get(name) or here.imported["*"]
            name = name if there == "*" else there
            here = self.module(f"{file}.py") or self.module(f"{file}/__init__.py")
        return None

    def bases(self, cls: ClassRef) -> tuple[ClassRef, ...]:
        """The ancestors inside the engine, nearest first (depth first, each once)."""
        found: list[ClassRef] = []
        self._collect(cls, found)
        return tuple(found)

    def _collect(self, cls: ClassRef, found: list[ClassRef]) -> None:
        for parent in self.parents(cls):
            if parent not in found:
                found.append(parent)
                self._collect(parent, found)

    def parents(self, cls: ClassRef) -> Iterator[ClassRef]:
        """The classes inside the engine that a class names as its bases."""
        for base in cls.node.bases:
            if not isinstance(base, ast.Name):
                continue
            # `class LlamaDecoderLayer(LlamaDecoderLayer)` names the imported class, not itself.
            parent = self._imported(cls.module, base.id) if base.id == cls.name else None
            parent = parent or self.resolve(cls.module, base.id)
            if parent is not None and parent.node is not cls.node:
                yield parent

    def _imported(self, module: Module, name: str) -> ClassRef | None:
        if name not in module.imported:
            return None
        file, name = module.imported[name]
        there = self.module(f"{file}.py")
        return None if there is None else self.resolve(there, name)

    def method(self, cls: ClassRef, name: str) -> tuple[ClassRef, ast.FunctionDef] | None:
        """The method as the class has it: its own, or that of its nearest ancestor."""
        for owner in (cls, *self.bases(cls)):
            found = owner.method(name)
            if found is not None:
                return owner, found
        return None

    def _parse(self, file: str) -> Module | None:
        text = self.tree.text(file)
        if text is None:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return Module(file, text, ast.parse(text), self.tree.package)
        except SyntaxError as error:
            self.broken[file] = f"line {error.lineno}: {error.msg}"
        except (ValueError, RecursionError, MemoryError) as error:
            self.broken[file] = f"cannot be parsed: {type(error).__name__}"
        return None


def top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements of a module, with those in top-level `if`, `try` and `with` blocks; of `if TYPE_CHECKING` the rest."""
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if isinstance(node, ast.If) and dotted_name(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        elif isinstance(node, ast.If | ast.Try | ast.With):
            for field in ("body", "orelse", "finalbody"):
                waiting += getattr(node, field, [])
            for handler in getattr(node, "handlers", []):
                waiting += handler.body


def dotted_name(node: ast.AST) -> str | None:
    """`a.b.c` for a chain of names, None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = dotted_name(node.value)
        return None if inner is None else f"{inner}.{node.attr}"
    return None


def called(node: ast.AST) -> str | None:
    """Name of the function that a call calls, without what it is looked up in; None if it is no call."""
    if not isinstance(node, ast.Call):
        return None
    name = dotted_name(node.func)
    return None if name is None else name.rpartition(".")[2]


def text_of(node: ast.AST | None) -> str | None:
    """The value of a string literal, None for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def find_scope(module: Module, dotted: str) -> range | None:
    """The lines of a class, a function or a method, `Class.method`; of the whole file for ""; None if there is none."""
    node: ast.AST = module.tree
    for part in filter(None, dotted.split(".")):
        named = [
            inner
            for inner in ast.walk(node)
            if isinstance(inner, ast.ClassDef | ast.FunctionDef) and inner.name == part and inner is not node
        ]
        if not named:
            return None
        node = named[-1]
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return range(node.lineno, (node.end_lineno or node.lineno) + 1)
    return range(1, module.count + 1)
