"""Ledgers in a folder: opened, paid, checked and tampered with."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from pate.ledger import Charge, Ledger, Limits, SharedBudget
from pate.ledger._chain import verify

LIMITS = Limits(max_queries=100, max_answers=60, mechanism="GNMax(sigma=8.0)")
KEY = b"k" * 32


def opened(folder: Path, run: str = "run", limits: Limits = LIMITS, shared: SharedBudget | None = None) -> Ledger:
    return Ledger(folder / "ledger.db", KEY, folder / "ledger.head", run, limits, shared)


def pay(ledger: Ledger, queries: list[bytes], labels: list[int], unstable: int = 0) -> None:
    with ledger.batch(len(queries)):
        ledger.charge_and_store(queries, labels, Charge(len(labels), sum(label >= 0 for label in labels), unstable))


def check(folder: Path) -> int:
    return verify(folder / "ledger.db", KEY, folder / "ledger.head")


def tampered(folder: Path, *statements: str) -> None:
    """By somebody who leaves no trace of how: triggers are put back."""
    with sqlite3.connect(folder / "ledger.db") as db:
        triggers = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            db.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            db.execute(statement)
        for _, sql in triggers:
            db.execute(sql)
