"""The sections of a config."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from pate.accounting import parameters
from pate.config.components import Columns, Component, Model, TeacherFamily
from pate.config.neighbours import NeighbourSettings
from pate.config.teacher_rounds import TeacherRoundSettings
from pate.config.validation import check_sense
from pate.config.workers import RaySettings
from pate.config.yaml_loader import dump_yaml
from pate.data.settings import DataSettings, Settings, Several
from pate.errors import ConfigError

if TYPE_CHECKING:
    from pate.mechanisms import Mechanism
    from pate.mechanisms.cell_rounds import Round


MAX_TEACHERS = 100_000
MAX_ASKED = 10_000_000
_FAMILIES = {"__all__": {"resources"}}
_NOWHERE_IN_THE_RESULT: Any = {
    "ray": True,
    "backend": True,
    "budget": {"ledger": {"path"}},
    "teachers": _FAMILIES,
    "teacher_rounds": {"__all__": {"teachers": _FAMILIES}},
}
"""What a digest leaves out: where and with what it runs."""

"""Limits far above what anybody runs, and low enough that a mistake is told before it fills the memory."""


def _checked(check: Callable[[object], Any]) -> BeforeValidator:
    """A field whose value `pate.accounting.parameters` checks; the key is added where the error is shown."""

    def validate(value: object) -> Any:
        try:
            return check(value)
        except parameters.ParameterError as error:
            raise ValueError(error.wanted) from None

    return BeforeValidator(validate)


Epsilon = Annotated[float, _checked(parameters.epsilon)]
Delta = Annotated[float, _checked(parameters.delta)]
Order = Annotated[float, _checked(parameters.order)]
Positive = Annotated[float, _checked(lambda value: parameters.positive(value, ""))]
Count = Annotated[int, _checked(lambda value: parameters.whole(value, "", least=1, most=MAX_ASKED))]
Seed = Annotated[int, _checked(parameters.seed)]
Teachers = Annotated[int, _checked(lambda value: parameters.whole(value, "", least=2, most=MAX_TEACHERS))]


class Sanitise(Settings):
    """Release an upper bound on the data-dependent ε, with noise; all of this is fixed before the first query."""

    order: Order
    beta: Positive
    sigma_ss: Positive = 4.0


class LedgerName(Settings):
    """A ledger that runs on the same data share, as `pate ledger create` prints it.

    The path is taken from the config's folder; the identity makes sure that it is that ledger.
    """

    path: str
    id: str


class Budget(Settings):
    """Limits that are fixed before the first query; their cost is the publishable ε."""

    delta: Delta = 1e-5
    max_queries: Count = 100
    max_answers: Count | None = None
    query_selection: Literal["given", "clusters", "uncertainty", "class_balance"] = "given"
    active_rounds: int = Field(default=4, ge=2, le=1000)
    epsilon: Epsilon | None = None
    sanitise: Sanitise | None = None
    ledger: LedgerName | None = None
    allow_large_delta: bool = False

    @model_validator(mode="after")
    def _shared_ledger_counts_labels(self) -> Budget:
        if self.ledger is not None and self.sanitise is not None:
            raise ValueError("a shared ledger does not count what sanitise costs; use one or the other")
        return self

    @model_validator(mode="after")
    def _rounds_fit(self) -> Budget:
        if self.adaptive and self.sanitise is not None:
            raise ValueError(
                f"query_selection {self.query_selection!r} has no data-dependent cost that sanitise could bound; "
                "use one of the two"
            )
        if self.adaptive and self.active_rounds > self.max_queries:
            raise ValueError(f"active_rounds = {self.active_rounds}: more than the {self.max_queries} queries to ask")
        return self

    @property
    def adaptive(self) -> bool:
        """Whether later queries depend on earlier answers."""
        return self.query_selection in ("uncertainty", "class_balance")

    @property
    def answer_limit(self) -> int:
        """The limit on answered queries: `max_queries` unless `max_answers` is lower."""
        return self.max_queries if self.max_answers is None else min(self.max_answers, self.max_queries)


class RunConfig(Settings):
    """What every kind of run has; `groups` are columns that the report counts test examples by."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9_.-]+$", max_length=100)
    seed: Seed = 0
    data: DataSettings
    groups: Columns = ()

    def check(self) -> None:
        """Raise ConfigError where values do not go together."""

    def digest(self) -> str:
        """Equal for equal settings; what a run directory is known by.

        Where and how Ray runs is left out, and so is the path of a shared ledger, which its identity names.
        """
        return self._digest(())

    def release_digest(self) -> str:
        """Equal where the same is released: a run goes on with settings that differ in nothing else."""
        return self._digest(self.releasing_nothing)

    @property
    def releasing_nothing(self) -> tuple[str, ...]:
        """Sections that have no say in what a run releases of private records."""
        return ("groups", "nonprivate")

    def _digest(self, without: tuple[str, ...]) -> str:
        content = self.model_dump(mode="json", exclude=_NOWHERE_IN_THE_RESULT)
        if content.get("voters") == "teachers":  # a config that says nothing of voters is the one it always was
            del content["voters"], content["neighbours"]
        for key in ("teacher_rounds", "groups"):
            if not content.get(key):
                content.pop(key, None)
        if "read_by" in content["data"]:
            content["data"]["read_by"] = "driver"  # whoever reads, the records are the same
        content = {key: value for key, value in content.items() if key not in without}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def to_yaml(self) -> str:
        """The resolved settings."""
        return dump_yaml(self.to_plain())

    def to_plain(self) -> dict[str, Any]:
        """The settings as plain values, for a file that is read again."""
        return self.model_dump(mode="json", exclude=None if self.groups else {"groups"})


