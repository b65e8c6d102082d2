"""Processes, looked at from outside."""

from __future__ import annotations

from pathlib import Path


def pids_of(session: int) -> list[int]:
    """Processes of that session that have not ended."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state, _, _, sid = (path / "stat").read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(sid) == session and state != "Z":
            found.append(int(path.name))
    return found
