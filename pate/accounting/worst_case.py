"""What a noisy answer costs at most, whatever the votes are: proven, computed, close to what votes attain.

The closed forms (order/σ² for GNMax, two rounds of randomised response for LNMax) charge for the whole noisy
histogram although only its argmax is released. The bounds here are for the argmax itself. As long as the
order is well below the noise's scale they are lower by a factor of π/2 for Gaussian and 2 for Laplace noise.

ConfidentGNMax where n teachers vote: to charge the worst test and the worst answer is to charge for two histograms at
once. An answer is dearest in a tie, and in a tie of n votes the largest count is n/2 at most, so that the test seldom
passes. In `moves` one histogram pays for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pate.accounting import _parameters as parameters
from pate.accounting import map_on_all_cores
from pate.accounting._adversary import adversary_epsilons, has_game
from pate.accounting._histogram_grid import (
    TOLERANCE,
    Floats,
    Ints,
    Outcomes,
    Plane,
    block_bounds,
    first_blocks,
    largest_excess,
    log_shift_moment,
    moment_excess,
    moves_among_others,
    threshold_excesses,
    two_class_excesses,
)
from pate.accounting.composition import ORDERS, Orders, RdpGuarantee, rdp_epsilon
from pate.noise.integer import IntegerNoise

LARGEST_SCALE = 400.0
"""Above this scale in votes the search would take too long, and the closed form stands."""

LARGEST_TEST_SCALE = 1000.0
"""The largest noise scale of the threshold test, where rounding sets the limit."""

_ROUNDING = 1e-8  # relative; the sums are of positive terms, and more precise by far
_ORDERS_TRIED = np.array([-2, 0, 2])  # round the best order, in steps of `ORDERS`
_ROUGHLY = 600  # pairs of largest counts that an approximation looks at
_ORDERS_APART = 5
_SLOW_WIDTH = 3000  # votes that the noise reaches; then the search for one order takes seconds

RdpCurve = Callable[[Orders], NDArray[np.float64]]


@lru_cache(maxsize=4096)
def worst_case_rdp(noise: IntegerNoise, order: float) -> float:
    """Rényi DP at `order` > 1 of argmax(counts + noise), ties broken at random, for every histogram.

    Neighbouring relation: one vote moves. Sensitivity: two counts change by 1 each.
    Guarantee: the Rényi divergence of the released label, in both directions, is at most this, for any number
    of classes and of teachers. It is never more than the closed form, rounded up.
    """
    order = parameters.order(order)
    closed_form = _released_in_full(noise, order, counts=2)
    plane = Plane(noise, order)
    if noise.scale > LARGEST_SCALE or not plane.representable:
        return closed_form
    return min(closed_form, _rdp_of(largest_excess(plane), order))


@lru_cache(maxsize=4096)
def threshold_test_rdp(noise: IntegerNoise, order: float) -> float:
    """Rényi DP at `order` > 1 of the test max(counts) + noise ≥ threshold, for all histograms and thresholds.

    Neighbouring relation: one vote moves. Sensitivity: the largest count changes by at most 1.
    Guarantee: the Rényi divergence of the test's outcome, in both directions, is at most this.
    """
    order = parameters.order(order)
    closed_form = _released_in_full(noise, order, counts=1)
    plane = Plane(noise, order)
    if noise.scale > LARGEST_TEST_SCALE or not plane.moment_fits:
        return closed_form
    inside = float(threshold_excesses(noise, plane.radius, order).max())
    return min(closed_form, _rdp_of(plane.with_slack(inside), order))


@dataclass(frozen=True)
class QueryCost:
    """A kind of release and how many times it happens at most."""

    times: int
    closed_form: RdpCurve
    """The known Rényi bound of the mechanism, which holds at every order."""
    approximate: RdpCurve
    """About `proven`, but cheap at many orders: it chooses an order and proves nothing."""
    proven: Callable[[float], float]
    """The tight bound of the mechanism at one order."""
    slow: bool = False
    """Whether that bound takes many seconds, so that one order has to do."""
    argmax_noise: IntegerNoise | None = None
    """The noise, where all of it is a noisy argmax and nothing else; then the adversary's game is known too."""

    def __post_init__(self) -> None:
        parameters.queries(self.times, "times")


