"""The published privacy bounds of PATE, vectorised over queries and orders.

Two papers are covered:

* 2017: Papernot, Abadi, Erlingsson, Goodfellow, Talwar, "Semi-supervised Knowledge Transfer for Deep
  Learning from Private Training Data", ICLR 2017. LNMax; Theorems 2 and 3, Lemma 4.
* 2018: Papernot, Song, Mironov, Raghunathan, Talwar, Erlingsson, "Scalable Private Learning with PATE",
  ICLR 2018. GNMax and ConfidentGNMax; Theorem 6, Propositions 7 and 10.

All noise here is continuous, as in the papers: Laplace and Gaussian on the real line. The mechanisms of
this library draw integer noise; `pate.accounting.exact` computes their exact cost, from their outcome probabilities.
These bounds are there to reproduce the papers' tables and to check the exact figures from above.

Every data-dependent figure depends on the private votes and is itself private. It bounds the divergence
from the votes at hand to those of a neighbour (the forward direction), for a list of queries that was
fixed without looking at the votes.

Words: `counts` are votes as int[queries, classes]; `scale` is Laplace's b in votes (the 2017 paper's γ is
1/scale); `sigma` is a standard deviation in votes; `order` is the Rényi order α, so that the moments
accountant's λ is α − 1. One record moves one vote from one class to another.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pate.accounting import _parameters as parameters

FloatArray = npt.NDArray[np.float64]

DEFAULT_ORDERS: FloatArray = np.concatenate([np.arange(1.25, 100.0, 0.25), np.geomspace(100.0, 2000.0, 150)])
DEFAULT_ORDERS.setflags(write=False)

_MAX_MOMENTS = 1000


def lnmax_moments(counts: npt.ArrayLike, scale: float, lambda_max: int = 8) -> FloatArray:
    """Bounds on the log moments of LNMax's privacy loss: float[queries, lambda_max].

    Column l − 1 holds moment l. The least of three bounds, with γ = 1/scale (each answer is 2γ-DP):

    * 2γ²·l(l+1), for every data set (2017, Theorem 2);
    * 2γ·l, because the loss never exceeds 2γ;
    * log((1−q)·((1−q)/(1−e^{2γ}q))^l + q·e^{2γl}) with q of Lemma 4 (2017, Theorem 3), which holds where
      q < (e^{2γ}−1)/(e^{4γ}−1) = 1/(e^{2γ}+1). With gaps Δⱼ = c₁ − cⱼ, q is Σ (2 + γΔⱼ) / (4·exp(γΔⱼ)) over the
      other classes, a bound on the probability that LNMax misses the plurality; it may exceed one.

    Moments of independent queries add up.
    """
    lambda_max = parameters.whole(lambda_max, "lambda_max", least=1, most=_MAX_MOMENTS)
    shrunk = _gaps(counts) / parameters.positive(scale, "scale")
    log_q: FloatArray = np.logaddexp.reduce(np.log((2.0 + shrunk) / 4.0) - shrunk, axis=1)
    loss = 2.0 / scale
    moments = np.arange(1, lambda_max + 1, dtype=np.float64)
    bound = np.tile(np.minimum(0.5 * loss**2 * moments * (moments + 1.0), loss * moments), (log_q.size, 1))
    valid = log_q < -np.logaddexp(loss, 0.0)
    column = log_q[valid, np.newaxis]
    log_hit = _log1mexp(column)
    log_kept = log_hit + moments * (log_hit - _log1mexp(column + loss))
    theorem3 = np.maximum(np.logaddexp(log_kept, column + loss * moments), 0.0)
    bound[valid] = np.minimum(bound[valid], theorem3)
    return bound


def lnmax_epsilon(counts: npt.ArrayLike, scale: float, delta: float, lambda_max: int = 8) -> float:
    """Data-dependent ε of LNMax over all queries: min over l of (Σ moments(l) + ln(1/δ)) / l.

    The moments accountant's tail bound (Abadi et al., "Deep Learning with Differential Privacy", CCS 2016,
    Theorem 2), as the 2017 paper uses it. Private: do not publish.

    >>> round(lnmax_epsilon([[250, 0, 0], [240, 10, 0]], scale=20.0, delta=1e-5), 3)
    1.439
    """
    total = lnmax_moments(counts, scale, lambda_max).sum(axis=0)
    moments = np.arange(1, total.size + 1, dtype=np.float64)
    return epsilon_from_rdp(moments + 1.0, total / moments, delta)[0]  # (total + ln(1/δ))/l is RDP's conversion


def gnmax_rdp(counts: npt.ArrayLike, sigma: float, orders: npt.ArrayLike) -> FloatArray:
    """Data-dependent RDP of each GNMax answer: float[queries, orders] (2018, Theorem 6).

    Never more than order/σ², the paper's cost for every data set. Private: do not publish.

    The probability that GNMax misses the plurality is at most Σ ½·erfc((c₁ − cⱼ)/(2σ)) over the other classes
    (Proposition 7), and never more than 1 − 1/classes: the plurality is the likeliest answer.
    """
    from scipy.special import log_ndtr  # costs 0.3 s: import where used

    gaps = _gaps(counts)
    log_tails = log_ndtr(-gaps / (math.sqrt(2.0) * parameters.positive(sigma, "sigma")))
    log_q = np.minimum(np.logaddexp.reduce(log_tails, axis=1), math.log1p(-1.0 / (gaps.shape[1] + 1)))
    return _theorem6(log_q, sigma, parameters.orders(orders))


def threshold_rdp(counts: npt.ArrayLike, threshold: float, sigma1: float, orders: npt.ArrayLike) -> FloatArray:
    """Data-dependent RDP of ConfidentGNMax's noisy test c₁ + N(0, σ₁²) ≥ T: float[queries, orders].

    The largest count moves by at most one vote, so every data set costs at most order/(2σ₁²). The test has
    two outcomes, and Theorem 6 (2018) applies with q the probability of the less likely one. Private: do not
    publish.
    """
    log_pass, log_fail = _log_pass_fail(counts, threshold, sigma1)
    # A Gaussian of sensitivity 1 and deviation σ₁ costs what one of sensitivity √2 and deviation √2·σ₁ costs.
    return _theorem6(np.minimum(log_pass, log_fail), math.sqrt(2.0) * sigma1, parameters.orders(orders))


def confident_gnmax_expected_rdp(
    counts: npt.ArrayLike, threshold: float, sigma1: float, sigma2: float, orders: npt.ArrayLike
) -> FloatArray:
    """Expected RDP of each ConfidentGNMax query as the 2018 authors count it: float[queries, orders].

    The test's cost, plus GNMax's cost times the probability of passing. It is an average over the test's
    noise, good for the papers' tables and for planning; it is not what a given run was charged. Private: do
    not publish.
    """
    log_pass, _ = _log_pass_fail(counts, threshold, sigma1)
    answer = np.exp(log_pass)[:, np.newaxis] * gnmax_rdp(counts, sigma2, orders)
    return threshold_rdp(counts, threshold, sigma1, orders) + answer


def expected_answered(counts: npt.ArrayLike, threshold: float, sigma1: float) -> float:
    """Expected number of queries that pass ConfidentGNMax's noisy test. Private: do not publish."""
    return float(np.exp(_log_pass_fail(counts, threshold, sigma1)[0]).sum())


