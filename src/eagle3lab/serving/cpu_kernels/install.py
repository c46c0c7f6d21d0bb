"""Which of this package's pieces a release needs, as an overlay for its server."""

from __future__ import annotations

from eagle3lab.engines.release import cpu_profile
from eagle3lab.serving.overlay import Overlay

_HERE = "eagle3lab.serving.cpu_kernels"
_PLUGIN = {"eagle3lab-cpu": f"{_HERE}.activate:plugin"}
_STAND_IN = f"""# SGLang's compiled kernels, in plain torch.
from {_HERE}.stand_in import *
"""
_NAMES_ONLY = f"""# Names that SGLang imports and does not call on a CPU.
from {_HERE}.unused_names import __getattr__
"""

_WITH_STAND_IN = Overlay(
    modules={"sgl_kernel": _STAND_IN}, plugins=_PLUGIN, startup=(f"{_HERE}.activate:startup",)
)
_INTERPRETED = Overlay(
    modules={"sgl_kernel": "", "sgl_kernel.kvcacheio": _NAMES_ONLY},
    startup=(f"{_HERE}.activate:startup_interpreted",),
)


def cpu_overlay(release: str) -> Overlay:
    """What to put in from outside so that this release serves EAGLE-3 without a GPU.

    Raises:
        InputError: A release whose CPU path was not tried.
    """
    return _WITH_STAND_IN if cpu_profile(release).kernels == "stand-in" else _INTERPRETED
