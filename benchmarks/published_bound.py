"""Theorem 6 of PATE 2018 on all SVHN histograms: the vectorised bound beside per-query Python loops.

    PATE_DATA=../shared/data python benchmarks/published_bound.py

Three ways of the same formula, in one run:

* vectorised: `pate.accounting.published_bounds.gnmax_rdp`, on every histogram;
* plain loop: one query and one order at a time with the math module;
* row loop: one query at a time, numpy over the orders.

The loops are timed on a sample of the rows spread evenly over the file, and scaled up to all of them. Their
figures are compared with the vectorised ones before anything is timed. Exit status 1 if the vectorised bound
is less than 20 times as fast as the plain loop.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy.special import erfc

from pate.accounting.published_bounds import gnmax_rdp

MIN_RATIO = 20.0
SIGMA = 40.0
ORDERS = np.concatenate([np.arange(2.0, 100.5, 0.5), np.geomspace(100.0, 500.0, 100)])


def plain_loop(counts: np.ndarray, sigma: float) -> np.ndarray:
    """Theorem 6 as one would write it down first: no arrays."""
    orders = ORDERS.tolist()
    return np.array([plain_query(row, sigma, orders) for row in counts.tolist()])


def plain_query(row: list[int], sigma: float, orders: list[float]) -> list[float]:
    *others, top = sorted(row)
    q = min(sum(0.5 * math.erfc((top - count) / (2 * sigma)) for count in others), 1 - 1 / len(row))
    worst = [order / sigma**2 for order in orders]
    conditions = theorem6_constants(q, sigma)
    if conditions is None:
        return worst
    mu1, log_a, log_b = conditions
    rdp = []
    for order, most in zip(orders, worst, strict=True):
        if order <= mu1:
            kept = math.log1p(-q) + (order - 1) * log_a
            lost = math.log(q) + (order - 1) * log_b
            high, low = max(kept, lost), min(kept, lost)
            most = min(most, (high + math.log1p(math.exp(low - high))) / (order - 1))
        rdp.append(most)
    return rdp


def row_loop(counts: np.ndarray, sigma: float) -> np.ndarray:
    """One query at a time with numpy over the orders."""
    return np.array([row_query(row, sigma) for row in counts])


def row_query(row: np.ndarray, sigma: float) -> np.ndarray:
    ranked = np.sort(row)
    q = min(0.5 * float(erfc((ranked[-1] - ranked[:-1]) / (2 * sigma)).sum()), 1 - 1 / row.size)
    rdp = ORDERS / sigma**2
    conditions = theorem6_constants(q, sigma)
    if conditions is None:
        return rdp
    mu1, log_a, log_b = conditions
    within = mu1 >= ORDERS
    powers = ORDERS[within] - 1
    log_sum = np.logaddexp(math.log1p(-q) + powers * log_a, math.log(q) + powers * log_b)
    rdp[within] = np.minimum(rdp[within], log_sum / powers)
    return rdp


def theorem6_constants(q: float, sigma: float) -> tuple[float, float, float] | None:
    """μ₁, ln A and ln B of one query, or None where the theorem does not apply."""
    log_q = math.log(q)
    mu2 = sigma * math.sqrt(-log_q)
    mu1 = mu2 + 1
    epsilon1, epsilon2 = mu1 / sigma**2, mu2 / sigma**2
    if mu2 <= 1 or log_q + epsilon2 >= 0:
        return None
    if log_q > (mu2 - 1) * epsilon2 - mu2 * math.log(mu1 / (mu1 - 1) * mu2 / (mu2 - 1)):
        return None
    log_a = math.log1p(-q) - math.log1p(-math.exp((log_q + epsilon2) * (mu2 - 1) / mu2))
    return mu1, log_a, epsilon1 - log_q / (mu1 - 1)


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The least wall time of several runs: what the machine's other work disturbs least."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return min(times)


def load_votes() -> np.ndarray:
    beside_the_repository = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    path = Path(os.environ.get("PATE_DATA", beside_the_repository)) / "votes" / "svhn_250_teachers.npy"
    if not path.is_file():
        sys.exit(f"the authors' votes are missing: {path} (PATE_DATA names the folder with votes/)")
    return np.load(path, allow_pickle=False).astype(np.int64)


def main() -> int:
    parser = argparse.ArgumentParser(description="the published GNMax bound: arrays beside per-query loops")
    parser.add_argument("--sample", type=int, default=2000, help="rows on which the loops are timed")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()

    counts = load_votes()
    sample = counts[np.linspace(0, len(counts) - 1, min(options.sample, len(counts)), dtype=int)]
    expected = gnmax_rdp(sample, SIGMA, ORDERS)
    for loop in (plain_loop, row_loop):
        np.testing.assert_allclose(loop(sample, SIGMA), expected, rtol=1e-9)

    fast = seconds(lambda: gnmax_rdp(counts, SIGMA, ORDERS), options.repeats)
    scale_up = len(counts) / len(sample)
    plain = seconds(lambda: plain_loop(sample, SIGMA), options.repeats) * scale_up
    rows = seconds(lambda: row_loop(sample, SIGMA), options.repeats) * scale_up
    print(f"GNMax bound, {len(counts)} SVHN histograms x {ORDERS.size} orders, sigma {SIGMA:g}")
    print(f"loops timed on {len(sample)} rows and scaled by {scale_up:.2f}; least of {options.repeats} runs")
    print(f"{'vectorised':<12}{fast:>9.3f} s")
    print(f"{'row loop':<12}{rows:>9.3f} s {rows / fast:>7.1f} x")
    print(f"{'plain loop':<12}{plain:>9.3f} s {plain / fast:>7.1f} x   (at least {MIN_RATIO:g} x wanted)")
    return 0 if plain / fast >= MIN_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
