"""The sections of a config."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from functools import cached_property
from math import floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, model_validator

from pate.accounting import _parameters as parameters
from pate.config._components import Columns, Component, Model, RaySettings
from pate.config._yaml_loader import dump_yaml
from pate.data._settings import DataSettings, Settings
from pate.errors import ConfigError

if TYPE_CHECKING:
    from pate.mechanisms import Mechanism


MAX_TEACHERS = 100_000
_MAX_ASKED = 10_000_000
"""Limits far above what anybody runs, and low enough that a mistake is told before it fills the memory."""

_FAMILIES = {"__all__": {"resources"}}
_NOWHERE_IN_THE_RESULT: Any = {
    "ray": True,
    "backend": True,
    "budget": {"ledger": {"path"}},
    "teachers": _FAMILIES,
    "teacher_rounds": {"__all__": {"teachers": _FAMILIES}},
}
"""What a digest leaves out: where and with what it runs."""

_MAX_DELTA = 1e-3
_RECORDS_OF = {
    "digits": 1_197,
    "mnist": 60_000,
    "fashion_mnist": 60_000,
    "svhn": 73_257,
    "cifar10": 50_000,
    "adult": 32_561,
    "kddcup99": 394_021,
}
"""How many records of a benchmark play private: anybody may know."""


def public_record_count(data: DataSettings) -> int | None:
    """How many private records there are, as anybody may know: configured, or a benchmark's. Never counted."""
    return _RECORDS_OF.get(data.source, getattr(data, "public_record_count", None))


def check_delta(
    delta: float, public_record_count: int | None, allowed: bool = False, key: str = "budget.delta"
) -> None:
    """Raise ConfigError where δ is so large that publishing a few records whole would keep to it.

    A mechanism that picks one record in n at random and publishes it is (0, 1/n)-DP. So δ is at most one over the
    number of records, which must be a public figure, and at most 0.001 where none is known.

    >>> check_delta(1e-5, 50_000)
    >>> check_delta(1e-4, 50_000)
    Traceback (most recent call last):
    pate.errors.ConfigError: budget.delta = 0.0001: more than one over the about 50,000 private records, so that ...
    """
    most = _MAX_DELTA if public_record_count is None else min(_MAX_DELTA, 1 / public_record_count)
    if delta <= most or allowed:
        return
    why = f"more than {_MAX_DELTA:g}"
    if most < _MAX_DELTA:
        why = f"more than one over the about {public_record_count:,} private records"
    raise ConfigError(
        f"{key} = {delta:g}: {why}, so that a record published whole now and then would keep to it; write "
        f"1e{floor(log10(most / 10) + 1e-9)} or less, or budget.allow_large_delta: true if you know why"
    )


def _checked(check: Callable[[object], Any]) -> BeforeValidator:
    """A field whose value `pate.accounting._parameters` checks; the key is added where the error is shown."""

    def validate(value: object) -> Any:
        try:
            return check(value)
        except parameters.ParameterError as error:
            raise ValueError(error.wanted) from None

    return BeforeValidator(validate)


Epsilon = Annotated[float, _checked(parameters.epsilon)]
Delta = Annotated[float, _checked(parameters.delta)]
Order = Annotated[float, _checked(parameters.order)]
_Positive = Annotated[float, _checked(lambda value: parameters.positive(value, ""))]
Count = Annotated[int, _checked(lambda value: parameters.whole(value, "", least=1, most=_MAX_ASKED))]
Seed = Annotated[int, _checked(parameters.seed)]
Teachers = Annotated[int, _checked(lambda value: parameters.whole(value, "", least=2, most=MAX_TEACHERS))]


class Sanitise(Settings):
    """Release an upper bound on the data-dependent ε, with noise; all of this is fixed before the first query.

    Parameters
    ----------
    order : float
        Rényi order of the released bound, above 1.
    beta : float
        Decay of the smooth sensitivity.
    sigma_ss : float, default=4.0
        Standard deviation of its noise, in smooth sensitivities.
    """

    order: Order
    beta: _Positive
    sigma_ss: _Positive = 4.0


class LedgerName(Settings):
    """A ledger that runs on the same data share, as `pate ledger create` prints it.

    Parameters
    ----------
    path : str
        Its folder, from the config's.
    id : str
        Its identity, which makes sure that it is that ledger.
    """

    path: str
    id: str


class Budget(Settings):
    """Limits that are fixed before anything is released; their cost is the publishable ε.

    Parameters
    ----------
    delta : float, default=1e-5
        δ of the guarantee.
    epsilon : float, optional
        ε that the run may cost at most.
    ledger : LedgerName, optional
        A ledger that runs on the same data share.
    allow_large_delta : bool, default=False
        Whether δ may be more than one over the number of records.
    """

    delta: Delta = 1e-5
    epsilon: Epsilon | None = None
    ledger: LedgerName | None = None
    allow_large_delta: bool = False


