"""The exact data-dependent cost of a list of queries, for any mechanism.

A query's cost is the largest divergence between its histogram and any histogram one moved vote away. Each direction
(from the histogram to its neighbour, and back) is composed over the queries on its own, and the larger one counts: a
data set and its neighbour are the same two throughout. The list of queries must not depend on the votes. What comes
out depends on the private votes and is itself private.

*As Rényi divergences*, which add up. *As privacy loss distributions*, without the slack of the Rényi conversion. One
query: the hockey-stick divergences δ(ε) between a histogram and its neighbours, the largest at each ε. A maximum of
convex curves is convex, so it is the curve of a pair of distributions that dominates them all, and compositions of
dominating pairs dominate the composition (Zhu, Dong, Wang 2022). The pair is rounded up to a grid of losses by
"Connect the Dots" (Doroshenko et al. 2022, Algorithm 1). Many queries: a product of Fourier transforms. All rounding
is upwards, except that of floating point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from pate.accounting import _parameters as parameters
from pate.accounting import map_on_all_cores
from pate.accounting.composition import Orders, epsilon_by_order, rdp_epsilon
from pate.errors import ConfigError

Counts = NDArray[np.integer]
"""Vote histograms, int[queries, classes]; each row sums to the number of teachers."""

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_ROWS_AT_ONCE = 128


class Answering(Protocol):
    """All that the exact accountant has to know of a mechanism; `pate.mechanisms.Mechanism` says what each means."""

    name: ClassVar[str]
    priced_as_stream: ClassVar[bool]

    @property
    def votes_per_record(self) -> int: ...

    def log_outcomes(self, counts: Counts) -> NDArray[np.float64]: ...


@dataclass(frozen=True)
class NeighbourOutcomes:
    """Log-probabilities of the answers to distinct histograms and to all their neighbours.

    own: of distinct histogram i, [distinct, outcomes].
    moved: of its neighbours, [moves, outcomes], those of histogram i being first[i] … first[i + 1] − 1, with
        the labels in the same order as in own[i].
    where: the distinct histogram of each query, [queries].
    """

    own: Array
    moved: Array
    first: Indices
    where: Indices

    def blocks(self, moves_at_once: int) -> list[slice]:
        """The distinct histograms in blocks with about `moves_at_once` neighbours each."""
        n_blocks = max(1, round(len(self.moved) / moves_at_once))
        edges = np.searchsorted(self.first, np.linspace(0, len(self.moved), n_blocks + 1))
        edges[0], edges[-1] = 0, len(self.own)
        return [slice(int(a), int(b)) for a, b in pairwise(edges) if a < b]

    def pairs(self, block: slice) -> tuple[Array, Array, Indices]:
        """own (repeated for each neighbour), moved, and where each histogram's neighbours begin.

        A histogram without neighbours is paired with itself, which costs nothing.
        """
        moves = np.diff(self.first[block.start : block.stop + 1])
        lonely = np.flatnonzero(moves == 0)
        begin = self.first[block.start : block.stop] - self.first[block.start]
        moved = self.moved[self.first[block.start] : self.first[block.stop]]
        moved = np.insert(moved, begin[lonely], self.own[block][lonely], axis=0)
        moves = np.maximum(moves, 1)
        return np.repeat(self.own[block], moves, axis=0), moved, np.cumsum(moves) - moves


def neighbour_outcomes(mechanism: Answering, counts: Counts) -> NeighbourOutcomes:
    """The outcomes of every distinct histogram and of each histogram one moved vote away.

    Histograms equal up to a permutation of the labels are one: a mechanism treats all labels alike. So are
    the moves between classes of the same two counts. Where a mechanism offers `log_outcomes_after_moves`, the
    neighbours come from there; `log_outcomes` alone is enough.
    """
    if mechanism.votes_per_record != 1:
        raise ConfigError(
            f"mechanism.name = {mechanism.name!r}: one record moves {mechanism.votes_per_record} votes; "
            "the exact accountant takes mechanisms where it moves 1, so charge the worst case instead"
        )
    if mechanism.priced_as_stream:
        raise ConfigError(
            f"mechanism.name = {mechanism.name!r}: its queries share secret noise, so their costs do not add up; "
            "charge the whole stream instead"
        )
    votes = parameters.histograms(counts, "votes")
    if len(votes) == 0:
        raise parameters.VotesError(
            f"votes: the shape is {votes.shape}; needed is (queries, classes), with at least one query"
        )
    histograms, where = np.unique(np.sort(votes, axis=1), axis=0, return_inverse=True)
    rows, sources, targets = distinct_moves(histograms)
    first = np.searchsorted(rows, np.arange(len(histograms) + 1))

    def outcomes(block: slice) -> tuple[Array, Array]:
        part = histograms[block]
        moves = slice(first[block.start], first[block.stop])
        move = rows[moves] - block.start, sources[moves], targets[moves]
        quick = getattr(mechanism, "log_outcomes_after_moves", None)
        moved = mechanism.log_outcomes(move_votes(part, *move)) if quick is None else quick(part, *move)
        return mechanism.log_outcomes(part), moved

    steps = range(0, len(histograms), _ROWS_AT_ONCE)
    blocks = [slice(i, min(i + _ROWS_AT_ONCE, len(histograms))) for i in steps]
    own, moved = zip(*map_on_all_cores(outcomes, blocks), strict=True)
    return NeighbourOutcomes(np.concatenate(own), np.concatenate(moved), first, where.reshape(-1))


def move_votes(counts: Indices, rows: Indices, sources: Indices, targets: Indices) -> Indices:
    """counts[rows[i]] with one vote moved from class sources[i] to targets[i], for each i.

    >>> move_votes(np.array([[3, 0, 1]]), np.array([0, 0]), np.array([0, 2]), np.array([1, 0])).tolist()
    [[2, 1, 1], [4, 0, 0]]
    """
    moved = counts[rows]
    move = np.arange(len(rows))
    moved[move, sources] -= 1
    moved[move, targets] += 1
    return moved


def distinct_moves(histograms: Indices) -> tuple[Indices, Indices, Indices]:
    """Row, source and target of every moved vote in sorted histograms; moves between the same counts once.

    >>> [indices.tolist() for indices in distinct_moves(np.array([[0, 2, 2]]))]
    [[0, 0], [1, 1], [0, 2]]
    """
    fresh = np.ones(histograms.shape, dtype=bool)
    fresh[:, 1:] = histograms[:, 1:] != histograms[:, :-1]
    last = np.ones(histograms.shape, dtype=bool)
    last[:, :-1] = fresh[:, 1:]
    another = ~np.eye(histograms.shape[1], dtype=bool)
    rows, sources, targets = np.nonzero((fresh & (histograms > 0))[:, :, None] & last[:, None, :] & another)
    return rows, sources, targets


_LARGEST_EXPONENT = 600.0
_SMALLEST_MOMENT = 1e-200


def worst_divergences(log_p: Array, log_q: Array, begin: NDArray[np.int64], orders: Orders) -> Array:
    """The largest D_order(P ‖ Q) among the rows begin[i] … begin[i + 1] − 1, float[len(begin), orders].

    With a = order − 1 and L = log(p/q), exp(a·D) = Σ p·exp(aL) = 1 + Σ [p·(exp(aL) − 1) + a·(q − p)], since
    Σ p = Σ q = 1. Each bracket is ≥ 0 and of second order in L: what rounding leaves of Σ p − Σ q does not
    show in the result, however small it is. Quickest where a doubles after a fixed number of orders.
    """
    possible = np.any(np.isfinite(log_p) | np.isfinite(log_q), axis=0)
    log_p, log_q = log_p[:, possible], log_q[:, possible]
    loss = np.subtract(log_p, log_q, out=np.zeros_like(log_p), where=np.isfinite(log_p) & np.isfinite(log_q))
    a = np.asarray(orders, dtype=np.float64) - 1
    small = a * loss.max(initial=0.0) <= _LARGEST_EXPONENT
    excess = np.maximum.reduceat(_excess(log_p, log_q, loss, a[small]), begin, axis=1)
    moment = np.empty((len(a), len(begin)))
    moment[small] = np.log1p(np.maximum(excess, 0.0))
    moment[~small] = np.maximum.reduceat(_log_moment(log_p, loss, a[~small]), begin, axis=1)
    impossible = np.any(np.isfinite(log_p) & ~np.isfinite(log_q), axis=1)
    moment[:, np.logical_or.reduceat(impossible, begin)] = np.inf
    return np.maximum(moment.T, 0.0) / a


def _excess(log_p: Array, log_q: Array, loss: Array, a: Array) -> Array:
    """Σ p·exp(aL) − 1, float[a, rows]; from one octave to the next by expm1(2x) = expm1(x)·(expm1(x) + 2)."""
    p = np.exp(log_p)
    balance = np.where(p > 0, p * np.expm1(-loss), np.exp(log_q)).sum(axis=1)  # Σ q − Σ p
    total = np.outer(a, balance)
    term, step = np.empty_like(total), _octave(a)
    for outcome in range(p.shape[1]):
        np.expm1(np.outer(a[:step], loss[:, outcome]), out=term[:step])
        for i in range(step, len(a), step):
            here = term[i : i + step]
            half = term[i - step : i][: len(here)]
            np.add(half, 2.0, out=here)
            here *= half
        term *= p[:, outcome]
        total += term
    return total


def _log_moment(log_p: Array, loss: Array, a: Array) -> Array:
    """log Σ p·exp(aL), float[a, rows], where exp(aL) overflows; squared from octave to octave."""
    p, largest = np.exp(log_p), loss.max(axis=1)
    total = np.zeros((len(a), len(p)))
    term, step = np.empty_like(total), _octave(a)
    for outcome in range(p.shape[1]):
        np.exp(np.outer(a[:step], loss[:, outcome] - largest), out=term[:step])
        for i in range(step, len(a), step):
            here = term[i : i + step]
            np.square(term[i - step : i][: len(here)], out=here)
        term *= p[:, outcome]
        total += term
    with np.errstate(divide="ignore"):
        result: Array = np.log(total) + np.outer(a, largest)
    lost = np.any(total < _SMALLEST_MOMENT, axis=0)
    if lost.any():  # terms may cancel: sum these in logarithms, which is slower
        exponents = log_p[lost].T[:, None] + loss[lost].T[:, None] * a[:, None]  # outcomes, a, rows
        most = exponents.max(axis=0)
        result[:, lost] = most + np.log(np.exp(exponents - most).sum(axis=0))
    return result


def _octave(a: Array) -> int:
    """The number of places after which `a` has doubled, all along; its length if there is no such number."""
    step = int(np.argmax(a > 1.999 * a[:1])) if len(a) else 0
    doubles = step > 0 and np.allclose(a[step:], 2 * a[:-step], rtol=1e-11, atol=0)
    return step if doubles else max(1, len(a))


RELATIVE_ERROR = 2e-3
"""The grid of losses is fine enough when halving its interval changes ε by no more than this."""

_CUT_SHARE = 1e-6  # of δ, for losses beyond the grid, which count as infinite
_LOG_OUTSIDE = math.log(1e-15)  # tilted mass outside the Fourier window
_NOISE = 1e-15  # rounding error of one point of a Fourier transform of a distribution
_TILTS = np.geomspace(1e-8, 0.5, 100)  # as shares of the largest that floating point allows
_CURVED_AT_ONCE = 512
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
class _Losses:
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
        curves = _worst_curves(outcomes, interval, cut)
        epsilon = _composed_epsilon(curves, delta)
        coarse = _composed_epsilon([c.coarser() for c in curves], delta)
        if (
            math.isinf(epsilon)
            or interval < 4 * finest
            or abs(coarse - epsilon) <= RELATIVE_ERROR * max(epsilon, visible)
        ):
            break
        interval /= 4
    return epsilon


def _composed_epsilon(curves: list[Curves], delta: float) -> float:
    """ε of the composition, the larger direction's."""
    forward = losses_epsilon([connect_the_dots(c) for c in curves], delta)
    return max(forward, losses_epsilon([connect_the_dots(c.reversed()) for c in curves], delta))


