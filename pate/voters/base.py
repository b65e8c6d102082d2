"""Who votes on public examples: the interface that every kind of voters has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from pate.accounting.composition import Guarantee, RdpGuarantee, with_sampling_error
from pate.accounting.worst_case import WorstCaseGuarantee
from pate.config import Component, Config
from pate.data.private import PrivateData
from pate.data.public import PublicData
from pate.errors import ConfigError
from pate.ledger import Charge, Limits
from pate.ledger._chain import Pin
from pate.ledger.ledger import DRAWS_PER_RUN
from pate.mechanisms import Mechanism
from pate.planning.costs import ReleaseCost

if TYPE_CHECKING:
    from pathlib import Path

    from pate.audit.results import OneRunAudit, RecordVotes
    from pate.boundary._aggregator import Aggregator
    from pate.planning.plan import Choice, Situation, Workload
    from pate.report.schema import Queries, VotersFacts
    from pate.runs.context import RunContext
    from pate.runs.run import Run
    from pate.students._posterior import Labelled
    from pate.voters.teachers._trials import StandIn

_C = TypeVar("_C", bound=Config)


@dataclass(frozen=True)
class Release:
    """What came out of the trust boundary, stored and paid for.

    `rows` are the public examples that `labels` are of, in the order of the run's public data. Where a public example
    may have several labels with weights, `labelled` holds those. `asked` and `answered` count what was put to the vote:
    queries, or cells.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    spent: Charge
    asked: int
    answered: int
    head: Pin
    sanitised: dict[str, Any] | None = None
    labelled: Labelled | None = None


class Cost(NamedTuple):
    """ε for every data set: the one to publish, and where it is known that of a record only added or removed."""

    epsilon: float
    added_or_removed: float | None = None


class Plan(NamedTuple):
    """What `pate plan` prints of a config: one JSON object, or lines for people."""

    content: dict[str, Any]
    lines: list[str]


class RehearsedVotes(NamedTuple):
    """Votes of public records, without noise: whose they are, labels that public `examples` get by them, and the share
    of each class among the votes about the examples that were kept back."""

    voters: str
    examples: NDArray
    labels: NDArray[np.int64]
    labelled: Labelled | None
    shares: NDArray[np.float64]


class Estimator(NamedTuple):
    """A classifier that learns from private records: its key in the config, itself, and whether features come first."""

    key: str
    estimator: Any
    has_features: bool


