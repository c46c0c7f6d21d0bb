"""The one reader of launch commands: what was asked of which engine, wherever it is written.

A command is found in shell text (a line, a script, a here-document, the words of `docker run` or `bash -c`), in YAML
(a compose file's `command:`, a Kubernetes container's `args:`) and in Python (`Engine(…)`, `LLM(…)`). What a release
makes of it is `eagle3lab.engines.arguments`'s to say.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eagle3lab.engines.launch.shell import MOST_TEXT, Problem, commands
from eagle3lab.errors import InputError

_ASSIGNMENT = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_OPTION = re.compile(r"--?[A-Za-z]")
_CONFIG = re.compile(r"--(?:config|extra[_-]llm[_-]api[_-]options)(?:=|$)")
_INTEGER = re.compile(r"[+-]?\d{1,9}")
_MENTIONS = ("sglang", "vllm", "trtllm", "lmdeploy", "llama-server", "speculative")
_OTHER_PROGRAMS = {"trtllm-serve": "tensorrt-llm", "llama-server": "llama.cpp", "lmdeploy": "lmdeploy"}
_YAML = re.compile(r"^[ \t]*-?[ \t]*(?:services|apiVersion|containers|command|args):", re.MULTILINE)
_PYTHON = re.compile(r"\b(?:Engine|LLM|ServerArgs|EngineArgs|AsyncEngineArgs)\(")
_CONSTRUCTORS = {
    "Engine": "sglang", "ServerArgs": "sglang", "LLM": "vllm", "EngineArgs": "vllm", "AsyncEngineArgs": "vllm",
}  # fmt: skip
_HERE_DOCUMENT = re.compile(r"<<-?[ \t]{0,9}['\"]?(\w{1,40})['\"]?[^\n]*\n")
_MOST_NODES = 20_000
_MOST_MERGED = 8
_KUBERNETES_VARIABLE = re.compile(r"\$\(([A-Za-z_]\w*)\)")
_LONGEST_PROGRAM = 1 << 18
_DEEPEST = 4
# Spellings of one option, by its longest; those of vLLM too, and the abbreviations that SGLang's parser takes.
_ALIASES = {
    "model": "model-path",
    "m": "model-path",
    "md": "speculative-draft-model-path",
    "tp": "tp-size",
    "tensor-parallel-size": "tp-size",
    "dp": "dp-size",
    "data-parallel-size": "dp-size",
    "pp": "pp-size",
    "pipeline-parallel-size": "pp-size",
    "q": "quantization",
    "speculative-algo": "speculative-algorithm",
    "speculative-draft-model": "speculative-draft-model-path",
    "max-model-len": "context-length",
    "block-size": "page-size",
    "nccl-init-addr": "dist-init-addr",
}
_VLLM_OLD = {"speculative-model": "model", "num-speculative-tokens": "num_speculative_tokens"}
_TENSORRT = {
    "speculative_model_dir": "model", "speculative_model": "model", "max_draft_len": "num_speculative_tokens",
    "decoding_type": "method",
}  # fmt: skip
_FOR_A_MACHINE = ("SGLANG_", "SGL_", "VLLM_")


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch command.

    Attributes:
        engine: "sglang", "vllm", another engine by its name, or None when the command names none.
        words: Everything after the program, as the engine's own parser gets it: the model, options, values, those of
            a `--config` file first.
        options: Option without its dashes, by its longest spelling → its value; "" for one without. Of a repeated one,
            the last counts.
        environment: Variables set for the command.
        speculative: vLLM's --speculative-config, parsed; empty for SGLang.
        problems: What only a shell could have evaluated; it stands in the words as it is written.
        notes: What could not be read, and what was chosen among several servers.
        path: The file it was read from; None for a command as typed.
        line: 1-based line on which it begins.
    """

    engine: str | None
    words: tuple[str, ...]
    options: Mapping[str, str]
    environment: Mapping[str, str]
    speculative: Mapping[str, object]
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()
    path: Path | None = None
    line: int = 1

    def text(self, option: str) -> str | None:
        """An option's value; None when it is not given or has none."""
        return self.options.get(option) or None

    def number(self, option: str) -> int | None:
        """An option's value as a whole number; None when it is none."""
        value = self.options.get(option, "")
        return int(value) if re.fullmatch(r"\d{1,9}", value) else None

    def has(self, option: str) -> bool:
        """Whether the option is given."""
        return option in self.options

    @property
    def algorithm(self) -> str | None:
        """The speculative algorithm in capitals (SGLang), or vLLM's method."""
        if self.engine != "sglang" and self.speculative:
            method = self.speculative.get("method")
            return method.lower() if isinstance(method, str) else None
        value = self.text("speculative-algorithm")
        return value.upper() if value else None

    @property
    def model(self) -> str | None:
        """The target, as it is named."""
        return self.text("model-path")

    @property
    def drafter(self) -> str | None:
        """The drafter, as it is named."""
        model = self.speculative.get("model")
        return model if isinstance(model, str) else self.text("speculative-draft-model-path")

    @property
    def tp(self) -> int:
        """Tensor-parallel size."""
        return self.number("tp-size") or 1

    @property
    def pp(self) -> int:
        """Pipeline-parallel size."""
        return self.number("pp-size") or 1

    @property
    def dp(self) -> int:
        """Data-parallel size."""
        return self.number("dp-size") or 1

    @property
    def steps(self) -> int | None:
        """Draft steps."""
        number = self.speculative.get("num_speculative_tokens")
        if isinstance(number, int) and not isinstance(number, bool):
            return number
        return self.number("speculative-num-steps")

    @property
    def topk(self) -> int | None:
        """Branches of the draft tree."""
        return self.number("speculative-eagle-topk")

    @property
    def draft_tokens(self) -> int | None:
        """Draft tokens D as asked for, the root included."""
        if self.engine == "vllm":
            return None if self.steps is None else self.steps + 1
        return self.number("speculative-num-draft-tokens")

    @property
    def effective_draft_tokens(self) -> int | None:
        """Draft tokens D as the engine uses them: a chain of `steps` has steps + 1."""
        return self.steps + 1 if self.topk == 1 and self.steps is not None else self.draft_tokens

    @property
    def backends(self) -> dict[str, str]:
        """Backends by purpose: `{"attention": "fa3"}` of `--attention-backend fa3`."""
        given = {name: value for name, value in self.options.items() if name.endswith("-backend") and value}
        return {name.removesuffix("-backend"): value for name, value in given.items()}

    @property
    def speculates(self) -> bool:
        """Whether anything about speculation is asked for."""
        return bool(self.speculative) or any(option.startswith("speculative") for option in self.options)

    def unweighed(self, known: Sequence[str] = ()) -> tuple[str, ...]:
        """The engine's own variables that are set and of which nothing here knows what they do.

        Args:
            known: Those that the release's rules read.
        """
        return tuple(
            name for name in self.environment if name.startswith(_FOR_A_MACHINE) and name not in known
        )


