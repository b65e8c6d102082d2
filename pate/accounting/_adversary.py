"""ε of many noisy answers against the worst adversary, who chooses every query by the answers before.

Rényi divergences of single answers add up, but turning their sum into ε loses several per cent. Here the adversary's
game itself is bounded, by value iteration over hockey-stick curves. docs/proofs.md has the proof; in short:

What an adversary gains with k queries left depends on the likelihood ratio s of the answers so far alone: W(s), with
W(s) = max(s − 1, 0) for k = 0, and one query more is the most of Σ Q(o)·W(s·P(o)/Q(o)) over all pairs (P, Q) that a
query can have. (ε, δ)-DP holds iff W(e^−ε) ≤ δ·e^−ε. W is convex, so the adversary only gains by knowing what the rival
of `_histogram_grid` does; then pairs are those of the plane of (x, y). `Envelope` holds some hundred curves above those
of all of them; with likelihood ratios on a geometric grid, value iteration over those is a matrix product.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.accounting import blas
from pate.accounting._histogram_grid import (
    Floats,
    Ints,
    Outcomes,
    Region,
    first_blocks,
    joined,
    log_test,
    log_two_class_wins,
)

if TYPE_CHECKING:
    from pate.noise.integer import IntegerNoise

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
        # what lies within: the second lead may go up to it, or the first down
        beside = np.sort(pairs.highest, axis=0)[-2]
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


NEGLECTED = 1e-16
"""Probability of what is left out of one query, on either side; it is charged to δ."""

MIN_SCALE = 1.0
MAX_SCALE, MAX_LAPLACE_SCALE = 64.0, 30.0
"""Noise, in votes, for which this is computed: beyond, finding the curves takes too long."""

MAX_WORK = 1.2e11
"""Multiplications beyond which it is not computed: some seconds."""

_STEP = 0.2  # of the grid of log-likelihood ratios, over the noise's scale
_BLOCKS_AT_ONCE = 50_000
_CURVES_AT_ONCE = 256
_AS_MUCH_AGAIN = 64  # what a row costs beside its multiplications
_ASIDE = 1 << 30  # where no (x, y) lies
_ROUNDING = 1e-4  # relative, of δ
_RANGE = (1.1, 0.7)  # of ln s, below and above 0, over the ε that is known to hold
_LARGEST = 60.0  # ε
_TRIMMED = 1e-15


@dataclass(frozen=True)
class _Searched(Region):
    """The plane of (x, y) without what is a test, a vote of two classes or a foregone conclusion, up to `NEGLECTED`."""

    noise: IntegerNoise

    @cached_property
    def radius(self) -> int:
        """4·P(noise ≥ radius − 1), and that a rival is as far above its least, is neglected."""
        enough = math.log(NEGLECTED / 8)
        needed = int(np.argmax(self.noise.log_sf(np.arange(_reach(self.noise))) <= enough)) + 1
        if self.noise.tail_ratio:
            needed = max(needed, math.ceil(enough / math.log(self.noise.tail_ratio)))
        return needed

    @property
    def drop(self) -> int:
        return 0

    @cached_property
    def far(self) -> int:
        """Where a and b are both so far above the rival, it beats neither: P(noise ≥ far − 1)² is neglected."""
        return int(np.argmax(2 * self.noise.log_sf(np.arange(_reach(self.noise))) <= math.log(NEGLECTED))) + 1


def _reach(noise: IntegerNoise) -> int:
    return math.ceil(60 * noise.scale) + 60


@dataclass(frozen=True)
class _Game:
    """Pairs of distributions, given by masses[pairs, ratios of the grid], that no query of the adversary beats."""

    step: float
    masses: Floats
    beyond: float
    """P of the likelihood ratios above the grid, at most: counts as a failure."""


@lru_cache(maxsize=16)
def _game(noise: IntegerNoise) -> _Game:
    region = _Searched(noise)
    leads, two_classes = _two_classes(noise, region.radius)
    tests = _tests(noise, region.radius)
    searches = [_Search(region, loses_ties) for loses_ties in (True, False)]
    pairs = (two_classes, tests, *(search.first for search in searches))
    widest = max(float(np.abs(ratio).max()) for some in pairs for ratio in (some.highest, some.lowest))
    grid = Grid(_STEP / noise.scale, math.ceil(widest * noise.scale / _STEP) + 1)
    above = Envelope(leads, two_classes, grid, noise.scale)
    rest = np.flatnonzero(~above.covers(tests))
    above.add(tests[rest], rest, 0 * rest - _ASIDE)
    for search in searches:
        search.cover(above)
    return _trimmed(grid, grid.masses(above.curves))


def _two_classes(noise: IntegerNoise, radius: int) -> tuple[Ints, Ratios]:
    """Leads of the class that loses a vote, and votes of two classes with those leads."""
    log_win = log_two_class_wins(noise, radius)  # at leads −2·radius − 2 … 2·radius + 2
    log_lose = log_win[::-1]
    log_p, log_q = np.stack([log_win[2:], log_lose[2:]]), np.stack([log_win[:-2], log_lose[:-2]])
    return np.arange(-2 * radius, 2 * radius + 3), Ratios(log_q, log_p - log_q, log_p - log_q)


def _tests(noise: IntegerNoise, radius: int) -> Ratios:
    """Tests whether noise reaches a level, in both directions."""
    sides = np.stack(log_test(noise, radius))
    log_p = np.concatenate([sides[:, 1:], sides[:, :-1]], axis=1)
    log_q = np.concatenate([sides[:, :-1], sides[:, 1:]], axis=1)
    return Ratios(log_q, log_p - log_q, log_p - log_q)


class _Search:
    """The plane under one rule about ties, block by block."""

    def __init__(self, region: _Searched, loses_ties: bool) -> None:
        self._region, self._outcomes = region, Outcomes(region, loses_ties)
        self._corners = first_blocks(region, region.first_size)
        self.first = self._bounds(*self._corners, region.first_size)

    def cover(self, above: Envelope) -> None:
        """Blocks that are below a curve are done, others are split; what is left of the smallest gets a curve."""
        (x, y), size = self._corners, self._region.first_size
        while len(x):
            left = []
            for start in range(0, len(x), _BLOCKS_AT_ONCE):
                some = np.arange(start, min(start + _BLOCKS_AT_ONCE, len(x)))
                pairs = self._bounds(x[some], y[some], size)
                rest = np.flatnonzero(~above.covers(pairs))
                if size > self._region.last_size:
                    left.append(some[rest])
                elif len(rest):
                    above.add(pairs[rest], x[some[rest]], y[some[rest]])
            if size == self._region.last_size:
                return
            size //= 2
            split = np.concatenate(left)
            x, y = self._region.quarters(x[split], y[split], size)

    def _bounds(self, x: Ints, y: Ints, size: int) -> Ratios:
        """Bounds on the blocks of size × size points from (x, y) on.

        Ratios are largest at the corner (x, y + size − 1) and smallest at the opposite one; after the move a wins most
        often at the second, b at the first, the rival at (x, y). Outcomes that hardly ever happen count as neglected.
        """
        end = size - 1
        corners = ((x, y + end), (x + end, y), (x - 1, y + end + 1), (x + end - 1, y + 1))
        before_high, before_low, after_high, after_low = (
            self._log_outcomes(*joined(*corners)).reshape(-1, 4, len(x)).transpose(1, 0, 2)
        )
        log_q = np.maximum(after_high, after_low)
        for i, coin in enumerate(self._outcomes.coins, start=2):
            log_q[i] = self._outcomes.log_rival(x - 1, y + 1, coin)
        highest, lowest = before_high - after_high, before_low - after_low
        negligible = np.maximum(log_q, log_q + highest) < math.log(NEGLECTED / 4)
        return Ratios(log_q, np.where(negligible, 0.0, highest), np.where(negligible, 0.0, lowest))

    def _log_outcomes(self, x: Ints, y: Ints) -> Floats:
        """log-probabilities that a wins, b wins, the rival wins; the largest by what is left, to be precise near 1."""
        a, b = self._outcomes.log_win(*joined((x, y), (y, x))).reshape(2, len(x))
        found = np.stack([a, b, *(self._outcomes.log_rival(x, y, coin) for coin in self._outcomes.coins)])
        likeliest = found.argmax(axis=0)[None]
        others = np.exp(found)
        np.put_along_axis(others, likeliest, 0.0, axis=0)
        np.put_along_axis(found, likeliest, np.log1p(-others.sum(axis=0))[None], axis=0)
        return found


def _trimmed(grid: Grid, masses: Floats) -> _Game:
    """Without ratios so extreme that they hardly occur: large ones count as failures, small ones are split with 0.

    The ratio 0 needs no place: nothing is gained there.
    """
    p = masses * grid.ratios
    above = np.cumsum(p[:, ::-1], axis=1)[:, ::-1].max(axis=0)  # P of a ratio and all larger ones
    below = np.cumsum(p, axis=1).max(axis=0)
    kept = np.flatnonzero((above > _TRIMMED) & (below > _TRIMMED))
    ends = min(grid.ends, int(np.abs(kept - grid.ends).max()) + 1)
    first, last = grid.ends - ends, grid.ends + ends
    inside = masses[:, first : last + 1].copy()
    inside[:, 0] += p[:, :first].sum(axis=1) / grid.ratios[first]
    return _Game(grid.step, inside, float(p[:, last + 1 :].sum(axis=1).max(initial=0.0)))


def has_game(noise: IntegerNoise) -> bool:
    """Whether the game is computed for this noise."""
    return MIN_SCALE <= noise.scale <= (MAX_LAPLACE_SCALE if noise.tail_ratio else MAX_SCALE)


def adversary_epsilons(noise: IntegerNoise, at: Sequence[int], delta: float, known: float) -> list[float]:
    """ε at `delta` of argmax(counts + noise), ties broken at random, for each number of queries in `at`.

    Neighbouring relation: one vote moves, in every query. Sensitivity: two counts change by 1 each.
    Guarantee: the answers to so many queries, each chosen by the answers before, are (ε, δ)-DP, for any number of
    classes and of teachers. Infinite where it is not computed. `known` is an ε that holds for all of them.
    """
    if not (has_game(noise) and 0 < known < _LARGEST):
        return [math.inf] * len(at)
    game = _game(noise)
    below, above = (math.ceil(share * known / game.step / 64) * 64 for share in _RANGE)
    curves, ratios = game.masses.shape
    if (below + above) * curves * (ratios + _AS_MUCH_AGAIN) * max(at) > MAX_WORK:
        return [math.inf] * len(at)
    with blas().limit(limits=1):
        gains = _gains(noise, below, above, max(at))
    s = np.exp(game.step * np.arange(-below, 1))
    neglected = NEGLECTED * (1 + math.exp(known)) + game.beyond
    found = [_epsilon(s, gains[k, : below + 1], delta / (1 + _ROUNDING) - k * neglected) for k in at]
    return [epsilon if epsilon <= known else math.inf for epsilon in found]  # e^known is what was charged


@lru_cache(maxsize=16)
def _gains(noise: IntegerNoise, below: int, above: int, most: int) -> Floats:
    """W(s) with 0 … `most` queries left, at s = exp(step·j), j = −below … above."""
    game = _game(noise)
    reach = game.masses.shape[1] // 2
    ratios = np.exp(game.step * np.arange(-reach, reach + 1))
    s = np.exp(game.step * np.arange(-below, above + 1))
    steepest = max(1.0, float((game.masses @ ratios).max()))  # by rounding and by bounds on blocks it may be above 1
    some = [game.masses[i : i + _CURVES_AT_ONCE] for i in range(0, len(game.masses), _CURVES_AT_ONCE)]
    gains = np.empty((most + 1, len(s)))
    gains[0] = np.maximum(s - 1, 0.0)
    slope = 1.0
    for k in range(most):
        small = gains[k, 0] * ratios[:reach]  # W is convex and W(0) = 0
        large = gains[k, -1] + slope * s[-1] * (ratios[reach + 1 :] - 1)
        around = np.concatenate([small, gains[k], large])
        shifted = np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(around, len(s)))
        gains[k + 1] = np.maximum.reduce([(masses @ shifted).max(axis=0) for masses in some])
        slope *= steepest
    return gains


def _epsilon(s: Floats, gains: Floats, delta: float) -> float:
    """The least ε with W(e^−ε) ≤ δ·e^−ε; between points of the grid a chord is above W, and W(s)/s does not fall."""
    fits = gains <= delta * s
    if delta <= 0 or not fits[0]:
        return math.inf
    if fits.all():
        return 0.0
    last = int(np.argmin(fits)) - 1
    slope = (gains[last + 1] - gains[last]) / (s[last + 1] - s[last])
    return max(0.0, -math.log((slope * s[last] - gains[last]) / (slope - delta)))
