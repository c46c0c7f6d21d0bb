"""What a release does with its arguments before it starts, as steps that can be followed without it."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator

from eagle3lab.engines.arguments.rules import ArgumentRules, Procedure, Step, StepKind
from eagle3lab.engines.extract.sglang.context import read_context
from eagle3lab.engines.extract.sglang.late import read_late
from eagle3lab.engines.extract.sglang.options import declared
from eagle3lab.engines.extract.syntax import ClassRef, Module, Syntax, called, dotted_name, text_of

# ---- expressions -----------------------------------------------------------------------------------------------------


_ARGUMENTS = {"self", "server_args", "cfg", "view", "args", "sa"}
# What the model's class keeps as a value, and the method that it comes from.
MODEL_VALUES = {
    "has_attention_sinks": "_detect_attention_sinks",
    "has_asymmetric_kv": "has_asymmetric_kv",
}
VIEWS = {"resolving_view", "resolved_view", "record_of"}


def is_arguments(name: str) -> bool:
    """Whether a name stands for the arguments, by the names SGLang gives them."""
    return name in _ARGUMENTS


class Plain(ast.NodeTransformer):
    """Puts in `args`, `target` and `env`.

    Args:
        holder: What `self` stands for in this function.
        algorithm: Name of the class of algorithms, whose members are written as their names.
        arguments: The names that stand for the arguments in this function.
        constant: The value of a module's constant by its name; None where it has none that is known.
    """

    def __init__(
        self,
        holder: str,
        algorithm: str,
        arguments: frozenset[str],
        constant: Callable[[str], ast.expr | None],
    ) -> None:
        self.holder = holder
        self.algorithm = algorithm
        self.arguments = arguments
        self.constant = constant

    def text(self, node: ast.expr) -> str:
        """The expression as text."""
        return ast.unparse(self.visit(copy.deepcopy(node)))

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """The arguments by any of their names."""
        if node.id == "self":
            return ast.parse(self.holder, mode="eval").body
        if node.id in self.arguments:
            return ast.Name("args", node.ctx)
        known = self.constant(node.id) if isinstance(node.ctx, ast.Load) and node.id.isupper() else None
        return known or node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """`SpeculativeAlgorithm.EAGLE`, `….hf_config`."""
        if dotted_name(node.value) == self.algorithm and node.attr.isupper():
            return ast.Constant(node.attr)
        if node.attr in ("hf_config", "hf_text_config"):
            return ast.Name("target" if node.attr == "hf_config" else "text_config", ast.Load())
        if node.attr in MODEL_VALUES:
            return ast.Call(ast.Attribute(node.value, MODEL_VALUES[node.attr], ast.Load()), [], [])
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Views of the arguments, environment variables, an algorithm by its name."""
        name = called(node)
        if name in VIEWS and node.args:
            return ast.Name("args", ast.Load())
        if name == "from_string" and dotted_name(node.func) == f"{self.algorithm}.from_string":
            return self.visit(node.args[0])  # type: ignore[no-any-return]
        if name == "get" and not node.args and isinstance(node.func, ast.Attribute):
            owner = dotted_name(node.func.value) or ""
            if owner.startswith("envs."):
                return _variable(owner.removeprefix("envs."))
        if name == "is_set" and isinstance(node.func, ast.Attribute):
            variable = (dotted_name(node.func.value) or "").rpartition(".")[2]
            return ast.Call(ast.Name("is_set", ast.Load()), [ast.Constant(variable)], [])
        if name in ("get_bool_env_var", "getenv") and node.args and text_of(node.args[0]):
            return _variable(text_of(node.args[0]) or "")
        if name == "get_hf_config":
            return ast.Name("target", ast.Load())
        if name == "load" and dotted_name(node.func) == "json.load":
            return ast.Name("target", ast.Load())
        self.generic_visit(node)
        return node


def _variable(name: str) -> ast.expr:
    return ast.Attribute(ast.Name("env", ast.Load()), name, ast.Load())


# ---- what counts -----------------------------------------------------------------------------------------------------


