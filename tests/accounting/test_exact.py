"""The exact accountant against dumb enumeration, dp_accounting, known figures and what must always hold."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from pate.accounting.composition import gaussian_rdp, randomised_response_rdp, rdp_epsilon
from pate.accounting.exact import (
    EXACT_ORDERS,
    Curves,
    connect_the_dots,
    exact_cost,
    exact_epsilon,
    losses_epsilon,
    neighbour_outcomes,
    pld_epsilon,
    worst_divergences,
)
from pate.errors import PateError
from pate.mechanisms import ConfidentGNMax, GNMax, LNMax, Mechanism, MStab, MSvec

ORDERS = np.array([1.02, 1.5, 2.0, 7.0, 64.0, 3000.0])


@dataclass(frozen=True)
class OnlyLogOutcomes:
    """A mechanism with nothing but what the accountant asks for."""

    inner: Mechanism
    votes_per_record: int = 1
    priced_as_stream: ClassVar[bool] = False
    name: str = "only-log-outcomes"

    def log_outcomes(self, counts: NDArray[np.integer]) -> NDArray[np.float64]:
        return self.inner.log_outcomes(counts)


@dataclass(frozen=True)
class SomeAnswersImpossible:
    """If the plurality leads by 2, it with probability `chance`: one vote can make an answer impossible. Else ⊥.

    Or else the runner-up, with one probability of `behind` if the plurality leads by 2, and with the other if not.
    """

    chance: float = 0.5
    behind: tuple[float, float] = (0.0, 0.0)
    votes_per_record: int = 1
    priced_as_stream: ClassVar[bool] = False
    name: str = "some-answers-impossible"

    def log_outcomes(self, counts: NDArray[np.integer]) -> NDArray[np.float64]:
        places, rows = np.argsort(counts, axis=1, kind="stable"), np.arange(len(counts))
        leads = counts[rows, places[:, -1]] - counts[rows, places[:, -2]] >= 2
        chances = np.zeros((len(counts), counts.shape[1] + 1))
        chances[rows, places[:, -2]] = np.where(leads, *self.behind)
        chances[rows, places[:, -1]] = leads * self.chance
        chances[:, -1] = 1 - chances.sum(axis=1)
        with np.errstate(divide="ignore"):
            return np.log(chances)


def small_histograms(n_classes: int) -> list[tuple[int, ...]]:
    return [h for h in itertools.product(range(7), repeat=n_classes) if sum(h) <= 6]


def dumb_neighbours(histogram: tuple[int, ...]) -> list[tuple[int, ...]]:
    result = []
    for a, b in itertools.permutations(range(len(histogram)), 2):
        if histogram[a] >= 1:
            moved = list(histogram)
            moved[a] -= 1
            moved[b] += 1
            result.append(tuple(moved))
    return result


def dumb_divergence(log_p: NDArray[np.float64], log_q: NDArray[np.float64], order: float) -> float:
    exponents = []
    for a, b in zip(log_p, log_q, strict=True):
        if a == -math.inf:
            continue
        if b == -math.inf:
            return math.inf
        exponents.append(order * a + (1 - order) * b)
    top = max(exponents)
    return (top + math.log(math.fsum(math.exp(e - top) for e in exponents))) / (order - 1)


MECHANISMS = [
    LNMax(0.7),
    LNMax(4.0),
    GNMax(1.3),
    ConfidentGNMax(3.0, 1.5, 1.0),
    OnlyLogOutcomes(LNMax(2.0)),
    SomeAnswersImpossible(),
]


@pytest.mark.parametrize(
    ("mechanism", "n_classes"), [*itertools.product(MECHANISMS, (2, 3)), *((m, 1) for m in MECHANISMS[:-1])], ids=str
)
def test_every_small_histogram_against_enumeration(mechanism: Mechanism, n_classes: int) -> None:
    histograms = small_histograms(n_classes)
    cost = exact_cost(mechanism, np.array(histograms), ORDERS)
    own = {h: mechanism.log_outcomes(np.array([h]))[0] for h in histograms}
    for i, histogram in enumerate(histograms):
        for j, order in enumerate(ORDERS):
            there = [dumb_divergence(own[histogram], own[h], order) for h in dumb_neighbours(histogram)]
            back = [dumb_divergence(own[h], own[histogram], order) for h in dumb_neighbours(histogram)]
            assert cost.forward[i, j] == pytest.approx(max(there, default=0.0), rel=1e-9, abs=1e-12)
            assert cost.backward[i, j] == pytest.approx(max(back, default=0.0), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("mechanism", [LNMax(10.0), GNMax(15.0), ConfidentGNMax(60.0, 20.0, 10.0)], ids=str)
def test_quick_path_is_the_generic_path(mechanism: Mechanism) -> None:
    votes = np.random.default_rng(1).multinomial(100, [0.6, 0.2, 0.1, 0.05, 0.05, 0, 0, 0, 0, 0], size=8)
    quick, generic = (exact_cost(m, votes, ORDERS) for m in (mechanism, OnlyLogOutcomes(mechanism)))
    np.testing.assert_allclose(quick.forward, generic.forward, rtol=1e-9)
    np.testing.assert_allclose(quick.backward, generic.backward, rtol=1e-9)


def renyi_divergences(log_p: np.ndarray, log_q: np.ndarray, orders: np.ndarray) -> np.ndarray:
    return worst_divergences(log_p, log_q, np.arange(len(log_p)), orders)


def test_divergence_of_nearly_equal_distributions_keeps_its_digits() -> None:
    """D ≈ order·p(1 − p)·shift²/2 for two coins whose log-odds differ by `shift`."""
    p, shift = 0.3, 1e-7
    log_odds = math.log(p / (1 - p))
    coins = [[-math.log1p(math.exp(-x)), -math.log1p(math.exp(x))] for x in (log_odds, log_odds + shift)]
    found = renyi_divergences(np.array(coins[:1]), np.array(coins[1:]), ORDERS[:5])[0]
    np.testing.assert_allclose(found, ORDERS[:5] * p * (1 - p) * shift**2 / 2, rtol=1e-4)


@pytest.mark.parametrize("seed", range(4))
def test_orders_in_octaves_are_the_same_as_any_other(seed: int) -> None:
    """One by one, no order is reached by doubling; one row is so extreme that squaring would underflow."""
    rng = np.random.default_rng(seed)
    log_p, log_q = (np.log(rng.dirichlet([0.3, 1.0, 9.0], size=12)) for _ in range(2))
    log_p[0], log_q[0] = [0.0, -800.0, -900.0], [-1e-300, -1200.0, -700.0]
    together = renyi_divergences(log_p, log_q, EXACT_ORDERS[::5])
    one_by_one = [renyi_divergences(log_p, log_q, np.array([order])) for order in EXACT_ORDERS[::5]]
    np.testing.assert_allclose(together, np.concatenate(one_by_one, axis=1), rtol=1e-9, atol=1e-14)
    slow = [[dumb_divergence(p, q, order) for order in ORDERS] for p, q in zip(log_p, log_q, strict=True)]
    np.testing.assert_allclose(renyi_divergences(log_p, log_q, ORDERS), slow, rtol=1e-9, atol=1e-12)


histogram = st.integers(2, 6).flatmap(lambda k: st.lists(st.integers(0, 60), min_size=k, max_size=k))


@settings(max_examples=40, deadline=None)
@given(counts=histogram, scale=st.floats(0.3, 30.0), gaussian=st.booleans())
def test_cost_is_positive_grows_with_the_order_and_stays_below_the_worst_case(
    counts: list[int], scale: float, gaussian: bool
) -> None:
    mechanism = GNMax(scale) if gaussian else LNMax(scale)
    cost = exact_cost(mechanism, np.array([counts]))
    if gaussian:
        worst = gaussian_rdp(math.sqrt(2), scale, EXACT_ORDERS)
    else:
        worst = 2 * randomised_response_rdp(1 / scale, EXACT_ORDERS)
    for rdp in (cost.forward[0], cost.backward[0]):
        assert (rdp >= 0).all()
        assert (np.diff(rdp) >= -1e-9 * rdp[1:] - 1e-16).all()
        assert (rdp <= worst * (1 + 1e-9) + 1e-15).all()
        assert gaussian or rdp[-1] <= 2 / scale * (1 + 1e-9)


def test_cumulative_epsilon_is_that_of_the_first_queries() -> None:
    votes = np.random.default_rng(2).multinomial(40, [0.5, 0.3, 0.2], size=30)
    cost = exact_cost(LNMax(8.0), votes)
    curve = cost.cumulative_epsilon(1e-5)
    for n in (1, 2, 10, 30):
        assert curve[n - 1] == pytest.approx(exact_cost(LNMax(8.0), votes[:n]).epsilon(1e-5), rel=1e-12)


def test_larger_direction_counts_each_composed_on_its_own() -> None:
    cost = exact_cost(LNMax(3.0), np.array([[9, 1, 0], [5, 5, 0], [20, 0, 0]]))
    both = [rdp_epsilon(cost.orders, total.sum(axis=0), 1e-5)[0] for total in (cost.forward, cost.backward)]
    assert both[0] != both[1]
    assert cost.epsilon(1e-5) == max(both)


def test_mechanisms_that_move_more_votes_are_refused() -> None:
    with pytest.raises(PateError, match="votes"):
        exact_cost(OnlyLogOutcomes(LNMax(2.0), votes_per_record=2), np.array([[3, 1]]))


# Privacy loss distributions


def hockey_stick(p: NDArray[np.float64], q: NDArray[np.float64], epsilons: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(p[:, None] - np.exp(epsilons) * q[:, None], 0).sum(axis=0)


def one_histogram(p: NDArray[np.float64], q: NDArray[np.float64], interval: float, n: int, repeats: int) -> Curves:
    grid = np.arange(n + 1) * interval
    there, back = hockey_stick(p, q, grid)[None], hockey_stick(q, p, grid)[None]
    return Curves(interval, there, back, np.array([repeats]))


def test_connect_the_dots_is_dp_accountings() -> None:
    from dp_accounting.pld import pld_pmf

    p, q, n, interval = np.array([0.7, 0.25, 0.05]), np.array([0.5, 0.3, 0.2]), 40, 0.05
    grid = np.arange(-n, n + 1) * interval
    curves = one_histogram(p, q, interval, n, repeats=1)
    for (a, b), ours in (((p, q), curves), ((q, p), curves.reversed())):
        theirs = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -n, n, hockey_stick(a, b, grid))
        np.testing.assert_allclose(connect_the_dots(ours).mass[0], theirs.to_dense_pmf()._probs, atol=1e-13)


@pytest.mark.parametrize("delta", [1e-2, 1e-5, 1e-9])
def test_composition_is_dp_accountings_where_each_histogram_has_one_neighbour(delta: float) -> None:
    from dp_accounting.pld.privacy_loss_distribution import from_two_probability_mass_functions

    mechanism = LNMax(3.0)
    votes = np.repeat([[1, 0], [2, 0], [5, 0]], [30, 7, 20], axis=0)
    directions = []
    for flip in (False, True):
        total = None
        for n, repeats in ((1, 30), (2, 7), (5, 20)):
            pair = mechanism.log_outcomes(np.array([[n, 0], [n - 1, 1]]))[:, :2]
            own, moved = ({i: float(x) for i, x in enumerate(row)} for row in pair)
            lower, upper = (own, moved) if flip else (moved, own)
            pld = from_two_probability_mass_functions(lower, upper, value_discretization_interval=2e-4)
            pld = pld.self_compose(repeats)
            total = pld if total is None else total.compose(pld)
        directions.append(total._pmf_remove.get_epsilon_for_delta(delta))
    outcomes = neighbour_outcomes(mechanism, votes)
    assert pld_epsilon(outcomes, delta) == pytest.approx(max(directions), rel=5e-3)


def test_worst_neighbours_and_composition_are_those_of_dumb_loops_and_dp_accounting() -> None:
    from dp_accounting.pld import pld_pmf

    mechanism, delta, interval, n = ConfidentGNMax(12.0, 6.0, 4.0), 1e-4, 2e-3, 700
    votes = np.random.default_rng(4).multinomial(20, [0.6, 0.3, 0.1], size=12)
    grid = np.arange(-n, n + 1) * interval
    directions = []
    for flip in (False, True):
        total = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, 0, 0, [0.0])
        for row in votes:
            own, *others = np.exp(mechanism.log_outcomes(np.array([row, *dumb_neighbours(tuple(row))])))
            pairs = [(other, own) if flip else (own, other) for other in others]
            worst = np.max([hockey_stick(p, q, grid) for p, q in pairs], axis=0)
            pmf = pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(interval, -n, n, worst)
            total = pld_pmf.compose_pmfs(total, pmf)
        directions.append(total.get_epsilon_for_delta(delta))
    assert exact_epsilon(mechanism, votes, delta).pld == pytest.approx(max(directions), rel=5e-3)


SOLE_NEIGHBOUR: list[tuple[Any, int]] = [
    (LNMax(3.0), 4),
    (MStab(0.5, 1e-4), 2),
    (SomeAnswersImpossible(0.01, (0.6, 0.3)), 3),  # with finite losses beside the infinite one
]
"""Mechanisms, and the votes of a unanimous histogram; of two classes it has one neighbour."""


@pytest.mark.parametrize(("mechanism", "votes"), SOLE_NEIGHBOUR, ids=str)
@pytest.mark.parametrize("queries", [1, 2, 3])
def test_a_few_queries_cost_their_exact_divergence(mechanism: Mechanism, votes: int, queries: int) -> None:
    """With one neighbour δ(ε) is a finite sum over all answers; some, of any share of δ, cost infinitely."""
    one = [np.exp(row) for row in mechanism.log_outcomes(np.array([[votes, 0], [votes - 1, 1]]))]
    p, q = (functools.reduce(np.multiply.outer, [row] * queries).ravel() for row in one)
    beyond = max(p[q == 0].sum(), q[p == 0].sum())
    assert (beyond > 0) == (not isinstance(mechanism, LNMax))

    def needed(epsilon: float) -> float:
        return max(float(hockey_stick(a, b, np.array([epsilon]))[0]) for a, b in ((p, q), (q, p)))

    for delta in (1e-2, 1e-6) if beyond == 0 else (0.9 * beyond, 1.01 * beyond, 1.5 * beyond, 4 * beyond):
        found = exact_epsilon(mechanism, np.array([[votes, 0]] * queries), delta).pld
        assert (found == math.inf) == (delta < beyond)
        if found < math.inf:
            assert needed(found) <= delta * (1 + 1e-6)
            assert found == 0 or needed(found * 0.99) > delta * (1 - 2e-3)


def test_impossible_answers_cost_infinite_rdp_and_mass_at_infinity() -> None:
    mechanism = SomeAnswersImpossible()
    narrow, wide = [[4, 2]], [[9, 1]]
    assert exact_cost(mechanism, np.array(narrow)).forward.min() == math.inf
    assert exact_cost(mechanism, np.array(wide)).forward.max() == 0
    found = exact_epsilon(mechanism, np.array(narrow), 0.4)
    assert (found.rdp, found.pld, found.epsilon) == (math.inf, math.inf, math.inf)
    # δ(ε) = ½ forward; backward 1 − e^ε/2, which is ≤ 0.6 from ε = log 0.8 < 0 on
    assert exact_epsilon(mechanism, np.array(narrow), 0.6).pld == pytest.approx(0.0, abs=1e-6)
    assert exact_epsilon(mechanism, np.array(wide), 1e-6).epsilon == 0


def test_pld_is_an_upper_bound_that_halving_the_interval_does_not_move() -> None:
    votes = np.random.default_rng(3).multinomial(60, [0.6, 0.3, 0.1], size=5)
    outcomes = neighbour_outcomes(GNMax(8.0), votes)
    found = {guess: pld_epsilon(outcomes, 1e-5, guess) for guess in (math.inf, 1.0, 0.02)}
    assert max(found.values()) == pytest.approx(min(found.values()), rel=5e-3)


def test_composition_of_a_loss_too_rare_for_untilted_floating_point() -> None:
    """δ = 1e-25 is far below the rounding of an FFT of a distribution; the tilt keeps it in reach."""
    epsilon0, n = 0.5, 60
    keep = math.exp(epsilon0) / (1 + math.exp(epsilon0))
    p, q = np.array([keep, 1 - keep]), np.array([1 - keep, keep])
    found = losses_epsilon([connect_the_dots(one_histogram(p, q, 0.01, 50, repeats=n))], 1e-25)
    total = np.arange(n, -1, -1)
    mass = np.array([math.comb(n, k) * keep**k * (1 - keep) ** (n - k) for k in total.tolist()])
    loss = (2 * total - n) * epsilon0
    at_found = math.fsum(m * -math.expm1(found - x) for m, x in zip(mass, loss, strict=True) if x > found)
    assert at_found == pytest.approx(1e-25, rel=1e-3)


# The table of the design, on the votes that the papers' authors published

Votes = Callable[[str], NDArray[np.int64]]


@pytest.mark.parametrize(
    ("name", "queries", "delta", "mechanism", "rdp", "pld"),
    [
        ("mnist", 100, 1e-5, LNMax(20.0), 0.554, 0.531),
        ("svhn", 500, 1e-6, LNMax(10.0), 2.126, 2.118),
        ("svhn", 1000, 1e-6, LNMax(10.0), 3.065, 3.129),
        ("mnist", 640, 1e-5, ConfidentGNMax(200.0, 150.0, 40.0), 0.9236, 0.931),
    ],
)
def test_authors_votes(
    authors_votes: Votes, name: str, queries: int, delta: float, mechanism: Mechanism, rdp: float, pld: float
) -> None:
    found = exact_epsilon(mechanism, authors_votes(name)[:queries], delta)
    assert found.rdp == pytest.approx(rdp, rel=5e-3)
    assert found.pld == pytest.approx(pld, rel=5e-3)
    assert found.epsilon == min(found.rdp, found.pld)


@pytest.mark.slow
def test_authors_votes_svhn_confident(authors_votes: Votes) -> None:
    found = exact_epsilon(ConfidentGNMax(300.0, 200.0, 40.0), authors_votes("svhn")[:8500], 1e-6)
    assert found.rdp == pytest.approx(2.66, rel=1e-2)
    assert found.pld == pytest.approx(2.841, rel=5e-3)


@pytest.mark.parametrize(
    ("name", "queries", "delta", "mechanism"),
    [
        ("mnist", 1, 1e-5, LNMax(20.0)),
        ("svhn", 60, 1e-6, LNMax(10.0)),
        ("mnist", 40, 1e-8, ConfidentGNMax(200.0, 150.0, 40.0)),
    ],
)
def test_more_orders_would_not_help(
    authors_votes: Votes, name: str, queries: int, delta: float, mechanism: Mechanism
) -> None:
    """Half the step, and ten times the range at either end."""
    votes = authors_votes(name)[:queries]
    finer = 1 + 2.0 ** (np.arange(-530, 811) / 40)
    few, many = (exact_cost(mechanism, votes, orders).epsilon(delta) for orders in (EXACT_ORDERS, finer))
    assert few == pytest.approx(many, rel=5e-4)


def test_noise_too_narrow_for_floating_point_costs_no_less() -> None:
    assert exact_epsilon(GNMax(0.02), np.array([[5, 4, 0]]), 1e-5).epsilon > 1000


def test_streams_are_refused() -> None:
    with pytest.raises(PateError, match="share secret noise"):
        exact_cost(MSvec(8.0, 0.3, 1, 3), np.array([[3, 1]]))
