"""Before any training: noise for a target ε, what a configuration can answer, and which voters to begin with.

Everything here follows from public parameters, except figures that come from a votes file, which is private. What is
recommended follows from rules of thumb, which are written out here and with the kinds of voters.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from pate.accounting import _parameters as parameters
from pate.accounting.composition import SAMPLER_SHARES, Guarantee, RdpGuarantee, epsilon_of_rdp
from pate.config._settings import check_delta
from pate.errors import BudgetExceeded, ConfigError
from pate.ledger import SharedBudget
from pate.mechanisms import Counts, Mechanism, build, mechanism_class
from pate.planning.costs import worst_case_epsilon

_STEP = 0.3  # of ln(noise), from the guess to where the search begins on its other side
_FAR = 5.0  # of ln(cost / target): beyond, the search need not know how far
_NEAR = 1e-12  # never 0, where the search would end: less noise may cost the same
_NOISE_TOLERANCE = 5e-4
_WORTHWHILE = 0.985
_OF_RENYI = 0.945  # what the worst adversary's ε usually is of the Rényi figure
_NOISE_PER_EPSILON = 0.9  # noise falls a little slower than ε rises
_SAFELY = 1.003
_QUERIES_PER_EPSILON = (1.85, 1.4)
_MAX_QUERIES = 2_000  # beyond, better teachers are worth more than more labels
_ENOUGH_LABELS_PER_CLASS = 100  # for a student
_ORDERS_OF_A_LEDGER = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024)
_ONE_SIGMA = 40.0  # with which ε is computed once


def min_noise(
    cost: Callable[[float], float],
    target: float,
    guess: float,
    bounds: tuple[float, float],
    tolerance: float,
) -> float | None:
    """Noise within `bounds` that costs at most `target`; None where none does.

    Less noise, by more than a share `tolerance`, costs more than `target` or is out of bounds, if `cost` falls with
    noise. The noise that is returned was itself looked at, so it keeps to the target in any case. The closer the
    `guess`, the fewer looks.
    """
    from scipy.optimize import brentq  # costs 0.1 s: import where used

    least, most = map(math.log, bounds)
    excesses: dict[float, float] = {}  # ln(cost / target) by ln(noise); above 0 where noise is too little

    def excess(x: float) -> float:
        if x not in excesses:
            found = cost(min(max(math.exp(x), bounds[0]), bounds[1]))
            far = math.log(found) - math.log(target) if 0 < found < math.inf else math.copysign(_FAR, found - target)
            far = min(max(far, -_FAR), _FAR)
            excesses[x] = min(far, -_NEAR) if found <= target else max(far, _NEAR)
        return excesses[x]

    low = high = min(max(math.log(guess), least), most)
    step = _STEP
    while excess(high) > 0:
        if high >= most:
            return None
        low, high, step = high, min(high + step, most), 2 * step
    while excess(low) <= 0 and low > least:
        low, high, step = max(low - step, least), low, 2 * step
    if excess(low) > 0:
        brentq(excess, low, high, xtol=tolerance)
    enough = min(x for x, found in excesses.items() if found <= 0)
    return min(max(math.exp(enough), bounds[0]), bounds[1])


@dataclass(frozen=True)
class Workload:
    """The most that will be asked and answered, and the δ of it all: fixed before the first query."""

    max_queries: int
    max_answers: int | None
    delta: float
    n_classes: int

    def __post_init__(self) -> None:
        parameters.queries(self.max_queries, "max_queries", least=1)
        if self.max_answers is not None:
            parameters.queries(self.max_answers, "max_answers")
        parameters.delta(self.delta)
        parameters.classes(self.n_classes, "classes")

    @property
    def answered(self) -> int:
        """The most that will be answered: all that is asked, where no limit is lower."""
        return self.max_queries if self.max_answers is None else min(self.max_queries, self.max_answers)


@dataclass(frozen=True)
class Expected:
    """What a list of histograms would get; private where they are real votes."""

    answered: float
    plurality_share: float | None


def solve_noise(
    settings: Mapping[str, Any], target_epsilon: float, workload: Workload, n_teachers: int | None = None
) -> Mechanism:
    """The mechanism with the least noise that keeps `workload` within `target_epsilon`.

    Its ε never exceeds the target. Noise is at most 5 % more than the least that keeps to it. Asked again, the answer
    is there at once.
    """
    target_epsilon = parameters.epsilon(target_epsilon, "target_epsilon")
    cls = mechanism_class(settings)
    if cls.free_parameter is None:
        text = f"{{target_epsilon}}: nothing to solve for in {cls.name}; give all its parameters"
        raise ConfigError(text, target_epsilon=None)
    others = {name: value for name, value in settings.items() if name not in ("name", cls.free_parameter)}
    build({**others, "name": settings["name"], cls.free_parameter: 1.0}, n_teachers)  # a wrong one is refused here
    return _solved(cls, settings["name"], tuple(sorted(others.items())), target_epsilon, workload, n_teachers)


@lru_cache(maxsize=256)
def _solved(
    cls: type[Mechanism],
    name: str,
    others: tuple[tuple[str, Any], ...],
    target_epsilon: float,
    workload: Workload,
    n_teachers: int | None,
) -> Mechanism:
    sign = 1.0 if cls.free_is_noise else -1.0
    bounds = parameters.MIN_NOISE, parameters.MAX_NOISE

    def mechanism_at(noise: float) -> Mechanism:
        return build({**dict(others), "name": name, str(cls.free_parameter): noise**sign}, n_teachers)

    def guarantee_at(noise: float) -> Guarantee:
        return mechanism_at(noise).worst_case(workload.max_queries, workload.answered)

    def closed_form(noise: float) -> float:
        guarantee = guarantee_at(noise)
        return RdpGuarantee.epsilon(guarantee, workload.delta) if isinstance(guarantee, RdpGuarantee) else math.inf

    def rounded(noise: float) -> Mechanism:
        return mechanism_at(min(three_digits(noise, up=True), parameters.MAX_NOISE) if sign > 0 else noise)

    about = min_noise(closed_form, target_epsilon, 100.0, bounds, 0.05) or 100.0
    noise = min_noise(
        lambda noise: guarantee_at(noise).quick_epsilon(workload.delta), target_epsilon, about, bounds, _NOISE_TOLERANCE
    )
    if noise is None:
        text = f"{{target_epsilon}}: out of reach for {workload.max_queries} queries by {cls.name}; ask fewer, or allow"
        raise ConfigError(f"{text} more", target_epsilon=target_epsilon)
    around = (min(max(factor * noise, bounds[0]), bounds[1]) for factor in (0.9, 1.1))
    if any(guarantee_at(near).is_tightened for near in around):
        # the tighter figure allows less noise; it takes seconds, so how much less is guessed, and corrected
        less, expected = noise, _OF_RENYI * target_epsilon
        for _ in range(2):
            less *= (expected / target_epsilon) ** _NOISE_PER_EPSILON
            found = rounded(less)
            expected = epsilon_of(found, workload)
            if expected <= target_epsilon:
                return found
            less, expected = three_digits(less, up=True), expected * _SAFELY
    for _ in range(60):
        found = rounded(noise)
        epsilon = epsilon_of(found, workload, roughly=True)
        if epsilon <= target_epsilon:
            return found
        more = max((epsilon / target_epsilon) ** _NOISE_PER_EPSILON, 1.001)
        noise = min(more * noise, parameters.MAX_NOISE)
    raise ConfigError("{target_epsilon}: no noise was found that keeps to it", target_epsilon=target_epsilon)


def solve_queries(
    settings: Mapping[str, Any],
    target_epsilon: float,
    workload: Workload,
    n_teachers: int | None = None,
    roughly: bool = False,
) -> tuple[Mechanism, Workload]:
    """The most queries that a mechanism can be asked within `target_epsilon`, to about one percent.

    Of `workload`, how many are asked is replaced; a limit on answers stays. `roughly` they are up to a fifth fewer.
    """
    target_epsilon = parameters.epsilon(target_epsilon, "target_epsilon")
    mechanism = build(settings, n_teachers)
    if mechanism.priced_as_stream:
        text = f"{{target_epsilon}}: {mechanism.name} is charged as one stream, whatever is asked; leave it out"
        raise ConfigError(text, target_epsilon=None)

    def with_asked(asked: int) -> Workload:
        return replace(workload, max_queries=asked)

    def quick(asked: int) -> float:
        return mechanism.worst_case(asked, with_asked(asked).answered).quick_epsilon(workload.delta)

    asked = 100
    for _ in range(12):  # ε grows as a root of the queries, and in proportion to them in the end
        better = min(max(1, int(asked * (target_epsilon / quick(asked)) ** 1.7)), parameters.MAX_QUERIES)
        if better == asked:
            break
        asked = better
    while epsilon_of(mechanism, with_asked(asked), roughly=True) > target_epsilon:
        if asked == 1:
            text = f"{{target_epsilon}}: too small for one query by {mechanism}; add noise, or allow more"
            raise ConfigError(text, target_epsilon=target_epsilon)
        asked = max(1, min(asked - 1, int(0.993 * asked)))
    if roughly:
        return mechanism, with_asked(asked)
    epsilon = epsilon_of(mechanism, with_asked(asked))
    for power in _QUERIES_PER_EPSILON:
        if epsilon >= _WORTHWHILE * target_epsilon:
            break
        more = min(int(asked * (target_epsilon / epsilon) ** power), parameters.MAX_QUERIES)
        if epsilon_of(mechanism, with_asked(more)) <= target_epsilon:
            return mechanism, with_asked(more)
    return mechanism, with_asked(asked)


def epsilon_of(mechanism: Mechanism, workload: Workload, roughly: bool = False) -> float:
    """The publishable ε of `workload`; `roughly` it is up to a tenth more, and takes no seconds."""
    limits = workload.max_queries, workload.answered
    return worst_case_epsilon(mechanism, *limits, workload.delta, workload.n_classes, roughly)


def one_more_query(mechanism: Mechanism, workload: Workload) -> float | None:
    """How much ε another query, answered, would add; None where the mechanism allows no more."""
    more = None if workload.max_answers is None else workload.max_answers + 1
    try:
        longer = replace(workload, max_queries=workload.max_queries + 1, max_answers=more)
        larger = epsilon_of(mechanism, longer, roughly=True)
    except BudgetExceeded:
        return None
    return larger - epsilon_of(mechanism, workload, roughly=True) if math.isfinite(larger) else None


def expect(mechanism: Mechanism, counts: Counts, weights: np.ndarray | None, asked: int) -> Expected:
    """Answers to `asked` queries whose histograms are like `counts`, with shares `weights` if they are assumed."""
    shares = np.full(len(counts), 1 / len(counts)) if weights is None else weights / weights.sum()
    if mechanism.priced_as_stream:  # the order matters: assumed shares are spread evenly over the stream
        stream = counts[:asked] if weights is None else counts[_spread(shares, asked)]
        return Expected(mechanism.expected_answered(stream), None)
    outcomes = mechanism.log_outcomes(counts)
    answered = -np.expm1(outcomes[:, -1])
    right = np.exp(outcomes[np.arange(len(counts)), counts.argmax(axis=1)])
    expected = float((shares * answered).sum())
    return Expected(asked * expected, float((shares * right).sum()) / expected if expected > 0 else None)


def _spread(shares: np.ndarray, n: int) -> np.ndarray:
    """n indices of which each comes up as often as its share says, as evenly as can be: always the one most behind."""
    owed, chosen = np.zeros(len(shares)), np.empty(n, dtype=np.int64)
    for place in range(n):
        owed += shares
        chosen[place] = np.argmax(owed)
        owed[chosen[place]] -= 1
    return chosen


def epsilon_by_method(mechanism: Mechanism, workload: Workload) -> dict[str, float]:
    """The publishable ε of `workload` by each method that is proven for it; empty where there is one alone."""
    guarantee = mechanism.worst_case(workload.max_queries, workload.answered)
    by_method = guarantee.by_method(workload.delta * (1 - SAMPLER_SHARES[0]))
    return {method: epsilon for method, epsilon in by_method.items() if math.isfinite(epsilon)}


def answerable(mechanism: Mechanism, n_teachers: int | None, n_classes: int) -> dict[str, float | None]:
    """What a unanimous vote, the best there is, would get, and how many teachers it would take."""
    n_classes = parameters.classes(n_classes)
    n_teachers = None if n_teachers is None else parameters.teachers(n_teachers)
    return {
        "n_teachers": n_teachers,
        "probability": mechanism.answer_probability(n_teachers, n_classes) if n_teachers else None,
        "teachers_for_half": mechanism.teachers_needed(0.5, n_classes),
        "teachers_for_99_percent": mechanism.teachers_needed(0.99, n_classes),
    }


def histograms_of_gaps(gaps: Mapping[int, float], n_teachers: int, n_classes: int) -> tuple[Counts, np.ndarray]:
    """Histograms with the given leads of the plurality over the runner-up, and their shares.

    The other classes get no votes: votes for them would only lower the winner's probability a little.
    """
    n_teachers, n_classes = parameters.teachers(n_teachers, "teachers"), parameters.classes(n_classes, "classes")
    for gap, share in gaps.items():
        parameters.probability(share, "gaps")
        if not 0 <= gap <= n_teachers:
            raise ConfigError(f"{{gaps}}: must be between 0 and the number of teachers, {n_teachers}", gaps=gap)
    counts = np.zeros((len(gaps), n_classes), dtype=np.int64)
    counts[:, 0] = [(n_teachers + gap + 1) // 2 for gap in gaps]
    counts[:, 1] = n_teachers - counts[:, 0]
    return counts, np.array(list(gaps.values()), dtype=np.float64)


def three_digits(value: float, up: bool = False) -> float:
    """The value with three digits, rounded to the nearest or up."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return round((math.ceil(value / unit - 1e-9) if up else round(value / unit)) * unit, 10)


