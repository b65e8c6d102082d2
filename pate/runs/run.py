"""Where a run lives. What may leave is at the top; everything private is under `private/`, for its owner only.

A run named by URL lives in storage (`pate.storage`). It is worked on in a local copy, which is made anew from storage
whenever the run is opened and removed when it is closed: what counts is in storage.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from pate.config import RunConfig, parse_config, read_yaml
from pate.errors import RunError
from pate.ledger.anchor import absolute
from pate.storage import Storage, check_exclusive, is_url, open_storage, pull
from pate.storage.files import KEY_BYTES, locked, read_key, write_atomically

_LEDGER = "private/ledger"  # in storage: one object a link, see pate/ledger/stored.py
_STAYS = ("ledger.db", "private/ledger.head", "private/lock", "private/student_checkpoint")  # on this machine
_SIGNALS = ("student/student.json", "report.json")  # that they are there says that all before is
_AT_ONCE = 64
_FIRST_FILES = {"private", "config.yaml.partial"}  # all there is if a run was killed while it made its directory


class RunDirectory:
    """`config.yaml`, `report.json`, `report.html`, `labels.npz`, `student/`, `ledger.db` and `private/`."""

    def __init__(self, path: Path, storage: Storage | None = None) -> None:
        self.path = path
        self.storage = storage
        self.place = storage.url if storage else str(path)
        self._published: dict[str, tuple[int, int]] = {}
        self._published_at = time.monotonic()
        self.private = path / "private"
        self.ledger = path / "ledger.db"
        self.labels = path / "labels.npz"
        self.student = path / "student"

    @property
    def key(self) -> bytes:
        """Drawn once a run; keys the partition and the digests of queries."""
        return read_key(self.private / "key")

    @classmethod
    @contextmanager
    def open(cls, place: Path | str, config: RunConfig, resume: bool) -> Iterator[RunDirectory]:
        """Make the directory, or go on with one that belongs to the same config; locked while in use."""
        if is_url(place):
            with cls._open_stored(open_storage(str(place)), config, resume) as run:
                yield run
            return
        path = Path(place)
        run = cls(path)
        with ExitStack() as stack:
            try:
                run._check_place(config, resume)
                run._make_private()
                stack.enter_context(locked(run.private / "lock", wait=False))
                run._prepare(config, resume)
            except BlockingIOError:
                raise RunError(f"{path}: another pate is at work there; wait for it or choose another --out") from None
            except OSError as error:
                raise RunError(f"{error.filename or path}: {error.strerror}; choose another --out") from None
            yield run

    @classmethod
    @contextmanager
    def _open_stored(cls, storage: Storage, config: RunConfig, resume: bool) -> Iterator[RunDirectory]:
        """A local copy of what is in storage. Only the ledger keeps two machines apart: see `StoredLedger`."""
        folder = _working_copies() / blake2b(storage.url.encode(), digest_size=12).hexdigest()
        folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(folder.with_suffix(".lock"), wait=False))
            except BlockingIOError:
                raise RunError(f"{storage.url}: another pate on this machine is at work there; wait for it") from None
            shutil.rmtree(folder, ignore_errors=True)
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            pull(storage, folder, leave=_LEDGER)
            run = cls(folder, storage)
            run._check_place(config, resume)
            run._make_private()
            run._prepare(config, resume)
            check_exclusive(storage)
            for name in ("private/key", "config.yaml"):
                if not storage.create(name, (folder / name).read_bytes()):
                    raise RunError(f"{storage.url}: another run was begun there this moment; choose another --out")
            run._published = run._state()
            yield run

    def publish(self, at_least_every: float = 0.0) -> None:
        """Bring to storage what has changed here, unless that was done less than so many seconds ago."""
        if self.storage is None or time.monotonic() - self._published_at < at_least_every:
            return
        state = self._state()
        changed = [name for name in state if state[name] != self._published.get(name)]
        signals = [name for name in changed if name in _SIGNALS]
        others = [name for name in changed if name not in _SIGNALS]
        for names in (*(others[i : i + _AT_ONCE] for i in range(0, len(others), _AT_ONCE)), signals):
            if names:
                self.storage.write({name: (self.path / name).read_bytes() for name in names})
        self._published, self._published_at = state, time.monotonic()

    def _state(self) -> dict[str, tuple[int, int]]:
        """Every file that belongs in storage, and what tells whether it has changed."""
        result = {}
        for path in self.path.rglob("*"):
            name = path.relative_to(self.path).as_posix()
            if path.is_file() and not name.endswith(".partial") and not name.startswith(_STAYS):
                about = path.stat()
                result[name] = about.st_mtime_ns, about.st_size
        return result

    def anchored(self, place: str | None) -> str | None:
        """Where the ledger's links are kept besides: as the run was begun, which cannot be changed."""
        path = self.private / "anchor"
        if place is None:
            return path.read_text() if path.exists() else None
        if not self.same_as_before(path.name, absolute(place)):
            raise RunError(f"--anchor {place}: this run was begun with the anchor {path.read_text()}; name that one")
        return absolute(place)

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

    def _check_place(self, config: RunConfig, resume: bool) -> None:
        """Before anything is written: there is nothing yet, or a run of this config that is to go on."""
        stored = self.path / "config.yaml"
        begun = self.path.exists() and any(self.path.iterdir())
        if begun and not resume:
            raise self._not_empty()
        if begun and not stored.exists() and not {p.name for p in self.path.iterdir()} <= _FIRST_FILES:
            raise RunError(f"{self.place}: is not a run directory; choose another --out")
        if resume and not begun:
            raise RunError(f"{self.place}: there is no run to resume")
        if stored.exists():
            _must_match(config, parse_config(read_yaml(stored), type(config)), self.place)

    def _make_private(self) -> None:
        self.private.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.private.stat().st_mode & 0o077:
            raise RunError(f"{self.private}: others can read it; run: chmod -R go= {self.private}")

    def _prepare(self, config: RunConfig, resume: bool) -> None:
        """Under the lock, so that of several runs begun here at once one draws the key."""
        stored, key = self.path / "config.yaml", self.private / "key"
        if stored.exists():
            if not resume:
                raise self._not_empty()
            read_key(key)
            return
        if not key.exists():
            write_atomically(key, lambda path: path.write_bytes(secrets.token_bytes(KEY_BYTES)))
        write_atomically(stored, lambda path: path.write_text(config.to_yaml()), mode=0o644)

    def _not_empty(self) -> RunError:
        return RunError(f"{self.place}: is not empty; add --resume to go on with that run, or choose another --out")


def _must_match(config: RunConfig, stored: RunConfig, place: str) -> None:
    if config.digest() == stored.digest():
        return
    ours, theirs = config.model_dump(mode="json"), stored.model_dump(mode="json")
    key = next(key for key in ours if key != "ray" and ours[key] != theirs[key])
    unlike = f"{key} is {theirs[key]!r} there, {ours[key]!r} here"
    if key == "data":  # file names of another run have no place in a log
        names = sorted({*ours[key], *theirs[key]})
        unlike = f"other {', '.join(f'data.{n}' for n in names if ours[key].get(n) != theirs[key].get(n))}"
    raise RunError(
        f"{place}: belongs to another config ({unlike}); choose another --out, or the config it was made with"
    )


def _working_copies() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return cache / "pate" / "work"
