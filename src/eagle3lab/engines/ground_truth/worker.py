"""The other side of the ground truth: builds a release's own drafter class and calls its own `load_weights`.

Started as a script, never imported by eagle3lab: it needs torch and the release, and nothing of eagle3lab. It
reads one JSON request a line on stdin and writes one JSON reply a line on stdout. A request names a
tensor-parallel layout; each layout gets its own child process, forked from this one after the release has
been imported, so that the imports (seconds) are paid once and no layout sees another's process groups.

Every parameter is filled with NaN before loading, norms included: their defaults (1.0) would otherwise be
mistaken for loaded values. Source tensors hold random probe values of the checkpoint's dtypes and shapes.
Loading moves values without looking at them, so what the probes show holds for the real ones, and a
checkpoint of many gigabytes need not be read.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import importlib.util
import io
import json
import logging
import os
import sys
import tempfile
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

SEED = 20_250_801
CHUNK = 1 << 24  # elements of probe values made at a time


class _AnyName(type):
    """A class that has every attribute, as its own name: enough for enum members read at import."""

    def __getattr__(cls, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _StandIn(types.ModuleType):
    """A module that has every class: imports of a package that loading weights never calls succeed."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return _AnyName(name, (), {})


def stand_in(package: str) -> None:
    """Put a stand-in where a package that is not here would be."""
    module: types.ModuleType = _StandIn(package)
    module.__path__ = []
    module.__spec__ = importlib.machinery.ModuleSpec(package, None, is_package=True)
    sys.modules[package] = module


def stand_in_for_missing_packages() -> None:
    """Let the release be built without torchvision (for images) and vLLM's kernels (for forward passes)."""
    from transformers.utils import import_utils

    # transformers must have answered "no torchvision" before the stand-in appears, or it would use it.
    import_utils.is_torchvision_available()
    for package, parts in (
        ("torchvision", ("io", "transforms", "transforms.functional")),
        ("vllm", ("_custom_ops", *_parts_of("model_executor.layers.layernorm"))),
    ):
        if importlib.util.find_spec(package) is None:
            for name in (package, *(f"{package}.{part}" for part in parts)):
                stand_in(name)


def _parts_of(name: str) -> list[str]:
    """`a.b.c` as `a`, `a.b`, `a.b.c`."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts) + 1)]


def let_models_be_registered_again() -> None:
    """Releases register config classes of models that the transformers of this environment has come to know itself."""
    from transformers import AutoConfig

    register = AutoConfig.register

    def register_anyway(model_type: str, config: Any, exist_ok: bool = False) -> None:
        register(model_type, config, exist_ok=True)

    AutoConfig.register = register_anyway


def initialise_layout(tp_size: int, tp_rank: int) -> None:
    """Become rank `tp_rank` of `tp_size`, in process groups of torch's fake backend: nothing communicates."""
    import torch.distributed as dist
    from sglang.srt.distributed import parallel_state
    from torch.testing._internal.distributed.fake_pg import FakeStore

    new_group = dist.new_group

    def new_fake_group(*args: Any, **kwargs: Any) -> Any:
        kwargs["backend"] = "fake"  # the release asks for a gloo group beside each device group
        return new_group(*args, **kwargs)

    dist.new_group = new_fake_group
    dist.init_process_group("fake", store=FakeStore(), rank=tp_rank, world_size=tp_size)
    world = {"world_size": tp_size, "rank": tp_rank, "local_rank": 0, "backend": "fake"}
    try:
        from sglang.srt.runtime_context import SpawnRanks
    except ImportError:
        initialise_by_arguments(world, tp_size)
        return
    from sglang.srt import runtime_context

    # Newer releases publish their arguments, and the groups are built at the published sizes.
    arguments = runtime_context.get_context().override_server_args(tp_size=tp_size, device="cpu").install()
    ranks = SpawnRanks(world_rank=tp_rank)
    runtime_context.publish(arguments, role="scheduler", ranks=ranks)
    parallel_state.init_distributed_environment(**world)
    parallel_state.initialize_model_parallel(backend="fake")


