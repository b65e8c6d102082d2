"""Smooth sensitivity against brute force over every small histogram, and against an independent Theorem 6."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from pate.accounting import smooth_sensitivity as ss

CLASSES, TEACHERS = (2, 3, 4), range(1, 9)
SIGMAS, ORDERS, BETAS = (0.6, 1.0, 2.0, 3.0), (1.3, 2.0, 4.0, 9.0), (0.01, 0.1, 0.7)


def published(log_q: float, sigma: float, order: float) -> float:
    """Theorem 6 with Proposition 10 as the paper writes it: mu1, mu2, eps1, eps2, A and B."""
    independent = order / sigma**2
    mu2 = sigma * math.sqrt(-log_q)
    mu1 = mu2 + 1
    if mu2 <= 1 or mu1 <= order:
        return independent
    eps1, eps2, q = mu1 / sigma**2, mu2 / sigma**2, math.exp(log_q)
    if log_q > (mu2 - 1) * eps2 - mu2 * math.log(mu1 / (mu1 - 1) * mu2 / (mu2 - 1)):
        return independent
    log_a = math.log1p(-q) - math.log1p(-math.exp((log_q + eps2) * (1 - 1 / mu2)))
    log_b = eps1 - log_q / (mu1 - 1)
    log_sum = np.logaddexp(math.log1p(-q) + (order - 1) * log_a, log_q + (order - 1) * log_b)
    return min(independent, float(log_sum) / (order - 1))


def published_gnmax(histogram: tuple[int, ...], sigma: float, order: float) -> float:
    top, *rest = sorted(histogram, reverse=True)
    q = sum(0.5 * math.erfc((top - other) / (2 * sigma)) for other in rest)
    return published(math.log(min(q, 1 - 1 / len(histogram))), sigma, order)


def published_threshold(histogram: tuple[int, ...], threshold: float, sigma: float, order: float) -> float:
    less_likely = 0.5 * math.erfc(abs(threshold - max(histogram)) / (sigma * math.sqrt(2)))
    return published(math.log(less_likely), math.sqrt(2) * sigma, order)


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


def brute_force_ladder(cost: np.ndarray, distance: np.ndarray, n_teachers: int) -> np.ndarray:
    local = np.where(distance <= 1, np.abs(cost[:, None] - cost), 0.0).max(axis=1)
    return np.stack([np.where(distance <= d, local, 0.0).max(axis=1) for d in range(n_teachers + 1)], axis=1)


def check_ladder(ladder: np.ndarray, cost: np.ndarray, n_teachers: int, n_classes: int) -> np.ndarray:
    """The promises of the bound; returns the true local sensitivity at every distance."""
    distance = distances(n_teachers, n_classes)
    true = brute_force_ladder(cost, distance, n_teachers)
    assert (ladder >= true - 1e-12).all()
    one = np.argwhere(distance == 1)
    assert (ladder[one[:, 0], :-1] <= ladder[one[:, 1], 1:] + 1e-12).all()
    for beta in BETAS:
        smooth = ss.discounted_maximum(ladder, beta)
        assert (np.abs(cost[one[:, 0]] - cost[one[:, 1]]) <= smooth[one[:, 0]] + 1e-12).all()
        assert (smooth[one[:, 0]] <= math.exp(beta) * smooth[one[:, 1]] + 1e-12).all()
    return true


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("n_classes", CLASSES)
def test_gnmax_bound_dominates_brute_force(n_classes: int, sigma: float) -> None:
    active = 0
    more = (
        (11, 14)[: 5 - n_classes] if sigma == 3.0 else ()
    )  # eight votes are too few for the bound to leave the worst case
    for n_teachers, order in itertools.product((*TEACHERS, *more), ORDERS):
        rows = histograms(n_teachers, n_classes)
        cost = ss.gnmax_rdp(rows, sigma, order)
        expected = [published_gnmax(tuple(row), sigma, order) for row in rows]
        np.testing.assert_allclose(cost, expected, rtol=1e-9, atol=1e-14)
        ladder = ss.gnmax_local_sensitivity(rows, sigma, order)
        assert ladder.shape == (len(rows), n_teachers + 1)
        true = check_ladder(ladder, cost, n_teachers, n_classes)
        ordered = np.sort(rows, axis=1)
        clear = ordered[:, -1] - ordered[:, -2] >= 2
        np.testing.assert_allclose(ladder[clear, 0], true[clear, 0], rtol=1e-9, atol=1e-14)
        active += int((cost < 0.9 * order / sigma**2).any())
    assert active >= {0.6: 10, 1.0: 10, 2.0: 5, 3.0: 2}[sigma]  # the bound was put to the test


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("threshold", [0.5, 3.0, 6.3])
def test_threshold_bound_dominates_brute_force(threshold: float, sigma: float) -> None:
    for n_teachers, n_classes, order in itertools.product(TEACHERS, CLASSES, ORDERS):
        rows = histograms(n_teachers, n_classes)
        cost = ss.threshold_rdp(rows, threshold, sigma, order)
        expected = [published_threshold(tuple(row), threshold, sigma, order) for row in rows]
        np.testing.assert_allclose(cost, expected, rtol=1e-9, atol=1e-14)
        check_ladder(ss.threshold_local_sensitivity(rows, threshold, sigma, order), cost, n_teachers, n_classes)


@pytest.mark.parametrize("n_classes", CLASSES)
def test_extreme_q_within_d_votes(n_classes: int) -> None:
    for n_teachers, sigma in itertools.product(TEACHERS, SIGMAS):
        rows = histograms(n_teachers, n_classes)
        log_q = ss.gnmax_log_q(rows, sigma)
        ordered = -np.sort(-rows, axis=1)
        least, most = ss.least_log_q(ordered, sigma), ss.most_log_q(ordered, sigma)
        gap = ordered[:, 0] - ordered[:, 1]
        for d in range(n_teachers + 1):
            near = distances(n_teachers, n_classes) <= d
            np.testing.assert_allclose(least[:, d], np.where(near, log_q, np.inf).min(axis=1), rtol=1e-9, atol=1e-12)
            true = np.where(near, log_q, -np.inf).max(axis=1)
            exact = 2 * d <= gap
            np.testing.assert_allclose(most[exact, d], true[exact], rtol=1e-9, atol=1e-12)
            assert (most[:, d] >= true - 1e-12).all()


def random_histogram(n_classes: int, n_teachers: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    weights = generator.dirichlet(np.full(n_classes, 10 ** generator.uniform(-1.5, 1)))
    return generator.multinomial(n_teachers, weights)


@settings(max_examples=40, deadline=None)
@given(n_classes=st.integers(2, 10), sigma=st.floats(1, 60), seed=st.integers(0, 2**32))
def test_one_vote_takes_q_no_further_than_the_curve(n_classes: int, sigma: float, seed: int) -> None:
    row = random_histogram(n_classes, 250, seed)
    moves = [
        np.eye(n_classes, dtype=int)[b] - np.eye(n_classes, dtype=int)[a]
        for a, b in itertools.permutations(range(n_classes), 2)
        if row[a]
    ]
    log_q, *after = ss.gnmax_log_q(np.array([row, *(row + move for move in moves)]), sigma)

    def distance(place: float) -> float:
        return float(ss.one_vote_up(np.array(place), sigma, n_classes)[0] - log_q)

    place = brentq(distance, -1.0, 260 / sigma + 5, xtol=1e-13)
    bound = float(ss.one_vote_up(np.array(place), sigma, n_classes)[1])
    assert max(after) <= bound + 1e-9 * abs(bound) + 1e-12
    if log_q > -700:
        share = -norm.isf(math.exp(log_q) / (n_classes - 1))
        papers = math.log(n_classes - 1) + norm.logcdf(share + math.sqrt(2) / sigma)  # B_U: every gap by two
        assert bound <= papers + 1e-9 * abs(papers)


@settings(max_examples=150, deadline=None)
@given(sigma=st.floats(0.3, 300), order=st.floats(1.01, 300), low=st.floats(1e-4, 1), ratio=st.floats(1, 4))
def test_published_bound_never_decreases_in_q(sigma: float, order: float, low: float, ratio: float) -> None:
    x = max(1.0, order - 1) / low * np.linspace(1, ratio, 400)  # ln q = -(x / sigma)², descending
    cost = ss.rdp_from_log_q(-((x / sigma) ** 2), sigma, order)
    assert (np.diff(cost) <= 1e-12 * order / sigma**2).all()
    expected = [published(-((value / sigma) ** 2), sigma, order) for value in x[1::40]]
    np.testing.assert_allclose(cost[1::40], expected, rtol=1e-6, atol=1e-12)


@settings(max_examples=30, deadline=None)
@given(n_classes=st.integers(2, 10), sigma=st.floats(2, 50), order=st.floats(1.2, 40), seed=st.integers(0, 2**32))
def test_ladder_is_smooth_at_250_teachers(n_classes: int, sigma: float, order: float, seed: int) -> None:
    here = random_histogram(n_classes, 250, seed)
    source, target = np.argsort(-here)[np.random.default_rng(seed).permutation(n_classes)[:2]]
    there = here.copy()
    there[source] -= here[source] > 0
    there[target] += here[source] > 0
    counts = np.stack([here, there])
    cost, ladder = ss.gnmax_rdp(counts, sigma, order), ss.gnmax_local_sensitivity(counts, sigma, order)
    assert abs(cost[0] - cost[1]) <= ladder[:, 0].min() + 1e-12
    assert (ladder[0, :-1] <= ladder[1, 1:] + 1e-12).all()
    assert (ladder[1, :-1] <= ladder[0, 1:] + 1e-12).all()


def test_cost_and_ladder_see_the_same_bits() -> None:
    counts = np.stack([random_histogram(10, 250, seed) for seed in range(200)])
    ordered = -np.sort(-counts, axis=1)
    np.testing.assert_array_equal(ss.gnmax_log_q(counts, 40.0), ss.least_log_q(ordered, 40.0)[:, 0])
    np.testing.assert_array_equal(ss.gnmax_log_q(counts, 40.0), ss.most_log_q(ordered, 40.0)[:, 0])


def test_confident_cost_adds_tests_and_answers() -> None:
    counts = np.array([[40, 5, 5], [20, 18, 12], [30, 15, 5], [40, 5, 5]])
    answered = np.array([True, False, False, True])
    cost = ss.confident_gnmax_cost(counts, answered, 30, 12.0, 4.0, 5.0)
    tests, labels = ss.threshold_rdp(counts, 30, 12.0, 5.0), ss.gnmax_rdp(counts, 4.0, 5.0)
    assert cost.rdp == pytest.approx(tests.sum() + labels[answered].sum())
    assert cost.worst_case_rdp == pytest.approx(4 * 5 / (2 * 144) + 2 * 5 / 16)
    ladder = ss.threshold_local_sensitivity(counts, 30, 12.0, 5.0).sum(axis=0)
    ladder = ladder + 2 * ss.gnmax_local_sensitivity(counts, 4.0, 5.0)[0]
    np.testing.assert_allclose(cost.local_sensitivity, ladder)
    assert str(cost.rdp)[:6] not in repr(cost)  # private figures are not printed
    nothing = ss.confident_gnmax_cost(counts, np.zeros(4, dtype=bool), 30, 12.0, 4.0, 5.0)
    assert nothing.rdp == pytest.approx(tests.sum())


def test_a_record_changes_every_query_so_sensitivities_add_up() -> None:
    rows = [[20, 5, 5], [12, 10, 8], [30, 0, 0], [12, 10, 8]]
    together, *each = (ss.gnmax_cost(some, 6.0, 4.0).local_sensitivity for some in (rows, *([row] for row in rows)))
    np.testing.assert_allclose(together, np.sum(each, axis=0), rtol=1e-12)


def test_summing_before_the_maximum_is_no_worse() -> None:
    counts = np.stack([random_histogram(5, 60, seed) for seed in range(20)])
    cost = ss.gnmax_cost(counts, 5.0, 4.0)
    each = ss.discounted_maximum(ss.gnmax_local_sensitivity(counts, 5.0, 4.0), 0.05)
    assert 0 < cost.smooth_sensitivity(0.05) <= each.sum() + 1e-12


@pytest.mark.parametrize("counts", [[[1, 2], [2, 2]], [[1.5, 1.5]], [[-1, 4]], [[3], [3]], [1, 2], np.zeros((0, 3))])
def test_malformed_counts_are_refused(counts: object) -> None:
    with pytest.raises(ValueError, match=r"^counts: "):
        ss.gnmax_cost(counts, 1.0, 2.0)  # type: ignore[arg-type]


def test_malformed_parameters_are_refused() -> None:
    with pytest.raises(ValueError, match="answered must be"):
        ss.confident_gnmax_cost([[3, 1]], [1], 2, 1.0, 1.0, 2.0)
    with pytest.raises(ValueError, match=r"order = 1\.0: must be"):
        ss.gnmax_cost([[3, 1]], 1.0, 1.0)
    with pytest.raises(ValueError, match=r"beta = 0\.0: must be"):
        ss.gnmax_cost([[3, 1]], 1.0, 2.0).smooth_sensitivity(0.0)


def test_mnist_votes(authors_votes: Callable[[str], np.ndarray]) -> None:
    """The setting of Papernot et al. 2018, Table 2: ConfidentGNMax, T = 200, sigma1 = 150, sigma2 = 40."""
    counts = authors_votes("mnist")[:640]
    answered = np.random.default_rng(0).random(640) < 0.44
    cost = ss.confident_gnmax_cost(counts, answered, 200, 150.0, 40.0, 14.0)
    assert 0 < cost.rdp < cost.worst_case_rdp
    ladder = cost.local_sensitivity
    assert (np.diff(ladder) >= -1e-15).all()
    clear = counts[counts.max(axis=1) >= 180][:12]
    for row, bound in zip(clear, ss.gnmax_local_sensitivity(clear, 40.0, 14.0), strict=True):
        walked = walk(row, 40.0, 14.0)
        assert (bound[: len(walked)] >= walked - 1e-12).all()
        assert walked.max() > 0.75 * bound.max()  # single moves come close to the bound


def walk(row: np.ndarray, sigma: float, order: float) -> np.ndarray:
    """Largest step met so far while votes move one by one from the plurality to the runner-up."""
    top, second, *rest = sorted(row.tolist(), reverse=True)
    path = [[top - d, second + d, *rest] for d in range((top - second) // 2 + 1)]
    return np.maximum.accumulate(np.abs(np.diff(ss.gnmax_rdp(np.array(path), sigma, order))))