def argmax_cost(noise: IntegerNoise, times: int, closed_form: RdpCurve) -> QueryCost:
    """`times` answers of a noisy argmax; approximately, they cost what the worst of two classes costs."""
    return QueryCost(
        times,
        closed_form,
        lambda orders: _where_usable(two_class_excesses, noise, orders, closed_form(orders)),
        lambda order: worst_case_rdp(noise, order),
        slow=noise.half_width() > _SLOW_WIDTH,
        argmax_noise=noise,
    )


def threshold_test_cost(noise: IntegerNoise, times: int, closed_form: RdpCurve) -> QueryCost:
    """`times` tests whether the largest count with noise reaches a threshold."""
    return QueryCost(
        times,
        closed_form,
        lambda orders: _where_usable(threshold_excesses, noise, orders, closed_form(orders)),
        lambda order: threshold_test_rdp(noise, order),
    )


def confident_cost(
    question: Question, max_queries: int, max_answers: int, tests: QueryCost, answers: QueryCost
) -> QueryCost:
    """`tests` and `answers` of one mechanism, or less: a query as a whole where the number of votes is known."""

    def closed_form(orders: Orders) -> NDArray[np.float64]:
        return tests.times * tests.closed_form(orders) + answers.times * answers.closed_form(orders)

    def approximate(orders: Orders) -> NDArray[np.float64]:
        apart = tests.times * tests.approximate(orders) + answers.times * answers.approximate(orders)
        return np.minimum(apart, max_queries * approximate_rdp(question, orders)) if _searched(question) else apart

    def proven(order: float) -> float:
        each, more = confident_price(question, order, max_queries, max_answers)
        return max_queries * each + max_answers * more

    return QueryCost(1, closed_form, approximate, proven, slow=answers.slow)


def confident_price(question: Question, order: float, max_queries: int, max_answers: int) -> tuple[float, float]:
    """What a query costs at `order`, and what an answer adds, so that the limits cost least.

    Either the test and the answer each at its own worst, or both together (`margins`), answered or not. What
    the test alone costs must not be taken off the second: then ⊥ would not be paid for.
    """
    answer = worst_case_rdp(question.answer_noise, order)
    apart = threshold_test_rdp(question.test_noise, order), answer
    found = moves(question, order, answer) if _searched(question) else None
    if found is None:
        return apart
    together = found.rdp(order), 0.0
    return min(apart, together, key=lambda price: max_queries * price[0] + max_answers * price[1])


def _searched(question: Question) -> bool:
    return question.answer_noise.scale <= LARGEST_SCALE and question.test_noise.scale <= LARGEST_TEST_SCALE


