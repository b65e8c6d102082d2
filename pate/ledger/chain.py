"""The HMAC chain over a ledger's rows, and the check that nobody changed them.

Every link holds a code over the one before it and over all that its row says, under a key kept elsewhere. The last
link is also kept outside the file: in a second file, the head; in what was published, as a pin; and, where there is
one, in an anchor. A chain that does not go through all of them is an older or another one, and is not used.
"""

from __future__ import annotations

import hmac
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pate.errors import RunError
from pate.ledger import schema

FIRST_LINK = b"pate ledger"
MAC_BYTES = 32
KINDS = ("budget", "runs", "charges", "sanitised", "owners")
_RELEASES = {"charges", "sanitised"}
_LONGEST_HEAD = 4096


@dataclass(frozen=True)
class Link:
    """A row with all its content, and the code (HMAC) that vouches for it and for everything before it."""

    link: int
    kind: str
    number: int
    content: list[Any]
    mac: bytes


class Pin(NamedTuple):
    """A link's number and its code, kept outside the ledger: the chain must go through it."""

    link: int
    mac: bytes


@dataclass(frozen=True)
class Chain:
    """All links of a ledger, checked."""

    path: Path
    macs: tuple[bytes, ...]
    released: bool

    def __len__(self) -> int:
        return len(self.macs)

    def goes_through(self, pin: Pin) -> bool:
        """Whether the chain has that link, with that code."""
        return 0 < pin.link <= len(self.macs) and hmac.compare_digest(self.macs[pin.link - 1], pin.mac)

    def must_reach(self, head: Pin | None, file: Path) -> None:
        """Raise RunError unless the chain goes through `head`, read from `file`: all that was released is before it."""
        if head is None and self.released:
            raise RunError(f"{file}: is missing, so nothing vouches that {self.path} is not an older copy")
        if head is not None and not self.goes_through(head):
            raise RunError(
                f"{self.path}: does not reach its head, so it is not the ledger last written here; rows at the end "
                "were removed, or it is an older copy"
            )

    def must_hold(self, pins: Mapping[str, Pin]) -> None:
        """Raise RunError unless the chain goes through the links that published files name (`pins`, by file)."""
        for name, pin in pins.items():
            if not self.goes_through(pin):
                raise RunError(
                    f"{self.path}: is not the ledger that {name} was released from (an older or another copy); going "
                    "on would answer its queries again"
                )


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """Turn errors of SQLite and the operating system into one line that names the file."""
    try:
        yield
    except UnicodeError as error:  # what is stored, or SQLite's own words about it
        raise RunError(f"{path}: is damaged (text that cannot be read); nothing was released") from error
    except (sqlite3.Error, sqlite3.Warning, MemoryError) as error:
        words = " ".join(str(error).split())[:200] or "too large"
        raise RunError(f"{path}: {words}; nothing was released") from error
    except OSError as error:
        raise RunError(f"{path}: {error.strerror or error}; nothing was released") from error


def row_content(db: sqlite3.Connection, kind: str, number: int) -> list[Any]:
    """All that a link vouches for: the row and, for a charge, its answers."""
    row = db.execute(f"SELECT * FROM {kind} WHERE rowid = ?", (number,)).fetchone()
    if kind != "charges":
        return list(row or ())
    answers = db.execute("SELECT run, query, label FROM answers WHERE charge = ? ORDER BY run, query", (number,))
    return [*(row or ()), *([run, query.hex(), label] for run, query, label in answers)]


def link_mac(key: bytes, before: bytes, link: int, kind: str, content: list[Any]) -> bytes:
    """The code of a link: an HMAC over the code before it, its number, its kind and its content."""
    message = before + json.dumps([link, kind, content]).encode()
    return hmac.digest(key, message, "sha256")


def _vouches(mac: object, key: bytes, before: bytes, link: int, kind: str, content: list[Any]) -> bool:
    try:
        return isinstance(mac, bytes) and hmac.compare_digest(link_mac(key, before, link, kind, content), mac)
    except TypeError:  # bytes where there were none
        return False


def identity(key: bytes) -> str:
    """The public name of the ledger of a key: only who has the key can make a ledger of that name."""
    return f"ledger-{hmac.digest(key, b'pate ledger identity', 'sha256')[:12].hex()}"


