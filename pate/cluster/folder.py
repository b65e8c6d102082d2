"""The folder of a local Ray: nobody else can look into it, and it is removed when the process that made it ends.

Ray opens its own directory, and what it makes in there (sockets, logs, spilled objects), to every user of the machine.
So that directory lies below a private one. The owner holds a lock on the folder for as long as it lives;
folders whose owner was killed are removed by the next one.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "pate-local-"
_RAYS_OWN = "r"  # short: see below
_LONGEST_SOCKET = 107 if sys.platform == "linux" else 103
_SOCKET = f"/{_PREFIX}12345678/{_RAYS_OWN}/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
_SECONDS_TO_DIE = 5.0
_ATTEMPTS_TO_REMOVE = 5


@contextmanager
def private_folder(place: Path | None = None) -> Iterator[Path]:
    """A folder of mode 0700 that is removed at the end, with the processes that still write into it.

    `place` is where it is made: else the usual directory for temporary files, where names of sockets fit.
    """
    place = place.resolve() if place else _usual_place()
    _remove_abandoned(place)
    folder, lock = _new(place)
    try:
        yield folder
    finally:
        _remove(folder)
        os.close(lock)


def ray_processes(folder: Path) -> Path:
    """The directory below `folder` that Ray may open to everybody."""
    return folder / _RAYS_OWN


def end_processes(folder: Path) -> None:
    """Kill the processes whose output goes to a file below `folder`: what Ray has started and has not ended itself."""
    deadline = time.monotonic() + _SECONDS_TO_DIE
    while (left := list(_writers(folder))) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _usual_place() -> Path:
    usual = Path(tempfile.gettempdir()).resolve()
    return usual if len(os.fsencode(usual)) + len(_SOCKET) <= _LONGEST_SOCKET else Path("/tmp")


def _new(place: Path) -> tuple[Path, int]:
    """A new folder and its lock. A folder that another process removed as abandoned before the lock is given up."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))  # mode 0700
        lock = _locked(folder, wait=True)
        if lock is not None:
            return folder, lock


def _locked(folder: Path, wait: bool) -> int | None:
    """A descriptor that holds the folder's lock; None if another process has it, or the folder is gone."""
    try:
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        _flock(lock, wait)
        if os.path.samestat(os.fstat(lock), os.stat(folder, follow_symlinks=False)):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _flock(lock: int, wait: bool) -> None:
    """Lock. Without `wait`, raise OSError where another process has it, or where files cannot be locked at all."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        if not wait:
            raise


def _remove_abandoned(place: Path) -> None:
    for folder in place.glob(f"{_PREFIX}*"):
        with suppress(OSError):
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            lock = _locked(folder, wait=False)
            if lock is not None:
                _remove(folder)
                os.close(lock)


def _remove(folder: Path) -> None:
    """Remove a folder; first end the processes that could make new files in it."""
    for _ in range(_ATTEMPTS_TO_REMOVE):
        end_processes(folder)
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)


def _writers(folder: Path) -> Iterator[int]:
    """Processes whose standard output or error is a file below `folder`, where the system tells (Linux)."""
    below = f"{folder}/"
    for process in Path("/proc").glob("[0-9]*"):
        for stream in ("1", "2"):
            with suppress(OSError):
                if int(process.name) != os.getpid() and os.readlink(process / "fd" / stream).startswith(below):
                    yield int(process.name)
                    break
