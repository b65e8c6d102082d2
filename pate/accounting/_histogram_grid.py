"""The largest moment of a noisy argmax, or of a threshold test, over all vote histograms, with proven bounds.

"Moment" is exp((order − 1)·Rényi divergence) between the answers before and after a vote moves; "excess" is
the moment less 1. The noise is integer, symmetric and log-concave. docs/proofs.md has the proof; in short:

A vote moves from class a to class b. Given the noise and the tie-breaking priorities of all other classes,
these act as one rival. The moment is jointly convex, so it is at most the largest one given what the rival
does (`Outcomes`), and that depends on two integers only: x and y, the votes of a and of b counted from the
rival's noisy count. `_adversary` and `worst_case` use the same plane. Far out in the plane of (x, y) the moment
is that of two classes without a rival, or of a threshold test, up to a slack that is added. The rest is
bounded block by block: the likelihood ratio of every outcome falls with x and rises with y.
"""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

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

    def quarters(self, x: Ints, y: Ints, size: int) -> tuple[Ints, Ints]:
        """What has to be searched of blocks twice as large, as blocks of `size`."""
        x, y = np.concatenate([x, x + size, x, x + size]), np.concatenate([y, y, y + size, y + size])
        searched = self.must_search(x, y, size)
        return x[searched], y[searched]


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


TOLERANCE = 1e-3
"""Relative precision of the maximum over the plane, for noise below 200 votes; the result errs upwards."""

_TAIL_SHARE = 1e-6  # what the tails beyond the search may add, as a share of the closed form's excess

AnyFloat = TypeVar("AnyFloat", float, Floats)


@lru_cache(maxsize=256)
def log_shift_moment(noise: IntegerNoise, order: float) -> float:
    """log Σ p(w)^order·p(w + 1)^(1 − order): (order − 1) times the cost of a noisy count that moves by 1."""
    reach, tails = _log_tail_moments(noise, order)
    log_pmf = noise.log_pmf(np.arange(-reach, reach + 2))
    if tails[0] > 1:
        return float(tails[0])
    return math.log1p(math.fsum(moment_excess(log_pmf[:-1], log_pmf[1:], order)))  # precise where it is tiny


@lru_cache(maxsize=16)
def _log_tail_moments(noise: IntegerNoise, order: float) -> tuple[int, Floats]:
    """`reach`, and the log of that sum over w ≥ k for k = −reach … reach.

    For Gaussian noise the terms are a Gaussian round order − 1; for Laplace p(w)·exp(±(order − 1)/scale).
    """
    reach = 2 * (noise.half_width() + math.ceil(order))
    log_pmf = noise.log_pmf(np.arange(-reach, reach + 2))
    terms = order * log_pmf[:-1] + (1 - order) * log_pmf[1:]
    return reach, np.logaddexp.accumulate(terms[::-1])[::-1]


def moment_excess(log_p: Floats, log_q: Floats, order: float) -> Floats:
    """q·φ(p/q), φ(r) = r^order − 1 − order·(r − 1) ≥ 0; the sum over the outcomes is the moment less 1."""
    return _scaled_excess(log_q, log_p - log_q, order)


def _scaled_excess(log_q: Floats, log_ratio: Floats, order: float) -> Floats:
    """q·φ(exp(log_ratio)), without overflow where q is small and the ratio large."""
    q, exponent = np.exp(log_q), order * log_ratio
    small = np.minimum(exponent, 1.0)
    result: Floats = q * (np.expm1(small) - order * np.expm1(small / order))
    large = exponent > 1
    if large.any():
        q, log_q, log_ratio = q[large], log_q[large], log_ratio[large]
        with np.errstate(over="ignore"):
            result[large] = np.exp(exponent[large] + log_q) - q - order * (np.exp(log_ratio + log_q) - q)
    return result


def threshold_excesses(noise: IntegerNoise, radius: int, order: float) -> Floats:
    """The moment, less 1, of a threshold test over noise of at least −radius … radius, and one more after the move.

    By symmetry the largest is that of both directions.
    """
    passes, fails = log_test(noise, radius)
    return moment_excess(passes[:-1], passes[1:], order) + moment_excess(fails[:-1], fails[1:], order)


@lru_cache(maxsize=16)
def log_test(noise: IntegerNoise, radius: int) -> tuple[Floats, Floats]:
    """log P(noise of at least −radius … radius + 1), and log P(less)."""
    return noise.log_test(np.arange(-radius, radius + 2))


