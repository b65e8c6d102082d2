"""ConfidentGNMax where the number of votes is known: no histogram costs more, and some come close."""

from __future__ import annotations

import itertools
import math
from functools import cache

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray
from support.exact_noise import exact_mass
from support.small_votes import histograms, neighbours, pairs_of_outcomes, renyi

from pate.accounting._histogram_grid import (
    Outcomes,
    Plane,
    largest_below,
    largest_excess,
    moment_excess,
    moves_among_others,
)
from pate.accounting.composition import rdp_epsilon
from pate.accounting.worst_case import (
    Question,
    confident_price,
    moves,
    moves_of_the_plurality,
    threshold_test_rdp,
    worst_case_rdp,
)
from pate.mechanisms import ConfidentGNMax, GNMax
from pate.noise.integer import DiscreteGaussian, IntegerNoise

SMALL = [
    ConfidentGNMax(threshold=5.0, sigma1=2.0, sigma2=1.0),
    ConfidentGNMax(threshold=8.0, sigma1=1.0, sigma2=2.0),
    ConfidentGNMax(threshold=3.5, sigma1=6.0, sigma2=0.7),
    ConfidentGNMax(threshold=-20.0, sigma1=3.0, sigma2=1.5),
]


def rdp(mechanism: ConfidentGNMax, n_teachers: int, order: float) -> float:
    noises = DiscreteGaussian(mechanism.sigma1), DiscreteGaussian(mechanism.sigma2)
    found = moves(Question(*noises, mechanism.threshold, n_teachers), order, worst_case_rdp(noises[1], order))
    assert found is not None
    return found.rdp(order)


def largest_cost(mechanism: ConfidentGNMax, votes: int, classes: int, order: float) -> float:
    return float(renyi(*pairs_of_outcomes(mechanism, votes, classes), order).max())


@pytest.mark.parametrize("order", [1.2, 2.0, 5.0])
@pytest.mark.parametrize("mechanism", SMALL, ids=str)
def test_no_small_histogram_costs_more(mechanism: ConfidentGNMax, order: float) -> None:
    """Every histogram of up to 12 votes and 3 classes, or 6 and 4, every neighbour, both directions."""
    for votes, classes in [*itertools.product((1, 2, 5, 12), (2, 3)), (5, 4)]:
        attained, claimed = largest_cost(mechanism, votes, classes, order), rdp(mechanism, votes, order)
        assert attained <= claimed * (1 + 1e-9), (votes, classes)
        if votes == 12 and classes == 3 and order <= 2:
            assert claimed <= 1.6 * attained, "it is no idle bound"


@cache
def exactly(mechanism: ConfidentGNMax, histogram: tuple[int, int, int]) -> list[mpmath.mpf]:
    """P of the three labels and of ⊥, in 40 digits: sums over the winner's noisy count, ties written out."""
    mass = {z: exact_mass(DiscreteGaussian(mechanism.sigma2), z) for z in range(-40, 41)}
    less = dict(zip(range(-39, 42), itertools.accumulate(mass.values()), strict=True))  # P(noise < z)

    def wins(own: int, one: int, two: int) -> mpmath.mpf:
        total = mpmath.mpf(0)
        for v in range(-15, 25):
            p, f = zip(*((mass[v - c], less[v - c]) for c in (one, two)), strict=True)
            total += mass[v - own] * (f[0] * f[1] + (p[0] * f[1] + f[0] * p[1]) / 2 + p[0] * p[1] / 3)
        return total

    test = DiscreteGaussian(mechanism.sigma1)
    passes = mpmath.fsum(exact_mass(test, z) for z in range(-60, 61) if max(histogram) + z >= mechanism.threshold)
    a, b, c = histogram
    return [passes * wins(a, b, c), passes * wins(b, a, c), passes * wins(c, a, b), 1 - passes]


def test_the_bound_holds_for_costs_in_forty_digits() -> None:
    """An oracle that shares nothing with the accountant or with `log_outcomes` but the noise's definition."""
    mechanism, order = ConfidentGNMax(threshold=6.0, sigma1=2.0, sigma2=1.1), 3
    claimed = rdp(mechanism, 9, order)
    worst = 0.0
    with mpmath.workdps(40):
        for h in map(tuple, histograms(9, 3).tolist()):
            before = exactly(mechanism, h)
            for moved in neighbours(h):
                after = exactly(mechanism, moved)
                moment = mpmath.fsum(p**order * q ** (1 - order) for p, q in zip(before, after, strict=True))
                worst = max(worst, float(mpmath.log(moment) / (order - 1)))
    assert 0.65 * claimed <= worst <= claimed