def epsilon_from_rdp(orders: npt.ArrayLike, rdp: npt.ArrayLike, delta: float) -> tuple[float, float]:
    """The papers' conversion, ε = min over orders of rdp + ln(1/δ)/(order − 1): ε and the order it is met at.

    Mironov, "Rényi Differential Privacy", CSF 2017, Proposition 3. `rdp` is the total over all queries, one
    figure per order.

    >>> epsilon_from_rdp([2.0, 3.0], [0.5, 1.0], delta=math.exp(-2))
    (2.0, 3.0)
    """
    parameters.delta(delta)
    order_values, totals = parameters.orders(orders), np.asarray(rdp, dtype=np.float64)
    if totals.shape != order_values.shape:
        raise ValueError(f"rdp must hold one total per order: {totals.shape} against {order_values.shape}")
    if not np.all(totals >= 0.0):
        raise ValueError("rdp must be neither negative nor NaN")
    epsilons = totals - math.log(delta) / (order_values - 1.0)
    best = int(np.argmin(epsilons))
    return float(epsilons[best]), float(order_values[best])


def _theorem6(log_q: FloatArray, sigma: float, orders: FloatArray) -> FloatArray:
    """2018, Theorem 6 for a mechanism whose RDP is order/σ² on every data set: float[queries, orders].

    The bound depends on the votes through q alone, so each distinct q is computed once: confident teachers
    give the same histogram again and again.

    At Proposition 10's orders μ₂ = σ√(ln 1/q), μ₁ = μ₂ + 1 it is log((1−q)·A^{order−1} + q·B^{order−1}) / (order−1)
    up to μ₁, under three conditions: μ₂ > 1; q ≤ e^{(μ₂−1)ε₂} / (μ₁/(μ₁−1) · μ₂/(μ₂−1))^{μ₂}, the range in which it
    grows with q; and q·e^{ε₂} < 1, so that A is positive.
    """
    distinct, position = np.unique(log_q, return_inverse=True)
    rdp = np.tile(orders / sigma**2, (distinct.size, 1))
    mu2 = sigma * np.sqrt(-distinct)
    safe = np.where(mu2 > 1.0, mu2, 2.0)  # the entries replaced are refused by the first condition anyway
    epsilon2 = safe / sigma**2
    limit = (safe - 1.0) * epsilon2 - safe * (np.log1p(1.0 / safe) + np.log1p(1.0 / (safe - 1.0)))
    valid = (mu2 > 1.0) & (distinct <= limit) & (distinct + epsilon2 < 0.0)

    log_miss, mu2 = distinct[valid], mu2[valid]
    mu1 = mu2 + 1.0
    log_hit = _log1mexp(log_miss)
    log_a = log_hit - _log1mexp((log_miss + mu2 / sigma**2) * (1.0 - 1.0 / mu2))
    log_b = mu1 / sigma**2 - log_miss / mu2  # the root's index μ₁ − 1 is μ₂
    within = orders <= mu1[:, np.newaxis]
    query, column = np.nonzero(within)
    powers = orders[column] - 1.0
    log_sum = np.logaddexp(log_hit[query] + powers * log_a[query], log_miss[query] + powers * log_b[query])
    bound = np.full(within.shape, np.inf)
    bound[within] = np.maximum(log_sum / powers, 0.0)
    rdp[valid] = np.minimum(rdp[valid], bound)
    return np.asarray(rdp[position], dtype=np.float64)