def initialise_by_arguments(world: dict[str, Any], tp_size: int) -> None:
    """The same for releases that pass sizes from function to function."""
    import torch
    from sglang.srt.distributed import parallel_state
    from sglang.srt.layers.dp_attention import initialize_dp_attention
    from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

    arguments = ServerArgs(model_path="dummy", device="cpu", tp_size=tp_size)
    set_global_server_args_for_scheduler(arguments)
    parallel_state.init_distributed_environment(**world)
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=tp_size, backend="fake")
    # The model's width and dtype size communication buffers, which loading never allocates.
    model = types.SimpleNamespace(hidden_size=1, dtype=torch.bfloat16, hf_config=types.SimpleNamespace())
    initialize_dp_attention(arguments, model)


def read_config(config: dict[str, Any]) -> Any:
    """The release's own reading of a `config.json` with this content."""
    try:
        from sglang.srt.utils.hf_transformers_utils import get_config
    except ImportError:
        from sglang.srt.hf_transformers_utils import get_config
    with tempfile.TemporaryDirectory(prefix="eagle3lab-config-") as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        return get_config(folder, trust_remote_code=False)


def leave_unchecked(model_type: Any) -> None:
    """Make the config class of this model_type take any values, as it did before transformers 5.

    For releases that were published with transformers 4 and are run here with transformers 5.
    """
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    with contextlib.suppress(KeyError):
        config_class = CONFIG_MAPPING[model_type]
        config_class.__class_validators__ = []
        config_class.__validators__ = {}