# Besides the arguments about speculation, those that its rules read and that are decided on the way.
_COUNT = {
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "page_size",
    "device",
    "max_running_requests",
    "disable_overlap_schedule",
    "enable_mixed_chunk",
    "enable_multi_layer_eagle",
    "attn_dp_size",
    "enable_dp_attention",
    "ep_join_mode",
    "enable_lora",
    "lora_paths",
    "kv_cache_dtype",
    "moe_a2a_backend",
    "moe_runner_backend",
    "quantization",
    "tp_size",
    "dp_size",
    "pp_size",
}


def relevant(name: str) -> bool:
    """Of `args.FIELD`, or of an entry for it in a mapping that is declared later."""
    match = re.fullmatch(r"args\.(\w+)|\w+\['(\w+)'\]", name)
    field = (match[1] or match[2]) if match else ""
    return field in _COUNT or field.startswith("speculative_")


def counts(step: Step) -> bool:
    """Whether a step gives a value to a field that counts."""
    return any(relevant(name) for name in step.subject.split(", "))


def decides(step: Step) -> bool:
    """Whether a step counts by itself, whatever reads what it does."""
    return step.kind not in ("if", "else", "set", "forget", "return") or counts(step)


def tells(steps: list[Step]) -> bool:
    """Whether a function's result is about a field that counts."""
    text = " ".join(step.expression for step in steps)
    entries = [f"entry['{key}']" for key in re.findall(r"'(\w+)':", text)]
    about = any(map(relevant, [*re.findall(r"args\.\w+", text), *entries]))
    return about and any(step.kind == "return" for step in steps)


def needed(steps: list[Step]) -> list[Step]:
    """The steps that decide, what they read, and the conditions that all of these stand under."""
    needed = {number for number, step in enumerate(steps) if decides(step) or step.kind == "return"}
    while True:
        read = {name for number in needed for name in re.findall(r"\b[A-Za-z_]\w*", steps[number].expression)}
        more = {_above(steps, number) for number in needed} - {-1}
        for number, step in enumerate(steps):
            if step.kind in ("set", "forget"):
                names = {name.partition("[")[0] for name in step.subject.split(", ") if "." not in name}
                entries = "[" in step.subject and not counts(step)
                if names & read and not entries:
                    more.add(number)
        if more <= needed:
            return [step for number, step in enumerate(steps) if number in needed]
        needed |= more


def _above(steps: list[Step], number: int) -> int:
    """The condition that a step stands under, of an "else" its "if"; -1 for none."""
    step = steps[number]
    depth = step.depth if step.kind == "else" else step.depth - 1
    kinds = ("if",) if step.kind == "else" else ("if", "else")
    return next(
        (at for at in range(number - 1, -1, -1) if steps[at].depth == depth and steps[at].kind in kinds), -1
    )


# ---- procedures ------------------------------------------------------------------------------------------------------


_ENTRIES = ("__post_init__", "resolve_once")
_CHECK = "check_server_args"
_ALGORITHM_FILE, _ALGORITHM = "speculative/spec_info.py", "SpeculativeAlgorithm"
_MODEL_FILE, _MODEL = "configs/model_config.py", "ModelConfig"
_ABOUT = ("/_handle_spec", "speculative_", "_speculative", "eagle", "draft")
_ARGUMENT_FILES = ("server_args.py", "arg_groups/")
_LEVELS = {"warning", "info", "error", "warning_once", "debug"}
_PROVIDERS, _REGISTERS = "collect_model_override_declarations", ("_register_for", "register_model_override")
_FOREIGN = ("record_foreign_defaults", "declare_direct_writes")
_DECLARES = ("declare_resolution", "declare_late_resolution", "override")
_COLLECTIONS: tuple[str | None, ...] = ("frozenset", "set", "tuple")
_HANDLES = re.compile(r"_?handle_(speculative|eagle)")
_DEEPEST = 12
_NAME = re.compile(r"(args\.)?\w+|\w+\['\w+'\]")


