"""Hidden-state capture: which targets can, which layers, what explicit ids become, and which ids ever reach them.

A target's `set_eagle3_layers_to_capture` is followed twice on paper, once without ids and once with; what counts
is the value that reaches `layers_to_capture`, be it assigned or handed on.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from eagle3lab.engines.extract.model import CaptureWiring, Missing, Reading, Shift, Target, Unknown
from eagle3lab.engines.extract.sglang.discover import MODELS, SETTER, descendants, registered
from eagle3lab.engines.extract.syntax import (
    ClassRef,
    Module,
    Syntax,
    UnreadableError,
    called,
    dotted_name,
    text_of,
)
from eagle3lab.engines.facts import Capture, Source

_IDS = "eagle_aux_hidden_state_layer_ids"
_USE = "use_aux_hidden_state"
_DRAFTER_CONFIG = "eagle_config"
_CAPTURED = "layers_to_capture"


def find_targets(syntax: Syntax) -> tuple[tuple[Target, ...], list[Unknown]]:
    """Every class with the method, sorted by name, and what could not be read of them."""
    targets: list[Target] = []
    unknown: list[Unknown] = []
    owners: dict[str, ClassRef] = {}
    for module in syntax.modules_holding(f"def {SETTER}", MODELS):
        owners |= {f"{module.file}:{c.name}": c for c in module.classes.values() if c.method(SETTER)}
    heirs = _heirs(syntax, owners)
    for key, cls in owners.items():
        function = cls.method(SETTER)
        assert function is not None
        if key not in heirs and _marks_layers(function):
            continue  # an inner model that a target's own method hands capture points to
        source = cls.module.source(function)
        try:
            targets.append(_target(cls, function, tuple(sorted(heirs.get(key, ()))), source))
        except UnreadableError as error:
            unknown.append(Unknown(f"targets.{cls.name}", error.reason, str(error.source)))
    return tuple(sorted(targets, key=lambda target: (target.name, target.module))), unknown


def _heirs(syntax: Syntax, owners: Mapping[str, ClassRef]) -> dict[str, set[str]]:
    """Owner (file and name) to the registered classes whose method is the owner's."""
    names = {cls.name for cls in owners.values()}
    places = {(cls.name, cls.module.file) for cls in owners.values()}
    places |= set(descendants(syntax, names).items())
    heirs: dict[str, set[str]] = {}
    for name, file in places:
        module = syntax.module(file)
        if module is None or name not in module.classes or name not in registered(module):
            continue
        found = syntax.method(module.classes[name], SETTER)
        if found is not None:
            owner, _ = found
            heirs.setdefault(f"{owner.module.file}:{owner.name}", set()).add(name)
    return heirs


def _marks_layers(function: ast.FunctionDef) -> bool:
    return any(text_of(node) == "_is_layer_to_capture" for node in ast.walk(function))


def _target(
    cls: ClassRef, function: ast.FunctionDef, architectures: tuple[str, ...], source: Source
) -> Target:
    arguments = function.args.args[1:]
    ids = arguments[0].arg if arguments else None
    without = _Walk(cls.module, ids, given=False).result(function)
    explicit = _Walk(cls.module, ids, given=True).result(function) if ids else []
    if without and without[0][1] == "delegated":
        holder = str(without[0][2])
        held = _held(cls, holder)
        return Target(cls.name, cls.module.dotted, architectures, holder, True, None, (), source, held)
    layers = {value for _, kind, value in without if kind == "layers"}
    if len(layers) != 1 or len(without) != 1:
        raise UnreadableError("the default layers are not understood", source)
    shifts = []
    for condition, kind, value in explicit:
        if kind != "shift" or not isinstance(value, int):
            raise UnreadableError("what explicit ids become is not understood", source)
        shifts.append(Shift(condition, value))
    if ids and not shifts:
        raise UnreadableError("what explicit ids become is not understood", source)
    default = layers.pop()
    assert isinstance(default, tuple)
    return Target(cls.name, cls.module.dotted, architectures, None, bool(ids), default, tuple(shifts), source)


