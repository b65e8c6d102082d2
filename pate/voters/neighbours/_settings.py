"""The section of a config for neighbours: records that vote near themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from pate.accounting import _parameters as parameters
from pate.config._components import Component, listed
from pate.config._settings import Budget, Config
from pate.data._settings import Settings, Several

if TYPE_CHECKING:
    from pate.mechanisms import Mechanism
    from pate.mechanisms._cell_costs import Round

MAX_CELLS = 100_000

Cells = Annotated[int, Field(ge=1, le=MAX_CELLS)]
Noise = Annotated[float, AfterValidator(lambda value: parameters.noise(value, ""))]


class RoundSettings(Settings):
    """One round of votes.

    Parameters
    ----------
    cells : int
        How many cells the public examples are grouped into.
    scale, sigma : float, default=None
        The mechanism's noise in this round, in votes; None is that of the config.
    features : "student", default=None
        Whether cells are made in what the student of the rounds before has learned to see; None is the config's.
    """

    cells: Cells
    scale: Noise | None = None
    sigma: Noise | None = None
    features: Literal["student"] | None = None

    def parameters(self) -> dict[str, float]:
        """What of the mechanism this round has its own of."""
        return {key: value for key in ("scale", "sigma") if (value := getattr(self, key)) is not None}


class NeighbourSettings(Settings):
    """Public features, cells in them, and what is made of the votes in each cell.

    Parameters
    ----------
    features : list of components, default=()
        Public transforms, one after the other; without any, examples as they are.
    components : int, default=None
        How many principal components of the features are kept; None is all features.
    standardise : bool, default=False
        Whether each feature is divided by its standard deviation among the public examples.
    votes_per_record : int, default=1
        How many of its nearest cells a record votes in.
    cells : int, default=None
        How many cells there are in the one round; None is 100.
    rounds : list of RoundSettings, default=()
        Several rounds, in place of `cells`.
    label : {"cells", "centres"}, default="cells"
        Whether every public example of a cell gets its label, or the one nearest to its centre alone.
    min_vote_share : float, default=0.0
        Cells whose largest share of votes is below this are left out; for mechanisms that release counts.
    soft : bool, default=False
        Whether every class comes with its share of the votes.
    refine : int, default=0
        How many times a student says which examples of a cell have which of its classes, and the next learns from it.
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
    def _check_rounds(self) -> NeighbourSettings:
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


class NeighboursConfig(Config):
    """A run in which every private record votes, in the cells of public examples nearest to it.

    Parameters
    ----------
    neighbours : NeighbourSettings
        Cells, votes of a record, and features by which what is near is found.
    **others
        What every run has.
    """

    neighbours: NeighbourSettings
    budget: Budget = Budget()

    @property
    def student_shapes_release(self) -> bool:
        return any(one.features == "student" for one in self.neighbours.all_rounds())

    @property
    def refinements(self) -> int:
        return self.neighbours.refine

    @property
    def has_weighted_labels(self) -> bool:
        return True

    def without_refinement(self) -> Self:
        return self.model_copy(update={"neighbours": self.neighbours.model_copy(update={"refine": 0})})

    def build_rounds(self) -> tuple[Round, ...]:
        """The rounds of votes, each with its mechanism."""
        from pate.mechanisms import build
        from pate.mechanisms._cell_costs import Round, guarantee

        rounds = tuple(
            Round(one.cells, build({**self.mechanism, **one.parameters()}), one.features == "student")
            for one in self.neighbours.all_rounds()
        )
        guarantee(rounds, self.neighbours.votes_per_record)
        return rounds

    def build_mechanism(self) -> Mechanism:
        from pate.mechanisms._cell_costs import count_cost_of

        mechanism = super().build_mechanism()
        count_cost_of(mechanism)
        return mechanism

    def check(self) -> None:
        super().check()
        self.refuse_missing_values("nobody can say what a record with missing values is near to")

    def to_plain(self) -> dict[str, Any]:
        content = super().to_plain()
        if self.neighbours.rounds:
            del content["neighbours"]["cells"]
        return content