class QueryBudget(Budget):
    """The limits of voters that are asked one query at a time.

    Parameters
    ----------
    max_queries : int, default=100
        Most queries asked.
    max_answers : int, optional
        Most queries answered; `max_queries` if left out.
    query_selection : "given", "clusters", "uncertainty" or "class_balance", default="given"
        Which public examples are asked: the first ones, one of each cluster, or those that a student chooses.
    active_rounds : int, default=4
        Rounds of asking, where a student chooses.
    sanitise : Sanitise, optional
        Release a bound on the data-dependent ε too.
    """

    max_queries: Count = 100
    max_answers: Count | None = None
    query_selection: Literal["given", "clusters", "uncertainty", "class_balance"] = "given"
    active_rounds: int = Field(default=4, ge=2, le=1000)
    sanitise: Sanitise | None = None

    @model_validator(mode="after")
    def _limits_go_together(self) -> QueryBudget:
        if self.ledger is not None and self.sanitise is not None:
            raise ValueError("a shared ledger does not count what sanitise costs; use one or the other")
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


class ReportSettings(Settings):
    """What the report shows besides.

    Parameters
    ----------
    groups : list of str, default=[]
        Columns of categories that test examples are counted by.
    """

    groups: Columns = ()


class RunConfig(Settings):
    """What every kind of run has.

    Parameters
    ----------
    name : str, default="run"
        For people; letters, digits and `_.-`.
    seed : int, default=0
        Of teachers and student; never of noise or partition.
    data : DataSettings
        The source, by its key `source`.
    report : ReportSettings, default=ReportSettings()
        What the report shows besides.
    """

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9_.-]+$", max_length=100)
    seed: Seed = 0
    data: DataSettings
    report: ReportSettings = ReportSettings()

    @cached_property
    def folder(self) -> Path:
        """Where the file is that it was read from, with the user's own classes beside it; `Path()` if it is of none.

        Configs that say the same are equal wherever they are from.
        """
        return Path()

    def of_folder(self, folder: Path) -> Self:
        """This config, as if it was read from a file in `folder`."""
        self.__dict__["folder"] = folder
        return self

    def check(self) -> None:
        """Raise ConfigError where values do not go together."""

    def refuse_missing_values(self, why: str) -> None:
        """Raise ConfigError, which says `why`, where the data section leaves missing values in."""
        missing = getattr(self.data, "missing_values", None)
        if missing is not None and missing.treatment == "keep":
            raise ConfigError(f"data.missing_values.treatment = 'keep': {why}; write public_median or indicator")

    def release_digest(self) -> str:
        """Equal where the same is released: a run goes on with settings that differ in nothing else."""
        return self.digest(self.releasing_nothing)

    @property
    def releasing_nothing(self) -> tuple[str, ...]:
        """Sections that have no say in what a run releases of private records."""
        return ("report", "nonprivate")

    def digest(self, without: tuple[str, ...] = ()) -> str:
        """Equal for equal settings, but for sections in `without`; what a run directory is known by.

        Where and how Ray runs is left out, and so is the path of a shared ledger, which its identity names.
        """
        content = self.model_dump(mode="json", exclude=_NOWHERE_IN_THE_RESULT)
        if self.report == ReportSettings():
            del content["report"]
        if "read_by" in content["data"]:
            content["data"]["read_by"] = "driver"  # whoever reads, the records are the same
        content = {key: value for key, value in content.items() if key not in without}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def to_yaml(self) -> str:
        """The resolved settings."""
        return dump_yaml(self.to_plain())

    def to_plain(self) -> dict[str, Any]:
        """The settings as plain values, for a file that is read again."""
        return self.model_dump(mode="json", exclude={"report"} if self.report == ReportSettings() else None)


class BaselineBudget(Settings):
    """What a baseline may spend; without `epsilon` its own noise parameter decides.

    Parameters
    ----------
    epsilon : float, optional
        ε of the guarantee.
    delta : float, default=1e-5
        δ of the guarantee.
    allow_large_delta : bool, default=False
        Whether δ may be more than one over the number of records.
    """

    epsilon: Epsilon | None = None
    delta: Delta = 1e-5
    allow_large_delta: bool = False


class BaselineConfig(RunConfig):
    """The settings of a private learner without teachers, on the same data.

    Parameters
    ----------
    baseline : Component
        The learner.
    budget : BaselineBudget, default=BaselineBudget()
        What it may spend.
    records : int, optional
        How many private records there are, as anybody may know.
    nonprivate : Component, optional
        A model without privacy to compare with.
    """

    baseline: Component
    budget: BaselineBudget = BaselineBudget()
    records: Count | None = None
    nonprivate: Component | None = None

    def check(self) -> None:
        check_delta(self.budget.delta, public_record_count(self.data), self.budget.allow_large_delta)
        self.refuse_missing_values("baselines take no missing values")


