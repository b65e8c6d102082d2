"""Before any training: noise for a target ε, what a configuration can answer, and what one more query costs.

Everything here follows from public parameters, except figures that come from a votes file, which is private.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from pate.accounting import _parameters as parameters
from pate.accounting.composition import SAMPLER_SHARES, Guarantee, RdpGuarantee
from pate.errors import BudgetExceeded, ConfigError
from pate.mechanisms import Counts, Mechanism, build, mechanism_class
from pate.planning.costs import worst_case_epsilon

_STEP = 0.3  # of ln(noise), from the guess to where the search begins on its other side
_FAR = 5.0  # of ln(cost / target): beyond, the search need not know how far
_NEAR = 1e-12  # never 0, where the search would end: less noise may cost the same


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


_NOISE_TOLERANCE = 5e-4
_STEPS_TO_QUERIES = 12
_WORTHWHILE = 0.985
_OF_RENYI = 0.945  # what the worst adversary's ε usually is of the Rényi figure
_NOISE_PER_EPSILON = 0.9  # noise falls a little slower than ε rises
_SAFELY = 1.003
_QUERIES_PER_EPSILON = (1.85, 1.4)


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
    answered = workload.max_queries if workload.max_answers is None else workload.max_answers
    bounds = parameters.MIN_NOISE, parameters.MAX_NOISE

    def mechanism_at(noise: float) -> Mechanism:
        return build({**dict(others), "name": name, str(cls.free_parameter): noise**sign}, n_teachers)

    def guarantee_at(noise: float) -> Guarantee:
        return mechanism_at(noise).worst_case(workload.max_queries, answered)

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
        raise ConfigError(
            f"{{target_epsilon}}: out of reach for {workload.max_queries} queries by {cls.name}; ask fewer, "
            "or allow more",
            target_epsilon=target_epsilon,
        )
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
        return dataclasses.replace(workload, max_queries=asked)

    def quick(asked: int) -> float:
        answered = asked if workload.max_answers is None else min(asked, workload.max_answers)
        return mechanism.worst_case(asked, answered).quick_epsilon(workload.delta)

    asked = 100
    for _ in range(_STEPS_TO_QUERIES):  # ε grows as a root of the queries, and in proportion to them in the end
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
    limits = workload.max_queries, workload.max_answers
    return worst_case_epsilon(mechanism, *limits, workload.delta, workload.n_classes, roughly)


def one_more_query(mechanism: Mechanism, workload: Workload) -> float | None:
    """How much ε another query, answered, would add; None where the mechanism allows no more."""
    more = None if workload.max_answers is None else workload.max_answers + 1
    try:
        larger = epsilon_of(
            mechanism,
            dataclasses.replace(workload, max_queries=workload.max_queries + 1, max_answers=more),
            roughly=True,
        )
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
    answered = workload.max_queries if workload.max_answers is None else workload.max_answers
    guarantee = mechanism.worst_case(workload.max_queries, answered)
    by_method = guarantee.by_method(workload.delta * (1 - SAMPLER_SHARES[0]))
    return {method: epsilon for method, epsilon in by_method.items() if math.isfinite(epsilon)}


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


def three_digits(value: float, up: bool = False) -> float:
    """The value with three digits, rounded to the nearest or up."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return round((math.ceil(value / unit - 1e-9) if up else round(value / unit)) * unit, 10)