def _held(cls: ClassRef, attribute: str) -> str | None:
    """X of `self.attribute = X(…)` in the constructor, where there is one such class."""
    function = cls.method("__init__")
    found = {
        called(node.value)
        for node in ast.walk(function or cls.node)
        if isinstance(node, ast.Assign)
        and dotted_name(node.targets[0]) == f"self.{attribute}"
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Name)
        and node.value.func.id[:1].isupper()
    }
    return found.pop() if len(found) == 1 else None


# What reaches the target: under which condition, "layers" (expressions in n), "shift" (a number) or "delegated".
_Outcome = tuple[str, str, "tuple[str, ...] | int | str"]


class _Walk:
    """The method followed with ids or without."""

    def __init__(self, module: Module, ids: str | None, given: bool) -> None:
        self.module = module
        self.ids = ids
        self.given = given
        self.values: dict[str, ast.expr | str] = {}
        self.found: list[_Outcome] = []

    def result(self, function: ast.FunctionDef) -> list[_Outcome]:
        self._run(function.body, "")
        return self.found

    def _run(self, body: list[ast.stmt], condition: str) -> None:
        for statement in body:
            if isinstance(statement, ast.If):
                self._branch(statement, condition)
            elif isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                self._assign(dotted_name(statement.targets[0]), statement.value, condition)
            elif isinstance(statement, ast.Expr) and called(statement.value) == SETTER:
                self._hand_on(statement.value, condition)

    def _branch(self, node: ast.If, condition: str) -> None:
        test = ast.unparse(node.test)
        if test in (f"{self.ids} is None", f"not {self.ids}"):
            self._run(node.orelse if self.given else node.body, condition)
        elif test == f"{self.ids} is not None" or test == self.ids:
            self._run(node.body if self.given else node.orelse, condition)
        elif self._leads_nowhere(node.body):
            self._run(node.orelse, condition)
        elif called(node.test) == "hasattr":
            # Delegation that is skipped where the inner model has no such method.
            self._run(node.body, condition)
        elif self.given:
            self._run(node.body, _readable(node.test, self.values))
            self._run(node.orelse, condition)
        else:
            raise UnreadableError(
                "a condition on the default layers is not understood", self.module.source(node)
            )

    @staticmethod
    def _leads_nowhere(body: list[ast.stmt]) -> bool:
        """A branch that only returns or raises: the last pipeline rank goes on, a wrapper without a model stops."""
        return len(body) == 1 and isinstance(body[0], ast.Return | ast.Raise)

    def _assign(self, name: str | None, value: ast.expr, condition: str) -> None:
        if name is None:
            return
        if name.rpartition(".")[2] == _CAPTURED and "." in name:
            self.found.append(self._outcome(value, condition))
        elif "." not in name:
            self.values[name] = value

    def _hand_on(self, node: ast.expr, condition: str) -> None:
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        argument = node.args[0] if node.args else node.keywords[0].value if node.keywords else None
        holder = (dotted_name(node.func.value) or "").removeprefix("self.")
        if argument is None or (dotted_name(argument) == self.ids and self.ids not in self.values):
            self.found.append((condition, "delegated", holder))
        else:
            self.found.append(self._outcome(argument, condition))

    def _outcome(self, node: ast.expr, condition: str) -> _Outcome:
        layers = self._layers(node)
        if layers is not None:
            return condition, "layers", layers
        shift = self._shift(node)
        if shift is None:
            raise UnreadableError("what is captured is not understood", self.module.source(node))
        return condition, "shift", shift

    def _resolved(self, node: ast.expr) -> ast.expr:
        seen = 0
        while isinstance(node, ast.Name) and isinstance(self.values.get(node.id), ast.expr) and seen < 8:
            node = self.values[node.id]  # type: ignore[assignment]
            seen += 1
        return node

    def _shift(self, node: ast.expr) -> int | None:
        """`ids`, `list(ids)` or `[id + 1 for id in ids]`."""
        if dotted_name(node) == self.ids:
            return 0
        node = self._resolved(node)
        if called(node) in ("list", "sorted", "copy") and isinstance(node, ast.Call) and node.args:
            return self._shift(node.args[0])
        step = _step(node)
        if step is not None and isinstance(node, ast.ListComp):
            inner = self._shift(node.generators[0].iter)
            return None if inner is None else inner + step
        return None

    def _layers(self, node: ast.expr) -> tuple[str, ...] | None:
        """`[2, n // 2, n - 3]`, also with something added to each."""
        node = self._resolved(node)
        if isinstance(node, ast.List):
            parts = [self._layer(element) for element in node.elts]
            return None if None in parts else tuple(part for part in parts if part is not None)
        step = _step(node)
        if step is not None and isinstance(node, ast.ListComp):
            inner = self._layers(node.generators[0].iter)
            return None if inner is None else tuple(_plus(part, step) for part in inner)
        return None

    def _layer(self, node: ast.expr) -> str | None:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return str(node.value)
        if self._is_count(node):
            return "n"
        if isinstance(node, ast.BinOp) and isinstance(node.right, ast.Constant) and self._is_count(node.left):
            sign = {ast.FloorDiv: "//", ast.Sub: "-", ast.Add: "+"}.get(type(node.op))
            return f"n{sign}{ast.unparse(node.right)}" if sign else None
        if (
            isinstance(node, ast.BinOp)
            and isinstance(node.op, ast.Add | ast.Sub)
            and isinstance(node.right, ast.Constant)
        ):
            inner = self._layer(node.left)
            step = node.right.value if isinstance(node.right.value, int) else 0
            return None if inner is None else _plus(inner, step if isinstance(node.op, ast.Add) else -step)
        return None

    def _is_count(self, node: ast.expr) -> bool:
        """The number of layers: `….num_hidden_layers`, `len(….layers)`, or a name for one of them."""
        node = self._resolved(node)
        if called(node) == "len" and isinstance(node, ast.Call):
            return (dotted_name(node.args[0]) or "").endswith(".layers")
        return (dotted_name(node) or "").endswith("num_hidden_layers")


