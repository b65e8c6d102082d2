"""Sanitised figures on the authors' votes, and costs by the gap alone beside the exact costs of whole histograms.

    PATE_DATA=/path/to/data python benchmarks/smooth_sensitivity.py

Everything printed depends on the votes. These are published; those of private data would not be printed. The
search for the best order, beta and sigma_ss looks at the votes as well: it shows what could be had at most.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from pate.accounting.composition import epsilon_of_rdp
from pate.accounting.exact import exact_cost
from pate.accounting.sanitise import FAILURE_SHARE, PrivateCost, epsilon_sanitised, release_rdp
from pate.mechanisms import ConfidentGNMax, GNMax, LNMax, Mechanism
from pate.planning.costs import worst_case_epsilon

Counts = NDArray[np.int64]


class Setting(NamedTuple):
    """Queries of a votes file, and how they are answered."""

    votes: str
    queries: int
    mechanism: Mechanism
    delta: float
    orders: tuple[float, ...]


SETTINGS = (
    Setting("mnist", 640, ConfidentGNMax(200, 150, 40, 250), 1e-5, (8.0, 10.0, 12.0)),
    Setting("svhn", 8500, ConfidentGNMax(300, 200, 40, 250), 1e-6, (5.0, 6.0, 7.0)),
    Setting("mnist", 1000, GNMax(40), 1e-5, (6.0, 8.0)),
    Setting("mnist", 1000, LNMax(20), 1e-5, (4.0, 6.0, 8.0)),
    Setting("svhn", 1000, LNMax(10), 1e-6, (3.0, 4.0, 5.0)),
)


class Choice(NamedTuple):
    """Parameters of a release and the ε they give on average."""

    epsilon: float
    beta: float
    sigma_ss: float


def best_release(cost: PrivateCost, delta: float) -> Choice:
    """The beta and sigma_ss of least average ε."""
    limit = math.log1p(1 / (cost.order - 1)) / 2
    quantile = float(-ndtri(FAILURE_SHARE * delta))
    fixed = epsilon_of_rdp(cost.rdp, cost.order, (1 - FAILURE_SHARE) * delta)
    found = Choice(math.inf, 0.0, 0.0)
    for beta in np.linspace(0.02, 0.9, 45) * limit:
        smooth = cost.smooth_sensitivity(beta)
        for sigma_ss in np.geomspace(1, 100, 60):
            own = release_rdp(cost.order, beta, sigma_ss, quantile)
            found = min(found, Choice(fixed + quantile * sigma_ss * smooth + own, beta, sigma_ss))
    return found


def load(name: str) -> Counts:
    root = Path(os.environ.get("PATE_DATA", Path(__file__).parents[2] / "shared" / "data"))
    return np.asarray(np.load(root / "votes" / f"{name}_250_teachers.npy"), dtype=np.int64)


def figures(setting: Setting) -> None:
    counts, mechanism = load(setting.votes)[: setting.queries], setting.mechanism
    declined = np.exp(mechanism.log_outcomes(counts)[:, -1])
    answered = np.random.default_rng(0).random(len(counts)) >= declined
    worst = worst_case_epsilon(mechanism, len(counts), None, setting.delta)
    print(f"\n{setting.votes}: {len(counts)} queries, {answered.sum()} answered, {mechanism}; worst case {worst:.3f}")
    print("  order  seconds  realised ε  sanitised ε: mean (beta, sigma_ss)")
    for order in setting.orders:
        start = time.perf_counter()
        cost = mechanism.sanitised_cost(counts, answered, order)
        seconds = time.perf_counter() - start
        best = best_release(cost, setting.delta)
        once = epsilon_sanitised(cost, beta=best.beta, sigma_ss=best.sigma_ss, delta=setting.delta)
        print(
            f"  {order:5.1f}  {seconds:7.3f}  {epsilon_of_rdp(cost.rdp, order, setting.delta):10.3f}"
            f"  {best.epsilon:6.3f} ({best.beta:.4f}, {best.sigma_ss:5.2f}); one draw {once.epsilon:6.3f}"
            f"   S = {cost.smooth_sensitivity(best.beta):.4f}"
        )


def side_by_side() -> None:
    """What an answer costs by its gap, and by its whole histogram."""
    counts, order = load("mnist")[:640], 10.0
    start = time.perf_counter()
    by_gap = GNMax(40).sanitised_cost(counts, np.ones(len(counts), bool), order).rdp
    gap_time = time.perf_counter() - start
    start = time.perf_counter()
    exact = exact_cost(GNMax(40), counts, np.array([order])).forward.sum()
    exact_time = time.perf_counter() - start
    print(f"\nMNIST, 640 answers of GNMax 40: by the gap {gap_time:.2f} s, by all neighbours of all {exact_time:.2f} s")
    print(f"ratio of times {exact_time / gap_time:.2f}; cost by the gap / exact cost {by_gap / exact:.3f}")


if __name__ == "__main__":
    for each in SETTINGS:
        figures(each)
    side_by_side()