@dataclass(frozen=True)
class WorstCaseGuarantee(RdpGuarantee):
    """Rényi DP whatever the votes are: `rdp` by closed forms at every order, `rdp_at` one order tighter.

    Neighbouring relation: one vote moves, in every query.
    Guarantee: every order gives a valid ε, and so does the adversary's game (`adversary`) where the queries are noisy
    argmaxes; the smallest of several is valid. Public parameters decide all.
    """

    costs: tuple[QueryCost, ...]

    @classmethod
    def of(cls, *costs: QueryCost) -> WorstCaseGuarantee:
        """The guarantee of all `costs` together."""
        return cls(lambda orders: np.sum([cost.times * cost.closed_form(orders) for cost in costs], axis=0), costs)

    def epsilon(self, delta: float) -> float:
        return min(self.by_method(delta).values())

    def by_method(self, delta: float) -> dict[str, float]:
        renyi = self.epsilon_and_order(delta)[0]
        asked = max((cost.times for cost in self.costs), default=0)
        return {"worst adversary": self.epsilons_along([asked], delta, renyi)[0], "Rényi": renyi}

    def by_renyi(self) -> WorstCaseGuarantee:
        """This guarantee by Rényi costs alone, without the adversary's game, which takes seconds."""
        return replace(self, costs=tuple(replace(cost, argmax_noise=None) for cost in self.costs))

    @property
    def is_tightened(self) -> bool:
        noise = self._argmax_noise
        return noise is not None and has_game(noise)

    @property
    def _argmax_noise(self) -> IntegerNoise | None:
        """The noise, where all there is are answers of one noisy argmax."""
        return self.costs[0].argmax_noise if len(self.costs) == 1 else None

    def epsilons_along(self, at: list[int], delta: float, known: float) -> list[float]:
        """ε of the first n queries for each n in `at`, against the worst adversary; infinite where that is not known.

        `known` is an ε that holds for all of them.
        """
        noise = self._argmax_noise
        if noise is None or max(at) == 0:
            return [math.inf] * len(at)
        return adversary_epsilons(noise, at, delta, known)

    def epsilon_and_order(self, delta: float) -> tuple[float, float]:
        """ε and the Rényi order it comes from; `rdp_at` that order is what a ledger has to keep below."""
        best = int(np.searchsorted(ORDERS, self._approximately(delta)[1]))
        tried = _ORDERS_TRIED[1:2] if any(cost.slow for cost in self.costs) else _ORDERS_TRIED
        orders = ORDERS[np.unique(np.clip(best + tried, 0, len(ORDERS) - 1))]
        tight = rdp_epsilon(orders, np.array(map_on_all_cores(self.rdp_at, orders.tolist())), delta)
        return min(tight, rdp_epsilon(ORDERS, self.rdp(ORDERS), delta))

    def quick_epsilon(self, delta: float) -> float:
        return self._approximately(delta)[0]

    def _approximately(self, delta: float) -> tuple[float, float]:
        curve = np.sum([cost.times * cost.approximate(ORDERS) for cost in self.costs], axis=0)
        return rdp_epsilon(ORDERS, curve, delta)

    def rdp_at(self, order: float) -> float:
        """The proven Rényi cost at one order; cached, as it takes seconds for noise of hundreds of votes."""
        return sum(_cost_at(cost, order) for cost in self.costs if cost.times)


def _cost_at(cost: QueryCost, order: float) -> float:
    closed_form = float(cost.closed_form(np.array([order]))[0])
    return cost.times * min(closed_form, cost.proven(order))


def _rdp_of(excess: float, order: float) -> float:
    """The Rényi divergence whose moment exp((order − 1)·divergence) is 1 + `excess`, rounded up."""
    return math.log1p(excess * (1 + _ROUNDING)) / (order - 1)


def _released_in_full(noise: IntegerNoise, order: float, counts: int) -> float:
    """The cost if the noisy counts that change were released: the closed form for Gaussian and Laplace."""
    return counts * log_shift_moment(noise, order) * (1 + _ROUNDING) / (order - 1)


Excesses = Callable[[IntegerNoise, int, float], Floats]


def _where_usable(excesses: Excesses, noise: IntegerNoise, orders: Orders, closed_form: Floats) -> Floats:
    """The cost by `excesses` at orders up to a few times the noise's scale, and the closed form elsewhere."""
    places = np.minimum(np.searchsorted(ORDERS, orders), len(ORDERS) - 1)
    return np.minimum(closed_form, _by_excess(excesses, noise)[places])


@lru_cache(maxsize=64)
def _by_excess(excesses: Excesses, noise: IntegerNoise) -> Floats:
    """The cost by `excesses` at each of `ORDERS`; infinite where it is not used. Searches ask for it many times."""
    usable = (8 * noise.scale > ORDERS) & (noise.scale <= LARGEST_SCALE)
    result = np.full(len(ORDERS), np.inf)
    if usable.any():
        orders, radius = ORDERS[usable], math.ceil(12 * noise.scale)
        largest = np.array([excesses(noise, radius, order).max() for order in orders])
        result[usable] = np.log1p(largest) / (orders - 1)
    return result


Score = Callable[[Ints, Floats], Floats]
"""Score(leads, excess): how much an excess matters that occurs at these leads, increasing in both."""


