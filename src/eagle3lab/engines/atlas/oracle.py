"""A release's own `load_weights`, run on stand-in parameters, and the simulator's answer beside it.

The loader's code is cut out of the source tree and executed in a process of its own, isolated and with a time
limit. This executes code of the tree; reading facts from it never does. Only the check commands do so.
"""

from __future__ import annotations

import ast
import copy
import json
import random
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3lab.engines.extract.discover import eagle3_class, find_drafters
from eagle3lab.engines.extract.syntax import ClassRef, Syntax
from eagle3lab.engines.extract.tree import open_tree
from eagle3lab.engines.facts import NameRules, Parameter
from eagle3lab.engines.loading.names import route
from eagle3lab.errors import Eagle3labError, InputError

LIMIT_SECONDS = 60
_LAYER = (
    "self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight", "self_attn.o_proj.weight",
    "self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.o_proj.bias", "self_attn.q_norm.weight",
    "self_attn.k_norm.weight", "self_attn.qkv_proj.weight", "mlp.gate_proj.weight", "mlp.up_proj.weight",
    "mlp.down_proj.weight", "mlp.gate_up_proj.weight", "input_layernorm.weight", "hidden_norm.weight",
    "post_attention_layernorm.weight",
)  # fmt: skip
_TOP = (
    "embed_tokens.weight", "fc.weight", "fc.bias", "norm.weight", "lm_head.weight", "d2t", "t2d", "input_norm.weight",
    "fc_norm.0.weight", "fc_norm.1.weight", "fc_norm.2.weight", "aux_norm_low.weight", "aux_norm_mid.weight",
    "aux_norm_high.weight", "verifier_norm.weight", "verifier_lm_head.weight", "mask_hidden",
)  # fmt: skip
_LAYERS = ("midlayer.", "layers.0.", "midlayer.0.", "layers.1.", "midlayer.1.", "layers.")
_OUTER = ("", "model.", "module.", "draft_model.", "model.model.")

# ("nothing",), ("warned",), ("token map",), ("raised", type) or ("loaded", parameter, shard).
Fate = tuple[str | int | None, ...]


class OracleError(Eagle3labError):
    """The loader's code could not be run."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A name of which the release and the simulator say different things."""

    name: str
    release: Fate
    simulator: Fate


def families() -> list[str]:
    """Every name family that trainers are known to write, and some that they are not."""
    inner = [*_TOP, *(layer + name for layer in _LAYERS for name in _LAYER)]
    return [outer + name for outer in _OUTER for name in inner]


def generated(count: int, seed: int = 0) -> list[str]:
    """Names put together at random from the pieces that rules look for."""
    words = (
        "model", "midlayer", "layers", "0", "1", "self_attn", "mlp", "q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj",
        "gate_proj", "up_proj", "down_proj", "gate_up_proj", "weight", "bias", "norm", "fc", "fc_norm", "aux_norm_low",
        "aux_norm_mid", "input_norm", "hidden_norm", "d2t", "t2d", "embed_tokens", "module", "x", "xd2ty", "midlayers",
    )  # fmt: skip
    choose = random.Random(seed)
    return [".".join(choose.choices(words, k=choose.randint(1, 6))) for _ in range(count)]


def parameter_names(parameters: Sequence[Parameter], *, tied: bool = False) -> list[str]:
    """Names of the parameters of a drafter with one layer, three auxiliary states and every option on.

    Args:
        parameters: The release's.
        tied: The head is the embedding and no parameter of its own.
    """
    names: list[str] = []
    for parameter in parameters:
        if tied and parameter.when == "own_head":
            continue
        numbers = range(3) if "{aux}" in parameter.name else range(1)
        names += [parameter.name.replace("{aux}", str(n)).replace("{layer}", "0") for n in numbers]
    return names


def simulated(name: str, rules: NameRules, parameters: Collection[str], *, tied: bool = False) -> Fate:
    """What the simulator says of a name."""
    way = route(name, rules, parameters, ("tied",) if tied else ())
    if way.special is not None:
        return ("token map",) if way.special.effect == "hot_token_id" else ("nothing",)
    if way.parameter is not None:
        return "loaded", way.parameter, None if way.stacked is None else way.stacked.shard
    if way.exception is not None:
        return "raised", way.exception
    return ("warned",) if way.warned else ("nothing",)


def run_loader(
    path: Path, parameters: Sequence[str], names: Sequence[str], *, tied: bool = False
) -> list[Fate]:
    """What the EAGLE-3 loader of the source tree at `path` does with each name.

    Raises:
        InputError: There is no SGLang, or no EAGLE-3 class.
        OracleError: Its code cannot be run alone, or takes too long.
    """
    syntax = Syntax(open_tree(path))
    found = eagle3_class(syntax, find_drafters(syntax))
    if found is None:
        raise InputError("no class for EAGLE-3 drafters", path=path)
    request = {
        "source": loader_source(syntax, found[0]),
        "parameters": list(parameters),
        "config": {"tie_word_embeddings": tied, "num_hidden_layers": 1},
        "names": list(names),
    }
    command = [sys.executable, "-I", str(Path(__file__).with_name("oracle_worker.py"))]
    try:
        answer = subprocess.run(
            command,
            input=json.dumps(request),
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
            env={},
        )
    except subprocess.TimeoutExpired:
        raise OracleError(f"load_weights took longer than {LIMIT_SECONDS} s") from None
    if answer.returncode:
        raise OracleError(f"load_weights cannot be run alone: {answer.stderr.strip()[-500:]}")
    return [_fate(reply) for reply in json.loads(answer.stdout)]


def _fate(reply: Mapping[str, object]) -> Fate:
    if "exception" in reply:
        return "raised", str(reply["exception"])
    reached = reply["reached"]
    assert isinstance(reached, list)
    if reply["token_map"]:
        return ("token map", "and more") if reached or reply["warned"] else ("token map",)
    if reached:
        return ("loaded", *reached[0]) if len(reached) == 1 else ("loaded more than once",)
    return ("warned",) if reply["warned"] else ("nothing",)


def loader_source(syntax: Syntax, cls: ClassRef) -> str:
    """A module with a class `Drafter` that has the class's `load_weights`, and its ancestors' where it calls them."""
    bases = "object"
    parts: list[str] = []
    owners = [owner for owner in (cls, *syntax.bases(cls)) if owner.method("load_weights") is not None]
    for number, owner in reversed(list(enumerate(owners))):
        function = owner.method("load_weights")
        assert function is not None
        name = "Drafter" if number == 0 else f"Ancestor{number}"
        parts.append(f"class {name}({bases}):\n{_indented(ast.unparse(_bare(function)))}")
        bases = name
    return "\n\n".join(parts)


def _bare(function: ast.FunctionDef) -> ast.FunctionDef:
    """Without decorators and annotations, which would need names that are not there."""
    function = copy.deepcopy(function)
    function.decorator_list, function.returns = [], None
    for node in ast.walk(function):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return function


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def disagreements(
    path: Path, rules: NameRules, parameters: Sequence[Parameter], names: Sequence[str]
) -> list[Disagreement]:
    """The names of which the source tree at `path` and the simulator say different things, tied embeddings or not."""
    found: list[Disagreement] = []
    for tied in (False, True):
        known = parameter_names(parameters, tied=tied)
        real = run_loader(path, known, names, tied=tied)
        ours = [simulated(name, rules, set(known), tied=tied) for name in names]
        pairs = zip(names, real, ours, strict=True)
        found += [Disagreement(name, one, other) for name, one, other in pairs if one != other]
    return found
