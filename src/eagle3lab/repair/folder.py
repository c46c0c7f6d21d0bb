"""A folder that appears complete or not at all: made beside its place under a hidden name, then renamed.

A process that is killed leaves at most the hidden folder, which the next one for the same place removes. A machine
that loses its power may keep the name and lose the contents, as after `cp`, unless `sync` is asked for.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eagle3lab.checkpoint.safetensors import FileRange, write_error, write_parts
from eagle3lab.checkpoint.store import safe_file
from eagle3lab.errors import InputError

_MARK = ".eagle3lab-"


def check_out(out: Path, source: Path) -> None:
    """Refuse a place for the copy that holds something or lies inside what is copied.

    Raises:
        InputError: Either is so, or its parent is no folder.
    """
    if os.path.lexists(out):
        raise InputError("exists already", path=out, advice="Give a folder that does not exist yet.")
    parent = out.absolute().parent
    if not parent.is_dir():
        raise InputError("lies in a folder that does not exist", path=out, advice=f"Make {parent} first.")
    inside = source.resolve()
    if inside == parent.resolve() or inside in parent.resolve().parents:
        raise InputError("lies inside the folder that is copied", path=out, advice="Give a place outside it.")


@contextmanager
def atomic_folder(out: Path, *, sync: bool = False) -> Iterator[Path]:
    """A hidden folder to fill; on leaving without an error it is called `out`, else it is gone.

    With `sync` everything is on the disk, not in memory alone, before it gets its name.

    Raises:
        InputError: It cannot be made, written or renamed.
    """
    _remove_left_behind(out)
    with _signals_raise():
        hidden, lock = _make(out)
        try:
            yield hidden
            if sync:
                _sync_tree(hidden)
            if os.path.lexists(out):
                raise InputError("exists already", path=out, advice="Give a folder that does not exist yet.")
            hidden.rename(out)
        except BaseException as error:
            shutil.rmtree(hidden, ignore_errors=True)
            if isinstance(error, OSError):
                raise write_error(out, error) from None
            raise
        finally:
            os.close(lock)
    if sync:
        with suppress(OSError):  # complete, under its name, whether or not the name is on the disk
            _sync(out.absolute().parent)


@contextmanager
def _signals_raise() -> Iterator[None]:
    """SIGTERM and SIGHUP end the process as an error would, so that what is begun is removed."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _make(out: Path) -> tuple[Path, int]:
    """The hidden folder and a lock on it, which a process that finds it tells a live one by."""
    while True:
        try:
            hidden = Path(tempfile.mkdtemp(prefix=f".{out.name}{_MARK}", dir=out.absolute().parent))
        except OSError as error:
            raise write_error(out, error) from None
        lock = None
        try:
            lock = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
            hidden.chmod(0o777 & ~umask())
            return hidden, lock
        except OSError as error:
            if lock is not None:
                os.close(lock)
            # Another process may have taken it for left behind before it was locked, and removed it.
            if isinstance(error, FileNotFoundError):
                continue
            with suppress(OSError):
                hidden.rmdir()
            raise write_error(out, error) from None


def umask() -> int:
    """The permissions that this process takes from new files."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def plain_mode(mode: int) -> int:
    """The permissions of a copy: no setuid, setgid or sticky bit, nobody else writes, and the umask is heeded."""
    return mode & 0o755 & ~umask()


def _remove_left_behind(out: Path) -> None:
    parent = out.absolute().parent
    with suppress(OSError):
        for entry in list(os.scandir(parent)):
            if not entry.name.startswith(f".{out.name}{_MARK}") or not entry.is_dir(follow_symlinks=False):
                continue
            with suppress(OSError):
                lock = os.open(entry.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(entry.path, ignore_errors=True)
                finally:
                    os.close(lock)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_tree(folder: Path) -> None:
    for path, _, files in os.walk(folder):
        for file in files:
            _sync(Path(path, file))
        _sync(Path(path))


def list_folder(root: Path) -> tuple[list[str], list[str]]:
    """Files and subfolders of `root`, relative and with slashes, sorted; every file checked by `safe_file`.

    Raises:
        InputError: A link leads out of the folder or to a folder, or something is no regular file.
    """
    files: list[str] = []
    folders: list[str] = []

    def fail(error: OSError) -> None:
        raise InputError(f"cannot be listed: {error.strerror or error}", path=error.filename) from None

    for place, below, names in os.walk(root, onerror=fail):
        here = Path(place).relative_to(root)
        for name in below:
            if (Path(place) / name).is_symlink():
                raise InputError(
                    "is a link to a folder", path=Path(place) / name, advice="Copy the folder itself."
                )
            folders.append((here / name).as_posix())
        for name in names:
            safe_file(root, (here / name).as_posix())
            files.append((here / name).as_posix())
    return sorted(files), sorted(folders)


def carry(source: Path, to: Path, *, link: bool) -> None:
    """Bring one file over unchanged, permissions included.

    Args:
        source: A regular file.
        to: A path that does not exist yet.
        link: Whether it may be the same file on disk under a second name, where the file system allows it.

    Raises:
        InputError: It cannot be read or written.
    """
    real = source.resolve()
    try:
        status = real.stat()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path=source) from None
    # A second name keeps the permissions of the first, so none is made where these are not a copy's to have.
    if link and not stat.S_IMODE(status.st_mode) & ~0o775:
        try:
            to.hardlink_to(real)
        except OSError:
            pass  # another file system, one without links, or a file of somebody else's
        else:
            return
    write_parts(to, [FileRange(real, 0, status.st_size)])
    to.chmod(plain_mode(status.st_mode))
