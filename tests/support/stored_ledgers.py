"""Ledgers in storage, and machines whose operations on it interleave as a test chooses."""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from pate.ledger import Charge, Limits
from pate.ledger._stored import StoredLedger
from pate.storage import Storage, open_storage

KEY = b"q" * 32
LIMITS = Limits(40, 40, "m")
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # where nothing waits for a disk
_STORES = tempfile.TemporaryDirectory(dir=MEMORY)


def memory() -> Storage:
    return open_storage(f"file://{_STORES.name}/{secrets.token_hex(6)}")


def machine(storage: Storage | str, folder: Path, limits: Limits = LIMITS) -> StoredLedger:
    """An aggregator's ledger on a machine of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    return StoredLedger(storage, folder / "ledger.db", KEY, folder / "ledger.head", "run", limits)


def pay(ledger: StoredLedger, label: int, *queries: int) -> dict[int, int]:
    """Labels as an aggregator would release them: stored ones as they are, the others drawn and charged."""
    ids = {query: b"%016d" % query for query in queries}
    stored = ledger.stored(list(ids.values()))
    new = [i for i in ids.values() if i not in stored]
    if new:
        with ledger.batch(len(new)):
            ledger.charge_and_store(new, [label] * len(new), Charge(len(new), len(new)))
    stored = ledger.stored(list(ids.values()))
    return {query: stored[i] for query, i in ids.items()}


class Crashed(BaseException):
    """This machine is no more."""


class Turns:
    """Lets one thread at a time go on to its next operation on storage: the one chosen among those that wait."""

    def __init__(self, choose: Callable[[int], int], n: int) -> None:
        self._choice = choose
        self._changed = threading.Condition()
        self._waiting: set[int] = set()
        self._running = n
        self._next: int | None = None

    def wait(self, me: int) -> None:
        with self._changed:
            self._running -= 1
            self._waiting.add(me)
            self._choose()
            self._changed.wait_for(lambda: self._next == me, timeout=60)
            self._waiting.discard(me)
            self._next, self._running = None, self._running + 1

    def leave(self) -> None:
        with self._changed:
            self._running -= 1
            self._choose()

    def _choose(self) -> None:
        if self._running == 0 and self._waiting and self._next is None:
            self._next = sorted(self._waiting)[self._choice(len(self._waiting))]
            self._changed.notify_all()


class Interleaved:
    """A machine's view of a store: every operation takes a turn; the machine may crash before or after one."""

    def __init__(self, storage: Storage, turns: Turns, me: int, crash_at: int | None, after: bool) -> None:
        self.url, self._storage, self._turns, self._me = storage.url, storage, turns, me
        self._crash_at, self._after, self._count = crash_at, after, 0

    def _step(self, action: Callable[[], object]) -> object:
        self._turns.wait(self._me)
        self._count += 1
        crashes = self._count == self._crash_at
        if crashes and not self._after:
            raise Crashed
        result = action()
        if crashes:
            raise Crashed
        return result

    def create(self, name: str, content: bytes) -> bool:
        return bool(self._step(lambda: self._storage.create(name, content)))

    def names(self, folder: str = "") -> list[str]:
        return self._step(lambda: self._storage.names(folder))  # type: ignore[return-value]

    def read_all(self, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
        wanted = list(names)
        yield from self._step(lambda: list(self._storage.read_all(wanted)))  # type: ignore[misc]

    def read(self, name: str) -> bytes | None:
        raise AssertionError("not used")

    def write(self, contents: Mapping[str, bytes]) -> None:
        raise AssertionError("not used")

    def remove(self, name: str) -> None:
        raise AssertionError("not used")
