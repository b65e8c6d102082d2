"""What records that vote near themselves can be asked, and what that costs, before anything is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pate.accounting import parameters
from pate.errors import ConfigError, DataError
from pate.mechanisms.cell_rounds import Round, cost_of, guarantee
from pate.planning.min_noise import min_noise

_SURE = 0.95
_MIN_PUBLIC = 2
_TOLERANCE = 1e-5  # of the noise, relative


def check_cells(rounds: Sequence[Round], n_public: int) -> None:
    """Raise where there are too few public examples, to make the cells of or to learn from."""
    if n_public < _MIN_PUBLIC:
        raise DataError(f"there is only {n_public} public example: it makes one cell, and no student learns from it")
    for round in rounds:
        if round.cells > n_public:
            raise ConfigError(f"neighbours.cells = {round.cells}: there are only {n_public} public examples")


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
                "cells": round.cells,
                "mechanism": str(round.mechanism),
                "lead_needed": round.mechanism.teachers_needed(_SURE, n_classes),
                "features": "student" if round.by_student else "public",
            }
            for round in rounds
        ],
    }


def with_target(rounds: Sequence[Round], votes: int, target: float, delta: float, n_classes: int) -> list[Round]:
    """The rounds with the noise of all of them larger or smaller by one factor, so that they cost `target`.

    Their ε never exceeds it, and with a hundred-thousandth less noise it would. Asked again, the answer is there at
    once.

    >>> from pate import Histogram
    >>> with_target([Round(100, Histogram(3))], votes=1, target=0.1, delta=1e-5, n_classes=10)[0].mechanism.scale < 20.1
    True
    """
    return list(_solved(tuple(rounds), votes, parameters.epsilon(target, "target_epsilon"), delta, n_classes))


@lru_cache(maxsize=256)
def _solved(rounds: tuple[Round, ...], votes: int, target: float, delta: float, n_classes: int) -> tuple[Round, ...]:
    noises = [getattr(round.mechanism, str(round.mechanism.free_parameter)) for round in rounds]
    bounds = parameters.MIN_NOISE / min(noises), parameters.MAX_NOISE / max(noises)

    def louder(factor: float) -> tuple[Round, ...]:
        return tuple(_louder(round, factor) for round in rounds)

    def quick(factor: float) -> float:
        return guarantee(louder(factor), votes).quick_epsilon(delta)

    def cost(factor: float) -> float:
        return cost_of(louder(factor), votes, delta, n_classes).epsilon

    about = min_noise(quick, target, 1.0, bounds, _TOLERANCE) or 1.0
    factor = min_noise(cost, target, about, bounds, _TOLERANCE)
    if factor is None:
        raise ConfigError(f"target_epsilon = {target:g}: no noise that is allowed gives it for these rounds")
    return louder(factor)


def _louder(round: Round, factor: float) -> Round:
    mechanism: Any = round.mechanism
    name = mechanism.free_parameter
    return replace(round, mechanism=replace(mechanism, **{name: getattr(mechanism, name) * factor}))