def _step(node: ast.expr) -> int | None:
    """K of `[x + k for x in …]`."""
    if not isinstance(node, ast.ListComp) or len(node.generators) != 1 or node.generators[0].ifs:
        return None
    variable, element = dotted_name(node.generators[0].target), node.elt
    if dotted_name(element) == variable:
        return 0
    if not isinstance(element, ast.BinOp) or not isinstance(element.op, ast.Add | ast.Sub):
        return None
    value = element.right.value if isinstance(element.right, ast.Constant) else None
    if dotted_name(element.left) != variable or not isinstance(value, int):
        return None
    return value if isinstance(element.op, ast.Add) else -value


def _plus(expression: str, step: int) -> str:
    """`n-3` plus 1 is `n-2`; `n//2` plus 1 is `n//2+1`."""
    if expression.isdigit():
        return str(int(expression) + step)
    if expression.startswith(("n-", "n+")) and expression[2:].isdigit():
        value = int(expression[1:]) + step
        return f"n{value:+d}" if value else "n"
    return f"{expression}{step:+d}" if step else expression


def _readable(test: ast.expr, values: Mapping[str, ast.expr | str]) -> str:
    """A condition as text, without the part that only asks whether there are any ids."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) and isinstance(test.values[0], ast.Name):
        test = test.values[1] if len(test.values) == 2 else test
    text = ast.unparse(test)
    for name, value in values.items():
        if isinstance(value, ast.expr) and (dotted_name(value) or "").endswith("num_hidden_layers"):
            text = text.replace(name, "n")
    return text


def read_wiring(syntax: Syntax) -> tuple[CaptureWiring | None, list[Unknown]]:
    """Where ids and the switch are read from, and what graphs are captured with."""
    unknown: list[Unknown] = []
    calls: list[tuple[Module, ast.Call]] = []
    ids: list[Reading] = []
    switch: Reading | None = None
    for file in syntax.tree.files:
        if file.startswith(MODELS) or not (file.startswith(("model_executor/", "speculative/", "managers/"))):
            continue
        text = syntax.tree.text(file) or ""
        if SETTER not in text and _IDS not in text and _USE not in text:
            continue
        module = syntax.module(file)
        if module is None:
            unknown.append(Unknown("wiring", syntax.broken.get(file, "cannot be read"), file))
            continue
        calls += [
            (module, node)
            for node in ast.walk(module.tree)
            if isinstance(node, ast.Call) and called(node) == SETTER
        ]
        if file.startswith("model_executor/"):
            ids += _readings(module, _IDS)
            switch = switch or next(iter(_readings(module, _USE)), None)
    if not calls:
        unknown.append(Unknown("wiring", f"nothing calls {SETTER}", "model_executor/"))
        return None, unknown
    # The call without ids that precedes graph capture; other such calls (a dummy run) decide nothing.
    graph = [(m, c) for m, c in calls if not c.args and not c.keywords and "cuda_graph" in m.file]
    setting = [(m, c) for m, c in calls if c.args or c.keywords]
    module, call = (graph or setting or calls)[0]
    return CaptureWiring(
        ids=tuple(ids),
        use_aux_hidden_state=switch,
        graphs="default layers" if graph else "config ids",
        graphs_source=module.source(call),
        missing=next(filter(None, (_missing(m) for m, _ in calls)), None),
        fc_if_wider=_fc_if_wider(syntax),
    ), unknown


def _missing(module: Module) -> Missing | None:
    """`if not hasattr(model, SETTER): raise …`."""
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.If) or "not hasattr" not in ast.unparse(node.test):
            continue
        if SETTER not in ast.unparse(node.test) or not isinstance(node.body[0], ast.Raise):
            continue
        error = node.body[0].exc
        if isinstance(error, ast.Call) and error.args:
            text = _message(error.args[0])
            return Missing(called(error) or "Exception", text, module.source(node.body[0]))
    return None


def _message(node: ast.expr) -> str:
    """A message, the class in it by `{class}`."""
    if not isinstance(node, ast.JoinedStr):
        return text_of(node) or ""
    parts = []
    for part in node.values:
        named = isinstance(part, ast.FormattedValue) and "__class__" in ast.unparse(part.value)
        parts.append("{class}" if named else text_of(part) or "…")
    return "".join(parts)


def _fc_if_wider(syntax: Syntax) -> tuple[Source, ...]:
    """`if hidden_states.shape[-1] != embeds.shape[-1]: hidden_states = self.fc(hidden_states)`."""
    found = []
    for module in syntax.modules_holding("self.fc(", MODELS):
        for node in ast.walk(module.tree):
            if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and len(node.test.ops) == 1:
                sides = (node.test.left, node.test.comparators[0])
                widths = all(ast.unparse(side).endswith(".shape[-1]") for side in sides)
                runs = any(called(inner) == "fc" for part in node.body for inner in ast.walk(part))
                if widths and isinstance(node.test.ops[0], ast.NotEq) and runs:
                    found.append(module.source(node))
    return tuple(found)


def _readings(module: Module, key: str) -> list[Reading]:
    """`x["key"]` and `x.get("key")`, x being the drafter's `eagle_config` or its whole config."""
    found: list[Reading] = []
    for node in ast.walk(module.tree):
        holder = None
        if isinstance(node, ast.Subscript) and text_of(node.slice) == key:
            holder = node.value
        elif (
            isinstance(node, ast.Call)
            and called(node) == "get"
            and node.args
            and text_of(node.args[0]) == key
        ):
            holder = node.func.value if isinstance(node.func, ast.Attribute) else None
        elif called(node) == "getattr" and isinstance(node, ast.Call) and len(node.args) > 1:
            holder = node.args[0] if text_of(node.args[1]) == key else None
        if holder is None:
            continue
        nested = _DRAFTER_CONFIG in ast.unparse(holder)
        found.append(Reading(f"{_DRAFTER_CONFIG}.{key}" if nested else key, module.source(node)))
    return found


def llama_capture(
    targets: tuple[Target, ...], wiring: CaptureWiring | None, syntax: Syntax
) -> Capture | None:
    """What a Llama-style target hands over, in the form a load plan uses."""
    llama = next((t for t in targets if t.name == "LlamaForCausalLM"), None)
    if llama is None or llama.default_layers is None or wiring is None:
        return None
    if llama.takes_ids and (len(llama.shifts) != 1 or llama.shifts[0].when):
        return None
    shift = llama.shifts[0].added if llama.shifts else 0
    module = syntax.module(llama.source.file)
    source = module.matching(f"{_CAPTURED} = [", llama.source.line) if module else None
    keys = dict.fromkeys(reading.key for reading in wiring.ids)
    return Capture(llama.default_layers, tuple(keys), shift, source or llama.source)
