"""Smooth sensitivity of exact costs against brute force over every small histogram."""

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

from pate.accounting import sanitise as ss
from pate.accounting.exact import exact_cost
from pate.accounting.sanitise import rdp_by_gap
from pate.mechanisms import ConfidentGNMax, GNMax, LNMax
from pate.mechanisms.noisy_max import NoisyMax
from pate.noise.integer import DiscreteGaussian

CLASSES, TEACHERS = (2, 3, 4), (1, 2, 3, 5, 8)
BETAS = (0.01, 0.1, 0.7)


@lru_cache
def histograms(n_teachers: int, n_classes: int) -> np.ndarray:
    every = itertools.product(range(n_teachers + 1), repeat=n_classes)
    return np.array([row for row in every if sum(row) == n_teachers])


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


@pytest.mark.parametrize("mechanism", [GNMax(0.8), GNMax(2.0), LNMax(0.7), LNMax(2.0)], ids=str)
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


@settings(max_examples=30, deadline=None)
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


@pytest.mark.parametrize("counts", [[[1, 2], [2, 2]], [[1.5, 1.5]], [[-1, 4]], [[3], [3]], [1, 2], np.zeros((0, 3))])
def test_malformed_counts_are_refused(counts: object) -> None:
    with pytest.raises(ValueError, match=r"^counts: "):
        ss.answers_cost(counts, DiscreteGaussian(1.0), 2.0)  # type: ignore[arg-type]


def test_malformed_parameters_are_refused() -> None:
    noise = DiscreteGaussian(1.0)
    with pytest.raises(ValueError, match="answered must be"):
        ss.realised_cost([[3, 1]], [1], 2, noise, noise, 2.0)
    with pytest.raises(ValueError, match=r"order = 1\.0: must be"):
        ss.answers_cost([[3, 1]], noise, 1.0)
    with pytest.raises(ValueError, match=r"beta = 0\.0: must be"):
        ss.answers_cost([[3, 1]], noise, 2.0).smooth_sensitivity(0.0)


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
