"""Exact costs as privacy loss distributions: ε of many queries without the slack of the Rényi conversion.

One query: the hockey-stick divergences δ(ε) between a histogram and its neighbours, the largest at each ε. A
maximum of convex curves is convex, so it is the curve of a pair of distributions that dominates them all, and
compositions of dominating pairs dominate the composition (Zhu, Dong, Wang 2022). The pair is rounded up to a
grid of losses by "Connect the Dots" (Doroshenko et al. 2022, Algorithm 1).

Many queries: a product of Fourier transforms. All rounding is upwards, except that of floating point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.accounting.neighbours_of_histogram import NeighbourOutcomes, map_on_all_cores

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

RELATIVE_ERROR = 2e-3
"""The grid of losses is fine enough when halving its interval changes ε by no more than this."""

_CUT_SHARE = 1e-6  # of δ, for losses beyond the grid, which count as infinite
_LOG_OUTSIDE = math.log(1e-15)  # tilted mass outside the Fourier window
_NOISE = 1e-15  # rounding error of one point of a Fourier transform of a distribution
_LARGEST_EXPONENT = 600.0
_TILTS = np.geomspace(1e-8, 0.5, 100)  # as shares of the largest that floating point allows
_MOVES_AT_ONCE = 512
_MAX_POINTS = 1 << 15  # of the grid of losses, on each side of 0
_ELEMENTS_AT_ONCE = 1_000_000


@dataclass(frozen=True)
class Curves:
    """The worst neighbours' hockey-stick divergences δ(ε) of several histograms, ε a multiple of `interval`.

    there: from the histogram to its neighbours, [histograms, epsilons]; back: from the neighbours to it.
    multiplicity: how many queries have the histogram.
    """

    interval: float
    there: Array
    back: Array
    multiplicity: Indices

    def coarser(self) -> Curves:
        """These curves on a grid with twice the interval."""
        return Curves(2 * self.interval, self.there[:, ::2], self.back[:, ::2], self.multiplicity)

    def reversed(self) -> Curves:
        """The curves of the other direction."""
        return Curves(self.interval, self.back, self.there, self.multiplicity)

    def excess(self) -> Array:
        """δ(ε) − max(0, 1 − e^ε) on both sides of ε = 0: for ε < 0 it is e^ε times the way back's δ(−ε)."""
        epsilons = np.arange(self.back.shape[1] - 1, 0, -1) * self.interval
        return np.concatenate([self.back[:, :0:-1] * np.exp(-epsilons), self.there], axis=1)


@dataclass(frozen=True)
class Losses:
    """Distributions of the privacy loss on a grid, [histograms, 2n + 1], and the mass at infinity."""

    interval: float
    mass: Array
    infinite: Array
    multiplicity: Indices

    def grid(self) -> Array:
        """The losses that the columns of `mass` stand for."""
        n = self.mass.shape[1] // 2
        return np.arange(-n, n + 1) * self.interval


def pld_epsilon(outcomes: NeighbourOutcomes, delta: float, guess: float = math.inf) -> float:
    """ε of all queries at `delta`, the larger direction's: an upper bound, and close to the best there is.

    `guess` is another valid ε, if known: it sets the interval of the grid to begin with, which is then
    refined until halving it changes ε by less than `RELATIVE_ERROR`.
    """
    cut = _CUT_SHARE * delta / (len(outcomes.where) * outcomes.own.shape[1])
    largest = float(_largest_losses(outcomes, cut).max(initial=0.0))
    if largest == 0.0 and guess == 0.0:
        return 0.0
    scale = min(guess, largest * len(outcomes.where)) or largest
    finest = largest / _MAX_POINTS  # a coarser grid is rounded up further, and holds as well
    interval = max(scale, 1e-9) / max(1000.0, 40 * math.sqrt(len(outcomes.where)))
    interval = max(interval, finest)
    visible = 0.05 * min(scale, largest)  # an ε below this need not be precise
    for _ in range(6):
        curves = worst_curves(outcomes, interval, cut)
        epsilon = composed_epsilon(curves, delta)
        coarse = composed_epsilon([c.coarser() for c in curves], delta)
        if (
            math.isinf(epsilon)
            or interval < 4 * finest
            or abs(coarse - epsilon) <= RELATIVE_ERROR * max(epsilon, visible)
        ):
            break
        interval /= 4
    return epsilon


def composed_epsilon(curves: list[Curves], delta: float) -> float:
    """ε of the composition, the larger direction's."""
    forward = losses_epsilon([connect_the_dots(c) for c in curves], delta)
    return max(forward, losses_epsilon([connect_the_dots(c.reversed()) for c in curves], delta))