def _worst_curves(outcomes: NeighbourOutcomes, interval: float, cut: float) -> list[Curves]:
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
    moves_at_once = min(_CURVED_AT_ONCE, max(8, round(_ELEMENTS_AT_ONCE / points)))
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


def connect_the_dots(curves: Curves) -> _Losses:
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
    return _Losses(curves.interval, np.maximum(mass, 0.0), infinite, curves.multiplicity)


def losses_epsilon(losses: list[_Losses], delta: float) -> float:
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


def _log_moments(losses: list[_Losses], tilts: Array) -> Array:
    """log E[exp(tilt·total loss)] at each tilt."""

    def log_moments(part: _Losses) -> Array:
        moments: Array = part.mass @ np.exp(np.outer(part.grid(), tilts))
        of_part: Array = part.multiplicity.astype(np.float64) @ np.log(moments)
        return of_part

    total: Array = np.sum(map_on_all_cores(log_moments, losses), axis=0)
    return total


def _largest_tilt(losses: list[_Losses]) -> float:
    return _LARGEST_EXPONENT / max(float(part.grid()[-1]) for part in losses)


def _tilted_epsilon(losses: list[_Losses], tilt: float, infinite: float, delta: float) -> tuple[float, float]:
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


def _window(losses: list[_Losses], tilt: float, log_moment: float) -> tuple[int, int]:
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


