"""Runs first in every Python process of a server that `eagle3lab guard` started."""

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

try:
    from eagle3lab.serving.probe import attach
except ImportError as error:
    print(f"eagle3lab guard: not attached ({error}); install eagle3lab for {sys.executable}", file=sys.stderr)
else:
    attach()

# Another sitecustomize (a distribution's, an administrator's) is hidden by this one: run it too.
_here = Path(__file__).parent
_others = [folder for folder in sys.path if Path(folder or ".").absolute() != _here]
_hidden = PathFinder.find_spec("sitecustomize", _others)
if _hidden is not None and _hidden.loader is not None:
    _hidden.loader.exec_module(importlib.util.module_from_spec(_hidden))
