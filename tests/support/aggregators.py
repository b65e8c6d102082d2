"""An aggregator of twenty teachers' votes on made-up examples."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from pate.boundary import PartialCounts
from pate.boundary._aggregator import Aggregator
from pate.ledger import Ledger, Limits
from pate.mechanisms import GNMax, Mechanism

KEY = b"q" * 32


def make(
    folder: Path, mechanism: Mechanism | None = None, asked: int = 10, answered: int = 10, ensemble: int = 1
) -> Aggregator:
    mechanism = mechanism or GNMax(0.05)
    limits = Limits(asked, answered, repr(mechanism))
    open_ledger = partial(Ledger, folder / "ledger.db", KEY, folder / "ledger.head", "run", limits, ensemble=ensemble)
    return Aggregator(mechanism, open_ledger, folder, KEY, 20)


def examples(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)[:, None]


def vote(X: np.ndarray) -> list[PartialCounts]:
    """Example i: fifteen of twenty teachers say i mod 3."""
    counts = np.full((len(X), 3), 0, dtype=np.int64)
    rows, winner = np.arange(len(X)), X[:, 0].astype(int) % 3
    counts[rows, winner], counts[rows, (winner + 1) % 3] = 15, 5
    return [PartialCounts(tuple(range(20)), counts)]
