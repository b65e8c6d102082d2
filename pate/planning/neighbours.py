"""What records that vote near themselves can be asked, and what that costs, before anything is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pate.accounting import parameters
from pate.errors import ConfigError, DataError
from pate.neighbours.rounds import Round, cost_of

_SURE = 0.95
_FEWEST_PUBLIC = 2
_STEPS = 60  # of bisection: far below what a noise scale is written with


def check_cells(rounds: Sequence[Round], n_public: int) -> None:
    """Raise where there are too few public examples, to make the cells of or to learn from."""
    if n_public < _FEWEST_PUBLIC:
        raise DataError(f"there is only {n_public} public example: it makes one cell, and no student learns from it")
    for round in rounds:
        if round.queries > n_public:
            raise ConfigError(f"neighbours.queries = {round.queries}: there are only {n_public} public examples")


def plan_of_rounds(rounds: Sequence[Round], votes: int, delta: float, n_classes: int) -> dict[str, Any]:
    """ε for both relations and, of each round, how many votes that all agree a cell needs to be labelled rightly.

    That is with a probability of 95 %; a cell in which records disagree needs that much of a lead.
    """
    cost = cost_of(rounds, votes, delta, n_classes)
    return {
        "voters": "neighbours",
        "votes": votes,
        "delta": delta,
        "epsilon": cost.epsilon,
        "epsilon_added_or_removed": cost.added_or_removed,
        "rounds": [
            {
                "queries": round.queries,
                "mechanism": str(round.mechanism),
                "lead_needed": round.mechanism.teachers_needed(_SURE, n_classes),
                "features": "student" if round.by_student else "public",
            }
            for round in rounds
        ],
    }


def with_target(rounds: Sequence[Round], votes: int, target: float, delta: float, n_classes: int) -> list[Round]:
    """The same rounds with the noise of all of them larger or smaller by one factor, so that they cost `target`.

    >>> from pate import Histogram
    >>> with_target([Round(100, Histogram(3))], votes=1, target=0.1, delta=1e-5, n_classes=10)[0].mechanism.scale < 20.1
    True
    """
    parameters.epsilon(target, "target_epsilon")
    least, most = -40.0, 40.0  # powers of two
    for _ in range(_STEPS):
        middle = (least + most) / 2
        fits = _fits(rounds, 2.0**middle, votes, target, delta, n_classes)
        least, most = (least, middle) if fits else (middle, most)
    found = _scaled(rounds, 2.0**most)
    if found is None or not _fits(rounds, 2.0**most, votes, target, delta, n_classes):
        raise ConfigError(f"target_epsilon = {target:g}: no noise that is allowed gives it for these rounds")
    return found


def _fits(rounds: Sequence[Round], factor: float, votes: int, target: float, delta: float, n_classes: int) -> bool:
    scaled = _scaled(rounds, factor)
    if scaled is None:
        return factor > 1  # beyond the noise that is allowed: as if it fitted above, and did not below
    return cost_of(scaled, votes, delta, n_classes).epsilon <= target


def _scaled(rounds: Sequence[Round], factor: float) -> list[Round] | None:
    """With `factor` times the noise; None where that is out of bounds."""
    try:
        return [_louder(round, factor) for round in rounds]
    except parameters.ParameterError:
        return None


def _louder(round: Round, factor: float) -> Round:
    mechanism: Any = round.mechanism
    name = mechanism.free_parameter
    return replace(round, mechanism=replace(mechanism, **{name: getattr(mechanism, name) * factor}))
