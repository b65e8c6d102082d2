"""What every mechanism promises, and the words they share.

A mechanism is one file. It must define five things: its `name`, how it answers (`release`), how likely each answer is
(`log_outcomes`), what it costs at most (`worst_case`) and how many random draws a query takes (`noise_draws`). All
else that the program asks of it follows from those by default, and is overridden where the default is wrong or slow.
"""

from __future__ import annotations

import dataclasses
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pate.accounting import _parameters as parameters
from pate.accounting import published_bounds
from pate.accounting.composition import Guarantee, RdpGuarantee
from pate.accounting.exact import Counts
from pate.errors import ConfigError
from pate.noise import Entropy

if TYPE_CHECKING:
    from pate.accounting.sanitise import PrivateCost
    from pate.mechanisms._cell_costs import CountCost

UNANSWERED = -1
"""⊥: the mechanism declined to answer. It is released, stored and charged like any answer."""

FEW_QUERIES = 100
"""How many queries a plan is for, if their number is not given."""


def parameter(check: Callable[[Any, str], Any], **options: Any) -> Any:
    """A dataclass field for a parameter: `check(value, name)` gives what it is stored as, or refuses it."""
    if not callable(check):
        raise TypeError(
            f"parameter({check!r}): takes a function of value and name; describe it in the class's docstring"
        )
    return dataclasses.field(metadata={"check": check}, **options)


@dataclass(frozen=True)
class Split:
    """How private records are assigned to the teachers' parts.

    Without a rate a record is in one of `n_parts` parts. With one it is in each part with probability `rate`,
    independently, but in at most `max_parts` of them.
    """

    n_parts: int
    rate: float | None = None
    max_parts: int = 1

    @property
    def share(self) -> float:
        """The share of the records that a part has on average."""
        return 1 / self.n_parts if self.rate is None else self.rate


