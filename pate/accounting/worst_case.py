"""What a noisy answer costs at most, whatever the votes are: proven, computed, close to what votes attain.

The closed forms (order/σ² for GNMax, two rounds of randomised response for LNMax) charge for the whole noisy
histogram although only its argmax is released. The bounds here are for the argmax itself. As long as the
order is well below the noise's scale they are lower by a factor of π/2 for Gaussian and 2 for Laplace noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.accounting import _parameters as parameters
from pate.accounting._neighbours_of_histogram import map_on_all_cores
from pate.accounting.composition import ORDERS, Orders, RdpGuarantee, rdp_epsilon
from pate.accounting.tight._adversary import adversary_epsilons, has_game
from pate.accounting.tight._histogram_grid import (
    Plane,
    largest_excess,
    log_shift_moment,
    threshold_excess,
    two_class_excess,
)
from pate.accounting.tight._margins import Question, approximate_rdp, moves

if TYPE_CHECKING:  # mechanisms import this module
    from pate.noise.integer import IntegerNoise

LARGEST_SCALE = 400.0
"""Above this scale in votes the search would take too long, and the closed form stands."""

LARGEST_TEST_SCALE = 1000.0
"""The largest noise scale of the threshold test, where rounding sets the limit."""

_ROUNDING = 1e-8  # relative; the sums are of positive terms, and more precise by far
_ORDERS_TRIED = np.array([-2, 0, 2])  # round the best order, in steps of `ORDERS`
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
    inside = float(threshold_excess(noise, plane.radius, np.array([order]))[0])
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
        lambda orders: _where_usable(two_class_excess, noise, orders, closed_form(orders)),
        lambda order: worst_case_rdp(noise, order),
        slow=noise.half_width() > _SLOW_WIDTH,
        argmax_noise=noise,
    )


def threshold_test_cost(noise: IntegerNoise, times: int, closed_form: RdpCurve) -> QueryCost:
    """`times` tests whether the largest count with noise reaches a threshold."""
    return QueryCost(
        times,
        closed_form,
        lambda orders: _where_usable(threshold_excess, noise, orders, closed_form(orders)),
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


def _where_usable(
    excess: Callable[[IntegerNoise, int, Orders], NDArray[np.float64]],
    noise: IntegerNoise,
    orders: Orders,
    closed_form: NDArray[np.float64],
) -> NDArray[np.float64]:
    """The cost by `excess` at orders up to a few times the noise's scale, and the closed form elsewhere."""
    places = np.minimum(np.searchsorted(ORDERS, orders), len(ORDERS) - 1)
    return np.minimum(closed_form, _by_excess(excess, noise)[places])


@lru_cache(maxsize=64)
def _by_excess(
    excess: Callable[[IntegerNoise, int, Orders], NDArray[np.float64]], noise: IntegerNoise
) -> NDArray[np.float64]:
    """The cost by `excess` at each of `ORDERS`; infinite where it is not used. Searches ask for it many times."""
    usable = (8 * noise.scale > ORDERS) & (noise.scale <= LARGEST_SCALE)
    result = np.full(len(ORDERS), np.inf)
    if usable.any():
        orders = ORDERS[usable]
        result[usable] = np.log1p(excess(noise, math.ceil(12 * noise.scale), orders)) / (orders - 1)
    return result
