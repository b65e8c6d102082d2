"""A copy of a ledger's links outside the run directory: it shows if the whole directory was rolled back or copied.

Every link is appended before what it holds is released. An anchor is a file (`FILE`, for any number of ledgers; make it
append-only with `chattr +a` where that is possible) or storage (`URL`: one object for each link, created exclusively).
Of two copies of a run that both go on, one writes link n first; the other finds another code there and stops.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

from pate.errors import RunError
from pate.ledger._chain import Pin, json_pin, parse_pin
from pate.storage import is_url, open_storage

LinksFrom = Callable[[int], list[Pin]]
"""The links of a ledger from that number on."""


def open_anchor(place: str, ledger: str) -> FileAnchor | ObjectAnchor:
    """The anchor at a path or URL, of the ledger of that identity; every failure is a `RunError` of one line."""
    return ObjectAnchor(place, ledger) if is_url(place) else FileAnchor(Path(place), ledger)


def absolute(place: str) -> str:
    """The place as any working directory would name it."""
    return place if is_url(place) else str(Path(place).expanduser().resolve())


def conflict(place: str, link: int) -> RunError:
    """The error for a ledger whose link of that number is not the one that its anchor holds."""
    return RunError(
        f"{place}: the anchor holds another link {link} of this ledger: the run was rolled back, or another copy of "
        "it went on; nothing was released"
    )


class FileAnchor:
    """Lines of JSON, appended under a lock. Only the last link of this ledger matters, and it is under the lock too."""

    def __init__(self, path: Path, ledger: str) -> None:
        self._path, self._ledger = path, ledger
        self._last: Pin | None = None
        self._read = 0

    def last(self) -> Pin | None:
        """The last link of the ledger that is kept here."""
        if not self._path.exists():
            return None
        descriptor = self._open(os.O_RDONLY, fcntl.LOCK_SH)
        try:
            self._read_on(descriptor)
        finally:
            os.close(descriptor)
        return self._last

    def extend(self, links_from: LinksFrom) -> None:
        """Append all links that are not here yet, durably; RunError if those that are here belong to another chain."""
        descriptor = self._open(os.O_RDWR | os.O_APPEND | os.O_CREAT, fcntl.LOCK_EX)
        try:
            torn = self._read_on(descriptor)
            new = _links_after(self._last, links_from, str(self._path))
            lines = [json.dumps({"ledger": self._ledger} | json.loads(json_pin(pin))) + "\n" for pin in new]
            content = ("\n" * bool(torn and new) + "".join(lines)).encode()
            if os.write(descriptor, content) != len(content):
                raise RunError(f"{self._path}: the anchor is full; nothing was released")
            os.fsync(descriptor)
        except OSError as error:
            raise RunError(f"{self._path}: the anchor cannot be written ({error.strerror})") from None
        finally:
            os.close(descriptor)

    def _open(self, flags: int, lock: int) -> int:
        try:
            descriptor = os.open(self._path, flags, 0o600)
        except OSError as error:
            raise RunError(f"{self._path}: the anchor cannot be opened ({error.strerror})") from None
        fcntl.flock(descriptor, lock)
        return descriptor

    def _read_on(self, descriptor: int) -> bool:
        """Read the lines that were added since; True if the file ends within a line, as a crash may leave it."""
        with open(os.dup(descriptor), "rb") as file:
            if file.seek(0, os.SEEK_END) < self._read:
                raise RunError(f"{self._path}: the anchor is shorter than it was; nothing was released")
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):
                    return True
                self._take(line)
                self._read += len(line)
        return False

    def _take(self, line: bytes) -> None:
        if not line.endswith(b"}\n"):  # torn by a crash: what it was for was not released
            return
        try:
            ledger = json.loads(line)["ledger"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RunError(f"{self._path}: the anchor is damaged") from None
        if ledger != self._ledger:
            return
        pin = parse_pin(line)
        if pin is None:
            raise RunError(f"{self._path}: the anchor is damaged")
        self._last = pin


class ObjectAnchor:
    """The object `LEDGER/n` holds the code of link n: whoever creates it decides which chain it is."""

    def __init__(self, url: str, ledger: str) -> None:
        self._storage, self._ledger = open_storage(url), ledger
        self._last: Pin | None = None

    def last(self) -> Pin | None:
        """The last link of the ledger that is kept here."""
        names = self._storage.names(self._ledger)
        if not names:
            return None
        content = self._storage.read(names[-1])
        pin = parse_pin(content or b"")
        if pin is None or self._name(pin.link) != names[-1]:
            raise RunError(f"{self._storage.url}: the anchor is damaged at {names[-1]}")
        return pin

    def extend(self, links_from: LinksFrom) -> None:
        """Create an object for each link that has none; RunError if those that are here belong to another chain."""
        self._last = self._last or self.last()
        for pin in _links_after(self._last, links_from, self._storage.url):
            if not self._storage.create(self._name(pin.link), json_pin(pin).encode()):
                raise conflict(self._storage.url, pin.link)
            if self._last is None and self._storage.create(self._name(pin.link), b"another"):
                raise RunError(f"{self._storage.url}: the store overwrites what is there, so it is no anchor")
            self._last = pin

    def _name(self, link: int) -> str:
        return f"{self._ledger}/{link:09d}"


def _links_after(last: Pin | None, links_from: LinksFrom, place: str) -> list[Pin]:
    """A ledger's links after the last that the anchor holds; RunError if the ledger does not hold that one."""
    if last is None:
        return links_from(1)
    links = links_from(last.link)
    if not links or links[0] != last:
        raise conflict(place, last.link)
    return links[1:]
