"""From the number of records and a target ε to voters, mechanism and budget: a recommendation, and what else there is.

Everything follows from public figures. Rules of thumb decide, which are written out here; a few queries' ε is worked
out as a run would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pate.accounting import parameters
from pate.accounting.composition import epsilon_of_rdp
from pate.config.validation import check_delta
from pate.errors import ConfigError
from pate.ledger import SharedBudget
from pate.mechanisms import Mechanism, build
from pate.mechanisms.cell_rounds import Round, guarantee
from pate.planning.neighbours import plan_of_rounds, with_target
from pate.planning.plan import Workload, epsilon_of, histograms_of_gaps, solve_queries

AGREEMENT = 0.8
"""Of the teachers, on the examples that the noise is chosen for."""

AGREEMENTS = (0.6, 0.7, 0.8, 0.9, 1.0)
_SIGMA_PER_TEACHER = (2 * AGREEMENT - 1) / (math.sqrt(2) * 1.645)  # such agreement wins 19 times of 20
_RECORDS_PER_CLASS = 40  # that a teacher learns from
_MAX_QUERIES = 2_000  # beyond, better teachers are worth more than more labels
_ENOUGH_LABELS_PER_CLASS = 100  # for a student; with fewer, records vote themselves
_LEADS_PER_CELL = 5  # how many times the votes that a sure cell needs a cell is given
_MAX_CELLS, _PUBLIC_PER_CELL = 1_000, 4
_MIN_TEACHERS = 10
_ORDERS_OF_A_LEDGER = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024)
_ONE_SIGMA = 40.0  # with which ε is worked out once


@dataclass(frozen=True)
class Choice:
    """One way to spend the budget. `labels` is how many public examples, or cells of them, are labelled."""

    voters: str
    mechanism: dict[str, Any]
    epsilon: float
    asked: int
    labels: int
    n_teachers: int | None = None
    records_each: int = 0
    answered: int | None = None

    def settings(self, delta: float) -> dict[str, Any]:
        """What a config says of it."""
        budget: dict[str, Any] = {"delta": delta, "epsilon": _rounded_up(self.epsilon)}
        if self.voters == "neighbours":
            cells = {"cells": self.asked, "standardise": True, "soft": True, "refine": 5}
            return {"voters": "neighbours", "neighbours": cells, "mechanism": self.mechanism, "budget": budget}
        budget["max_queries"] = self.asked
        if self.answered is not None:
            budget["max_answers"] = self.answered
        return {"n_teachers": self.n_teachers, "mechanism": self.mechanism, "budget": budget}


@dataclass(frozen=True)
class Recommendation:
    """The choice to begin with, why, and the others."""

    choice: Choice
    why: str
    others: tuple[Choice, ...]


def shared_budget(choice: Choice, delta: float, runs: int) -> SharedBudget | None:
    """About the least budget of a shared ledger with room for so many runs of that choice; None where there is none."""
    mechanism = build(choice.mechanism, choice.n_teachers or 1)
    answered = choice.asked if choice.answered is None else choice.answered

    def rdp(order: float) -> float:
        if choice.voters == "neighbours":
            return guarantee([Round(choice.asked, mechanism)], votes=1).rdp_at(order)
        each = mechanism.rdp_per_query(order, choice.asked, answered)
        return math.inf if each is None else choice.asked * each[0] + answered * each[1]

    found = []
    for order in _ORDERS_OF_A_LEDGER:
        cost = runs * rdp(order)
        if not math.isfinite(cost):
            continue
        least = max(cost + epsilon_of_rdp(0.0, order, delta), 1e-3)
        budget = SharedBudget(order, _rounded_up(1.01 * least), delta)  # a share of δ is for the samplers
        if budget.rdp >= cost:
            found.append(budget)
    return min(found, key=lambda budget: budget.epsilon, default=None)


def usual_delta(records: int) -> float:
    """A tenth of one over the records, as a power of ten, and 1e-5 at most.

    >>> usual_delta(20_000), usual_delta(300)
    (1e-06, 1e-05)
    """
    return min(1e-5, 10.0 ** math.floor(math.log10(0.1 / records) + 1e-9))


def recommend(
    records: int,
    n_classes: int,
    target_epsilon: float,
    delta: float,
    n_public: int | None = None,
    near_is_alike: bool = False,
) -> Recommendation:
    """For so many private records (or persons, where an id is protected) and, if known, public examples.

    Teachers, where they give enough labels with enough records each; else, or where the features are such that near
    means alike (`near_is_alike`), every record votes near itself.
    """
    records = parameters.whole(records, "records", least=1)
    n_classes, delta = parameters.classes(n_classes, "classes"), parameters.delta(delta)
    target_epsilon = parameters.epsilon(target_epsilon, "target_epsilon")
    check_delta(delta, records, key="delta")
    queries_per_variance = _queries_per_variance(target_epsilon, delta, n_classes)
    most = min(_MAX_QUERIES, n_public or _MAX_QUERIES)
    best = math.ceil(math.sqrt(most / queries_per_variance) / _SIGMA_PER_TEACHER)
    usual = max(_MIN_TEACHERS, min(best, records // (_RECORDS_PER_CLASS * n_classes)))

    def teachers(n: int, confident: bool = False) -> Choice | None:
        return _teachers(n, confident, records, n_classes, target_epsilon, delta, queries_per_variance, most)

    found = {n: teachers(n) for n in (usual, usual // 2, 2 * usual) if 2 <= n <= records // 2}
    first = found.get(usual)
    others = [choice for choice in (*found.values(), teachers(usual, confident=True)) if choice]
    neighbours = _neighbours(records, n_classes, target_epsilon, delta, n_public)
    enough = _ENOUGH_LABELS_PER_CLASS * n_classes
    if neighbours is None and first is None:
        raise ConfigError(
            f"{{target_epsilon}}: out of reach with {records:,} records: noise would drown every vote; get more "
            "records, or allow more",
            target_epsilon=target_epsilon,
        )
    if neighbours is None or (first is not None and first.labels >= min(enough, most) and not near_is_alike):
        assert first is not None
        why = f"{first.labels:,} labels by teachers of {first.records_each:,} records each"
        chosen = first
    else:
        labels = 0 if first is None else first.labels
        why = f"teachers would give {labels:,} labels within this ε, fewer than the {enough:,} that a student wants"
        why = "records of a table vote near others like them" if near_is_alike else why
        chosen = neighbours
    rest = [choice for choice in (neighbours, *others) if choice is not None and choice is not chosen]
    return Recommendation(chosen, why, tuple(rest))


def _queries_per_variance(target: float, delta: float, n_classes: int) -> float:
    """How many queries a variance of 1 allows: ε depends on queries/σ² alone, as the noise is nearly continuous.

    From Rényi DP's closed form, where ε is so small that even one query is too dear for the noise it is tried with.
    """
    closed_form = (math.sqrt(math.log(1 / delta) + target) - math.sqrt(math.log(1 / delta))) ** 2
    if closed_form * _ONE_SIGMA**2 < 1:
        return closed_form
    one = {"name": "gnmax", "sigma": _ONE_SIGMA}
    _, unit = solve_queries(one, target, Workload(1, None, delta, n_classes), roughly=True)
    return unit.max_queries / _ONE_SIGMA**2


def chances(mechanism: Mechanism, n_teachers: int, n_classes: int) -> dict[float, tuple[float, float]]:
    """For shares of teachers that agree: how likely an answer is, and the plurality's label."""
    counts = np.concatenate(
        [
            histograms_of_gaps({max(0, round((2 * s - 1) * n_teachers)): 1.0}, n_teachers, n_classes)[0]
            for s in AGREEMENTS
        ]
    )
    outcomes = np.exp(mechanism.log_outcomes(counts))
    return {share: (1 - float(row[-1]), float(row[0])) for share, row in zip(AGREEMENTS, outcomes, strict=True)}


