"""What votes in cells that share nothing cost, for records that vote near themselves: single counts, and rounds.

A record, or a person with all records, has m votes in all, each in another cell. Added or removed it changes m counts
by 1; changed under its id at most 2m: m go down by 1 and m go up by 1, in one cell or in two. Noise is drawn for every
count of every cell on its own. So what a release reveals of the record, it reveals through at most 2m noisy counts,
or through the choices made in the cells they are in, whatever the number of cells and classes: the cost is per record
and round, not per cell. Rounds may look at what earlier rounds released: their costs add up.

Where noisy counts are released, or could be, two changes in one cell cost what they cost in two cells. A choice by
one-sided noise is not made of counts that could be released: two changes in its cell are one change of twice the ε,
which in Rényi terms is more than two changes of ε in two cells.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.accounting import _parameters as parameters
from pate.accounting.composition import (
    ORDERS,
    Orders,
    RdpGuarantee,
    gaussian_rdp,
    randomised_response_rdp,
    rdp_epsilon,
    with_sampling_error,
)
from pate.errors import ConfigError
from pate.mechanisms.base import Mechanism


class CountCost(ABC):
    """The cost of one count that changes by 1, all else being equal."""

    @abstractmethod
    def pure(self) -> float:
        """ε with δ = 0; infinity where there is none."""

    @abstractmethod
    def rdp(self, orders: Orders) -> NDArray[np.float64]:
        """The Rényi cost at each order."""

    @abstractmethod
    def losses(self, step: float) -> Any:
        """The privacy loss distribution on a grid of `step`, rounded up: dp-accounting's."""

    def of_a_pair(self) -> tuple[CountCost, int]:
        """What it costs that one count goes down and one up, in one cell or in two: as so many times a cost."""
        return self, 2


@dataclass(frozen=True)
class PureCount(CountCost):
    """(epsilon, 0)-DP: Laplace noise on the count."""

    epsilon: float

    def __post_init__(self) -> None:
        parameters.epsilon(self.epsilon)

    def pure(self) -> float:
        return self.epsilon

    def rdp(self, orders: Orders) -> NDArray[np.float64]:
        return randomised_response_rdp(self.epsilon, orders)

    def losses(self, step: float) -> Any:
        from dp_accounting.pld import common, privacy_loss_distribution

        return privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(self.epsilon, 0.0), step
        )


@dataclass(frozen=True)
class PureChoice(PureCount):
    """A choice in a cell that is (epsilon, 0)-DP if one of its counts changes, and whose counts cannot be released."""

    def of_a_pair(self) -> tuple[CountCost, int]:
        """Both in one cell is the worst: a composition of two that are ε-DP is 2ε-DP, so costs no more than that."""
        return PureChoice(2 * self.epsilon), 1


@dataclass(frozen=True)
class GaussianCount(CountCost):
    """Integer Gaussian noise of standard deviation `sigma` on the count."""

    sigma: float

    def __post_init__(self) -> None:
        parameters.noise(self.sigma, "sigma")

    def pure(self) -> float:
        return math.inf

    def rdp(self, orders: Orders) -> NDArray[np.float64]:
        return gaussian_rdp(1.0, self.sigma, orders)

    def losses(self, step: float) -> Any:
        from dp_accounting.pld import privacy_loss_distribution

        return privacy_loss_distribution.from_discrete_gaussian_mechanism(
            self.sigma, sensitivity=1, value_discretization_interval=step
        )


@dataclass(frozen=True)
class SingleCounts(RdpGuarantee):
    """`changes` = (cost of one changed count, how many of them a record changes), for each round.

    Neighbouring relation: as many counts change by 1 as `changes` says, in cells of each round.
    Guarantee: the sum of pure costs, Rényi composition and composed privacy loss distributions all hold, for rounds
    chosen adaptively, so the smallest ε stands.
    """

    changes: tuple[tuple[CountCost, int], ...]

    @classmethod
    def of(cls, changes: Sequence[tuple[CountCost, int]]) -> SingleCounts:
        for _, times in changes:
            parameters.whole(times, "changes", least=1)

        def rdp(orders: Orders) -> NDArray[np.float64]:
            return np.sum([times * cost.rdp(orders) for cost, times in changes], axis=0)

        return cls(rdp, tuple(changes))

    def epsilon(self, delta: float) -> float:
        if math.isfinite(self._pure()):
            return self.quick_epsilon(delta)  # with a handful of changed counts δ buys nothing worth its computation
        return min(self.quick_epsilon(delta), self._composed(delta))

    def quick_epsilon(self, delta: float) -> float:
        return min(self._pure(), rdp_epsilon(ORDERS, self.rdp(ORDERS), delta)[0])

    def _pure(self) -> float:
        return sum(times * cost.pure() for cost, times in self.changes)

    def _composed(self, delta: float) -> float:
        """By a grid fine enough that rounding up the loss of every changed count adds less than half a percent of ε."""
        n = sum(times for _, times in self.changes)
        step = min(1e-4, max(1e-7, 0.005 * rdp_epsilon(ORDERS, self.rdp(ORDERS), 1e-5)[0] / n))
        total = None
        for cost, times in self.changes:
            losses = cost.losses(step).self_compose(times)
            total = losses if total is None else total.compose(losses)
        assert total is not None
        return float(total.get_epsilon_for_delta(delta))


@dataclass(frozen=True)
class Round:
    """The number of `cells`, and how their votes are released; with `by_student` the last student makes the cells."""

    cells: int
    mechanism: Mechanism
    by_student: bool = False


@dataclass(frozen=True)
class RoundsCost:
    """ε of all rounds for every data set: of a record changed, the one to publish, and of one added or removed."""

    epsilon: float
    added_or_removed: float


def guarantee(rounds: Sequence[Round], votes: int, changed: bool = True) -> SingleCounts:
    """What all rounds reveal of one record.

    Neighbouring relation: a record is added or removed, or `changed` under its id: with ids, all that a person has.
    Sensitivity: in each round at most `votes` counts change by 1; if changed, as many go down and as many go up
    (see `pate.voters.neighbours._cells`).
    Guarantee: rounds compose adaptively; a later round's cells may depend on what earlier ones released.
    """
    changes = []
    for round in rounds:
        cost = count_cost_of(round.mechanism)
        each, times = cost.of_a_pair() if changed else (cost, 1)
        changes.append((each, votes * times))
    return SingleCounts.of(changes)


def count_cost_of(mechanism: Mechanism) -> CountCost:
    """What one count that changes by 1 costs; ConfigError where the mechanism cannot say."""
    cost = mechanism.count_cost()
    if cost is None:
        raise ConfigError(
            f"mechanism.name = {mechanism.name!r}: is for teachers; neighbours take histogram, lnmax, gnmax or "
            "permute_and_flip"
        )
    return cost


def cost_of(rounds: Sequence[Round], votes: int, delta: float, n_classes: int) -> RoundsCost:
    """ε at `delta`, with the error of every draw of every cell of every round charged to δ.

    >>> from pate import Histogram
    >>> cost = cost_of([Round(100, Histogram(20))], votes=1, delta=1e-5, n_classes=10)
    >>> round(cost.epsilon, 4), round(cost.added_or_removed, 4)
    (0.1, 0.05)
    """
    n_classes = parameters.classes(n_classes)
    draws = sum(round.cells * round.mechanism.noise_draws(n_classes) for round in rounds) + 1
    both = (guarantee(rounds, votes, changed) for changed in (True, False))
    return RoundsCost(*(with_sampling_error(found.epsilon, delta, draws) for found in both))
