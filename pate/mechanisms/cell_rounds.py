"""Rounds of votes: what each is, and what all of them cost together, before the first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pate.accounting import parameters
from pate.accounting.composition import with_sampling_error
from pate.accounting.count_release import CountCost, SingleCounts
from pate.errors import ConfigError
from pate.mechanisms import Mechanism
from pate.noise.integer import TV_ERROR_PER_DRAW


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
    """What all rounds tell about one record.

    Neighbouring relation: a record is added or removed, or `changed` under its id: with ids, all that a person has.
    Sensitivity: in each round at most `votes` counts change by 1; if changed, as many go down and as many go up
    (see `pate.voters.neighbours.cells`).
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
    return RoundsCost(*(with_sampling_error(found.epsilon, delta, draws, TV_ERROR_PER_DRAW) for found in both))