def moves_of_the_plurality(plane: Plane, gains: bool, largest: float, score: Score, matters: float) -> Floats:
    """The excess where the plurality loses (or `gains`) a vote, by its lead: upper bounds.

    It is class a and x − y ≥ L whatever the rival does, or class b and y − x ≥ L, where L = 0, 1, 2 … is the lead. The
    bounds do not rise with it. They are within `TOLERANCE` of what is attained where their score is above `matters`,
    and rough elsewhere.
    `largest` is the excess over all histograms, which nothing exceeds.
    """
    sign = -1 if gains else 1
    ends = 2 * plane.radius + 2 * plane.first_size + 4
    found = np.zeros(ends + 1)
    for loses_ties in (True, False):
        _search_leads(plane, Outcomes(plane, loses_ties), sign, score, matters, found)
    two_class = two_class_excesses(plane.noise, plane.radius, plane.order)  # by the lead of a, from −2·radius on
    leads = sign * np.arange(-2 * plane.radius, 2 * plane.radius + 3)
    np.maximum.at(found, leads[leads >= 0], two_class[leads >= 0])
    found = np.maximum.accumulate(found[::-1])[::-1]
    test = float(threshold_excesses(plane.noise, plane.radius, plane.order).max())
    return np.minimum(plane.with_slack(np.maximum(found, test)), largest)


def _search_leads(plane: Plane, outcomes: Outcomes, sign: int, score: Score, matters: float, found: Floats) -> None:
    """Branch and bound; every block's last bound is entered in `found` at its largest lead."""
    size = plane.first_size
    x, y = first_blocks(plane, size)
    while True:
        leads = np.minimum(sign * (x - y) + size - 1, len(found) - 1)
        x, y, leads = x[leads >= 0], y[leads >= 0], leads[leads >= 0]
        if len(x) == 0:
            return
        bound, value = block_bounds(plane, outcomes, x, y, size)
        corner = sign * (x - y - (size - 1 if size > 1 else 0))
        inside = corner >= 0
        attained = score(np.minimum(corner[inside], len(found) - 1), value[inside])
        matters = max(matters, float(attained.max(initial=0.0)))
        split = score(leads, bound) > matters * (1 + TOLERANCE)
        if size == plane.last_size:
            split[:] = False
        np.maximum.at(found, leads[~split], bound[~split])
        size //= 2
        x, y = plane.quarters(x[split], y[split], size)


@dataclass(frozen=True)
class Question:
    """A query of ConfidentGNMax: public parameters, and how many vote."""

    test_noise: IntegerNoise
    answer_noise: IntegerNoise
    threshold: float
    n_teachers: int


@dataclass(frozen=True)
class Moves:
    """For each kind of move: the excess of the test, what the answer's moment is weighed by, and its excess."""

    test: Floats
    weight: Floats
    answer: Floats

    def rdp(self, order: float) -> float:
        """The Rényi cost of a query, rounded up."""
        return math.log1p(float(np.max(self.test + self.weight * self.answer)) * (1 + _ROUNDING)) / (order - 1)