class BaselineBudget(Settings):
    """What a baseline may spend; without `epsilon` its own noise parameter decides."""

    epsilon: Epsilon | None = None
    delta: Delta = 1e-5
    allow_large_delta: bool = False


class BaselineConfig(RunConfig):
    """The settings of a private learner without teachers, on the same data."""

    baseline: Component
    budget: BaselineBudget = BaselineBudget()
    records: Count | None = None
    nonprivate: Component | None = None

    def check(self) -> None:
        check_sense(self)


class Config(RunConfig):
    """The settings of one run of PATE."""

    voters: Literal["teachers", "neighbours"] = "teachers"
    n_teachers: Teachers = 0
    teachers: Several[TeacherFamily] = ()
    neighbours: NeighbourSettings | None = None
    mechanism: dict[str, Any]
    budget: Budget = Budget()
    teacher_rounds: Several[TeacherRoundSettings] = ()
    student: Component
    nonprivate: Model | None = None
    backend: Literal["ray", "local"] = "ray"
    ray: RaySettings = RaySettings()

    @model_validator(mode="before")
    @classmethod
    def _asked_in_all_rounds(cls, content: Any) -> Any:
        """Where rounds are listed and `budget.max_queries` is not given, it is the sum of theirs."""
        if not isinstance(content, Mapping) or not isinstance(content.get("teacher_rounds"), (list, tuple)):
            return content
        budget, asked = content.get("budget", {}), [_queries(one) for one in content["teacher_rounds"]]
        if not asked or None in asked or not isinstance(budget, Mapping) or "max_queries" in budget:
            return content
        return {**content, "budget": {**budget, "max_queries": sum(asked)}}

    @model_validator(mode="after")
    def _rounds_can_be_held(self) -> Config:
        if not self.teacher_rounds:
            return self
        if self.voters == "neighbours":
            raise ValueError("teacher_rounds: are for voters: teachers; neighbours have neighbours.rounds")
        if self.data.source == "votes":
            raise ValueError(
                "teacher_rounds: stored votes have no teachers that a further round could train; leave them out"
            )
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
        """Whether what is asked, or who answers, depends on earlier answers: then there is no data-dependent ε."""
        return self.budget.adaptive or bool(self.teacher_rounds)

    @property
    def releasing_nothing(self) -> tuple[str, ...]:
        """The student learns from what was released, and a model without privacy is for comparison only.

        Where a student has a say in what is asked next, by what it doubts or sees, another one would ask otherwise.
        """
        near = self.neighbours.all_rounds() if self.neighbours is not None else ()
        by_student = "student" in [one.features for one in self.teacher_rounds] + [one.features for one in near]
        has_a_say = self.budget.adaptive or by_student
        return ("groups", "nonprivate") if has_a_say else ("groups", "nonprivate", "student")

    def of_round(self, number: int) -> Config:
        """The config with the teachers of the round of that number, from 1 on."""
        return self.model_copy(update={"teachers": self.teacher_rounds[number - 1].teachers or self.teachers})

    @model_validator(mode="after")
    def _teachers_or_votes(self) -> Config:
        if self.voters == "neighbours":
            return self._neighbours_alone()
        if self.neighbours is not None:
            raise ValueError("neighbours: is for `voters: neighbours`; add that, or leave it out")
        if not self.n_teachers:
            raise ValueError("n_teachers: missing; add it to the config")
        if self.data.source != "votes":
            if not self.teachers:
                raise ValueError("teachers: missing; add at least one family to the config")
        elif self.teachers or self.nonprivate is not None:
            raise ValueError(
                "data.source = 'votes': there are no private records, so leave out teachers and nonprivate"
            )
        return self

    def to_plain(self) -> dict[str, Any]:
        """Without what is about the other kind of voters."""
        content = super().to_plain()
        unused = {"voters", "neighbours"} if self.voters == "teachers" else {"n_teachers", "teachers"}
        if not self.teacher_rounds:
            unused.add("teacher_rounds")
        content = {key: value for key, value in content.items() if key not in unused}
        if self.voters == "neighbours":
            content["budget"] = {
                key: content["budget"][key] for key in ("delta", "epsilon", "ledger", "allow_large_delta")
            }
            assert self.neighbours is not None
            if self.neighbours.rounds:
                del content["neighbours"]["cells"]
        return content

    def _neighbours_alone(self) -> Config:
        """Without anything that is about teachers, or about single queries."""
        if self.neighbours is None:
            raise ValueError("neighbours: missing; voters: neighbours needs to know the cells")
        about_teachers = {"n_teachers": self.n_teachers, "teachers": self.teachers}
        about_queries = sorted(self.budget.model_fields_set - {"delta", "epsilon", "ledger", "allow_large_delta"})
        for key in [key for key, value in about_teachers.items() if value] + [f"budget.{key}" for key in about_queries]:
            raise ValueError(f"{key}: is for voters: teachers; leave it out")
        if self.data.source == "votes":
            raise ValueError("data.source = 'votes': there are no private records that could vote")
        return self

    def build_rounds(self) -> tuple[Round, ...]:
        """The rounds of votes, where records vote themselves."""
        from pate.mechanisms import build
        from pate.mechanisms.cell_rounds import Round, guarantee

        assert self.neighbours is not None
        rounds = tuple(
            Round(one.cells, build({**self.mechanism, **one.parameters()}), one.features == "student")
            for one in self.neighbours.all_rounds()
        )
        guarantee(rounds, self.neighbours.votes_per_record)
        return rounds

    def build_mechanism(self) -> Mechanism:
        """The configured mechanism, checked against the rest."""
        from pate.mechanisms import build
        from pate.mechanisms.cell_rounds import count_cost_of

        budget = self.budget
        mechanism = build(self.mechanism, self.n_teachers or 1)  # records vote themselves: any number will do
        if self.voters == "neighbours":
            count_cost_of(mechanism)
        mechanism.check(budget.max_queries, budget.delta, self.n_teachers)
        if budget.sanitise is not None:
            from pate.accounting.composition import RdpGuarantee
            from pate.accounting.sanitise import check_release

            sanitise = budget.sanitise
            labels = mechanism.worst_case(budget.max_queries, budget.answer_limit)
            if not mechanism.has_sanitised_cost or not isinstance(labels, RdpGuarantee):
                raise ConfigError(
                    f"budget.sanitise: there is none for {mechanism.name}, only for lnmax and (confident_)gnmax"
                )
            try:
                draws = budget.max_queries * mechanism.noise_draws(
                    parameters.MAX_CLASSES
                )  # how many there are is known later
                check_release(labels, sanitise.order, sanitise.beta, sanitise.sigma_ss, budget.delta, draws)
            except parameters.ParameterError as error:
                raise error.under("budget.sanitise") from None
            except ValueError as error:
                raise ConfigError(f"budget.sanitise: {error}") from None
        return mechanism

    def check(self) -> None:
        check_sense(self)
        self.build_mechanism()


def _queries(one: Any) -> int | None:
    """How many queries a round asks; None where that is no whole number, which is told elsewhere."""
    asked = one.get("queries") if isinstance(one, Mapping) else getattr(one, "queries", None)
    if isinstance(asked, float) and asked.is_integer():
        asked = int(asked)
    return asked if type(asked) is int and asked > 0 else None