def worst_curves(outcomes: NeighbourOutcomes, interval: float, cut: float) -> list[Curves]:
    """The worst neighbours' curves of all distinct histograms; answers rarer than `cut` widen no grid."""
    widths = _largest_losses(outcomes, cut)
    multiplicity = np.bincount(outcomes.where, minlength=len(outcomes.own))

    def curves(block: slice) -> Curves:
        own, moved, begin = outcomes.pairs(block)
        n = 2 * max(1, math.ceil(widths[block].max() / (2 * interval)))
        epsilons = np.arange(n + 1) * interval
        there, back = _divergence(own, moved, epsilons), _divergence(moved, own, epsilons)
        there, back = (np.maximum.reduceat(curve, begin, axis=0) for curve in (there, back))
        return Curves(interval, there, back, multiplicity[block])

    points = max(1.0, float(widths.max(initial=0.0)) / interval)
    moves_at_once = min(_MOVES_AT_ONCE, max(8, round(_ELEMENTS_AT_ONCE / points)))
    return map_on_all_cores(curves, outcomes.blocks(moves_at_once))


def _largest_losses(outcomes: NeighbourOutcomes, cut: float) -> Array:
    """The largest finite |log(p/q)| of each histogram among answers with a probability of at least `cut`."""

    def largest(block: slice) -> Array:
        own, moved, begin = outcomes.pairs(block)
        counts = np.isfinite(own) & np.isfinite(moved) & (np.maximum(own, moved) >= math.log(cut))
        loss = np.subtract(own, moved, out=np.zeros_like(own), where=counts)
        return np.maximum.reduceat(np.abs(loss).max(axis=1), begin)

    return np.concatenate([largest(block) for block in outcomes.blocks(1 << 14)])


def _divergence(log_p: Array, log_q: Array, epsilons: Array) -> Array:
    """Hockey-stick divergences Σ max(0, p − e^ε·q) of rows of log-probabilities, float[rows, epsilons]."""
    p, q = np.exp(log_p), np.exp(log_q)
    both = np.isfinite(log_p) & np.isfinite(log_q)
    loss = np.subtract(log_p, log_q, out=np.zeros_like(p), where=both)
    difference = np.where(both, -p * np.expm1(-loss), p - q)  # p − q, without cancellation
    growth = -np.expm1(epsilons)
    total = np.zeros((len(p), len(epsilons)))
    term = np.empty_like(total)
    for outcome in range(p.shape[1]):
        np.multiply(q[:, outcome, None], growth, out=term)
        term += difference[:, outcome, None]
        np.maximum(term, 0.0, out=term)
        total += term
    return total


