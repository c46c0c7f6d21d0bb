"""What chapters say of a measured run, beside its figures."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from eagle3lab.serving.account import Measurement


def printed(run: Measurement) -> str:
    """Accept length and rate of the log's last decode line, as the release prints them: `1.00, 0.20`."""
    found = re.search(r"accept len: ([\d.]+), accept rate: ([\d.]+)", run.last_decode_line or "")
    return ", ".join(found.groups()) if found else ""


def dropped(run: Measurement) -> list[str]:
    """The names that went nowhere, `t2d` aside: it belongs to training, and no engine reads it.

    Raises:
        ValueError: The run was measured without the probe.
    """
    if run.seen is None:
        raise ValueError("the run was measured without the probe")
    return [name for name in run.seen.dropped if name != "t2d"]
