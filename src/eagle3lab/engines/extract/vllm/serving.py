"""What a running vLLM does with a drafter: configs translated, weights shared, layer ids read, acceptance logged."""

from __future__ import annotations

import ast
import re
from dataclasses import replace

from eagle3lab.engines.extract.model import CaptureWiring, DecodeLog, Reading
from eagle3lab.engines.extract.syntax import Module, Syntax, UnreadableError, called, dotted_name, text_of
from eagle3lab.engines.facts import (
    Acceptance,
    ConfigTranslation,
    ConstructionRule,
    FromTarget,
    Source,
    Translated,
)

_ALGORITHMS = "transformers_utils/configs/speculators/algos.py"
_CONFIGS = "transformers_utils/config.py"
_RUNNER = "v1/worker/gpu_model_runner.py"
_METRICS = "v1/spec_decode/metrics.py"
UTILITIES = "model_executor/models/utils.py"
_PROPOSERS = ("v1/spec_decode/llm_base_proposer.py", "v1/spec_decode/eagle.py")
_IDS = "eagle_aux_hidden_state_layer_ids"


def _module(syntax: Syntax, file: str) -> Module:
    module = syntax.module(file)
    if module is None:
        raise UnreadableError("the file is not there or cannot be parsed", Source(file, 1, ""))
    return module


# ---- configs in the format of speculators ------------------------------------------------------------------------


def read_translation(syntax: Syntax) -> tuple[ConfigTranslation, ConstructionRule | None]:
    """How `update_eagle3` translates, and what it refuses.

    Raises:
        UnreadableError: A statement of it has no form that is known here.
    """
    module = _module(syntax, _ALGORITHMS)
    function = module.functions.get("update_eagle3")
    if function is None:
        raise UnreadableError("configs of speculators are not translated", Source(_ALGORITHMS, 1, ""))
    target = function.args.args[1].arg
    keys: list[Translated] = []
    architectures: dict[str, str] = {}
    refusal: ConstructionRule | None = None
    default_type = "llama"
    for node in function.body:
        text = ast.unparse(node)
        source = module.source(node)
        key = re.fullmatch(rf"{target}\['(\w+)'\] = config_dict\.get\('\1'(?:, (\w+))?\)", text)
        stated = re.fullmatch(
            rf"if config_dict\.get\('(\w+)'\)(?: is not None)?:\n    {target}\['\1'\] = config_dict\['\1'\]",
            text,
        )
        one = re.fullmatch(rf"{target}\['architectures'\] = \['(\w+)'\]", text)
        typed = re.fullmatch(rf"model_type = {target}\.get\('model_type', '(\w+)'\)", text)
        if key:
            keys.append(Translated(key[1], ast.literal_eval(key[2] or "None"), False, source))
        elif stated:
            keys.append(Translated(stated[1], None, True, source))
        elif one:
            architectures = {"": one[1]}
        elif typed:
            default_type = typed[1]
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            architectures = {
                text_of(k) or "": text_of(v) or ""
                for k, v in zip(node.value.keys, node.value.values, strict=True)
            }
        elif isinstance(node, ast.If) and isinstance(node.body[0], ast.Raise):
            refusal = _refusal(module, node)
        elif not (
            re.fullmatch(rf"{target}\['architectures'\] = \[\w+\[model_type\]\]", text)
            or isinstance(node, ast.Expr)
        ):
            raise UnreadableError("how configs of speculators are translated is not understood", source)
    if not architectures:
        raise UnreadableError(
            "which class serves heads of speculators is not understood", module.source(function)
        )
    asked = _module(syntax, _CONFIGS).matching('config_dict.get("speculators_config") is not None')
    if asked is None:
        raise UnreadableError(
            "how a config of speculators is known is not understood", Source(_CONFIGS, 1, "")
        )
    translation = ConfigTranslation(
        tuple(keys), architectures, default_type, module.source(function), "speculators_config"
    )
    if refusal is not None:
        refusal = replace(refusal, allowed=tuple(architectures))
    return translation, refusal


def _refusal(module: Module, node: ast.If) -> ConstructionRule:
    """`if model_type not in map: raise ValueError(f"…{model_type}…")`."""
    raised = node.body[0]
    call = raised.exc if isinstance(raised, ast.Raise) else None
    message = call.args[0] if isinstance(call, ast.Call) and call.args else None
    if not ast.unparse(node.test).startswith("model_type not in") or not isinstance(message, ast.JoinedStr):
        raise UnreadableError("what a translation refuses is not understood", module.source(node))
    words = "".join(text_of(part) or "{model_type}" for part in message.values)
    # Raised while pydantic checks the engine's arguments, which reports it as its own error.
    return ConstructionRule("layer type served", "ValidationError", module.source(raised), words)


# ---- weights shared with the target ------------------------------------------------------------------------------


