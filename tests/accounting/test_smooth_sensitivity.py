"""Costs by the gap, and their smooth sensitivity, against brute force over every small histogram."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import lru_cache

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.exact_noise import exact_mass
from support.small_votes import histograms

from pate.accounting import sanitise as ss
from pate.accounting.exact import exact_cost
from pate.accounting.sanitise import rdp_by_gap
from pate.accounting.worst_case import worst_case_rdp
from pate.mechanisms import ConfidentGNMax, GNMax, LNMax
from pate.mechanisms.noisy_max import NoisyMax
from pate.noise.integer import DiscreteGaussian, DiscreteLaplace

CLASSES, TEACHERS = (2, 3, 4), (1, 2, 5, 7)
BETAS = (0.01, 0.1, 0.7)


@lru_cache
def distances(n_teachers: int, n_classes: int) -> np.ndarray:
    """Fewest moved votes between any two histograms, by breadth-first search over single moves."""
    rows = [tuple(row) for row in histograms(n_teachers, n_classes)]
    index = {row: i for i, row in enumerate(rows)}
    step = np.zeros((len(rows), len(rows)), dtype=bool)
    for row, (a, b) in itertools.product(rows, itertools.permutations(range(n_classes), 2)):
        moved = list(row)
        moved[a], moved[b] = moved[a] - 1, moved[b] + 1
        if moved[a] >= 0:
            step[index[row], index[tuple(moved)]] = True
    found = np.where(np.eye(len(rows), dtype=bool), 0, 10**6)
    reached = np.eye(len(rows), dtype=bool)
    for distance in range(1, n_teachers + 1):
        reached = (reached.astype(int) @ step.astype(int) > 0) | reached
        found[reached & (found > distance)] = distance
    return found


def check_ladder(ladder: np.ndarray, cost: np.ndarray, n_teachers: int, n_classes: int) -> None:
    """At least the true local sensitivity at every distance, and smooth."""
    distance = distances(n_teachers, n_classes)
    local = np.where(distance <= 1, np.abs(cost[:, None] - cost), 0.0).max(axis=1)
    true = np.stack([np.where(distance <= d, local, 0.0).max(axis=1) for d in range(n_teachers + 1)], axis=1)
    assert (ladder >= true - 1e-12).all()
    one = np.argwhere(distance == 1)
    assert (ladder[one[:, 0], :-1] <= ladder[one[:, 1], 1:] + 1e-12).all()
    for beta in BETAS:
        smooth = ss.discounted_maximum(ladder, beta)
        assert (np.abs(cost[one[:, 0]] - cost[one[:, 1]]) <= smooth[one[:, 0]] + 1e-12).all()
        assert (smooth[one[:, 0]] <= math.exp(beta) * smooth[one[:, 1]] + 1e-12).all()


def each(cost: Callable[[np.ndarray], ss.PrivateCost], rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Cost and ladder of every row on its own."""
    found = [cost(row[None]) for row in rows]
    return np.array([one.rdp for one in found]), np.array([one.local_sensitivity for one in found])


@pytest.mark.parametrize("mechanism", [GNMax(0.8), GNMax(2.0), LNMax(2.0)], ids=str)
@pytest.mark.parametrize("n_classes", CLASSES)
def test_an_answers_ladder_dominates_brute_force(n_classes: int, mechanism: NoisyMax) -> None:
    for n_teachers, order in itertools.product(TEACHERS, (1.5, 6.0)):
        rows = histograms(n_teachers, n_classes)
        cost, ladder = each(lambda row, order=order: ss.answers_cost(row, mechanism.noise, order), rows)
        exact = exact_cost(mechanism, rows, np.array([order])).forward[:, 0]
        assert (exact <= cost * (1 + 1e-9)).all()
        assert ladder.shape == (len(rows), n_teachers + 1)
        check_ladder(ladder, cost, n_teachers, n_classes)


@pytest.mark.parametrize("sigma", [0.6, 2.0])
@pytest.mark.parametrize("threshold", [0.5, 3.0, 6.3])
def test_a_tests_ladder_dominates_brute_force(threshold: float, sigma: float) -> None:
    for n_teachers, n_classes, order in itertools.product(TEACHERS, (2, 3), (1.5, 6.0)):
        rows = histograms(n_teachers, n_classes)
        noise = DiscreteGaussian(sigma)
        cost, ladder = each(lambda row, order=order, noise=noise: ss.tests_cost(row, noise, threshold, order), rows)
        check_ladder(ladder, cost, n_teachers, n_classes)


@pytest.mark.parametrize("order", [2, 6, 14])
def test_a_test_costs_what_integer_noise_costs(order: int) -> None:
    """The published bound is for continuous noise: at 5 votes, order 6 and a largest count of 55 it is 4e-7 too low."""
    noise, threshold, n_teachers = DiscreteGaussian(5.0), 30.01, 60
    claimed = ss.rdp_of_test_by_largest(noise, threshold, order, n_teachers)
    with mpmath.workdps(60):
        mass = {z: exact_mass(noise, z) for z in range(-120, 121)}
        passes = {m: mpmath.fsum(p for z, p in mass.items() if m + z >= threshold) for m in range(-1, n_teachers + 2)}
        for m in range(n_teachers + 1):
            moments = [
                passes[m] ** order * passes[to] ** (1 - order)
                + (1 - passes[m]) ** order * (1 - passes[to]) ** (1 - order)
                for to in (m - 1, m + 1)
            ]
            exact = float(mpmath.log(max(moments)) / (order - 1))
            assert exact <= claimed[m] <= exact * (1 + 1e-6)


