"""Smooth sensitivity on the authors' votes: the figures, and the time beside a plain walk over histograms.

    PATE_DATA=/path/to/data python benchmarks/smooth_sensitivity.py

Everything printed depends on the votes. These are published; those of private data would not be printed. The
search for the best beta and sigma_ss looks at the votes as well: it shows what could be had at most.
"""

from __future__ import annotations

import itertools
import math
import os
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from pate.accounting import smooth_sensitivity as ss
from pate.accounting.sanitise import epsilon_sanitised, release_rdp

Counts = NDArray[np.int64]


class Setting(NamedTuple):
    """One row of the paper's tables."""

    name: str
    queries: int
    threshold: float
    sigma1: float
    sigma2: float
    delta: float
    orders: tuple[float, ...]


SETTINGS = (
    Setting("mnist", 640, 200, 150, 40, 1e-5, (6.0, 10.0, 14.0)),
    Setting("svhn", 8500, 300, 200, 40, 1e-6, (3.0, 4.0, 6.0, 7.5)),
)


class Choice(NamedTuple):
    """Parameters of a release and the ε they give on average."""

    epsilon: float
    beta: float
    sigma_ss: float


def best_release(cost: ss.PrivateCost, delta: float) -> Choice:
    """The beta and sigma_ss of least average ε, half of delta on each side."""
    limit = math.log1p(1 / (cost.order - 1)) / 2
    quantile = float(-ndtri(delta / 2))
    fixed = cost.rdp + math.log(2 / delta) / (cost.order - 1)
    found = Choice(math.inf, 0.0, 0.0)
    for beta in np.linspace(0.02, 0.9, 45) * limit:
        smooth = cost.smooth_sensitivity(beta)
        for sigma_ss in np.geomspace(1, 100, 60):
            own = release_rdp(cost.order, beta, sigma_ss, quantile)
            found = min(found, Choice(fixed + quantile * sigma_ss * smooth + own, beta, sigma_ss))
    return found


def as_in_the_paper(cost: ss.PrivateCost, delta: float) -> tuple[float, float]:
    """(ε, standard deviation of its noise) by Theorem 23, unshifted: to compare with, not a valid bound."""
    found = (math.inf, 0.0, 0.0)
    for beta in np.linspace(0.1, 0.49, 40) / cost.order:
        smooth = cost.smooth_sensitivity(beta)
        sigma = (cost.order * math.exp(2 * beta) / smooth) ** (1 / 3)
        own = cost.order * math.exp(2 * beta) / sigma**2
        own += (beta * cost.order - math.log(1 - 2 * cost.order * beta) / 2) / (cost.order - 1)
        found = min(found, (own + 2 * smooth * sigma, own, smooth * sigma))
    return cost.rdp + found[1] + math.log(2 / delta) / (cost.order - 1), found[2]


def naive_ladder(row: Counts, sigma: float, order: float) -> list[float]:
    """Largest step among all neighbours of the two paths of `row`: a plain walk, and a lower bound."""
    steps: list[float] = []
    one = np.eye(len(row), dtype=np.int64)
    moves = np.array([one[b] - one[a] for a, b in itertools.permutations(range(len(row)), 2)])
    for distance in range(int(row.sum()) + 1):
        largest = steps[-1] if steps else 0.0
        for histogram in path_ends(row, distance):
            moved = histogram + moves
            costs = ss.gnmax_rdp(np.vstack([histogram, moved[(moved >= 0).all(axis=1)]]), sigma, order)
            largest = max(largest, float(np.abs(costs - costs[0]).max()))
        steps.append(largest)
    return steps


def path_ends(row: Counts, distance: int) -> list[Counts]:
    """Histograms `distance` votes away with the least and with the most disagreement."""
    least, most = -np.sort(-row), -np.sort(-row)
    for _ in range(distance):
        if least[1:].any():
            least[1 + int(np.argmax(least[1:]))] -= 1
            least[0] += 1
        if most[0] - most[1] >= 2:
            most[0] -= 1
            most[1] += 1
    return [least, most]


def load(name: str) -> Counts:
    root = Path(os.environ.get("PATE_DATA", Path(__file__).parents[2] / "shared" / "data"))
    return np.asarray(np.load(root / "votes" / f"{name}_250_teachers.npy"), dtype=np.int64)


def figures(setting: Setting) -> None:
    counts = load(setting.name)[: setting.queries]
    passes = ndtr((counts.max(axis=1) - setting.threshold) / setting.sigma1)
    answered = np.random.default_rng(0).random(len(counts)) < passes
    print(f"\n{setting.name}: {len(counts)} queries, {answered.sum()} answered ({passes.sum():.1f} expected)")
    expected = {
        order: (
            ss.threshold_rdp(counts, setting.threshold, setting.sigma1, order)
            + passes * ss.gnmax_rdp(counts, setting.sigma2, order)
        ).sum()
        + math.log(1 / setting.delta) / (order - 1)
        for order in np.arange(2, 40, 0.25)
    }
    order = min(expected, key=lambda key: float(expected[key]))
    print(f"  expected ε as in the paper's table: {expected[order]:.3f} at order {order}")
    print("  order  seconds  realised ε  worst-case ε  sanitised ε: mean (beta, sigma_ss)  Theorem 23, no bound")
    for order in setting.orders:
        report(setting, counts, answered, order)


def report(setting: Setting, counts: Counts, answered: NDArray[np.bool_], order: float) -> None:
    start = time.perf_counter()
    cost = ss.confident_gnmax_cost(counts, answered, setting.threshold, setting.sigma1, setting.sigma2, order)
    seconds = time.perf_counter() - start
    conversion = math.log(1 / setting.delta) / (order - 1)
    best = best_release(cost, setting.delta)
    paper, deviation = as_in_the_paper(cost, setting.delta)
    once = epsilon_sanitised(cost, beta=best.beta, sigma_ss=best.sigma_ss, delta=setting.delta)
    print(
        f"  {order:5.1f}  {seconds:7.3f}  {cost.rdp + conversion:10.3f}"
        f"  {cost.worst_case_rdp + conversion:12.3f}"
        f"  {best.epsilon:6.3f} ({best.beta:.4f}, {best.sigma_ss:5.2f}); one draw {once.epsilon:6.3f}"
        f"   {paper:6.3f} ± {deviation:.3f}   S = {cost.smooth_sensitivity(best.beta):.4f}"
    )


def side_by_side(rows: int = 10) -> None:
    counts, sigma, order, beta = load("mnist")[:640], 40.0, 14.0, 0.01
    start = time.perf_counter()
    fast = ss.gnmax_local_sensitivity(counts, sigma, order)
    fast_time = (time.perf_counter() - start) / len(counts)
    start = time.perf_counter()
    naive = np.array([naive_ladder(row, sigma, order) for row in counts[:rows]])
    naive_time = (time.perf_counter() - start) / rows
    bound = ss.discounted_maximum(fast[:rows], beta).sum() / ss.discounted_maximum(naive, beta).sum()
    print(f"\nper query: table {fast_time * 1e3:.3f} ms, walk over all neighbours {naive_time * 1e3:.0f} ms")
    print(f"ratio of times {naive_time / fast_time:.0f}; smooth bound / the walk's lower bound {bound:.3f}")


if __name__ == "__main__":
    for each in SETTINGS:
        figures(each)
    side_by_side()
