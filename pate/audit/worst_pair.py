"""Two neighbouring histograms that a mechanism tells apart best, from its exact probabilities.

Neighbouring relation: one vote moves (or as many as `votes_per_record` says), or one count grows by 1 where records
vote near themselves. The search goes through histograms in which two classes share all votes: there a moved vote
counts twice. For LNMax a third class with votes adds a few percent to the exact ε; it is never above the claim.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pate.audit.bounds import clopper_pearson_lower, clopper_pearson_upper
from pate.mechanisms import Mechanism

_MOST_CANDIDATES = 600
_OUT_OF_REACH = 4  # times the votes that are sure to win: classes without votes then play no part
_SURE = 0.999

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """Neighbouring histograms, the likelier first, and an event: outcomes by column of `log_outcomes`."""

    counts: NDArray[np.int64]
    neighbour: NDArray[np.int64]
    event: NDArray[np.int64]
    likely: float
    unlikely: float
    epsilon: float
    """Exact: ln((likely − δ)/unlikely)."""

    def rotated(self, by: int, n_classes: int) -> Pair:
        """The same histograms among `n_classes`, from class `by` on; its event is left out: others can do better."""
        ours, theirs = (np.roll(np.pad(c, (0, n_classes - len(c))), by) for c in (self.counts, self.neighbour))
        return Pair(ours, theirs, np.zeros(0, dtype=np.int64), self.likely, self.unlikely, self.epsilon)


def worst_pair(
    mechanism: Mechanism,
    n_teachers: int,
    delta: float,
    single: bool = False,
    draws: int | None = None,
    moved: int | None = None,
) -> Pair:
    """The pair with the largest exact ε at `delta`; given `draws`, the one that so many draws of each show most of.

    `single`: one count grows by 1, instead of votes moving. `moved`: so many votes, instead of `votes_per_record`.
    """
    counts, neighbours, ours, theirs = _candidates(mechanism, n_teachers, single, moved)
    found = []
    for first, second, p, q in ((counts, neighbours, ours, theirs), (neighbours, counts, theirs, ours)):
        order = np.argsort(-_ratio(p, q), axis=1, kind="stable")
        likely, unlikely = (np.cumsum(np.take_along_axis(x, order, axis=1), axis=1) for x in (p, q))
        exact = log_excess(likely, unlikely, delta)
        value = exact if draws is None else _to_be_shown(likely, unlikely, delta, draws)
        row, last = np.unravel_index(int(np.argmax(value)), value.shape)
        pair = Pair(
            first[row],
            second[row],
            order[row, : last + 1],
            float(likely[row, last]),
            float(unlikely[row, last]),
            float(exact[row, last]),
        )
        found.append((float(value[row, last]), pair))
    return max(found, key=lambda one: one[0])[1]


def tied(mechanism: Mechanism, n_teachers: int) -> tuple[NDArray[np.int64], float]:
    """The histogram whose answer is most left to chance, and how probable it is that two answers are alike."""
    counts, _, outcomes, _ = _candidates(mechanism, n_teachers, single=False)
    alike = (outcomes**2).sum(axis=1)
    return counts[int(np.argmin(alike))], float(alike.min())


def log_excess(likely: Floats, unlikely: Floats, delta: float) -> Floats:
    """ln((likely − δ)/unlikely), 0 where that is negative."""
    excess = np.maximum(likely - delta, math.exp(-700))
    return np.maximum(0.0, np.log(excess) - np.log(np.maximum(unlikely, math.exp(-700))))


@lru_cache(maxsize=16)
def _candidates(
    mechanism: Mechanism, n_teachers: int, single: bool, votes_moved: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, Floats]:
    """Histograms, their neighbours, and how probable every outcome is of either."""
    moved = 1 if single else votes_moved or mechanism.votes_per_record
    votes = max(n_teachers, _OUT_OF_REACH * (mechanism.teachers_needed(_SURE) or 0), 2 * moved)
    rows = []
    for total in (votes, votes + 1):  # both parities of the gap
        first = np.unique(np.linspace(moved, total, min(total - moved + 1, _MOST_CANDIDATES // 2)).astype(np.int64))
        rows.append(np.column_stack([first, total - first]))
    counts = np.concatenate(rows)
    neighbours = counts + (np.array([-moved, 0]) if single else np.array([-moved, moved]))
    return counts, neighbours, np.exp(mechanism.log_outcomes(counts)), np.exp(mechanism.log_outcomes(neighbours))


def _ratio(p: Floats, q: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, np.log(p) - np.log(q), -np.inf)


def _to_be_shown(likely: Floats, unlikely: Floats, delta: float, draws: int) -> Floats:
    """The bound at 95 % confidence, were each event seen as often as expected."""
    lower = clopper_pearson_lower(np.floor(likely * draws).clip(0, draws).astype(np.int64), draws, 0.025)
    upper = clopper_pearson_upper(np.ceil(unlikely * draws).clip(0, draws).astype(np.int64), draws, 0.025)
    return log_excess(lower, upper, delta)
