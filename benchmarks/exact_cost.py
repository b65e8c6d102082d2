"""Exact Rényi costs of all 26,032 SVHN queries: a histogram's neighbours sharing work, beside one by one.

    python benchmarks/exact_cost.py [VOTES.npy]

VOTES.npy defaults to $PATE_DATA/votes/svhn_250_teachers.npy. One by one, by `log_outcomes` alone, is measured
on a random subsample of the distinct histograms; the time for all of them is that, scaled by their number.
"""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate.accounting.exact import EXACT_ORDERS, exact_cost
from pate.mechanisms import GNMax, LNMax, Mechanism

SUBSAMPLE = 200


@dataclass(frozen=True)
class OneByOne:
    """A mechanism without its quick path for neighbours."""

    inner: Mechanism
    votes_per_record: int = 1
    priced_as_stream = False
    name: str = "one-by-one"

    def log_outcomes(self, counts: NDArray[np.integer]) -> NDArray[np.float64]:
        return self.inner.log_outcomes(counts)


def timed(mechanism: Mechanism | OneByOne, votes: NDArray[np.int64]) -> tuple[float, float]:
    """Seconds on the clock and seconds of all cores together."""
    clock, cores = time.perf_counter(), time.process_time()
    exact_cost(mechanism, votes)  # type: ignore[arg-type]
    return time.perf_counter() - clock, time.process_time() - cores


def main() -> None:
    default = Path(os.environ.get("PATE_DATA", "../shared/data")) / "votes" / "svhn_250_teachers.npy"
    votes = np.load(sys.argv[1] if len(sys.argv) > 1 else default).astype(np.int64)
    distinct = np.unique(np.sort(votes, axis=1), axis=0)
    some = np.random.default_rng(0).choice(distinct, min(SUBSAMPLE, len(distinct)), replace=False)
    print(f"{len(votes)} queries, {len(distinct)} distinct histograms, {len(EXACT_ORDERS)} orders each way")
    print(f"on {len(os.sched_getaffinity(0))} cores; load before: {os.getloadavg()[0]:.1f}")
    for mechanism in (LNMax(10.0), GNMax(40.0)):
        exact_cost(mechanism, some[:10])  # tables and imports
        clock, cores = timed(mechanism, votes)
        slow_clock, slow_cores = (s * len(distinct) / len(some) for s in timed(OneByOne(mechanism), some))
        print(f"{mechanism}; one by one scaled from {len(some)} histograms")
        print(f"  sharing     {clock:7.1f} s on the clock, {cores:7.1f} s of cores")
        print(f"  one by one  {slow_clock:7.1f} s on the clock, {slow_cores:7.1f} s of cores")
        print(f"  ratio       {slow_clock / clock:7.1f}                {slow_cores / cores:7.1f}")


if __name__ == "__main__":
    main()
