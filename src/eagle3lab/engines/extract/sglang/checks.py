"""What must hold for a drafter class to be built, noted down while its constructors are followed."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from eagle3lab.engines.extract.sglang.values import Config, Value
from eagle3lab.engines.extract.syntax import Syntax, dotted_name
from eagle3lab.engines.extract.values import NONE, Factor, Literal
from eagle3lab.engines.facts import ConstructionRule, Size, Source, Switch

Shape = tuple[Factor, ...]
_DRAFT_VOCABULARY = "draft_vocab_size"
# Sizes that only config classes for low-rank attention have.
_LOW_RANK = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
_NO_ATTRIBUTE = "'{config_class}' object has no attribute '{key}'"


class Checks:
    """The checks met so far, in order, each once.

    Attributes:
        rules: The checks as rules.
        head_config: Where the draft vocabulary becomes the vocabulary of a copy of the config; None if nowhere.
        switches: The switches that rules depend on.
        sizes: Sizes that only rules depend on.
        joins_states: Whether the class joins several hidden states of the target, as EAGLE-3 does.
    """

    def __init__(self, joins_states: bool) -> None:
        self.joins_states = joins_states
        self.rules: list[ConstructionRule] = []
        self.head_config: Source | None = None
        self.switches: dict[str, Switch] = {}
        self.sizes: list[Size] = []
        self._under: list[Switch] = []

    @contextmanager
    def under(self, switch: Switch) -> Iterator[None]:
        """What is met inside is met only if the switch is on."""
        self._under.append(switch)
        yield
        self._under.pop()

    def _add(
        self,
        rule: str,
        exception: str,
        source: Source,
        message: str = "",
        size: str | None = None,
        allowed: tuple[str, ...] = (),
    ) -> None:
        switch = self._under[-1] if self._under else None
        when = None if switch is None else switch.name
        for number, known in enumerate(self.rules):
            if (known.rule, known.size, known.allowed) == (rule, size, allowed):
                if known.when is not None and known.when != when:
                    self.rules[number] = replace(known, when=None)
                return
        if switch is not None:
            self.switches[switch.name] = switch
        self.rules.append(ConstructionRule(rule, exception, message, size, allowed, when, source))

    def read(self, path: str, source: Source) -> None:
        """The config is read without a default."""
        if path == _DRAFT_VOCABULARY:
            message = "'{config_class}' object has no attribute 'draft_vocab_size'"
            self._add("draft_vocab_size stated", "AttributeError", source, message)
        elif path in _LOW_RANK:
            self._add("key stated", "AttributeError", source, _NO_ATTRIBUTE, path)

    def overwritten(self, key: str, value: Value, source: Source) -> None:
        """A config key is given a value."""
        if (
            key == "vocab_size"
            and isinstance(value, Size | Config)
            and _name(value) in ("head_rows", _DRAFT_VOCABULARY)
        ):
            self.head_config = source

    def multiplied(self, shape: Shape, source: Source) -> None:
        """Two sizes are multiplied."""
        if any(isinstance(factor, Size) and factor.present == "target_hidden_size" for factor in shape):
            message = "unsupported operand type(s) for *: 'NoneType' and 'int'"
            self._add("target_hidden_size not null", "TypeError", source, message)

    def vocabulary(self, syntax: Syntax, shape: Shape) -> None:
        """A vocabulary is split over ranks."""
        self._divided(syntax, "vocabulary divisible", shape)

    def split_rows(self, syntax: Syntax, shape: Shape) -> None:
        """The rows, or the columns, of a layer are split over ranks."""
        # Sizes that the number of heads divides need no check of their own.
        if self._divided(syntax, "rows divisible", shape):
            self.sizes += [size for size in shape if isinstance(size, Size)]

    def _divided(self, syntax: Syntax, rule: str, shape: Shape) -> bool:
        """Whether the release checks that ranks divide a shape of one size; the check is noted down."""
        module = syntax.module("distributed/utils.py")
        source = module.matching("assert numerator % denominator == 0") if module else None
        if source is None or len(shape) != 1:
            return False
        message = "{numerator} is not divisible by {denominator}"
        self._add(rule, "AssertionError", source, message, _name(shape[0]))
        return True

    def merged_columns(self, syntax: Syntax, shape: Shape) -> None:
        """The parts of a fused layer are split over ranks."""
        module = syntax.module("layers/linear.py")
        source = module.matching("assert all(output_size % tp_size == 0") if module else None
        if source is not None and len(shape) == 1:
            self._add("size divisible", "AssertionError", source, size=_name(shape[0]))

    def assertion(self, node: ast.Assert, source: Source) -> None:
        """An `assert`: those about heads and ranks are known."""
        text = ast.unparse(node.test)
        if text in ("self.total_num_heads % tp_size == 0", "num_heads % attn_tp_size == 0"):
            self._add("heads divisible", "AssertionError", source)
        elif text == "tp_size % self.total_num_kv_heads == 0":
            self._add("key-value heads divide", "AssertionError", source)

    def refusal(self, node: ast.If, raised: Source | None, evaluate: Callable[[ast.expr], Value]) -> bool:
        """`if key != literal: raise …` or `if key is None: raise …`: True if that is what it is."""
        test = node.test
        if (
            raised is None
            or not isinstance(test, ast.Compare)
            or not isinstance(test.ops[0], ast.Is | ast.NotEq)
        ):
            return False
        key, allowed = evaluate(test.left), evaluate(test.comparators[0])
        exception = node.body[0].exc  # type: ignore[attr-defined]
        kind, message = dotted_name(exception.func) or "", _message(exception.args[0])
        if isinstance(test.ops[0], ast.Is):
            if not isinstance(key, Config) or not key.path or allowed != NONE:
                return False
            self._add("key not null", kind, raised, message, key.path)
            return True
        if key == Config("num_hidden_layers") and allowed == Literal(1):
            self._add("one layer", kind, raised, message)
            return True
        if key == Config("hidden_act") and isinstance(allowed, Literal) and isinstance(allowed.value, str):
            self._add("activation", kind, raised, message, allowed=(allowed.value,))
            return True
        return False


def _name(value: object) -> str | None:
    if isinstance(value, Size):
        return value.name
    if isinstance(value, Config):
        return value.path
    return value if isinstance(value, str) else None


def _message(node: ast.expr) -> str:
    """A literal or an f-string whose fields are plain names, as a format string."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    parts = node.values if isinstance(node, ast.JoinedStr) else []
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
        for part in parts
        if isinstance(part, ast.Constant | ast.FormattedValue)
    )
