"""Free ports that stay reserved from the choice to the server's end, so that servers side by side do not collide."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import stat
import tempfile
from pathlib import Path

from eagle3lab.errors import InputError

# Below the range from which the kernel takes ports for outgoing connections.
_FIRST, _LAST = 20_000, 31_999


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on this port now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def reserve(port: int | None = None, *, host: str = "127.0.0.1") -> tuple[int, int]:
    """Reserve `port`, or one that is free, among all users of this function on this machine.

    A server takes seconds to open its port: the reservation, a locked file, keeps others off it until then.

    Returns:
        The port, and the file descriptor that holds the reservation until it is closed, here and in every process
        that inherited it.

    Raises:
        InputError: The port is taken, or none is left.
    """
    choices = [port] if port is not None else random.Random().sample(range(_FIRST, _LAST + 1), 200)
    for choice in choices:
        lock = _lock(choice)
        if lock is not None:
            if is_free(choice, host):
                return choice, lock
            os.close(lock)
    if port is not None:
        raise InputError(
            f"port {port} on {host} is taken",
            advice="Choose another port, stop what listens there, or attach to it if it is the server",
        )
    raise InputError(f"no port between {_FIRST} and {_LAST} is free", advice="Stop servers that nobody needs")


def _lock(port: int) -> int | None:
    folder = Path(tempfile.gettempdir(), f"eagle3lab-ports-{os.getuid()}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise InputError(
            "is not a folder of this user, so no port can be reserved there",
            path=folder,
            advice="Remove it, or set TMPDIR to a folder of your own",
        )
    descriptor = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor
