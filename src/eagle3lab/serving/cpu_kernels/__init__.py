"""What SGLang needs to serve EAGLE-3 on a machine without a GPU, or beside its GPUs, put in from outside.

SGLang's CPU path calls compiled kernels that are published for CUDA only. The modules here do the same work in plain
torch: `cache_locations` (bookkeeping of the key/value cache), `tree` (the draft tree and its greedy verification) and
`attention`; `stand_in` offers them under the names that newer releases import from `sgl_kernel`, and what an older
CPU path lacks is set as its modules are imported. Nothing here is fast; it is exact, which a test of acceptance needs
and a benchmark of speed does not.

This module is imported in every process of the server, before anything else: it imports nothing that costs time.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any, NoReturn

from eagle3lab.serving.hooks import after_import
from eagle3lab.serving.overlay import Overlay

# A machine's GPUs are hidden: with CUDA at hand SGLang takes itself for a CUDA server whatever its device is.
_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
_STAND_IN = f"""# SGLang's compiled kernels, in plain torch.
from {__name__}.stand_in import *
"""
_NAMES_ONLY = f"""# Names that SGLang imports and does not call on a CPU.
from {__name__} import absent_kernel as __getattr__
"""


def cpu_overlay(release: str) -> Overlay:
    """What to put in from outside so that this release serves EAGLE-3 on a CPU.

    Raises:
        InputError: A release whose CPU path was not tried.
    """
    from eagle3lab.engines.release import cpu_profile

    if cpu_profile(release).kernels == "stand-in":
        return Overlay(
            modules={"sgl_kernel": _STAND_IN},
            plugins={"eagle3lab-cpu": f"{__name__}:plugin"},
            startup=(f"{__name__}:startup",),
            environment=_NO_GPU,
        )
    return Overlay(
        modules={"sgl_kernel": "", "sgl_kernel.kvcacheio": _NAMES_ONLY},
        startup=(f"{__name__}:startup_interpreted",),
        environment=_NO_GPU,
    )


def startup() -> None:
    """For every release: names for torchvision, and no CUDA."""
    after_import("transformers.utils.import_utils", _name_torchvision)
    after_import("torch", _without_cuda)


def startup_interpreted() -> None:
    """For releases whose CPU path does not speculate: also the tree, its verification, and attention."""
    startup()
    after_import("sglang.srt.speculative.eagle_utils", _with_tree)
    for phase in ("extend", "decode"):
        after_import(f"sglang.srt.layers.attention.triton_ops.{phase}_attention", _with_attention)


def plugin() -> None:
    """Say in the log of every process that this is the CPU profile; called by SGLang's own plugin loader."""
    logging.getLogger("eagle3lab").warning("eagle3lab CPU profile: kernels in plain torch, exact but slow")


def absent_kernel(name: str) -> Any:
    """In place of a kernel that is imported by name and never called on a CPU, such as host cache transfers."""
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel's {name} needs a GPU")

    return missing


def _without_cuda(torch: ModuleType) -> None:
    """Setting a drafter's embedding ends with `empty_cache` and `synchronize`, which raise without a GPU."""
    torch.cuda.is_available = _no_device
    torch.cuda.empty_cache = _nothing
    torch.cuda.synchronize = _nothing


def _no_device() -> bool:
    return False


def _nothing(*args: object, **kwargs: object) -> None:
    """There is no device to wait for."""


def _with_tree(eagle_utils: ModuleType) -> None:
    """On a CPU the release defines no tree builder, and its greedy verification falls through unchanged."""
    from eagle3lab.serving.cpu_kernels.tree import build_tree, verify_tree_greedy

    def verify_tree_greedy_func(
        predicts: object, accept_index: object, accept_token_num: object, topk: int = -1, **tree: object
    ) -> tuple[object, object, object]:
        verify_tree_greedy(
            predicts=predicts,
            accept_index=accept_index,
            accept_token_num=accept_token_num,
            **tree,
        )
        return predicts, accept_index, accept_token_num

    eagle_utils.sgl_build_tree_kernel_efficient = build_tree  # type: ignore[attr-defined]
    eagle_utils.verify_tree_greedy_func = verify_tree_greedy_func  # type: ignore[attr-defined]


def _with_attention(triton_ops: ModuleType) -> None:
    """Triton's interpreter runs the release's kernels a thousand times slower than torch does the same."""
    from eagle3lab.serving.cpu_kernels import attention

    for name in ("extend_attention_fwd", "decode_attention_fwd"):
        if hasattr(triton_ops, name):
            setattr(triton_ops, name, getattr(attention, name))


class _Absent(type):
    """A class whose every attribute is such a class again: enough for annotations, defaults and `Mode.BICUBIC`."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name, (), {})

    def __call__(cls, *args: object, **kwargs: object) -> Any:
        raise NotImplementedError(
            f"{cls.__name__}: torchvision is not installed; this server takes no images"
        )


class _Names(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Absent(name, (), {})


class _Torchvision(MetaPathFinder, Loader):
    """Names in place of torchvision, which SGLang imports for images even to serve text."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "torchvision":
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Names(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing to run."""


def _name_torchvision(import_utils: ModuleType) -> None:
    """Have transformers settle that torchvision is missing, or it would use the names; only then offer them."""
    if PathFinder.find_spec("torchvision") is None:
        import_utils.is_torchvision_available()  # remembered for the life of the process
        sys.meta_path.append(_Torchvision())
