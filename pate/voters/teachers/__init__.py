"""Teachers as voters: each part of the private records trains one, and each teacher has one vote in every query."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from pate.components._registry import about
from pate.config import Component
from pate.config._components import TeacherFamily
from pate.config._settings import QueryConfig
from pate.data._settings import Settings, Several
from pate.data.private import PrivateData, Records, Shards
from pate.data.public import PublicData
from pate.errors import ConfigError
from pate.mechanisms.base import Split
from pate.voters.base import Estimator, RehearsedVotes
from pate.voters.queries import QueryVoters

if TYPE_CHECKING:
    from pate.audit.results import OneRunAudit, RecordVotes
    from pate.boundary._aggregator import Aggregator
    from pate.mechanisms import Mechanism
    from pate.planning.plan import Choice, Situation, Workload
    from pate.report.schema import TeacherKind
    from pate.runs.context import RunContext
    from pate.runs.run import Run
    from pate.students._stage import StudentFeatures
    from pate.voters.teachers._trials import StandIn

_SECONDS_BETWEEN_COPIES = 10.0
_RECORDS_TO_LEARN_FROM, _MIN_RECORDS = 10, 5
_TEACHERS, _QUERIES = 250, 200  # of a PATEClassifier, where nothing says otherwise


class TeacherRoundSettings(Settings):
    """One round of teachers.

    Parameters
    ----------
    queries : int
        How many queries it asks.
    features : "student", default=None
        Whether its teachers see what the student of all rounds before has learned to see, instead of the examples.
    teachers : list of TeacherFamily, default=()
        Its own families; without any, those of the config.
    """

    queries: int = Field(ge=1, le=10_000_000)
    features: Literal["student"] | None = None
    teachers: Several[TeacherFamily] = ()


@dataclass(frozen=True)
class _TeacherRound:
    """A round: its number from 1 on, its config, in which `teachers` are its own, and whether they see by a student."""

    number: int
    config: TeachersConfig
    queries: int
    by_student: bool


class TeachersConfig(QueryConfig):
    """A run in which teachers vote, each trained on its part of the private records.

    Parameters
    ----------
    teachers : list of TeacherFamily
        The families that share the parts, by weight.
    teacher_rounds : list of TeacherRoundSettings, default=()
        Rounds, of which later ones may see by a student of the earlier; without any, one round asks all queries.
    **others
        What every run on queries has.
    """

    teachers: Several[TeacherFamily]
    teacher_rounds: Several[TeacherRoundSettings] = ()

    @model_validator(mode="before")
    @classmethod
    def _sum_queries_of_rounds(cls, content: Any) -> Any:
        """Where rounds are listed and `budget.max_queries` is not given, it is the sum of theirs."""
        if not isinstance(content, Mapping) or not isinstance(content.get("teacher_rounds"), (list, tuple)):
            return content
        budget, asked = content.get("budget", {}), [_queries(one) for one in content["teacher_rounds"]]
        if not asked or None in asked or not isinstance(budget, Mapping) or "max_queries" in budget:
            return content
        return {**content, "budget": {**budget, "max_queries": sum(asked)}}

    @model_validator(mode="after")
    def _check_rounds(self) -> TeachersConfig:
        if not self.teachers:
            raise ValueError("teachers: missing; add at least one family to the config")
        if not self.teacher_rounds:
            return self
        if self.teacher_rounds[0].features == "student":
            raise ValueError("teacher_rounds.0.features = 'student': there is no student before the first round")
        total = sum(one.queries for one in self.teacher_rounds)
        if self.budget.max_queries != total:
            raise ValueError(
                f"budget.max_queries = {self.budget.max_queries}: the rounds ask {total}; leave it "
                "out, or make them agree"
            )
        if self.budget.adaptive:
            raise ValueError(
                f"budget.query_selection = {self.budget.query_selection!r}: has rounds of its own; use one or the other"
            )
        if self.budget.sanitise is not None:
            raise ValueError(
                "budget.sanitise: rounds have no data-dependent cost that it could bound; use one or the other"
            )
        return self

    @property
    def adaptive(self) -> bool:
        return self.budget.adaptive or bool(self.teacher_rounds)

    @property
    def student_shapes_release(self) -> bool:
        return self.budget.adaptive or any(one.features == "student" for one in self.teacher_rounds)

    @property
    def rounds(self) -> tuple[_TeacherRound, ...]:
        """The rounds, each with its config; one where none is listed."""
        if not self.teacher_rounds:
            return (_TeacherRound(1, self, self.budget.max_queries, False),)
        return tuple(
            _TeacherRound(
                number,
                self.model_copy(update={"teachers": one.teachers or self.teachers}),
                one.queries,
                one.features == "student",
            )
            for number, one in enumerate(self.teacher_rounds, start=1)
        )

    @property
    def split(self) -> Split:
        """How the configured mechanism assigns records to parts."""
        return self.build_mechanism().split(self.n_teachers)

    def to_plain(self) -> dict[str, Any]:
        content = super().to_plain()
        if not self.teacher_rounds:
            del content["teacher_rounds"]
        return content


def _queries(one: Any) -> int | None:
    """How many queries a round asks; None where that is no whole number, which is reported elsewhere."""
    asked = one.get("queries") if isinstance(one, Mapping) else getattr(one, "queries", None)
    if isinstance(asked, float) and asked.is_integer():
        asked = int(asked)
    return asked if type(asked) is int and asked > 0 else None


def _check_part_sizes(
    config: TeachersConfig, n_records: int, n_classes: int, force: bool, notify: Callable[[str], object]
) -> None:
    """Refuse parts that are too small. How many records there are is for those whom `notify` informs, not the error."""
    each = config.split.share * n_records
    if each < _MIN_RECORDS and not force:
        enough = n_records / 4 / _MIN_RECORDS
        for_whom = f"{about(enough)} teachers would have enough" if enough >= 2 else "too few for any two teachers"
        notify(f"{about(each)} private records per teacher; {for_whom}")
        raise ConfigError(
            f"n_teachers = {config.n_teachers}: parts of the private records would be too small to learn from; use "
            "fewer teachers, or add {force}",
            force=True,
        )
    if each < max(_RECORDS_TO_LEARN_FROM, n_classes):
        notify(f"parts of {about(each, 2)} records are small for {n_classes} classes")


class Teachers(QueryVoters[TeachersConfig]):
    """Teachers, each trained on its own part of the private records.

    Neighbouring relation: one record is added, removed, or changed under its id; with an id column, all records of an
    id. A record goes to its part by a keyed hash of its own identity, so one teacher changes, and with it one vote in
    every query: two counts by 1 each. With MSamp a record is in several parts, and as many votes may move.
    """

    name = "teachers"
    config_class = TeachersConfig

    # Before anything is charged

    def _recipes(self) -> list[Any]:
        from pate.teachers import recipes

        return [recipe for round_ in self.config.rounds for recipe in recipes(round_.config.teachers)]

    def estimators(self) -> Sequence[Estimator]:
        return [Estimator(one.key, one.estimator(self.config.seed), bool(one.features)) for one in self._recipes()]

    def build_components(self, each: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        for recipe in self._recipes():
            for build in (partial(recipe.estimator, self.config.seed), recipe.build_features):
                with each():
                    build()

    def training_seconds(self, public: PublicData, n_records: int) -> float:
        from pate.voters.teachers._trials import expected_seconds

        first = self.config.rounds[0].config
        return expected_seconds(first, public.X_public, n_records // first.n_teachers, public.n_classes)

    def find_number(
        self,
        public: PublicData,
        known: PrivateData,
        records: int,
        target_epsilon: float,
        workload: Workload,
        progress: Callable[[str], None],
    ) -> StandIn:
        from pate.voters.teachers._trials import find_number

        return find_number(self.config, public, known, records, target_epsilon, workload, progress=progress)

    def rounds_planned(self) -> list[dict[str, Any]]:
        return [{"queries": one.queries, "features": one.features or "public"} for one in self.config.teacher_rounds]

    def features(self) -> Mapping[str, tuple[Component, ...]]:
        return {f"teachers.{i}.features": family.features for i, family in enumerate(self.config.teachers)}

    def with_features(self, features: Mapping[str, tuple[Component, ...]]) -> TeachersConfig:
        families = (
            family.model_copy(update={"features": features[f"teachers.{i}.features"]})
            for i, family in enumerate(self.config.teachers)
        )
        return self.config.model_copy(update={"teachers": tuple(families)})

    def check_private(self, context: RunContext, private: PrivateData) -> None:
        if isinstance(private, Records):
            notify = context.notes.private.append
            _check_part_sizes(self.config, len(private), context.public.n_classes, context.options.force, notify)

    def try_on_public(self, public: PublicData) -> None:
        from pate.voters.teachers._trials import try_teachers

        try_teachers(self.config, public)

    def try_student(self, student: Any, X: NDArray, labels: NDArray[np.int64]) -> None:
        from pate.voters.teachers._trials import try_rounds_by_student

        super().try_student(student, X, labels)
        try_rounds_by_student(self.config, student, X, labels)

    def rehearse(
        self, public: PublicData, X: NDArray, y: NDArray[np.int64], held_out: NDArray
    ) -> RehearsedVotes | None:
        from pate.voters.teachers._trials import rehearse_teachers

        return rehearse_teachers(self.config, public, X, y, held_out)

    def metrics(self) -> dict[str, float]:
        return super().metrics() | {"teachers_trained": 0}

    # Release

    def needs_cluster(self, context: RunContext, private: PrivateData) -> bool:
        from pate.boundary._aggregator import votes_collected

        budget, public, run = self.config.budget, context.public, context.run
        queries = public.X_public if budget.adaptive else public.X_public[: budget.max_queries]
        return self.config.backend == "ray" and not votes_collected(queries, run.private, run.key)

    def collect_votes(
        self, context: RunContext, private: PrivateData, aggregator: Aggregator, queries: NDArray, is_done: bool
    ) -> None:
        from pate.cluster._metrics import show

        if self.config.teacher_rounds:
            self._run_rounds(context, private, aggregator, queries)
        elif not is_done:
            self._train_and_vote(context, private, aggregator, self.config.rounds[0], queries)
        show(teachers_trained=self.config.n_teachers, teachers=self.config.n_teachers)

    def _run_rounds(self, context: RunContext, private: PrivateData, aggregator: Aggregator, queries: NDArray) -> None:
        """Train, vote and ask round by round; what is stored of a round is not done again, and all answers are."""
        from pate.boundary._aggregator import votes_collected
        from pate.students._stage import (
            StudentFeatures,
            fit_intermediate_student,
            mention_stored_labels,
            split_labelled,
        )
        from pate.voters.queries import ask

        run, clock = context.run, context.clock
        labels = np.zeros(0, dtype=np.int64)
        for round_ in self.config.rounds:
            X = queries[len(labels) : len(labels) + round_.queries]
            stored = aggregator.stored_prefix(X) == len(X) or votes_collected(X, run.private, run.key)
            if not stored and aggregator.room() > 0:
                seen, before = None, round_.number - 1
                if round_.by_student:
                    folder = run.student_of_round(before)
                    with clock.stage("label"), mention_stored_labels(f"the student of round {before}", run.place):
                        given = split_labelled(context.public.X_public, labels)
                        fit_intermediate_student(self.config, given, folder, context.console)
                    seen = StudentFeatures.of(folder)
                self._train_and_vote(context, private, aggregator, round_, X, seen)
            with clock.stage("label"):
                labels = np.concatenate([labels, ask(aggregator, X, context.console)])
            run.sync()

    def _train_and_vote(
        self,
        context: RunContext,
        private: PrivateData,
        aggregator: Aggregator,
        round_: _TeacherRound,
        queries: NDArray,
        first: StudentFeatures | None = None,
    ) -> None:
        """Train the teachers of a round, and give the aggregator their votes on `queries`."""
        from pate.cluster._metrics import show
        from pate.runs import _files as files
        from pate.runs._signatures import OWN_TEACHERS, user_secret
        from pate.voters.teachers._checkpoints import TeacherFiles
        from pate.voters.teachers._worker import Teaching
        from pate.voters.teachers.ensemble import Ensemble, private_records

        config, public, run, options = round_.config, context.public, context.run, context.options
        console, clock = context.console, context.clock
        with console.working("splitting private records into parts"):
            records = private_records(config, private, run)
        if records.left_out:
            console.info_private(f"{records.left_out} records have no valid id and are left out; see docs/data.md")
        if isinstance(private, Shards):
            _check_part_sizes(config, records.n_records, public.n_classes, options.force, context.info_operator)
        teaching = Teaching.of(config, public.n_classes, options.config_dir, first, public.X_public.shape[1:])
        own, trusted = user_secret(run.key_file), OWN_TEACHERS in options.trust
        store = TeacherFiles(run.teachers_of_round(round_.number), run.key, round_.number, own, trusted)
        if store.are_foreign:
            console.info(
                "note: the teachers that are stored there were not trained by you here, and are trained again: reading "
                f"them could run somebody's code. Where that was you, elsewhere, trust {OWN_TEACHERS} to use them"
            )
        settings = config.ray if config.backend == "ray" else None
        with Ensemble(teaching, records, store, settings, console.info, options.n_jobs) as ensemble:
            with clock.stage("train"):
                with console.working("trying each kind of teacher on public examples"):
                    expected = ensemble.probe(public.X_public)
                whole = 1.2 * expected + 12 + context.student_seconds
                context.info_operator(
                    f"training will take about {expected + 4:.0f} s, the whole run about {whole:.0f} s more, of which "
                    f"the student {context.student_seconds:.0f}"
                )
                with console.track("training teachers", config.n_teachers) as update:

                    def done(count: int) -> None:
                        update(count)
                        show(teachers_trained=count, teachers=config.n_teachers)
                        run.sync(at_least_every=_SECONDS_BETWEEN_COPIES)

                    ensemble.train(done)
                run.sync()
            with clock.stage("vote"), console.working("counting votes"):
                ensemble.vote(lambda voters: aggregator.collect(queries, voters))
        run.note(files.FAILURES, {"private": "do not publish", "teachers": store.failures})
        if store.failures:
            console.info_private(f"{len(store.failures)} teachers failed to train; see private/failures.json")

    def touched_parts(self, records: Records, gone: NDArray[np.bool_], key: bytes) -> list[int]:
        from pate.voters.teachers.ensemble import parts_of

        return [part for part, members in enumerate(parts_of(self.config, records, key)) if gone[members].any()]

    def retrain(
        self, public: PublicData, private: PrivateData, run: Run, config_dir: Path, parts: Sequence[int]
    ) -> None:
        """Train teachers of these parts again; one that hangs or kills its process becomes a constant, as in a run.

        Teachers of later rounds are erased, and trained again only if their round is still to vote.
        """
        from pate.cluster._session import ray_session
        from pate.runs._signatures import user_secret
        from pate.voters.teachers._checkpoints import TeacherFiles
        from pate.voters.teachers._worker import Teaching
        from pate.voters.teachers.ensemble import Ensemble, private_records

        config = self.config.rounds[0].config
        teaching = Teaching.of(config, public.n_classes, config_dir, shape=public.X_public.shape[1:])
        store = TeacherFiles(run.private, run.key, user=user_secret(run.key_file))
        with ExitStack() as stack:
            if config.backend == "ray":
                stack.enter_context(ray_session(None, config.ray))
            records = private_records(config, private, run)
            settings = config.ray if config.backend == "ray" else None
            stack.enter_context(Ensemble(teaching, records, store, settings)).train(parts=parts)

    # Recommended by `pate plan --records` and behind PATEClassifier

    @classmethod
    def choices(cls, situation: Situation) -> Sequence[Choice]:
        from pate.voters.teachers._trials import teachers_choices

        return teachers_choices(situation)

    classifier_parameters = ("teachers", "n_teachers")
    needs_recommendation = True

    @classmethod
    def suits(cls, mechanism: Mechanism) -> bool:
        return not mechanism.releases_counts

    @classmethod
    def is_decided(cls, given: Mapping[str, Any]) -> bool:
        return given["max_queries"] is not None and given["n_teachers"] is not None

    @classmethod
    def for_classifier(
        cls, given: Mapping[str, Any], choice: Choice | None, n_public: int, n_classes: int
    ) -> tuple[dict[str, Any], Mechanism]:
        from pate.planning.plan import Workload, solve_noise
        from pate.voters._classifier_config import listed_teachers, target_of, teacher_family

        asked, n_teachers, mechanism = given["max_queries"], given["n_teachers"], given["mechanism"]
        if asked is None:
            asked = choice.asked if choice is not None and n_teachers is None and mechanism is None else _QUERIES
        if n_teachers is None:
            n_teachers = _TEACHERS if choice is None else choice.n_teachers
        asked = min(n_public, asked)
        if mechanism is None:
            mechanism = solve_noise(
                {"name": "gnmax"}, target_of(given), Workload(asked, None, given["delta"], n_classes)
            )
        families = [teacher_family(one) for one in listed_teachers(given["teachers"])]
        return {"n_teachers": n_teachers, "teachers": families, "budget": {"max_queries": asked}}, mechanism

    # What is said of it

    @property
    def queries_by_round(self) -> tuple[int, ...]:
        return tuple(one.queries for one in self.config.teacher_rounds)

    @property
    def families(self) -> tuple[TeacherKind, ...]:
        from pate.report.schema import TeacherKind
        from pate.teachers import assign_recipes, recipes

        if self.config.teacher_rounds:
            found: list[TeacherKind] = []
            for round_ in self.config.rounds:
                own = Teachers(round_.config.model_copy(update={"teacher_rounds": ()}))
                first = ("student",) if round_.by_student else ()
                found += (kind.model_copy(update={"features": first + kind.features}) for kind in own.families)
            return tuple(found)
        kinds = recipes(self.config.teachers)
        teachers = [0] * len(self.config.teachers)
        for chosen in assign_recipes(kinds, self.config.n_teachers):
            teachers[int(kinds[chosen].key.rpartition(".")[2])] += 1
        return tuple(
            TeacherKind(
                name=family.name,
                params=dict(family.params) | {name: list(values) for name, values in family.grid.items()},
                features=tuple(step.name for step in family.features),
                teachers=number,
            )
            for family, number in zip(self.config.teachers, teachers, strict=True)
        )

    @property
    def described(self) -> str:
        return "PATE, teachers"

    def forgotten(self, n_parts: int, version: int) -> Sequence[str]:
        which = "1 teacher was" if n_parts == 1 else f"{n_parts} teachers were"
        return (
            f"forgotten: {which} trained again without it; old checkpoints and all stored votes are erased.",
            f"The ensemble is now version {version}. Labels released so far, and a student made of them, cannot be",
            "taken back: what they tell about any record stays within the published ε. Remove the record from its",
            "source too.",
        )

    # What an audit may do

    def vote_counter(self, public: PublicData, config_dir: Path, key: bytes) -> RecordVotes:
        from pate.voters.teachers._audit import TeacherVotes

        return TeacherVotes(self, public, config_dir, key)

    def one_run_audits(self) -> Sequence[OneRunAudit]:
        from pate.voters.teachers._audit import persons_in_or_out

        return (persons_in_or_out(self),)