def two_class_excesses(noise: IntegerNoise, radius: int, order: float) -> Floats:
    """The moment, less 1, of two classes, the one that loses the vote leading by −2·radius … 2·radius + 2."""
    log_win = log_two_class_wins(noise, radius)  # at leads −2·radius − 2 … 2·radius + 2
    log_lose = log_win[::-1]
    return moment_excess(log_win[2:], log_win[:-2], order) + moment_excess(log_lose[2:], log_lose[:-2], order)


@lru_cache(maxsize=16)
def log_two_class_wins(noise: IntegerNoise, radius: int) -> Floats:
    """log P(the first of two classes wins) when it leads by −2·radius − 2 … 2·radius + 2 votes."""
    margin, widest = negligible(noise), 2 * radius + 2
    last = widest + margin
    pmf = np.exp(noise.log_pmf(np.arange(-last - margin, last + margin + 1)))
    difference = np.convolve(pmf, pmf[last:], mode="valid")  # of two noises, P(0) … P(last)
    at_least = np.cumsum(difference[::-1])[::-1]
    behind = np.log(at_least - difference / 2)[: widest + 1]  # by 0, 1 … votes
    return np.concatenate([behind[::-1], np.log1p(-np.exp(behind[1:]))])


@dataclass(frozen=True)
class Plane(Region):
    """The plane of (x, y), and what is known outside the part that has to be searched.

    The rival's noisy count is a geometric variable G of ratio `noise.tail_ratio` (0 for Gaussian noise, and
    G = 0); x and y are counted from the smallest it can be. `slack` bounds every tail that is neglected:
    3·m·Σ_{w ≥ radius − 1} p(w)^order·p(w + 1)^(1 − order) + m²·P(G > drop), m being that sum over all w.
    """

    noise: IntegerNoise
    order: float

    @cached_property
    def _target(self) -> float:
        return _TAIL_SHARE * math.expm1(min(0.5, 2 * self._log_moment)) / self.order

    @cached_property
    def _log_moment(self) -> float:
        return log_shift_moment(self.noise, self.order)

    @cached_property
    def radius(self) -> int:
        """How far noise has to be searched: what lies beyond adds next to nothing to the moment."""
        reach, tails = _log_tail_moments(self.noise, self.order)
        enough = math.log(self._target / 3) - self._log_moment
        return max(2, int(np.argmax(tails <= enough)) - reach + 1)

    @cached_property
    def drop(self) -> int:
        """How far the rival may be above its smallest noisy count."""
        if self.noise.tail_ratio == 0:
            return 0
        return math.ceil((math.log(self._target) - 2 * self._log_moment) / math.log(self.noise.tail_ratio))

    @property
    def moment_fits(self) -> bool:
        """Whether the moment of one noisy count stays well inside the range of floating point."""
        return self._log_moment < 300

    @property
    def representable(self) -> bool:
        """Whether the probabilities met in the search stay well inside the range of floating point."""
        in_range = 2 * float(self.noise.log_pmf(self.radius + self.first_size + 2)) > -680
        return in_range and self.moment_fits and self.far < 150 * self.noise.scale + 50

    @cached_property
    def slack(self) -> float:
        """What the neglected tails can add; see the class."""
        reach, tails = _log_tail_moments(self.noise, self.order)
        tail = math.exp(self._log_moment + tails[self.radius - 1 + reach])
        if self.noise.tail_ratio == 0:
            return 3 * tail
        return 3 * tail + math.exp(2 * self._log_moment + (self.drop + 1) * math.log(self.noise.tail_ratio))

    def with_slack(self, excess: AnyFloat) -> AnyFloat:
        """(1 + excess)·(1 − slack)^(1 − order) + order·slack, less 1."""
        shrink = math.expm1((1 - self.order) * math.log1p(-self.slack))
        return excess + (1 + excess) * shrink + self.order * self.slack


def largest_excess(plane: Plane) -> float:
    """An upper bound of the excess over the whole plane, `TOLERANCE` above what some (x, y) attains."""
    two_class = float(two_class_excesses(plane.noise, plane.radius, plane.order).max())
    test = float(threshold_excesses(plane.noise, plane.radius, plane.order).max())
    limit_cases = max(two_class, test)
    inside = max(_search(plane, Outcomes(plane, loses_ties), limit_cases) for loses_ties in (True, False))
    return plane.with_slack(max(limit_cases, inside))


