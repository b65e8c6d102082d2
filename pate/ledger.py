"""Durable budget and answers on SQLite: a label and its charge are stored together, before anyone sees the label.

Append only: triggers refuse updates and deletes. A crash between the noise and the commit loses an answer that
nobody saw; a crash after the commit loses nothing. The file is readable with any SQLite tool.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pate.errors import BudgetExceeded, RunError

SCHEMA_VERSION = 1

_SCHEMA = """
CREATE TABLE limits (asked INTEGER NOT NULL, answered INTEGER NOT NULL, mechanism TEXT NOT NULL);
CREATE TABLE charges (
    batch INTEGER PRIMARY KEY, asked INTEGER NOT NULL, answered INTEGER NOT NULL, at TEXT NOT NULL
);
CREATE TABLE answers (
    query BLOB PRIMARY KEY, label INTEGER NOT NULL, batch INTEGER NOT NULL REFERENCES charges (batch)
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Charge:
    """What a batch costs, counted in queries; the limits turn counts into ε."""

    asked: int
    answered: int


@dataclass(frozen=True)
class Limits:
    """Fixed before the first query: the most queries asked, the most answered, and by what mechanism."""

    asked: int
    answered: int
    mechanism: str


class Ledger:
    """One file, many readers, one writer at a time."""

    def __init__(self, path: Path, limits: Limits) -> None:
        """Open the ledger, or make it. A ledger made for other limits is refused."""
        self.path = path
        with self._named_errors():
            self._db = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
            path.chmod(0o600)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA foreign_keys = ON")
            with self._transaction():
                self._create_if_empty(limits)
            self.limits = Limits(*self._db.execute("SELECT asked, answered, mechanism FROM limits").fetchone())
        if self.limits != limits:
            raise RunError(
                f"{path}: was made for {self.limits}, not for {limits}; limits are fixed before the first query, "
                "so start a new run"
            )

    def spent(self) -> Charge:
        """Everything charged so far."""
        with self._named_errors():
            row = self._db.execute("SELECT TOTAL(asked), TOTAL(answered) FROM charges").fetchone()
        return Charge(int(row[0]), int(row[1]))

    def room(self) -> int:
        """How many new queries are sure to fit, even if every one of them is answered."""
        spent = self.spent()
        return max(0, min(self.limits.asked - spent.asked, self.limits.answered - spent.answered))

    def check(self, most: Charge) -> None:
        """Raise `BudgetExceeded` unless a batch that costs at most `most` fits."""
        room = self.room()
        if max(most.asked, most.answered) > room:
            raise BudgetExceeded(
                f"{most.asked} new queries do not fit: {room} would (limits: {self.limits.asked} asked, "
                f"{self.limits.answered} answered)"
            )

    def stored(self, query_ids: Sequence[bytes]) -> dict[bytes, int]:
        """The answers already paid for, ⊥ included."""
        found: dict[bytes, int] = {}
        with self._named_errors():
            for query in set(query_ids):
                row = self._db.execute("SELECT label FROM answers WHERE query = ?", (query,)).fetchone()
                if row is not None:
                    found[query] = int(row[0])
        return found

    def charge_and_store(self, query_ids: Sequence[bytes], labels: Sequence[int], cost: Charge) -> None:
        """Store answers and their charge in one durable transaction, or nothing at all."""
        if len(query_ids) != len(labels):
            raise ValueError(f"{len(query_ids)} queries but {len(labels)} labels")
        with self._named_errors(), self._transaction():
            spent = self.spent()
            if spent.asked + cost.asked > self.limits.asked or spent.answered + cost.answered > self.limits.answered:
                raise BudgetExceeded(f"a charge of {cost} does not fit on top of {spent}")
            batch = self._db.execute(
                "INSERT INTO charges (asked, answered, at) VALUES (?, ?, ?)",
                (cost.asked, cost.answered, datetime.now(UTC).isoformat(timespec="seconds")),
            ).lastrowid
            rows = [(query, int(label), batch) for query, label in zip(query_ids, labels, strict=True)]
            self._db.executemany("INSERT INTO answers (query, label, batch) VALUES (?, ?, ?)", rows)

    def close(self) -> None:
        """Release the file."""
        self._db.close()

    def _create_if_empty(self, limits: Limits) -> None:
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        if version == SCHEMA_VERSION:
            return
        if version != 0:
            raise RunError(f"{self.path}: ledger schema {version} is not {SCHEMA_VERSION}; use the pate that made it")
        for statement in filter(str.strip, _SCHEMA.split(";")):
            self._db.execute(statement)
        for table in ("limits", "charges", "answers"):
            for action in ("UPDATE", "DELETE"):
                self._db.execute(
                    f"CREATE TRIGGER {table}_no_{action.lower()} BEFORE {action} ON {table} "
                    "BEGIN SELECT RAISE(ABORT, 'the ledger is append only'); END"
                )
        values = (limits.asked, limits.answered, limits.mechanism)
        self._db.execute("INSERT INTO limits VALUES (?, ?, ?)", values)
        self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise RunError(f"{self.path}: {error}; nothing was released") from error
