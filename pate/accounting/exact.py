"""The exact data-dependent cost of a list of queries, for any mechanism.

A query's cost is the largest Rényi divergence between its histogram and any histogram one moved vote away.
Each direction (from the histogram to its neighbour, and back) is composed over the queries on its own, and
the larger one counts: a data set and its neighbour are the same two throughout. The list of queries must not
depend on the votes. What comes out depends on the private votes and is itself private.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pate.accounting import parameters
from pate.accounting.composition import Orders, epsilon_by_order, rdp_epsilon
from pate.accounting.loss_distribution import pld_epsilon
from pate.accounting.neighbours_of_histogram import (
    Answering,
    Counts,
    NeighbourOutcomes,
    map_on_all_cores,
    neighbour_outcomes,
)
from pate.accounting.renyi import worst_divergences

Array = NDArray[np.float64]

EXACT_ORDERS: Orders = 1 + 2.0 ** (np.arange(-200, 341) / 20)
"""Rényi orders, 20 per octave up to 1.3e5. Twice as many, and ten times the range, move ε by < 0.05 %."""

_MOVES_AT_ONCE = 256


@dataclass(frozen=True)
class ExactCost:
    """Exact Rényi divergences of each query from its worst neighbour, float[queries, orders].

    forward: D(histogram ‖ neighbour), backward: D(neighbour ‖ histogram); the worst neighbour of each order
    and direction on its own. Infinite where one of the two may give an answer that the other never gives.
    """

    orders: Orders
    forward: Array
    backward: Array

    def epsilon(self, delta: float) -> float:
        """ε of all the queries together: the larger direction's."""
        parameters.delta(delta)
        totals = self.forward.sum(axis=0), self.backward.sum(axis=0)
        return max(rdp_epsilon(self.orders, total, delta)[0] for total in totals)

    def cumulative_epsilon(self, delta: float) -> Array:
        """ε of the first query, the first two, … and of all, float[queries]."""
        parameters.delta(delta)
        totals = np.cumsum(self.forward, axis=0), np.cumsum(self.backward, axis=0)
        by_order = (epsilon_by_order(self.orders, total, delta) for total in totals)
        return np.maximum(*(epsilons.min(axis=1) for epsilons in by_order)).clip(min=0.0)


@dataclass(frozen=True)
class ExactEpsilon:
    """ε by Rényi composition and by privacy loss distributions; both hold, so the smaller stands."""

    rdp: float
    pld: float
    rdp_after: Array = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    """By Rényi composition, of the first query, the first two, …"""

    @property
    def epsilon(self) -> float:
        """The smaller of the two."""
        return min(self.rdp, self.pld)


def exact_cost(mechanism: Answering, counts: Counts, orders: Orders = EXACT_ORDERS) -> ExactCost:
    """The exact Rényi cost of each query, at each order.

    Neighbouring relation: one vote moves. `counts` are private, and so is the result.
    """
    return _cost(neighbour_outcomes(mechanism, counts), parameters.orders(orders))


def exact_epsilon(mechanism: Answering, counts: Counts, delta: float) -> ExactEpsilon:
    """ε of all the queries together at `delta`, by both ways of composing exact costs.

    Neighbouring relation: one vote moves. `counts` are private, and so is the result.

    >>> from pate import LNMax
    >>> unanimous = np.tile([250, 0, 0], (100, 1))  # 100 queries on which all of 250 teachers agree
    >>> exact_epsilon(LNMax(20), unanimous, delta=1e-5).epsilon < 0.1
    True
    """
    parameters.delta(delta)
    outcomes = neighbour_outcomes(mechanism, parameters.votes(counts))
    cost = _cost(outcomes, EXACT_ORDERS)
    rdp = cost.epsilon(delta)
    try:
        pld = pld_epsilon(outcomes, delta, guess=rdp)
    except (ValueError, OverflowError):  # noise far below one vote: losses of hundreds, beyond floating point
        pld = math.inf
    return ExactEpsilon(rdp=rdp, pld=pld, rdp_after=cost.cumulative_epsilon(delta))


def _cost(outcomes: NeighbourOutcomes, orders: Orders) -> ExactCost:
    def worst(block: slice) -> tuple[Array, Array]:
        own, moved, begin = outcomes.pairs(block)
        return worst_divergences(own, moved, begin, orders), worst_divergences(moved, own, begin, orders)

    forward, backward = zip(*map_on_all_cores(worst, outcomes.blocks(_MOVES_AT_ONCE)), strict=True)
    where = outcomes.where
    return ExactCost(orders, np.concatenate(forward)[where], np.concatenate(backward)[where])
