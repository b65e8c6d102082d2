"""How many teachers: as `pate plan --records` recommends, or as found on public data that stands in for the private.

How much worse a teacher gets with fewer records decides it, and of private records nothing tells that without being
paid for. Labelled public examples of the same kind tell it for nothing: teachers of the very size that a number of
teachers would leave each of them are trained on those, and their votes are scaled up to that number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.accounting import _parameters as parameters
from pate.errors import DataError
from pate.mechanisms import Mechanism, build
from pate.planning.plan import (
    Choice,
    Situation,
    Workload,
    describe_parameters,
    epsilon_of,
    histograms_of_gaps,
    round_up,
    solve_noise,
    three_digits,
)

if TYPE_CHECKING:
    from pate.data.private import PrivateData
    from pate.data.public import PublicData
    from pate.voters.teachers import TeachersConfig

_AGREEMENT = 0.8  # of the teachers, on the examples that the noise is chosen for
_SIGMA_PER_TEACHER = (2 * _AGREEMENT - 1) / (math.sqrt(2) * 1.645)  # such agreement wins 19 times of 20
_RECORDS_PER_CLASS = 40  # that a teacher learns from
_MIN_TEACHERS = 10
_AGREEMENTS = (0.6, 0.7, 0.8, 0.9, 1.0)
_MANY_TO_LEARN_FROM = 200  # records of a teacher, for which boosted trees are worth their time


class TeachersChoice(Choice):
    """So many teachers, and a mechanism for their votes."""

    n_teachers: int

    def suits(self, situation: Situation) -> bool:
        return self.labels >= situation.enough_labels and not situation.near_is_alike

    @property
    def why(self) -> str:
        return f"{self.labels:,} labels by teachers of {self.records_each:,} records each"

    @property
    def _mechanism(self) -> Mechanism:
        return build(self.mechanism, self.n_teachers)

    def settings(self, delta: float) -> dict[str, Any]:
        budget: dict[str, Any] = {"delta": delta, "epsilon": round_up(self.epsilon), "max_queries": self.asked}
        if self.answered is not None:
            budget["max_answers"] = self.answered
        return {"n_teachers": self.n_teachers, "mechanism": self.mechanism, "budget": budget}

    def rdp(self, order: float) -> float:
        answered = self.asked if self.answered is None else self.answered
        each = self._mechanism.rdp_per_query(order, self.asked, answered)
        return math.inf if each is None else self.asked * each[0] + answered * each[1]

    def row(self) -> tuple[str, ...]:
        return f"{self.n_teachers:,} teachers", f"{self.asked:,}", f"{self.labels:,}"

    @property
    def described(self) -> str:
        limit = "" if self.answered is None else f", {self.answered:,} answered"
        by = f"{self.mechanism['name']} ({describe_parameters(self.mechanism)})"
        return f"{self.n_teachers:,} teachers, {self.asked:,} queries{limit}, {by}"

    def chances(self, n_classes: int) -> dict[float, tuple[float, float]]:
        gaps = [max(0, round((2 * share - 1) * self.n_teachers)) for share in _AGREEMENTS]
        counts = np.concatenate([histograms_of_gaps({gap: 1.0}, self.n_teachers, n_classes)[0] for gap in gaps])
        outcomes = np.exp(self._mechanism.log_outcomes(counts))
        return {share: (1 - float(row[-1]), float(row[0])) for share, row in zip(_AGREEMENTS, outcomes, strict=True)}

    def explained(self, n_classes: int) -> list[str]:
        lines = ["  where so many teachers agree, the label released is theirs"]
        for share, (answered, right) in self.chances(n_classes).items():
            also = "" if self.answered is None else f", and there is one in {100 * answered:.0f} %"
            lines.append(f"    {100 * share:>3.0f} %            in {100 * right:.0f} % of the queries{also}")
        return lines

    def written(self, unit: str) -> list[str]:
        balanced = "{solver: newton-cholesky, class_weight: balanced}"
        scaled = "[scale, {name: sklearn.preprocessing.StandardScaler}]"
        logistic = f"[model, {{name: sklearn.linear_model.LogisticRegression, params: {balanced}}}]"
        lines = [f"n_teachers: {self.n_teachers:<19}# about {self.records_each} records each", "teachers:"]
        lines += ["  - name: sklearn.pipeline.Pipeline", f"    params: {{steps: [{scaled}, {logistic}]}}"]
        if self.records_each >= _MANY_TO_LEARN_FROM:
            lines += ["  - name: sklearn.ensemble.HistGradientBoostingClassifier", "    params: {max_iter: 50}"]
        return lines


def teachers_choices(situation: Situation) -> list[Choice]:
    """As many teachers as have enough records each; half and twice as many; and with a test before each answer."""
    per_class, records = _RECORDS_PER_CLASS * situation.n_classes, situation.records
    queries_per_variance = situation.queries_per_variance()
    best = math.ceil(math.sqrt(situation.max_queries / queries_per_variance) / _SIGMA_PER_TEACHER)
    usual = max(_MIN_TEACHERS, min(best, records // per_class))
    numbers = [n for n in (usual, usual // 2, 2 * usual) if 2 <= n <= records // 2]
    found = {n: _with_most_queries(n, False, situation, queries_per_variance) for n in numbers}
    if found.get(usual) is None:
        return []
    confident = _with_most_queries(usual, True, situation, queries_per_variance)
    return [choice for choice in (*found.values(), confident) if choice is not None]


def _with_most_queries(
    n: int, confident: bool, situation: Situation, queries_per_variance: float
) -> TeachersChoice | None:
    """The most queries that σ allows at which an agreement of 80 % wins 19 times of 20; None where that is none."""
    sigma = three_digits(_SIGMA_PER_TEACHER * n)
    settings: dict[str, Any] = {"name": "gnmax", "sigma": sigma}
    if confident:  # half of what is asked is answered, and a test has half the cost of an answer: the sum is the same
        settings = {"name": "confident_gnmax", "threshold": round(0.7 * n), "sigma1": sigma, "sigma2": sigma}
    asked = min(int(queries_per_variance * sigma**2), situation.max_queries)
    while asked >= 1:
        answered = max(1, asked // 2) if confident else None
        workload = Workload(asked, answered, situation.delta, situation.n_classes)
        epsilon = epsilon_of(build(settings, n), workload, roughly=True)
        if epsilon <= situation.target_epsilon:
            labels = asked if answered is None else answered
            return TeachersChoice("teachers", settings, epsilon, asked, labels, n, situation.records // n, answered)
        asked = min(asked - 1, int(0.99 * asked))
    return None


NUMBERS = (10, 25, 50, 100, 250, 500, 1000, 2500)
_FEWEST, _MOST = 5, 25  # teachers that are trained for a number of them
_MAX_EXAMPLES = 1000  # that they are asked about


@dataclass(frozen=True)
class TriedNumber:
    """A number of teachers: how many were trained for it, and what share of public examples is right, of 1."""

    n_teachers: int
    records_each: int
    trained: int
    teacher: float
    plurality: float
    released: float


@dataclass(frozen=True)
class StandIn:
    """All numbers that were tried, under one mechanism, whose noise keeps the workload within ε; `best` among them."""

    mechanism: Mechanism
    tried: tuple[TriedNumber, ...]
    too_large: tuple[int, ...]

    @property
    def best(self) -> TriedNumber:
        """The number whose released labels are right most often; of equals the smallest."""
        return max(self.tried, key=lambda one: (one.released, -one.n_teachers))


def find_number(
    config: TeachersConfig,
    data: PublicData,
    known: PrivateData,
    records: int,
    target_epsilon: float,
    workload: Workload,
    numbers: Sequence[int] = NUMBERS,
    progress: Callable[[str], None] = lambda _: None,
) -> StandIn:
    """Try `numbers` of teachers as `config` has them, for `records` private records, by GNMax at `target_epsilon`.

    All of `data` and its `known` records are public; teachers are asked about its public examples if those have labels,
    else about its test set. Numbers for which it has too few records (five teachers' worth) or that leave a private
    teacher fewer than two are left out.
    """
    from pate.data.private import Records
    from pate.voters.teachers._trials import count_votes

    records = parameters.whole(records, "records", least=2)
    X, y = (data.X_test, data.y_test) if data.y_public is None else (data.X_public, data.y_public)
    if not isinstance(known, Records) or X is None or y is None:
        text = "{stand_in}: needs records that can be read here, and a test set with labels to try them on"
        raise DataError(text, stand_in=True)
    usable = known.only(known.usable(data.n_classes))
    mechanism = solve_noise({"name": "gnmax"}, target_epsilon, workload)
    X, y = X[:_MAX_EXAMPLES], y[:_MAX_EXAMPLES]
    right = np.arange(len(y)), y
    tried, too_large = list[TriedNumber](), list[int]()
    for number in numbers:
        each = records // number
        trained = min(number, _MOST, len(usable) // max(1, each))
        if each < 2:
            continue
        if trained < min(number, _FEWEST):
            too_large.append(number)
            continue
        progress(f"{number:,} teachers of {each:,} records: training {trained} of them")
        chosen = np.random.default_rng(0).permutation(len(usable))[: trained * each]
        kept = usable.only(np.isin(np.arange(len(usable)), chosen))
        votes = count_votes(config.model_copy(update={"n_teachers": trained}), data, kept, X)
        tried.append(
            TriedNumber(
                number,
                each,
                trained,
                float(votes[right].mean() / trained),
                float((votes.argmax(1) == y).mean()),
                float(np.exp(mechanism.log_outcomes(scaled(votes, number))[right]).mean()),
            )
        )
    if not tried:
        raise DataError(
            f"{{stand_in}}: {len(usable):,} public records are too few to stand in for {records:,}; give more of them",
            stand_in=True,
        )
    return StandIn(mechanism, tuple(tried), tuple(too_large))


def scaled(votes: NDArray[np.int64], number: int) -> NDArray[np.int64]:
    """Votes scaled to `number` teachers: whole votes, the largest remainders rounded up.

    >>> scaled(np.array([[3, 1, 1]]), 12)
    array([[7, 3, 2]])
    """
    exact = votes * number / votes.sum(1, keepdims=True)
    whole = np.floor(exact + 1e-9).astype(np.int64)
    order = np.argsort(whole - exact, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    return whole + (rank < number - whole.sum(1, keepdims=True))
