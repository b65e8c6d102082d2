"""Rényi divergences of many pairs of distributions at many orders."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pate.accounting.composition import Orders

Array = NDArray[np.float64]

_LARGEST_EXPONENT = 600.0
_SMALLEST_MOMENT = 1e-200


def renyi_divergences(log_p: Array, log_q: Array, orders: Orders) -> Array:
    """D_order(P ‖ Q) of each pair of rows of log-probabilities, float[rows, orders]."""
    return worst_divergences(log_p, log_q, np.arange(len(log_p)), orders)


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
    result[:, lost] = _careful_log_moment(log_p[lost], loss[lost], a)
    return result


def _careful_log_moment(log_p: Array, loss: Array, a: Array) -> Array:
    """The log moment, summed term by term in logarithms: slower, and safe where terms cancel."""
    exponents = log_p.T[:, None] + loss.T[:, None] * a[:, None]  # outcomes, a, rows
    largest = exponents.max(axis=0)
    result: Array = largest + np.log(np.exp(exponents - largest).sum(axis=0))
    return result


def _octave(a: Array) -> int:
    """The number of places after which `a` has doubled, all along; its length if there is no such number."""
    step = int(np.argmax(a > 1.999 * a[:1])) if len(a) else 0
    doubles = step > 0 and np.allclose(a[step:], 2 * a[:-step], rtol=1e-11, atol=0)
    return step if doubles else max(1, len(a))
