"""Durable answers per second through the aggregator, beside a bare SQLite insert of the same rows.

    python benchmarks/answers.py

Eight clients ask one aggregator actor for 20,000 labels in batches of 100; the totals must add up exactly.
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np

N_QUERIES, N_CLIENTS, BATCH, N_TEACHERS = 20_000, 8, 100, 250
KEY = b"a" * 32


def through_the_aggregator(folder: Path) -> tuple[float, int]:
    """Answers per second, and how many were charged."""
    from pate.boundary import PartialCounts
    from pate.boundary._aggregator import RemoteAggregator
    from pate.cluster._session import ray_session
    from pate.config import RaySettings
    from pate.ledger import Ledger, Limits
    from pate.mechanisms import GNMax

    X = np.arange(N_QUERIES, dtype=np.float64)[:, None]

    def votes(queries: np.ndarray) -> list[PartialCounts]:
        counts = np.zeros((len(queries), 10), dtype=np.int64)
        counts[np.arange(len(queries)), queries[:, 0].astype(int) % 10] = N_TEACHERS
        return [PartialCounts(tuple(range(N_TEACHERS)), counts)]

    limits = Limits(N_QUERIES, N_QUERIES, "GNMax(40)")
    open_ledger = partial(Ledger, folder / "ledger.db", KEY, folder / "ledger.head", "run", limits)
    with ray_session(None, RaySettings(workers=2)):
        aggregator = RemoteAggregator(
            mechanism=GNMax(40.0), open_ledger=open_ledger, private=folder, key=KEY, n_parts=N_TEACHERS
        )
        aggregator.collect(X, votes)
        aggregator.room()
        told: list[int] = [0] * N_CLIENTS

        def client(number: int) -> None:
            for start in range(number * BATCH, N_QUERIES, N_CLIENTS * BATCH):
                told[number] += len(aggregator.label(X[start : start + BATCH]).labels)

        started = time.perf_counter()
        clients = [threading.Thread(target=client, args=(number,)) for number in range(N_CLIENTS)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        seconds = time.perf_counter() - started
        charged = aggregator.spent().asked
        assert sum(told) == charged == N_QUERIES, (sum(told), charged)
        aggregator.close()
    return N_QUERIES / seconds, charged


def bare_sqlite(folder: Path) -> float:
    """The same rows in the same batches, committed as durably, and nothing else."""
    db = sqlite3.connect(folder / "bare.db", isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("CREATE TABLE answers (query BLOB PRIMARY KEY, label INTEGER) WITHOUT ROWID")
    rows = [(i.to_bytes(16, "little"), i % 10) for i in range(N_QUERIES)]
    started = time.perf_counter()
    for start in range(0, N_QUERIES, BATCH):
        db.execute("BEGIN IMMEDIATE")
        db.executemany("INSERT INTO answers VALUES (?, ?)", rows[start : start + BATCH])
        db.execute("COMMIT")
    return N_QUERIES / (time.perf_counter() - started)


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        bare = bare_sqlite(Path(name))
        ours, charged = through_the_aggregator(Path(name))
    print(f"{N_CLIENTS} clients, {charged} queries told and charged, batches of {BATCH}")
    print(f"aggregator {ours:,.0f} answers/s, bare SQLite {bare:,.0f} rows/s, ratio {ours / bare:.2f}")
    sys.exit(0 if ours >= 2000 else 1)


if __name__ == "__main__":
    main()
