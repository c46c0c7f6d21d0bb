"""Whether a loader variant says what a release's own `load_weights` does: both asked about many names."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from eagle3lab.engines.extract.syntax import ClassRef, Syntax, dotted_name
from eagle3lab.engines.facts import DrafterRules, NameRules, Parameter
from eagle3lab.engines.loading.names import FUSED, Waiting, route, shipped_marks, walk, walks
from eagle3lab.engines.proof.cut_out import CutOut, loader, run
from eagle3lab.engines.proof.names import Offer, families
from eagle3lab.engines.proof.stand_ins import undefined

# ("nothing",), ("warned",), ("token map",), ("raised", type) or ("loaded", parameter, shard).
Fate = tuple[str | int | None, ...]
# Switches of vLLM's drafter and of its inner model that its loader asks for.
SWITCHES = ("use_aux_hidden_state", "norm_before_fc")


# What loaders of releases call besides their own methods: nothing of it changes where a name leads, or it is off.
_CALLED = (
    "AutoWeightsLoader", "default_weight_loader", "envs", "field", "filter_pp_weights", "get_weight_remap", "itertools",
    "logger", "maybe_prefix", "maybe_remap_kv_scale_name", "print", "process_eagle_weight", "re", "replace", "torch",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """How a drafter is set up while its loader is asked.

    Attributes:
        tied: What its config says of the embeddings.
        layers: What its config says of the layers.
        on: The switches that are on, of vLLM's.
    """

    tied: bool = False
    layers: int = 1
    on: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A name, or several offered together, of which a release and a variant say different things."""

    name: Offer
    release: Fate
    variant: Fate

    def __str__(self) -> str:
        offered = self.name if isinstance(self.name, str) else " then ".join(self.name)
        return f"of {offered} it predicts {_words(self.variant)}, and the loader: {_words(self.release)}"


def _words(fate: Fate) -> str:
    return " ".join(str(part) for part in fate if part is not None)


def settings_of(engine: str, rules: DrafterRules) -> tuple[Setting, ...]:
    """The ways of setting up a drafter that make a difference to its loader."""
    if engine == "vllm":
        return Setting(on=SWITCHES), Setting()
    layers = (1,) if any(rule.rule == "one layer" for rule in rules.construction) else (1, 2)
    return tuple(Setting(tied, count) for tied in (False, True) for count in layers)


def parameter_names(engine: str, parameters: Sequence[Parameter], setting: Setting) -> list[str]:
    """Names of the parameters of a drafter with three auxiliary states and every other option on.

    vLLM's have no bias: its walk from module to module is asked what becomes of one that is not there.
    """
    names: list[str] = []
    for parameter in parameters:
        if engine == "vllm":
            absent = parameter.name.endswith(".bias") or (
                parameter.when in SWITCHES and parameter.when not in setting.on
            )
        else:
            absent = parameter.when == ("own_head" if setting.tied else "tied")
        numbers = range(0 if absent else 3 if "{aux}" in parameter.name else 1)
        for layer in range(0 if parameter.first_layer else 1, setting.layers):
            written = parameter.name.replace("{layer}", str(layer))
            names += [written.replace("{aux}", str(n)) for n in numbers]
    return list(dict.fromkeys(names))


def predicted(
    offer: Offer, rules: NameRules, parameters: Collection[str], setting: Setting = Setting()
) -> Fate:
    """What a variant says of a name, or of several offered one after the other."""
    if walks(rules):
        assert isinstance(offer, str)
        way = walk(offer, rules, parameters, {*setting.on, *shipped_marks(rules, [offer])})
        if way.special is None and way.parameter is not None:
            return "loaded", way.parameter, None if way.stacked is None else way.stacked.shard
        return ("nothing",) if way.special or way.exception is None else ("raised", way.exception)
    if isinstance(offer, str):
        return _alone(offer, rules, parameters, setting)
    waiting: Waiting[str] = Waiting()
    fates: list[Fate] = []
    for name in offer:
        half = route(name, rules, parameters).half
        complete = half is not None and half.part is not None and waiting.arrived(half, name) is not None
        fate = _alone(name, rules, parameters, setting, complete=complete)
        if fate[0] == "raised":
            return fate
        fates.append(fate)
    said = [fate for fate in fates if fate[0] != "nothing"]
    if not said:
        return ("nothing",)
    # That it happened is seen, not how often; only parameters count how often they are reached.
    once = len(said) == 1 or {*said} < {("token map",), ("warned",)}
    return said[0] if once else ("loaded more than once",)