def read_launch(given: str, *, variables: Mapping[str, str] | None = None, strict: bool = False) -> Launch:
    """Read a launch command, or the file that holds one. Nothing is executed.

    Of several servers, the last that speculates is meant, and the notes say so.

    Args:
        given: The command as typed, or the path of a script, a deployment file or a Python program.
        variables: Values of shell variables that it uses and does not set.
        strict: Whether what only a shell could evaluate is an error; else it is a note.

    Raises:
        InputError: The file cannot be read, there is no command in it, its variables expand without end, or it is to
            be strict and cannot be known.
    """
    path = _file(given)
    text = _content(path) if path is not None else given
    found = list(_found(text, variables or {}, path))
    engines = [one for one in found if one.engine]
    chosen = ([one for one in engines if one.speculates] or engines or found)[-1:]
    if not chosen:
        raise InputError(
            "holds no launch command",
            path=path,
            advice="Expected python -m sglang.launch_server …, sglang serve … or vllm serve …",
        )
    launch = chosen[0]
    if strict and launch.problems:
        problem = launch.problems[0]
        raise InputError(problem.text, path=path, line=problem.line, advice=problem.advice)
    notes = [f"line {one.line} of the command: {one.text}" for one in launch.problems]
    others = [one for one in engines if one.words != launch.words]
    if others:
        lines = ", ".join(str(line) for line in sorted({one.line for one in others}))
        notes.append(
            f"several servers are launched: the one on line {launch.line} is meant, not that on {lines}"
        )
    return replace(launch, notes=(*launch.notes, *notes), path=path)


def _file(given: str) -> Path | None:
    """The file that was named, or None where the text is the command itself.

    Raises:
        InputError: It looks like a path, and there is no file.
    """
    if "\n" in given or len(given) > 4096 or "\0" in given:
        return None
    path = Path(given)
    try:
        if path.is_file():
            return path
        exists = path.exists()
    except (OSError, ValueError):  # a name that is too long
        exists = False
    if exists or not re.search(r"\s", given.strip()):
        raise InputError("is neither a launch command nor a file", path=given)
    return None