def read_arguments(syntax: Syntax, release: str) -> ArgumentRules:
    """What the source says about launch arguments; what it does not say stands under `unknown`."""
    options, defaults = declared(syntax)
    unknown = [] if options else ["no options are declared in server_args.py"]
    reader = _Reader(syntax)
    module = syntax.module("server_args.py")
    cls = module.classes.get("ServerArgs") if module else None
    entries: list[str] = []
    if cls is None:
        unknown.append("server_args.py has no class ServerArgs")
    else:
        for name in (*_ENTRIES, _CHECK):
            function = cls.method(name)
            if function is not None and reader.follow(*_itself(syntax, cls, function)) is not None:
                entries.append(name)
    if not any("num_draft_tokens" in s.subject for p in reader.procedures.values() for s in p.steps):
        unknown.append("nothing decides about --speculative-num-draft-tokens")
    unknown += _not_reached(syntax, reader.procedures)
    context = read_context(syntax)
    if context is None:
        unknown.append("how long a context the drafter is run with is not understood")
    return ArgumentRules(
        release=release,
        options=options,
        defaults=defaults,
        procedures=dict(sorted(reader.procedures.items())),
        entries=tuple(entries),
        environment=_environment(syntax, reader.procedures),
        elsewhere=_elsewhere(syntax),
        unknown=tuple(unknown),
        draft_context=context,
        late=read_late(syntax),
    )


def _itself(
    syntax: Syntax, cls: ClassRef, method: ast.FunctionDef
) -> tuple[Module, ast.FunctionDef, ClassRef | None]:
    """A method, or the function of the same name in another file that it does nothing but call."""
    target = _imported(cls.module, method, method.name)
    module = syntax.module(f"{target[0]}.py") if target else None
    if module is not None and target is not None and target[1] in module.functions:
        return module, module.functions[target[1]], None
    return cls.module, method, cls


def _environment(syntax: Syntax, procedures: dict[str, Procedure]) -> dict[str, str]:
    """Variables that the steps read, with their defaults where `environ.py` states them."""
    text = "\n".join(step.expression for one in procedures.values() for step in one.steps)
    names = sorted(set(re.findall(r"\benv\.(\w+)", text)))
    module = syntax.module("environ.py")
    found = dict.fromkeys(names, "None")
    for node in ast.walk(module.tree) if module else ():
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args:
            name = dotted_name(node.targets[0])
            if name in found:
                found[name] = ast.unparse(node.value.args[0])
    return found


def _not_reached(syntax: Syntax, procedures: dict[str, Procedure]) -> list[str]:
    """Functions that handle speculation and that no call followed here leads to."""
    found = []
    for file in syntax.tree.files:
        module = syntax.module(file) if file.startswith(_ARGUMENT_FILES) else None
        for node in ast.walk(module.tree) if module else ():
            if (
                isinstance(node, ast.FunctionDef)
                and _HANDLES.match(node.name)
                and node.name not in procedures
            ):
                found.append(f"nothing is seen to call {node.name} ({file}:{node.lineno})")
    return found


def _elsewhere(syntax: Syntax) -> tuple[str, ...]:
    """Fields that the release writes somewhere and whose way is not followed here."""
    found: set[str] = set()
    for file in syntax.tree.files:
        module = syntax.module(file) if file.startswith(_ARGUMENT_FILES) else None
        for node in _without(module.tree, "from_cli_args") if module else ():
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                if is_arguments(dotted_name(node.value) or ""):
                    found.add(node.attr)
            elif called(node) in _DECLARES and isinstance(node, ast.Call):
                found |= {keyword.arg for keyword in node.keywords if keyword.arg}
            elif isinstance(node, ast.Return) and isinstance(node.value, ast.Dict):
                found |= {text for text in (text_of(key) for key in node.value.keys if key) if text}
    return tuple(sorted(name for name in found if not relevant(f"args.{name}")))


def _without(tree: ast.AST, function: str) -> Iterator[ast.AST]:
    """Every node but those of the function of that name."""
    for node in ast.iter_child_nodes(tree):
        if not (isinstance(node, ast.FunctionDef) and node.name == function):
            yield node
            yield from _without(node, function)


def _arguments(function: ast.FunctionDef) -> frozenset[str]:
    """The names that stand for the arguments in a function: its own parameters, and views made of them."""
    parameters = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    names = {one.arg for one in parameters if is_arguments(one.arg)}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            pairs = [(target, value)]
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            for name, given in pairs:
                if isinstance(name, ast.Name) and (called(given) in VIEWS or dotted_name(given) in names):
                    names.add(name.id)
    return frozenset(names)