# What to begin with


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
        log_delta = math.log(1 / self.delta)
        closed_form = (math.sqrt(log_delta + self.target_epsilon) - math.sqrt(log_delta)) ** 2
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
        text = f"{{target_epsilon}}: out of reach with {records:,} records: noise would drown every vote; get more "
        raise ConfigError(f"{text}records, or allow more", target_epsilon=target_epsilon)
    chosen = next((offer for offer in offers if offer[0].suits(situation)), offers[0])
    why, first = chosen[0].why, offers[0][0]
    if chosen is not offers[0] and not near_is_alike:
        why = f"{first.voters} would give {first.labels:,} labels within this ε, fewer than the "
        why += f"{situation.enough_labels:,} that a student wants"
    rest = [offer[0] for offer in offers if offer is not chosen]
    rest += [choice for offer in offers for choice in offer[1:]]
    return Recommendation(chosen[0], why, tuple(rest))


def shared_budget(choice: Choice, delta: float, runs: int) -> SharedBudget | None:
    """About the least budget of a shared ledger with room for so many runs of that choice; None where there is none."""
    found = []
    for order in _ORDERS_OF_A_LEDGER:
        cost = runs * choice.rdp(order)
        if math.isfinite(cost):
            least = max(cost + epsilon_of_rdp(0.0, order, delta), 1e-3)
            budget = SharedBudget(order, round_up(1.01 * least), delta)  # a share of δ is for the samplers
            found += [budget] if budget.rdp >= cost else []
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
