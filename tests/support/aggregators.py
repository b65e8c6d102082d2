"""An aggregator of twenty teachers' votes on made-up examples."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from pate.boundary import PartialCounts
from pate.boundary._aggregator import Aggregator
from pate.ledger import Ledger, Limits, SharedLedger
from pate.mechanisms import GNMax, Mechanism
from pate.noise import Entropy

KEY = b"q" * 32


def make(
    folder: Path,
    mechanism: Mechanism | None = None,
    asked: int = 10,
    answered: int = 10,
    ensemble: int = 1,
    entropy: Entropy | None = None,
    shared: SharedLedger | None = None,
) -> Aggregator:
    """Votes are in `folder`, and so is the ledger, unless it is `shared`; noise comes from where it does by default."""
    mechanism = mechanism or GNMax(0.05)
    if shared is None:
        limits = Limits(asked, answered, repr(mechanism))
        opened = partial(Ledger, folder / "ledger.db", KEY, folder / "ledger.head", "run", limits, ensemble=ensemble)
    else:
        budget = shared.budget()
        prices = mechanism.rdp_per_query(budget.order, asked, answered)
        assert prices is not None
        limits = Limits(asked, answered, repr(mechanism), *prices)
        opened = partial(Ledger, shared.db, shared.key, shared.head, "run", limits, budget)
    arguments = mechanism, opened, folder, KEY, 20
    return Aggregator(*arguments) if entropy is None else Aggregator(*arguments, entropy)


def examples(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.float32)[:, None]


def vote(X: np.ndarray) -> list[PartialCounts]:
    """Example i: fifteen of twenty teachers say i mod 3."""
    counts = np.full((len(X), 3), 0, dtype=np.int64)
    rows, winner = np.arange(len(X)), X[:, 0].astype(int) % 3
    counts[rows, winner], counts[rows, (winner + 1) % 3] = 15, 5
    return [PartialCounts(tuple(range(20)), counts)]


def unsure(X: np.ndarray) -> list[PartialCounts]:
    """Every fourth example is a tie, on the others all agree."""
    counts = np.where((X[:, :1] % 4 == 3), [[10, 10, 0]], [[20, 0, 0]])
    return [PartialCounts(tuple(range(20)), counts)]
