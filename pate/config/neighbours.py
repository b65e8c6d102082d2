"""The section of a config for records that vote near themselves."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from pate.accounting import parameters
from pate.config.components import Component, listed
from pate.data.settings import Settings, Several

MAX_CELLS = 100_000

Cells = Annotated[int, Field(ge=1, le=MAX_CELLS)]
Noise = Annotated[float, AfterValidator(lambda value: parameters.noise(value, ""))]


class RoundSettings(Settings):
    """One round: how many cells, and what of the mechanism differs; `features: student` for the last student's own."""

    cells: Cells
    scale: Noise | None = None
    sigma: Noise | None = None
    features: Literal["student"] | None = None

    def parameters(self) -> dict[str, float]:
        """What of the mechanism this round has its own of."""
        return {key: value for key in ("scale", "sigma") if (value := getattr(self, key)) is not None}


class NeighbourSettings(Settings):
    """Public features, cells in them, and what is made of the votes in each cell.

    `votes_per_record` is how many of the nearest cells a record votes in. `label` says whether the example nearest to a
    cell's centre gets its label, or every public example of the cell; of histograms, cells whose largest share of votes
    is below `min_vote_share` are left out, and with `soft` every class comes with its share. `refine` times, a student
    then says which examples of a cell have which share of its classes, and the next one learns from that.
    """

    features: Several[Component] = ()
    components: int | None = Field(default=None, ge=1, le=4096)
    standardise: bool = False
    votes_per_record: int = Field(default=1, ge=1, le=1000)
    cells: Cells | None = None
    rounds: Several[RoundSettings] = ()
    label: Literal["centres", "cells"] = "cells"
    min_vote_share: float = Field(default=0.0, ge=0, le=1)
    soft: bool = False
    refine: int = Field(default=0, ge=0, le=1000)

    _listed = field_validator("features", mode="before")(listed)

    @model_validator(mode="before")
    @classmethod
    def _one_round_or_several(cls, content: Any) -> Any:
        if isinstance(content, dict) and "cells" in content and content.get("rounds"):
            raise ValueError("cells: each of the rounds says its own; leave this one out")
        return content

    @model_validator(mode="after")
    def _can_be_refined(self) -> NeighbourSettings:
        if self.refine and (not self.soft or self.label != "cells"):
            raise ValueError(f"refine = {self.refine}: needs soft: true and label: cells")
        return self

    @model_validator(mode="after")
    def _rounds_can_be_held(self) -> NeighbourSettings:
        for number, one in enumerate(self.all_rounds()):
            if one.features == "student" and number == 0:
                raise ValueError("rounds.0.features = 'student': there is no student before the first round")
            if self.votes_per_record >= one.cells and (self.votes_per_record, one.cells) != (1, 1):
                raise ValueError(
                    f"votes_per_record = {self.votes_per_record}: must be fewer than the cells, {one.cells}"
                )
        return self

    def all_rounds(self) -> tuple[RoundSettings, ...]:
        """The rounds, of which there is one where none are listed."""
        return self.rounds or (RoundSettings(cells=self.cells or 100),)
