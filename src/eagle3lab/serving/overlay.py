"""A folder put first on a server's PYTHONPATH: how everything enters an engine without editing it.

Three ways in: *modules* that the release imports and this machine lacks, *plugins* announced as entry points
(SGLang 0.5.11 and later loads them in every process), and *startup* functions that `sitecustomize` calls as each
Python process begins.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import eagle3lab

PLUGIN_GROUP = "sglang.srt.plugins"
"""Entry point group of SGLang's general plugins (`sglang/srt/plugins/__init__.py`, 0.5.11 and later)."""

_STARTUP = '''\
"""Runs first in every Python process of the server. Written by eagle3lab; names what it calls."""

import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path

for entry in {entries!r}:
    module, function = entry.split(":")
    getattr(importlib.import_module(module), function)()

# Another sitecustomize (a distribution's, an administrator's) is hidden by this one: run it too.
here = Path(__file__).parent
others = [folder for folder in sys.path if Path(folder or ".").absolute() != here]
hidden = PathFinder.find_spec("sitecustomize", others)
if hidden is not None and hidden.loader is not None:
    hidden.loader.exec_module(importlib.util.module_from_spec(hidden))
'''


@dataclass(frozen=True, slots=True)
class Overlay:
    """What to put in from outside; overlays of several purposes are joined with `|`.

    Attributes:
        modules: Module name to source text; each becomes a package of that name.
        plugins: Plugin name to `module:function`.
        startup: `module:function` entries, called in order.
        environment: Variables the server needs for these.
    """

    modules: dict[str, str] = field(default_factory=dict)
    plugins: dict[str, str] = field(default_factory=dict)
    startup: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def __or__(self, other: Overlay) -> Overlay:
        """Both overlays at once; where they disagree, `other` wins."""
        return Overlay(
            self.modules | other.modules,
            self.plugins | other.plugins,
            self.startup + tuple(entry for entry in other.startup if entry not in self.startup),
            self.environment | other.environment,
        )

    def write(self, folder: Path) -> Path:
        """Write the overlay into the new `folder`, this library within reach, and return the folder."""
        folder.mkdir(parents=True)
        # The server may run another Python, into which eagle3lab is not installed.
        (folder / "eagle3lab").symlink_to(Path(eagle3lab.__file__).parent)
        for name, source in self.modules.items():
            package = folder.joinpath(*name.split("."))
            package.mkdir(parents=True, exist_ok=True)
            (package / "__init__.py").write_text(source, encoding="utf-8")
        if self.startup:
            (folder / "sitecustomize.py").write_text(_STARTUP.format(entries=self.startup), encoding="utf-8")
        if self.plugins:
            info = folder / "eagle3lab_overlay-0.dist-info"
            info.mkdir()
            (info / "METADATA").write_text("Metadata-Version: 2.1\nName: eagle3lab-overlay\nVersion: 0\n")
            lines = [f"{name} = {target}" for name, target in self.plugins.items()]
            (info / "entry_points.txt").write_text("\n".join([f"[{PLUGIN_GROUP}]", *lines, ""]))
        return folder
