"""The largest moment of a noisy argmax over all histograms whose plurality leads every other class by some votes.

Words and notation are those of `vote_plane`, which treats all histograms alike. Here the class with most votes
leads each other one by at least L votes before a vote moves from a to b; docs/proofs.md has the proof. There are three
kinds of moves:

- the plurality loses a vote: it is a, and x − y ≥ L whatever the rival does;
- it gains one: it is b, and y − x ≥ L;
- it is neither. Then it is one of the rival's classes, and x and y are at most −L less its noise. The moment is
  jointly convex, so it is at most its average over that noise.

All tables are indexed by L = 0, 1, 2 …, do not rise, and end where they change no more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from pate.accounting.tight.histogram_grid import (
    TOLERANCE,
    Plane,
    _block_bounds,
    first_blocks,
    threshold_excesses,
    two_class_excesses,
)
from pate.accounting.tight.two_class_reduction import Floats, Ints, Outcomes

Score = Callable[[Ints, Floats], Floats]
"""Score(leads, excess): how much an excess matters that occurs at these leads, increasing in both."""


def moves_of_the_plurality(plane: Plane, gains: bool, largest: float, score: Score, matters: float) -> Floats:
    """The excess where the plurality loses (or `gains`) a vote, by its lead: upper bounds.

    They are within `TOLERANCE` of what is attained where their score is above `matters`, and rough elsewhere.
    `largest` is the excess over all histograms, which nothing exceeds.
    """
    sign = -1 if gains else 1
    ends = 2 * plane.radius + 2 * plane.first_size + 4
    found = np.zeros(ends + 1)
    for loses_ties in (True, False):
        _search_leads(plane, Outcomes(plane, loses_ties), sign, score, matters, found)
    two_class = two_class_excesses(plane.noise, plane.radius, plane.order)  # by the lead of a, from −2·radius on
    leads = sign * np.arange(-2 * plane.radius, 2 * plane.radius + 3)
    np.maximum.at(found, leads[leads >= 0], two_class[leads >= 0])
    found = np.maximum.accumulate(found[::-1])[::-1]
    test = float(threshold_excesses(plane.noise, plane.radius, plane.order).max())
    return np.minimum(plane.with_slack(np.maximum(found, test)), largest)


def _search_leads(plane: Plane, outcomes: Outcomes, sign: int, score: Score, matters: float, found: Floats) -> None:
    """Branch and bound as in `vote_plane`; every block's last bound is entered in `found` at its largest lead."""
    size = plane.first_size
    x, y = first_blocks(plane, size)
    while True:
        leads = np.minimum(sign * (x - y) + size - 1, len(found) - 1)
        x, y, leads = x[leads >= 0], y[leads >= 0], leads[leads >= 0]
        if len(x) == 0:
            return
        bound, value = _block_bounds(plane, outcomes, x, y, size)
        corner = sign * (x - y - (size - 1 if size > 1 else 0))
        inside = corner >= 0
        attained = score(np.minimum(corner[inside], len(found) - 1), value[inside])
        matters = max(matters, float(attained.max(initial=0.0)))
        split = score(leads, bound) > matters * (1 + TOLERANCE)
        if size == plane.last_size:
            split[:] = False
        np.maximum.at(found, leads[~split], bound[~split])
        size //= 2
        x = np.concatenate([x[split], x[split] + size, x[split], x[split] + size])
        y = np.concatenate([y[split], y[split], y[split] + size, y[split] + size])
        searched = plane.must_search(x, y, size)
        x, y = x[searched], y[searched]


