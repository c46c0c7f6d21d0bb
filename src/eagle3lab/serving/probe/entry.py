"""How the probe comes into a process of a server: by SGLang's plugin loader, or as Python starts.

Both may happen in one process; the second finds the first and does nothing. Without anything to do neither imports
more than this module.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagle3lab.serving.probe.session import Probe

_probe: Probe | None = None


def plugin() -> None:
    """Called by SGLang's plugin loader in every process, from 0.5.11 on."""
    attach("plugin")


def startup() -> None:
    """Called by `sitecustomize` as each Python process of the server begins."""
    attach("startup")


def attach(door: str) -> None:
    """Attach the probe to this process if the environment asks for it."""
    global _probe
    if _probe is not None:
        return
    try:
        from eagle3lab.serving.probe.settings import Settings

        settings = Settings.from_environment(os.environ)
        if not settings.active:
            return
        from eagle3lab.serving.probe.session import Probe

        _probe = Probe(settings, door)
        _probe.install()
    except Exception as error:  # an environment that lacks something: the server goes on without us
        print(f"eagle3lab probe: not attached ({type(error).__name__}: {error})", file=sys.stderr, flush=True)
