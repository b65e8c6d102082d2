"""Smooth sensitivity of the data-dependent cost of GNMax and ConfidentGNMax, at one fixed Rényi order.

The published data-dependent bound (Papernot et al. 2018, "Scalable Private Learning with PATE",
arXiv:1802.08908, Theorem 6 with the orders of Proposition 10) is a function of private votes, so the figure
it gives is private too. Here is what `pate.accounting.sanitise` needs to publish it: the cost itself, and for
d = 0, 1, 2, … a bound on how much one more moved vote can change it anywhere within d moved votes.

Write q for the union bound on the probability that GNMax does not answer the plurality (Proposition 7), and
x = sigma * sqrt(-ln q). With Proposition 10's orders, mu2 = x and mu1 = x + 1, Theorem 6 reads

    (order - 1) * rdp = ln( (1-q)^order * (1 - exp(-(x-1)²/sigma²))^(1-order)
                            + exp((-x² + (order-1)(2x+1)) / sigma²) ),

valid for x > 1, x > order - 1 and sigma² ln((x+1)/(x-1)) <= 2x - 1. docs/proofs.md proves what is used here:

1. the bound, clipped at the data-independent order/sigma², never decreases in q (the paper's condition C5,
   which its code checks numerically): what is sanitised is the published bound, not an envelope of it;
2. the moves that make q least and most form one path each, so d alone says how far they go;
3. one moved vote takes q at most to `one_vote_up`, an explicit curve below the paper's B_U. Its condition C6
   is not needed: the largest step over the range of q that d votes can reach is looked up in a table.

A move takes one vote from one class to another; the number of teachers never changes. Everything that is
returned from counts is private.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.accounting import parameters
from pate.accounting.bounds import theorem6
from pate.accounting.normal import log_ndtr

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_CELLS_PER_VOTE = 128  # resolution of the table of steps; a cell adds less than 1 % to a step
_MAX_CELLS = 2**18


@dataclass(frozen=True)
class PrivateCost:
    """The data-dependent cost of the labels released so far, and how much it may change.

    `rdp` and `local_sensitivity` depend on the votes: they are private, and left out of the printed form.
    `local_sensitivity[d]` bounds the change of `rdp` by one record, from any data within d records of these.
    `worst_case_rdp` holds for every data set and is public.
    """

    order: float
    smallest_sigma: float
    worst_case_rdp: float
    rdp: float = field(repr=False)
    local_sensitivity: Floats = field(repr=False)

    def __post_init__(self) -> None:
        parameters.order(self.order)
        parameters.positive(self.smallest_sigma, "smallest_sigma")
        parameters.number(self.worst_case_rdp, "worst_case_rdp", least=0)

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


def gnmax_cost(counts: ArrayLike, sigma: float, order: float) -> PrivateCost:
    """Cost of one GNMax answer to every row of `counts`, int[queries, classes]."""
    votes = parameters.votes(counts, "counts")
    sigma, order = parameters.noise(sigma, "sigma"), parameters.order(order)
    return PrivateCost(
        order=order,
        smallest_sigma=sigma,
        worst_case_rdp=len(votes) * order / sigma**2,
        rdp=float(gnmax_rdp(votes, sigma, order).sum()),
        local_sensitivity=gnmax_local_sensitivity(votes, sigma, order).sum(axis=0),
    )


def confident_gnmax_cost(
    counts: ArrayLike, answered: ArrayLike, threshold: float, sigma1: float, sigma2: float, order: float
) -> PrivateCost:
    """Realised cost of ConfidentGNMax: every query pays the threshold test, answered ones pay GNMax too.

    Which queries were `answered` (bool[queries]) is released output, so the cost may be conditioned on it.
    """
    votes = parameters.votes(counts, "counts")
    mask = np.asarray(answered)
    if mask.dtype != np.bool_ or mask.shape != votes.shape[:1]:
        raise ValueError(f"answered must be bool[{len(votes)}], not {mask.dtype}{list(mask.shape)}")
    sigma1, sigma2 = parameters.noise(sigma1, "sigma1"), parameters.noise(sigma2, "sigma2")
    threshold, order = parameters.threshold(threshold), parameters.order(order)
    labels = gnmax_cost(votes[mask], sigma2, order) if mask.any() else None
    tests = threshold_rdp(votes, threshold, sigma1, order).sum()
    ladder = threshold_local_sensitivity(votes, threshold, sigma1, order).sum(axis=0)
    return PrivateCost(
        order=order,
        smallest_sigma=min(sigma1, sigma2),
        worst_case_rdp=len(votes) * order / (2 * sigma1**2) + (labels.worst_case_rdp if labels else 0.0),
        rdp=float(tests) + (labels.rdp if labels else 0.0),
        local_sensitivity=ladder + (labels.local_sensitivity if labels else 0.0),
    )


# The published bound at one order, as a function of ln q.


def rdp_from_log_q(log_q: ArrayLike, sigma: float, order: float) -> Floats:
    """Theorem 6 with Proposition 10 of Papernot et al. 2018 at one order, clipped at order / sigma².

    `log_q` is the logarithm of a bound on the probability of all outcomes but one. Non-decreasing in it. For
    the threshold test pass sqrt(2) * sigma1: its input moves by one vote, not by sqrt(2) in L2.
    """
    parameters.order(order)
    parameters.positive(sigma, "sigma")
    bounded = -np.clip(-np.asarray(log_q, dtype=np.float64), 0.0, 1e9)  # finite; a smaller q costs no more
    return theorem6(bounded.ravel(), sigma, np.array([order]))[:, 0].reshape(bounded.shape)


def gnmax_log_q(counts: ArrayLike, sigma: float) -> Floats:
    """ln of Proposition 7's union bound, the sum of erfc((c1 - cj) / (2 sigma)) / 2 over the rest; no cap."""
    ordered = -np.sort(-np.atleast_2d(np.asarray(counts)), axis=1)
    # Same operations as in `_log_sum`: equal histograms must give equal bits, the bound has a jump.
    return np.asarray(np.logaddexp.reduce(log_ndtr(-_shift(sigma) * (ordered[:, :1] - ordered[:, 1:])), axis=1))


