"""Neighbours as voters: every private record votes, with its own label, in the cells of public examples near it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, field_validator, model_validator

from pate.accounting import _parameters as parameters
from pate.accounting.composition import Guarantee
from pate.config._components import Component, listed
from pate.config._settings import Budget, Config
from pate.data._settings import Settings, Several
from pate.data.private import PrivateData, Shards
from pate.data.public import PublicData
from pate.errors import BudgetExceeded, ConfigError, DataError, RunError
from pate.ledger import Limits
from pate.mechanisms import Histogram, Mechanism
from pate.mechanisms._cell_costs import Round, RoundsCost, cost_of, guarantee
from pate.voters.base import Cost, Plan, RehearsedVotes, Release, Voters
from pate.voters.neighbours._choice import describe_plan, plan_of_rounds, with_target

if TYPE_CHECKING:
    from pate.audit.results import OneRunAudit, RecordVotes
    from pate.boundary._aggregator import Aggregator
    from pate.planning.plan import Choice, Situation
    from pate.report.schema import Queries, VotersFacts
    from pate.runs.context import RunContext
    from pate.students._posterior import Labelled
    from pate.voters.neighbours._cells import CellVote

_CELLS, _EXAMPLES_PER_CELL = 100, 4  # of a PATEClassifier, where nothing says otherwise
_MAX_PUBLIC = 3000  # examples that cells are made of
_ROWS_OF_A_CELL = 10
_TRIED = 5  # examples, to see how long features take
_SECONDS = 5.0  # that features may take
_PRIOR = 2.0  # votes that every cell is taken to have in the shares of all cells together


_MAX_CELLS = 100_000

_CellNumber = Annotated[int, Field(ge=1, le=_MAX_CELLS)]
_Noise = Annotated[float, AfterValidator(lambda value: parameters.noise(value, ""))]


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

    cells: _CellNumber
    scale: _Noise | None = None
    sigma: _Noise | None = None
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
    cells: _CellNumber | None = None
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
    def _check_rounds(self) -> NeighbourSettings:
        if self.refine and (not self.soft or self.label != "cells"):
            raise ValueError(f"refine = {self.refine}: needs soft: true and label: cells")
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


class Neighbours(Voters[NeighboursConfig]):
    """Private records that vote near themselves.

    Neighbouring relation: one record is added, removed, or changed under its id; with an id column, all records of an
    id. Sensitivity: in each round a record votes in `votes_per_record` cells, in each of them once; added or removed it
    changes so many counts by 1, changed at most twice as many. Cells are disjoint, so the cost does not grow with
    their number.
    """

    name = "neighbours"
    config_class = NeighboursConfig
    keeps_unusable_records = True
    covers_changed_record = True
    counts_one_record = True

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """The rounds of votes, each with its mechanism."""
        return self.config.build_rounds()

    # What it costs

    def guarantee(self) -> Guarantee:
        return guarantee(self.rounds, self.config.neighbours.votes_per_record)

    def count_draws(self, n_classes: int) -> int:
        return sum(one.cells * one.mechanism.noise_draws(n_classes) for one in self.rounds)

    def rounds_cost(self, n_classes: int) -> RoundsCost:
        """ε of all rounds: of a record changed, and of one added or removed."""
        return cost_of(self.rounds, self.config.neighbours.votes_per_record, self.config.budget.delta, n_classes)

    def cost(self, n_classes: int) -> Cost:
        found = self.rounds_cost(n_classes)
        return Cost(found.epsilon, found.added_or_removed)

    def refuse_cost(self, cost: float, n_classes: int) -> ConfigError:
        return ConfigError(
            f"budget.epsilon = {self.config.budget.epsilon:g}: the rounds cost {cost:.3g}; add noise, or lower "
            "neighbours.votes_per_record"
        )

    @property
    def query_limits(self) -> tuple[int, int]:
        cells = sum(one.cells for one in self.rounds)
        return cells, cells

    def limits(self, order: float | None = None) -> Limits:
        """What the ledger keeps to. A round is one charge, whatever its number of cells.

        A shared ledger charges each round as the dearest of them.
        """
        votes, n = self.config.neighbours.votes_per_record, len(self.rounds)
        dearest = 0.0 if order is None else max(guarantee([one], votes).rdp_at(order) for one in self.rounds)
        return Limits(n, n, f"{votes} votes in {self.rounds!r}", rdp_answered=dearest)

    def plan(self, public: PublicData, target_epsilon: float | None, student_seconds: float | None) -> Plan:
        votes, delta, rounds = self.config.neighbours.votes_per_record, self.config.budget.delta, self.rounds
        if target_epsilon is None:
            self.publishable_epsilon(public.n_classes)  # refused where it is above budget.epsilon
        else:
            rounds = tuple(with_target(rounds, votes, target_epsilon, delta, public.n_classes))
        found = plan_of_rounds(rounds, votes, delta, public.n_classes) | {"public_examples": len(public.X_public)}
        found["unit"] = getattr(self.config.data, "id", None) or "record"
        found["seconds_of_student"] = student_seconds
        return Plan(found, describe_plan(found))

    # Before anything is charged

    def build_components(self, each: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        from pate.features import build_features

        with each():
            build_features([step.model_dump() for step in self.config.neighbours.features], "neighbours.features")

    def features(self) -> Mapping[str, tuple[Component, ...]]:
        return {"neighbours.features": self.config.neighbours.features}

    def with_features(self, features: Mapping[str, tuple[Component, ...]]) -> NeighboursConfig:
        changed = self.config.neighbours.model_copy(update={"features": features["neighbours.features"]})
        return self.config.model_copy(update={"neighbours": changed})

    def check_public(self, public: PublicData) -> None:
        n_public = len(public.X_public)
        if n_public < 2:
            text = f"there is only {n_public} public example: it makes one cell, and no student learns from it"
            raise DataError(text)
        for one in self.rounds:
            if one.cells > n_public:
                raise ConfigError(f"neighbours.cells = {one.cells}: there are only {n_public} public examples")

    def try_student(self, student: Any, X: NDArray, labels: NDArray[np.int64]) -> None:
        """Raise ConfigError where cells cannot be made: by public features, and by a student's for a later round."""
        from pate.components._registry import SHOWN, attempt
        from pate.students._stage import require_learned_features
        from pate.voters.neighbours._cells import RecordFeatures

        steps = [step.model_dump() for step in self.config.neighbours.features]
        with attempt("neighbours.features", "computed"):
            if RecordFeatures(steps)(X[:SHOWN]).shape[0] != len(X[:SHOWN]):
                raise ValueError("not one row per example")
        if any(one.by_student for one in self.rounds):
            require_learned_features(student, self.config)

    def rehearse(
        self, public: PublicData, X: NDArray, y: NDArray[np.int64], held_out: NDArray
    ) -> RehearsedVotes | None:
        """Votes in cells, of which there are fewer than in the run, since there are fewer rows."""
        from pate.students._posterior import label_members
        from pate.voters.neighbours._cells import Cells, CellVote, RecordFeatures, Space

        settings, seed = self.config.neighbours, self.config.seed
        features = RecordFeatures([step.model_dump() for step in settings.features])
        examples = public.X_public[:: -(-len(public.X_public) // _MAX_PUBLIC)]
        started = time.perf_counter()
        features(examples[:_TRIED])
        each = (time.perf_counter() - started) / len(examples[:_TRIED])
        if settings.features and each * (len(examples) + len(X) + len(held_out)) > _SECONDS:
            return None
        seen = features(examples)
        number = min(self.rounds[0].cells, len(examples), max(2, len(X) // _ROWS_OF_A_CELL))
        cells = Cells.of(Space.of(seen, settings.components, settings.standardise), seen, number, seed)
        counts = CellVote(features, cells, 1, public.n_classes, examples[:1]).count(X, y).astype(np.float64)
        prior = counts.sum(axis=0) / max(1.0, counts.sum())
        shares = (counts + _PRIOR * prior) / (counts.sum(axis=1, keepdims=True) + _PRIOR)
        labelled = label_members(shares, cells.nearest(seen)[:, 0], 0.0, settings.soft)
        of_held_out = shares[cells.nearest(features(held_out))[:, 0]]
        return RehearsedVotes(f"{len(X):,} rows in {number} cells", examples, labelled.labels, labelled, of_held_out)

    def announcement(self, public: PublicData) -> str:
        cells = ", ".join(f"{one.cells} cells by {one.mechanism}" for one in self.rounds)
        n_votes = self.config.neighbours.votes_per_record
        votes = "one vote" if n_votes == 1 else f"{n_votes} votes"
        unit = getattr(self.config.data, "id", None) or ("person" if public.per_person else "record")
        return f"{votes} per {unit}{' in each round' if len(self.rounds) > 1 else ''}: {cells}"

    # Release

    def needs_cluster(self, context: RunContext, private: PrivateData) -> bool:
        return self.config.backend == "ray" and isinstance(private, Shards)

    def release(self, context: RunContext, private: PrivateData, aggregator: Aggregator) -> Release:
        """Release labels by rounds of cells, each of them one charge; a stored round is not counted again."""
        from pate.students._posterior import is_only_noise
        from pate.students._stage import fit_intermediate_student, split_weighted
        from pate.voters.neighbours._rounds import Rounds, open_vote_counter, report_silent_records

        config, public, run, console, clock = self.config, context.public, context.run, context.console, context.clock
        if not aggregator.spent().asked and not aggregator.room():
            raise BudgetExceeded("no round fits into the budget any more: other runs on the same data have used it up")
        report_silent_records(private, public.n_classes, run, console)
        cache = None if isinstance(private, Shards) else context.options.feature_cache or run.features_folder
        rounds = Rounds(config.neighbours, self.rounds, config.seed, run.cells_folder, cache)
        with ExitStack() as stack:
            counter = open_vote_counter(private, public.per_person, run, stack, config.ray)

            def release(name: str, cell_vote: CellVote, by: Mechanism) -> NDArray[np.int64]:
                with clock.stage("vote"), console.working(name.partition(",")[0]):
                    released = aggregator.release_round(name, cell_vote, by, counter)
                if by.releases_counts and is_only_noise(released, by.noise):  # type: ignore[attr-defined]
                    console.info(
                        "warning: what was released is no more than noise: either there is too much of it for so few "
                        "records, or hardly any of them cast a vote; look at data.id, id_type, label, classes, "
                        "decimal, dates and encoding, and at the mechanism's scale"
                    )
                return released

            def teach(number: int, labelled: Labelled) -> Any:
                with clock.stage("label"):
                    given = split_weighted(public.X_public, labelled)
                    return fit_intermediate_student(config, given, run.round_student(number), console)

            labelled = rounds.run(public.X_public, public.n_classes, release, teach)
            published = run.labels
            if published is not None and not labelled.same_as(published.labels, published.weights):
                raise RunError("labels.npz: differs from what the ledger holds; put back what the run published")
            spent, head = aggregator.spent(), aggregator.head()
            shutil.rmtree(run.features_folder, ignore_errors=True)
            run.sync()
        n_cells = sum(one.cells for one in self.rounds)
        return Release(labelled.rows, labelled.labels, spent, n_cells, n_cells, head, labelled=labelled)

    # Recommended by `pate plan --records` and behind PATEClassifier

    @classmethod
    def choices(cls, situation: Situation) -> Sequence[Choice]:
        from pate.voters.neighbours._choice import cells_choices

        return cells_choices(situation)

    classifier_parameters = ("features", "votes_per_record")

    @classmethod
    def suits(cls, mechanism: Mechanism) -> bool:
        return mechanism.releases_counts

    @classmethod
    def is_decided(cls, given: Mapping[str, Any]) -> bool:
        return given["max_queries"] is not None

    @classmethod
    def for_classifier(
        cls, given: Mapping[str, Any], choice: Choice | None, n_public: int, n_classes: int
    ) -> tuple[dict[str, Any], Mechanism]:
        from pate.voters._classifier_config import target_of

        cells, votes = given["max_queries"], given["votes_per_record"]
        if cells is None:
            cells = max(1, min(_CELLS, n_public // _EXAMPLES_PER_CELL)) if choice is None else choice.asked
        features, mechanism = given["features"] or [], given["mechanism"]
        if mechanism is None:
            rounds = with_target([Round(cells, Histogram(1.0))], votes, target_of(given), given["delta"], n_classes)
            mechanism = rounds[0].mechanism
        near = {"features": features, "votes_per_record": votes, "standardise": not features, "cells": cells}
        return {"neighbours": near}, mechanism

    # What is said of it

    def facts(self, public: PublicData, queries: Queries, labelled: int) -> VotersFacts:
        from pate.report.schema import VotersFacts

        config, rounds = self.config, self.rounds
        votes, cells = config.neighbours.votes_per_record, [one.cells for one in rounds]
        total, title = sum(cells), rounds[0].mechanism.title
        each = "1 vote" if votes == 1 else f"{votes} votes"
        nearest = "in the one" if votes == 1 else f"in the {votes}"
        counted = "1 round" if len(cells) == 1 else f"{len(cells)} rounds"
        in_turn = ", then ".join(f"{n:,}" for n in cells)
        return VotersFacts(
            kind=config.voters,
            method=f"neighbours, {rounds[0].mechanism.name}, {total} cells",
            settings={
                "votes_per_record": votes,
                "cells": cells,
                "features": [step.name for step in config.neighbours.features],
            },
            labelled=labelled,
            figures=(
                ("cells", f"{in_turn}; {each} per {public.unit}"),
                ("labelled", f"{labelled:,} of {len(public.X_public):,} public examples"),
            ),
            counts=(("public examples with a label", f"{labelled:,}"), ("cells of public examples", f"{total:,}")),
            steps=(
                ("Private records", "their number is not published"),
                (f"{each} each", "near public examples, in different cells" if votes > 1 else "near public examples"),
                (f"{total:,} cells", f"votes and noise: {title}"),
                (f"{labelled:,} labels", "of public examples, from what was released of their cells"),
            ),
            summary=(
                f"Public examples were grouped into {' and then '.join(f'{n:,}' for n in cells)} cells, and every "
                f"private record voted, with its own label, {nearest} nearest to it. Noise hid the exact votes; what "
                f"was released of them gave {labelled:,} public examples their labels. The student learned from those "
                "and from public examples alone."
            ),
            sensitivity=(
                "Neighbours. Public examples are grouped into cells; each record, or all records of one id, has "
                f"{each} in each round, in different cells, those nearest to it. Added or removed it changes that many "
                "counts by 1, changed twice as many, whatever the number of cells."
            ),
            limits=(
                f"Fixed before the first: {counted} of votes, with {', '.join(map(str, cells))} cells. ε is the cost "
                "of all of them, however many cells.",
                "A round is stored whole, with its charge, before anything of it is shown; later it is read from "
                "there.",
            ),
            labels=f"labels.npz: labels of {labelled:,} public examples, from noisy votes in {in_turn} cells",
        )

    @property
    def described(self) -> str:
        return "PATE, neighbours"

    # What an audit may do

    def audited_mechanisms(self) -> Sequence[Mechanism]:
        return [one.mechanism for one in self.rounds]

    def vote_counter(self, public: PublicData, config_dir: Path, key: bytes) -> RecordVotes:
        from pate.voters.neighbours._audit import CellVotes

        return CellVotes(self, public, key)

    def one_run_audits(self) -> Sequence[OneRunAudit]:
        from pate.voters.neighbours._audit import one_run_audits

        return one_run_audits(self)
