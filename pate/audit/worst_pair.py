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

_MAX_CANDIDATES = 600
_OUT_OF_REACH = 4  # times the votes that are sure to win: classes without votes then play no part
_SURE = 0.999
_TWO_ERRORS, _OFTEN = 2.0, 100.0
_LEVELS = (0.5, 0.25, 0.1, 0.01)  # how probable the answer is that a moved vote makes less so

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


def other_pairs(mechanism: Mechanism, n_teachers: int, n_classes: int, single: bool) -> tuple[list[Pair], list[Pair]]:
    """Neighbouring histograms for bugs that the worst pair does not show; the event is the answer of one class.

    The first are of two classes, the answer being more or less probable: too little noise may make the worst pair's
    event so rare that it is never seen. The others are of each class against all others, which are level: an answer
    that depends on the noise of every class.
    """
    counts, neighbours, ours, theirs = _candidates(mechanism, n_teachers, single)
    behind = np.flatnonzero(counts[:, 0] <= counts[:, 1])
    rows = [behind[int(np.argmin(np.abs(ours[behind, 0] - level)))] for level in _LEVELS]
    nearer = [_pair(counts[row], neighbours[row], 0, float(ours[row, 0]), float(theirs[row, 0])) for row in rows]
    moved = 1 if single else mechanism.votes_per_record
    scale = float(getattr(getattr(mechanism, "noise", None), "scale", 1.0))
    level = []
    for less in (0, max(1, round(scale / 2))):
        fewer = np.full(n_classes, int(counts[0].sum()), dtype=np.int64)
        fewer[0] -= less
        step = np.zeros(n_classes, dtype=np.int64)
        step[:2] = (moved, 0) if single else (moved, -moved)
        level += [_pair(np.roll(fewer + step, by), np.roll(fewer, by), by) for by in range(n_classes)]
    return nearer, level


def _pair(
    counts: NDArray[np.int64], neighbour: NDArray[np.int64], label: int, p: float = math.nan, q: float = math.nan
) -> Pair:
    return Pair(counts, neighbour, np.array([label]), p, q, math.nan)


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
        first = np.unique(np.linspace(moved, total, min(total - moved + 1, _MAX_CANDIDATES // 2)).astype(np.int64))
        rows.append(np.column_stack([first, total - first]))
    counts = np.concatenate(rows)
    neighbours = counts + (np.array([-moved, 0]) if single else np.array([-moved, moved]))
    return counts, neighbours, np.exp(mechanism.log_outcomes(counts)), np.exp(mechanism.log_outcomes(neighbours))


def _ratio(p: Floats, q: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(p > 0, np.log(p) - np.log(q), -np.inf)


def _to_be_shown(likely: Floats, unlikely: Floats, delta: float, draws: int) -> Floats:
    """About the bound at 95 % confidence, were each event seen as often as expected: by pairs, or by rates if rare."""
    lower = clopper_pearson_lower(np.floor(likely * draws).clip(0, draws).astype(np.int64), draws, 0.01)
    upper = clopper_pearson_upper(np.ceil(unlikely * draws).clip(0, draws).astype(np.int64), draws, 0.01)
    by_rates = log_excess(lower, upper, delta)
    seen = np.maximum(np.minimum(likely, unlikely) * draws, 1e-9)
    margin = _TWO_ERRORS * np.sqrt(2 / seen)
    return np.maximum(by_rates, np.where(seen > _OFTEN, log_excess(likely, unlikely, delta) - margin, 0.0))
