"""Expressions in one form, however a release spells the things that they are about."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable

from eagle3lab.engines.extract.syntax import called, dotted_name, text_of

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