class Voters(ABC, Generic[_C]):
    """Who votes, what one record can change, what that costs, how labels are released, and what is said of it.

    A kind of voters is one subclass, in a file or folder of `pate/voters/`, or anywhere if the config names it by its
    dotted path. Its class docstring states the neighbouring relation and the sensitivity. Nobody outside asks which
    kind there is: what differs between kinds is asked of them.

    Parameters
    ----------
    config : Config
        The run's settings, of the class `config_class`.
    """

    name: ClassVar[str]
    """What a config calls this kind."""
    config_class: ClassVar[type[Config]]
    """The settings of a run with this kind: `Config` and the kind's own sections."""
    keeps_unusable_records: ClassVar[bool] = False
    """Whether a record that cannot be used casts no vote; else it is refused."""
    covers_changed_record: ClassVar[bool] = False
    """Whether ε holds also for a record that is changed, even where records have no ids."""

    def __init__(self, config: _C) -> None:
        self.config = config

    # What it costs

    @cached_property
    def mechanism(self) -> Mechanism:
        """The configured mechanism."""
        return self.config.build_mechanism()

    @abstractmethod
    def guarantee(self) -> Guarantee:
        """What the limits cost, for every data set, without the error of the samplers."""

    @abstractmethod
    def count_draws(self, n_classes: int) -> int:
        """How often the run draws noise, at most."""

    @abstractmethod
    def cost(self, n_classes: int) -> Cost:
        """ε of the limits for every data set, with the error of all draws charged to δ."""

    @property
    @abstractmethod
    def query_limits(self) -> tuple[int, int]:
        """How many queries, or cells, may be asked at most, and answered."""

    @abstractmethod
    def limits(self, order: float | None = None) -> Limits:
        """What the ledger keeps to; with the Rényi costs at `order` that a shared ledger charges."""

    @abstractmethod
    def refuse_cost(self, cost: float, n_classes: int) -> ConfigError:
        """The error that says what to change where `cost` exceeds `budget.epsilon`."""

    def publishable_epsilon(self, n_classes: int) -> float:
        """ε of the limits, which holds for every data set; ConfigError where it exceeds `budget.epsilon`."""
        draws, budget = self.count_draws(n_classes), self.config.budget
        if budget.ledger is not None and draws > DRAWS_PER_RUN:
            raise ConfigError(
                f"budget.ledger: this run draws noise {draws:,} times, of a shared ledger {DRAWS_PER_RUN:,}; ask fewer"
            )
        epsilon = self.cost(n_classes).epsilon
        if not np.isfinite(epsilon):
            raise ConfigError(f"mechanism: no finite ε at δ = {budget.delta:g} for what is asked; add noise")
        if budget.epsilon is not None and epsilon > budget.epsilon:
            raise self.refuse_cost(epsilon, n_classes)
        return epsilon

    def part(self, n_classes: int, epsilon: float | None = None) -> ReleaseCost:
        """The run as one of several on the same data; `epsilon` is what it costs alone, by Rényi costs if None."""
        found, draws, delta = self.guarantee(), self.count_draws(n_classes) + 1, self.config.budget.delta
        if epsilon is None:
            quick = found.by_renyi() if isinstance(found, WorstCaseGuarantee) else found
            epsilon = with_sampling_error(quick.epsilon, delta, draws)
        return ReleaseCost(epsilon, delta, found if isinstance(found, RdpGuarantee) else None, draws)

    def epsilon_curves(self, n_classes: int) -> dict[str, dict[int, float]] | None:
        """ε of the first n queries, a curve for each way of counting; None where one charge covers all."""
        return None

    def plan(self, public: PublicData, target_epsilon: float | None, student_seconds: float | None) -> Plan | None:
        """What `pate plan` says; None where it asks the mechanism about queries, as it does without a config."""
        return None

    def training_seconds(self, public: PublicData, n_records: int) -> float | None:
        """How long training would take on this machine for so many private records; None where nothing is trained."""
        return None

    def find_number(
        self,
        public: PublicData,
        known: PrivateData,
        records: int,
        target_epsilon: float,
        workload: Workload,
        progress: Callable[[str], None],
    ) -> StandIn:
        """Try how many teachers are best for so many private `records`, on data that are public, all of them."""
        raise ConfigError("{stand_in}: needs a config with teachers", stand_in=True)

    def rounds_planned(self) -> list[dict[str, Any]]:
        """What each round asks, and by which features, where there are several."""
        return []

    # Before anything is charged

    @property
    def n_parts(self) -> int:
        """How many parts must each be counted exactly once; 0 where votes are not counted by part."""
        return 0

    def order_public(self, public: PublicData) -> PublicData:
        """The public data with the examples that are asked about first."""
        return public

    def estimators(self) -> Sequence[Estimator]:
        """The classifiers that learn from private records."""
        return ()

    def build_components(self, each: Callable[[], AbstractContextManager[Any]] = nullcontext) -> None:
        """Import and construct what the kind's sections name, `each` within a context; ConfigError where that fails."""

    def features(self) -> Mapping[str, tuple[Component, ...]]:
        """The public features that the kind's sections name, by key."""
        return {}

    def with_features(self, features: Mapping[str, tuple[Component, ...]]) -> Config:
        """The config with other features in place of those that `features` gave."""
        return self.config

    def check_public(self, public: PublicData) -> None:
        """Raise ConfigError or DataError where there are too few public examples."""

    def check_private(self, context: RunContext, private: PrivateData) -> None:
        """Raise where private data does not suit. How many records there are is for the operator, not for the error."""

    def try_on_public(self, public: PublicData) -> None:
        """Raise ConfigError where what the kind's sections name does not work on public examples."""

    def try_student(self, student: Any, X: NDArray, labels: NDArray[np.int64]) -> None:
        """Raise ConfigError where a `student`, fitted to the first of `X`, is no student for these voters."""

    def rehearse(
        self, public: PublicData, X: NDArray, y: NDArray[np.int64], held_out: NDArray
    ) -> RehearsedVotes | None:
        """Votes of labelled public records (`X`, `y`), without noise; None where there are none or it takes long."""
        return None

    @property
    def is_adaptive(self) -> bool:
        """Whether later queries, or later voters, depend on earlier answers."""
        return False

    @property
    def queries_by_round(self) -> tuple[int, ...]:
        """The most queries of each round of teachers, where there are several."""
        return ()

    @abstractmethod
    def announcement(self, public: PublicData) -> str:
        """What is asked of whom, for the operator, before it begins."""

    def metrics(self) -> dict[str, float]:
        """Public figures that a cluster's dashboard shows from the beginning."""
        return {}

    # Release

    def load(self, data_dir: Path | None, config_dir: Path, by_workers: bool) -> tuple[PublicData, PrivateData]:
        """The public and the private side of the data that the config describes."""
        from pate.data._sources import load

        return load(self.config.data, data_dir, config_dir, by_workers, self.keeps_unusable_records)

    def needs_cluster(self, context: RunContext, private: PrivateData) -> bool:
        """Whether somebody has yet to vote on a Ray cluster."""
        return False

    @abstractmethod
    def release(self, context: RunContext, private: PrivateData, aggregator: Aggregator) -> Release:
        """Have votes counted, and labels released through the `aggregator`: paid for and stored when this returns."""

    def touched_parts(self, records: Any, gone: NDArray[np.bool_], key: bytes) -> list[int]:
        """The parts of which records are `gone`, whose teachers are to be trained again."""
        return []

    def retrain(
        self, public: PublicData, private: PrivateData, run: Run, config_dir: Path, parts: Sequence[int]
    ) -> None:
        """Train the teachers of these parts again."""

    # Recommended by `pate plan --records` and behind PATEClassifier

    @classmethod
    def choices(cls, situation: Situation) -> Sequence[Choice]:
        """Ways to spend a budget that `pate plan --records` offers, the one to begin with first; () for none."""
        return ()

    classifier_parameters: ClassVar[tuple[str, ...]] = ()
    """The parameters of `PATEClassifier` that are for this kind alone."""
    needs_recommendation: ClassVar[bool] = False
    """Whether the kind is refused where `pate plan` does not recommend it for the public number of records."""

    @classmethod
    def suits(cls, mechanism: Mechanism) -> bool:
        """Whether these voters are meant where the user names a mechanism and no voters."""
        return False

    @classmethod
    def is_decided(cls, given: Mapping[str, Any]) -> bool:
        """Whether the estimator's parameters leave nothing to be recommended."""
        return True

    @classmethod
    def for_classifier(
        cls, given: Mapping[str, Any], choice: Choice | None, n_public: int, n_classes: int
    ) -> tuple[dict[str, Any], Mechanism]:
        """The kind's sections of a config, and the mechanism, for the parameters of a `PATEClassifier`.

        `choice` is what `pate plan` recommends, where it was asked.
        """
        raise ConfigError(f"voters = {cls.name!r}: PATEClassifier has no parameters for these voters; use pate.run")

    # What is said of it

    @abstractmethod
    def facts(self, public: PublicData, queries: Queries, labelled: int) -> VotersFacts:
        """What the report, the terminal and the privacy statement say of these voters; all of it public.

        `labelled` is how many public examples got a label.
        """

    @property
    @abstractmethod
    def described(self) -> str:
        """The method in a few words, as a table of models names it."""

    def forgotten(self, n_parts: int, version: int) -> Sequence[str]:
        """What the operator is informed of when a record was unlearned."""
        return (
            "forgotten: the record votes in no round from now on. What earlier rounds released cannot be taken back:",
            "what it tells about any record stays within the published ε. Remove the record from its source too.",
        )

    # What an audit may do

    def audited_mechanisms(self) -> Sequence[Mechanism]:
        """The mechanisms that answer."""
        return (self.mechanism,)

    counts_one_record: ClassVar[bool] = False
    """Whether a record changes single counts by 1, instead of moving votes from one class to another."""

    def vote_counter(self, public: PublicData, config_dir: Path, key: bytes) -> RecordVotes | None:
        """Counts the votes of any records, for an audit that changes one of them; None where records do not vote."""
        return None

    def one_run_audits(self) -> Sequence[OneRunAudit]:
        """Audits that run the pipeline once with canaries among the records."""
        return ()
