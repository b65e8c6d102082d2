"""Smooth sensitivity of the data-dependent cost of noisy argmax mechanisms, at one fixed Rényi order.

The data-dependent cost is a function of private votes, so it is private too. Here is what `pate.accounting.sanitise`
needs to publish a bound on it: the cost itself, and for d = 0, 1, 2, … a bound on how much one more moved vote can
change it anywhere within d moved votes.

An answer is charged by its gap alone, with the largest exact cost of all histograms of that gap (`gap_costs`); a
threshold test by the largest count, with the exact cost of integer noise. Each is a curve over one integer, which a
moved vote changes by at most 2, or by 1: its steps in a window of that many votes a move bound all changes.

A move takes one vote from one class to another; the number of teachers never changes. Everything that is returned
from counts is private.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.accounting import parameters
from pate.accounting.tight.histogram_grid import Plane, _excess, two_class_excesses
from pate.accounting.tight.known_teachers import log_test
from pate.accounting.tight.margins import moves_among_others, tabulated, tests_above
from pate.accounting.tight.two_class_reduction import Floats, Ints
from pate.accounting.worst_case import LARGEST_SCALE, worst_case_rdp
from pate.noise.integer import IntegerNoise

_ROUNDING = 1e-8  # relative
_MAX_BLOCKS = 1 << 20  # of the table: a few seconds


def rdp_by_gap(noise: IntegerNoise, order: float, n_classes: int, widest: int) -> Floats:
    """The Rényi cost of one answer, forward, by its gap 0 … widest: an upper bound that does not rise."""
    order, n_classes = parameters.order(order), parameters.classes(n_classes)
    return _rdp_by_gap(noise, order, n_classes, parameters.whole(widest, "widest", least=0))


@lru_cache(maxsize=32)
def _rdp_by_gap(noise: IntegerNoise, order: float, n_classes: int, widest: int) -> Floats:
    gaps = np.arange(widest + 1)
    worst, plane = worst_case_rdp(noise, order), Plane(noise, order)
    if noise.scale > LARGEST_SCALE or not plane.representable:
        return np.full(len(gaps), worst)
    largest, size = math.expm1((order - 1) * worst), _block_size(plane)
    tables = [_of_the_plurality(plane, size, gains, largest, n_classes, gaps) for gains in (False, True)]
    if n_classes > 2:
        among = moves_among_others(plane, largest, size)
        tables.append(among[np.minimum(gaps, len(among) - 1)])
    excess = np.minimum.accumulate(np.max(tables, axis=0))
    return np.minimum(np.log1p(excess * (1 + _ROUNDING)) / (order - 1), worst)


def _block_size(plane: Plane) -> int:
    """The side of the blocks that the plane is tabulated in: single points for noise up to about 60 votes."""
    side, size = plane.far - plane.lowest + 2 * plane.radius, 1
    while (side // size) ** 2 > 2 * _MAX_BLOCKS:
        size *= 2
    return size


def _of_the_plurality(plane: Plane, size: int, gains: bool, largest: float, n_classes: int, gaps: Ints) -> Floats:
    """The excess where the plurality loses (or `gains`) a vote, by the gap."""
    of_two = two_class_excesses(plane.noise, plane.radius, plane.order)  # by the lead of a, from −2·radius on
    two_class = of_two[2 * plane.radius :: -1] if gains else of_two[2 * plane.radius :]
    two_class = np.append(np.maximum.accumulate(two_class[::-1])[::-1], 0.0)[np.minimum(gaps, len(two_class))]
    if n_classes == 2:
        return np.minimum(plane.with_slack(two_class), largest)
    first, table = tabulated(plane, size)
    table = table.T if gains else table  # [votes of the plurality, votes of the other class], counted from the rival
    own = first + size * np.arange(len(table))
    always = tests_above(plane, gains, own)
    if plane.noise.tail_ratio:  # the other class below 0, or −1, is a mixture of that and of being out of play
        always = np.maximum(always, table[:, ((0 if gains else -1) - first) // size])
    table = np.maximum.accumulate(table, axis=1)
    reach = plane.noise.half_width()
    highest = np.arange(-reach, reach + 1)  # of the rivals' noises
    mass = np.diff(np.exp((n_classes - 2) * plane.noise.log_cdf(np.append(highest - 1, reach))))
    missing = max(0.0, 1 - float(mass.sum())) + 1e-12  # noise further out: as if it were the worst
    found = np.empty(len(gaps))
    for i, gap in enumerate(gaps):
        column = (own + size - 1 - gap - first) // size  # the last with a lead of `gap` somewhere in its block
        best = np.where(column >= 0, table[np.arange(len(table)), np.clip(column, 0, len(table) - 1)], 0.0)
        best = np.maximum.accumulate(np.maximum(best, always)[::-1])[::-1]
        place = (gap - 1 - highest - first) // size
        value = np.where(place < 0, largest, best[np.clip(place, 0, len(best) - 1)])
        found[i] = float(mass @ np.maximum(value, two_class[i])) + missing * largest
    return np.minimum(plane.with_slack(found), largest)


# relative


@dataclass(frozen=True)
class PrivateCost:
    """The data-dependent cost of the labels released so far, and how much it may change.

    `rdp` and `local_sensitivity` depend on the votes: they are private, and left out of the printed form.
    `local_sensitivity[d]` bounds the change of `rdp` by one record, from any data within d records of these.
    `worst_case_rdp` holds for every data set and is public; so is `label_draws`, how often integer noise was drawn.
    """

    order: float
    worst_case_rdp: float
    label_draws: int
    rdp: float = field(repr=False)
    local_sensitivity: Floats = field(repr=False)

    def __post_init__(self) -> None:
        parameters.order(self.order)
        parameters.number(self.worst_case_rdp, "worst_case_rdp", least=0)
        parameters.number(self.label_draws, "label_draws", least=0)

    def smooth_sensitivity(self, beta: float) -> float:
        """The beta-smooth bound max_d exp(-beta d) local_sensitivity[d] (Nissim et al. 2007, Definition 2.2).

        It sums the queries before it takes the maximum, which is at most the sum of the queries' own bounds:
        one record moves at most one vote of every query, so d records reach at most d votes in each.
        """
        return float(discounted_maximum(self.local_sensitivity, beta))


def discounted_maximum(local_sensitivity: ArrayLike, beta: float) -> Floats:
    """Largest exp(-beta d) local_sensitivity[..., d] over the distances d of the last axis."""
    parameters.positive(beta, "beta")
    ladder = np.asarray(local_sensitivity, dtype=np.float64)
    return np.asarray(np.max(ladder * np.exp(-beta * np.arange(ladder.shape[-1])), axis=-1))


def answers_cost(counts: ArrayLike, noise: IntegerNoise, order: float) -> PrivateCost:
    """Cost of one argmax of noisy counts for every row of `counts`, int[queries, classes]."""
    votes = parameters.votes(counts, "counts")
    order = parameters.order(order)
    ordered = np.sort(votes, axis=1)
    n_teachers, n_classes = int(votes[0].sum()), votes.shape[1]
    curve = rdp_by_gap(noise, order, n_classes, n_teachers)
    return _along(curve, ordered[:, -1] - ordered[:, -2], 2, order, votes.size + len(votes))


def tests_cost(counts: ArrayLike, noise: IntegerNoise, threshold: float, order: float) -> PrivateCost:
    """Cost of the test max(counts) + noise ≥ threshold for every row of `counts`."""
    votes = parameters.votes(counts, "counts")
    curve = rdp_of_test_by_largest(noise, parameters.threshold(threshold), parameters.order(order), int(votes[0].sum()))
    return _along(curve, votes.max(axis=1), 1, order, len(votes))


def realised_cost(
    counts: ArrayLike,
    answered: ArrayLike,
    threshold: float,
    test_noise: IntegerNoise,
    answer_noise: IntegerNoise,
    order: float,
) -> PrivateCost:
    """Realised cost of ConfidentGNMax: every query pays the threshold test, answered ones pay the argmax too.

    Which queries were `answered` (bool[queries]) is released output, so the cost may be conditioned on it.
    """
    votes = parameters.votes(counts, "counts")
    mask = np.asarray(answered)
    if mask.dtype != np.bool_ or mask.shape != votes.shape[:1]:
        raise ValueError(f"answered must be bool[{len(votes)}], not {mask.dtype}{list(mask.shape)}")
    tests = tests_cost(votes, test_noise, threshold, order)
    if not mask.any():
        return tests
    labels = answers_cost(votes[mask], answer_noise, order)
    return PrivateCost(
        order=order,
        worst_case_rdp=tests.worst_case_rdp + labels.worst_case_rdp,
        label_draws=tests.label_draws + votes.size + len(votes),
        rdp=tests.rdp + labels.rdp,
        local_sensitivity=tests.local_sensitivity + labels.local_sensitivity,
    )


def rdp_of_test_by_largest(noise: IntegerNoise, threshold: float, order: float, n_teachers: int) -> Floats:
    """Rényi cost of the test, forward, by the largest count 0 … n_teachers: exact for integer noise, rounded up."""
    passes, fails = log_test(noise, threshold, np.arange(-1, n_teachers + 2))
    here, less, more = slice(1, -1), slice(None, -2), slice(2, None)
    excess = [_excess(passes[here], passes[to], order) + _excess(fails[here], fails[to], order) for to in (less, more)]
    return np.log1p(np.maximum(*excess) * (1 + _ROUNDING)) / (order - 1)


def _along(curve: Floats, places: NDArray[np.integer], step: int, order: float, draws: int) -> PrivateCost:
    """The cost of queries at `places` of a curve along which a moved vote takes a query by at most `step`."""
    found, often = np.unique(places, return_counts=True)
    return PrivateCost(
        order=order,
        worst_case_rdp=len(places) * float(curve.max()),
        label_draws=draws,
        rdp=float(often @ curve[found]),
        local_sensitivity=often @ largest_steps(curve, found, step),
    )


def largest_steps(curve: Floats, places: Ints, step: int) -> Floats:
    """float[places, len(curve)]: largest change of the curve by one vote, within d = 0, 1, … votes of each place.

    After d votes a query is within d·step of its place, and from there or to there one vote takes it by at most
    `step`; so what counts are the changes over up to `step` between place − (d + 1)·step and place + (d + 1)·step.
    """
    last = len(curve) - 1
    changes = np.zeros(len(curve))  # changes[i]: the largest from i to i + 1 … i + step
    for far in range(1, min(step, last) + 1):
        changes[:-far] = np.maximum(changes[:-far], np.abs(curve[far:] - curve[:-far]))
    distance = np.arange(len(curve))
    first = np.clip(places[:, None] - (distance + 1) * step, 0, last)
    return _RangeMaximum(changes)(first, np.clip(places[:, None] + distance * step, 0, last))


class _RangeMaximum:
    """Maxima of many index ranges [first, last] of one array: a table of the maxima over powers of two."""

    def __init__(self, values: Floats) -> None:
        levels = [values]
        while 2 ** len(levels) <= len(values):
            half = 2 ** (len(levels) - 1)
            shorter = np.maximum(levels[-1][:-half], levels[-1][half:])
            levels.append(shorter)
        self._table = np.stack([np.pad(level, (0, len(values) - len(level))) for level in levels])

    def __call__(self, first: Ints, last: Ints) -> Floats:
        level = np.frexp((last - first + 1).astype(np.float64))[1] - 1
        return np.asarray(np.maximum(self._table[level, first], self._table[level, last + 1 - 2**level]))
