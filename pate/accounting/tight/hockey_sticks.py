"""Hockey-stick curves of pairs of distributions, and few of them that are above many.

A pair (P, Q) is known by its likelihood ratios P/Q and the masses Q has there, whose mean is 1. Its curve is
H(t) = Σ max(P − t·Q, 0). By its *excess* it is above the curve of two equal distributions, max(1 − t, 0): that is
Σ max(P − t·Q, 0) for t ≥ 1 and Σ max(t·Q − P, 0) below. A pair whose curve is above another's for every t is worth more
to every adversary (Blackwell), and a mixture of pairs is worth no more than the best of them. So:

1. Ratios between l and h: the pair that has these two alone is above.
2. Two pairs with ratios l₁ < 1 < h₁ and l₂ < 1 < h₂, l₂ ≤ l₁ and h₂ ≤ h₁: a mixture of them is above all pairs with
   ratios from l₂ to h₁ whose excess, as a share of the first one's at h₂ and of the second one's at l₁, is at most 1 in
   sum. (Between kinks of the mixture's curve the difference is concave, so the kinks decide; at l₂ and h₁ it is 0.)
3. On a grid of t the largest of some curves, joined by chords, is above all of them.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.accounting.tight.two_class_reduction import Floats, Ints

_GROUPS_PER_SCALE = 24
_WIDEST_LEAD = 8  # in scales; beyond, leads are one group
_ENLARGED = 5e-3  # by this share log-likelihood ratios of two classes are enlarged, so that more is below them
_SHIFTS = (0.0, 0.4, 1.0)
_TILTS = (0.0, 0.25, 0.5, 1.0)  # orders over the scale, at which curves are compared roughly
_PLACES = ((0.4, 2), (0.15, 4), (0.04, 8), (-np.inf, 16))  # the further below the best one, the larger a group may be


@dataclass(frozen=True)
class Ratios:
    """Bounds for pairs, [outcomes, pairs]: the most of log Q, and the most and the least of log P/Q."""

    log_q: Floats
    highest: Floats
    lowest: Floats

    def __getitem__(self, pairs: Ints | slice) -> Ratios:
        return Ratios(self.log_q[:, pairs], self.highest[:, pairs], self.lowest[:, pairs])

    def excess(self, t: Floats) -> Floats:
        """At one t, or at one for each pair."""
        above = np.exp(self.highest) - t
        below = t - np.exp(self.lowest)
        return (np.exp(self.log_q) * np.maximum(np.where(t >= 1, above, below), 0)).sum(axis=0)


@dataclass(frozen=True)
class Grid:
    """t = exp(step·j), j = −ends … ends."""

    step: float
    ends: int

    @property
    def ratios(self) -> Floats:
        return np.exp(self.step * np.arange(-self.ends, self.ends + 1))

    def excess(self, pairs: Ratios) -> Floats:
        """[pairs, grid]. A chord between two points is above the curve: as if outcomes had been split between them."""
        t, q = self.ratios, np.exp(pairs.log_q)[..., None]
        up = np.maximum(np.exp(pairs.highest)[..., None] - t[self.ends :], 0)
        down = np.maximum(t[: self.ends] - np.exp(pairs.lowest)[..., None], 0)
        return np.concatenate([(q * down).sum(axis=0), (q * up).sum(axis=0)], axis=-1)

    def masses(self, excess: Floats) -> Floats:
        """Q of every ratio of the grid, for curves with that excess; none is below 0, which only raises a curve."""
        t = np.exp(self.step * np.arange(-self.ends - 1, self.ends + 2))
        slopes = np.diff(np.pad(excess, ((0, 0), (1, 1))), axis=1) / np.diff(t)
        masses = np.diff(slopes, axis=1)
        masses[:, self.ends] += 1  # the kink of max(1 − t, 0)
        return np.maximum(masses, 0.0)


class Envelope:
    """Curves above all pairs that it was shown: of votes of two classes, by lead, and others, by a place in a plane."""

    def __init__(self, leads: Ints, two_classes: Ratios, grid: Grid, scale: float) -> None:
        """Both ratios of two classes fall with the lead of the one that loses a vote."""
        self._grid, self._scale = grid, scale
        self._lowest = two_classes.lowest.min(axis=0) * (1 + _ENLARGED)
        self._highest = two_classes.highest.max(axis=0) * (1 + _ENLARGED)
        self._low, self._high = np.exp(self._lowest), np.exp(self._highest)
        less, more = -np.expm1(self._lowest), np.expm1(self._highest)
        self._q_low, self._q_high = more / (less + more), less / (less + more)
        both = np.stack([self._lowest, self._highest])
        curves = grid.excess(Ratios(np.log([self._q_low, self._q_high]), both, both))
        widest = _WIDEST_LEAD * _GROUPS_PER_SCALE
        groups = np.clip(np.round(leads / scale * _GROUPS_PER_SCALE), -widest, widest)
        self._of_leads = np.maximum.reduceat(curves, np.unique(groups, return_index=True)[1], axis=0)
        self._tilted = grid.ratios[:, None] ** (scale * np.array(_TILTS) - 1)
        self._worst = (self._of_leads @ self._tilted).max(axis=0)
        self._others: dict[tuple[int, ...], Floats] = {}

    @property
    def curves(self) -> Floats:
        """[curves, grid], of their excess."""
        return np.concatenate([self._of_leads, *(curve[None] for curve in self._others.values())])

    def covers(self, pairs: Ratios) -> NDArray[np.bool_]:
        """Whether each of the pairs is below votes of two classes with one lead, or with two, in a mixture."""
        last = len(self._low) - 1
        lowest, highest = pairs.lowest.min(axis=0), pairs.highest.max(axis=0)
        low = np.searchsorted(-self._lowest, -lowest)  # the first lead with so small a ratio
        high = np.searchsorted(-self._highest, -highest, side="right") - 1  # the last lead with so large a one
        possible = (low <= last) & (high >= 0)
        covered = possible & (low <= high)
        rest = np.flatnonzero(possible & ~covered)
        covered[rest] = self._mixed(pairs[rest], high[rest], low[rest])
        return covered

    def _mixed(self, pairs: Ratios, first: Ints, second: Ints) -> NDArray[np.bool_]:
        """Whether a mixture of leads up to `first` and from `second` on is above each pair."""
        last = len(self._low) - 1
        beside = np.sort(pairs.highest, axis=0)[
            -2
        ]  # what lies within: the second lead may go up to it, or the first down
        further = np.clip(np.searchsorted(-self._highest, -beside, side="right") - 1, second, last)
        further = np.where(beside > 0, further, second)
        beside = np.sort(pairs.lowest, axis=0)[1]
        nearer = np.clip(np.searchsorted(-self._lowest, -beside), 0, first)
        nearer = np.where(beside < 0, nearer, first)
        covered = np.zeros(len(first), dtype=bool)
        for down, up in itertools.product(_SHIFTS, _SHIFTS):
            some = np.flatnonzero(~covered)
            one = np.round(first[some] + down * (nearer[some] - first[some])).astype(np.int64)
            two = np.round(second[some] + up * (further[some] - second[some])).astype(np.int64)
            above, below = self._high[two], self._low[one]
            with np.errstate(divide="ignore", invalid="ignore"):
                share = pairs[some].excess(above) / (self._q_high[one] * (self._high[one] - above))
                share += pairs[some].excess(below) / (self._q_low[two] * (below - self._low[two]))
            covered[some] = share <= 1 - 1e-9  # not where it is no number
        return covered

    def add(self, pairs: Ratios, x: Ints, y: Ints) -> None:
        """Has a curve above all pairs of a place; places are small where curves are nearly as high as leads'."""
        curves = self._grid.excess(pairs)
        gap = 1 - (curves @ self._tilted / self._worst).max(axis=1)
        if np.isnan(gap).any():  # such a pair would be in no place, and its curve missing
            raise ArithmeticError("a curve is not a number")
        for i, (least, per_scale) in enumerate(_PLACES):
            chosen = np.flatnonzero((gap >= least) & (gap < (_PLACES[i - 1][0] if i else np.inf)))
            if not len(chosen):
                continue
            side = max(1.0, self._scale / per_scale)
            places = np.stack([np.floor(x[chosen] / side), np.floor(y[chosen] / side)]).astype(np.int64)
            found, where = np.unique(places, axis=1, return_inverse=True)
            by_place = np.argsort(where.ravel(), kind="stable")
            starts = np.searchsorted(where.ravel()[by_place], np.arange(found.shape[1]))
            highest = np.maximum.reduceat(curves[chosen][by_place], starts, axis=0)
            for place, curve in zip(found.T.tolist(), highest, strict=True):
                key = (i, *place)
                self._others[key] = np.maximum(self._others.get(key, 0.0), curve)
