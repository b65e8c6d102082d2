"""Neighbours as a recommendation: how many cells, with which noise."""

from __future__ import annotations

from typing import Any

from pate.errors import ConfigError
from pate.mechanisms import Histogram, build
from pate.mechanisms.cell_rounds import Round, guarantee
from pate.planning.neighbours import plan_of_rounds, with_target
from pate.planning.recommend import Choice, Situation, describe_parameters, round_up, three_digits

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