def moves_among_others(plane: Plane, largest: float, size: int) -> Floats:
    """The excess where the plurality neither loses nor gains a vote, by its lead: upper bounds, from blocks of `size`.

    With s the most that x and y can be, and f(s) the largest excess for x, y ≤ s, it is E f(−L − Z) at most. For a
    geometric tail Z = G − G′ and the rival's noisy count is counted without its G, so it is E f(−L + G′).
    """
    f, lowest = largest_below(plane, largest, size)
    reach, ratio = plane.noise.half_width(), plane.noise.tail_ratio
    noise = np.arange(-reach, reach + 1)
    mass = np.exp(plane.noise.log_pmf(noise))
    if ratio:
        mass = np.where(noise <= 0, (1 - ratio) * ratio ** np.maximum(-noise, 0.0), 0.0)
    ends = reach - lowest + 1
    s = np.arange(-ends - reach, reach + 1)
    values = f[np.clip(s - lowest, 0, len(f) - 1)]
    average = np.convolve(values, mass, mode="valid")[::-1]  # at L = 0 … ends
    missing = max(0.0, 1 - float(mass.sum())) + 1e-12  # noise further out: as if it were the worst
    return np.minimum(plane.with_slack(average + missing * largest), largest)


def largest_below(plane: Plane, largest: float, size: int) -> tuple[Floats, int]:
    """f(s) for s from the second result on: the largest excess where x ≤ s and y ≤ s; above its end it is `largest`."""
    first, table = tabulated(plane, size)
    lowest = plane.lowest - 2 * plane.radius
    s = np.arange(lowest, plane.far + 1)
    corner = first + size * np.arange(len(table))
    highest = np.maximum(corner[:, None], corner[None, :])
    inside = np.zeros(len(s))
    np.maximum.at(inside, np.minimum(highest, s[-1]) - lowest, table)
    inside = np.maximum.accumulate(inside)
    inside[-1] = largest  # from `far` on, where also the rival may be so low that it does not matter
    tests = tests_below(plane, s)
    found = np.maximum(inside, tests)
    if plane.noise.tail_ratio:  # below 0 it is a mixture of x = 0, in that share, and of x out of play
        found[s < 0] = plane.noise.tail_ratio ** -s[s < 0] * largest + tests[s < 0]
    return np.minimum(found, largest), lowest


def tests_below(plane: Plane, most: Ints) -> Floats:
    """The excess where one class is out of play, and the other has at most so many votes more than the rival."""
    radius = int(np.abs(most).max()) + 2 + plane.drop
    test = threshold_excesses(plane.noise, radius, plane.order)  # of noise ≥ k, from k = −radius on
    loses = np.maximum.accumulate(test[::-1])[::-1]  # k ≥ −most, less what a geometric rival is above its least
    gains = np.maximum.accumulate(test)  # as a test of 1 − k
    return np.maximum(loses[radius - most], _smoothed(plane, gains, radius + 1 + most, -1))


def tests_above(plane: Plane, gains: bool, least: Ints) -> Floats:
    """The excess where the other class is out of play, and the one that loses or `gains` has at least so many votes."""
    radius = int(np.abs(least).max()) + 2 + plane.drop
    test = threshold_excesses(plane.noise, radius, plane.order)
    if gains:
        return _smoothed(plane, np.maximum.accumulate(test[::-1])[::-1], radius + least, -1)
    return _smoothed(plane, np.maximum.accumulate(test), radius + 1 - least, 1)


def _smoothed(plane: Plane, values: Floats, places: Ints, sign: int) -> Floats:
    """E values[place ± G], G being how far the rival is above its least; 0 for Gaussian noise."""
    above = np.arange(plane.drop + 1)
    ratio = plane.noise.tail_ratio
    mass = (1 - ratio) * ratio**above
    mass[-1] = ratio**plane.drop  # what lies further out is part of the slack
    result: Floats = values[np.clip(places[:, None] + sign * above, 0, len(values) - 1)] @ mass
    return result


@lru_cache(maxsize=4)
def tabulated(plane: Plane, size: int) -> tuple[int, Floats]:
    """The part of the plane that is searched, in blocks: its first x and y, and the largest excess of each, [x, y]."""
    x, y = first_blocks(plane, size)
    first = int(min(x.min(), y.min()))
    n = (max(int(x.max()), int(y.max())) - first) // size + 1
    table = np.zeros((n, n))
    for loses_ties in (True, False):
        bound, _ = _block_bounds(plane, Outcomes(plane, loses_ties), x, y, size)
        np.maximum.at(table, ((x - first) // size, (y - first) // size), bound)
    return first, table
