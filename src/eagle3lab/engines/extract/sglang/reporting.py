"""What a server says about speculation: the decode log line, its formulas, metrics, fields of a request."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from eagle3lab.engines.extract.model import Algorithms, DecodeLog, Unknown
from eagle3lab.engines.extract.syntax import Module, Syntax, called, dotted_name, text_of
from eagle3lab.engines.facts import Acceptance, Source

_LOGS = ("managers/", "observability/")
_LENGTH = "accept len: "
_LINE = "Decode batch"


def _log_function(syntax: Syntax) -> tuple[Module, ast.FunctionDef] | None:
    """The function that writes the decode line with the accept length in it."""
    for file in syntax.tree.holding(_LENGTH):
        module = syntax.module(file) if file.startswith(_LOGS) else None
        if module is None:
            continue
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef):
                texts = [text_of(inner) or "" for inner in ast.walk(node)]
                if any(_LENGTH in t for t in texts) and any(t.startswith(_LINE) for t in texts):
                    return module, node
    return None


def read_log(syntax: Syntax) -> tuple[DecodeLog | None, Acceptance | None, list[Unknown]]:
    """The decode line and the formulas behind its accept length and accept rate."""
    found = _log_function(syntax)
    if found is None:
        reason = f"no function writes '{_LINE}' and '{_LENGTH.strip()}'"
        return None, None, [Unknown(name, reason, "managers/") for name in ("log", "acceptance")]
    module, function = found
    pieces, source = _pieces(module, function)
    log = None if source is None else DecodeLog(tuple(pieces), source)
    try:
        return log, _acceptance(syntax, module, function), []
    except _UnreadableFormulaError as error:
        return log, None, [Unknown("acceptance", str(error), str(module.source(error.node)))]


def _pieces(module: Module, function: ast.FunctionDef) -> tuple[list[str], Source | None]:
    """What is put into the message, from the piece that opens it on."""
    pieces: list[str] = []
    opening: tuple[str | None, Source] | None = None
    for node in _statements(function.body):
        if not isinstance(node, ast.Assign | ast.AugAssign):
            continue
        target = dotted_name(node.targets[0] if isinstance(node, ast.Assign) else node.target)
        template = _template(node.value)
        if template is None:
            continue
        if isinstance(node, ast.Assign) and template.startswith(_LINE):
            opening = target, module.source(node.value)
            pieces = [template]
        elif isinstance(node, ast.AugAssign) and opening is not None and target == opening[0]:
            pieces.append(template)
    return pieces, None if opening is None else opening[1]


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements in the order in which they stand, those under conditions included."""
    for node in body:
        yield node
        for field in ("body", "orelse"):
            yield from _statements(getattr(node, field, []))


def _template(node: ast.expr) -> str | None:
    """A string as a format string, its fields by their expressions."""
    if text_of(node) is not None:
        return text_of(node)
    if not isinstance(node, ast.JoinedStr):
        return None
    parts = []
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            form = _template(part.format_spec) if part.format_spec else None
            parts.append(f"{{{ast.unparse(part.value)}{':' + form if form else ''}}}")
        else:
            parts.append(text_of(part) or "")
    return "".join(parts)


class _UnreadableFormulaError(Exception):
    """A formula has no form that is known here."""

    def __init__(self, reason: str, node: ast.AST) -> None:
        super().__init__(reason)
        self.node = node


def _acceptance(syntax: Syntax, module: Module, function: ast.FunctionDef) -> Acceptance:
    values: dict[str, list[ast.expr]] = {}
    for node in _statements(function.body):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            values.setdefault(dotted_name(node.targets[0]) or "?", []).append(node.value)
    length = _quotient(values.get("spec_accept_length", []))
    if length is None:
        raise _UnreadableFormulaError("how the accept length is computed is not understood", function)
    accepted, forwards = dotted_name(length.left), dotted_name(length.right)
    if accepted is None or forwards is None:
        raise _UnreadableFormulaError("how the accept length is computed is not understood", length)
    if not _counts_bonus(syntax, accepted, forwards):
        raise _UnreadableFormulaError(
            "whether the accept length counts the bonus token is not understood", length
        )
    formula, source = "(accepted+forwards)/forwards", module.source(length)
    if "spec_accept_rate" not in values:
        return Acceptance(formula, source, "none", "none", source)
    rate = _quotient(values["spec_accept_rate"])
    if rate is None:
        raise _UnreadableFormulaError("how the accept rate is computed is not understood", function)
    counted = _numerator(rate, values, accepted, forwards)
    per_round, where = _denominator(rate, values, forwards)
    key = f"{counted}/{per_round}"
    if key not in _FORMULAS:
        raise _UnreadableFormulaError(f"accept rate is {key}, which is not known", rate)
    return Acceptance(formula, source, _FORMULAS[key], key, module.source(where))


