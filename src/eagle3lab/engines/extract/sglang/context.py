"""Whether the drafter must reach as far as the target's context, and what happens where it does not."""

from __future__ import annotations

import ast

from eagle3lab.engines.arguments.rules import DraftContextRule
from eagle3lab.engines.extract.syntax import Module, Syntax, called, dotted_name, text_of

_CONFIG = "configs/model_config.py"
_VARIABLE = "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"
_TARGET = ("target_worker.model_runner.model_config.context_len", "target_model_config.context_len")
_WORKERS = ("speculative/eagle_worker", "speculative/draft_worker")


def read_context(syntax: Syntax) -> DraftContextRule | None:
    """The rule; None where it could not be read."""
    module = syntax.module(_CONFIG)
    handed = _handed_at(syntax)
    if module is None or handed is None:
        return None
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.If) or _VARIABLE not in ast.unparse(node.test):
            continue
        raised = next((one for one in node.orelse if isinstance(one, ast.Raise)), None)
        allowed = _default(syntax, node.test)
        if raised is not None and allowed is not None:
            return DraftContextRule(handed, str(module.source(raised)), allowed)
    return None


def _handed_at(syntax: Syntax) -> str | None:
    """Where the drafter's worker is given the target's context."""
    for file in syntax.tree.holding(".context_len", "speculative/"):
        module = syntax.module(file) if file.startswith(_WORKERS) else None
        line = None if module is None else _line(module)
        if line is not None:
            return line
    return None


def _line(module: Module) -> str | None:
    for node in ast.walk(module.tree):
        value = node.value if isinstance(node, ast.keyword | ast.Assign) else None
        name = node.arg if isinstance(node, ast.keyword) else None
        if isinstance(node, ast.Assign):
            name = (dotted_name(node.targets[0]) or "").rpartition(".")[2]
        if name == "context_length" and value is not None and (dotted_name(value) or "").endswith(_TARGET):
            return str(module.source(value))
    return None


def _default(syntax: Syntax, test: ast.expr) -> bool | None:
    """What the variable is where it is not set: stated in the call, or where variables are declared."""
    for node in ast.walk(test):
        if called(node) == "get_bool_env_var" and isinstance(node, ast.Call):
            stated = [*node.args[1:], *(one.value for one in node.keywords)]
            return (text_of(stated[0]) if stated else "false") in ("True", "true", "1")
    module = syntax.module("environ.py")
    for node in ast.walk(module.tree) if module else ():
        if isinstance(node, ast.Assign) and dotted_name(node.targets[0]) == _VARIABLE:
            given = node.value.args[0] if isinstance(node.value, ast.Call) and node.value.args else None
            if isinstance(given, ast.Constant) and isinstance(given.value, bool):
                return given.value
    return None
