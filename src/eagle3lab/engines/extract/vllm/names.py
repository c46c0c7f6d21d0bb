"""vLLM's `load_weights` read as rules, statement by statement.

The drafter looks at all names, then hands them to a loader that walks its modules; the inner model has, by
release, a loop of its own or a table for the same walk. A statement that has no form known here makes the whole
loader unknown.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from eagle3lab.engines.extract.forms import UnreadableError, literal, shards
from eagle3lab.engines.extract.syntax import ClassRef, Module, Syntax, called, dotted_name, text_of
from eagle3lab.engines.facts import Prefix, Rename, Source, Special, Stacked
from eagle3lab.engines.facts.vllm import ModuleNames, Unused

UTILITIES = "model_executor/models/utils.py"
LINEAR = "model_executor/layers/linear.py"
RAISED = "the engine stops"
_WALKER = "AutoWeightsLoader"
_ROTARY = re.compile(r"rotary", re.IGNORECASE)


@dataclass(slots=True)
class _Reading:
    """The drafter's loader, as far as it was read.

    Attributes:
        module: The file.
        special: Names that end the matter, in order.
        token_map: How the token map is renamed.
        prefix: What other names get in front.
        flags: Local name to the text that was found in some name when it is true.
        unused: What is skipped.
    """

    module: Module
    special: list[Special] = field(default_factory=list)
    token_map: Rename | None = None
    prefix: Prefix | None = None
    flags: dict[str, str] = field(default_factory=dict)
    unused: list[Unused] = field(default_factory=list)

    def fail(self, reason: str, node: ast.AST) -> UnreadableError:
        return UnreadableError(reason, self.module.source(node))


def read_names(syntax: Syntax, drafter: ClassRef, inner: ClassRef) -> ModuleNames:
    """The rules by which `drafter`, whose attribute `model` is an `inner`, loads.

    Raises:
        UnreadableError: A statement has no form that is known here.
    """
    function = drafter.method("load_weights")
    if function is None:
        raise UnreadableError("has no load_weights of its own", drafter.source)
    reading = _Reading(drafter.module)
    for statement in function.body:
        _read_outer(reading, statement)
    if reading.token_map is None or reading.prefix is None:
        raise UnreadableError("what becomes of a name is not understood", drafter.module.source(function))
    walker = _Walker(syntax)
    reading.unused += walker.rotary()
    loads_itself, (renames, stacked, once) = _read_inner(syntax, inner)
    source = inner.module.source(inner.method("load_weights") or inner.node)
    return ModuleNames(
        renames=tuple(renames),
        special=tuple(reading.special),
        stacked=tuple(stacked),
        prefixes=("",),
        unmatched=RAISED,
        source=source,
        own_prefix=reading.prefix,
        optional=walker.optional(),
        unfollowed=("scale", "zero_point") if loads_itself else (),
        token_map=reading.token_map,
        unused=tuple(reading.unused),
        once=once,
        missing=walker.exception,
        missing_message=walker.message,
        inner_missing="KeyError" if loads_itself else None,
        fused_missing=_fused(syntax),
        owners=(drafter.name, inner.name),
    )


# ---- the drafter's own pass -------------------------------------------------------------------------------------


def _read_outer(reading: _Reading, node: ast.stmt) -> None:
    text = ast.unparse(node)
    if isinstance(node, ast.For):
        for statement in node.body:
            _read_name(reading, statement)
    elif isinstance(node, ast.Assign) and _target(node) in ("skip_substrs", "orig_to_new_substr"):
        reading.unused += [Unused(word, reading.module.source(node)) for word in _words(node.value)]
    elif isinstance(node, ast.If) and "raise" in text and "use_parallel_drafting" in text:
        pass  # only a drafter for parallel drafting stops here
    elif isinstance(node, ast.If):
        reading.unused += _read_unused(reading, node)
    elif not (
        re.fullmatch(
            r"model_weights = \{\}|includes_\w+ = False|loader = AutoWeightsLoader\(.*\)"
            r"|mapper = WeightsMapper\(orig_to_new_substr=orig_to_new_substr\)",
            text,
            re.DOTALL,
        )
        or text.startswith("loader.load_weights(model_weights.items()")
    ):
        raise reading.fail("a statement of the loader is not understood", node)


def _target(node: ast.Assign) -> str | None:
    return dotted_name(node.targets[0])


def _words(node: ast.expr) -> list[str]:
    elements = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
    return [word for word in map(text_of, elements) if word is not None]


def _read_name(reading: _Reading, node: ast.stmt) -> None:
    """One statement about a name."""
    text = ast.unparse(node)
    if text in ("model_weights[name] = loaded_weight", "process_eagle_weight(self, name)"):
        return
    if not isinstance(node, ast.If):
        raise reading.fail("a statement of the loop is not understood", node)
    branch: ast.If | None = node
    while branch is not None:
        _read_branch(reading, branch)
        rest = branch.orelse
        branch = rest[0] if len(rest) == 1 and isinstance(rest[0], ast.If) else None
        if rest and branch is None:
            raise reading.fail("a condition of the loop is not understood", rest[0])


def _read_branch(reading: _Reading, node: ast.If) -> None:
    """`if "x" in name:` that skips, renames, notes that it was there, or `if "x" not in name:` that prefixes."""
    test, source = ast.unparse(node.test), reading.module.source(node)
    found = re.fullmatch(r"'(\w+)' (not in|in) name", test)
    if found is None:
        raise reading.fail("a condition of the loop is not understood", node)
    word, negated = found[1], found[2] == "not in"
    lines = [ast.unparse(statement) for statement in node.body]
    prefix = re.fullmatch(r"name = '([\w.]+)' \+ name", lines[0])
    rename = re.fullmatch(rf"name = name\.replace\('{word}', '(\w+)'\)", lines[0])
    flag = re.fullmatch(r"(includes_\w+) = True", lines[-1])
    if negated and prefix and len(lines) == 1:
        reading.prefix = Prefix(prefix[1], word, source)
    elif negated:
        raise reading.fail("a condition of the loop is not understood", node)
    elif lines == ["continue"] or (lines[-1] == "continue" and "not self.use_parallel_drafting" in lines[0]):
        # A drafter for parallel drafting keeps the second kind; those are not described here.
        reading.special.append(Special(word, "skipped", source))
    elif rename and flag and len(lines) == 2:
        reading.token_map = Rename(word, rename[1], reading.module.source(node.body[0]))
        reading.special.append(Special(word, "hot_token_id", source))
        reading.flags[flag[1]] = word
    elif flag and len(lines) == 1:
        reading.flags[flag[1]] = word
    else:
        raise reading.fail("what is done with a name is not understood", node)


def _read_unused(reading: _Reading, node: ast.If) -> list[Unused]:
    """`if not CONDITION: skip_substrs.append("x")`, or `orig_to_new_substr["x"] = None`."""
    condition = re.fullmatch(r"not ([\w.]+)", ast.unparse(node.test))
    said = re.fullmatch(
        r"(?:skip_substrs\.append\('([\w.]+)'\)|orig_to_new_substr\['([\w.]+)'\] = None)",
        "\n".join(ast.unparse(statement) for statement in node.body),
    )
    if condition is None or said is None or node.orelse:
        raise reading.fail("what is skipped is not understood", node)
    source, word = reading.module.source(node.body[0]), said[1] or said[2]
    if condition[1] in reading.flags:
        return [Unused(word, source, unless_shipped=reading.flags[condition[1]])]
    switch = re.fullmatch(r"self\.model\.(\w+)", condition[1])
    if switch is None:
        raise reading.fail("when something is skipped is not understood", node)
    return [Unused(word, source, unless_on=switch[1])]


# ---- the inner model --------------------------------------------------------------------------------------------

_Rules = tuple[list[Rename], list[Stacked], bool]


def _read_inner(syntax: Syntax, inner: ClassRef) -> tuple[bool, _Rules]:
    """Whether the inner model has a loop of its own, and the rules of the loop or of the table for the walk."""
    function = inner.method("load_weights")
    if function is None:
        raise UnreadableError("has no load_weights of its own", inner.source)
    lines = [ast.unparse(statement) for statement in function.body]
    if lines == [
        f"loader = {_WALKER}(self)",
        "return loader.load_weights(weights, mapper=self.hf_to_vllm_mapper)",
    ]:
        return False, _read_mapper(syntax, inner)
    return True, _read_loop(inner.module, function)


def _read_mapper(syntax: Syntax, inner: ClassRef) -> _Rules:
    """`hf_to_vllm_mapper = WeightsMapper(orig_to_new_substr={…}, orig_to_new_stacked={…})`."""
    module = inner.module
    table = next(
        (n.value for n in inner.node.body if isinstance(n, ast.Assign) and _target(n) == "hf_to_vllm_mapper"),
        None,
    )
    if not isinstance(table, ast.Call) or called(table) != "WeightsMapper":
        raise UnreadableError("its table of names is not understood", inner.source)
    given = {keyword.arg: keyword.value for keyword in table.keywords}
    if not given.keys() <= {"orig_to_new_substr", "orig_to_new_stacked"}:
        raise UnreadableError("its table of names is not understood", module.source(table))
    renames, stacked = [], []
    for key, value in _items(given.get("orig_to_new_substr")):
        old, new = text_of(key), text_of(value)
        if old is None or new is None:
            raise UnreadableError("a rename is not between two literals", module.source(value))
        renames.append(Rename(old, new, module.source(key)))
    for key, value in _items(given.get("orig_to_new_stacked")):
        part, entry = text_of(key), literal(value)
        if part is None or not isinstance(entry, tuple) or len(entry) != 2:
            raise UnreadableError("an entry of the shards is not a literal", module.source(value))
        stacked.append(Stacked(part, str(entry[0]), entry[1], module.source(key)))
    return renames, stacked, _replaces_once(syntax)


def _items(node: ast.expr | None) -> list[tuple[ast.expr, ast.expr]]:
    if not isinstance(node, ast.Dict):
        return []
    return [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]


def _replaces_once(syntax: Syntax) -> bool:
    """Whether the mapper replaces a text once only, and applies every rule for shards."""
    module = syntax.module(UTILITIES)
    mapper = module.classes.get("WeightsMapper") if module else None
    function = mapper.method("_map_name_with_shard") if mapper else None
    if mapper is None or function is None:
        raise UnreadableError(
            "how its table of names is applied is not understood",
            mapper.source if mapper else Source(UTILITIES, 1, ""),
        )
    text = ast.unparse(function)
    if text.count("key = key.replace(substr, new_key, 1)") != 2 or "break" in text:
        raise UnreadableError(
            "how its table of names is applied is not understood", mapper.module.source(function)
        )
    return True


def _read_loop(module: Module, function: ast.FunctionDef) -> _Rules:
    """The inner model's own loop: renames, shards, and a table of parameters that raises where a name is not in it."""

    def fail(reason: str, node: ast.AST) -> UnreadableError:
        return UnreadableError(reason, module.source(node))

    tables = {_target(n): n.value for n in function.body if isinstance(n, ast.Assign)}
    loop = next((n for n in function.body if isinstance(n, ast.For)), None)
    if (
        loop is None
        or ast.unparse(tables.get("params_dict", ast.Constant(0))) != "dict(self.named_parameters())"
    ):
        raise fail("has no loop over the weights that is understood", function)
    renames: list[Rename] = []
    stacked: list[Stacked] = []
    for node in loop.body:
        text = ast.unparse(node)
        rename = re.match(r"if '([^']+)' in name:\n    name = name\.replace\('\1', '([^']+)'\)\Z", text)
        if rename:
            renames.append(Rename(rename[1], rename[2], module.source(node)))
        elif isinstance(node, ast.For):
            stacked = _read_shards(module, node, tables.get(dotted_name(node.iter)))
        elif not (
            text.startswith("if self.quant_config is not None and")  # quantised drafters only
            or re.match(r"if 'scale' in name( or 'zero_point' in name)?:", text)
            or text == "loaded_params.add(name)"
        ):
            raise fail("a statement of the loop is not understood", node)
    return renames, stacked, False