def _counts_bonus(syntax: Syntax, accepted: str, forwards: str) -> bool:
    """Whether a step adds its accepted drafts and one token a request: `accepted += drafts + n; forwards += n`.

    Where the sum is handed in, it is that of the result: `num_correct_drafts + batch_size * …`.
    """
    for file in syntax.tree.holding(f"{accepted} += "):
        module = syntax.module(file) if file.startswith(_LOGS) else None
        added: dict[str, ast.expr] = {}
        for node in ast.walk(module.tree) if module else ():
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
                added[dotted_name(node.target) or "?"] = node.value
        total, steps = added.get(accepted), added.get(forwards)
        if total is None or steps is None:
            continue
        if isinstance(total, ast.BinOp) and isinstance(total.op, ast.Add):
            return ast.unparse(steps) in (ast.unparse(total.left), ast.unparse(total.right))
        results = syntax.module("managers/utils.py")
        said = results.matching("return self.num_correct_drafts + batch_size *") if results else None
        return isinstance(total, ast.Name) and said is not None
    return False


# By the rate in terms of the accept length and what a verify step proposes.
_FORMULAS = {
    "len/D": "(accepted+bonus)/(forwards*draft_tokens)",
    "len/(steps+1)": "(accepted+bonus)/(forwards*(steps+1))",
    "(len-1)/(D-1)": "accepted/(forwards*(draft_tokens-1))",
}


def _quotient(values: list[ast.expr]) -> ast.BinOp | None:
    """The division among the values a name is given."""
    for value in values:
        value = value.body if isinstance(value, ast.IfExp) else value
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
            return value
    return None


def _numerator(rate: ast.BinOp, values: dict[str, list[ast.expr]], accepted: str, forwards: str) -> str:
    """What the rate counts: "len" with the bonus token, "(len-1)" without it."""
    name = dotted_name(rate.left)
    if name == accepted:
        return "len"
    for value in values.get(name or "", []):
        if ast.unparse(value) == f"{accepted} - {forwards}":
            return "(len-1)"
        # A counter of its own, kept beside the accepted tokens: drafts only, by what is added to it.
        if (dotted_name(value) or "").endswith(("correct_drafts", "accepted_drafts")):
            return "(len-1)"
    raise _UnreadableFormulaError("what the accept rate counts is not understood", rate)


def _denominator(rate: ast.BinOp, values: dict[str, list[ast.expr]], forwards: str) -> tuple[str, ast.AST]:
    """How many tokens a verify step could have accepted, and where that is said."""
    total = rate.right
    if isinstance(total, ast.Name):
        total = values.get(total.id, [total])[-1]
    if not (
        isinstance(total, ast.BinOp)
        and isinstance(total.op, ast.Mult)
        and dotted_name(total.left) == forwards
    ):
        raise _UnreadableFormulaError("what the accept rate is divided by is not understood", rate)
    per_round = total.right
    for value in values.get(per_round.id, []) if isinstance(per_round, ast.Name) else [per_round]:
        text = ast.unparse(value)
        if re.search(r"speculative_num_draft_tokens - 1$", text):
            return "(D-1)", value
        if re.search(r"speculative_num_draft_tokens( or \w+)?$", text):
            return "D", total
        if "speculative_num_steps" in text and text.endswith("+ 1"):
            return "(steps+1)", total
    raise _UnreadableFormulaError("what the accept rate is divided by is not understood", total)