class Stream:
    """Queries answered batch by batch, and how much of the mechanism's own limits they have used up.

    `unstable` is stored with the labels, in one transaction, before anyone sees them; if that fails the stream is
    dropped, and `Mechanism.begin` goes on from what is stored. This class is for queries that are independent.
    """

    unstable: int = 0

    def __init__(self, mechanism: Mechanism) -> None:
        self._mechanism = mechanism

    @property
    def ended(self) -> bool:
        """Whether the mechanism answers nothing more."""
        return False

    def answer(self, counts: Counts, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        """Answers to the histograms in turn; fewer than there are histograms if the stream ends on the way."""
        return self._mechanism.release(counts, entropy)


class Mechanism(ABC):
    """A distribution over answers for each vote histogram; subclasses are frozen dataclasses of public parameters.

    Neighbouring histograms: one record is in one part, so it changes at most one teacher's vote; one vote moves
    from one class to another (L1 ≤ 2, L2 ≤ √2, every count by at most 1).

    Parameters are numbers, documented in a numpydoc section of the class's docstring, which `pate account --help` and
    `pate plan --help` quote. One that is called `n_teachers` is set by `build` to the number of teachers.
    """

    name: ClassVar[str]
    """What the config and `--mechanism` call it."""
    may_decline: ClassVar[bool] = False
    """Whether ⊥ is a possible answer."""
    priced_as_stream: ClassVar[bool] = False
    """Whether the queries share secret noise: then `worst_case` prices the whole stream, and the costs of
    single queries, read off `log_outcomes`, must not be composed."""
    free_parameter: ClassVar[str | None] = None
    """The parameter that `pate plan --target-epsilon` solves for, if there is one."""
    free_is_noise: ClassVar[bool] = True
    """Whether more of the free parameter is more privacy, as with noise, or less, as with an ε."""

    has_sanitised_cost: ClassVar[bool] = False
    """Whether there is a `sanitised_cost`."""
    releases_counts: ClassVar[bool] = False
    """Whether `release_counts` gives all noisy counts; a label is then made of them."""

    def __post_init__(self) -> None:
        """Each `parameter` is checked; one that is None by default may be."""
        described: Any = self
        for field in dataclasses.fields(described):
            value, check = getattr(self, field.name), field.metadata.get("check")
            if check is not None and not (value is None and field.default is None):
                object.__setattr__(self, field.name, check(value, field.name))

    @property
    def votes_per_record(self) -> int:
        """The most votes of one histogram that a record can move; the exact accountant takes 1 only."""
        return 1

    @property
    def has_exact_cost(self) -> bool:
        """Whether the exact data-dependent cost of single queries can be computed and composed."""
        return self.votes_per_record == 1 and not self.priced_as_stream

    # how it answers

    @abstractmethod
    def release(self, counts: Counts, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        """One noisy answer per histogram: a class index, or `UNANSWERED`."""

    def release_counts(self, counts: Counts, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        """All noisy counts, where `releases_counts` says so."""
        raise NotImplementedError(self.name)

    @abstractmethod
    def log_outcomes(self, counts: Counts) -> NDArray[np.float64]:
        """Exact log-probability of each answer, float[queries, classes + 1]; ⊥ is the last column."""

    def begin(self, unstable: int = 0, asked: int = 0) -> Stream:
        """Start answering, or go on where `unstable` was used up by `asked` queries as the ledger has them."""
        return Stream(self)

    def split(self, n_teachers: int) -> Split:
        """How records must be assigned to parts for the guarantee to hold."""
        return Split(n_teachers)

    # what it costs

    @abstractmethod
    def worst_case(self, max_queries: int, max_answers: int) -> Guarantee:
        """What `max_queries` queries of which at most `max_answers` get a label cost, whatever the votes are."""

    @abstractmethod
    def noise_draws(self, n_classes: int) -> int:
        """The most random draws that one query takes; the accountant charges their sampling error to δ."""

    def rdp_per_query(self, order: float, max_queries: int = 1, max_answers: int = 1) -> tuple[float, float] | None:
        """Rényi cost of each query asked, and what an answer adds, for a shared ledger; None if there is no such cost.

        Where every query is answered, its whole cost is the answer's; where one may be declined, ⊥ costs as much as an
        answer. A mechanism that knows better, for limits on both, says so.
        """
        whole = self.worst_case(1, 1)
        if not isinstance(whole, RdpGuarantee):
            return None
        return (whole.rdp_at(order), 0.0) if self.may_decline else (0.0, whole.rdp_at(order))

    def count_cost(self) -> CountCost | None:
        """What it costs that one count changes by 1, for records that vote near themselves; None where unproven."""
        return None

    def published_rdp(self, counts: Counts, orders: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Rényi cost of each query as the mechanism's paper bounds it, float[queries, orders]; None without one."""
        return None

    def published_epsilon(self, counts: Counts, delta: float, moments: int = 8) -> float:
        """ε as the mechanism's paper counts it, for continuous noise and in the forward direction; private.

        Infinity where no paper bounds it. `moments` is for papers that take moments up to a number.
        """
        rdp = self.published_rdp(counts, published_bounds.DEFAULT_ORDERS)
        if rdp is None:
            return math.inf
        return published_bounds.epsilon_from_rdp(published_bounds.DEFAULT_ORDERS, rdp.sum(axis=0), delta)[0]

    def sanitised_cost(self, counts: Counts, answered: NDArray[np.bool_], order: float) -> PrivateCost:
        """The data-dependent cost that `budget.sanitise` releases a bound on; private."""
        raise ConfigError(f"budget.sanitise: there is none for {self.name}, only for lnmax and (confident_)gnmax")

    # what it can be asked

    def check(self, max_queries: int, delta: float, n_teachers: int) -> None:  # noqa: B027 - most have nothing to refuse
        """Raise `ConfigError` where a run with these limits is not what the mechanism is for."""

    @classmethod
    def default_queries(cls, settings: Mapping[str, Any]) -> int:
        """How many queries a plan is for, if their number is not given; from the mechanism's own settings."""
        return FEW_QUERIES

    def expected_answered(self, counts: Counts) -> float:
        """How many of these queries get a label, on average over the noise."""
        if not self.may_decline:
            return float(len(counts))
        return float(-np.expm1(self.log_outcomes(counts)[:, -1]).sum())

    def answer_probability(self, n_teachers: int, n_classes: int = 2) -> float:
        """The probability that `n_teachers` who all agree get their label: the most that can ever be had."""
        unanimous = np.zeros((1, n_classes), dtype=np.int64)
        unanimous[0, 0] = n_teachers
        return float(np.exp(self.log_outcomes(unanimous)[0, 0]))

    def teachers_needed(self, probability: float, n_classes: int = 2) -> int | None:
        """The fewest teachers whose unanimous vote gets its label with this probability; None if none do."""
        high = 1
        while self.answer_probability(high, n_classes) < probability:
            high *= 2
            if high > parameters.MAX_VOTES:
                return None
        low = high // 2
        while high - low > 1:
            middle = (low + high) // 2
            enough = self.answer_probability(middle, n_classes) >= probability
            low, high = (low, middle) if enough else (middle, high)
        return high

    # how it is described to people

    @property
    def title(self) -> str:
        """The name of the mechanism as its paper writes it."""
        return type(self).__name__

    @property
    def note(self) -> str:
        """What follows from its parameters and people may want to know before they use it; empty if nothing does."""
        return ""

    def describe(self) -> str:
        """What a query releases, for the report and the privacy statement: public parameters only."""
        return f"what the mechanism {self.name} releases"
