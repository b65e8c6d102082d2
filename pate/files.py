"""Files that are there whole or not at all."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def read_whole(path: Path, most_bytes: int | None = None) -> bytes:
    """What a file holds; OSError where that is more, or it is a folder, or a device or pipe that may never end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    with path.open("rb") as file:
        content = file.read() if most_bytes is None else file.read(most_bytes + 1)
    if most_bytes is not None and len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes:,} bytes", str(path))
    return content


def write_atomically(path: Path, write: Callable[[Path], Any], mode: int = 0o600, durable: bool = True) -> None:
    """The whole file or none of it, durably, whenever the machine stops.

    Without `durable`, a machine that stops may lose the file or leave it damaged: only for what can be made again.
    """
    partial = path.with_name(path.name + ".partial")
    partial.unlink(missing_ok=True)
    partial.touch(mode=mode)
    write(partial)
    if not durable:
        partial.rename(path)
        return
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    partial.rename(path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """What was added to a folder or removed from it is so for good."""
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold a lock file; raises BlockingIOError if another process holds it and `wait` is False."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