class Config(RunConfig):
    """The settings of one run of PATE: what every kind of voters has.

    `Config.model_validate` gives the class of the kind that `voters` names, which adds its own sections.

    Parameters
    ----------
    voters : str, default="teachers"
        Who votes: a short name, or the dotted path of a class.
    mechanism : mapping
        Name and parameters of the mechanism.
    budget : Budget, default=Budget()
        Limits that are fixed before anything is released.
    student : Component
        Who learns from the labels.
    nonprivate : Model, optional
        A model without privacy to compare with, on benchmarks.
    backend : "ray" or "local", default="ray"
        Where teachers are trained: on a cluster, or in this process.
    ray : RaySettings, default=RaySettings()
        How Ray is used.
    """

    voters: str = "teachers"
    mechanism: dict[str, Any]
    budget: Budget = Budget()
    student: Component
    nonprivate: Model | None = None
    backend: Literal["ray", "local"] = "ray"
    ray: RaySettings = RaySettings()

    @model_validator(mode="wrap")
    @classmethod
    def _of_its_voters(cls, content: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if cls is not Config or not isinstance(content, Mapping):
            return handler(content)
        from pate.voters import config_class

        found: Any = config_class(content).model_validate(content)
        return found

    @property
    def adaptive(self) -> bool:
        """Whether what is asked, or who answers, depends on earlier answers: then there is no data-dependent ε."""
        return False

    @property
    def student_shapes_release(self) -> bool:
        """Whether a student has a say in what is asked next, so that another student would ask otherwise."""
        return False

    @property
    def refinements(self) -> int:
        """How many further students refine the labels, each by what the one before it predicts."""
        return 0

    @property
    def has_weighted_labels(self) -> bool:
        """Whether a student is given labels with weights."""
        return False

    def count_labels(self, n_public: int) -> int:
        """On how many of so many public examples a student may be given labels."""
        return n_public

    def without_refinement(self) -> Self:
        """The config with one student only, where further ones would refine the labels."""
        return self

    @property
    def releasing_nothing(self) -> tuple[str, ...]:
        """The student learns from what was released, and a non-private baseline is for comparison only."""
        return ("report", "nonprivate") if self.student_shapes_release else ("report", "nonprivate", "student")

    def build_mechanism(self) -> Mechanism:
        """The configured mechanism, checked against the rest."""
        from pate.mechanisms import build

        mechanism = build(self.mechanism, 1)
        mechanism.check(1, self.budget.delta, 0)
        return mechanism

    def check(self) -> None:
        check_delta(self.budget.delta, public_record_count(self.data), self.budget.allow_large_delta)
        self.build_mechanism()


class QueryConfig(Config):
    """The settings of voters that are asked one query at a time, each with one vote of so many.

    Parameters
    ----------
    n_teachers : int
        How many votes a query has.
    budget : QueryBudget, default=QueryBudget()
        Limits that are fixed before the first query.
    """

    n_teachers: Teachers
    budget: QueryBudget = QueryBudget()

    @property
    def adaptive(self) -> bool:
        return self.budget.adaptive

    @property
    def student_shapes_release(self) -> bool:
        return self.budget.adaptive

    def count_labels(self, n_public: int) -> int:
        return min(self.budget.max_queries, n_public)

    def build_mechanism(self) -> Mechanism:
        from pate.mechanisms import build

        mechanism = build(self.mechanism, self.n_teachers)
        mechanism.check(self.budget.max_queries, self.budget.delta, self.n_teachers)
        if self.budget.sanitise is not None:
            self._check_sanitise(mechanism, self.budget.sanitise)
        return mechanism

    def _check_sanitise(self, mechanism: Mechanism, sanitise: Sanitise) -> None:
        from pate.accounting.composition import RdpGuarantee
        from pate.accounting.sanitise import check_release

        budget = self.budget
        labels = mechanism.worst_case(budget.max_queries, budget.answer_limit)
        if not mechanism.has_sanitised_cost or not isinstance(labels, RdpGuarantee):
            raise ConfigError(
                f"budget.sanitise: there is none for {mechanism.name}, only for lnmax and (confident_)gnmax"
            )
        draws = budget.max_queries * mechanism.noise_draws(parameters.MAX_CLASSES)  # how many there are is known later
        try:
            check_release(labels, sanitise.order, sanitise.beta, sanitise.sigma_ss, budget.delta, draws)
        except parameters.ParameterError as error:
            raise error.under("budget.sanitise") from None
        except ValueError as error:
            raise ConfigError(f"budget.sanitise: {error}") from None

    def check(self) -> None:
        super().check()
        if self.budget.query_selection != "given":
            self.refuse_missing_values("examples with missing values have no clusters (query_selection)")