@lru_cache(maxsize=256)
def moves(question: Question, order: float, answer_rdp: float) -> Moves | None:
    """Every kind of move from every histogram, bounded; None where this leaves the range of floating point.

    Neighbouring relation: one vote moves; the number of votes, n, is public and stays. Sensitivity: the largest count m
    changes by at most 1, two counts change by 1 each.
    Guarantee: the Rényi divergence of what one query releases, ⊥ or a label, is at most `Moves.rdp`, for every
    histogram of n votes, every neighbour, both directions and any number of classes. It composes over queries that are
    chosen by earlier answers: each costs that much whether it is answered or not.
    Proof, in full in docs/proofs.md: with t(m) the probability to pass and E the excess of the answer's moment, the
    excess of both together is that of the test and t(m)^order·t(m')^(1 − order)·E. If m ≤ (n + 1)/2, E is at most that
    of all histograms. If m is larger, the plurality leads every class by 2m − n votes at least, and the three kinds of
    moves (`moves_of_the_plurality`, twice, and `moves_among_others`) have m' = m − 1, m + 1 and m.

    `answer_rdp` is the answer's cost over all histograms, `worst_case_rdp` of its noise at this order.
    """
    plane = Plane(question.answer_noise, order)
    if question.n_teachers > parameters.MAX_VOTES or not plane.representable:
        return None
    largest = math.expm1((order - 1) * answer_rdp)
    before, after = _pairs(question.n_teachers)
    with np.errstate(over="ignore"):
        test, weight = _weights(question, before, after, order)
    if not (np.isfinite(test).all() and np.isfinite(weight).all()):
        return None
    lead = 2 * before - question.n_teachers
    answer = np.full(len(before), largest)
    clear = 2 * before > question.n_teachers + 1
    attained = float((test + weight * largest)[~clear].max())
    for change in (-1, 1):
        chosen = clear & (after - before == change)
        if not chosen.any():
            continue
        score = _score_of(lead[chosen], test[chosen], weight[chosen])
        table = moves_of_the_plurality(plane, change > 0, largest, score, attained)
        answer[chosen] = table[np.minimum(lead[chosen], len(table) - 1)]
    chosen = clear & (after == before)
    table = moves_among_others(plane, largest, max(plane.last_size, plane.first_size // 4))
    answer[chosen] = table[np.minimum(lead[chosen], len(table) - 1)]
    return Moves(test, weight, answer)


def approximate_rdp(question: Question, orders: Floats) -> Floats:
    """About what a query costs, at some of the orders; infinite at the others. It proves nothing.

    The answer is priced as that of two classes, or as a test against a rival that happens to be there.
    """
    before, after = _pairs(question.n_teachers)
    some = np.unique(np.linspace(0, len(before) - 1, _ROUGHLY).astype(np.int64))
    before, after = before[some], after[some]
    clear, lead = 2 * before > question.n_teachers + 1, np.maximum(2 * before - question.n_teachers, 0)
    result = np.full(len(orders), np.inf)
    for i in np.flatnonzero(orders < 8 * question.answer_noise.scale)[::_ORDERS_APART]:
        order = float(orders[i])
        loses, gains, rival = _two_classes(question.answer_noise, order)
        of_two = [table[np.minimum(lead, len(table) - 1)] for table in (loses, gains)]
        by_plurality = np.maximum(np.where(after < before, *of_two), rival)
        answer = np.where(clear, np.where(after == before, 0.0, by_plurality), loses[0])
        with np.errstate(over="ignore", invalid="ignore"):
            rdp = Moves(*_weights(question, before, after, order), answer).rdp(order)
        result[i] = rdp if math.isfinite(rdp) else math.inf
    return result


def _two_classes(noise: IntegerNoise, order: float) -> tuple[Floats, Floats, float]:
    """The excess of two classes where the one that leads, by 0, 1 … or more, loses a vote; or gains; that of a test."""
    radius = math.ceil(12 * noise.scale)
    two_class = two_class_excesses(noise, radius, order)  # by the lead of the class that loses, from −2·radius on
    gains, loses = two_class[: 2 * radius + 1], two_class[2 * radius :]
    rival = float(threshold_excesses(noise, radius, order).max())
    return np.maximum.accumulate(loses[::-1])[::-1], np.maximum.accumulate(gains)[::-1], rival


def _pairs(n_teachers: int) -> tuple[Ints, Ints]:
    """The largest count before and after a vote moves, all pairs that there are."""
    largest = np.arange(1, n_teachers + 1)
    before = np.concatenate([largest[1:], largest[:-1], largest])
    after = np.concatenate([largest[1:] - 1, largest[:-1] + 1, largest])
    return before, after


def _weights(question: Question, before: Ints, after: Ints, order: float) -> tuple[Floats, Floats]:
    """The excess of the test's moment, and t(before)^order·t(after)^(1 − order)."""
    needed = math.ceil(question.threshold)
    passes, fails = question.test_noise.log_test(needed - before)
    after_passes, after_fails = question.test_noise.log_test(needed - after)
    test = moment_excess(passes, after_passes, order) + moment_excess(fails, after_fails, order)
    return test, np.exp(order * passes + (1 - order) * after_passes)


def _score_of(leads: Ints, test: Floats, weight: Floats) -> Score:
    """For leads and an excess: what they come to with the largest test and weight that such a lead allows."""
    by_lead = np.argsort(leads)
    known = leads[by_lead]
    largest_test, largest_weight = np.maximum.accumulate(test[by_lead]), np.maximum.accumulate(weight[by_lead])

    def score(leads: Ints, excess: Floats) -> Floats:
        place = np.searchsorted(known, leads, side="right") - 1
        scored: Floats = np.where(place < 0, 0.0, largest_test[place] + largest_weight[place] * excess)
        return scored

    return score
