"""Neighbours as a recommendation: how many cells, with which noise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pate.accounting import _parameters as parameters
from pate.components._registry import counted
from pate.errors import ConfigError
from pate.mechanisms import Histogram, build
from pate.mechanisms._cell_costs import Round, cost_of, guarantee
from pate.planning.plan import Choice, Situation, describe_parameters, min_noise, round_up, three_digits

_SURE = 0.95
_TOLERANCE = 1e-5  # of the noise, relative


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
        return tuple(
            replace(one, mechanism=replace(one.mechanism, **{str(one.mechanism.free_parameter): noise * factor}))  # type: ignore[type-var]
            for one, noise in zip(rounds, noises, strict=True)
        )

    def quick(factor: float) -> float:
        return guarantee(louder(factor), votes).quick_epsilon(delta)

    def cost(factor: float) -> float:
        return cost_of(louder(factor), votes, delta, n_classes).epsilon

    about = min_noise(quick, target, 1.0, bounds, _TOLERANCE) or 1.0
    factor = min_noise(cost, target, about, bounds, _TOLERANCE)
    if factor is None:
        raise ConfigError(f"target_epsilon = {target:g}: no noise that is allowed gives it for these rounds")
    return louder(factor)


def describe_plan(result: Mapping[str, Any]) -> list[str]:
    """Lines that say what `plan_of_rounds` found."""
    unit, cells, n_rounds = result["unit"], result["votes"], len(result["rounds"])
    voted, rounds = "1 cell" if cells == 1 else f"{cells} cells", "1 round" if n_rounds == 1 else f"{n_rounds} rounds"
    epsilon, delta = result["epsilon"], result["delta"]
    lines = [
        f"every {unit} votes in {voted} per round, near itself; {rounds}",
        f"  ε to publish       {epsilon:.4g} at δ = {delta:g}, for a {unit} added, removed or changed",
        f"  ε otherwise        {result['epsilon_added_or_removed']:.4g}, if it is only added or removed",
    ]
    for number, one in enumerate(result["rounds"], start=1):
        each = counted(result["public_examples"] / one["cells"])
        lead = "no number of votes" if one["lead_needed"] is None else f"a lead of {one['lead_needed']:,} votes"
        lines += [
            f"  round {number}            {one['cells']:,} cells, {each} public examples each; {one['mechanism']}",
            f"                     it takes {lead} in a cell for the right label 19 times of 20",
        ]
    if result["seconds_of_student"] is not None:
        lines.append(f"  student            about {result['seconds_of_student']:.1f} s on this machine")
    return [
        *lines,
        "  it suits           features in which near means alike, many records per cell, many public examples; where",
        "                     features do not cluster by class, a class is rare in every cell, or public examples are",
        "                     few, teachers do better (docs/neighbours.md)",
    ]


_LEADS_PER_CELL = 5  # how many times the votes that a sure cell needs a cell is given
_MAX_CELLS, _PUBLIC_PER_CELL = 1_000, 4


class CellsChoice(Choice):
    """So many cells, and a mechanism for their votes."""

    def suits(self, situation: Situation) -> bool:
        return True

    @property
    def why(self) -> str:
        return "records of a table vote near others like them"

    def settings(self, delta: float) -> dict[str, Any]:
        cells = {"cells": self.asked, "standardise": True, "soft": True, "refine": 5}
        budget = {"delta": delta, "epsilon": round_up(self.epsilon)}
        return {"voters": self.voters, "neighbours": cells, "mechanism": self.mechanism, "budget": budget}

    def rdp(self, order: float) -> float:
        return guarantee([Round(self.asked, build(self.mechanism, 1))], votes=1).rdp_at(order)

    def row(self) -> tuple[str, ...]:
        return self.voters, f"{self.asked:,} cells", f"{self.labels:,} shares"

    @property
    def described(self) -> str:
        by = f"{self.mechanism['name']} ({describe_parameters(self.mechanism)})"
        return f"{self.voters} in {self.asked:,} cells, {by}"

    def explained(self, n_classes: int) -> list[str]:
        return [
            f"  every record       has one vote in one of {self.asked:,} cells, which have about",
            f"                     {self.records_each:,} votes each",
            "  it suits           features in which near means alike, such as a table's numbers and categories, or",
            "                     images' pre-trained ones; where they are not, take the first alternative",
        ]

    def written(self, unit: str) -> list[str]:
        return [
            f"voters: neighbours             # every {unit} has one vote, near itself",
            "neighbours:",
            f"  cells: {self.asked:<20}# cells of public examples, about {self.records_each} votes each",
            "  standardise: true            # a column's unit does not matter",
            "  soft: true                   # cells have shares of classes, not one label",
            "  refine: 5                    # students in turn say which examples of a cell those are",
        ]


def cells_choices(situation: Situation) -> list[Choice]:
    """As many cells as get enough votes; nothing where there would be too few."""
    delta, n_classes = situation.delta, situation.n_classes
    try:
        rounds = with_target([Round(100, Histogram(1.0))], 1, situation.target_epsilon, delta, n_classes)
    except ConfigError:  # more noise than is allowed
        return []
    scale = three_digits(rounds[0].mechanism.scale, up=True)  # type: ignore[attr-defined]
    plan = plan_of_rounds([Round(100, Histogram(scale))], 1, delta, n_classes)
    lead = plan["rounds"][0]["lead_needed"]
    if lead is None:
        return []
    cells = min(situation.records // (_LEADS_PER_CELL * lead), _MAX_CELLS)
    if situation.n_public is not None:
        cells = min(cells, situation.n_public // _PUBLIC_PER_CELL)
    if cells < 2 * n_classes:
        return []
    each, mechanism = situation.records // cells, {"name": "histogram", "scale": scale}
    return [CellsChoice("neighbours", mechanism, plan["epsilon"], cells, cells, None, each)]
