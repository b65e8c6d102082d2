"""The section of a config for records that vote near themselves."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from pate.accounting import parameters
from pate.config.components import Component, listed
from pate.data.settings import Settings, Several

MOST_CELLS = 100_000

Cells = Annotated[int, Field(ge=1, le=MOST_CELLS)]
Noise = Annotated[float, AfterValidator(lambda value: parameters.noise(value, ""))]


class RoundSettings(Settings):
    """One round: how many cells, and what of the mechanism differs; `features: student` for the last student's own."""

    queries: Cells
    scale: Noise | None = None
    sigma: Noise | None = None
    features: Literal["student"] | None = None

    def parameters(self) -> dict[str, float]:
        """What of the mechanism this round has its own of."""
        return {key: value for key in ("scale", "sigma") if (value := getattr(self, key)) is not None}


class NeighbourSettings(Settings):
    """Public features, cells in them, and what is made of the votes in each cell.

    `votes` is how many of the nearest cells a record votes in. `label` says whether the example nearest to a cell's
    centre gets its label, or every public example of the cell; of histograms, cells whose largest share of votes is
    below `least_share` are left out, and with `soft` every class comes with its share.
    """

    features: Several[Component] = ()
    components: int | None = Field(default=None, ge=1, le=4096)
    standardise: bool = False
    votes: int = Field(default=1, ge=1, le=1000)
    queries: Cells | None = None
    rounds: Several[RoundSettings] = ()
    label: Literal["centres", "cells"] = "cells"
    least_share: float = Field(default=0.0, ge=0, le=1)
    soft: bool = False

    _listed = field_validator("features", mode="before")(listed)

    @model_validator(mode="before")
    @classmethod
    def _one_round_or_several(cls, content: Any) -> Any:
        if isinstance(content, dict) and "queries" in content and content.get("rounds"):
            raise ValueError("queries: each of the rounds says its own; leave this one out")
        return content

    @model_validator(mode="after")
    def _rounds_can_be_held(self) -> NeighbourSettings:
        for number, one in enumerate(self.all_rounds()):
            if one.features == "student" and number == 0:
                raise ValueError("rounds.0.features = 'student': there is no student before the first round")
            if self.votes >= one.queries and (self.votes, one.queries) != (1, 1):
                raise ValueError(f"votes = {self.votes}: must be fewer than the cells, {one.queries} (queries)")
        return self

    def all_rounds(self) -> tuple[RoundSettings, ...]:
        """The rounds, of which there is one where none are listed."""
        return self.rounds or (RoundSettings(queries=self.queries or 100),)