def gnmax_rdp(counts: ArrayLike, sigma: float, order: float) -> Floats:
    """Data-dependent RDP of one GNMax answer, for each row of `counts`; q is capped at 1 - 1/classes."""
    log_q = gnmax_log_q(counts, sigma)
    return _capped_rdp(log_q, sigma, order, np.atleast_2d(np.asarray(counts)).shape[1])


def threshold_rdp(counts: ArrayLike, threshold: float, sigma1: float, order: float) -> Floats:
    """Data-dependent RDP of ConfidentGNMax's test max(counts) + N(0, sigma1²) >= threshold, for each row."""
    return _threshold_rdp_of_top(np.max(np.atleast_2d(np.asarray(counts)), axis=1), threshold, sigma1, order)


def _threshold_rdp_of_top(top: NDArray[Any], threshold: float, sigma1: float, order: float) -> Floats:
    log_q = log_ndtr(-np.abs(threshold - top) / sigma1)  # the less likely of pass and fail
    return rdp_from_log_q(log_q, np.sqrt(2.0) * sigma1, order)


def _capped_rdp(log_q: ArrayLike, sigma: float, order: float, n_classes: int) -> Floats:
    return rdp_from_log_q(np.minimum(log_q, np.log1p(-1 / n_classes)), sigma, order)


# Local sensitivity at every distance.


