"""From the number of records and a target ε to voters, mechanism and budget: a recommendation, and what else there is.

Everything follows from public figures and from rules of thumb, which are written out here and with the kinds of voters.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pate.accounting import _parameters as parameters
from pate.accounting.composition import epsilon_of_rdp
from pate.config._settings import check_delta
from pate.errors import ConfigError
from pate.ledger import SharedBudget
from pate.planning.plan import Workload, solve_queries

_MAX_QUERIES = 2_000  # beyond, better teachers are worth more than more labels
_ENOUGH_LABELS_PER_CLASS = 100  # for a student
_ORDERS_OF_A_LEDGER = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024)
_ONE_SIGMA = 40.0  # with which ε is computed once


@dataclass(frozen=True)
class Situation:
    """What is known before a kind of voters is chosen; all of it is public.

    Parameters
    ----------
    records : int
        About how many private records there are; with ids, persons.
    n_classes : int
        How many classes there are.
    target_epsilon, delta : float
        What may be spent.
    n_public : int, default=None
        How many public examples there are, if that is known.
    near_is_alike : bool, default=False
        Whether examples that are near each other are likely of one class, as in a table of few columns.
    """

    records: int
    n_classes: int
    target_epsilon: float
    delta: float
    n_public: int | None = None
    near_is_alike: bool = False

    @property
    def max_queries(self) -> int:
        """The most queries that are worth asking."""
        return min(_MAX_QUERIES, self.n_public or _MAX_QUERIES)

    @property
    def enough_labels(self) -> int:
        """How many labels a student wants."""
        return min(_ENOUGH_LABELS_PER_CLASS * self.n_classes, self.max_queries)

    def queries_per_variance(self) -> float:
        """How many queries a variance of 1 allows: ε depends on queries/σ² alone, as the noise is nearly continuous.

        From Rényi DP's closed form where ε is so small that one query is already too much for the noise it is
        computed with.
        """
        closed_form = (
            math.sqrt(math.log(1 / self.delta) + self.target_epsilon) - math.sqrt(math.log(1 / self.delta))
        ) ** 2
        if closed_form * _ONE_SIGMA**2 < 1:
            return closed_form
        one = {"name": "gnmax", "sigma": _ONE_SIGMA}
        workload = Workload(1, None, self.delta, self.n_classes)
        _, unit = solve_queries(one, self.target_epsilon, workload, roughly=True)
        return unit.max_queries / _ONE_SIGMA**2


@dataclass(frozen=True)
class Choice(ABC):
    """One way to spend the budget; each kind of voters that can be recommended has a subclass.

    `labels` is how many public examples, or cells of them, are labelled.
    """

    voters: str
    mechanism: dict[str, Any]
    epsilon: float
    asked: int
    labels: int
    n_teachers: int | None = None
    records_each: int = 0
    answered: int | None = None

    @abstractmethod
    def suits(self, situation: Situation) -> bool:
        """Whether to begin with it, instead of with a kind of voters that is offered later."""

    @property
    @abstractmethod
    def why(self) -> str:
        """Why one would begin with it."""

    @abstractmethod
    def settings(self, delta: float) -> dict[str, Any]:
        """The sections of a config."""

    @abstractmethod
    def rdp(self, order: float) -> float:
        """The Rényi cost of a run, as a shared ledger charges it."""

    @abstractmethod
    def row(self) -> tuple[str, ...]:
        """Voters, what is asked and what is labelled, as cells of a table."""

    @property
    @abstractmethod
    def described(self) -> str:
        """Voters, what is asked and by which mechanism, in a few words."""

    def chances(self, n_classes: int) -> dict[float, tuple[float, float]]:
        """For shares of the voters that agree: how likely an answer is, and the plurality's label."""
        return {}

    @abstractmethod
    def explained(self, n_classes: int) -> list[str]:
        """Lines for people: what to expect of it."""

    @abstractmethod
    def written(self, unit: str) -> list[str]:
        """Lines of YAML with comments: the sections of a config that say who votes."""


@dataclass(frozen=True)
class Recommendation:
    """The choice to begin with, why, and the others."""

    choice: Choice
    why: str
    others: tuple[Choice, ...]


def recommend(
    records: int,
    n_classes: int,
    target_epsilon: float,
    delta: float,
    n_public: int | None = None,
    near_is_alike: bool = False,
) -> Recommendation:
    """Recommend voters, mechanism and budget for so many private records and, if known, public examples.

    Each kind of voters offers choices, the default kind before the others, and the first that suits is recommended;
    where none does, the first that offers any.
    """
    from pate.voters import DEFAULT, kind_names, kind_of

    target_epsilon = parameters.epsilon(target_epsilon, "target_epsilon")
    situation = Situation(
        parameters.whole(records, "records", least=1),
        parameters.classes(n_classes, "classes"),
        target_epsilon,
        parameters.delta(delta),
        n_public,
        near_is_alike,
    )
    check_delta(situation.delta, records, key="delta")
    names = sorted(kind_names(), key=lambda name: name != DEFAULT)
    offers = [offer for offer in (kind_of(name).choices(situation) for name in names) if offer]
    if not offers:
        raise ConfigError(
            f"{{target_epsilon}}: out of reach with {records:,} records: noise would drown every vote; get more "
            "records, or allow more",
            target_epsilon=target_epsilon,
        )
    chosen = next((offer for offer in offers if offer[0].suits(situation)), offers[0])
    passed = [offer[0] for offer in offers[: offers.index(chosen)]]
    why = chosen[0].why
    if passed and not near_is_alike:
        why = (
            f"{passed[0].voters} would give {passed[0].labels:,} labels within this ε, fewer than the "
            f"{situation.enough_labels:,} that a student wants"
        )
    rest = [offer[0] for offer in offers if offer is not chosen]
    rest += [choice for offer in offers for choice in offer[1:]]
    return Recommendation(chosen[0], why, tuple(rest))


def shared_budget(choice: Choice, delta: float, runs: int) -> SharedBudget | None:
    """About the least budget of a shared ledger with room for so many runs of that choice; None where there is none."""
    found = []
    for order in _ORDERS_OF_A_LEDGER:
        cost = runs * choice.rdp(order)
        if not math.isfinite(cost):
            continue
        least = max(cost + epsilon_of_rdp(0.0, order, delta), 1e-3)
        budget = SharedBudget(order, round_up(1.01 * least), delta)  # a share of δ is for the samplers
        if budget.rdp >= cost:
            found.append(budget)
    return min(found, key=lambda budget: budget.epsilon, default=None)


def usual_delta(records: int) -> float:
    """A tenth of one over the records, as a power of ten, and 1e-5 at most.

    >>> usual_delta(20_000), usual_delta(300)
    (1e-06, 1e-05)
    """
    return min(1e-5, 10.0 ** math.floor(math.log10(0.1 / records) + 1e-9))


def round_up(epsilon: float) -> float:
    """Two decimals: a limit that people can write down, and that ε is within."""
    return math.ceil(100 * epsilon - 1e-9) / 100


def describe_parameters(mechanism: Mapping[str, Any]) -> str:
    """The parameters of a mechanism that are given; counts are whole numbers, however large.

    >>> describe_parameters({"name": "msvec", "epsilon": 2.0, "max_queries": 1_234_567, "n_teachers": None})
    'epsilon 2, max_queries 1234567'
    """
    given = {key: value for key, value in mechanism.items() if key != "name" and value is not None}
    return ", ".join(f"{key} {f'{value:g}' if isinstance(value, float) else value}" for key, value in given.items())
