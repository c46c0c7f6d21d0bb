"""The machine that a command is resolved for, as far as a release asks about it.

`HOPPER` is H100 and H200, `BLACKWELL` B200 and GB200 (SM100), `SM120` RTX PRO 6000 and RTX 5090, `AMPERE` A100.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eagle3lab.engines.arguments.evaluate import UNKNOWN


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine with NVIDIA GPUs, or one without any.

    Attributes:
        capability: Compute capability of its GPUs, (9, 0) for Hopper; None for a machine that has only its CPU.
        flashinfer: Whether flashinfer is installed.
        amx: Whether the CPU has AMX.
    """

    capability: tuple[int, int] | None = (9, 0)
    flashinfer: bool = True
    amx: bool = False

    @property
    def device(self) -> str:
        """What `--device` is when it is not given."""
        return "cpu" if self.capability is None else "cuda"


HOPPER = Machine((9, 0))
BLACKWELL = Machine((10, 0))
SM120 = Machine((12, 0))
AMPERE = Machine((8, 0))
CPU = Machine(None, flashinfer=False)

_OTHER_VENDORS = (
    "is_hip",
    "is_npu",
    "is_xpu",
    "is_hpu",
    "is_mps",
    "is_musa",
    "is_host_cpu_arm64",
    "is_out_of_tree",
    "use_mlx",
)


def asked(machine: Machine | None, name: str) -> Any:
    """The answer to a question that releases ask of a machine by this name; `UNKNOWN` for any other."""
    return _answers(machine).get(name, UNKNOWN) if machine is not None else UNKNOWN


def platform(machine: Machine | None) -> Any:
    """What newer releases ask as attributes of one object."""
    return _answers(machine) if machine is not None else UNKNOWN


def _answers(machine: Machine) -> Mapping[str, Any]:
    major = machine.capability[0] if machine.capability else 0
    answers: dict[str, Any] = dict.fromkeys(_OTHER_VENDORS, False)
    return answers | {
        "get_device": machine.device,
        "get_device_sm": major * 10 + (machine.capability[1] if machine.capability else 0),
        "is_cuda": machine.capability is not None,
        "is_cpu": machine.capability is None,
        "is_hopper_with_cuda_12_3": major == 9,
        "is_sm90_supported": major == 9,
        "is_sm90": major == 9,
        "is_sm100_supported": major == 10,
        "is_sm100": major == 10,
        "is_sm120_supported": major == 12,
        "is_sm120": major == 12,
        "is_blackwell": major in (10, 12),
        "is_blackwell_supported": major in (10, 12),
        "is_flashinfer_available": machine.flashinfer and machine.capability is not None,
        "has_flashinfer": machine.flashinfer and machine.capability is not None,
        "cpu_has_amx_support": machine.amx,
        "has_amx": machine.amx,
    }