def torch_dtype(name: str) -> Any:
    """The torch dtype of a safetensors dtype name."""
    import torch

    names = {
        "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
        "U16": "uint16", "U32": "uint32", "U64": "uint64", "F16": "float16", "BF16": "bfloat16",
        "F32": "float32", "F64": "float64", "C64": "complex64", "F8_E4M3": "float8_e4m3fn",
        "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    }  # fmt: skip
    return getattr(torch, names[name])


def probe(index: int, dtype: str, shape: list[int]) -> Any:
    """Random values, none of them zero, so that a row is recognised by what it holds and padding by its zeros.

    The same every time for the same arguments. Booleans are what they are.
    """
    import torch

    generator = torch.Generator().manual_seed(SEED + index)
    values = torch.empty(shape, dtype=torch_dtype(dtype))
    for chunk in values.reshape(-1).split(CHUNK):
        if dtype in ("BF16", "F16", "F32", "F64"):
            chunk.uniform_(1, 4, generator=generator)
        elif dtype == "BOOL":
            chunk.copy_(torch.rand(chunk.shape, generator=generator) < 0.5)
        else:
            chunk.copy_(torch.randint(1, 100, chunk.shape, generator=generator))
    return values


def probes(request: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What `load_weights` is given: names and probe values, made when they are asked for."""
    for index in range(len(request["tensors"])):
        yield named_probe(request, index)


def named_probe(request: dict[str, Any], index: int) -> tuple[str, Any]:
    """Name and probe values of one tensor of the request."""
    entry = request["tensors"][index]
    return entry["name"], probe(index, entry["dtype"], entry["shape"])


class Drafter:
    """The release's drafter, every parameter NaN until something is loaded into it."""

    def __init__(self, module: str, class_name: str, config: dict[str, Any]) -> None:
        import torch

        drafter_class = getattr(importlib.import_module(module), class_name)
        torch.set_default_dtype(torch.bfloat16)
        try:
            self.model = drafter_class(read_config(config))
        finally:
            torch.set_default_dtype(torch.float32)
        self.parameters = {name: parameter.data for name, parameter in self.model.named_parameters()}
        self.erase(self.parameters)

    def erase(self, names: Any) -> None:
        """Fill these parameters with NaN and forget the token map."""
        for name in names:
            self.parameters[name].fill_(float("nan"))
        self.model.hot_token_id = None

    def written(self) -> dict[str, Any]:
        """Parameter name to a mask of the elements that hold something else than NaN, where there are any."""
        masks = {name: ~data.isnan() for name, data in self.parameters.items()}
        return {name: mask for name, mask in masks.items() if bool(mask.any())}

    def offer(self, weights: list[tuple[str, Any]]) -> dict[str, Any]:
        """Load one tensor, or two that belong together, into an erased drafter and report where they went."""
        import torch

        try:
            self.model.load_weights(weights)
        except Exception as error:
            return {"outcome": "rejected", "exception": type(error).__name__, "message": str(error)}
        tensors = [tensor for _, tensor in weights]
        tensor = tensors[0] if len(tensors) == 1 else torch.cat([one.to(torch.float64) for one in tensors])
        masks = self.written()
        token_map = getattr(self.model, "hot_token_id", None)
        reached = [
            {"parameter": target, "slices": locate(self.parameters[target], mask, tensor)}
            for target, mask in masks.items()
        ]
        self.erase(masks)
        if token_map is not None:
            return {"outcome": "special", "shape": list(token_map.shape), "reached": reached}
        return {"outcome": "loaded" if reached else "nothing", "reached": reached}

    def load_all(self, request: dict[str, Any], offers: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Load all tensors in order and report how much was written of each parameter.

        Raises:
            RuntimeError: It does not end as their `offers` one by one did.
        """
        self.erase(self.parameters)
        raised, expected = None, offers[-1].get("exception") if offers else None
        try:
            self.model.load_weights(probes(request))
        except Exception as error:
            raised = type(error).__name__
        if raised != expected:
            raise RuntimeError(f"all tensors together ended with {raised}, one by one with {expected}")
        masks = self.written()
        return [
            {
                "name": name,
                "shape": list(data.shape),
                "written": int(masks[name].sum()) if name in masks else 0,
                "elements": data.numel(),
            }
            for name, data in self.parameters.items()
        ]


def locate(parameter: Any, mask: Any, tensor: Any) -> list[dict[str, list[int]]]:
    """Which rows (and columns) of `tensor` stand in which rows (and columns) of `parameter`.

    One entry a stretch of rows, with the keys of `eagle3lab.engines.loading.Slice`; rows and columns of zeros,
    which no probe holds, are what the loader filled in itself. Empty if the written part is not whole rows or
    is not made of rows of the tensor.
    """
    parameter, mask, source = as_matrix(parameter), as_matrix(mask), as_matrix(tensor).to(parameter.dtype)
    first, last = extent(mask.any(dim=1))
    if not bool(mask[first:last].all()):
        return []
    block = parameter[first:last]
    filled = block != 0
    if not bool(filled.any()):
        return [{"parameter_rows": [first, first], "tensor_rows": [0, 0], "zero_rows": [first, last]}]
    width = extent(filled.any(dim=0))[1]
    parts: list[dict[str, list[int]]] = []
    row, rows_filled = 0, filled.any(dim=1)
    while row < block.shape[0]:
        if not bool(rows_filled[row]):
            parts[-1]["zero_rows"] = [first + row, last]
            if bool(rows_filled[row:].any()):
                return []
            break
        found = longest_run(source, block[row:, :width])
        if found is None:
            return []
        at, column, height, wide = found
        part = {"parameter_rows": [first + row, first + row + height], "tensor_rows": [at, at + height]}
        if not width == wide == block.shape[1] == source.shape[1]:
            part |= {"parameter_columns": [0, width], "tensor_columns": [column, column + wide]}
        if width < block.shape[1]:
            part["zero_columns"] = [width, block.shape[1]]
        parts.append(part)
        row += height
    return parts


def as_matrix(tensor: Any) -> Any:
    """A scalar as 1 x 1, a vector as one column, more dimensions with the leading ones merged."""
    if tensor.dim() < 2:
        return tensor.reshape(-1, 1)
    return tensor.flatten(0, -2)


def extent(flags: Any) -> tuple[int, int]:
    """First index and one past the last index of the true elements."""
    at = flags.nonzero().flatten()
    return int(at[0]), int(at[-1]) + 1


def longest_run(source: Any, block: Any) -> tuple[int, int, int, int] | None:
    """Where `source` holds the most of the first rows of `block`: row, column, number of rows, width.

    The width is that of `block`, or 1 where one column is repeated.
    """
    best = None
    for wide in (block.shape[1], 1):
        if wide > source.shape[1]:
            continue
        starts = (source[:, : source.shape[1] - wide + 1] == block[0, 0]).nonzero()
        for offset in range(1, min(wide, 8)):  # a cheap sieve before whole rows are compared
            starts = starts[source[starts[:, 0], starts[:, 1] + offset] == block[0, offset]]
        for row, column in starts.tolist():
            height = min(source.shape[0] - row, block.shape[0])
            equal = (source[row : row + height, column : column + wide] == block[:height]).all(dim=1)
            run = height if bool(equal.all()) else int(equal.int().argmin())
            if run and (best is None or run > best[2]):
                best = (row, column, run, wide)
            if best is not None and best[2] == block.shape[0]:
                return best
        if best is not None:
            return best
    return None


def load(request: dict[str, Any]) -> dict[str, Any]:
    """Answer one request: each tensor alone, then all of them in order, up to the one that raises."""
    if not request["config_checked"]:
        leave_unchecked(request["config"].get("model_type"))
    try:
        drafter = Drafter(request["module"], request["class"], request["config"])
    except Exception as error:
        return {"construction_error": {"type": type(error).__name__, "message": str(error)}}
    offers: list[dict[str, Any]] = []
    for index, entry in enumerate(request["tensors"]):
        together = [entry["with"], index] if "with" in entry else [index]
        offers.append(drafter.offer([named_probe(request, one) for one in together]))
        if offers[-1]["outcome"] == "rejected":
            break
    return {
        "tensors": offers,
        "parameters": drafter.load_all(request, offers),
        "head_from_target": bool(getattr(drafter.model, "load_lm_head_from_target", False)),
    }


def requests_and_replies() -> tuple[TextIO, TextIO]:
    """Where requests come from and replies go; whatever else is printed from here on goes to stderr."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the release prints must not be taken for a reply
    return io.TextIOWrapper(os.fdopen(0, "rb"), encoding="utf-8"), replies


def send(replies: TextIO, value: dict[str, Any]) -> None:
    """Write one reply."""
    replies.write(json.dumps(value) + "\n")
    replies.flush()


def answer_each(
    requests: Iterable[str], replies: TextIO, answer: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Answer requests until the pipe closes."""
    for line in requests:
        try:
            reply = answer(json.loads(line))
        except Exception as error:
            import traceback

            reply = {"failure": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
        send(replies, reply)


def serve(requests: TextIO, replies: TextIO, tp_size: int, tp_rank: int) -> None:
    """Answer requests for one layout until the pipe closes."""
    initialise_layout(tp_size, tp_rank)
    answer_each(requests, replies, load)


def fork_layout(tp_size: int, tp_rank: int) -> tuple[Any, Any]:
    """A child that serves this layout: the pipe to write requests to and the pipe to read replies from."""
    request_end, request_start = os.pipe()
    reply_end, reply_start = os.pipe()
    if os.fork() == 0:
        os.close(request_start)
        os.close(reply_end)
        code = 1
        try:
            serve(os.fdopen(request_end), os.fdopen(reply_start, "w"), tp_size, tp_rank)
            code = 0
        except Exception:
            import traceback

            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    os.close(request_end)
    os.close(reply_start)
    return os.fdopen(request_start, "w"), os.fdopen(reply_end)


def main() -> None:
    """Import the release, then hand each request to the child of its layout."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    requests, replies = requests_and_replies()
    import torch

    torch.set_num_threads(1)
    stand_in_for_missing_packages()
    let_models_be_registered_again()
    import sglang
    import sglang.srt.models.llama_eagle3

    send(replies, {"ready": sglang.__version__, "file": sglang.__file__})
    children: dict[tuple[int, int], tuple[Any, Any]] = {}
    for line in requests:
        request = json.loads(line)
        layout = (request["tp_size"], request["tp_rank"])
        if layout not in children:
            with contextlib.suppress(Exception):  # the child says what is wrong with it
                importlib.import_module(request["module"])
        if layout not in children:
            children[layout] = fork_layout(*layout)
        to_child, from_child = children[layout]
        answer = ""
        with contextlib.suppress(BrokenPipeError):
            to_child.write(line)
            to_child.flush()
            answer = from_child.readline()
        if not answer:
            del children[layout]
            answer = json.dumps({"failure": f"the process of rank {layout[1]} of {layout[0]} died"}) + "\n"
        replies.write(answer)
        replies.flush()


if __name__ == "__main__":
    main()
