"""Processes, looked at from outside; and machines of their own for those that need root."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_DEBIAN = {"ip": "iproute2", "unshare": "util-linux", "setpriv": "util-linux", "ssh": "openssh-client"}
_DEBIAN |= {"/usr/sbin/sshd": "openssh-server", "rsync": "rsync"}


@contextmanager
def folder_for_root(*tools: str) -> Iterator[Path]:
    """A folder with a short name, which all may enter, for a test with namespaces of its own; it is skipped where
    nobody may make those, or one of the tools is not installed."""
    if os.geteuid() != 0:
        pytest.skip("needs root: namespaces")
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed (Debian: {_DEBIAN[tool]})")
    with tempfile.TemporaryDirectory(prefix="pate-", dir="/tmp", ignore_cleanup_errors=True) as name:
        Path(name).chmod(0o755)
        yield Path(name)


def pids_of(session: int) -> list[int]:
    """Processes of that session that have not ended."""
    return [pid for pid, _ in _processes(session)]


def groups_of(session: int) -> set[int]:
    """Their process groups."""
    return {group for _, group in _processes(session)}


def _processes(session: int) -> list[tuple[int, int]]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _, group, sid = (path / "stat").read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(sid) == session and state != "Z":
            found.append((int(path.name), int(group)))
    return found