def _search(plane: Plane, outcomes: Outcomes, attained: float) -> float:
    """Branch and bound over square blocks of integer points; the largest bound that was accepted."""
    size = plane.first_size
    x, y = first_blocks(plane, size)
    accepted = 0.0
    while len(x):
        bound, value = block_bounds(plane, outcomes, x, y, size)
        attained = max(attained, float(value.max()))
        if size == plane.last_size:
            return max(accepted, float(bound.max()))
        split = bound > attained * (1 + TOLERANCE)
        accepted = max(accepted, float(bound[~split].max(initial=0.0)))
        size //= 2
        x, y = plane.quarters(x[split], y[split], size)
    return accepted


def first_blocks(plane: Region, size: int) -> tuple[Ints, Ints]:
    """Lower corners of the blocks to search; `far` is a border between blocks."""
    down = -(-(plane.far - plane.lowest) // size)
    up = -(-(2 * plane.radius + 2) // size) + 1
    corners = plane.far + size * np.arange(-down, up)
    x, y = (grid.ravel() for grid in np.meshgrid(corners, corners))
    searched = plane.must_search(x, y, size)
    return x[searched], y[searched]


def block_bounds(plane: Plane, outcomes: Outcomes, x: Ints, y: Ints, size: int) -> tuple[Floats, Floats]:
    """An upper bound of the excess on each block, and its value at one corner.

    Each likelihood ratio is largest at the corner (x, y + size − 1) and smallest at the opposite one, and φ
    is largest at one of the two; P(a wins) is largest at the second, P(b wins) at the first, P(rival wins)
    at (x, y). What cannot be represented counts as infinite.
    """
    if size == 1:
        value = _values(plane, outcomes, x, y)
        return np.where(np.isnan(value), np.inf, value), value
    order, end = plane.order, size - 1
    high, low = (x, y + end), (x + end, y)
    after_high, after_low = (x - 1, y + end + 1), (x + end - 1, y + 1)
    of_a = (high, low, after_high, after_low)
    of_b = tuple((py, px) for px, py in of_a)
    a, b = outcomes.log_win(*joined(*of_a, *of_b)).reshape(2, 4, len(x))
    bound = _scaled_excess(a[3], a[0] - a[2], order) + _scaled_excess(b[2], b[1] - b[3], order)
    value = moment_excess(a[0], a[2], order) + moment_excess(b[0], b[2], order)
    near = np.flatnonzero(np.maximum(x, y) < plane.far)  # elsewhere the rival is part of the slack
    corners = [(px[near], py[near]) for px, py in (*of_a, (x - 1, y + 1))]
    for coin in outcomes.coins:
        r = outcomes.log_rival(*joined(*corners), coin).reshape(5, len(near))
        either = (_scaled_excess(r[4], r[i] - r[i + 2], order) for i in (0, 1))
        bound[near] += np.maximum(*either)
        value[near] += moment_excess(r[0], r[2], order)
    return np.where(np.isnan(bound), np.inf, bound), value


def _values(plane: Plane, outcomes: Outcomes, x: Ints, y: Ints) -> Floats:
    """The excess at single points."""
    before, after = (x, y), (x - 1, y + 1)
    a, b = outcomes.log_win(*joined(before, after, before[::-1], after[::-1])).reshape(2, 2, len(x))
    value = moment_excess(a[0], a[1], plane.order) + moment_excess(b[0], b[1], plane.order)
    near = np.flatnonzero(np.maximum(x, y) < plane.far)
    for coin in outcomes.coins:
        r = outcomes.log_rival(*joined((x[near], y[near]), (x[near] - 1, y[near] + 1)), coin).reshape(2, len(near))
        value[near] += moment_excess(r[0], r[1], plane.order)
    return value


def moves_among_others(plane: Plane, largest: float, size: int) -> Floats:
    """The excess where the plurality neither loses nor gains a vote, by its lead: upper bounds, from blocks of `size`.

    Who moves is one of the rival's classes, and x and y are at most −L less its noise, L = 0, 1, 2 … being the lead.
    The moment is jointly convex, so it is at most its average over that noise; docs/proofs.md has the proof.
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
    tests = _tests_below(plane, s)
    found = np.maximum(inside, tests)
    if plane.noise.tail_ratio:  # below 0 it is a mixture of x = 0, in that share, and of x out of play
        found[s < 0] = plane.noise.tail_ratio ** -s[s < 0] * largest + tests[s < 0]
    return np.minimum(found, largest), lowest


def _tests_below(plane: Plane, most: Ints) -> Floats:
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
        bound, _ = block_bounds(plane, Outcomes(plane, loses_ties), x, y, size)
        np.maximum.at(table, ((x - first) // size, (y - first) // size), bound)
    return first, table
