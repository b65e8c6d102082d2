"""Before a private record is used: teachers tried and rehearsed on public examples, and how many there should be.

How many is as `pate plan --records` recommends, or as found on public data that stands in for the private.

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
from pate.components._registry import (
    SHOWN,
    AttemptFailed,
    as_config_error,
    attempt,
    dummy_labels,
    few_labels,
    shorten_training,
)
from pate.data.private import Records
from pate.data.public import PublicData
from pate.errors import ConfigError, DataError
from pate.mechanisms import UNANSWERED, Mechanism, build
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
from pate.voters.base import RehearsedVotes

if TYPE_CHECKING:
    from pate.data.private import PrivateData
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


_MANY = 2000  # examples for a teacher that fails on a few
_MAX_REHEARSED, _MIN_REHEARSED, _MIN_ROWS = 10, 3, 20  # of a rehearsal, and rows of each where nobody may know better
_MAX_SHOWN, _MAX_QUERIES = 3000, 1000
_MAX_SECONDS = 5.0  # that the teachers of a rehearsal may take: else fewer of them, or none
_UNUSED_MECHANISM = {"name": "gnmax", "sigma": 1.0}  # nobody draws from it


def try_teachers(config: TeachersConfig, public: PublicData) -> None:
    """Raise ConfigError where a kind of teacher does not work on public examples.

    That is its features, and for scikit-learn's classifiers a fit, on a few examples or, if it fails on those, on more;
    workers try all kinds again where they are trained.
    """
    from pate.teachers import PartClassifier, recipes

    for recipe in recipes(config.teachers):
        with as_config_error():
            with attempt(f"{recipe.key}.features", "computed"):
                shown = recipe.build_features().transform(public.X_public[:SHOWN])
                if len(shown) != len(public.X_public[:SHOWN]):
                    raise ValueError("not one row per example")
            if not type(recipe.estimator(config.seed)).__module__.startswith("sklearn."):
                continue
            few, many = (min(n, len(public.X_public)) for n in (few_labels(public.n_classes), _MANY))
            for size in dict.fromkeys((few, many)):
                try:
                    with attempt(f"{recipe.key}.name = {recipe.name!r}", "trained"):
                        X = recipe.build_features().transform(public.X_public[:size])
                        teacher = PartClassifier(recipe.estimator(config.seed))
                        teacher.fit(X, dummy_labels(size, public.n_classes)).predict(X[:SHOWN])
                    break
                except AttemptFailed:
                    if size == many:
                        raise


def try_rounds_by_student(config: TeachersConfig, student: Any, X: NDArray, labels: NDArray[np.int64]) -> None:
    """Raise ConfigError where teachers of a later round could not be fitted to what the student sees."""
    from pate.students._neural import NeuralStudent
    from pate.teachers import PartClassifier, recipes

    if not any(one.features == "student" for one in config.teacher_rounds):
        return
    if not isinstance(student, NeuralStudent):
        raise ConfigError(
            f"teacher_rounds.features = 'student': {config.student.name!r} learns no features that workers could "
            "be given; use mixmatch or gan as student"
        )
    answered = labels != UNANSWERED
    seen, given = student.features(X[: len(labels)][answered]), labels[answered]
    for round_ in config.rounds:
        for recipe in recipes(round_.config.teachers) if round_.by_student else ():
            what = f"teacher_rounds.{round_.number - 1}.teachers = {recipe.name!r}"
            try:
                with attempt(what, "fitted to a student's features"):
                    found = recipe.build_features().transform(seen)
                    teacher = PartClassifier(shorten_training(recipe.estimator(config.seed)))
                    teacher.fit(found, given).predict(found[:SHOWN])
            except DataError as error:
                raise ConfigError(f"{what}: cannot come after a student's features: {error}") from None


def rehearse_teachers(
    config: TeachersConfig, public: PublicData, X: NDArray, y: NDArray[np.int64], held_out: NDArray
) -> RehearsedVotes | None:
    """Votes of a few teachers, each of about as many rows as in the run, where anybody may know how many that are."""
    n_rows, known = len(X), getattr(config.data, "public_record_count", None)
    each = max(_MIN_ROWS, n_rows // _MAX_REHEARSED) if known is None else max(2, known // config.n_teachers)
    number = min(config.n_teachers, _MAX_REHEARSED, max(_MIN_REHEARSED, n_rows // each))
    first = config.rounds[0].config
    families = tuple(one for one in first.teachers if config.backend == "local" or _is_trusted_here(one.name))
    if not families:
        return None
    changes = {"teachers": families, "n_teachers": number, "mechanism": _UNUSED_MECHANISM, "backend": "local"}
    few = first.model_copy(update=changes)
    seconds = expected_seconds(few, public.X_public, each, public.n_classes)
    if seconds > _MAX_SECONDS:
        number = math.floor(number * _MAX_SECONDS / seconds)
        few = few.model_copy(update={"n_teachers": number})
        if number < min(config.n_teachers, _MIN_REHEARSED):
            return None
    kept = np.random.default_rng(config.seed).permutation(n_rows)[: number * each]
    examples = public.X_public[:_MAX_SHOWN]
    queries = examples[: min(config.budget.max_queries, _MAX_QUERIES)]
    votes = count_votes(few, public, Records(X[kept], y[kept]), np.concatenate([queries, held_out]))
    labels, of_held_out = votes[: len(queries)].argmax(axis=1), votes[len(queries) :]
    voters = f"{number} teachers of about {len(kept) // number:,} rows"
    return RehearsedVotes(voters, examples, labels, None, of_held_out / of_held_out.sum(axis=1, keepdims=True))


def _is_trusted_here(name: str) -> bool:
    """Whether teachers of a kind are trained here too where workers train the run's: not those of somebody's own."""
    return "." not in name or name.startswith(("sklearn.", "pate."))


_KEY_BYTES = 32  # of a key that nobody has to keep: where records are public, the same parts come out each time


def count_votes(config: TeachersConfig, public: PublicData, records: Records, X: NDArray) -> NDArray[np.int64]:
    """Votes about `X` of the teachers of a config, trained on records that are public."""
    from pate.voters.teachers._worker import Teaching
    from pate.voters.teachers.ensemble import Ensemble, split_records

    teaching = Teaching.of(config, public.n_classes, shape=public.X_public.shape[1:])
    with Ensemble(teaching, split_records(config, records, bytes(_KEY_BYTES))) as ensemble:
        ensemble.train()
        return ensemble.count(X)


def expected_seconds(config: TeachersConfig, X_public: NDArray, n_records: int, n_classes: int) -> float:
    """How long training would take on this machine, from a try of each recipe on public examples."""
    from pate.networks._process import usable_cpus
    from pate.voters.teachers._checkpoints import InMemory
    from pate.voters.teachers._worker import Teaching
    from pate.voters.teachers.ensemble import Local

    seconds = Local(Teaching.of(config, n_classes), InMemory()).probe(X_public, n_records)
    return seconds / (1 if config.backend == "local" else config.ray.workers.max or usable_cpus())
