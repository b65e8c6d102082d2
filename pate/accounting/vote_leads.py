"""The largest moment of a noisy argmax over all histograms whose plurality leads every other class by some votes.

Words and notation are those of `vote_plane`, which treats all histograms alike. Here the class with most votes
leads each other one by at least L ≥ 1 votes, and stays ahead when one vote moves; docs/proofs.md has the proof.
A vote moves from a to b, so there are three kinds of moves:

- the plurality loses a vote: it is a, and x − y ≥ L whatever the rival does;
- it gains one: it is b, and y − x ≥ L;
- it is neither. Then it is one of the rival's classes, and x and y are at most −L less its noise. The moment is
  jointly convex, so it is at most its average over that noise.

All tables are indexed by L = 0, 1, 2 …, do not rise, and end where they change no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from pate.accounting.vote_plane import (
    TOLERANCE,
    Floats,
    Ints,
    Plane,
    _block_bounds,
    _first_blocks,
    _Outcomes,
    threshold_excesses,
    two_class_excesses,
)

if TYPE_CHECKING:
    from pate.noise.integer import IntegerNoise

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
        _search_leads(plane, _Outcomes(plane, loses_ties), sign, score, matters, found)
    two_class = two_class_excesses(plane.noise, plane.radius, plane.order)  # by the lead of a, from −2·radius on
    leads = sign * np.arange(-2 * plane.radius, 2 * plane.radius + 3)
    np.maximum.at(found, leads[leads >= 0], two_class[leads >= 0])
    found = np.maximum.accumulate(found[::-1])[::-1]
    test = float(threshold_excesses(plane.noise, plane.radius, plane.order).max())
    return np.minimum(plane.with_slack(np.maximum(found, test)), largest)


def _search_leads(
    plane: Plane, outcomes: _Outcomes, sign: int, score: Score, matters: float, found: Floats
) -> None:
    """Branch and bound as in `vote_plane`; every block's last bound is entered in `found` at its largest lead."""
    size = plane.first_size
    x, y = _first_blocks(plane, size)
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

    With s the most that x and y can be, and f(s) the largest excess for x, y ≤ s, it is E f(−L − Z) at most.
    """
    f, lowest = largest_below(plane, largest, size)
    reach = plane.noise.half_width()
    mass = np.exp(plane.noise.log_pmf(np.arange(-reach, reach + 1)))
    above = float(-np.expm1(np.log(mass.sum()))) if mass.sum() < 1 else 0.0  # what lies outside counts as the largest
    ends = reach - lowest + 1
    s = np.arange(-ends - reach, reach + 1)
    values = f[np.clip(s - lowest, 0, len(f) - 1)]
    average = np.convolve(values, mass, mode="valid")[::-1]  # at L = 0 … ends
    return np.minimum(plane.with_slack(average + (above + 1e-12) * largest), largest)


def largest_below(plane: Plane, largest: float, size: int) -> tuple[Floats, int]:
    """f(s) for s from the second result on: the largest excess where x ≤ s and y ≤ s; above its end it is `largest`."""
    lowest = plane.lowest - 2 * plane.radius
    found = np.zeros(plane.far + 2 * plane.radius + 2 * size + 4 - lowest)
    for loses_ties in (True, False):
        x, y = _first_blocks(plane, size)
        bound, _ = _block_bounds(plane, _Outcomes(plane, loses_ties), x, y, size)
        np.maximum.at(found, np.maximum(x, y) - lowest, bound)
    found[plane.far - lowest :] = largest  # also where the rival is so low that it does not matter
    test = threshold_excesses(plane.noise, -lowest + 1, plane.order)  # of noise ≥ k, from k = lowest − 1 on
    s = np.arange(lowest, lowest + len(found))
    # y out of play: a needs noise of −x ≥ −s; x out of play: b does, and gains, which is a test of 1 − k
    far_y = np.maximum.accumulate(test[::-1])[::-1][np.clip(-s - lowest + 1, 0, len(test) - 1)]
    far_x = np.maximum.accumulate(test)[np.clip(1 + s - lowest + 1, 0, len(test) - 1)]
    found = np.maximum.accumulate(np.maximum(found, np.maximum(far_x, far_y)))
    return np.minimum(found, largest), lowest
