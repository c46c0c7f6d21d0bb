"""A folder that appears complete or not at all: made beside its place under a hidden name, then renamed.

A process that is killed leaves at most the hidden folder, which the next one for the same place removes. A machine
that loses its power may keep the name and lose the contents, as after `cp`, unless `sync` is asked for.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eagle3lab.checkpoint.files import safe_file
from eagle3lab.checkpoint.writer import FileRange, write_error, write_parts
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
        InputError: It cannot be made or renamed.
    """
    _remove_left_behind(out)
    hidden, lock = _make(out)
    try:
        yield hidden
        try:
            if sync:
                _sync_tree(hidden)
        except OSError as error:
            raise write_error(out, error) from None
        if os.path.lexists(out):
            raise InputError("exists already", path=out, advice="Give a folder that does not exist yet.")
        try:
            hidden.rename(out)
        except OSError as error:
            raise write_error(out, error) from None
        if sync:
            with suppress(OSError):  # complete, under its name, whether or not the name is on the disk
                _sync(out.absolute().parent)
    except BaseException:
        shutil.rmtree(hidden, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _make(out: Path) -> tuple[Path, int]:
    """The hidden folder and a lock on it, which a process that finds it tells a live one by."""
    while True:
        hidden = None
        try:
            hidden = Path(tempfile.mkdtemp(prefix=f".{out.name}{_MARK}", dir=out.absolute().parent))
            lock = os.open(hidden, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError as error:
            if hidden is not None:
                hidden.rmdir()
            raise write_error(out, error) from None
        if hidden.exists():  # another process may have taken it for left behind before it was locked
            umask = os.umask(0)
            os.umask(umask)
            hidden.chmod(0o777 & ~umask)
            return hidden, lock
        os.close(lock)


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
    if link:
        try:
            to.hardlink_to(real)
        except OSError:
            pass  # another file system, one without links, or a file of somebody else's
        else:
            return
    try:
        status = real.stat()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path=source) from None
    write_parts(to, [FileRange(real, 0, status.st_size)])
    to.chmod(stat.S_IMODE(status.st_mode) | stat.S_IWUSR)
