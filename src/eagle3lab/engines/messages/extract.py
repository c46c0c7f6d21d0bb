"""What an engine says where it stops: the texts of its `raise` and `assert` statements, read by syntax.

Read are the files on a drafter's path: arguments, speculative workers, loaders, quantisation, attention backends, the
key/value cache, the registry, and every model class that drafts or can hand states to a drafter.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from eagle3lab.engines.extract.syntax import dotted_name
from eagle3lab.engines.extract.tree import SourceTree

_PATHS = {
    "sglang": re.compile(
        r"server_args\.py|arg_groups/.*|speculative/[^/]*|model_loader/[^/]*|layers/quantization/[^/]*"
        r"|layers/(?:linear|vocab_parallel_embedding|logits_processor|parameter|rotary_embedding|radix_attention)\.py"
        r"|layers/attention/(?:[^/]*backend|attention_registry|base_attn_backend|utils)\.py"
        r"|mem_cache/(?:memory_pool|kv_cache\w*|allocation\w*|draft_kv_budget|unified_draft_pool|common)\.py"
        r"|models/registry\.py|model_executor/(?:model_runner|cuda_graph_runner|pool_configurator)\w*\.py"
        r"|model_executor/(?:model_runner_components|runner)/.*|managers/(?:scheduler|tp_worker|tokenizer_manager)\.py"
        r"|configs/(?:model_config|load_config|update_config)\.py|utils/hf_transformers\w*(?:/.*)?\.py"
        r"|hf_transformers_utils\.py|distributed/(?:parallel_state|utils)\.py|layers/dp_attention\.py"
    ),
    "vllm": re.compile(
        r"config/[^/]*|v1/spec_decode/.*|v1/worker/(?:gpu/)?(?:gpu_model_runner|gpu_worker|model_runner|spec_decode/.*)\.py"
        r"|v1/core/(?:kv_cache_utils|single_type_kv_cache_manager)\.py|v1/engine/(?:core|utils)\.py"
        r"|model_executor/models/(?:registry|interfaces|utils|adapters)\.py|model_executor/model_loader/[^/]*"
        r"|model_executor/layers/(?:linear|vocab_parallel_embedding|logits_processor)\.py|model_executor/parameter\.py"
        r"|model_executor/layers/quantization/[^/]*|transformers_utils/(?:config|model_arch_config_convertor)\.py"
        r"|transformers_utils/configs/(?:eagle|speculators/.*)\.py|v1/attention/(?:selector|backends/utils)\.py"
        r"|distributed/utils\.py"
    ),
}
# Model classes: those that draft, and those that hand something to a drafter.
_MODEL = re.compile(
    r"set_eagle3_layers_to_capture|get_embed_and_head|hot_token_id|SupportsEagle3|class Eagle|draft_id_to_target"
)
_MODELS = {"sglang": "models/", "vllm": "model_executor/models/"}
_LONGEST = 400


@dataclass(frozen=True, slots=True)
class Template:
    """A text with gaps.

    Attributes:
        error: The exception's type, "ValueError".
        pieces: Literal text and expressions in turn, literal text first and last: `("got ", "n", " ids")`. () where
            the statement gives no text, as `assert a == b` does.
        code: First line of the statement, as a traceback shows it, where there is no text; else empty.
        condition: The condition under which it is raised, as the source has it; empty where there is none.
    """

    error: str
    pieces: tuple[str, ...]
    code: str
    condition: str

    @property
    def words(self) -> str:
        """The text with its expressions in braces."""
        return (
            "".join(part if n % 2 == 0 else f"{{{part}}}" for n, part in enumerate(self.pieces)) or self.code
        )


@dataclass(frozen=True, slots=True)
class Said:
    """A template where it stands.

    Attributes:
        template: The text.
        file: File, relative to `sglang/srt` or `vllm`.
        line: 1-based line of the statement.
    """

    template: Template
    file: str
    line: int


class Reader:
    """Reads the texts of one source tree after the other; a file that did not change is parsed once."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._read: dict[bytes, list[tuple[Template, int]]] = {}

    def files(self, tree: SourceTree) -> Iterator[str]:
        """The files that are read."""
        models = _MODELS[self._kind]
        for file in tree.files:
            if _PATHS[self._kind].fullmatch(file) or (
                file.startswith(models) and _MODEL.search(tree.text(file) or "")
            ):
                yield file

    def read(self, tree: SourceTree) -> list[Said]:
        """Every text of a source tree; files that this interpreter cannot parse are left out."""
        found = []
        for file in self.files(tree):
            text = tree.text(file) or ""
            digest = hashlib.sha1(text.encode(), usedforsecurity=False).digest()
            if digest not in self._read:
                self._read[digest] = list(texts_of(text))
            found += [Said(template, file, line) for template, line in self._read[digest]]
        return found