def connect_the_dots(curves: Curves) -> Losses:
    """The distributions on the grid whose divergences meet the curves there and are above them in between.

    Algorithm 1 of Doroshenko et al. 2022. Its masses are second differences, linear in δ, and
    δ = max(0, 1 − e^ε) is a unit mass at 0; so with the excess in place of δ no digits are lost to the ones.
    """
    excess = curves.excess()
    rise, step = np.diff(excess, axis=1), math.expm1(curves.interval)
    mass = np.empty_like(excess)
    mass[:, 0] = rise[:, 0] / step - excess[:, 0]
    mass[:, 1:-1] = (rise[:, 1:] - rise[:, :-1]) / step - rise[:, :-1]
    mass[:, -1] = rise[:, -1] / math.expm1(-curves.interval)
    mass[:, mass.shape[1] // 2] += 1.0
    infinite = np.clip(curves.there[:, -1], 0.0, 1.0)
    return Losses(curves.interval, np.maximum(mass, 0.0), infinite, curves.multiplicity)


def losses_epsilon(losses: list[Losses], delta: float) -> float:
    """The smallest ε for which the composition of all the losses is (ε, δ), from above; infinity if none.

    The distributions are tilted by exp(tilt·loss) first, which centres the composition near ε, so that
    rounding errors are relative to δ rather than to 1. A tilt too strong for that is noticed and halved. A share
    of δ is kept back for what rounding is left.
    """
    infinite = -math.expm1(sum(float(part.multiplicity @ np.log1p(-part.infinite)) for part in losses))
    kept_back = infinite + RELATIVE_ERROR * delta
    if kept_back >= delta:
        return math.inf
    tilts = _largest_tilt(losses) * _TILTS
    tilt = float(tilts[np.argmin((_log_moments(losses, tilts) - math.log(delta)) / tilts)])  # of Chernoff's best bound
    for _ in range(20):
        epsilon, noise = _tilted_epsilon(losses, tilt, kept_back, delta)
        if noise <= RELATIVE_ERROR * delta:
            return epsilon
        tilt /= 2
    return math.inf


def _log_moments(losses: list[Losses], tilts: Array) -> Array:
    """log E[exp(tilt·total loss)] at each tilt."""

    def log_moments(part: Losses) -> Array:
        moments: Array = part.mass @ np.exp(np.outer(part.grid(), tilts))
        of_part: Array = part.multiplicity.astype(np.float64) @ np.log(moments)
        return of_part

    total: Array = np.sum(map_on_all_cores(log_moments, losses), axis=0)
    return total


def _largest_tilt(losses: list[Losses]) -> float:
    return _LARGEST_EXPONENT / max(float(part.grid()[-1]) for part in losses)


def _tilted_epsilon(losses: list[Losses], tilt: float, infinite: float, delta: float) -> tuple[float, float]:
    """ε from the composition tilted by `tilt`, and a bound on the rounding error in its δ."""
    from scipy.fft import next_fast_len  # costs 0.1 s: import where used

    interval = losses[0].interval
    log_moment = float(_log_moments(losses, np.array([tilt]))[0])
    lowest, highest = _window(losses, tilt, log_moment)
    size = next_fast_len(highest - lowest + 1, real=True)
    index = np.arange(lowest, lowest + size)
    tilted = np.maximum(_compose(losses, tilt, size)[index % size], 0.0)  # what wraps around only adds
    weight = np.exp(np.minimum(log_moment - tilt * index * interval, 700.0))
    beyond = weight[-1] * math.exp(_LOG_OUTSIDE)  # Chernoff's bound on the mass above the window
    grid = np.multiply(index, interval, dtype=np.float64)
    epsilon = _smallest_epsilon(grid, tilted * weight, infinite + beyond, delta)
    noise = _NOISE * size * math.exp(min(700.0, log_moment - tilt * epsilon)) if epsilon < math.inf else 0.0
    return epsilon, noise


def _window(losses: list[Losses], tilt: float, log_moment: float) -> tuple[int, int]:
    """The grid indices outside which the tilted total loss has a mass below exp(_LOG_OUTSIDE) on each side.

    P(total ≥ x) ≤ E[exp(s·total)]/exp(s·x) for every s > 0, and likewise below; nor can it leave its support.
    """
    interval = losses[0].interval
    support = sum(int(part.multiplicity.sum()) * (part.mass.shape[1] // 2) for part in losses)
    slopes = _largest_tilt(losses) * _TILTS
    above = (_log_moments(losses, tilt + slopes) - log_moment - _LOG_OUTSIDE) / slopes
    below = (_log_moments(losses, tilt - slopes) - log_moment - _LOG_OUTSIDE) / slopes
    highest = min(support, math.ceil(above.min() / interval))
    return min(highest, max(-support, math.floor(-below.min() / interval))), highest


def _compose(losses: list[Losses], tilt: float, size: int) -> Array:
    """The tilted distribution of the total loss, loss i·interval being at index i modulo `size`."""

    step = max(1, _ELEMENTS_AT_ONCE // size)

    def transform(part: Losses) -> NDArray[np.complex128]:
        tilted = part.mass * np.exp(tilt * part.grid())
        tilted /= tilted.sum(axis=1, keepdims=True)
        product = np.ones(size // 2 + 1, dtype=np.complex128)
        for repeats in np.unique(part.multiplicity):
            rows = tilted[part.multiplicity == repeats]
            for i in range(0, len(rows), step):
                product *= np.prod(np.fft.rfft(_wrapped(rows[i : i + step], size), axis=1), axis=0) ** repeats
        return product

    result: Array = np.fft.irfft(np.prod(map_on_all_cores(transform, losses), axis=0), size)
    return result


def _wrapped(rows: Array, size: int) -> Array:
    """Rows over the grid indices −n … n as rows over the indices modulo `size`."""
    n = rows.shape[1] // 2
    turns = -(-rows.shape[1] // size)
    padded = np.zeros((len(rows), turns * size))
    padded[:, : rows.shape[1]] = rows
    return np.roll(padded.reshape(len(rows), turns, size).sum(axis=1), -n, axis=1)


def _smallest_epsilon(grid: Array, mass: Array, infinite: float, delta: float) -> float:
    """The smallest ε ≥ 0 with infinite + Σ_{loss > ε} (1 − e^(ε − loss))·mass ≤ δ."""
    if infinite >= delta:
        return math.inf
    at_least = np.cumsum(mass[::-1])[::-1]
    scaled = np.cumsum((mass * np.exp(-grid))[::-1])[::-1]
    divergence = infinite + np.append(at_least[1:] - np.exp(grid[:-1]) * scaled[1:], 0.0)
    enough = int(np.argmax(divergence <= delta))
    if enough == 0:
        return max(0.0, float(grid[0]))
    return max(0.0, math.log((infinite + at_least[enough] - delta) / scaled[enough]))