def read_chain(db: sqlite3.Connection, key: bytes, path: Path) -> Chain:
    """Check the whole file, inside a transaction: its schema, every link, and that every row has one."""
    schema.check(db, path)
    contents = {(kind, number): content for kind in KINDS for number, content in _contents(db, kind, path)}
    macs: list[bytes] = []
    before, released = FIRST_LINK, False
    for expected, (link, kind, number, mac) in enumerate(db.execute("SELECT * FROM chain ORDER BY link"), start=1):
        if link != expected:
            raise RunError(f"{path}: link {expected} of the chain is missing")
        if kind not in KINDS or not _vouches(mac, key, before, link, kind, contents.pop((kind, number), [])):
            raise RunError(f"{path}: link {link} of the chain, or what it vouches for, was changed, removed or moved")
        macs.append(mac)
        before, released = mac, released or kind in _RELEASES
    if contents:
        raise RunError(f"{path}: holds rows that were never charged through the ledger")
    return Chain(path, tuple(macs), released)


def _contents(db: sqlite3.Connection, kind: str, path: Path) -> Iterator[tuple[int, list[Any]]]:
    """Number and content of every row of a kind, as `row_content` gives them, by one query."""
    answers: dict[int, list[Any]] = {}
    if kind == "charges":
        for run, query, label, charge in db.execute("SELECT * FROM answers ORDER BY run, query"):
            if not isinstance(query, bytes):
                raise RunError(f"{path}: holds an answer that was changed")
            answers.setdefault(charge, []).append([run, query.hex(), label])
    for number, *row in db.execute(f"SELECT rowid, * FROM {kind}"):
        yield number, row + answers.pop(number, [])
    if answers:
        raise RunError(f"{path}: holds answers that were never charged through the ledger")


def read_head(path: Path) -> Pin | None:
    """The link that the head file holds; None if there is no such file yet."""
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST_HEAD)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunError(f"{path}: {error.strerror}; the ledger cannot be vouched for") from None
    pin = parse_pin(content)
    if pin is None:
        raise RunError(f"{path}: is damaged; the ledger cannot be vouched for")
    return pin


def parse_pin(text: str | bytes) -> Pin | None:
    """A pin as `json_pin` writes it, None if it is anything else."""
    try:
        content = json.loads(text)
        pin = Pin(content["link"], bytes.fromhex(content["mac"]))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return pin if type(pin.link) is int and pin.link > 0 and len(pin.mac) == MAC_BYTES else None


def json_pin(pin: Pin) -> str:
    """A pin as text."""
    return json.dumps({"link": pin.link, "mac": pin.mac.hex()})


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A snapshot of a ledger for reading, also where nothing can be written beside it."""
    if not path.is_file():
        raise RunError(f"{path}: there is no ledger")
    with named_errors(path), TemporaryDirectory(prefix="pate-ledger-") as folder:  # mode 0700
        if not os.access(path.parent, os.W_OK):  # SQLite needs files of its own there
            path = _copied(path, Path(folder))
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30, isolation_level=None)
        try:
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, schema.LONGEST_VALUE)
            db.execute("BEGIN")
            yield db
        finally:
            db.close()


def _copied(path: Path, folder: Path) -> Path:
    for suffix in ("", "-wal"):
        beside = path.with_name(path.name + suffix)
        if beside.exists():
            shutil.copyfile(beside, folder / beside.name)
    return folder / path.name


def verify(path: Path, key: bytes, head: Path, pins: Mapping[str, Pin] | None = None) -> int:
    """Check the whole file, that it reaches its head and holds what was published; returns the number of links."""
    with verified(path, key, head, pins) as (_, chain):
        return len(chain)


@contextmanager
def verified(
    path: Path, key: bytes, head: Path, pins: Mapping[str, Pin] | None = None
) -> Iterator[tuple[sqlite3.Connection, Chain]]:
    """A snapshot of a ledger in which every row was checked, and its chain."""
    reached = read_head(head)  # first: a writer at work may move it on meanwhile, never back
    with reading(path) as db:
        chain = read_chain(db, key, path)
        chain.must_reach(reached, head)
        chain.must_hold(pins or {})
        yield db, chain