def _alone(
    name: str, rules: NameRules, parameters: Collection[str], setting: Setting, complete: bool = False
) -> Fate:
    way = route(name, rules, parameters, ("tied",) if setting.tied else (), setting.layers)
    if way.half is not None and not complete:
        return ("nothing",) if way.half.part is not None else ("raised", "KeyError")
    if way.half is not None:
        return ("loaded", way.parameter, None) if way.parameter is not None else ("nothing",)
    if way.special is not None:
        return ("token map",) if way.special.effect == "hot_token_id" else ("nothing",)
    if way.parameter is not None:
        return "loaded", way.parameter, None if way.stacked is None else way.stacked.shard
    if way.exception is not None:
        return "raised", way.exception
    return ("warned",) if way.warned else ("nothing",)


class Loader:
    """The `load_weights` of a class of a source tree, cut out and ready to be run.

    Args:
        syntax: The tree.
        cls: The class.

    Raises:
        UnreadableError: What it consists of is not to be found.
    """

    def __init__(self, syntax: Syntax, cls: ClassRef) -> None:
        self.engine = syntax.tree.package.partition(".")[0]
        self.code: CutOut = loader(syntax, cls)
        self._syntax = syntax
        # Whether its model says which layers it holds.
        self._counts_layers = "self.start_layer" in (syntax.tree.text(cls.module.file) or "")

    def run(
        self, parameters: Sequence[str], names: Sequence[Offer], setting: Setting = Setting()
    ) -> list[Fate]:
        """What it does with each name, or with several names together, each time for a fresh drafter.

        Raises:
            CannotRunError: Its code cannot be run alone, or takes too long.
        """
        model: dict[str, object] = {}
        if self.engine == "vllm":
            model = {name: name in setting.on for name in SWITCHES}
        elif self._counts_layers:
            model = {"start_layer": 0, "end_layer": setting.layers}
        request = {
            "load": list(names),
            "parameters": list(parameters),
            "config": {"tie_word_embeddings": setting.tied, "num_hidden_layers": setting.layers},
            "model": model,
            "switches": self._switches,
            "fused": FUSED if self.engine == "vllm" else {},
        }
        return [self._fate(reply) for reply in run(self.engine, self.code, request)]

    def _fate(self, reply: Mapping[str, object]) -> Fate:
        if "exception" in reply:
            return "raised", str(reply["exception"])
        reached = reply["reached"]
        assert isinstance(reached, list)
        # vLLM has no token map beside its parameters, and says nothing about names.
        warned = reply["warned"] and self.engine == "sglang"
        if reply["token_map"]:
            return ("token map", "and more") if reached or warned else ("token map",)
        if reached:
            return ("loaded", *reached[0]) if len(reached) == 1 else ("loaded more than once",)
        return ("warned",) if warned else ("nothing",)

    def words(self) -> list[str]:
        """The words in its code that may be part of a name, and that the families of names do not have."""
        tree = ast.parse("\n".join(file["source"] for file in self.code.files.values()))
        texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
        words = {
            text.strip(".") for text in texts if isinstance(text, str) and re.fullmatch(r"[\w.]{2,40}", text)
        }
        known = " ".join(families())
        return sorted(word for word in words if word not in known)

    def strangers(self) -> list[str]:
        """Names that it calls, that are not its own, and that no release's loader calls: what they do is not known."""
        tree = ast.parse("\n".join(file["source"] for file in self.code.files.values()))
        calls = (dotted_name(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))
        return sorted({name.partition(".")[0] for name in calls if name} & undefined(tree) - {*_CALLED})

    @cached_property
    def _switches(self) -> dict[str, bool]:
        """SGLang's environment variables that are true or false, with what they are when nobody sets them."""
        module = self._syntax.module("environ.py")
        found = {}
        for node in ast.walk(module.tree) if module else ():
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and node.value.args:
                default = node.value.args[0]
                if dotted_name(node.value.func) == "EnvBool" and isinstance(default, ast.Constant):
                    found[ast.unparse(node.targets[0])] = bool(default.value)
        return found


def disagreements(
    real: Loader, candidates: Sequence[DrafterRules], names: Sequence[Offer]
) -> list[list[Disagreement]]:
    """For each of several loader variants with the same parameters, the names of which it and the loader disagree.

    Raises:
        CannotRunError: Its code cannot be run alone, or takes too long.
    """
    found: list[list[Disagreement]] = [[] for _ in candidates]
    for setting in settings_of(real.engine, candidates[0]):
        known = parameter_names(real.engine, candidates[0].parameters, setting)
        happened = real.run(known, names, setting)
        parameters = frozenset(known)
        for rules, wrong in zip(candidates, found, strict=True):
            for name, fate in zip(names, happened, strict=True):
                said = predicted(name, rules.names, parameters, setting)
                if said != fate:
                    wrong.append(Disagreement(name, fate, said))
    return found
