"""A warning at start instead of a silent collapse: the probe without a run folder, and a judge.

`pip install eagle3lab` into a server's environment announces `plugin` to SGLang (entry point group
`sglang.srt.plugins`, 0.5.11 and later). It does nothing, and imports nothing, unless `EAGLE3LAB_GUARD` is set. For
releases without plugins `eagle3lab guard COMMAND` starts the server with the folder `path/` before all others on its
PYTHONPATH.
"""

from __future__ import annotations

import os


def plugin() -> None:
    """Called by SGLang in every process."""
    if os.environ.get("EAGLE3LAB_GUARD"):
        from eagle3lab.serving.probe import attach

        attach()