def _teachers(
    n: int,
    confident: bool,
    records: int,
    n_classes: int,
    target: float,
    delta: float,
    queries_per_variance: float,
    most: int,
) -> Choice | None:
    """The most queries that σ allows at which an agreement of 80 % wins 19 times of 20; None where that is none."""
    sigma = _three_digits(_SIGMA_PER_TEACHER * n)
    settings: dict[str, Any] = {"name": "gnmax", "sigma": sigma}
    if confident:  # half of what is asked is answered, and a test has half the cost of an answer: the sum is the same
        settings = {"name": "confident_gnmax", "threshold": round(0.7 * n), "sigma1": sigma, "sigma2": sigma}
    asked = min(int(queries_per_variance * sigma**2), most)
    while asked >= 1:
        answered = max(1, asked // 2) if confident else None
        mechanism = build(settings, n)
        epsilon = epsilon_of(mechanism, Workload(asked, answered, delta, n_classes), roughly=True)
        if epsilon <= target:
            labels = asked if answered is None else answered
            return Choice("teachers", settings, epsilon, asked, labels, n, records // n, answered)
        asked = min(asked - 1, int(0.99 * asked))
    return None


def _neighbours(records: int, n_classes: int, target: float, delta: float, n_public: int | None) -> Choice | None:
    """Neighbours with as many cells as get enough votes; None where there would be too few."""
    from pate.mechanisms.cell_rounds import Round
    from pate.mechanisms.histogram import Histogram

    try:
        rounds = with_target([Round(100, Histogram(1.0))], 1, target, delta, n_classes)
    except ConfigError:  # more noise than is allowed
        return None
    scale = _three_digits(rounds[0].mechanism.scale, up=True)  # type: ignore[attr-defined]
    plan = plan_of_rounds([Round(100, Histogram(scale))], 1, delta, n_classes)
    lead = plan["rounds"][0]["lead_needed"]
    if lead is None:
        return None
    cells = min(records // (_LEADS_PER_CELL * lead), _MAX_CELLS)
    if n_public is not None:
        cells = min(cells, n_public // _PUBLIC_PER_CELL)
    if cells < 2 * n_classes:
        return None
    each = records // cells
    return Choice("neighbours", {"name": "histogram", "scale": scale}, plan["epsilon"], cells, cells, None, each)


def _three_digits(value: float, up: bool = False) -> float:
    unit = 10.0 ** (math.floor(math.log10(value)) - 2)
    return round((math.ceil(value / unit - 1e-9) if up else round(value / unit)) * unit, 10)


def _rounded_up(epsilon: float) -> float:
    """Two decimals: a limit that people can write down, and that ε is within."""
    return math.ceil(100 * epsilon - 1e-9) / 100
