"""The other side of a proof: a release's own constructors and `load_weights`, cut out of its source, run on stand-ins.

Started as a script in a process of its own, never imported by eagle3lab; it needs neither torch nor the release. It
reads one JSON request on stdin and writes one JSON reply. A request brings the cut-out code, file by file,
`{"engine", "files": {FILE: {"source", "imports", "layers"}}, "start": [FILE, CLASS], ...}`; a name that the code uses
and that neither it nor Python defines is a stand-in: something that may be called, asked for attributes and compared,
and that makes no parameters. The rest of a request is one of

- `{"build": [[CLASS OF CONFIG, CONFIG, RANKS], ...]}`: the reply has, for each, the parameters that the class makes and
  the config keys that it asks for, or what it raises;
- `{"load": [NAME or [NAME, ...], ...], "parameters": [...], ...}`: the reply has, for each name or list of names,
  offered alone to a fresh drafter, what became of it.

What the code imports while it runs is a stand-in, too, and neither files nor processes are at hand by name.
"""

from __future__ import annotations

import ast
import builtins
import copy
import dataclasses
import itertools
import json
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

REFUSED = ("open", "exec", "eval", "compile", "input", "breakpoint", "__import__")
USABLE = {"re": re, "regex": re, "copy": copy, "itertools": itertools, "dataclasses": dataclasses}


# ---- what nobody looks into ----------------------------------------------------------------------------------------


class StandIn:
    """Anything: any attribute, any call, false, empty, and of no size."""

    def __init__(self, name: str = "", ranks: int = 1) -> None:
        self.__dict__.update(_name=name, _ranks=ranks)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if "pp_" in self._name or "pp_" in name:
            if name.endswith(("size", "rank")):
                return Number(1 if name.endswith("size") else 0)
            if name in ("is_first_rank", "is_last_rank"):
                return True
        if name.endswith(("tp_size", "world_size")):
            return Number(self._ranks)
        if name.endswith("rank"):
            return Number(0)
        if name.startswith(("disable_", "speculative_")):
            return None
        return StandIn(f"{self._name}.{name}", self._ranks)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A number where the name is one's, else another stand-in."""
        if self._name.endswith(("tp_size", "world_size")):
            return self._ranks
        if self._name.endswith("rank"):
            return 0
        # A decorator gives back what it decorates.
        return args[0] if len(args) == 1 and not kwargs and isinstance(args[0], type) else self

    def __bool__(self) -> bool:
        return False

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __contains__(self, item: Any) -> bool:
        return False

    def __getitem__(self, key: Any) -> StandIn:
        return self

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *args: Any) -> None:
        pass

    def __add__(self, other: Any) -> Any:
        return other if isinstance(other, str) else self

    __radd__ = __add__
    __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __pow__ = __neg__ = __add__

    def __lt__(self, other: Any) -> bool:
        return False

    __le__ = __gt__ = __ge__ = __lt__

    def __str__(self) -> str:
        return str(self._name)

    def __format__(self, spec: str) -> str:
        return str(self._name)


class Number(int):
    """A number that may be called for, too."""

    def __call__(self, *args: Any, **kwargs: Any) -> int:
        """The number."""
        return int(self)


class UnknownLayer(Exception):
    """A layer that makes parameters and is none of those known here: nothing can be proved of its class."""


# ---- torch and the engines' layers, as far as parameters go ------------------------------------------------------


class Tensor:
    """A tensor of some shape that can be added to.

    Attributes:
        counts: Whether it is 0, 1, 2, …, or something added to that.
    """

    dtype = "bfloat16"

    def __init__(self, *shape: int, counts: bool = False) -> None:
        self.shape = shape or (8, 8)
        self.counts = counts

    def __add__(self, other: Any) -> Tensor:
        return Tensor(*self.shape, counts=self.counts or getattr(other, "counts", False))

    __radd__ = __add__

    def detach(self) -> Tensor:
        """The same values in another object."""
        return Tensor(*self.shape)


