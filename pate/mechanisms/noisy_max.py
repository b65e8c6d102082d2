"""LNMax and GNMax: the class with the most votes after noise on every count."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from pate.accounting.composition import Orders, gaussian_rdp, randomised_response_rdp
from pate.accounting.worst_case import Cost, WorstCaseGuarantee, argmax_cost
from pate.mechanisms.base import Counts, Mechanism
from pate.mechanisms.noise import DiscreteGaussian, DiscreteLaplace, Entropy, IntegerNoise

_CHUNK_ELEMENTS = 4_000_000  # floats worked on at once


class NoisyMax(Mechanism):
    """argmax(counts + independent integer noise), ties broken uniformly at random."""

    @property
    @abstractmethod
    def noise(self) -> IntegerNoise:
        """The noise on every count."""

    def release(self, counts: Counts, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        noisy = counts + self.noise.sample(counts.shape, entropy)
        return argmax_with_random_ties(noisy, entropy)

    def log_outcomes(self, counts: Counts) -> NDArray[np.float64]:
        """Exact: a sum over the winning noisy count, with ties shared.

        Given the winner's noisy count v, each rival is below v with probability F or at v with probability p.
        The winner's share, E[1/(1 + rivals at v)], is the integral of ∏ (F + t·p) over t in [0, 1]: a polynomial
        in t, which Gauss–Legendre quadrature integrates exactly. Every term is positive, so nothing cancels.
        """
        return _noisy_max_log_outcomes(self.noise, np.asarray(counts))

    def noise_draws(self, n_classes: int) -> int:
        return n_classes + 1  # a draw a class, and one to break a tie


@dataclass(frozen=True)
class LNMax(NoisyMax):
    """argmax(counts + Lap(scale)), Papernot et al. 2017.

    Neighbouring relation: one vote moves. Sensitivity: two counts change by 1 each (L1 = 2).
    Guarantee: the two noisy counts that move are each (1/scale)-DP, with a privacy loss of exactly ±1/scale, as in
    randomised response; the argmax is computed from them and from noise that does not depend on the record. So a
    query costs no more than two rounds of randomised response at 1/scale: (2/scale)-DP, and its Rényi curve.
    `worst_case_rdp` bounds the argmax alone: about half of that, at the orders that matter.
    """

    name: ClassVar[str] = "lnmax"
    scale: float

    def __post_init__(self) -> None:
        DiscreteLaplace(self.scale)

    @property
    def noise(self) -> IntegerNoise:
        return DiscreteLaplace(self.scale)

    def worst_case(self, asked: int, answered: int) -> WorstCaseGuarantee:
        def both_counts(orders: Orders) -> NDArray[np.float64]:
            return 2 * randomised_response_rdp(1 / self.scale, orders)

        return WorstCaseGuarantee.of(argmax_cost(self.noise, asked, both_counts))


@dataclass(frozen=True)
class GNMax(NoisyMax):
    """argmax(counts + N(0, sigma²)), Papernot et al. 2018, with discrete Gaussian noise.

    Neighbouring relation: one vote moves. Sensitivity: L2 = √2 (two counts change by 1 each).
    Guarantee: Rényi DP order/sigma² a query; discrete noise satisfies the continuous bound for integer shifts
    (Canonne, Kamath, Steinke 2020, Theorem 4), and the argmax is post-processing. `worst_case_rdp` bounds the
    argmax alone: about 2/π of that, at the orders that matter.
    """

    name: ClassVar[str] = "gnmax"
    sigma: float

    def __post_init__(self) -> None:
        DiscreteGaussian(self.sigma)

    @property
    def noise(self) -> IntegerNoise:
        return DiscreteGaussian(self.sigma)

    def worst_case(self, asked: int, answered: int) -> WorstCaseGuarantee:
        return WorstCaseGuarantee.of(self.answer_cost(asked))

    def answer_cost(self, times: int) -> Cost:
        """What `times` answers cost."""
        return argmax_cost(self.noise, times, lambda orders: gaussian_rdp(math.sqrt(2), self.sigma, orders))


def argmax_with_random_ties(noisy: NDArray[np.int64], entropy: Entropy) -> NDArray[np.int64]:
    best = noisy == noisy.max(axis=1, keepdims=True)
    winner = best.argmax(axis=1)
    for row in np.flatnonzero(best.sum(axis=1) > 1):
        tied = np.flatnonzero(best[row])
        uniform = int.from_bytes(entropy(16), "little")
        winner[row] = tied[(uniform * len(tied)) >> 128]  # bias below 2⁻¹²⁰
    return winner.astype(np.int64)


@lru_cache(maxsize=32)
def _legendre_on_unit_interval(n_rivals: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and log-weights that integrate polynomials of degree n_rivals over [0, 1] exactly."""
    nodes, weights = np.polynomial.legendre.leggauss(n_rivals // 2 + 1)
    return (nodes + 1) / 2, np.log(weights / 2)


def _noisy_max_log_outcomes(noise: IntegerNoise, counts: Counts) -> NDArray[np.float64]:
    order = np.argsort(counts, axis=1)
    distinct, where = np.unique(np.take_along_axis(counts, order, axis=1), axis=0, return_inverse=True)
    n_classes = counts.shape[1]
    margin = noise.half_width()
    span = int((distinct[:, -1] - distinct[:, 0]).max(initial=0)) + 2 * margin + 1
    nodes = _legendre_on_unit_interval(n_classes - 1)[0]
    rows_at_once = max(1, _CHUNK_ELEMENTS // (span * n_classes * len(nodes)))
    blocks = [
        _log_win_probabilities(noise, distinct[i : i + rows_at_once]) for i in range(0, len(distinct), rows_at_once)
    ]
    result = np.full((len(counts), n_classes + 1), -np.inf)
    if blocks:
        np.put_along_axis(result, order, np.concatenate(blocks)[where.reshape(-1)], axis=1)
    return result


def _log_win_probabilities(noise: IntegerNoise, counts: Counts) -> NDArray[np.float64]:
    """log P(class wins) for each row and class."""
    nodes, log_weights = _legendre_on_unit_interval(counts.shape[1] - 1)
    margin = noise.half_width()
    lowest, highest = int(counts.min()) - margin, int(counts.max()) + margin
    values = np.arange(lowest, highest + 1)
    offsets = np.arange(lowest - int(counts.max()), highest - int(counts.min()) + 1)
    position = values[None, None, :] - counts[:, :, None] - offsets[0]  # rows, classes, values
    log_pmf = noise.log_pmf(offsets)
    below = noise.log_cdf(offsets - 1)
    total = np.full((*counts.shape, len(nodes)), -np.inf)
    for i, (node, log_weight) in enumerate(zip(nodes, log_weights, strict=True)):
        log_share = np.logaddexp(below, np.log(node) + log_pmf)[position]
        rivals = log_share.sum(axis=1, keepdims=True) - log_share
        total[:, :, i] = log_weight + logsumexp(log_pmf[position] + rivals, axis=2)
    result: NDArray[np.float64] = logsumexp(total, axis=2)
    return result
