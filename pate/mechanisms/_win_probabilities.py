"""The probability that each class wins a noisy vote, as an exact sum over the winner's noisy count.

Given the winner's noisy count v, a rival with count c is below v with probability F(v − c − 1) or at v with
probability p(v − c). Ties are shared: the winner's share, E[1/(1 + rivals at v)], is the integral of
∏ (F + t·p) over t in [0, 1]; a polynomial in t, which Gauss–Legendre quadrature integrates exactly. Every
term is positive, so nothing cancels, and each probability, however small, has full relative precision.

The accountant prices a histogram against every histogram one moved vote away, up to 90 of them with 10
classes. Two factors of the product differ between the two, so the product over all classes is computed
once, and each neighbour is a sum of it times two tabulated ratios.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from pate.accounting._parameters import TooWide
from pate.noise.integer import IntegerNoise

Array = NDArray[np.float64]
Indices = NDArray[np.int64]

_LOG_NEGLIGIBLE = -40.0  # terms below exp(−40) of the largest are left out of a sum: less than 1e-13 in all
_MAX_TABULATED = 1 << 21  # numbers in one table
_MAX_NODES = 1500  # of quadrature: a second
_MAX_SUMMED = 1 << 23  # terms of one histogram's sums: seconds, and 64 MB per array
_MOVED_AT_ONCE = 1 << 20
_LARGEST_LOG_RATIO = 100.0  # beyond it a linear-space sum could lose what a moved vote makes large


@lru_cache(maxsize=32)
def legendre_on_unit_interval(n_rivals: int) -> tuple[Array, Array]:
    """Nodes and log-weights that integrate polynomials of degree n_rivals over [0, 1] exactly.

    Refused where finding them takes long: their number cubed, 26 s for 10,000 classes.
    """
    if n_rivals // 2 + 1 > _MAX_NODES:
        raise TooWide(
            f"{n_rivals + 1:,} classes: too many for an exact sum over ties; the cost for every data set needs none"
        )
    nodes, weights = np.polynomial.legendre.leggauss(n_rivals // 2 + 1)
    return (nodes + 1) / 2, np.log(weights / 2)


@dataclass(frozen=True)
class _Tables:
    """Indexed by u = (noisy count of the winner) − (count of a class), from `lowest` on.

    share: log(F(u − 1) + t·p(u)) at each quadrature node t, [nodes, u]: the class does not beat the winner.
    share_fewer, share_more: what the share is multiplied by when the class loses or gains a vote.
    pmf_fewer, pmf_more: what p(u) is multiplied by when the class loses or gains a vote.
    """

    lowest: int
    log_weights: Array
    log_pmf: Array
    share: Array
    share_fewer: Array
    share_more: Array
    pmf_fewer: Array
    pmf_more: Array
    largest_log_ratio: float


@lru_cache(maxsize=4)
def _tables(noise: IntegerNoise, n_classes: int, reach: int) -> _Tables:
    """Tables for |u| ≤ reach."""
    nodes, log_weights = legendre_on_unit_interval(n_classes - 1)
    u = np.arange(-reach - 1, reach + 2)
    log_pmf = noise.log_pmf(u)
    share = np.logaddexp(noise.log_cdf(u - 1), np.log(nodes)[:, None] + log_pmf)
    ratios = np.diff(share, axis=1), np.diff(log_pmf)
    with np.errstate(over="ignore"):  # then the quick path is not taken
        fewer, more = [np.exp(r[..., 1:]) for r in ratios], [np.exp(-r[..., :-1]) for r in ratios]
    return _Tables(
        lowest=-reach,
        log_weights=log_weights,
        log_pmf=log_pmf[1:-1],
        share=share[:, 1:-1],
        share_fewer=fewer[0],
        share_more=more[0],
        pmf_fewer=fewer[1],
        pmf_more=more[1],
        largest_log_ratio=max(float(np.abs(r).max()) for r in ratios),
    )


def _tables_for(noise: IntegerNoise, counts: Indices) -> _Tables:
    spread = int(np.ptp(counts, axis=1).max(initial=0))
    reach = spread + noise.half_width()
    _check_size(noise, (counts.shape[1] // 2 + 1) * 2 * reach, _MAX_TABULATED)
    return _tables(noise, counts.shape[1], reach)


def _check_size(noise: IntegerNoise, size: int, most: int) -> None:
    if size > most:
        raise TooWide(
            f"noise of {noise.scale:g} votes: too wide, with that many votes and classes, for an exact sum; "
            "the cost for every data set needs none"
        )


def log_wins(noise: IntegerNoise, counts: Indices) -> Array:
    """log P(class wins), ties broken uniformly at random, for each histogram and class."""
    tables = _tables_for(noise, counts)
    order = np.argsort(counts, axis=1)
    distinct, where = np.unique(np.take_along_axis(counts, order, axis=1), axis=0, return_inverse=True)
    log_probability = np.empty(distinct.shape)
    for i, row in enumerate(distinct):
        values, group = np.unique(row, return_inverse=True)
        terms, shift, _ = _terms(tables, values, group, noise)
        log_probability[i] = (np.log(terms.sum(axis=(0, 2))) + shift)[group]
    result = np.empty(counts.shape)
    np.put_along_axis(result, order, log_probability[where.reshape(-1)], axis=1)
    return result


def log_wins_after_moves(
    noise: IntegerNoise, counts: Indices, rows: Indices, sources: Indices, targets: Indices
) -> Array | None:
    """log P(class wins) in counts[rows[i]] with one vote moved from class sources[i] to targets[i].

    `rows` is sorted and every source has a vote. None where the noise is so narrow that the linear-space sums
    could underflow; the caller then goes by `log_outcomes`.
    """
    tables = _tables_for(noise, counts)
    if tables.largest_log_ratio > _LARGEST_LOG_RATIO:
        return None
    result = np.empty((len(rows), counts.shape[1]))
    bounds = np.searchsorted(rows, np.arange(len(counts) + 1))
    for row, start, stop in zip(counts, bounds[:-1], bounds[1:], strict=True):
        if start < stop:
            result[start:stop] = _moves_of_one(tables, noise, row, sources[start:stop], targets[start:stop])
    return result


def _moves_of_one(tables: _Tables, noise: IntegerNoise, row: Indices, sources: Indices, targets: Indices) -> Array:
    """log P(class wins) for each move in one histogram; classes with equal counts share the work."""
    values, group = np.unique(row, return_inverse=True)
    source, target = group[sources], group[targets]
    terms, shift, begin = _terms(tables, values, group, noise)
    width = terms.shape[2]
    fewer = _windows(tables.share_fewer, begin, width)
    more = _windows(tables.share_more, begin, width)

    bystander_wins = np.zeros((len(sources), len(values)))
    step = max(1, _MOVED_AT_ONCE // width)
    for t in range(len(terms)):  # what one quadrature node needs fits the cache
        for i in range(0, len(sources), step):
            block = slice(i, i + step)
            bystander_wins[block] += (fewer[t, source[block]] * more[t, target[block]]) @ terms[t].T
    source_wins = terms * _windows(tables.pmf_fewer[None], begin, width) @ more.transpose(0, 2, 1)
    target_wins = terms * _windows(tables.pmf_more[None], begin, width) @ fewer.transpose(0, 2, 1)

    wins = bystander_wins[:, group]
    move = np.arange(len(sources))
    wins[move, sources] = source_wins.sum(axis=0)[source, target]
    wins[move, targets] = target_wins.sum(axis=0)[target, source]
    result: Array = np.log(wins) + shift[group]
    return result


def _terms(tables: _Tables, values: Indices, group: Indices, noise: IntegerNoise) -> tuple[Array, Array, Indices]:
    """The summands of P(a class with this count wins), [nodes, counts, noisy counts]; a count's largest is 1.

    Also the logarithm of that largest, and where in the tables the window of noisy counts that matter begins.
    """
    margin = noise.half_width()
    begin = values[0] - margin - values - tables.lowest
    width = int(values[-1] - values[0]) + 2 * margin + 1
    _check_size(noise, len(tables.log_weights) * len(values) * width, _MAX_SUMMED)
    share = _windows(tables.share, begin, width)
    product = np.einsum("g,tgv->tv", np.bincount(group).astype(np.float64), share)
    log_terms = _windows(tables.log_pmf[None], begin, width) + (product[:, None] - share)
    log_terms += tables.log_weights[:, None, None]
    shift = log_terms.max(axis=(0, 2))
    log_terms -= shift[:, None]
    matters = np.flatnonzero(log_terms.max(axis=(0, 1)) > _LOG_NEGLIGIBLE - 2 * tables.largest_log_ratio)
    first, last = int(matters[0]), int(matters[-1])
    return np.exp(log_terms[:, :, first : last + 1]), shift, begin + first


def _windows(table: Array, begin: Indices, width: int) -> Array:
    """table[:, begin[i] : begin[i] + width] for each i: [nodes, i, width]."""
    windows: Array = sliding_window_view(table, width, axis=1)[:, begin]
    return windows
