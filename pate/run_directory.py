"""Where a run lives. What may leave is at the top; everything private is under `private/`, for its owner only."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from pate.config import RunConfig, parse_config, read_yaml
from pate.errors import RunError
from pate.files import locked, write_atomically

KEY_BYTES = 32
_FIRST_FILES = {"private", "config.yaml.partial"}  # all there is if a run was killed while it made its directory


class RunDirectory:
    """`config.yaml`, `report.json`, `report.html`, `labels.npz`, `student/`, `ledger.db` and `private/`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.private = path / "private"
        self.ledger = path / "ledger.db"
        self.labels = path / "labels.npz"
        self.student = path / "student"

    @property
    def key(self) -> bytes:
        """Drawn once a run; keys the partition and the digests of queries."""
        return (self.private / "key").read_bytes()

    @classmethod
    @contextmanager
    def open(cls, path: Path, config: RunConfig, resume: bool) -> Iterator[RunDirectory]:
        """Make the directory, or go on with one that belongs to the same config; locked while in use."""
        run = cls(path)
        try:
            run._prepare(config, resume)
        except OSError as error:
            raise RunError(f"{error.filename or path}: {error.strerror}; choose another --out") from None
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(run.private / "lock", wait=False))
            except BlockingIOError:
                raise RunError(f"{path}: another pate is at work there; wait for it or choose another --out") from None
            yield run

    def note(self, name: str, content: Any) -> None:
        """Write a JSON file under `private/`."""
        write_atomically(self.private / name, lambda path: path.write_text(json.dumps(content, indent=2) + "\n"))

    def replace(self, name: str, value: str) -> None:
        """Remember another `value` from now on."""
        write_atomically(self.private / name, lambda path: path.write_text(value))

    def same_as_before(self, name: str, value: str) -> bool:
        """Remember `value` under `private/`; False if another value was remembered earlier."""
        path = self.private / name
        if path.exists():
            return path.read_text() == value
        write_atomically(path, lambda p: p.write_text(value))
        return True

    def _prepare(self, config: RunConfig, resume: bool) -> None:
        stored = self.path / "config.yaml"
        begun = self.path.exists() and any(self.path.iterdir())
        if begun and not resume:
            raise RunError(f"{self.path}: is not empty; add --resume to go on with that run, or choose another --out")
        if begun and not stored.exists() and not {p.name for p in self.path.iterdir()} <= _FIRST_FILES:
            raise RunError(f"{self.path}: is not a run directory; choose another --out")
        if resume and not begun:
            raise RunError(f"{self.path}: there is no run to resume")
        if stored.exists():
            _must_match(config, parse_config(read_yaml(stored), type(config)), self.path)
        self.private.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.private.stat().st_mode & 0o077:
            raise RunError(f"{self.private}: others can read it; run: chmod -R go= {self.private}")
        if not (self.private / "key").exists():
            write_atomically(self.private / "key", lambda path: path.write_bytes(secrets.token_bytes(KEY_BYTES)))
        if not stored.exists():
            write_atomically(stored, lambda path: path.write_text(config.to_yaml()), mode=0o644)


def _must_match(config: RunConfig, stored: RunConfig, path: Path) -> None:
    if config.digest() == stored.digest():
        return
    ours, theirs = config.model_dump(mode="json"), stored.model_dump(mode="json")
    key = next(key for key in ours if key != "ray" and ours[key] != theirs[key])
    raise RunError(
        f"{path}: belongs to another config ({key} is {theirs[key]!r} there, {ours[key]!r} here); "
        "choose another --out, or the config it was made with"
    )