def _compose(losses: list[_Losses], tilt: float, size: int) -> Array:
    """The tilted distribution of the total loss, loss i·interval being at index i modulo `size`."""

    step = max(1, _ELEMENTS_AT_ONCE // size)

    def transform(part: _Losses) -> NDArray[np.complex128]:
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


EXACT_ORDERS: Orders = 1 + 2.0 ** (np.arange(-200, 341) / 20)
"""Rényi orders, 20 per octave up to 1.3e5. Twice as many, and ten times the range, move ε by < 0.05 %."""

_MOVES_AT_ONCE = 256


@dataclass(frozen=True)
class ExactCost:
    """Exact Rényi divergences of each query from its worst neighbour, float[queries, orders].

    forward: D(histogram ‖ neighbour), backward: D(neighbour ‖ histogram); the worst neighbour of each order
    and direction on its own. Infinite where one of the two may give an answer that the other never gives.
    """

    orders: Orders
    forward: Array
    backward: Array

    def epsilon(self, delta: float) -> float:
        """ε of all the queries together: the larger direction's."""
        parameters.delta(delta)
        totals = self.forward.sum(axis=0), self.backward.sum(axis=0)
        return max(rdp_epsilon(self.orders, total, delta)[0] for total in totals)

    def cumulative_epsilon(self, delta: float) -> Array:
        """ε of the first query, the first two, … and of all, float[queries]."""
        parameters.delta(delta)
        totals = np.cumsum(self.forward, axis=0), np.cumsum(self.backward, axis=0)
        by_order = (epsilon_by_order(self.orders, total, delta) for total in totals)
        return np.maximum(*(epsilons.min(axis=1) for epsilons in by_order)).clip(min=0.0)


@dataclass(frozen=True)
class ExactEpsilon:
    """ε by Rényi composition and by privacy loss distributions; both hold, so the smaller stands."""

    rdp: float
    pld: float
    rdp_after: Array = field(default_factory=lambda: np.empty(0), compare=False, repr=False)
    """ε of the first query, the first two, …, by Rényi composition."""

    @property
    def epsilon(self) -> float:
        """The smaller of the two."""
        return min(self.rdp, self.pld)


def exact_cost(mechanism: Answering, counts: Counts, orders: Orders = EXACT_ORDERS) -> ExactCost:
    """The exact Rényi cost of each query, at each order.

    Neighbouring relation: one vote moves. `counts` are private, and so is the result.
    """
    return _cost(neighbour_outcomes(mechanism, counts), parameters.orders(orders))


def exact_epsilon(mechanism: Answering, counts: Counts, delta: float) -> ExactEpsilon:
    """ε of all the queries together at `delta`, by both ways of composing exact costs.

    Neighbouring relation: one vote moves.

    Parameters
    ----------
    mechanism : Mechanism
        One whose record moves one vote, and whose queries share no noise.
    counts : int[queries, classes]
        Vote histograms, each with the votes of the same teachers; private, and so is the result.
    delta : float
        The δ of all the queries together.

    >>> from pate import LNMax
    >>> unanimous = np.tile([250, 0, 0], (100, 1))  # 100 queries on which all of 250 teachers agree
    >>> exact_epsilon(LNMax(20), unanimous, delta=1e-5).epsilon < 0.1
    True
    """
    parameters.delta(delta)
    outcomes = neighbour_outcomes(mechanism, parameters.votes(counts))
    cost = _cost(outcomes, EXACT_ORDERS)
    rdp = cost.epsilon(delta)
    try:
        pld = pld_epsilon(outcomes, delta, guess=rdp)
    except (ValueError, OverflowError):  # noise far below one vote: losses of hundreds, beyond floating point
        pld = math.inf
    return ExactEpsilon(rdp=rdp, pld=pld, rdp_after=cost.cumulative_epsilon(delta))


def _cost(outcomes: NeighbourOutcomes, orders: Orders) -> ExactCost:
    def worst(block: slice) -> tuple[Array, Array]:
        own, moved, begin = outcomes.pairs(block)
        return worst_divergences(own, moved, begin, orders), worst_divergences(moved, own, begin, orders)

    forward, backward = zip(*map_on_all_cores(worst, outcomes.blocks(_MOVES_AT_ONCE)), strict=True)
    where = outcomes.where
    return ExactCost(orders, np.concatenate(forward)[where], np.concatenate(backward)[where])