def _log_pass_fail(counts: npt.ArrayLike, threshold: float, sigma1: float) -> tuple[FloatArray, FloatArray]:
    """Log-probabilities that the noisy test passes and that it fails, one per query."""
    from scipy.special import log_ndtr

    parameters.threshold(threshold)
    z = (_votes(counts).max(axis=1) - threshold) / parameters.positive(sigma1, "sigma1")
    return log_ndtr(z), log_ndtr(-z)


def _log1mexp(x: FloatArray) -> FloatArray:
    """log(1 − eˣ) for x < 0, without loss of digits at either end."""
    small = x < -math.log(2.0)
    with np.errstate(divide="ignore"):
        return np.where(small, np.log1p(-np.exp(x)), np.log(-np.expm1(np.where(small, -1.0, x))))


def _gaps(counts: npt.ArrayLike) -> FloatArray:
    """The plurality's lead over every other class: float[queries, classes − 1]."""
    ranked = np.sort(_votes(counts), axis=1)
    return ranked[:, -1:] - ranked[:, :-1]


def _votes(counts: npt.ArrayLike) -> FloatArray:
    votes = parameters.histograms(counts)
    if votes.shape[1] < 2:
        raise parameters.VotesError(f"counts: has shape {votes.shape}; needed are two classes or more")
    return votes.astype(np.float64)