def read_sharing(syntax: Syntax) -> tuple[FromTarget, ...]:
    """What the target supplies where the checkpoint has none.

    Raises:
        UnreadableError: It is not to be found.
    """
    module = next(
        (found for found in map(syntax.module, _PROPOSERS) if found and found.matching("has_own_lm_head")),
        None,
    )
    if module is None:
        raise UnreadableError("what the target supplies is not understood", Source(_PROPOSERS[0], 1, ""))
    utilities = _module(syntax, UTILITIES)
    noted = utilities.functions.get("process_eagle_weight")
    shared = []
    for parameter, attribute in (
        ("model.embed_tokens.weight", "embed_tokens"),
        ("lm_head.weight", "lm_head"),
    ):
        line = module.matching(f"if not self.model.has_own_{attribute}:")
        if line is None or noted is None or f"if '{attribute}' in name" not in ast.unparse(noted):
            raise UnreadableError(
                f"when the target's {attribute} is taken is not understood", Source(module.file, 1, "")
            )
        shared.append(FromTarget(parameter, line, unless_shipped=attribute))
    return tuple(shared)


# ---- layer ids ---------------------------------------------------------------------------------------------------


def read_wiring(syntax: Syntax) -> CaptureWiring:
    """Where layer ids and the switch are read from.

    Raises:
        UnreadableError: They are read in a way that is not known.
    """
    module = _module(syntax, _RUNNER)
    function = next(
        (
            node
            for node in ast.walk(module.tree)
            if isinstance(node, ast.FunctionDef) and node.name == "_get_eagle3_aux_layers_from_config"
        ),
        None,
    )
    if function is None:
        raise UnreadableError("where layer ids are read from is not understood", Source(_RUNNER, 1, ""))
    text = ast.unparse(function)
    readings = []
    top = module.matching(_IDS, function.body[0].lineno, function.end_lineno)
    if f"hf_config.{_IDS}" in text or f"getattr(hf_config, '{_IDS}', None)" in text:
        assert top is not None
        readings.append(Reading(_IDS, top))
    nested = module.matching(f'eagle_config.get("{_IDS}")', function.lineno, function.end_lineno)
    if nested is not None:
        readings.append(Reading(f"eagle_config.{_IDS}", nested))
    returned = [
        node for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None
    ]
    if not readings or not any(ast.unparse(node) == "return tuple(layer_ids)" for node in returned):
        raise UnreadableError("what becomes of layer ids is not understood", module.source(function))
    setting = module.matching("set_aux_hidden_state_layers(")
    return CaptureWiring(tuple(readings), _switch(syntax), "config ids", setting or module.source(function))


def _switch(syntax: Syntax) -> Reading | None:
    for file in _PROPOSERS:
        module = syntax.module(file)
        line = module.matching('"use_aux_hidden_state"') if module else None
        if line is not None:
            return Reading("eagle_config.use_aux_hidden_state", line)
    return None


# ---- acceptance --------------------------------------------------------------------------------------------------


def read_log(syntax: Syntax) -> tuple[DecodeLog, Acceptance, tuple[str, ...]]:
    """The line that reports acceptance, its formulas, and the names of the metrics.

    Raises:
        UnreadableError: They have no form that is known here.
    """
    module = _module(syntax, _METRICS)
    logging = module.classes.get("SpecDecodingLogging")
    function = logging.method("log") if logging else None
    if function is None:
        raise UnreadableError("nothing reports acceptance", Source(_METRICS, 1, ""))
    calls = [node for node in ast.walk(function) if called(node) == "log_fn" and isinstance(node, ast.Call)]
    words = text_of(calls[0].args[0]) if len(calls) == 1 else None
    values = {
        dotted_name(node.targets[0]): (ast.unparse(node.value), module.source(node))
        for node in ast.walk(function)
        if isinstance(node, ast.Assign)
    }
    length, length_source = values.get("mean_acceptance_length", ("", module.source(function)))
    rate, rate_source = values.get("draft_acceptance_rate", ("", module.source(function)))
    if (
        words is None
        or length != "1 + num_accepted_tokens / num_drafts"
        or not rate.startswith("num_accepted_tokens / num_draft_tokens * 100 if")
    ):
        raise UnreadableError("how acceptance is reported is not understood", module.source(function))
    pieces = [re.sub(r"%[-\d.]*[a-z]", "{}", piece).replace("%%", "%") for piece in words.split(", ")]
    log = DecodeLog(tuple(pieces), module.source(calls[0].args[0]))
    acceptance = Acceptance(
        "(accepted+drafts)/drafts", length_source, "accepted/drafted", "(len-1)/(D-1)", rate_source
    )
    metrics = re.findall(
        r"name\s*=\s*\"(vllm:spec_decode_\w+)\"|\(\s*\"(vllm:spec_decode_\w+)\"",
        syntax.tree.text(_METRICS) or "",
    )
    return log, acceptance, tuple(sorted({one or other for one, other in metrics}))
