"""vLLM's registry of models, the classes in it that draft, and those that can be drafted for."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping

from eagle3lab.engines.extract.model import Drafter, Shift, Target, Unknown
from eagle3lab.engines.extract.syntax import ClassRef, Syntax, UnreadableError, dotted_name, text_of
from eagle3lab.engines.facts import AllowList, DrafterClass, DrafterKind, Source

MODELS = "model_executor/models/"
REGISTRY = f"{MODELS}registry.py"
SPECULATIVE = "config/speculative.py"
_DRAFTERS = "_SPECULATIVE_DECODING_MODELS"
_INTERFACES = f"{MODELS}interfaces.py"
_CAN_CAPTURE = "SupportsEagle3"
# `get_eagle3_aux_hidden_state_layers` until 0.16, then with "default" in it.
_DEFAULTS = re.compile(r"get_eagle3_(default_)?aux_hidden_state_layers")
_HEADER = re.compile(r"^class\s+(\w+)\s*\(([^)]*)\)\s*:", re.MULTILINE)

# Architecture to file, class and line.
Entries = dict[str, tuple[str, str, Source]]


def read_registry(syntax: Syntax) -> tuple[Entries, Entries]:
    """The targets and the drafters that the release registers."""
    module = syntax.module(REGISTRY)
    targets: Entries = {}
    drafters: Entries = {}
    for node in module.tree.body if module else ():
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Dict) or module is None:
            continue
        found = drafters if dotted_name(node.targets[0]) == _DRAFTERS else targets
        for key, value in zip(node.value.keys, node.value.values, strict=True):
            name = text_of(key)
            parts = [text_of(part) for part in value.elts] if isinstance(value, ast.Tuple) else []
            if name is not None and key is not None and len(parts) == 2 and parts[0] and parts[1]:
                found[name] = (_file(parts[0]), parts[1], module.source(key))
    return targets, drafters


def _file(module: str) -> str:
    """The file that an entry names: a bare name lies with the other models, a dotted one where it says."""
    dotted = module.removeprefix("vllm.").replace(".", "/")
    return f"{dotted}.py" if module.startswith("vllm.") else f"{MODELS}{dotted}.py"


def _dotted(file: str) -> str:
    """The module that a file is."""
    return f"vllm.{file.removesuffix('.py').replace('/', '.')}"


def find_drafters(syntax: Syntax, entries: Entries) -> tuple[Drafter, ...]:
    """Every registered drafter, by the name of its architecture."""
    found = []
    for name, (file, cls_name, line) in sorted(entries.items()):
        module = syntax.module(file)
        cls = syntax.resolve(module, cls_name) if module else None
        source = line if cls is None else cls.source
        ancestors = []
        base = base_of(syntax, cls) if cls else None
        while base is not None and base.name not in ancestors:
            ancestors.append(base.name)
            base = base_of(syntax, base)
        own = cls is not None and cls.method("load_weights") is not None
        found.append(
            Drafter(name, _dotted(file), _kind(cls), tuple(ancestors), "own" if own else "inherited", source)
        )
    return tuple(found)


def base_of(syntax: Syntax, cls: ClassRef) -> ClassRef | None:
    """The first ancestor that is a model class of the engine; None if there is none."""
    return next((base for base in syntax.parents(cls) if base.module.file.startswith(MODELS)), None)


def _kind(cls: ClassRef | None) -> DrafterKind:
    """An EAGLE-3 class combines several hidden states and maps its ids; EAGLE-1 joins one with the embeddings in fc."""
    if cls is None:
        return "other"
    text, forward = ast.unparse(cls.node), cls.method("forward")
    given = {argument.arg for argument in forward.args.args} if forward else set()
    marks = ("def combine_hidden_states", "draft_id_to_target_id", "d2t")
    if "hidden_states" in given and all(mark in text for mark in marks):
        return "EAGLE-3"
    joined = re.search(
        r"self\.fc\(torch\.cat\(\(inputs?_embeds, hidden_states\)", ast.unparse(cls.module.tree)
    )
    return "EAGLE-1" if joined else "other"


def eagle3_classes(
    syntax: Syntax, entries: Entries, drafters: tuple[Drafter, ...]
) -> list[tuple[ClassRef, DrafterClass]]:
    """Every EAGLE-3 class with the architectures that lead to it, the one that is a Llama first.

    A config may leave out the "Eagle3" in front: vLLM puts it there where the name neither begins nor ends so.
    """
    prefixed = _prefixes_architectures(syntax)
    eagle3 = [drafter.name for drafter in drafters if drafter.kind == "EAGLE-3"]
    by_class: dict[tuple[str, str], list[str]] = {}
    for name in eagle3:
        by_class.setdefault(entries[name][:2], []).append(name)
    found = []
    for (file, cls_name), names in by_class.items():
        module = syntax.module(file)
        cls = syntax.resolve(module, cls_name) if module else None
        if cls is None:
            continue
        bare = [n.removeprefix("Eagle3") for n in names if prefixed and n.startswith("Eagle3")]
        others = tuple(name for name in eagle3 if name not in names)
        first = min((entries[name][2] for name in names), key=lambda source: source.line)
        found.append((cls, DrafterClass(cls_name, _dotted(file), (*names, *bare), others, first)))
    return sorted(found, key=lambda pair: (not is_llama(syntax, pair[0]), pair[1].name))


def is_llama(syntax: Syntax, cls: ClassRef) -> bool:
    """Whether a class descends from the Llama target."""
    base = base_of(syntax, cls)
    return base is not None and (base.module.file == f"{MODELS}llama.py" or is_llama(syntax, base))


def _prefixes_architectures(syntax: Syntax) -> bool:
    text = syntax.tree.text("transformers_utils/configs/eagle.py") or ""
    return "f'Eagle3{arch}'" in text or 'f"Eagle3{arch}"' in text


def find_targets(syntax: Syntax, entries: Entries) -> tuple[tuple[Target, ...], list[Unknown]]:
    """Every class that says it can hand over hidden states, sorted by name."""
    default, source = _default_layers(syntax)
    headers = _headers(syntax)
    architectures: dict[tuple[str, str], list[str]] = {}
    for name, (file, cls_name, _) in entries.items():
        owner = _owner(cls_name, file, headers)
        if owner is not None:
            architectures.setdefault(owner, []).append(name)
    targets: list[Target] = []
    unknown: list[Unknown] = []
    for file in syntax.tree.holding(_CAN_CAPTURE):
        if file == _INTERFACES:
            continue
        module = syntax.module(file)
        for match in _HEADER.finditer(syntax.tree.text(file) or ""):
            if (
                module is None
                or not re.search(rf"\b{_CAN_CAPTURE}\b", match[2])
                or match[1] not in module.classes
            ):
                continue
            cls = module.classes[match[1]]
            function = _defaults_method(cls)
            layers = default if function is None else _returned(function)
            holder = None if function is None else _delegated(function)
            if layers is None and holder is None:
                where = str(source or cls.source) if function is None else str(module.source(function))
                unknown.append(Unknown(f"targets.{cls.name}", "the default layers are not understood", where))
                continue
            names = tuple(sorted(architectures.get((file, cls.name), ())))
            shifts = () if holder else (Shift("", 0),)
            targets.append(Target(cls.name, _dotted(file), names, holder, True, layers, shifts, cls.source))
    return tuple(sorted(targets, key=lambda target: (target.name, target.module))), unknown


# Class to the files that define one of that name, with its bases there.
_Headers = dict[str, dict[str, list[str]]]


def _headers(syntax: Syntax) -> _Headers:
    """The classes of all files of models, found in their headers as text, so that few files are ever parsed."""
    found: _Headers = {}
    for file in syntax.tree.files:
        if "models/" in file and file != _INTERFACES:
            for match in _HEADER.finditer(syntax.tree.text(file) or ""):
                found.setdefault(match[1], {})[file] = re.findall(r"\w+", match[2])
    return found


def _owner(name: str, file: str, headers: _Headers, depth: int = 8) -> tuple[str, str] | None:
    """The class, with its file, from which a class has it that it can hand over hidden states; None if it cannot."""
    places = headers.get(name, {})
    for place in [file] if file in places else list(places):
        bases = places[place]
        if _CAN_CAPTURE in bases:
            return place, name
        for base in bases if depth else ():
            found = None if base == name else _owner(base, place, headers, depth - 1)
            if found is not None:
                return found
    return None


def _default_layers(syntax: Syntax) -> tuple[tuple[str, ...] | None, Source | None]:
    """What the interface itself returns, where it does."""
    module = syntax.module(_INTERFACES)
    interface = module.classes.get(_CAN_CAPTURE) if module else None
    function = _defaults_method(interface) if interface else None
    if interface is None or function is None:
        return None, None
    return _returned(function), interface.module.source(function)


def _defaults_method(cls: ClassRef) -> ast.FunctionDef | None:
    return next(
        (n for n in cls.node.body if isinstance(n, ast.FunctionDef) and _DEFAULTS.fullmatch(n.name)), None
    )


def _delegated(function: ast.FunctionDef) -> str | None:
    """`return self.language_model.get_…()`: the attribute that is asked instead."""
    returned = function.body[-1]
    found = (
        re.fullmatch(rf"self\.([\w.]+)\.{_DEFAULTS.pattern}\(\)", ast.unparse(returned.value))
        if isinstance(returned, ast.Return) and returned.value
        else None
    )
    return None if found is None else found[1]


def _returned(function: ast.FunctionDef) -> tuple[str, ...] | None:
    """`return (2, num_layers // 2, num_layers - 3)` as expressions in n; None for anything else."""
    returned = function.body[-1]
    if not isinstance(returned, ast.Return) or not isinstance(returned.value, ast.Tuple):
        return None
    layers = []
    for element in returned.value.elts:
        text = re.sub(r"^(\w*num_layers|num_hidden_layers|n)\b", "n", ast.unparse(element)).replace(" ", "")
        if not re.fullmatch(r"\d+|n(//\d+|[-+]\d+)?", text):
            return None
        layers.append(text)
    return tuple(layers)


def llama_target(targets: tuple[Target, ...]) -> Target | None:
    """The Llama target."""
    return next((target for target in targets if target.name == "LlamaForCausalLM"), None)


def read_allowed(syntax: Syntax) -> AllowList:
    """Which targets pass for EAGLE-3: a list of parts of model types, or whatever can hand over hidden states.

    Raises:
        UnreadableError: Neither is to be found.
    """
    module = syntax.module(SPECULATIVE)
    if module is None:
        raise UnreadableError("there is no config of speculation", Source(SPECULATIVE, 1, ""))
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.List):
            continue
        if dotted_name(node.targets[0]) in ("eagle3_target_supported", "aux_hidden_states_supported"):
            return AllowList(tuple(text_of(e) or "" for e in node.value.elts), module.source(node))
    runner = syntax.module("v1/worker/gpu_model_runner.py")
    asked = runner.matching("supports_eagle3(") if runner else None
    if asked is None:
        raise UnreadableError("which targets are allowed is not understood", Source(SPECULATIVE, 1, ""))
    return AllowList((), asked)


def read_methods(syntax: Syntax) -> tuple[Mapping[str, Source], Source] | None:
    """Every method of speculation with its line, and where they are listed; None if they cannot be read."""
    module = syntax.module(SPECULATIVE)
    tables: dict[str, ast.expr] = {}
    for node in module.tree.body if module else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            tables[dotted_name(node.targets[0]) or ""] = node.value.slice
    if module is None or "SpeculativeMethod" not in tables:
        return None
    found: dict[str, Source] = {}
    waiting: list[ast.expr] = [tables["SpeculativeMethod"]]
    while waiting:
        part = waiting.pop()
        text, name = text_of(part), dotted_name(part)
        if isinstance(part, ast.Tuple):
            waiting += part.elts
        elif text is not None:
            found[text] = module.source(part)
        elif name in tables:
            waiting.append(tables[name])
        elif isinstance(part, ast.Subscript):
            waiting.append(part.slice)
    return found, module.source(tables["SpeculativeMethod"])
