"""The real door on data that an audit chose: an aggregator with a ledger of its own in a folder that is removed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from pate.boundary.aggregator import Aggregator
from pate.ledger import Ledger, Limits
from pate.mechanisms import Mechanism
from pate.storage.files import KEY_BYTES


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """A private folder for as long as it is needed."""
    with TemporaryDirectory(prefix="pate-audit-") as folder:  # mode 0700
        yield Path(folder)


@contextmanager
def scratch_aggregator(mechanism: Mechanism, asked: int, n_teachers: int) -> Iterator[Aggregator]:
    """An aggregator as a run has one, its entropy the operating system's; what it charges is charged to nobody."""
    with scratch_folder() as folder:
        key, limits = secrets.token_bytes(KEY_BYTES), Limits(asked, asked, repr(mechanism))
        open_ledger = partial(Ledger, folder / "charges.db", key, folder / "charges.head", "audit", limits)
        aggregator = Aggregator(mechanism, open_ledger, folder, key, n_teachers)
        try:
            yield aggregator
        finally:
            aggregator.close()


def answers(mechanism: Mechanism, counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The labels of these histograms [queries, classes], all of as many votes, the whole way: collected, drawn, charged
    and stored in a fresh ledger, and read from there."""
    from pate.voters.stored import StoredCount

    n_teachers, X = int(counts[0].sum()), np.arange(len(counts), dtype=np.float64)[:, None]
    with scratch_aggregator(mechanism, len(counts), n_teachers) as aggregator:
        aggregator.collect(X, StoredCount(counts, n_teachers))
        return aggregator.label(X).labels
