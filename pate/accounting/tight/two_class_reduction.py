"""Two classes between which a vote moves, against all others: which of them wins, and where that has to be looked at.

A vote moves from class a to class b. Given the noise and the tie-breaking priorities of all other classes, these act as
one rival. Who wins then depends on two integers only: x and y, the votes of a and of b counted from the rival's noisy
count. docs/proofs.md says why; `vote_plane` and `adversary` take the largest cost over all (x, y).
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # mechanisms import the accountant
    from pate.noise.integer import IntegerNoise

_ROWS_AT_ONCE = 16
_LARGEST_EXPONENT = 300.0

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


def negligible(noise: IntegerNoise) -> int:
    """Noise this much further out is less likely by a factor of 10¹³."""
    return int(np.searchsorted(-noise.log_sf(np.arange(noise.half_width())), 30.0))


class Region(ABC):
    """The part of the plane of (x, y) that has to be searched; outside are limit cases, up to what is neglected.

    The rival's noisy count is geometric, of ratio `noise.tail_ratio` (0 for Gaussian noise, where it is fixed);
    x and y are counted from the smallest it can be.
    """

    noise: IntegerNoise

    @property
    @abstractmethod
    def radius(self) -> int:
        """How far noise is looked at."""

    @property
    @abstractmethod
    def drop(self) -> int:
        """How far the rival may be above its smallest noisy count."""

    @property
    def far(self) -> int:
        """From this x or y on, a class practically always beats the rival."""
        return self.radius + self.drop

    @property
    def first_size(self) -> int:
        """The side of the blocks the search begins with, a power of 2."""
        return 1 << max(0, math.floor(math.log2(self.noise.scale)))

    @property
    def last_size(self) -> int:
        """The side of the smallest blocks: single points, for noise of less than 200 votes."""
        return 1 << max(0, math.floor(math.log2(self.noise.scale / 100)))

    @property
    def lowest(self) -> int:
        """The smallest x or y to search; below are limit cases, or, for a geometric tail, mixtures."""
        return 1 - self.radius if self.noise.tail_ratio == 0 else -1

    def must_search(self, x: Ints, y: Ints, size: int) -> NDArray[np.bool_]:
        """Whether the square of `size` by `size` points from (x, y) upwards is not wholly a limit case."""
        low, high = np.minimum(x, y), np.maximum(x, y)
        apart = (high - low - size >= 2 * self.radius + 2) & (high >= self.far)
        return (low + size > self.lowest) & (low < self.far) & ~apart


class Outcomes:
    """Probabilities of the three outcomes at points of the plane, for one rule about ties.

    Given the rival's priority, those of a and b are both above it, both below it, or one each, a fair coin
    saying which. Both above: the rival loses every tie (`loses_ties`); both below: the same with the rival
    one vote higher; one each: the coin's choice of a and b wins a tie with the rival and with the other, and
    the other wins none. Then the coin is made part of the outcome "rival", which becomes two. Ties of a and b
    are fair throughout.

    Along a diagonal (fixed lead x − y) the probability to win against a rival at 0 is one cumulative sum over
    the winner's noise, and the geometric rival is exponential smoothing along it. Every term is positive.
    """

    def __init__(self, region: Region, loses_ties: bool) -> None:
        noise = region.noise
        self._loses_ties, self._ratio = loses_ties, noise.tail_ratio
        margin = region.first_size + 4
        highest = region.far + 2 * region.radius + 2 * margin  # of x and y
        self._widest = max(region.far - region.lowest, 2 * region.radius) + 2 * margin  # of |x − y|
        self._top = self._widest + negligible(noise)  # of the winner's noise, which is −x upwards
        noise_values = np.arange(self._top, -highest - 1, -1)  # in the order of x = −top … highest
        self._half_pmf = np.exp(noise.log_pmf(noise_values)) / 2
        levels = np.arange(self._top + self._widest, -highest - self._widest - 2, -1)
        cdf = np.exp(noise.log_cdf(levels))
        n = len(noise_values)
        self._at_most = np.lib.stride_tricks.sliding_window_view(cdf[:-1], n)  # row −d + widest: P(Z ≤ d − x)
        self._below = np.lib.stride_tricks.sliding_window_view(cdf[1:], n)  # the same: P(Z < d − x)
        self._either = np.lib.stride_tricks.sliding_window_view(cdf[:-1] + cdf[1:], n)  # their sum
        if self._ratio:  # powers for as long as their inverses are represented well
            self._powers = self._ratio ** np.arange(max(1.0, _LARGEST_EXPONENT // -math.log(self._ratio)))

    def log_win(self, x: Ints, y: Ints) -> Floats:
        """log P(the class at x wins) against a class at y and the rival."""
        return self._look_up(self._win_rows, x, y)

    def log_rival(self, x: Ints, y: Ints, coin: int) -> Floats:
        """log P(the rival wins), and the coin (0 or 1) fell so, if there is one."""
        return self._look_up(lambda leads, n: self._rival_rows(leads, n, coin), x, y)

    @property
    def coins(self) -> tuple[int, ...]:
        return (0,) if self._loses_ties else (0, 1)

    def _look_up(self, rows_at: Callable[[Ints, int], Floats], x: Ints, y: Ints) -> Floats:
        lead = x - y
        if np.abs(lead).max(initial=0) > self._widest or x.min(initial=0) < -self._top:
            raise IndexError("a point outside the tables")
        leads, where = _distinct(lead, self._widest)
        by_lead = np.argsort(where.astype(np.min_scalar_type(len(leads))), kind="stable")  # short integers sort fast
        starts = np.searchsorted(where[by_lead], np.arange(0, len(leads) + _ROWS_AT_ONCE, _ROWS_AT_ONCE))
        result = np.empty(len(x))
        for i, (start, end) in enumerate(itertools.pairwise(starts)):
            points = by_lead[start:end]
            first = i * _ROWS_AT_ONCE
            at = x[points] + self._top
            rows = rows_at(leads[first : first + _ROWS_AT_ONCE], int(at.max()) + 1)
            result[points] = rows[where[points] - first, at]
        return np.log(result)

    def _win_rows(self, leads: Ints, n: int) -> Floats:
        """The first `n` points of the diagonals."""
        index, half_pmf = self._widest - leads, self._half_pmf[:n]
        rows = self._either[index, :n]
        rows *= half_pmf
        np.cumsum(rows, axis=1, out=rows)
        if not self._loses_ties:
            rows -= half_pmf * self._below[index, :n]
        return self._smooth(rows)

    def _rival_rows(self, leads: Ints, n: int, coin: int) -> Floats:
        index, level = self._widest - leads, self._widest
        if self._loses_ties:
            return self._smooth(self._below[level, :n] * self._below[index, :n])
        first, second = (self._below, self._at_most) if coin == 0 else (self._at_most, self._below)
        return self._smooth(first[level, :n] / 2 * second[index, :n])

    def _smooth(self, rows: Floats) -> Floats:
        """Changes x into y, y[i] = (1 − ratio)·x[i] + ratio·y[i − 1], which is ratio^i·Σ (1 − ratio)·x[k]/ratio^k."""
        if self._ratio == 0:
            return rows
        last = np.zeros((len(rows), 1))
        for start in range(0, rows.shape[1], len(self._powers)):
            part = rows[:, start : start + len(self._powers)]
            powers = self._powers[: part.shape[1]]
            part *= (1 - self._ratio) / powers
            np.cumsum(part, axis=1, out=part)
            part += self._ratio * last
            part *= powers
            last = part[:, -1:]
        return rows


def _distinct(values: Ints, largest: int) -> tuple[Ints, Ints]:
    """The distinct ones of values in −largest … largest, and which of them each is."""
    there = np.zeros(2 * largest + 1, dtype=bool)
    there[values + largest] = True
    return np.flatnonzero(there) - largest, (np.cumsum(there) - 1)[values + largest]


def joined(*points: tuple[Ints, Ints]) -> tuple[Ints, Ints]:
    return np.concatenate([x for x, _ in points]), np.concatenate([y for _, y in points])
