"""The cost by the gap alone holds for every histogram of that gap, and is not far above what some cost."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pate.accounting.exact import exact_cost
from pate.accounting.sanitise import rdp_by_gap
from pate.accounting.worst_case import worst_case_rdp
from pate.mechanisms import GNMax, LNMax
from pate.mechanisms.noisy_max import NoisyMax
from pate.noise.integer import DiscreteGaussian, DiscreteLaplace


def histograms(votes: int, classes: int) -> np.ndarray:
    """All of them up to the order of the classes."""
    every = itertools.combinations_with_replacement(range(votes + 1), classes)
    return np.array([row for row in every if sum(row) == votes])


def gaps(counts: np.ndarray) -> np.ndarray:
    ordered = np.sort(counts, axis=1)
    return np.asarray(ordered[:, -1] - ordered[:, -2])


NARROW = [GNMax(0.7), GNMax(1.5), GNMax(3.0), LNMax(0.6), LNMax(1.5), LNMax(3.0)]


@pytest.mark.parametrize("order", [1.3, 3.0, 8.0])
@pytest.mark.parametrize("mechanism", NARROW, ids=str)
def test_no_small_histogram_costs_more_than_its_gap_says(mechanism: NoisyMax, order: float) -> None:
    """Every histogram of up to 14 votes and 2 to 4 classes, some of 5, against all its neighbours, forward."""
    close = 0.0
    for votes, classes in [*itertools.product((1, 2, 3, 6, 9, 14), (2, 3, 4)), (7, 5)]:
        counts = histograms(votes, classes)
        exact = exact_cost(mechanism, counts, np.array([order])).forward[:, 0]
        claimed = rdp_by_gap(mechanism.noise, order, classes, votes)[gaps(counts)]
        assert (exact <= claimed * (1 + 1e-9)).all(), (votes, classes)
        close = max(close, float((exact / claimed).max()))
    assert close > 0.8


@pytest.mark.parametrize("mechanism", [GNMax(12.0), LNMax(6.0)], ids=str)
def test_no_random_histogram_costs_more_than_its_gap_says(mechanism: NoisyMax) -> None:
    rng = np.random.default_rng(3)
    for classes, order in itertools.product((2, 3, 10), (2.0, 9.0)):
        counts = rng.multinomial(80, rng.dirichlet(np.full(classes, 0.4), 40))
        level = np.full((1, classes), 80 // classes)  # all others as close as the gap allows
        spread = [level + lead * np.eye(classes, dtype=int)[:1] for lead in range(0, 60, 4)]
        counts = np.unique(counts, axis=0)
        curve = rdp_by_gap(mechanism.noise, order, classes, 80)
        for rows in (counts, *spread):
            exact = exact_cost(mechanism, rows, np.array([order])).forward[:, 0]
            assert (exact <= curve[gaps(rows)] * (1 + 1e-9)).all()


@pytest.mark.parametrize("noise", [DiscreteGaussian(9.0), DiscreteLaplace(5.0)], ids=str)
def test_the_curve_falls_from_the_worst_case_to_next_to_nothing(noise: DiscreteGaussian | DiscreteLaplace) -> None:
    for classes in (2, 10):
        curve = rdp_by_gap(noise, 4.0, classes, 200)
        assert (np.diff(curve) <= 0).all()
        worst = worst_case_rdp(noise, 4.0)
        assert 0.95 * worst < curve[0] <= worst
        assert curve[-1] < 1e-4 * worst


@pytest.mark.parametrize(("mechanism", "within"), [(GNMax(10.0), 2.2), (LNMax(6.0), 9.0)], ids=str)
def test_two_classes_come_close_at_every_gap(mechanism: NoisyMax, within: float) -> None:
    leads = np.arange(0, 41, 4)
    counts = np.stack([(60 + leads) // 2, 60 - (60 + leads) // 2, *([0 * leads] * 8)], axis=1)
    exact = exact_cost(mechanism, counts, np.array([5.0])).forward[:, 0]
    curve = rdp_by_gap(mechanism.noise, 5.0, 10, 60)[leads]
    assert (curve <= within * exact).all()
    assert curve[0] <= 1.05 * exact[0]


def test_noise_too_wide_to_search_costs_the_worst_case_at_every_gap() -> None:
    curve = rdp_by_gap(DiscreteGaussian(5000.0), 4.0, 10, 30)
    assert (curve == worst_case_rdp(DiscreteGaussian(5000.0), 4.0)).all()
