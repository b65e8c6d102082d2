"""The tight worst case holds for every histogram, and is not far above what some histogram costs."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from support.exact_noise import exact_mass
from support.small_votes import pairs_of_outcomes, renyi

from pate.accounting._histogram_grid import (
    TOLERANCE,
    Outcomes,
    Plane,
    _search,
    block_bounds,
    largest_excess,
    moment_excess,
    threshold_excesses,
    two_class_excesses,
)
from pate.accounting.composition import ORDERS, gaussian_rdp, randomised_response_rdp, rdp_epsilon
from pate.accounting.worst_case import threshold_test_rdp, worst_case_rdp
from pate.mechanisms import ConfidentGNMax, GNMax, LNMax
from pate.mechanisms.noisy_max import NoisyMax
from pate.noise.integer import DiscreteGaussian, DiscreteLaplace, IntegerNoise

SMALL = [DiscreteGaussian(1.5), DiscreteGaussian(3.0), DiscreteLaplace(1.0), DiscreteLaplace(2.0)]
MECHANISMS = [GNMax(0.5), GNMax(1.5), GNMax(3.0), LNMax(0.5), LNMax(1.0), LNMax(4.0)]


def largest_cost(mechanism: NoisyMax, order: float, sizes: list[tuple[int, int]]) -> float:
    """The largest divergence between any histogram of these (votes, classes) and any neighbour of it."""
    return max(float(renyi(*pairs_of_outcomes(mechanism, votes, classes), order).max()) for votes, classes in sizes)


def closed_form(noise: IntegerNoise, order: float) -> float:
    orders = np.array([order])
    if isinstance(noise, DiscreteGaussian):
        return float(gaussian_rdp(math.sqrt(2), noise.scale, orders)[0])
    return 2 * float(randomised_response_rdp(1 / noise.scale, orders)[0])


@pytest.mark.parametrize("order", [1.1, 2.0, 10.0])
@pytest.mark.parametrize("mechanism", MECHANISMS, ids=str)
def test_no_small_histogram_costs_more(mechanism: NoisyMax, order: float) -> None:
    sizes = [(1, 2), (5, 2), (6, 2), (2, 3), (5, 3), (6, 3), (4, 4)]
    attained = largest_cost(mechanism, order, sizes)
    claimed = worst_case_rdp(mechanism.noise, order)
    assert attained <= claimed * (1 + 1e-9)
    if order <= 2:  # six votes reach the worst case of low orders only
        assert claimed <= 1.11 * attained


@pytest.mark.parametrize(
    ("mechanism", "order", "lead", "within"),
    [
        (GNMax(40.0), 2.0, 0, 1.007),
        (GNMax(40.0), 30.0, -32, 1.007),
        (GNMax(10.0), 30.0, -50, 1.01),
        (GNMax(3.0), 10.0, -16, 1.01),
        (LNMax(20.0), 3.0, 0, 1.002),
        (LNMax(20.0), 30.0, -8, 1.002),
        (LNMax(20.0), 100.0, -33, 1.07),
    ],
)
def test_two_classes_come_close(mechanism: NoisyMax, order: float, lead: int, within: float) -> None:
    counts = np.array([[100 + lead, 100], [99 + lead, 101]])
    log_p, log_q = mechanism.log_outcomes(counts)[:, :2]
    attained = renyi(log_p, log_q, order)
    assert attained <= worst_case_rdp(mechanism.noise, order) <= within * attained


@pytest.mark.parametrize(
    ("noise", "order", "ratio"),
    [
        (DiscreteGaussian(40.0), 2.0, 1.561),
        (DiscreteGaussian(40.0), 30.0, 1.532),
        (DiscreteGaussian(10.0), 30.0, 1.192),
        (DiscreteLaplace(20.0), 3.0, 1.998),
        (DiscreteLaplace(20.0), 30.0, 1.868),
    ],
)
def test_closed_form_over_worst_case(noise: IntegerNoise, order: float, ratio: float) -> None:
    assert closed_form(noise, order) / worst_case_rdp(noise, order) == pytest.approx(ratio, abs=2e-3)


def winner_by_hand(
    noise: IntegerNoise, x: int, y: int, rival: NDArray[np.float64], priorities: tuple[str, ...]
) -> dict[str, float]:
    """Outcome probabilities by listing all noises; `priorities` are equally likely, the first wins ties."""
    z = np.arange(-40, 41)
    weight = np.exp(noise.log_pmf(z))
    level = np.arange(len(rival))
    v = {"a": (x + z)[:, None, None], "b": (y + z)[None, :, None], "r": level[None, None, :]}
    weights = weight[:, None, None] * weight[None, :, None] * rival[None, None, :]
    chances = dict.fromkeys("abr", 0.0)
    for priority in priorities:
        key = {c: 3 * v[c] + (2 - priority.index(c)) for c in "abr"}
        top = np.maximum(np.maximum(key["a"], key["b"]), key["r"])
        for c in "abr":
            chances[c] += float(weights[key[c] == top].sum()) / len(priorities)
    return chances


def rival_pmf(noise: IntegerNoise) -> NDArray[np.float64]:
    q = noise.tail_ratio
    return (1 - q) * q ** np.arange(60) if q else np.array([1.0])


@pytest.mark.parametrize("noise", [DiscreteGaussian(1.5), DiscreteLaplace(1.0)], ids=str)
@pytest.mark.parametrize(("loses_ties", "priorities"), [(True, ("abr", "bar")), (False, ("arb", "bra"))])
def test_outcomes_by_hand(noise: IntegerNoise, loses_ties: bool, priorities: tuple[str, ...]) -> None:
    outcomes = Outcomes(Plane(noise, 3.0), loses_ties)
    for x, y in [(0, 0), (-3, 2), (4, -1), (5, 6), (-2, -2), (1, 0)]:
        expected = winner_by_hand(noise, x, y, rival_pmf(noise), priorities)
        xs, ys = np.array([x]), np.array([y])
        rival = sum(np.exp(outcomes.log_rival(xs, ys, coin))[0] for coin in outcomes.coins)
        assert np.exp(outcomes.log_win(xs, ys))[0] == pytest.approx(expected["a"], rel=1e-10)
        assert np.exp(outcomes.log_win(ys, xs))[0] == pytest.approx(expected["b"], rel=1e-10)
        assert rival == pytest.approx(expected["r"], rel=1e-10)


@pytest.mark.parametrize("mechanism", [GNMax(2.0), LNMax(1.5)], ids=str)
def test_the_cases_mix_to_the_mechanism(mechanism: NoisyMax) -> None:
    """One rival: its priority is above, between or below those of a and b with probability 1/3 each."""
    noise, counts = mechanism.noise, (7, 9, 8)
    plane = Plane(noise, 3.0)
    loses, coin = Outcomes(plane, True), Outcomes(plane, False)
    start = np.arange(-26, 26 if noise.tail_ratio == 0 else 1)  # discrete Laplace = geometric − geometric
    weight = np.exp(noise.log_pmf(start))
    if noise.tail_ratio:
        weight = (1 - noise.tail_ratio) * noise.tail_ratio ** (-start)
    x, y = counts[0] - counts[2] - start, counts[1] - counts[2] - start
    cases = np.exp([loses.log_win(x, y), loses.log_win(x - 1, y - 1), coin.log_win(x, y)])
    exact = np.exp(mechanism.log_outcomes(np.array([counts])))[0, 0]
    assert weight @ cases.mean(axis=0) == pytest.approx(exact, rel=1e-6)


def case_moments(plane: Plane, loses_ties: bool, x: NDArray[np.int64], y: NDArray[np.int64]) -> list:
    outcomes = Outcomes(plane, loses_ties)
    before = [outcomes.log_win(x, y), outcomes.log_win(y, x)]
    after = [outcomes.log_win(x - 1, y + 1), outcomes.log_win(y + 1, x - 1)]
    for coin in outcomes.coins:
        before.append(outcomes.log_rival(x, y, coin))
        after.append(outcomes.log_rival(x - 1, y + 1, coin))
    return list(zip(before, after, strict=True))


def square(low: int, high: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    x, y = np.meshgrid(np.arange(low, high), np.arange(low, high), indexing="ij")
    return x.ravel(), y.ravel()


@pytest.mark.parametrize(
    ("noise", "order"),
    [
        *itertools.product([*SMALL, DiscreteGaussian(6.0), DiscreteLaplace(4.0)], (1.5, 6.0)),
        (DiscreteGaussian(0.4), 1.2),  # worst where a and b share their ties with the rival
        (DiscreteLaplace(0.6), 12.0),  # worst, by far, where the rival loses its ties
    ],
    ids=str,
)
def test_blocks_find_the_largest_of_the_whole_grid(noise: IntegerNoise, order: float) -> None:
    plane = Plane(noise, order)
    x, y = square(math.ceil(-4 * noise.scale) - 2, math.ceil(7 * noise.scale) + 2)
    largest = 0.0
    for loses_ties in (True, False):
        pairs = case_moments(plane, loses_ties, x, y)
        largest = max(largest, float(sum(moment_excess(p, q, order) for p, q in pairs).max()))
    for limit_case in (two_class_excesses, threshold_excesses):
        largest = max(largest, float(limit_case(noise, plane.radius, order).max()))
    assert plane.with_slack(largest) <= largest_excess(plane) <= largest * (1 + 2 * TOLERANCE)
    assert largest_excess(plane) <= math.expm1((order - 1) * worst_case_rdp(noise, order)), "rounded up"


@pytest.mark.parametrize("noise", [DiscreteGaussian(6.0), DiscreteLaplace(4.0)], ids=str)
@pytest.mark.parametrize("loses_ties", [True, False])
def test_what_is_not_searched_further_still_counts(noise: IntegerNoise, loses_ties: bool) -> None:
    """However much is known to be attained elsewhere, the bound covers every point of this plane."""
    order = 3.0
    plane = Plane(noise, order)
    pairs = case_moments(plane, loses_ties, *square(math.ceil(-4 * noise.scale), math.ceil(7 * noise.scale)))
    largest = float(sum(moment_excess(p, q, order) for p, q in pairs).max())
    for attained in (0.0, largest, 2 * largest, 10 * largest):
        assert _search(plane, Outcomes(plane, loses_ties), attained) >= largest


@pytest.mark.parametrize("noise", [DiscreteGaussian(6.0), DiscreteLaplace(4.0)], ids=str)
@pytest.mark.parametrize("loses_ties", [True, False])
def test_a_blocks_bound_covers_each_of_its_points(noise: IntegerNoise, loses_ties: bool) -> None:
    plane, size = Plane(noise, 3.0), 4
    outcomes = Outcomes(plane, loses_ties)
    x, y = (size * corner for corner in square(-3, 6))
    bound, _ = block_bounds(plane, outcomes, x, y, size)
    for right, up in itertools.product(range(size), repeat=2):
        inside, _ = block_bounds(plane, outcomes, x + right, y + up, 1)
        assert (inside <= bound * (1 + 1e-9)).all()


def test_a_rival_is_smoothed_over_rows_of_any_length() -> None:
    outcomes = Outcomes(Plane(DiscreteLaplace(0.3), 3.0), True)
    ratio, rows = math.exp(-1 / 0.3), np.random.default_rng(0).random((2, 500))
    expected, last = [], np.zeros(2)
    for column in rows.T:
        last = (1 - ratio) * column + ratio * last
        expected.append(last)
    np.testing.assert_allclose(outcomes._smooth(rows.copy()), np.stack(expected, axis=1), rtol=1e-12)


@pytest.mark.parametrize("mechanism", [GNMax(1.5), GNMax(6.0), LNMax(2.0)], ids=str)
@pytest.mark.parametrize("order", [1.5, 6.0])
def test_two_classes_by_the_mechanism_itself(mechanism: NoisyMax, order: float) -> None:
    leads = np.arange(-60, 61)
    before, after = (
        mechanism.log_outcomes(np.stack([100 + leads - moved, np.full_like(leads, 100 + moved)], axis=1))[:, :2]
        for moved in (0, 1)
    )
    largest = float(sum(moment_excess(before[:, i], after[:, i], order) for i in (0, 1)).max())
    radius = Plane(mechanism.noise, order).radius
    assert two_class_excesses(mechanism.noise, radius, order).max() == pytest.approx(largest, rel=1e-9)


@pytest.mark.parametrize("noise", SMALL, ids=str)
@pytest.mark.parametrize("loses_ties", [True, False])
def test_likelihood_ratios_fall_with_x_and_rise_with_y(noise: IntegerNoise, loses_ties: bool) -> None:
    side = np.arange(-12, 16)
    for p, q in case_moments(Plane(noise, 3.0), loses_ties, *square(side[0], side[-1] + 1)):
        ratio = (p - q).reshape(len(side), len(side))
        assert np.diff(ratio, axis=0).max() <= 1e-9
        assert np.diff(ratio, axis=1).min() >= -1e-9


@pytest.mark.parametrize("noise", [DiscreteLaplace(1.0), DiscreteLaplace(3.0)], ids=str)
@pytest.mark.parametrize("loses_ties", [True, False])
@pytest.mark.parametrize("order", [1.5, 8.0])
def test_laplace_below_zero_is_between_two_cases(noise: IntegerNoise, loses_ties: bool, order: float) -> None:
    """For x ≤ 0 or y ≤ −1 both distributions are affine along the axis: a border case or a test is worse."""
    plane = Plane(noise, order)
    x, y = square(-15, 15)
    excess = sum(moment_excess(p, q, order) for p, q in case_moments(plane, loses_ties, x, y)).reshape(30, 30)
    test = float(threshold_excesses(noise, plane.radius, order).max())
    at_zero, at_minus_one = excess[15:16, :], excess[:, 14:15]
    assert (excess[:16] <= np.maximum(at_zero, test) * (1 + 1e-9)).all()
    assert (excess[:, :15] <= np.maximum(at_minus_one, test) * (1 + 1e-9)).all()


@pytest.mark.parametrize("noise", [DiscreteGaussian(0.7), DiscreteGaussian(20.0)], ids=str)
@pytest.mark.parametrize("order", [1.3, 5.0])
def test_threshold_test_against_mpmath(noise: IntegerNoise, order: float) -> None:
    reach = math.ceil(14 * noise.scale)
    with mpmath.workdps(120):
        mass = [mpmath.exp(-(mpmath.mpf(k) ** 2) / (2 * mpmath.mpf(noise.scale) ** 2)) for k in range(reach + 1)]
        total = mass[0] + 2 * sum(mass[1:])
        tail = list(itertools.accumulate(mass[abs(k)] / total for k in range(reach, -reach, -1)))
        divergences = [
            mpmath.log(p**order * q ** (1 - order) + (1 - p) ** order * (1 - q) ** (1 - order)) / (order - 1)
            for before, after in itertools.pairwise(tail)
            for p, q in ((before, after), (after, before))
        ]
        worst = float(max(divergences))
    assert worst <= threshold_test_rdp(noise, order) <= worst * (1 + 1e-5)


@pytest.mark.parametrize("noise", SMALL, ids=str)
@pytest.mark.parametrize("order", [1.5, 6.0])
def test_what_lies_beyond_the_search_is_bounded_by_the_slack(noise: IntegerNoise, order: float) -> None:
    """3·m·(the moment's tail from radius − 1 on) + m²·P(the rival is more than `drop` up), summed in 60 digits."""
    plane = Plane(noise, order)
    with mpmath.workdps(60):
        reach = 3 * noise.half_width() + 100
        mass = {k: exact_mass(noise, k) for k in range(reach + 2)}
        terms = {w: mass[abs(w)] ** order * mass[abs(w + 1)] ** (1 - order) for w in range(-reach, reach + 1)}
        moment = mpmath.fsum(terms.values())
        beyond = 3 * moment * mpmath.fsum(term for w, term in terms.items() if w >= plane.radius - 1)
        if noise.tail_ratio:
            beyond += moment**2 * mpmath.mpf(noise.tail_ratio) ** (plane.drop + 1)
        slack = float(beyond)
        after = float((1 + mpmath.mpf("0.25")) * (1 - beyond) ** (1 - order) + order * beyond - 1)
    assert plane.slack == pytest.approx(slack, rel=1e-6)
    assert plane.with_slack(0.25) - 0.25 == pytest.approx(after - 0.25, rel=1e-6)


@pytest.mark.parametrize("order", [1.3, 5.0])
def test_a_threshold_test_has_its_slack(order: float) -> None:
    noise = DiscreteGaussian(20.0)
    plane = Plane(noise, order)
    inside = float(threshold_excesses(noise, plane.radius, order).max())
    assert plane.slack > 0
    assert math.expm1((order - 1) * threshold_test_rdp(noise, order)) >= plane.with_slack(inside)


def test_no_confidence_test_costs_more() -> None:
    mechanism = ConfidentGNMax(threshold=4.0, sigma1=2.0, sigma2=5.0)
    counts = np.array([[n, 12 - n] for n in range(6, 13)])
    declined = mechanism.log_outcomes(counts)[:, -1]
    test = np.stack([declined, np.log1p(-np.exp(declined))], axis=1)
    for order in (1.5, 4.0):
        for before, after in itertools.pairwise(test):
            claimed = threshold_test_rdp(DiscreteGaussian(2.0), order)
            assert max(renyi(before, after, order).max(), renyi(after, before, order).max()) <= claimed


@pytest.mark.parametrize("noise", [DiscreteGaussian(0.3), DiscreteGaussian(5.0), DiscreteLaplace(5.0)], ids=str)
def test_monotone_in_the_order_and_below_the_closed_form(noise: IntegerNoise) -> None:
    orders = [1.01, 2.0, 9.0, 60.0, 3000.0]
    for cost, counts in ((worst_case_rdp, 2), (threshold_test_rdp, 1)):
        costs = np.array([cost(noise, order) for order in orders])
        assert (np.diff(costs) >= 0).all()
        known = np.array([closed_form(noise, order) * counts / 2 for order in orders])
        assert (costs <= known * (1 + 1e-7)).all()


def test_too_large_for_the_search_is_the_closed_form() -> None:
    for noise, order in [
        (DiscreteGaussian(5000.0), 3.0),
        (DiscreteLaplace(5000.0), 3.0),
        (DiscreteGaussian(2.0), 500.0),
    ]:
        assert worst_case_rdp(noise, order) == pytest.approx(closed_form(noise, order), rel=1e-6)
        assert worst_case_rdp(noise, order) >= closed_form(noise, order), "rounded up"


@pytest.mark.parametrize(
    ("mechanism", "asked", "answered", "closed", "tight"),
    [
        (LNMax(20.0), 100, 100, 3.155, 2.135),
        (GNMax(8.0), 100, 100, 9.234, 7.101),
        (ConfidentGNMax(200.0, 150.0, 40.0), 640, 300, 2.827, 2.207),
    ],
)
def test_guarantees(
    mechanism: LNMax | GNMax | ConfidentGNMax, asked: int, answered: int, closed: float, tight: float
) -> None:
    guarantee = mechanism.worst_case(asked, answered)
    epsilon, order = guarantee.epsilon_and_order(1e-5)
    assert epsilon == pytest.approx(tight, abs=2e-3)
    assert guarantee.epsilon(1e-5) <= epsilon
    assert rdp_epsilon(ORDERS, guarantee.rdp(ORDERS), 1e-5)[0] == pytest.approx(closed, abs=1e-3)
    at_order = rdp_epsilon(np.array([order]), np.array([guarantee.rdp_at(order)]), 1e-5)
    assert at_order == pytest.approx((epsilon, order))


def test_nothing_asked_costs_nothing() -> None:
    assert GNMax(40.0).worst_case(0, 0).epsilon(1e-5) == 0
    tests_only = ConfidentGNMax(200.0, 150.0, 40.0).worst_case(640, 0)
    assert tests_only.rdp_at(5.0) == 640 * threshold_test_rdp(DiscreteGaussian(150.0), 5.0)