class Leaf:
    """A parameter: how it is split over ranks, its shape over all of them, and who hears of its loader's calls."""

    dtype = "bfloat16"

    def __init__(
        self, kind: str, *shape: int, name: str = "", reached: list[list[Any]] | None = None
    ) -> None:
        if any(isinstance(size, StandIn) for size in shape):
            raise UnknownLayer(f"a size depends on {next(s for s in shape if isinstance(s, StandIn))}")
        self.kind, self.shape = kind, shape
        self.data = Tensor(*shape)
        self.name, self.reached = name, reached

    def weight_loader(self, param: Leaf, weight: Tensor, shard: Any = None, *rest: Any) -> None:
        """Note that `param` was reached, and for which shard."""
        if param.reached is not None:
            param.reached.append([param.name, shard])


class Module:
    """As much of torch's module as constructors and loaders ask for."""

    quant_config = None
    prefix = ""
    bias: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Modules right below, in the order in which their names were first given away."""
        return ((name, value) for name, value in vars(self).items() if isinstance(value, Module))

    def children(self) -> Iterator[Module]:
        """Modules right below, without names."""
        return (module for _, module in self.named_children())

    def named_modules(self, prefix: str = "", **_: Any) -> Iterator[tuple[str, Module]]:
        """This one and all below."""
        yield prefix, self
        for name, module in self.named_children():
            yield from module.named_modules(f"{prefix}.{name}".lstrip("."))

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, seen: set[int] | None = None, **_: Any
    ) -> Iterator[tuple[str, Leaf]]:
        """Its parameters, then those of the modules below, each once."""
        seen = set() if seen is None else seen
        for name, value in vars(self).items():
            if isinstance(value, Leaf) and id(value) not in seen:
                seen.add(id(value))
                yield f"{prefix}{name}", value
        for name, module in self.named_children() if recurse else ():
            if id(module) not in seen:
                seen.add(id(module))
                yield from module.named_parameters(f"{prefix}{name}.", True, seen)

    def named_buffers(self, recurse: bool = True) -> Iterator[tuple[str, Tensor]]:
        """None."""
        return iter(())

    def get_submodule(self, path: str) -> Module:
        """A module below; torch's error where there is none."""
        module: Any = self
        for part in path.split("."):
            if not isinstance(vars(module).get(part), Module):
                raise AttributeError(part)
            module = vars(module)[part]
        return module  # type: ignore[no-any-return]

    def register_buffer(self, name: str, value: Any = None, persistent: bool = True) -> None:
        """A buffer is no parameter."""
        object.__setattr__(self, name, StandIn(name))

    def validate_shard_id(self, shard: Any) -> bool:
        """Every shard is right here."""
        return True

    def _get_name(self) -> str:
        return type(self).__name__

    def __call__(self, *args: Any, **kwargs: Any) -> StandIn:
        """Whatever it is given."""
        return StandIn()


class ModuleList(Module):
    """Modules under their numbers."""

    def __init__(self, modules: Any = ()) -> None:
        for module in modules:
            self.append(module)

    def append(self, module: Any) -> ModuleList:
        """One more."""
        vars(self)[str(len(vars(self)))] = module
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(vars(self).values())

    def __len__(self) -> int:
        return len([*vars(self)])

    def __getitem__(self, index: int) -> Any:
        modules: list[Any] = list(vars(self).values())
        return modules[index]


