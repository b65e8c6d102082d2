"""The tables of a ledger file, and the check that a file has these and nothing else.

A trigger that somebody added could change a charge before the chain covers it. So a file whose schema differs in
anything is not used.
"""

from __future__ import annotations

import sqlite3
from functools import cache
from pathlib import Path
from typing import Any

from pate.errors import RunError

VERSION = 4
LONGEST_VALUE = 1_000_000  # bytes: far more than any row needs, so that a damaged length cannot fill the memory

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


def prepare(db: sqlite3.Connection, path: Path) -> None:
    """Inside a transaction: make the tables of an empty file; refuse a file that has any others."""
    if db.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0] or _version(db):
        _check_schema(db, path)
    else:
        _make(db)


def check(db: sqlite3.Connection, path: Path) -> None:
    """Raise RunError unless the file has exactly these tables, indices and triggers, and is an undamaged database."""
    _check_schema(db, path)
    damage = db.execute("PRAGMA integrity_check(1)").fetchone()[0]  # also that an index finds every row
    if damage != "ok":
        raise RunError(f"{path}: is damaged ({' '.join(str(damage).split())[:100]})")


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    version = _version(db)
    if version != VERSION:
        raise RunError(f"{path}: has schema {version}, this pate writes {VERSION}; use the pate it was made with")
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
    db.execute(f"PRAGMA user_version = {VERSION}")


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


def _schema(db: sqlite3.Connection) -> list[tuple[Any, ...]]:
    return db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name").fetchall()


@cache
def _own_schema() -> list[tuple[Any, ...]]:
    db = sqlite3.connect(":memory:")
    _make(db)
    schema = _schema(db)
    db.close()
    return schema
