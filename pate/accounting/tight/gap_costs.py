"""What one answer of a noisy argmax costs at most if all that is known of its histogram is the gap.

The gap is the lead of the plurality over the runner-up. The exact cost of a histogram depends on all counts; this is
the largest exact cost, at one Rényi order, over all histograms of K classes whose gap is g or more. It does not rise
with g, and one moved vote changes g by at most 2, so its smooth sensitivity is a matter of one dimension.

Neighbouring relation: one vote moves. Sensitivity: two counts change by 1 each.
Guarantee: the Rényi divergence from the answer of a histogram with gap g to that of any neighbour is at most
`rdp_by_gap(…)[g]`, for every number of teachers. (The way back is priced by the neighbour's own gap.)

Proof, in full in docs/proofs.md, with the notation of `vote_plane` and the three kinds of moves of `vote_leads`. Where
the plurality loses a vote it is a, the others have at most c_a − g votes, and the rival, the largest of K − 2 noisy
counts, exceeds c_a − g + j with no more than the probability that K − 2 noises do. So x ≥ g − 1 − (their maximum) and
x − y ≥ g, and the moment is at most its average over that maximum. Likewise where it gains a vote.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from pate.accounting import parameters
from pate.accounting.tight.histogram_grid import Plane, two_class_excesses
from pate.accounting.tight.margins import moves_among_others, tabulated, tests_above
from pate.accounting.tight.two_class_reduction import Floats, Ints
from pate.accounting.worst_case import LARGEST_SCALE, worst_case_rdp

if TYPE_CHECKING:
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
