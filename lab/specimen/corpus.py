"""Chat dialogues made from Python's own documentation: the text that the specimen is trained on.

The text comes from the running Python alone (docstrings of a fixed list of standard modules and
`pydoc_data.topics`), so that the specimen can be remade on any machine without a download. Python's
documentation is under the PSF licence, which allows redistribution.

The domain is small on purpose: fixed question and answer forms around the documentation's own words. A
target of two million parameters learns it well, and what a target says with little doubt a drafter can
learn to foresee.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType

#: Standard modules whose import has no side effect and that exist on every platform.
MODULES = (
    *("argparse", "array", "base64", "binascii", "bisect", "builtins", "bz2", "calendar"),
    *("cmath", "collections", "colorsys", "contextlib", "copy", "csv"),
    *("dataclasses", "datetime", "difflib", "enum", "errno", "fileinput"),
    *("filecmp", "fnmatch", "fractions", "functools", "gc", "getpass", "glob", "graphlib", "gzip"),
    *("hashlib", "heapq", "hmac", "html", "io", "itertools", "json", "keyword"),
    *("linecache", "locale", "lzma", "math", "mimetypes", "numbers", "operator", "os", "os.path"),
    *("pathlib", "pickle", "platform", "pprint", "queue", "quopri", "random", "re", "reprlib", "sched"),
    *("secrets", "shelve", "shlex", "shutil", "signal", "stat", "statistics", "string", "struct"),
    *("subprocess", "sys", "tempfile", "textwrap", "threading", "time", "timeit", "token"),
    *("unicodedata", "urllib.parse", "uuid"),
    *("weakref", "zipfile", "zlib"),
)

#: Characters of a docstring's first paragraph that an answer quotes; what comes later is left out.
SUMMARY_LIMIT = 150
#: One entry in so many never appears in training, and one dialogue in so many of the others.
HELD_OUT_ONE_IN = 32


@dataclass(frozen=True, slots=True)
class Entry:
    """One documented object. `signature` is empty where Python knows none; `summary` is one line."""

    name: str
    kind: str
    parent: str
    signature: str
    summary: str


@dataclass(frozen=True, slots=True)
class Dialogue:
    """One question and its answer.

    `split` is `train`, `new-entry` (the object never appears in training) or `new-question` (the object does,
    but not under this question).
    """

    question: str
    answer: str
    split: str

    def messages(self) -> list[dict[str, str]]:
        """The dialogue in the form that chat templates take."""
        return [{"role": "user", "content": self.question}, {"role": "assistant", "content": self.answer}]


def _what(entry: Entry) -> tuple[str, str]:
    return (
        f"What is {entry.name}?",
        f"{entry.name} is a {entry.kind} of {entry.parent}. The documentation says: {entry.summary}",
    )


def _call(entry: Entry) -> tuple[str, str]:
    if not entry.signature:
        return (
            f"How do I use {entry.name}?",
            f"{entry.name} is a {entry.kind} of {entry.parent}. It is used like this: {entry.name}. "
            f"The documentation says: {entry.summary}",
        )
    return (
        f"How do I call {entry.name}?",
        f"{entry.name} is a {entry.kind} of {entry.parent}. "
        f"It is called like this: {entry.name}{entry.signature}. "
        f"The documentation says: {entry.summary}",
    )


def _where(entry: Entry) -> tuple[str, str]:
    short = entry.name.rpartition(".")[2]
    return (
        f"Where do I find {short} of {entry.parent}?",
        f"{short} is a {entry.kind} of {entry.parent}. Its full name is {entry.name}. "
        f"The documentation says: {entry.summary}",
    )


#: The forms in which an entry is asked for: each gives question and answer.
QUESTION_FORMS: tuple[Callable[[Entry], tuple[str, str]], ...] = (_what, _call, _where)


def _summary(text: str | None) -> str:
    """A docstring's first paragraph on one line, cut after a sentence or a word; empty if there is none."""
    paragraphs = inspect.cleandoc(text or "").split("\n\n")
    # Built-in functions repeat their signature as a first paragraph.
    lines = [p for p in paragraphs if p and not re.match(r"^[\w.]+\(.*\)( ->.*)?$", p, re.DOTALL)]
    if not lines:
        return ""
    line = " ".join(lines[0].split())
    if not line.isascii() or not line.isprintable():
        return ""
    sentence = re.match(r"^.{20,}?[.!?](?= |$)", line)
    if sentence and len(sentence[0]) <= SUMMARY_LIMIT:
        return sentence[0]
    return textwrap.shorten(line, SUMMARY_LIMIT, placeholder=" ...")


