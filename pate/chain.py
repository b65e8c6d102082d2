"""The HMAC chain over a ledger's rows, and the check that nobody changed them.

Every link holds a code over the one before it and over all that its row says, under a key kept elsewhere; the last
link is also kept in a second file, the head.
"""

from __future__ import annotations

import hmac
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pate.errors import RunError

FIRST_LINK = b"pate ledger"
_CHARGE_COLUMNS = 7  # of the first schema


@dataclass(frozen=True)
class Link:
    """A row, all that it says, and the code that vouches for it and for everything before it."""

    link: int
    kind: str
    number: int
    content: list[Any]
    mac: bytes


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """SQLite's errors as one line that names the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise RunError(f"{path}: {error}; nothing was released") from error


def row_content(db: sqlite3.Connection, kind: str, number: int) -> list[Any]:
    """All that a link vouches for: the row and, for a charge, its answers."""
    row = db.execute(f"SELECT * FROM {kind} WHERE rowid = ?", (number,)).fetchone()
    if kind != "charges":
        return list(row or ())
    if row and row[_CHARGE_COLUMNS:] == (1,):  # a first ensemble is as if the column were not there, as it once was
        row = row[:_CHARGE_COLUMNS]
    answers = db.execute("SELECT run, query, label FROM answers WHERE charge = ? ORDER BY run, query", (number,))
    return [*(row or ()), *([run, bytes(query).hex(), label] for run, query, label in answers)]


def link_mac(key: bytes, before: bytes, link: int, kind: str, content: list[Any]) -> bytes:
    message = before + json.dumps([link, kind, content]).encode()
    return hmac.digest(key, message, "sha256")


def read_head(path: Path) -> tuple[int, bytes] | None:
    """The link the second file vouches for; None before the first."""
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text())
        return int(content["link"]), bytes.fromhex(content["mac"])
    except (ValueError, KeyError, TypeError):
        raise RunError(f"{path}: is damaged; the ledger cannot be vouched for") from None


def verify(path: Path, key: bytes, head: Path) -> int:
    """Check every link, that every row has one, and that the chain reaches its head; returns the number of links."""
    if not path.exists():
        raise RunError(f"{path}: there is no ledger")
    reached = read_head(head)  # first: a writer at work may move it on meanwhile, never back
    with named_errors(path):
        db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30, isolation_level=None)
        db.execute("BEGIN")  # one snapshot for all that follows
        before, macs, seen = FIRST_LINK, {}, set()
        for expected, (link, kind, number, mac) in enumerate(db.execute("SELECT * FROM chain ORDER BY link"), start=1):
            if link != expected:
                raise RunError(f"{path}: link {expected} of the chain is missing")
            if kind not in ("budget", "runs", "charges", "sanitised", "owners"):
                raise RunError(f"{path}: link {link} is of an unknown kind")
            if not hmac.compare_digest(link_mac(key, before, link, kind, row_content(db, kind, number)), bytes(mac)):
                raise RunError(f"{path}: {kind} row {number} (link {link}) was changed, removed or moved")
            before = macs[link] = bytes(mac)
            seen.add((kind, number))
        rows = {("budget", n) for (n,) in db.execute("SELECT rowid FROM budget")}
        rows |= {("runs", n) for (n,) in db.execute("SELECT run FROM runs")}
        rows |= {("charges", n) for (n,) in db.execute("SELECT charge FROM charges")}
        rows |= {("sanitised", n) for (n,) in db.execute("SELECT run FROM sanitised")}
        if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'owners'").fetchone():  # not before schema 3
            rows |= {("owners", n) for (n,) in db.execute("SELECT owner FROM owners")}
        orphans = db.execute(
            "SELECT COUNT(*) FROM answers WHERE charge NOT IN (SELECT charge FROM charges)"
        ).fetchone()[0]
        db.close()
    if rows != seen or orphans:
        raise RunError(f"{path}: holds rows that were never charged through the ledger")
    if reached is None or macs.get(reached[0]) != reached[1]:
        raise RunError(f"{path}: does not reach its head; rows at the end were removed, or it is an older copy")
    return len(macs)