def layers(request: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The layers with parameters, by the name that torch or the engines give them."""
    padding, grows, divides = request.get("padding", 64), request.get("grows"), request.get("checks", ())

    def divide(rows: int, layer: str) -> None:
        if layer in divides and rows % ranks:
            raise AssertionError(f"{rows} is not divisible by {ranks}")

    def padded(rows: int) -> int:
        step: int = padding
        if grows and -(-rows // step) * step % ranks:
            step *= ranks
        return -(-rows // step) * step

    class Layer(Module):
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return StandIn(name)

        def fill(self, kind: str, rows: int, columns: int, bias: Any) -> None:
            self.weight = Leaf(kind, rows, columns)
            self.bias = Leaf(kind, rows) if bias else None

    class Embedding(Layer):
        def __init__(
            self, num_embeddings: int, embedding_dim: int, *_: Any, bias: bool = False, **__: Any
        ) -> None:
            divide(padded(num_embeddings), "vocabulary")
            self.fill("vocabulary", num_embeddings, embedding_dim, bias)

    class Norm(Layer):
        def __init__(self, hidden_size: int, *_: Any, **__: Any) -> None:
            self.weight = Leaf("replicated", hidden_size)

    class Linear(Layer):
        def __init__(self, in_features: int, out_features: int, bias: Any = True, **_: Any) -> None:
            self.fill("replicated", out_features, in_features, bias)

    class Qkv(Layer):
        def __init__(
            self,
            hidden_size: int,
            head_size: int,
            total_num_heads: int,
            total_num_kv_heads: int | None = None,
            bias: Any = True,
            *_: Any,
            **__: Any,
        ) -> None:
            heads = total_num_heads + 2 * (total_num_kv_heads or total_num_heads)
            self.fill("qkv", heads * head_size, hidden_size, bias)

    class Merged(Layer):
        def __init__(
            self, input_size: int, output_sizes: list[int], bias: Any = True, *_: Any, **__: Any
        ) -> None:
            if len({*output_sizes}) != 1 or len(output_sizes) != 2:
                raise UnknownLayer("a fused layer that is not of two equal parts")
            assert "merged column" not in divides or all(size % ranks == 0 for size in output_sizes)
            self.fill("merged column", sum(output_sizes), input_size, bias)

    def split(kind: str, by: str | None) -> Callable[..., Any]:
        class Split(Layer):
            def __init__(
                self, input_size: int, output_size: int, bias: Any = True, *_: Any, **__: Any
            ) -> None:
                if by is not None:
                    divide({"rows": output_size, "columns": input_size}[by], kind)
                self.fill(kind, output_size, input_size, bias)

        return Split

    class Attention(Module):
        def __init__(
            self, num_heads: int, head_size: int, scale: Any, num_kv_heads: int | None = None, **_: Any
        ) -> None:
            shared = num_kv_heads or num_heads
            message = f"num_heads ({num_heads}) is not divisible by num_kv_heads ({shared})"
            assert "attention" not in divides or num_heads % shared == 0, message

    return {
        "Module": Module, "ModuleList": ModuleList, "Linear": Linear, "Identity": Module, "Dropout": Module,
        "SiLU": Module, "RMSNorm": Norm, "Attention": Attention, "QKVParallelLinear": Qkv,
        "VocabParallelEmbedding": Embedding, "ParallelLMHead": Embedding, "MergedColumnParallelLinear": Merged,
        "ReplicatedLinear": split("replicated linear", None), "RowParallelLinear": split("row parallel", "columns"),
        "ColumnParallelLinear": split("column parallel", "rows"),
    }  # fmt: skip


def torch_of(known: dict[str, Any]) -> Any:
    """torch: its layers, `nn.Parameter`, tensors by their shape, and stand-ins for all else."""

    class Torch(StandIn):
        def __getattr__(self, name: str) -> Any:
            if name == "nn":
                return nn
            if name in ("zeros", "ones", "empty"):
                return lambda *shape, **_: Tensor(*(s for part in shape for s in _sizes(part)))
            if name == "arange":
                return lambda *shape, **_: Tensor(*shape, counts=True)
            return StandIn.__getattr__(self, name)

    class Layers(StandIn):
        def __getattr__(self, name: str) -> Any:
            if name in ("Module", "ModuleList", "Linear", "Identity", "Dropout", "SiLU"):
                return known[name]
            if name == "Parameter":
                return lambda data, *_, **__: Leaf("replicated", *data.shape)
            return unknown(f"torch.nn.{name}") if name[:1].isupper() else StandIn(name)

    nn = Layers("nn")
    return Torch("torch")


def _sizes(part: Any) -> list[int]:
    return [part] if isinstance(part, int) else [n for n in part if isinstance(n, int)]


def unknown(name: str) -> type:
    """A layer that makes parameters in a way that is not known here."""

    def make(self: Any, *args: Any, **kwargs: Any) -> None:
        raise UnknownLayer(f"{name} makes parameters, and is no layer that is known")

    return type(name.rpartition(".")[2], (), {"__init__": make})


# ---- the code ------------------------------------------------------------------------------------------------------


def undefined(tree: ast.Module) -> set[str]:
    """Names that a file reads and does not bind."""
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
    bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    return {node.id for node in names} - bound - set(dir(builtins))


def imported(name: str, *args: Any, **kwargs: Any) -> Any:
    """What an import inside the code gets: a few modules of Python's own, and stand-ins."""
    return USABLE.get(name) or StandIn(name)


BUILTINS = {
    **{name: value for name, value in vars(builtins).items() if name not in REFUSED},
    "__import__": imported,
}


class _Unpacking(ast.NodeTransformer):
    """`a, b = f()`, where what comes may be a stand-in, which has as many parts as it is asked for."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        (target, *more) = node.targets
        if isinstance(target, ast.Tuple) and not more and not isinstance(node.value, ast.Tuple):
            name, count = ast.Name("_parts", ast.Load()), ast.Constant(len(target.elts))
            node.value = ast.Call(name, [node.value, count], [])
        return node


def parts(value: Any, count: int) -> Any:
    """What is unpacked into `count` names."""
    return [value] * count if isinstance(value, StandIn) else value


class Code:
    """The files of a request, run when one of their names is first asked for.

    Attributes:
        shared: Names that every file knows, but for those that it defines itself.
    """

    def __init__(self, request: dict[str, Any], shared: dict[str, Any], ranks: int) -> None:
        self._request, self._ranks = request, ranks
        self._scopes: dict[str, dict[str, Any]] = {}
        self._parsed = {name: ast.parse(entry["source"]) for name, entry in request["files"].items()}
        self.shared = {**shared, **USABLE, "itertools": itertools}
        self.shared |= {name: getattr(dataclasses, name) for name in ("dataclass", "field", "replace")}

    def named(self, file: str, name: str) -> Any:
        """The class or function of that name."""
        return self._scope(file)[name]

    def define(self, name: str, value: Any) -> None:
        """Give a name a meaning in every file, those included that run already."""
        self.shared[name] = value
        for scope in self._scopes.values():
            scope[name] = value

    def _scope(self, file: str) -> dict[str, Any]:
        if file in self._scopes:
            return self._scopes[file]
        tree, entry = self._parsed[file], self._request["files"][file]
        scope = self._scopes[file] = {"__builtins__": BUILTINS, "__name__": __name__}
        bases = {
            dotted
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            for dotted in map(ast.unparse, node.bases)
        }
        for name in undefined(tree):
            scope[name] = self._meant(name, name in bases)
        for name in entry.get("layers", ()):
            scope[name] = unknown(name)
        for local, (there, name) in entry["imports"].items():
            scope[local] = self.named(there, name)
        scope["_parts"] = parts
        exec(compile(ast.fix_missing_locations(_Unpacking().visit(tree)), file, "exec"), scope)
        return scope

    def _meant(self, name: str, is_base: bool) -> Any:
        if name in self.shared:
            return self.shared[name]
        # vLLM's loaders ask whether a module is of some class.
        if is_base or (name[:1].isupper() and "load" in self._request and self._request["engine"] == "vllm"):
            return type(name, (), {})
        return StandIn(name, self._ranks)


# ---- constructors --------------------------------------------------------------------------------------------------


class Nested(dict[str, Any]):
    """A mapping inside a config that remembers which keys it is asked for."""

    asked: set[str]
    path: str

    def get(self, key: str, default: Any = None) -> Any:
        """As a dict's."""
        self.asked.add(f"{self.path}.{key}")
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.asked.add(f"{self.path}.{key}")
        return super().__contains__(key)


def config_of(class_name: str, values: dict[str, Any], asked: set[str]) -> Any:
    """A config object that remembers which keys it is asked for."""

    class Config:
        def __getattr__(self, name: str) -> Any:
            if not name.startswith("__"):
                asked.add(name)
            raise AttributeError(f"'{class_name}' object has no attribute '{name}'")

        def __getattribute__(self, name: str) -> Any:
            if not name.startswith("__"):
                asked.add(name)
            return object.__getattribute__(self, name)

        def __deepcopy__(self, memo: Any) -> Any:
            return config_of(class_name, vars(self), asked)

    config = Config()
    for key, value in values.items():
        if isinstance(value, dict):
            value = Nested(value)
            value.asked, value.path = asked, key
        setattr(config, key, value)
    return config


class Around:
    """What is around the drafter's config in an engine's own: found under any path that ends in `hf_config`.

    Attributes:
        config: The drafter's config.
        target: What the target's model config answers.
    """

    def __init__(self, config: Any, target: dict[str, Any], ranks: int, drafter: bool = False) -> None:
        self.__dict__.update(config=config, target=target, ranks=ranks, drafter=drafter)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("hf_config", "hf_text_config"):
            return self.config
        if name in ("speculative_config", "draft_model_config", "model_config"):
            return Around(
                self.config, self.target, self.ranks, self.drafter or name.startswith(("spec", "draft"))
            )
        if name in self.target:
            return lambda *args: self.target[name]
        if name in ("pipeline_parallel_size", "tensor_parallel_size"):
            return self.ranks if name.startswith("tensor") else 1
        if name in ("quant_config", "cache_config", "lora_config", "quantization"):
            return None
        return StandIn(name, self.ranks)


def make_layers(count: int, make: Callable[..., Any], *args: Any, prefix: str = "", **kwargs: Any) -> Any:
    """SGLang's helper: `count` layers, and the first and the end of this stage if the pipeline's stage is given."""
    made = ModuleList(make(prefix=f"{prefix}.{index}", idx=index) for index in range(count))
    return (made, 0, count) if args or "pp_rank" in kwargs else made


def make_stage(count: int, make: Callable[..., Any], **kwargs: Any) -> Any:
    """SGLang's newer helper: `make_layers` for the one stage there is."""
    return make_layers(count, make, pp_rank=0)


def code_for(request: dict[str, Any], ranks: int) -> Code:
    """The code as it runs on one of so many ranks."""
    known = layers(request, ranks)
    torch = torch_of(known)
    shared = {"torch": torch, "nn": torch.nn, "make_layers": make_layers, "make_pp_layers": make_stage}
    code = Code(request, {**known, **shared}, ranks)
    code.shared["get_current_vllm_config"] = lambda: code.shared["around"]
    return code


def build(
    request: dict[str, Any], code: Code, class_name: str, values: dict[str, Any], ranks: int
) -> dict[str, Any]:
    """The parameters that the class makes from a config, and what it takes from a target; or what it raises."""
    asked: set[str] = set()
    config = config_of(class_name, values, asked)
    around = Around(config, {**request["target"], "get_vocab_size": values.get("vocab_size")}, ranks)
    code.shared["around"] = around
    arguments = {"vllm_config": around} if request["engine"] == "vllm" else {"config": config}
    try:
        model = code.named(*request["start"])(**arguments)
    except UnknownLayer as error:
        return {"unproved": str(error)}
    except Exception as error:
        return {"exception": type(error).__name__, "message": str(error), "asked": sorted(asked)}
    parameters = list(model.named_parameters())
    reply = {
        "parameters": [[name, leaf.kind, leaf.shape] for name, leaf in parameters],
        "asked": sorted(asked),
    }
    try:
        return reply | {"taken": taken(request.get("takes"), model, dict(parameters))}
    except AttributeError:  # tied weights are taken away twice
        return reply


def taken(method: str | None, model: Any, before: dict[str, Leaf]) -> list[str]:
    """The parameters that the target's own take the place of when this method of the class is called."""
    if method is None:
        return []
    count = 2 if method.endswith("_and_head") else 1
    getattr(model, method)(*(Leaf("target", 1) for _ in range(count)))
    found = {name for name, leaf in model.named_parameters() if leaf.kind == "target" and name in before}
    if getattr(model, "load_lm_head_from_target", False) is True:
        found.add("lm_head.weight")
    return sorted(found)


# ---- loaders -------------------------------------------------------------------------------------------------------


class Variables:
    """The release's environment variables, with what they are when nobody sets them."""

    def __init__(self, switches: dict[str, bool]) -> None:
        self._switches = switches

    def __getattr__(self, name: str) -> Any:
        return types.SimpleNamespace(get=lambda: self._switches[name])


def fresh(request: dict[str, Any], code: Code, reached: list[list[Any]]) -> Any:
    """A drafter with the request's parameters, none of them loaded."""
    file, name = request["start"]
    drafter = code.named(file, name)()
    drafter.hot_token_id = None
    if request["engine"] == "vllm":
        drafter.model = code.named(file, "Inner")()
        drafter.use_parallel_drafting = False
    for path in request["parameters"]:
        *above, last = path.split(".")
        module = drafter
        for part in above:
            if part not in vars(module):
                fused = request["fused"].get(part)
                setattr(module, part, code.named(file, fused)() if fused else Module())
            module = getattr(module, part)
        setattr(module, last, Leaf("replicated", 8, 8, name=path, reached=reached))
    for key, value in request["model"].items():
        setattr(drafter.model, key, value)
    drafter.config = types.SimpleNamespace(**request["config"])
    drafter.pp_group = types.SimpleNamespace(is_first_rank=True, is_last_rank=True, world_size=1)
    return drafter


def offer(request: dict[str, Any], code: Code, names: list[str]) -> dict[str, Any]:
    """What becomes of tensors of these names."""
    reached: list[list[Any]] = []
    warnings: list[Any] = []

    def warning(*args: Any, **kwargs: Any) -> None:
        warnings.append(args)

    def say_nothing(*args: Any, **kwargs: Any) -> None:
        """A message that is not about a name."""

    logger = types.SimpleNamespace(warning=warning, warning_once=warning, error=warning)
    logger.info = logger.debug = logger.info_once = say_nothing
    code.define("logger", logger)
    drafter = fresh(request, code, reached)
    try:
        drafter.load_weights([(name, Tensor()) for name in names])
    except Exception as error:
        return {"exception": type(error).__name__}
    token_map = drafter.hot_token_id
    if token_map is not None and not getattr(token_map, "counts", False):
        reached.append(["hot_token_id", "as it is"])
        token_map = None
    return {"reached": reached, "warned": bool(warnings), "token_map": token_map is not None}


def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    """The reply to a request."""
    if "build" in request:
        codes = {ranks: code_for(request, ranks) for _, _, ranks in request["build"]}
        return [build(request, codes[ranks], name, values, ranks) for name, values, ranks in request["build"]]
    code = code_for(request, 1)
    code.shared["envs"] = Variables(request["switches"])
    # Whether weights are loaded for the second time: they are not.
    code.shared["QuantizedRLModelLoader"] = types.SimpleNamespace(is_reload_scenario=lambda model: False)
    offered = [[entry] if isinstance(entry, str) else entry for entry in request["load"]]
    return [offer(request, code, names) for names in offered]


if __name__ == "__main__":
    # What the code prints is no reply.
    replies, sys.stdout = sys.stdout, sys.stderr
    json.dump(answer(json.loads(sys.stdin.read())), replies)