def texts_of(source: str) -> Iterator[tuple[Template, int]]:
    """The texts of one file's statements, with their lines."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return
    yield from _Walk(source.split("\n")).body(tree.body, "", {})


class _Walk:
    """Statements in their order, with the condition they stand under and the texts that names were given before."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def body(
        self, body: list[ast.stmt], condition: str, named: dict[str, tuple[str, ...]]
    ) -> Iterator[tuple[Template, int]]:
        for node in body:
            if isinstance(node, ast.Raise):
                yield from self._raised(node, condition, named)
            elif isinstance(node, ast.Assert):
                yield self._asserted(node), node.lineno
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                pieces = _pieces(node.value, named)
                if pieces is not None:
                    named[node.targets[0].id] = pieces
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from self.body(node.body, "", {})
            else:
                inner = _shortened(ast.unparse(node.test)) if isinstance(node, ast.If) else condition
                for field in ("body", "orelse", "finalbody"):
                    yield from self.body(
                        getattr(node, field, []), inner if field == "body" else condition, named
                    )
                for handler in getattr(node, "handlers", []):
                    yield from self.body(handler.body, condition, named)
                for case in getattr(node, "cases", []):
                    yield from self.body(case.body, condition, named)

    def _raised(
        self, node: ast.Raise, condition: str, named: dict[str, tuple[str, ...]]
    ) -> Iterator[tuple[Template, int]]:
        call = node.exc
        error = (dotted_name(call.func if isinstance(call, ast.Call) else call) or "") if call else ""
        error = error.rpartition(".")[2]
        if not error or not error[0].isupper():
            return
        argument = call.args[0] if isinstance(call, ast.Call) and call.args else None
        pieces = _pieces(argument, named) if argument is not None else None
        code = "" if pieces else self._code(node)
        yield Template(error, pieces or (), code, condition), node.lineno

    def _asserted(self, node: ast.Assert) -> Template:
        pieces = _pieces(node.msg, {}) if node.msg is not None else None
        code, test = "" if pieces else self._code(node), _shortened(ast.unparse(node.test))
        return Template("AssertionError", pieces or (), code, "" if test in code else test)

    def _code(self, node: ast.stmt) -> str:
        return self._lines[node.lineno - 1].strip()[:_LONGEST]


def _shortened(text: str) -> str:
    return text if len(text) <= 240 else text[:237] + "..."


def _pieces(node: ast.expr | None, named: dict[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """A text as literal parts and expressions in turn; None where the expression is no text."""
    parts = list(_parts(node, named)) if node is not None else []
    if (
        not parts
        or any(part is None for part in parts)
        or not any(literal for literal, _ in filter(None, parts))
    ):
        return None
    pieces = [""]
    for part in filter(None, parts):
        literal, text = part
        if literal:
            pieces[-1] += text
        else:
            pieces += [text, ""]
    return tuple(pieces)


def _parts(node: ast.expr, named: dict[str, tuple[str, ...]]) -> Iterator[tuple[bool, str] | None]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield True, node.value
    elif isinstance(node, ast.JoinedStr):
        for value in node.values:
            yield from _parts(value, named)
    elif isinstance(node, ast.FormattedValue) and isinstance(node.value, ast.Name) and node.value.id in named:
        yield from _parts(node.value, named)
    elif isinstance(node, ast.FormattedValue):
        yield False, _shortened(ast.unparse(node.value))
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _parts(node.left, named)
        yield from _parts(node.right, named)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        text = node.left.value if isinstance(node.left, ast.Constant) else None
        yield from _formatted(text, re.compile(r"%(?:\(\w+\))?[-\d.]*[a-zA-Z]"), _values(node.right))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "format":
        text = node.func.value.value if isinstance(node.func.value, ast.Constant) else None
        yield from _formatted(text, re.compile(r"\{[^{}]*\}"), node.args)
    elif isinstance(node, ast.Name) and node.id in named:
        yield from ((n % 2 == 0, part) for n, part in enumerate(named[node.id]) if part)
    else:
        yield False, _shortened(ast.unparse(node))


def _values(node: ast.expr) -> list[ast.expr]:
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def _formatted(
    text: object, gap: re.Pattern[str], values: list[ast.expr]
) -> Iterator[tuple[bool, str] | None]:
    if not isinstance(text, str):
        yield None
        return
    given = [_shortened(ast.unparse(value)) for value in values]
    at = 0
    for number, match in enumerate(gap.finditer(text)):
        yield True, text[at : match.start()]
        yield False, given[number] if number < len(given) else match[0]
        at = match.end()
    yield True, text[at:]
