"""A ledger whose links are kept in storage as well, so that a run can go on elsewhere without losing a charge.

Link number n of the ledger's chain is the object `private/ledger/n`, created exclusively, before the local commit and
so before any label of it is released. From that one rule follows:

* **One history.** An object is created once and never changed, so for every n the world agrees on link n. Its code
  (HMAC under the run's key) vouches for all links before it: whoever could add link n knew links 1 … n − 1.
* **No charge lost, no label without one.** A label is released only after its link is stored. A successor reads all
  links first, so it sees that charge and that label, and gives the same answer to the same query.
* **No second answer.** To answer a query anew one has to add link n while knowing none with that query among
  1 … n − 1, and no other link n can be there. So a query occurs once in the history, and only what is in the history
  is released.
* **Fencing.** A successor reads the history and adds a link that names it as the owner. The old aggregator, if it
  still lives, tries the same number next, finds it taken, and stops for good; it released nothing of that batch. If
  it was quicker, the successor's link is the one refused: it reads what was added and tries again.
* **Doubt.** A store that fails, or whose answer is lost, may or may not have kept the link. Nothing is released and
  this ledger stops; whoever opens it next reads what is there. A charge may be wasted so, never lost.

The local file is a working copy: it holds a beginning of the history, or all of it. Clocks, leases and listings play no
part in the argument: a listing that lags behind makes an opening try again, or fail.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pate.errors import RunError
from pate.ledger._chain import FIRST_LINK, Link, connect, link_mac, named_errors, prepare_tables, row_content
from pate.ledger.ledger import Ledger, now
from pate.storage import Storage, open_storage

FOLDER = "private/ledger"
_ATTEMPTS = 30
_INSERT = {
    "budget": "INSERT INTO budget VALUES (?, ?, ?)",
    "runs": "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    "charges": "INSERT INTO charges VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
    "sanitised": "INSERT INTO sanitised VALUES (?, ?, ?)",
    "owners": "INSERT INTO owners VALUES (?, ?, ?)",
}


class Fenced(RunError):
    """Another aggregator owns the run now."""


class StoredLedger(Ledger):
    """A ledger that stores every link at a URL before it counts."""

    _keeps_head = False  # on another machine there is none yet: what counts is in storage

    def __init__(self, storage: Storage | str, *arguments: Any, **options: Any) -> None:
        """Read the history, take the run over and enter it; the rest is as for `Ledger`."""
        self._storage = open_storage(storage) if isinstance(storage, str) else storage
        self._owner = f"{socket.gethostname()}-{secrets.token_hex(8)}"
        self._sent, self._stopped = False, False
        for _ in range(_ATTEMPTS):
            try:
                super().__init__(*arguments, **options)
                return
            except Fenced:  # somebody else was quicker; what was added is to be read first
                self._sent = self._stopped = False
        raise Fenced(
            f"{self._storage.url}: another aggregator keeps adding to the ledger; stop it, then resume the run"
        )

    def _take_over(self) -> None:
        number = self._db.execute("INSERT INTO owners (name, at) VALUES (?, ?)", (self._owner, now())).lastrowid
        self._link("owners", int(number or 0))

    def _acknowledge(self, link: Link) -> None:
        record = {"link": link.link, "kind": link.kind, "number": link.number, "content": link.content}
        record |= {"mac": link.mac.hex(), "by": self._owner}
        self._sent = True
        if not self._storage.create(_name(link.link), json.dumps(record).encode()):
            raise Fenced(f"{self._storage.url}: another aggregator has taken this run over, so this one stops")

    def _catch_up(self) -> None:
        """Copy links from storage, each checked; refused where they do not continue what is here."""
        last, mac = self._db.execute("SELECT link, mac FROM chain ORDER BY link DESC LIMIT 1").fetchone() or (0, b"")
        names = self._storage.names(FOLDER)
        if names != [_name(n) for n in range(1, len(names) + 1)]:
            gap = next(n for n in range(1, len(names) + 1) if _name(n) not in names)
            raise RunError(f"{self._storage.url}: link {gap} of the ledger is missing; nothing can be charged")
        before = FIRST_LINK
        for number, (_, content) in enumerate(self._storage.read_all(names[max(0, last - 1) :]), start=max(1, last)):
            link = self._parsed(number, content)
            if number == last and not hmac.compare_digest(link.mac, mac):
                raise RunError(f"{self.path}: is not the ledger that is stored at {self._storage.url}")
            if number > last:
                self._copy(link, before)
            before = link.mac
        if len(names) < last:
            raise RunError(f"{self._storage.url}: links at the end of the ledger are gone; nothing can be charged")

    def _parsed(self, number: int, content: bytes) -> Link:
        try:
            record = json.loads(content)
            link = Link(number, record["kind"], record["number"], record["content"], bytes.fromhex(record["mac"]))
            known = link.kind in _INSERT and record["link"] == number and isinstance(link.number, int)
        except (ValueError, KeyError, TypeError, RecursionError):
            known = False
        if not known:
            raise self._changed(number)
        return link

    def _copy(self, link: Link, before: bytes) -> None:
        try:
            row = [value for value in link.content if not isinstance(value, list)]
            self._db.execute(_INSERT[link.kind], row)
            answers = [value for value in link.content if isinstance(value, list)]
            for run, query, label in answers:
                self._db.execute(
                    "INSERT INTO answers VALUES (?, ?, ?, ?)", (run, bytes.fromhex(query), label, link.number)
                )
            content = row_content(self._db, link.kind, link.number)
        except Exception:
            raise self._changed(link.link) from None
        if not hmac.compare_digest(link_mac(self._key, before, link.link, link.kind, content), link.mac):
            raise self._changed(link.link)
        self._db.execute("INSERT INTO chain VALUES (?, ?, ?, ?)", (link.link, link.kind, link.number, link.mac))

    def _changed(self, number: int) -> RunError:
        return RunError(f"{self._storage.url}: link {number} of the ledger was changed; nothing can be charged")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Once it is in doubt what storage holds, or certain that another owns it, nothing more is charged here."""
        if self._stopped:
            raise RunError(f"{self._storage.url}: this aggregator has stopped; resume the run")
        self._sent = False
        try:
            with super()._transaction():
                yield
        except BaseException:
            self._stopped = self._sent
            raise


class History(StoredLedger):
    """A local copy of what is in storage, to look at: nothing is taken over or charged.

    Its head is that of the copy, and vouches for nothing in storage: what was published and an anchor do.
    """

    def __init__(self, storage: Storage, path: Path, key: bytes, head: Path) -> None:
        self.path, self._key, self._head, self._storage, self._anchor = path, key, head, storage, None
        self._sent = self._stopped = False
        self._db = connect(path)
        with named_errors(self.path), self._transaction():
            prepare_tables(self._db, path)
            self._catch_up()
        if not self._rows("SELECT 1 FROM chain"):
            raise RunError(f"{storage.url}: there is no ledger yet")
        self._write_head()
        self.close()


def _name(number: int) -> str:
    return f"{FOLDER}/{number:09d}"
