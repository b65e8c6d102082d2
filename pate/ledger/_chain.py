"""The tables of a ledger file and how it is opened, the HMAC chain over its rows, the check that nobody changed it, and
its anchor.

Every link holds a code over the one before it and over all that its row says, under a key kept elsewhere. The last
link is also kept outside the file: in a second file, the head; in what was published, as a pin; and, where there is
one, in an anchor. A chain that does not go through all of them is an older or another one, and is not used.

A trigger that somebody added could change a charge before the chain covers it. So a file whose schema differs in
anything is not used.

An anchor shows if the whole directory was rolled back or copied. Every link is appended there before what it holds is
released. It is a file (for any number of ledgers; make it append-only with `chattr +a` where that is possible) or
storage (one object for each link, created exclusively). Of two copies of a run that both go on, one writes link n
first; the other finds another code there and stops.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from pate.errors import RunError
from pate.storage import is_url, open_storage

_VERSION = 4
_SECONDS_TO_WAIT = 30  # for another run that holds the ledger
_LONGEST_VALUE = 1_000_000  # bytes: far more than any row needs, so that a damaged length cannot fill the memory

_TABLES = """
CREATE TABLE budget (rdp_order REAL, epsilon REAL, delta REAL);
CREATE TABLE runs (
    run INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, mechanism TEXT NOT NULL, max_queries INTEGER NOT NULL,
    max_answers INTEGER NOT NULL, rdp_asked REAL NOT NULL, rdp_answered REAL NOT NULL, at TEXT NOT NULL
);
CREATE TABLE charges (
    charge INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs (run), asked INTEGER NOT NULL,
    answered INTEGER NOT NULL, unstable INTEGER NOT NULL, rdp REAL NOT NULL, at TEXT NOT NULL, ensemble INTEGER NOT NULL
);
CREATE TABLE answers (
    run INTEGER NOT NULL REFERENCES runs (run), query BLOB NOT NULL, label INTEGER NOT NULL,
    charge INTEGER NOT NULL REFERENCES charges (charge), PRIMARY KEY (run, query)
) WITHOUT ROWID;
CREATE TABLE sanitised (run INTEGER PRIMARY KEY REFERENCES runs (run), content TEXT NOT NULL, at TEXT NOT NULL);
CREATE TABLE owners (owner INTEGER PRIMARY KEY, name TEXT NOT NULL, at TEXT NOT NULL);
CREATE INDEX answers_by_charge ON answers (charge);
CREATE TABLE chain (link INTEGER PRIMARY KEY, kind TEXT NOT NULL, number INTEGER NOT NULL, mac BLOB NOT NULL);
"""

_SAME_ROW = {
    "budget": "1",
    "runs": "run = NEW.run OR name = NEW.name",
    "charges": "charge = NEW.charge",
    "answers": "run = NEW.run AND query = NEW.query",
    "sanitised": "run = NEW.run",
    "owners": "owner = NEW.owner",
    "chain": "link = NEW.link",
}
"""For each table, which row a new one would replace: INSERT OR REPLACE fires no DELETE trigger."""


def prepare_tables(db: sqlite3.Connection, path: Path) -> None:
    """Inside a transaction: make the tables of an empty file; refuse a file that has any others."""
    if db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] or _version(db):
        _check_schema(db, path)
    else:
        _make(db)


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Raise RunError unless the file has exactly these tables, indices and triggers."""
    version = _version(db)
    if version != _VERSION:
        raise RunError(f"{path}: has schema {version}, this pate writes {_VERSION}; use the pate it was made with")
    if _schema(db) != _own_schema():
        raise RunError(f"{path}: has other tables or triggers than a ledger; it was changed, or is none")


def _make(db: sqlite3.Connection) -> None:
    for statement in filter(str.strip, _TABLES.split(";")):
        db.execute(statement)
    for table, same in _SAME_ROW.items():
        replaced = f"INSERT ON {table} WHEN EXISTS (SELECT 1 FROM {table} WHERE {same})"
        events = {"update": f"UPDATE ON {table}", "delete": f"DELETE ON {table}", "replace": replaced}
        for name, event in events.items():
            db.execute(
                f"CREATE TRIGGER {table}_no_{name} BEFORE {event} "
                "BEGIN SELECT RAISE(ABORT, 'the ledger is append only'); END"
            )
    db.execute(f"PRAGMA user_version = {_VERSION}")


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _schema(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()


@cache
def _own_schema() -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(":memory:")) as db:
        _make(db)
        return _schema(db)


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


def identity(key: bytes) -> str:
    """The public name of the ledger of a key: only who has the key can make a ledger of that name."""
    return f"ledger-{hmac.digest(key, b'pate ledger identity', 'sha256')[:12].hex()}"


def read_chain(db: sqlite3.Connection, key: bytes, path: Path) -> Chain:
    """Check the whole file, inside a transaction: its schema, every link, and that every row has one."""
    _check_schema(db, path)
    damage = db.execute("PRAGMA integrity_check(1)").fetchone()[0]  # also that an index finds every row
    if damage != "ok":
        raise RunError(f"{path}: is damaged ({' '.join(str(damage).split())[:100]})")
    contents = {(kind, number): content for kind in KINDS for number, content in _contents(db, kind, path)}
    macs: list[bytes] = []
    before, released = FIRST_LINK, False
    for expected, (link, kind, number, mac) in enumerate(db.execute("SELECT * FROM chain ORDER BY link"), start=1):
        if link != expected:
            raise RunError(f"{path}: link {expected} of the chain is missing")
        content = contents.pop((kind, number), [])
        try:
            vouched = kind in KINDS and hmac.compare_digest(link_mac(key, before, link, kind, content), mac)
        except TypeError:  # text where there were bytes, or the other way round
            vouched = False
        if not vouched:
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


def connect(path: Path, make: bool = True) -> sqlite3.Connection:
    """Open the file, for its owner only; commits are on disk when they return. `make` creates it if it is missing."""
    with named_errors(path):
        mode = "rwc" if make else "rw"
        db = sqlite3.connect(
            f"{path.resolve().as_uri()}?mode={mode}",
            uri=True,
            isolation_level=None,
            timeout=_SECONDS_TO_WAIT,
            check_same_thread=False,
        )
        try:
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
            path.chmod(0o600)
            _use_wal(db)
            for pragma in ("synchronous = FULL", "foreign_keys = ON"):
                db.execute(f"PRAGMA {pragma}")
        except BaseException:
            db.close()
            raise
    return db


def _use_wal(db: sqlite3.Connection) -> None:
    """Switch to WAL mode. A new file must be locked for that, and SQLite does not wait for the lock: try again."""
    until = time.monotonic() + _SECONDS_TO_WAIT
    while True:
        try:
            db.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(0.02)


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A snapshot of a ledger for reading, also where nothing can be written beside it."""
    if not path.is_file():
        raise RunError(f"{path}: there is no ledger")
    with named_errors(path), TemporaryDirectory(prefix="pate-ledger-") as folder:  # mode 0700
        if not os.access(path.parent, os.W_OK):  # SQLite needs files of its own there
            for beside in (path, path.with_name(f"{path.name}-wal")):
                if beside.exists():
                    shutil.copyfile(beside, Path(folder) / beside.name)
            path = Path(folder) / path.name
        db = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30, isolation_level=None)
        try:
            db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
            db.execute("BEGIN")
            yield db
        finally:
            db.close()


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
