"""A vLLM release's own `load_weights`, run on stand-in modules, and the simulator's answer beside it.

The drafter's loader, its inner model's, the release's `AutoWeightsLoader` and `WeightsMapper` and the loaders of its
fused layers are cut out of the source tree and executed in a process of its own, isolated and with a time limit.
Reading facts never executes anything; only the check commands do.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Collection, Sequence

from eagle3lab.engines.atlas.oracle import Disagreement, Fate, OracleError, run_worker
from eagle3lab.engines.extract.syntax import ClassRef, Syntax, dotted_name
from eagle3lab.engines.extract.vllm.classes import find_class, inner_model
from eagle3lab.engines.extract.vllm.names import LINEAR, UTILITIES
from eagle3lab.engines.facts import DrafterClass, Parameter
from eagle3lab.engines.facts.vllm import ModuleNames
from eagle3lab.engines.loading.walk import FUSED, shipped_marks, walk

# Switches of the drafter and of its inner model that its loader asks for.
SWITCHES = ("use_aux_hidden_state", "norm_before_fc")
# Names at the edges of vLLM's own rules, beside the families that trainers write.
EDGES = (
    "draft_id_to_target_id", "model.draft_id_to_target_id", "d2t.mask_hidden", "t2d.d2t", "d2t.lm_head",
    "lm_head.d2t", "lm_head", "lm_head.bias", "lm_head.weight.bias", "model.lm_head.weight", "mask_hidden",
    "model.mask_hidden", "bias", "fc.bias", "fc", "fc.", ".fc", "norm.bias", "norm.weight.bias", "norm.weight.x",
    "x.bias", "x.y.bias", "", ".", "layers.0.self_attn.rotary_emb.inv_freq", "rotary_emb.cos_cached",
    "layers.0.self_attn.q_proj", "layers..0.x", "layers.0.self_attn.q_proj.x", "layers.0.self_attn.qkv_proj.",
    "layers.0.self_attn.qkv_proj.bias.x", "layers.0.mlp.gate_up_proj.x.bias", "layers.0.mlp.x.bias",
    "midlayer.mlp.up_proj.bias", "midlayer.midlayer.x", "layers.0.self_attn.k_proj.q_proj", "input_norm.bias",
    "fc_norm.3.weight", "embed_tokens.bias", "layers.0.q_proj.k_proj.weight",
)  # fmt: skip


def parameter_names(parameters: Sequence[Parameter], on: Collection[str]) -> list[str]:
    """Names of the parameters of a drafter with one layer, three auxiliary states and no bias.

    Args:
        parameters: The release's.
        on: Those of `SWITCHES` that are on; the others' parameters are missing.
    """
    names: list[str] = []
    for parameter in parameters:
        if parameter.name.endswith(".bias") or (parameter.when in SWITCHES and parameter.when not in on):
            continue
        numbers = range(3) if "{aux}" in parameter.name else range(1)
        names += [parameter.name.replace("{aux}", str(n)).replace("{layer}", "0") for n in numbers]
    return names


def simulated(name: str, rules: ModuleNames, parameters: Collection[str], on: Collection[str]) -> Fate:
    """What the simulator says of a checkpoint with only this name."""
    way = walk(name, rules, parameters, {*on, *shipped_marks(rules, [name])})
    if way.special is not None:
        return ("nothing",)
    if way.parameter is not None:
        return "loaded", way.parameter, None if way.stacked is None else way.stacked.shard
    return ("nothing",) if way.exception is None else ("raised", way.exception)


def run_loader(
    source: str, parameters: Sequence[str], names: Sequence[str], on: Collection[str]
) -> list[Fate]:
    """What the loader in `source`, from `loader_source`, does with each name, alone in a checkpoint.

    Raises:
        OracleError: Its code cannot be run alone, or takes too long.
    """
    request = {
        "source": source,
        "parameters": list(parameters),
        "names": list(names),
        "switches": {name: name in on for name in SWITCHES},
        "fused": FUSED,
    }
    return run_worker("vllm_oracle_worker.py", request)


def loader_source(syntax: Syntax, drafter: DrafterClass) -> str:
    """A module with the classes `Drafter`, `Inner` and the fused layers, each with the release's own `load_weights`.

    Raises:
        OracleError: One of them is not where it is looked for.
    """
    file = drafter.module.removeprefix("vllm.").replace(".", "/") + ".py"
    module, utilities = syntax.module(file), syntax.module(UTILITIES)
    cls = find_class(syntax, module, drafter.name) if module else None
    inner = inner_model(syntax, cls) if cls else None
    if cls is None or inner is None or utilities is None:
        raise OracleError(f"{drafter.name} is not in {file}")
    parts = ["from __future__ import annotations"]
    tied = utilities.functions.get("_get_tied_embedding_params")
    parts += [ast.unparse(_bare(tied))] if tied else []
    for name in ("WeightsMapper", "AutoWeightsLoader"):
        if name in utilities.classes:
            parts.append(ast.unparse(_bare_class(utilities.classes[name].node)))
    linear = syntax.module(LINEAR)
    for name in FUSED.values():
        layer = linear.classes.get(name) if linear else None
        parts.append(_class(name, layer, "Module"))
    return "\n\n".join([*parts, _class("Inner", inner, "Module"), _class("Drafter", cls, "Module")])


def _class(name: str, cls: ClassRef | None, base: str) -> str:
    """A class with the `load_weights` of `cls` and its table of names, and nothing else of it."""
    body: list[str] = []
    for node in cls.node.body if cls else ():
        if isinstance(node, ast.Assign) and dotted_name(node.targets[0]) == "hf_to_vllm_mapper":
            body.append(ast.unparse(node))
        elif isinstance(node, ast.FunctionDef) and node.name == "load_weights":
            body.append(ast.unparse(_bare(node)))
    lines = "\n".join(body) or "pass"
    return f"class {name}({base}):\n" + "\n".join(f"    {line}" for line in lines.splitlines())


def _bare(function: ast.FunctionDef) -> ast.FunctionDef:
    """Without decorators, which would need what is not there."""
    function = copy.deepcopy(function)
    function.decorator_list = []
    return function


def _bare_class(node: ast.ClassDef) -> ast.ClassDef:
    """The class without its methods' decorators."""
    node = copy.deepcopy(node)
    for member in node.body:
        if isinstance(member, ast.FunctionDef):
            member.decorator_list = []
    return node


def disagreements(
    syntax: Syntax,
    drafter: DrafterClass,
    rules: ModuleNames,
    parameters: Sequence[Parameter],
    names: Sequence[str],
) -> list[Disagreement]:
    """The names of which a source tree's own loader and the simulator say different things, switches on or off."""
    source = loader_source(syntax, drafter)
    found: list[Disagreement] = []
    for on in (SWITCHES, ()):
        known = parameter_names(parameters, on)
        real = run_loader(source, known, names, on)
        ours = [simulated(name, rules, frozenset(known), on) for name in names]
        pairs = zip(names, real, ours, strict=True)
        found += [Disagreement(name, one, other) for name, one, other in pairs if one != other]
    return found