def threshold_local_sensitivity(counts: ArrayLike, threshold: float, sigma1: float, order: float) -> Floats:
    """float[queries, n_teachers + 1]: largest change of `threshold_rdp` by one vote within d moved votes.

    The test depends on the largest count alone, which d votes move by at most d. The steps of the curve over
    that window bound the change (exactly, unless a tie stops the largest count short of the window's end).
    """
    votes = parameters.votes(counts, "counts")
    n_teachers = int(votes[0].sum())
    least = -(-n_teachers // votes.shape[1])  # pigeonhole
    curve = _threshold_rdp_of_top(np.arange(least, n_teachers + 1), threshold, sigma1, order)
    steps = np.append(np.abs(np.diff(curve)), 0.0)  # steps[i]: between i and i + 1 votes above the least
    tops, row_of = np.unique(votes.max(axis=1), return_inverse=True)
    distance = np.arange(n_teachers + 1)
    first = np.clip(tops[:, None] - distance - 1 - least, 0, len(steps) - 1)
    last = np.clip(tops[:, None] + distance - least, 0, len(steps) - 1)
    return np.asarray(_RangeMaximum(steps)(first, last)[row_of.reshape(-1)])


def gnmax_local_sensitivity(counts: ArrayLike, sigma: float, order: float) -> Floats:
    """float[queries, n_teachers + 1]: bound on the change of `gnmax_rdp` by one vote within d moved votes.

    Of two histograms one vote apart, one of them within d votes of `counts`, the one with the smaller q has q
    between the least within d + 1 votes and the most within d votes; the step from there is bounded by
    `one_vote_up`. At d = 0 both neighbours that matter are known, and the smaller of the two bounds stands.
    """
    votes = -np.sort(-parameters.votes(counts, "counts"), axis=1)
    histograms, row_of = np.unique(votes, axis=0, return_inverse=True)
    n_teachers, n_classes = int(histograms[0].sum()), histograms.shape[1]
    least = least_log_q(histograms, sigma)
    most = most_log_q(histograms, sigma)
    table = _StepTable(sigma, order, n_teachers, n_classes)
    ladder = table.largest_step(least[:, 1:], most[:, :-1])
    cost = [_capped_rdp(log_q, sigma, order, n_classes) for log_q in (least[:, 1], least[:, 0], most[:, 1])]
    ladder[:, 0] = np.minimum(ladder[:, 0], np.maximum(cost[2] - cost[1], cost[1] - cost[0]))
    return np.asarray(ladder[row_of.reshape(-1)])


def least_log_q(ordered: Ints, sigma: float) -> Floats:
    """float[rows, n_teachers + 2]: least ln q within d moved votes of each row.

    `ordered` holds each row's counts from the largest down. The least is reached by moving d votes to the
    plurality, each from the class that is the largest of the rest by then.
    """
    top, rest = ordered[:, :1].copy(), ordered[:, 1:].copy()
    rows = np.arange(len(ordered))
    log_tail = _log_tail(sigma, int(ordered[0].sum()))
    found = [_log_sum(log_tail, top, rest)]
    while len(found) < len(log_tail) + 1 and rest.any():
        last_of_largest = np.count_nonzero(rest == rest[:, :1], axis=1) - 1  # keeps the rest sorted
        taken = (rest[:, 0] > 0).astype(rest.dtype)
        rest[rows, last_of_largest] -= taken
        top[:, 0] += taken
        found.append(_log_sum(log_tail, top, rest))
    found.extend([found[-1]] * (len(log_tail) + 1 - len(found)))
    return np.stack(found, axis=1)


def most_log_q(ordered: Ints, sigma: float) -> Floats:
    """float[rows, n_teachers + 2]: bound on ln q within d moved votes of each row, ordered as above.

    While 2d is at most the gap it is the maximum, reached by moving d votes from the plurality to the
    runner-up; from there on it is infinite, that is, the cap on q applies.
    """
    log_tail = _log_tail(sigma, int(ordered[0].sum()))
    gap = ordered[:, 0] - ordered[:, 1]
    found = np.full((len(ordered), len(log_tail) + 1), np.inf)
    for distance in range(int(gap.max()) // 2 + 1):
        able = 2 * distance <= gap
        moved = ordered[able].copy()
        moved[:, 0] -= distance
        moved[:, 1] += distance
        found[able, distance] = _log_sum(log_tail, moved[:, :1], moved[:, 1:])
    return found


def one_vote_up(threshold: Floats, sigma: float, n_classes: int) -> tuple[Floats, Floats]:
    """(ln q, ln B(q)): one moved vote takes a histogram's q to B(q) at most.

    A move shrinks one gap by two votes and the others by one at most. Over all gaps of the same q, the result
    is largest, as in the Neyman-Pearson lemma, where all likelihood ratios are equal. The curve's parameter
    is the gap that shrinks by two, in standard deviations of the difference of two noises.
    """
    shift = _shift(sigma)
    others = 2 * threshold - 1.5 * shift
    fixed = np.log(n_classes - 2) if n_classes > 2 else -np.inf
    log_q = np.logaddexp(log_ndtr(-threshold), fixed + log_ndtr(-others))
    return log_q, np.logaddexp(log_ndtr(2 * shift - threshold), fixed + log_ndtr(shift - others))


class _StepTable:
    """Largest step of the GNMax cost by one vote, over any interval of ln q; a public table."""

    def __init__(self, sigma: float, order: float, n_teachers: int, n_classes: int) -> None:
        cells = min(_CELLS_PER_VOTE * max(n_teachers, 2), _MAX_CELLS)
        # From q >= (n_classes - 1) / 2, which no histogram exceeds, down to q of a unanimous vote or below.
        place = np.linspace(0.0, max(n_teachers, 2) * _shift(sigma), cells + 1)
        log_q, log_up = one_vote_up(place, sigma, n_classes)
        low = _capped_rdp(log_q[1:], sigma, order, n_classes)
        high = _capped_rdp(log_up[:-1], sigma, order, n_classes)
        self._ascending = -log_q
        self._maximum = _RangeMaximum(np.maximum(high - low, 0.0))  # cell i: between place i and i + 1

    def largest_step(self, log_q_least: Floats, log_q_most: Floats) -> Floats:
        """Bound on the step up by one vote from any q in [least, most]; a cell to spare at either end."""
        last_cell = len(self._ascending) - 2
        first = np.searchsorted(self._ascending, -log_q_most, side="right") - 2
        last = np.searchsorted(self._ascending, -log_q_least, side="left")
        return self._maximum(np.clip(first, 0, last_cell), np.clip(last, 0, last_cell))


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


def _shift(sigma: float) -> float:
    """One vote in standard deviations of the difference of two noises."""
    return float(1 / (np.sqrt(2.0) * sigma))


def _log_tail(sigma: float, n_teachers: int) -> Floats:
    """ln of erfc(gap / (2 sigma)) / 2 for gap = 0 … n_teachers."""
    return log_ndtr(-_shift(sigma) * np.arange(n_teachers + 1))


def _log_sum(log_tail: Floats, top: Ints, rest: Ints) -> Floats:
    return np.asarray(np.logaddexp.reduce(log_tail[top - rest], axis=1))