class _Reader:
    """Procedures by name, each read once.

    Attributes:
        procedures: Those of which something is kept.
    """

    def __init__(self, syntax: Syntax) -> None:
        self.syntax = syntax
        self.procedures: dict[str, Procedure] = {}
        self._seen: set[str] = set()
        self._depth = 0

    def follow(self, module: Module, function: ast.FunctionDef, cls: ClassRef | None) -> str | None:
        """The name of the procedure made of `function`; None where nothing of it counts."""
        name = function.name
        if name in self.procedures:
            return name
        if name in self._seen or self._depth > _DEEPEST:
            return None
        self._seen.add(name)
        self._depth += 1
        steps = _Steps(self, module, cls, function).read()
        self._depth -= 1
        if not steps:
            return None
        arguments = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
        names = tuple(one.arg for one in arguments if not is_arguments(one.arg))
        positional = [*function.args.posonlyargs, *function.args.args]
        defaults = dict(
            zip(
                [a.arg for a in positional[len(positional) - len(function.args.defaults) :]],
                map(ast.unparse, function.args.defaults),
                strict=True,
            )
        )
        for one, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True):
            if value is not None:
                defaults[one.arg] = ast.unparse(value)
        self.procedures[name] = Procedure(module.file, names, defaults, tuple(steps))
        return name

    def called_by(
        self, module: Module, function: ast.FunctionDef, cls: ClassRef | None, name: str, method: bool
    ) -> str | None:
        """The procedure that a call in `function` leads to."""
        if method:
            owner = cls if cls is not None and cls.method(name) else self._elsewhere(name)
            found = owner.method(name) if owner else None
            return self.follow(owner.module, found, owner) if owner and found else None
        here, local = module, name
        for _ in range(4):
            if local in here.functions:
                return self.follow(here, here.functions[local], None)
            target = _imported(here, function, local)
            there = self.syntax.module(f"{target[0]}.py") if target else None
            if target is None or there is None:
                return None
            here, local = there, target[1]
        return None

    def _elsewhere(self, method: str) -> ClassRef | None:
        """The class of algorithms, which tells them apart, or that of the model, for what it says of its attention."""
        owners = (
            (_ALGORITHM_FILE, _ALGORITHM),
            *(((_MODEL_FILE, _MODEL),) if method in MODEL_VALUES.values() else ()),
        )
        for file, name in owners:
            module = self.syntax.module(file)
            cls = module.classes.get(name) if module else None
            if cls is not None and cls.method(method) is not None:
                return cls
        return None


def _imported(module: Module, function: ast.FunctionDef, name: str) -> tuple[str, str] | None:
    """File and name there of what the module or the function itself imports."""
    if name in module.imported:
        return module.imported[name]
    for node in ast.walk(function):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("sglang.srt."):
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return str(node.module).removeprefix("sglang.srt.").replace(".", "/"), alias.name
    return None


