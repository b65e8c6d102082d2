"""Files that are there whole or not at all."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pate.errors import RunError

KEY_BYTES = 32


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


def read_key(path: Path) -> bytes:
    """A key that was drawn once."""
    try:
        with path.open("rb") as file:
            key = file.read(KEY_BYTES + 1)
    except FileNotFoundError:
        raise RunError(f"{path}: the key is gone, so what was made with it cannot be vouched for") from None
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error.strerror})") from None
    if len(key) != KEY_BYTES:
        raise RunError(f"{path}: is damaged: a key has {KEY_BYTES} bytes")
    return key
