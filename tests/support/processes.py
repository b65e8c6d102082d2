"""Processes, looked at from outside."""

from __future__ import annotations

from pathlib import Path


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