def test_no_histogram_of_250_votes_costs_more() -> None:
    """Random and adversarial histograms of Papernot et al. 2018's two settings, orders that matter there."""
    rng = np.random.default_rng(18)
    rows = [[m, 250 - m, *[0] * 8] for m in range(125, 251, 5)]  # two classes
    rows += [[m, (250 - m) // 2, 250 - m - (250 - m) // 2, *[0] * 7] for m in range(84, 251, 9)]  # two that tie behind
    rows += [[m, *np.bincount(np.arange(250 - m) % 9, minlength=9)] for m in range(30, 251, 11)]  # nine behind
    rows += rng.multinomial(250, rng.dirichlet(np.full(10, 0.3), 30)).tolist()
    counts = np.array(rows)
    for mechanism, orders in (
        (ConfidentGNMax(200.0, 150.0, 40.0), (2.0, 10.5, 30.0)),
        (ConfidentGNMax(300.0, 200.0, 40.0), (4.9, 15.0)),
        (ConfidentGNMax(180.0, 20.0, 40.0), (6.0,)),
    ):
        worst = dict.fromkeys(orders, 0.0)
        for before in counts:
            order_of = np.argsort(-before, kind="stable")
            some = {(order_of[0], order_of[1]), (order_of[1], order_of[0]), (order_of[1], order_of[2])}
            moved = np.array([_moved(before, a, b) for a, b in some if before[a] > 0])
            log_q = mechanism.log_outcomes(moved)
            log_p = np.repeat(mechanism.log_outcomes(before[None]), len(moved), axis=0)
            for order in orders:
                both = max(renyi(log_p, log_q, order).max(), renyi(log_q, log_p, order).max())
                worst[order] = max(worst[order], float(both))
        for order in orders:
            claimed = rdp(mechanism, 250, order)
            assert 0.8 * claimed < worst[order] <= claimed


def _moved(before: NDArray[np.int64], source: int, target: int) -> NDArray[np.int64]:
    after = before.copy()
    after[source] -= 1
    after[target] += 1
    return after


def points(plane: Plane, loses_ties: bool, low: int, high: int) -> tuple[NDArray[np.int64], ...]:
    """x, y and the excess there."""
    x, y = (side.ravel() for side in np.meshgrid(np.arange(low, high), np.arange(low, high), indexing="ij"))
    outcomes = Outcomes(plane, loses_ties)
    excess = moment_excess(outcomes.log_win(x, y), outcomes.log_win(x - 1, y + 1), plane.order)
    excess += moment_excess(outcomes.log_win(y, x), outcomes.log_win(y + 1, x - 1), plane.order)
    for coin in outcomes.coins:
        excess += moment_excess(outcomes.log_rival(x, y, coin), outcomes.log_rival(x - 1, y + 1, coin), plane.order)
    return x, y, excess


@pytest.mark.parametrize("noise", [DiscreteGaussian(1.5), DiscreteGaussian(6.0)], ids=str)
@pytest.mark.parametrize("order", [1.5, 6.0])
def test_the_tables_cover_every_point_of_the_plane(noise: IntegerNoise, order: float) -> None:
    plane = Plane(noise, order)
    largest = largest_excess(plane)
    low, high = math.ceil(-4 * noise.scale) - 2, math.ceil(7 * noise.scale) + 2
    tables = {
        gains: moves_of_the_plurality(plane, gains, largest, lambda leads, excess: excess, 0.0)
        for gains in (False, True)
    }
    below, lowest = largest_below(plane, largest, plane.first_size)
    for loses_ties in (True, False):
        x, y, excess = points(plane, loses_ties, low, high)
        for gains, lead in ((False, x - y), (True, y - x)):
            ahead = lead >= 0
            at = np.minimum(lead[ahead], len(tables[gains]) - 1)
            assert (excess[ahead] <= tables[gains][at] * (1 + 1e-9)).all()
        assert (excess <= below[np.minimum(np.maximum(x, y) - lowest, len(below) - 1)] * (1 + 1e-9)).all()
    for table in (*tables.values(), moves_among_others(plane, largest, 1)):
        assert (np.diff(table) <= 0).all()
        assert table[0] <= largest
    assert moves_among_others(plane, largest, 1)[-1] < 1e-4 * largest


def test_moves_among_others_by_the_mechanism_itself() -> None:
    """Three and five classes whose plurality, ahead by L, keeps its votes."""
    noise, order = DiscreteGaussian(4.0), 3.0
    plane = Plane(noise, order)
    table = moves_among_others(plane, largest_excess(plane), 1)
    for lead, classes in itertools.product((1, 3, 6, 10, 15), (3, 5)):
        before = np.full(classes, 20)
        before[0] += lead
        before[2] -= 1  # the target may come as close as the lead says only after it got its vote
        for row in (before, _moved(before, 1, 2)):
            others = itertools.permutations(range(1, classes), 2)
            after = np.array([_moved(row, a, b) for a, b in others])
            log_q = GNMax(4.0).log_outcomes(after)[:, :-1]
            log_p = np.repeat(GNMax(4.0).log_outcomes(row[None])[:, :-1], len(after), axis=0)
            smallest_lead = min(lead, int(row[0] - row[1:].max()))
            attained = np.expm1((order - 1) * renyi(log_p, log_q, order)).max()
            assert attained <= table[smallest_lead]


@pytest.mark.parametrize(
    ("mechanism", "asked", "answered", "delta", "apart", "together"),
    [
        (ConfidentGNMax(200.0, 150.0, 40.0, 250), 640, 640, 1e-5, 3.30, 1.862),
        (ConfidentGNMax(200.0, 150.0, 40.0, 250), 640, 300, 1e-5, 2.207, 1.862),
        (ConfidentGNMax(200.0, 150.0, 40.0, 250), 640, 100, 1e-5, 1.297, 1.297),
        (ConfidentGNMax(300.0, 200.0, 40.0, 250), 8500, 8500, 1e-6, 16.35, 6.632),
    ],
)
def test_what_papers_settings_cost(
    mechanism: ConfidentGNMax, asked: int, answered: int, delta: float, apart: float, together: float
) -> None:
    unknown = ConfidentGNMax(mechanism.threshold, mechanism.sigma1, mechanism.sigma2)
    assert unknown.worst_case(asked, answered).epsilon(delta) == pytest.approx(apart, abs=6e-3)
    epsilon, order = mechanism.worst_case(asked, answered).epsilon_and_order(delta)
    assert epsilon == pytest.approx(together, abs=2e-3)
    kept = mechanism.rdp_per_query(order, asked, answered)
    total = asked * kept[0] + answered * kept[1]
    assert rdp_epsilon(np.array([order]), np.array([total]), delta)[0] == pytest.approx(epsilon, rel=1e-12)


def test_a_ledger_charges_declined_queries_for_the_answers_they_might_have_had() -> None:
    """Test and label at their own worst, or one price for both, answered or not: never part of either."""
    mechanism, order = ConfidentGNMax(20.0, 15.0, 8.0, 25), 6.0
    question = Question(DiscreteGaussian(15.0), DiscreteGaussian(8.0), 20.0, 25)
    apart = threshold_test_rdp(DiscreteGaussian(15.0), order), worst_case_rdp(DiscreteGaussian(8.0), order)
    assert mechanism.rdp_per_query(order, 100, 1) == confident_price(question, order, 100, 1) == apart
    asked, answered = mechanism.rdp_per_query(order, 100, 100)
    assert answered == 0
    assert apart[0] < asked < sum(apart)
    assert asked >= max(largest_cost(mechanism, 25, 2, order), largest_cost(mechanism, 25, 3, order))


def test_votes_of_another_number_of_teachers_are_refused() -> None:
    with pytest.raises(ValueError, match="does not hold the votes of 250 teachers"):
        ConfidentGNMax(200.0, 150.0, 40.0, 250).release(np.array([[200, 51]]))


def test_more_than_can_be_searched_costs_test_and_answer() -> None:
    for mechanism in (ConfidentGNMax(200.0, 5000.0, 40.0, 250), ConfidentGNMax(200.0, 150.0, 5000.0, 250)):
        known, unknown = (
            ConfidentGNMax(mechanism.threshold, mechanism.sigma1, mechanism.sigma2, n).worst_case(100, 50).rdp_at(5.0)
            for n in (250, None)
        )
        assert known == pytest.approx(unknown, rel=1e-12)