def _content(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            content = stream.read(MOST_TEXT + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from None
    if len(content) > MOST_TEXT:
        raise InputError("is too large for a launch script", path=path, advice="Give the command itself.")
    return content.decode("utf-8", "replace")


def _found(text: str, variables: Mapping[str, str], path: Path | None) -> Iterator[Launch]:
    """Every launch in a text, from the manner of writing that it is in."""
    if _YAML.search(text):
        deployed = list(_deployed(text, variables, path))
        if deployed:
            yield from deployed
            return
    if _PYTHON.search(text) and len(text) <= _LONGEST_PROGRAM:
        constructed = [
            launch for program in (text, *_here_documents(text)) for launch in _constructed(program)
        ]
        if constructed:
            yield from constructed
            return
    yield from _shell(text, variables, path)


# ---- shell ----------------------------------------------------------------------------------------------------------


def _shell(
    text: str, variables: Mapping[str, str], path: Path | None, *, line: int = 1, depth: int = 0
) -> Iterator[Launch]:
    for command in commands(text, _is_wanted, variables=variables, path=path, first_line=line):
        words = command.words
        engine, start = _program(words)
        environment = {**command.environment, **_set_by_words(words[:start])}
        launch = launch_of(engine, words[start:], environment, path=path)
        if engine is not None or launch.speculates:
            yield replace(launch, problems=command.problems, line=command.line)
        elif depth < _DEEPEST:
            for word in words:  # bash -c '…', docker run … sh -c "…"
                if _mentions(word) and any(blank in word for blank in " \n\t"):
                    known = {**variables, **environment}
                    for inner in _shell(word, known, path, line=command.line, depth=depth + 1):
                        yield replace(inner, environment={**environment, **inner.environment})


def _mentions(text: str) -> bool:
    return any(name in text for name in _MENTIONS)


def _is_wanted(words: list[str]) -> bool:
    return any(map(_mentions, words))


def _program(words: Sequence[str]) -> tuple[str | None, int]:
    """The engine, and where its own arguments start."""
    for at, word in enumerate(words):
        name = word.replace("\\", "/").rsplit("/", 1)[-1]
        following = words[at + 1] if at + 1 < len(words) else ""
        if name in ("sglang.launch_server", "sglang_router.launch_server") or word.endswith(
            "sglang/launch_server.py"
        ):
            return "sglang", at + 1
        if name in ("sglang", "vllm") and following == "serve":
            return name, at + 2
        if name.startswith("vllm.entrypoints"):
            return "vllm", at + 1 + (following == "serve")
        if re.match(r"(?:vllm-openai|vllm-cpu-release-repo)(?::|@|$)", name) and following.startswith("-"):
            return "vllm", at + 1  # the image's entry point
        if name in _OTHER_PROGRAMS:
            return _OTHER_PROGRAMS[name], at + (3 if (name, following) == ("lmdeploy", "serve") else 1)
    return None, 0


def _set_by_words(words: Sequence[str]) -> dict[str, str]:
    """The assignments that follow the word `env`, or an `-e` of docker."""
    own: dict[str, str] = {}
    active = False
    for word, before in zip(words, ("", *words), strict=False):
        docker = before in ("-e", "--env")
        match = (
            _ASSIGNMENT.fullmatch(word.removeprefix("--env="))
            if active or docker or "--env=" in word
            else None
        )
        if match is not None:
            own[match.group(1)] = match.group(2)
        else:
            active = Path(word).name == "env"
    return own


def launch_of(
    engine: str | None, words: Sequence[str], environment: Mapping[str, str], path: Path | None = None
) -> Launch:
    """The launch of an engine with these arguments.

    Args:
        engine: The engine; None where it is to be told from the options.
        words: Everything after the program.
        environment: Variables set for it.
        path: The file that they stand in: a `--config` is looked for beside it.
    """
    words, notes = _with_config(tuple(words), path)
    options = dict(_options(words))
    speculative: dict[str, object] = {}
    if engine != "sglang":
        speculative, said = _speculative(options)
        notes += said
        if engine is None and speculative:
            engine = "vllm"
    return Launch(engine, words, options, dict(environment), speculative, notes=tuple(notes))


def _with_config(words: tuple[str, ...], path: Path | None) -> tuple[tuple[str, ...], list[str]]:
    """The words with those of a `--config` file put first, so that what is given beside it counts."""
    at = next((at for at, word in enumerate(words) if _CONFIG.match(word)), None)
    if at is None:
        return words, []
    _, equals, config = words[at].partition("=")
    end = at + 1 if equals else at + 2
    config = config if equals else "".join(words[at + 1 : end])
    if not config.endswith((".yaml", ".yml")):
        return words, []
    place = Path(config) if path is None or Path(config).is_absolute() else path.parent / config
    try:
        lines = next((one for one in _documents(_content(place), place) if isinstance(one, dict)), {})
    except InputError as error:
        return words, [f"the options in {config} are not known: {error.problem}"]
    model = 1 if not words[0].startswith("-") else 0
    return (*words[:model], *words_of(lines), *words[model:at], *words[end:]), []


def _options(words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    at = 0
    if words and not words[0].startswith("-"):  # serve MODEL
        yield "model-path", words[0]
        at = 1
    while at < len(words):
        word = words[at]
        at += 1
        if not _OPTION.match(word):
            continue
        name, equals, value = word.lstrip("-").partition("=")
        if not equals:
            start = at
            while at < len(words) and not _OPTION.match(words[at]):
                at += 1
            value = " ".join(words[start:at])
        yield long_spelling(name), value


def long_spelling(name: str) -> str:
    """The spelling under which an option stands in `Launch.options`: `tp` and `tp_size` are `tp-size`."""
    head, dot, key = name.partition(".")
    name = head.replace("_", "-") + dot + key
    return _ALIASES.get(name, name)


def _speculative(options: Mapping[str, str]) -> tuple[dict[str, object], list[str]]:
    dotted: dict[str, object] = {}
    for option, value in options.items():
        key = option.partition(".")[2] if option.startswith("speculative-config.") else _VLLM_OLD.get(option)
        if key:
            dotted[key.replace("-", "_")] = int(value) if _INTEGER.fullmatch(value) else value
    text = options.get("speculative-config")
    if text is None:
        return dotted, []
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return dotted, ["--speculative-config is not JSON and was not read"]
    if not isinstance(parsed, dict):
        return dotted, ["--speculative-config is JSON, but not an object, and was not read"]
    return {str(_TENSORRT.get(key, key)): value for key, value in (parsed | dotted).items()}, []


# ---- YAML -----------------------------------------------------------------------------------------------------------


def _documents(text: str, path: Path | None) -> list[Any]:
    """The documents of a YAML file.

    Raises:
        InputError: It is none.
    """
    import yaml  # 20 ms that a command as typed does not need

    class Loader(yaml.SafeLoader):  # type: ignore[misc]  # it has no types
        def flatten_mapping(self, node: yaml.MappingNode) -> None:
            """A mapping with those merged into it: few of them, since what they merge multiplies."""
            merged = [value for key, value in node.value if key.tag == "tag:yaml.org,2002:merge"]
            if any(
                isinstance(value, yaml.SequenceNode) and len(value.value) > _MOST_MERGED for value in merged
            ):
                raise yaml.YAMLError("merges too many mappings")
            super().flatten_mapping(node)
            if len(node.value) > _MOST_NODES:
                raise yaml.YAMLError("merges too much")

    try:
        read = list(yaml.load_all(text, Loader)) if len(text) <= _LONGEST_PROGRAM else None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError(f"is no YAML: {str(error).splitlines()[0]}", path=path) from None
    waiting, room = [read], _MOST_NODES
    while waiting and room > 0:  # anchors that repeat each other are counted as often as they are repeated
        node = waiting.pop()
        room -= 1 + len(node) // 64 if isinstance(node, str | bytes) else 1
        if isinstance(node, dict | list):
            waiting += list(node.values() if isinstance(node, dict) else node)[: max(room, 0)]
    if read is None or room <= 0:
        raise InputError("is larger than any deployment file", path=path)
    return read


def _deployed(text: str, variables: Mapping[str, str], path: Path | None) -> Iterator[Launch]:
    """The servers of a compose file or of Kubernetes manifests: every mapping with a command or args."""
    try:
        waiting = _documents(text, path)
    except InputError:
        return
    waiting.reverse()
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            if node.keys() & {"command", "args", "entrypoint"}:
                yield from _container(node, variables, path)
            waiting += reversed(node.values())
        elif isinstance(node, list):
            waiting += reversed(node)


def _container(node: Mapping[str, Any], variables: Mapping[str, str], path: Path | None) -> Iterator[Launch]:
    # Compose runs entrypoint and command, Kubernetes command and args; without a program, the image has one.
    parts = [node.get(key) for key in ("entrypoint", "command", "args")]
    lines = [
        " ".join(_quoted(str(item)) for item in part)
        if isinstance(part, list)
        else part.replace("\\\n", " ").replace("\n", " ")
        for part in parts
        if isinstance(part, list | str)
    ]
    image = node.get("image")
    named = shlex.quote(image) if isinstance(image, str) else ""
    text = _KUBERNETES_VARIABLE.sub(r"${\1}", " ".join([named, *lines]))
    stated = node.get("environment") or node.get("env") or {}
    if isinstance(stated, list):
        pairs = [
            (str(one.get("name")), one.get("value"))
            if isinstance(one, dict)
            else str(one).partition("=")[::2]
            for one in stated
        ]
    else:
        pairs = list(stated.items()) if isinstance(stated, dict) else []
    own = {str(name): str(value) for name, value in pairs if value is not None}
    for launch in _shell(text, {**variables, **own}, path):
        yield replace(launch, environment={**own, **launch.environment})


def _quoted(item: str) -> str:
    """An item of a list as a shell word in which variables are still expanded."""
    return '"' + re.sub(r'(["\\`])', r"\\\1", item) + '"'


def words_of(options: Mapping[str, Any]) -> list[str]:
    """The words that options given as values come to: `{"tp_size": 2, "enable_lora": True}` is `--tp-size 2 …`."""
    words: list[str] = []
    for name, value in options.items():
        flag = "--" + str(name).replace("_", "-")
        if value is True:
            words.append(flag)
        elif isinstance(value, dict):
            words += [flag, json.dumps(value)]
        elif isinstance(value, list | tuple):
            words += [flag, *map(str, value)]
        elif value is not None and value is not False:
            words += [flag, str(value)]
    return words


# ---- Python ---------------------------------------------------------------------------------------------------------


def _constructed(text: str) -> Iterator[Launch]:
    """The engines that a Python program constructs, as far as their arguments are written out in it."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about its escapes
            nodes = list(ast.walk(ast.parse(text)))
        yield from list(_calls(nodes))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return


def _here_documents(text: str) -> Iterator[str]:
    """The bodies of a script's here-documents, up to one that is never ended."""
    at = 0
    while opened := _HERE_DOCUMENT.search(text, at):
        end = text.find(f"\n{opened.group(1)}", opened.end() - 1)
        if end < 0:
            return
        yield text[opened.end() : end]
        at = end + 1


def _calls(nodes: Sequence[ast.AST]) -> Iterator[Launch]:
    """The launches among the nodes of a program."""
    known: dict[str, ast.expr] = {}
    environment: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
            if isinstance(target, ast.Name):
                known[target.id] = node.value
            elif isinstance(target, ast.Subscript) and ast.unparse(target.value).endswith("environ"):
                name, value = _literal(target.slice, known), _literal(node.value, known)
                environment |= {name: value} if isinstance(name, str) and isinstance(value, str) else {}
    for node in nodes:
        called = node.func if isinstance(node, ast.Call) else None
        name = (
            called.attr
            if isinstance(called, ast.Attribute)
            else called.id
            if isinstance(called, ast.Name)
            else ""
        )
        if not isinstance(node, ast.Call) or name not in _CONSTRUCTORS:
            continue
        given: dict[str, Any] = {"model": _literal(node.args[0], known)} if node.args else {}
        problems = []
        for keyword in node.keywords:
            value = _literal(keyword.value, known)
            if keyword.arg is None:
                given |= value if isinstance(value, dict) else {}
            elif value is not ...:
                given[keyword.arg] = value
            if value is ...:
                said = f"{keyword.arg or 'an argument'} is {ast.unparse(keyword.value)[:80]}, which is not written out"
                problems.append(Problem(said, keyword.value.lineno, "Write its value out"))
        given = {key: value for key, value in given.items() if isinstance(key, str) and value is not ...}
        launch = launch_of(_CONSTRUCTORS[name], words_of(given), environment)
        yield replace(launch, problems=tuple(problems), line=node.lineno)


def _literal(node: ast.expr, known: Mapping[str, ast.expr], depth: int = 0) -> Any:
    """The value of an expression that is written out; `...` where it is not."""
    if isinstance(node, ast.Name) and node.id in known and depth < _DEEPEST:
        return _literal(known[node.id], known, depth + 1)
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "dict"
        and not node.args
    ):
        return {one.arg: _literal(one.value, known, depth + 1) for one in node.keywords if one.arg}
    if isinstance(node, ast.Dict):
        pairs = [(key, value) for key, value in zip(node.keys, node.values, strict=True) if key is not None]
        return (
            {_literal(key, known): _literal(value, known, depth + 1) for key, value in pairs}
            if depth < _DEEPEST
            else ...
        )
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return ...