def _signature(value: object) -> str:
    """`(a, b=1)` without annotations; empty where Python knows none or its text differs from run to run."""
    try:
        signature = inspect.signature(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return ""
    empty = inspect.Parameter.empty
    plain = [p.replace(annotation=empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return "" if " at 0x" in text or "<" in text or len(text) > 90 else text


def _public_names(module: ModuleType) -> list[str]:
    names = getattr(module, "__all__", None) or vars(module)
    return sorted(name for name in names if not name.startswith("_"))


def entries(modules: tuple[str, ...] = MODULES) -> list[Entry]:
    """Every documented public function, class and method of `modules`, each once, in a fixed order."""
    found: dict[str, Entry] = {}
    seen: set[str] = set()
    for module_name in modules:
        for entry in _module_entries(importlib.import_module(module_name), module_name):
            # An object that several modules export, or a docstring that many share, is taken once.
            if entry.summary and entry.summary not in seen:
                seen.add(entry.summary)
                found.setdefault(entry.name, entry)
    return list(found.values())


def _module_entries(module: ModuleType, module_name: str) -> Iterator[Entry]:
    for name in _public_names(module):
        value = getattr(module, name, None)
        if inspect.isclass(value):
            if value.__module__.partition(".")[0].lstrip("_") != module_name.partition(".")[0]:
                continue
            full = f"{module_name}.{name}"
            yield Entry(
                full, "class", f"the module {module_name}", _signature(value), _summary(value.__doc__)
            )
            for method in sorted(vars(value)):
                member = vars(value)[method]
                if not method.startswith("_") and callable(member):
                    parent = f"the class {full}"
                    doc = getattr(member, "__doc__", None)
                    yield Entry(f"{full}.{method}", "method", parent, _signature(member), _summary(doc))
        elif inspect.isroutine(value):
            full = f"{module_name}.{name}"
            yield Entry(
                full, "function", f"the module {module_name}", _signature(value), _summary(value.__doc__)
            )


def _one_in(key: str, count: int) -> bool:
    """True for one key in `count`, the same ones on every machine and in every run."""
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big") % count == 0


def dialogues(modules: tuple[str, ...] = MODULES) -> list[Dialogue]:
    """All dialogues, train and held out (see `Dialogue.split`), in a fixed order.

    Topics of the language reference are asked for by name and quoted from their first paragraphs.
    """
    result = []
    for entry in entries(modules):
        hidden = _one_in(entry.name, HELD_OUT_ONE_IN)
        for number, form in enumerate(QUESTION_FORMS):
            question, answer = form(entry)
            unasked = _one_in(f"{number}:{entry.name}", HELD_OUT_ONE_IN)
            split = "new-entry" if hidden else "new-question" if unasked else "train"
            result.append(Dialogue(question, answer, split))
    result.extend(Dialogue(question, answer, "train") for question, answer in _topics())
    return result


def _topics() -> Iterator[tuple[str, str]]:
    topics = importlib.import_module("pydoc_data.topics").topics
    for name in sorted(topics):
        title, _, body = topics[name].partition("\n")
        text = " ".join(body.replace("*", " ").replace("=", " ").split())
        if text.isascii():
            yield f"Explain the topic {name}.", f"{title}. {textwrap.shorten(text, 500, placeholder=' ...')}"
