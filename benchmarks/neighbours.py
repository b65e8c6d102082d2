"""Counting the votes of records near public examples, beside scikit-learn's brute-force neighbours, in one run.

python benchmarks/neighbours.py [--records 1000000] [--features 784] [--cells 500]

Records are made up a stretch at a time and never kept, as readers hand them over, so that what memory grows by is the
counting's own. Both find the nearest of the same cells; ours in whole numbers, so that a record's cell does not depend
on its company. The share of records on which the two agree is printed: they may differ where two cells are as near to
within rounding.
"""

from __future__ import annotations

import argparse
import resource
import time
from collections.abc import Iterator

import numpy as np
from sklearn.neighbors import NearestNeighbors

from pate.voters.neighbours._cells import Cells, CellVote, RecordFeatures, Space

_AT_ONCE = 1 << 14
_CLASSES = 10


def stretches(records: int, features: int, seed: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Records and labels, the same for the same seed."""
    rng = np.random.default_rng(seed)
    for begin in range(0, records, _AT_ONCE):
        n = min(_AT_ONCE, records - begin)
        yield rng.random((n, features), dtype=np.float32), rng.integers(0, _CLASSES, size=n)


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=784)
    parser.add_argument("--cells", type=int, default=500)
    asked = parser.parse_args()
    public = np.random.default_rng(0).random((4 * asked.cells, asked.features), dtype=np.float32)
    cells = Cells.of(Space.of(public, None), public, asked.cells, seed=0)
    cell_vote = CellVote(RecordFeatures(()), cells, 1, _CLASSES)
    theirs = NearestNeighbors(n_neighbors=1, algorithm="brute").fit(cells.centres)
    seconds = {"ours": 0.0, "scikit-learn": 0.0}
    same, counted, begun = 0, np.zeros((asked.cells, _CLASSES), dtype=np.int64), megabytes()
    for X, y in stretches(asked.records, asked.features, 1):
        started = time.perf_counter()
        counted += cell_vote.count(X, y)
        seconds["ours"] += time.perf_counter() - started
        places = cells.space.places(X)
        started = time.perf_counter()
        nearest = theirs.kneighbors(places, return_distance=False)[:, 0]
        seconds["scikit-learn"] += time.perf_counter() - started
        same += int((nearest == cells.nearest(X)[:, 0]).sum())
    assert counted.sum() == asked.records
    for name, spent in seconds.items():
        print(f"{name:<14}{spent:8.1f} s{asked.records / spent:14,.0f} records a second")
    print(f"ratio         {seconds['ours'] / seconds['scikit-learn']:8.2f}")
    print(f"the same cell {100 * same / asked.records:8.3f} %")
    print(f"memory grew by {megabytes() - begun:.0f} MB over {asked.records:,} records")


if __name__ == "__main__":
    main()
