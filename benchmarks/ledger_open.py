"""Seconds to open a ledger of 100,000 answers, which checks it whole, beside bare reading of the same rows.

    python benchmarks/ledger_open.py

Once in batches of 50, as runs ask, and once with a batch for each answer, the most links there can be.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from pate.ledger import Charge, Ledger, Limits

N_ANSWERS, TRIES = 100_000, 5
TABLES = ("budget", "runs", "charges", "answers", "sanitised", "owners", "chain")


def opened(folder: Path) -> Ledger:
    return Ledger(folder / "ledger.db", b"k" * 32, folder / "ledger.head", "run", Limits(10**6, 10**6, "m"))


def open_and_close(folder: Path) -> None:
    opened(folder).close()


def fill(folder: Path, batch: int) -> None:
    """All batches in one transaction: how long writing takes is not the question here."""
    ledger = opened(folder)
    with ledger.batch(N_ANSWERS):
        for start in range(0, N_ANSWERS, batch):
            ids = [(i * 2654435761 % 2**32).to_bytes(16, "big") for i in range(start, start + batch)]
            ledger.charge_and_store(ids, [start % 10] * batch, Charge(batch, batch))
    ledger.close()


def read(folder: Path) -> None:
    """Every row, with nothing done to it."""
    with sqlite3.connect(f"file:{folder / 'ledger.db'}?mode=ro", uri=True) as db:
        for table in TABLES:
            db.execute(f"SELECT * FROM {table}").fetchall()


def fastest(action: Callable[[], object]) -> float:
    seconds = []
    for _ in range(TRIES):
        started = time.perf_counter()
        action()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


def main() -> None:
    for batch in (50, 1):
        with tempfile.TemporaryDirectory() as name:
            fill(Path(name), batch)
            ours, bare = fastest(partial(open_and_close, Path(name))), fastest(partial(read, Path(name)))
        print(f"{N_ANSWERS:,} answers in batches of {batch}: ", end="")
        print(f"opened in {ours:.2f} s, bare reading {bare:.2f} s, ratio {ours / bare:.1f}")


if __name__ == "__main__":
    main()