def _read_shards(module: Module, node: ast.For, table: ast.expr | None) -> list[Stacked]:
    body = [ast.unparse(statement) for statement in node.body]
    plain = [ast.unparse(statement) for statement in node.orelse]
    opening = ["if weight_name not in name:\n    continue", "name = name.replace(weight_name, param_name)"]
    if (
        not isinstance(table, ast.List)
        or body[:3] != [*opening, "param = params_dict[name]"]
        or body[-1] != "break"
        or plain[:1] != ["param = params_dict[name]"]
    ):
        raise UnreadableError("a loop over shards is not understood", module.source(node))
    return shards(module, table)


# ---- the walk over modules --------------------------------------------------------------------------------------


class _Walker:
    """The release's `AutoWeightsLoader`."""

    def __init__(self, syntax: Syntax) -> None:
        module = syntax.module(UTILITIES)
        walker = module.classes.get(_WALKER) if module else None
        if walker is None:
            raise UnreadableError(f"there is no {_WALKER}", Source(UTILITIES, 1, ""))
        self._walker = walker
        raised = [
            node
            for node in ast.walk(walker.node)
            if isinstance(node, ast.Raise)
            and isinstance(node.exc, ast.Call)
            and ast.unparse(node.exc.args[0]) == "msg"
        ]
        said = [
            node
            for node in ast.walk(walker.node)
            if isinstance(node, ast.Assign)
            and _target(node) == "msg"
            and isinstance(node.value, ast.JoinedStr)
        ]
        if len(raised) != 1 or len(said) != 1:
            raise UnreadableError("what happens to an unknown name is not understood", walker.source)
        self.exception = called(raised[0].exc) or ""  # type: ignore[arg-type]
        # Only the first sentence: the second lists every parameter.
        words = "".join(text_of(p) or "{}" for p in said[0].value.values)  # type: ignore[attr-defined]
        first = words.partition(". ")[0]
        quoted = "'{name}'" if "'{}'" not in first else "{name}"
        self.message = first.replace("{}", quoted, 1).replace("{}", "{owner}", 1)

    def optional(self) -> tuple[str, ...]:
        """Ends of names that are dropped where they lead nowhere."""
        function = self._walker.method("load_weights")
        text = ast.unparse(function) if function else ""
        return tuple(re.findall(r"self\.ignore_unexpected_suffixes\.append\('([.\w]+)'\)", text))

    def rotary(self) -> list[Unused]:
        """Names of buffers of rotary embeddings, which are always skipped."""
        for node in self._walker.node.body:
            if isinstance(node, ast.Assign) and _ROTARY.search(_target(node) or ""):
                words = [inner for inner in ast.walk(node.value) if text_of(inner) is not None]
                return [Unused(text_of(word) or "", self._walker.module.source(word)) for word in words]
        return []


def _fused(syntax: Syntax) -> str | None:
    """What a fused layer raises at a name that it does not have, where it loads its own."""
    module = syntax.module(LINEAR)
    layer = module.classes.get("QKVParallelLinear") if module else None
    function = layer.method("load_weights") if layer else None
    if layer is None or function is None:
        return None
    if "param = getattr(self, name, self)" not in ast.unparse(function):
        raise UnreadableError("how a fused layer loads is not understood", layer.module.source(function))
    return "AttributeError"  # it looks for its own weight_loader's `data`
