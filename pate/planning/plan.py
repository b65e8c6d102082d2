"""Before any training: noise for a target ε, what a configuration can answer, and what one more query costs.

Everything here follows from public parameters, except figures that come from a votes file, which is private.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pate.accounting import parameters
from pate.errors import BudgetExceeded, ConfigError
from pate.mechanisms import Counts, Mechanism, build, mechanism_class
from pate.planning.costs import worst_case_epsilon

_STEPS_TO_QUERIES = 12


@dataclass(frozen=True)
class Workload:
    """The most that will be asked and answered, and the δ of it all: fixed before the first query."""

    asked: int
    answered: int | None
    delta: float
    n_classes: int

    def __post_init__(self) -> None:
        parameters.queries(self.asked, "queries", least=1)
        if self.answered is not None:
            parameters.queries(self.answered, "answered")
        parameters.delta(self.delta)
        parameters.classes(self.n_classes, "classes")


@dataclass(frozen=True)
class Expected:
    """What a list of histograms would get; private where they are real votes."""

    answered: float
    plurality_share: float | None


@dataclass(frozen=True)
class Answerable:
    """What a unanimous vote, the best there is, would get."""

    n_teachers: int | None
    probability: float | None
    teachers_for_half: int | None
    teachers_for_99_percent: int | None


def solve_noise(
    settings: Mapping[str, Any], target_epsilon: float, workload: Workload, n_teachers: int | None = None
) -> Mechanism:
    """The mechanism with the least noise that keeps `workload` within `target_epsilon`."""
    target_epsilon = parameters.epsilon(target_epsilon, "target_epsilon")
    cls = mechanism_class(settings)
    free = cls.free_parameter
    if free is None:
        text = f"{{target_epsilon}}: nothing to solve for in {cls.name}; give all its parameters"
        raise ConfigError(text, target_epsilon=None)
    sign = 1.0 if cls.free_is_noise else -1.0

    def mechanism_at(noise: float) -> Mechanism:
        return build({**settings, free: noise**sign}, n_teachers)

    def quick(noise: float) -> float:
        answered = workload.asked if workload.answered is None else workload.answered
        return mechanism_at(noise).worst_case(workload.asked, answered).quick_epsilon(workload.delta)

    low, high = parameters.LEAST_NOISE, parameters.MOST_NOISE
    if quick(high) > target_epsilon:
        raise ConfigError(
            f"{{target_epsilon}}: out of reach for {workload.asked} queries by {cls.name}; ask fewer, or allow more",
            target_epsilon=target_epsilon,
        )
    while high / low > 1.0005:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if quick(middle) <= target_epsilon else (middle, high)
    for _ in range(60):
        found = mechanism_at(min(_rounded_up(high), parameters.MOST_NOISE) if sign > 0 else high)
        if epsilon_of(found, workload) <= target_epsilon:
            return found
        high = min(1.002 * high, parameters.MOST_NOISE)
    raise ConfigError("{target_epsilon}: no noise was found that keeps to it", target_epsilon=target_epsilon)


def solve_queries(
    settings: Mapping[str, Any], target_epsilon: float, workload: Workload, n_teachers: int | None = None
) -> tuple[Mechanism, Workload]:
    """As many queries as this mechanism can be asked within `target_epsilon`, to about one percent.

    Of `workload`, how many are asked is replaced; a limit on answers stays.
    """
    target_epsilon = parameters.epsilon(target_epsilon, "target_epsilon")
    mechanism = build(settings, n_teachers)
    if mechanism.charged_as_stream:
        text = f"{{target_epsilon}}: {mechanism.name} is charged as one stream, whatever is asked; leave it out"
        raise ConfigError(text, target_epsilon=None)

    def with_asked(asked: int) -> Workload:
        return dataclasses.replace(workload, asked=asked)

    def quick(asked: int) -> float:
        answered = asked if workload.answered is None else min(asked, workload.answered)
        return mechanism.worst_case(asked, answered).quick_epsilon(workload.delta)

    asked = 100
    for _ in range(_STEPS_TO_QUERIES):  # ε grows as a root of the queries, and in proportion to them in the end
        better = min(max(1, int(asked * (target_epsilon / quick(asked)) ** 1.7)), parameters.MOST_QUERIES)
        if better == asked:
            break
        asked = better
    while epsilon_of(mechanism, with_asked(asked)) > target_epsilon:
        if asked == 1:
            text = f"{{target_epsilon}}: too small for one query by {mechanism}; add noise, or allow more"
            raise ConfigError(text, target_epsilon=target_epsilon)
        asked = max(1, min(asked - 1, int(0.993 * asked)))
    return mechanism, with_asked(asked)


def epsilon_of(mechanism: Mechanism, workload: Workload) -> float:
    """The publishable ε of `workload`."""
    return worst_case_epsilon(mechanism, workload.asked, workload.answered, workload.delta, workload.n_classes)


def one_more_query(mechanism: Mechanism, workload: Workload) -> float | None:
    """How much ε another query, answered, would add; None where the mechanism allows no more."""
    more = None if workload.answered is None else workload.answered + 1
    try:
        larger = epsilon_of(mechanism, dataclasses.replace(workload, asked=workload.asked + 1, answered=more))
    except BudgetExceeded:
        return None
    return larger - epsilon_of(mechanism, workload) if math.isfinite(larger) else None


def expect(mechanism: Mechanism, counts: Counts, weights: np.ndarray | None, asked: int) -> Expected:
    """Answers to `asked` queries whose histograms are like `counts`, with shares `weights` if they are assumed."""
    if mechanism.charged_as_stream:
        return Expected(mechanism.expected_answered(counts), None)
    shares = np.full(len(counts), 1 / len(counts)) if weights is None else weights / weights.sum()
    outcomes = mechanism.log_outcomes(counts)
    answered = -np.expm1(outcomes[:, -1])
    right = np.exp(outcomes[np.arange(len(counts)), counts.argmax(axis=1)])
    expected = float((shares * answered).sum())
    return Expected(asked * expected, float((shares * right).sum()) / expected if expected > 0 else None)


def answerable(mechanism: Mechanism, n_teachers: int | None, n_classes: int) -> Answerable:
    """What the mechanism can ever answer, and how many teachers it would take."""
    n_classes = parameters.classes(n_classes)
    n_teachers = None if n_teachers is None else parameters.teachers(n_teachers)
    return Answerable(
        n_teachers,
        mechanism.answer_probability(n_teachers, n_classes) if n_teachers else None,
        mechanism.teachers_needed(0.5, n_classes),
        mechanism.teachers_needed(0.99, n_classes),
    )


def histograms_of_gaps(gaps: Mapping[int, float], n_teachers: int, n_classes: int) -> tuple[Counts, np.ndarray]:
    """Histograms with the given leads of the plurality over the runner-up, and their shares.

    The other classes get no votes: votes for them would only lower the winner's probability a little.
    """
    n_teachers, n_classes = parameters.teachers(n_teachers, "teachers"), parameters.classes(n_classes, "classes")
    rows = []
    for gap, share in gaps.items():
        parameters.probability(share, "gaps")
        if not 0 <= gap <= n_teachers:
            text = f"{{gaps}}: must be between 0 and the number of teachers, {n_teachers}"
            raise ConfigError(text, gaps=gap)
        row = np.zeros(n_classes, dtype=np.int64)
        row[0] = (n_teachers + gap + 1) // 2
        row[1] = n_teachers - row[0]
        rows.append(row)
    return np.array(rows), np.array(list(gaps.values()), dtype=np.float64)


def _rounded_up(noise: float) -> float:
    """Three digits: noise that people can write down."""
    unit = 10.0 ** (math.floor(math.log10(noise)) - 2)
    return round(math.ceil(noise / unit - 1e-9) * unit, 10)