def random_histogram(n_classes: int, n_teachers: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    weights = generator.dirichlet(np.full(n_classes, 10 ** generator.uniform(-1.5, 1)))
    return generator.multinomial(n_teachers, weights)


@settings(max_examples=15, deadline=None)
@given(n_classes=st.integers(2, 10), wide=st.booleans(), seed=st.integers(0, 2**32))
def test_ladder_is_smooth_at_250_teachers(n_classes: int, wide: bool, seed: int) -> None:
    here = random_histogram(n_classes, 250, seed)
    source, target = np.argsort(-here)[np.random.default_rng(seed).permutation(n_classes)[:2]]
    there = here.copy()
    there[source] -= here[source] > 0
    there[target] += here[source] > 0
    noise = DiscreteGaussian(20.0 if wide else 6.0)
    one, other = (ss.answers_cost(row[None], noise, 5.0) for row in (here, there))
    assert abs(one.rdp - other.rdp) <= min(one.local_sensitivity[0], other.local_sensitivity[0]) + 1e-12
    assert (one.local_sensitivity[:-1] <= other.local_sensitivity[1:] + 1e-12).all()
    assert (other.local_sensitivity[:-1] <= one.local_sensitivity[1:] + 1e-12).all()


def test_confident_cost_adds_tests_and_answers() -> None:
    counts = np.array([[40, 5, 5], [20, 18, 12], [30, 15, 5], [40, 5, 5]])
    answered = np.array([True, False, False, True])
    mechanism = ConfidentGNMax(30, 12.0, 4.0)
    cost = mechanism.sanitised_cost(counts, answered, 5.0)
    tests = ss.tests_cost(counts, DiscreteGaussian(12.0), 30, 5.0)
    labels = ss.answers_cost(counts[answered], DiscreteGaussian(4.0), 5.0)
    assert cost.rdp == pytest.approx(tests.rdp + labels.rdp)
    assert labels.rdp == pytest.approx(2 * rdp_by_gap(DiscreteGaussian(4.0), 5.0, 3, 50)[35])
    assert cost.worst_case_rdp == pytest.approx(tests.worst_case_rdp + labels.worst_case_rdp)
    assert cost.worst_case_rdp <= 4 * 5 / (2 * 144) + 2 * 5 / 16
    np.testing.assert_allclose(cost.local_sensitivity, tests.local_sensitivity + labels.local_sensitivity)
    assert cost.label_draws == 4 * mechanism.noise_draws(3)
    assert str(cost.rdp)[:6] not in repr(cost)  # private figures are not printed
    nothing = mechanism.sanitised_cost(counts, np.zeros(4, dtype=bool), 5.0)
    assert nothing.rdp == pytest.approx(tests.rdp)


def test_no_answer_costs_more_than_it_is_charged() -> None:
    """What a run charges at most, test and answer, against the exact cost of both, from every histogram of 20 votes."""
    mechanism, order = ConfidentGNMax(12.0, 4.0, 5.0), 4.0
    rows = np.array([(a, b, 20 - a - b) for a in range(21) for b in range(a, 21 - a) if 20 - a - b >= b])
    exact = exact_cost(mechanism, rows, np.array([order])).forward[:, 0]
    charged = [mechanism.sanitised_cost(row[None], np.array([True]), order).rdp for row in rows]
    assert (exact <= np.array(charged)).all()


def test_a_record_changes_every_query_so_sensitivities_add_up() -> None:
    rows = [[20, 5, 5], [12, 10, 8], [30, 0, 0], [12, 10, 8]]
    together, *apart = (GNMax(6.0).sanitised_cost(np.array(some), np.ones(1, bool), 4.0).local_sensitivity
                        for some in (rows, *([row] for row in rows)))  # fmt: skip
    np.testing.assert_allclose(together, np.sum(apart, axis=0), rtol=1e-12)


@pytest.mark.slow
def test_mnist_votes(authors_votes: Callable[[str], np.ndarray]) -> None:
    """The setting of Papernot et al. 2018, Table 2: ConfidentGNMax, T = 200, sigma1 = 150, sigma2 = 40."""
    counts = authors_votes("mnist")[:640]
    answered = np.random.default_rng(0).random(640) < 0.44
    mechanism = ConfidentGNMax(200, 150.0, 40.0, 250)
    cost = mechanism.sanitised_cost(counts, answered, 10.0)
    exact = exact_cost(mechanism, counts, np.array([10.0])).forward.sum()
    assert exact < cost.rdp < 0.5 * cost.worst_case_rdp
    assert (np.diff(cost.local_sensitivity) >= -1e-15).all()


# The cost by the gap alone


def gaps(counts: np.ndarray) -> np.ndarray:
    ordered = np.sort(counts, axis=1)
    return np.asarray(ordered[:, -1] - ordered[:, -2])


NARROW = [GNMax(0.7), GNMax(3.0), LNMax(0.6), LNMax(3.0)]


@pytest.mark.parametrize("order", [1.3, 3.0, 8.0])
@pytest.mark.parametrize("mechanism", NARROW, ids=str)
def test_no_small_histogram_costs_more_than_its_gap_says(mechanism: NoisyMax, order: float) -> None:
    """Every histogram of up to 12 votes and 2 to 4 classes, some of 5, against all its neighbours, forward."""
    close = 0.0
    for votes, classes in [*itertools.product((1, 2, 5, 12), (2, 3, 4)), (7, 5)]:
        counts = np.unique(np.sort(histograms(votes, classes), axis=1), axis=0)
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


def test_noise_too_wide_to_search_costs_the_worst_case_at_every_gap() -> None:
    curve = rdp_by_gap(DiscreteGaussian(5000.0), 4.0, 10, 30)
    assert (curve == worst_case_rdp(DiscreteGaussian(5000.0), 4.0)).all()