class _Steps:
    """One function, statement by statement."""

    def __init__(
        self, reader: _Reader, module: Module, cls: ClassRef | None, function: ast.FunctionDef
    ) -> None:
        self.reader = reader
        self.module = module
        self.cls = cls
        self.function = function
        about = any(word in f"{module.file}/{function.name}" for word in ("speculative_hook", *_ABOUT))
        arguments = module.file.startswith(_ARGUMENT_FILES) or cls is not None
        algorithm = cls is not None and cls.name == _ALGORITHM
        self.on_backends = False  # under a condition on an attention backend
        self.whole = (about and arguments) or module.file.startswith("configs/") or algorithm
        holder = "args.speculative_algorithm" if algorithm else "args"
        self.plain = Plain(holder, _ALGORITHM, _arguments(function), self._constant)

    def _constant(self, name: str) -> ast.expr | None:
        """A constant of words or numbers that the module defines or imports."""
        module, local = self.module, name
        target = _imported(module, self.function, name)
        if target is not None:
            there = self.reader.syntax.module(f"{target[0]}.py")
            if there is None:
                return None
            module, local = there, target[1]
        value = module.constants.get(local)
        if isinstance(value, ast.Call) and called(value) in _COLLECTIONS and value.args:
            value = value.args[0]
        parts = value.elts if isinstance(value, ast.List | ast.Tuple | ast.Set) else [value]
        return value if all(isinstance(part, ast.Constant) for part in parts) else None

    def read(self) -> list[Step]:
        """The steps; none where the function decides nothing that counts and tells nothing about it."""
        steps = list(self._block(self.function.body, 0))
        if self.whole:
            return steps
        return needed(steps) if any(map(decides, steps)) or tells(steps) else []

    def _block(self, body: list[ast.stmt], depth: int) -> Iterator[Step]:
        for node in body:
            yield from self._statement(node, depth)

    def _statement(self, node: ast.stmt, depth: int) -> Iterator[Step]:
        if isinstance(node, ast.If):
            yield from self._branch(node, depth)
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
            yield from self._assignment(node, depth)
        elif isinstance(node, ast.Expr):
            yield from self._expression(node, depth)
        elif isinstance(node, ast.Raise) and node.exc is not None:
            if self._about(node):
                kind = called(node.exc) or dotted_name(node.exc) or "Exception"
                message = node.exc.args[0] if isinstance(node.exc, ast.Call) and node.exc.args else None
                yield self._step(depth, "refuse", kind, message, node)
        elif isinstance(node, ast.Assert):
            if self._about(node):
                test = self.plain.text(node.test)
                said = self.plain.text(node.msg) if node.msg is not None else "''"
                yield Step(depth, "check", "AssertionError", f"{test}\n{said}", node.lineno)
        elif isinstance(node, ast.Return):
            if node.value is not None:
                self._calls(node.value)
            yield self._step(depth, "return", "", node.value or ast.Constant(None), node)
        elif isinstance(node, ast.Try | ast.With):
            yield from self._block(node.body, depth)
            handled = [inner for handler in getattr(node, "handlers", ()) for inner in handler.body]
            names = sorted({name for inner in handled for name in self._written(inner)})
            if names:
                yield Step(depth, "forget", ", ".join(names), "", node.lineno)
        elif isinstance(node, ast.For | ast.While):
            names = sorted(self._written(node))
            if names:
                yield Step(depth, "forget", ", ".join(names), "", node.lineno)

    def _step(self, depth: int, kind: StepKind, subject: str, value: ast.expr | None, node: ast.AST) -> Step:
        text = "" if value is None else self.plain.text(value)
        return Step(depth, kind, subject, text, getattr(node, "lineno", 1))

    def _branch(self, node: ast.If, depth: int) -> Iterator[Step]:
        self._calls(node.test)
        test = self.plain.text(node.test)
        about = "speculative" in test
        before, self.whole = self.whole, self.whole or about
        backends, self.on_backends = self.on_backends, self.on_backends or "attention_backend ==" in test
        body = list(self._block(node.body, depth + 1))
        self.on_backends = backends
        orelse = list(self._block(node.orelse, depth + 1))
        self.whole = before
        if not body and not orelse:
            return
        yield Step(depth, "if", "", test, node.lineno)
        yield from body
        if orelse:
            yield Step(depth, "else", "", "", node.lineno)
            yield from orelse

    def _assignment(self, node: ast.Assign | ast.AugAssign | ast.AnnAssign, depth: int) -> Iterator[Step]:
        if node.value is None:
            return
        target = node.targets[0] if isinstance(node, ast.Assign) else node.target
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        names = [self.plain.text(part) for part in parts]
        if names == [self.plain.text(node.value)] or not all(map(_NAME.fullmatch, names)):
            return
        if isinstance(node, ast.AugAssign):
            yield Step(depth, "forget", ", ".join(names), "", node.lineno)
            return
        self._calls(node.value)
        if called(node.value) == _PROVIDERS:
            yield from self._provided(node.value, depth)
            return
        # Local names stay for now; those that nothing reads go when the function is done.
        if self.whole or any(relevant(name) or "." not in name for name in names):
            yield self._step(depth, "set", ", ".join(names), node.value, node)

    def _provided(self, call: ast.expr, depth: int) -> Iterator[Step]:
        """What is registered for particular targets, in the order of the files that register it."""
        line = getattr(call, "lineno", 1)
        for module, function, test in _registered(self.reader.syntax):
            if self.reader.follow(module, function, None) is not None:
                yield Step(depth, "if", "", test, line)
                parameters = [one.arg for one in function.args.args if not is_arguments(one.arg)]
                given = "".join(f", {name}=target" for name in parameters)
                yield Step(depth + 1, "declare", "", f"{function.name}(args{given})", line)

    def _expression(self, node: ast.Expr, depth: int) -> Iterator[Step]:
        call = node.value
        name = called(call)
        if not isinstance(call, ast.Call) or name is None:
            return
        if name in _DECLARES:
            for keyword in call.keywords:
                if keyword.arg is not None and (self.whole or relevant(f"args.{keyword.arg}")):
                    self._calls(keyword.value)
                    yield self._step(depth, "set", f"args.{keyword.arg}", keyword.value, node)
        elif name in ("run_hook", "run_post_process_pass") and len(call.args) == 2:
            function = next((arg for arg in call.args if not is_arguments(dotted_name(arg) or "")), None)
            target = dotted_name(function) if function is not None else None
            if target and self._procedure(target, method=False):
                kind: StepKind = "declare" if name == "run_post_process_pass" else "do"
                yield Step(depth, kind, "", f"{target}(args)", node.lineno)
        elif name in _FOREIGN and isinstance(call.args[-1], ast.Attribute):
            method = call.args[-1]
            if self._procedure(method.attr, method=True):
                yield Step(depth, "do", "", f"{self.plain.text(method)}(args)", node.lineno)
        elif name in _LEVELS and (dotted_name(call.func) or "").startswith("logger."):
            if self._about(node) and call.args:
                yield self._step(depth, "say", name, call.args[0], node)
        elif self._calls(call):
            yield self._step(depth, "do", "", call, node)
        elif self.whole and not name.startswith(("print", "set_default")):
            written = sorted(self._written(node))
            if written:
                yield Step(depth, "forget", ", ".join(written), "", node.lineno)

    def _calls(self, value: ast.expr) -> bool:
        """Whether a procedure is called in an expression; each one is read."""
        found = False
        for node in ast.walk(value):
            name = called(node)
            if isinstance(node, ast.Call) and name is not None:
                method = isinstance(node.func, ast.Attribute)
                found = self._procedure(name, method) or found
            elif isinstance(node, ast.Attribute) and node.attr in MODEL_VALUES:
                self._procedure(MODEL_VALUES[node.attr], method=True)
        return found

    def _procedure(self, name: str, method: bool) -> bool:
        made = self.reader.called_by(self.module, self.function, self.cls, name, method)
        return made is not None

    def _about(self, node: ast.stmt) -> bool:
        return self.whole or self.on_backends or "speculative" in ast.unparse(node)

    def _written(self, node: ast.AST) -> set[str]:
        """Fields that count and, in a function kept whole, local names that are given values anywhere in `node`."""
        names: set[str] = set()
        for inner in ast.walk(node):
            if isinstance(inner, ast.Attribute | ast.Name) and isinstance(inner.ctx, ast.Store):
                text = self.plain.text(inner)
                if relevant(text) or (self.whole and "." not in text):
                    names.add(text)
            elif called(inner) == "declare_resolution" and isinstance(inner, ast.Call):
                keys = {f"args.{keyword.arg}" for keyword in inner.keywords if keyword.arg}
                names |= {key for key in keys if relevant(key)}
        return names


def _registered(syntax: Syntax) -> Iterator[tuple[Module, ast.FunctionDef, str]]:
    """Functions that are registered to declare arguments for some targets, each with the condition on the target."""
    for module in syntax.modules_holding("@_register_for", "arg_groups/"):
        for function in module.functions.values():
            for decorator in function.decorator_list:
                if called(decorator) in _REGISTERS and isinstance(decorator, ast.Call):
                    names = [text for text in map(text_of, decorator.args) if text]
                    if len(names) == len(decorator.args):
                        yield module, function, f"target.architectures[0] in {names!r}"
