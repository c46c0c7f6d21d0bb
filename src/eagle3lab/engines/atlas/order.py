"""Release numbers in order."""

from __future__ import annotations

import re

_NUMBER = re.compile(
    r"v?(?P<base>\d+(?:\.\d+)*)"
    r"(?:[._-]?(?P<before>dev|a|alpha|b|beta|c|rc)[._-]?(?P<nth>\d*))?"
    r"(?:[._-]?(?:post|r)[._-]?(?P<post>\d*))?"
    r"(?:\.dev\d*)?(?:\+[\w.]+)?",
    re.IGNORECASE,
)
ReleaseKey = tuple[tuple[int, ...], tuple[int, str, int], int]


def release_key(release: str) -> ReleaseKey | None:
    """A release number as something that sorts; None if it is none.

    `0.5.6rc0` comes before `0.5.6`, `0.5.6.post2` before `0.5.6.post10`; what follows a `+` does not count.
    """
    match = _NUMBER.fullmatch(release.strip())
    if match is None or any(len(part) > 9 for part in match["base"].split(".")):
        return None
    base = [int(part) for part in match["base"].split(".")]
    while base and base[-1] == 0:
        base.pop()
    before = (0, match["before"].lower(), int(match["nth"] or 0)) if match["before"] else (1, "", 0)
    post = -1 if match["post"] is None else int(match["post"] or 0)
    return tuple(base), before, post