def read_metrics(syntax: Syntax) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the metrics about speculation, and of the fields about it in `meta_info`, both sorted."""
    metrics: set[str] = set()
    for file in syntax.tree.holding("sglang:spec_"):
        if file.startswith(("metrics/", *_LOGS)):
            metrics |= set(re.findall(r'name="(sglang:spec_\w+)"', syntax.tree.text(file) or ""))
    fields: set[str] = set()
    for file in syntax.tree.holding('meta_info["spec_', "managers/"):
        fields |= set(re.findall(r'meta_info\["(spec_\w+)"\] =', syntax.tree.text(file) or ""))
    return tuple(sorted(metrics)), tuple(sorted(fields))


def read_server_info(syntax: Syntax) -> tuple[str, ...]:
    """Paths that tell about a running server, and the fields about speculation in its answer, both sorted."""
    text = syntax.tree.text("entrypoints/http_server.py") or ""
    paths = set(re.findall(r'@app\.\w+\(\s*"(/(?:get_)?server_info)"', text))
    fields: set[str] = set()
    for file in syntax.tree.holding("spec_accept", "managers/"):
        fields |= set(re.findall(r'\b(?:ret|state)\["(\w*spec_\w+)"\] =', syntax.tree.text(file) or ""))
    return (*sorted(paths), *sorted(fields))


def read_algorithms(syntax: Syntax) -> tuple[Algorithms | None, list[Unknown]]:
    """What `--speculative-algorithm` accepts."""
    module = syntax.module("speculative/spec_info.py")
    cls = module.classes.get("SpeculativeAlgorithm") if module else None
    if module is None or cls is None:
        return None, [Unknown("algorithms", "no class SpeculativeAlgorithm", "speculative/spec_info.py")]
    members = {
        dotted_name(node.targets[0]) or ""
        for node in cls.node.body
        if isinstance(node, ast.Assign) and called(node.value) == "auto"
    }
    # Where the class is no enum it registers its names one by one.
    calls = [
        node
        for node in ast.walk(module.tree)
        if called(node) in ("register", "register_speculative_algorithm")
    ]
    registered = {text_of(c.args[0]) or "" for c in calls if isinstance(c, ast.Call) and c.args}
    names = (members | registered) - {"NONE", ""}
    if not names:
        return None, [Unknown("algorithms", "the names are not understood", str(cls.source))]
    aliases = {name: target for name, target in _aliases(syntax) if name not in names and target in names}
    return Algorithms(tuple(sorted(names | aliases.keys())), dict(sorted(aliases.items())), cls.source), []


def _aliases(syntax: Syntax) -> Iterator[tuple[str, str]]:
    """Names that become another name, and what they become."""
    files = ("server_args.py", "arg_groups/speculative_hook.py", "speculative/spec_info.py")
    for module in map(syntax.module, files):
        for node in ast.walk(module.tree) if module else ():
            if isinstance(node, ast.Call):
                yield from _declared(node)
            elif isinstance(node, ast.If) and "speculative_algorithm" in ast.unparse(node.test):
                yield from _rewritten(node)


def _declared(node: ast.Call) -> Iterator[tuple[str, str]]:
    """`register("EAGLE", aliases=("NEXTN",))`."""
    target = text_of(node.args[0]) if node.args else None
    for keyword in node.keywords:
        if keyword.arg == "aliases" and target and isinstance(keyword.value, ast.Tuple | ast.List):
            yield from ((name, target) for name in map(text_of, keyword.value.elts) if name)


def _rewritten(node: ast.If) -> Iterator[tuple[str, str]]:
    """`if algorithm == "NEXTN": … algorithm = "EAGLE"`, or `return "EAGLE"`, as its last statement."""
    last = node.body[-1]
    target = text_of(last.value) if isinstance(last, ast.Return | ast.Assign) else None
    tests = (
        node.test.values
        if isinstance(node.test, ast.BoolOp) and isinstance(node.test.op, ast.Or)
        else [node.test]
    )
    for test in tests:
        if target and isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq):
            name = text_of(test.comparators[0])
            if name and name != target:
                yield name, target
