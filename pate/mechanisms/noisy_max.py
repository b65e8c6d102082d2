"""LNMax and GNMax: the class with the most votes after noise on every count."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pate.accounting import parameters
from pate.accounting.composition import Orders, gaussian_rdp, randomised_response_rdp
from pate.accounting.worst_case import Cost, WorstCaseGuarantee, argmax_cost
from pate.mechanisms.base import Counts, Mechanism
from pate.mechanisms.win_probabilities import Indices, log_wins, log_wins_after_moves, move_votes
from pate.noise.integer import DiscreteGaussian, DiscreteLaplace, Entropy, IntegerNoise


class NoisyMax(Mechanism):
    """argmax(counts + independent integer noise), ties broken uniformly at random."""

    @property
    @abstractmethod
    def noise(self) -> IntegerNoise:
        """The noise on every count."""

    def release(self, counts: Counts, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        votes = parameters.histograms(counts)
        noisy = votes + self.noise.sample(votes.shape, entropy)
        return argmax_with_random_ties(noisy, entropy)

    def log_outcomes(self, counts: Counts) -> NDArray[np.float64]:
        """Exact, ties included: a sum over the winning noisy count (see `win_probabilities`)."""
        return _never_declined(log_wins(self.noise, np.asarray(counts, dtype=np.int64)))

    def log_outcomes_after_moves(
        self, counts: Counts, rows: Indices, sources: Indices, targets: Indices
    ) -> NDArray[np.float64]:
        """`log_outcomes` of counts[rows[i]] with a vote moved from sources[i] to targets[i], quicker.

        `rows` is sorted and every source has a vote.
        """
        votes = np.asarray(counts, dtype=np.int64)
        wins = log_wins_after_moves(self.noise, votes, rows, sources, targets)
        if wins is None:
            return self.log_outcomes(move_votes(votes, rows, sources, targets))
        return _never_declined(wins)

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
        object.__setattr__(self, "scale", parameters.noise(self.scale, "scale"))

    @property
    def noise(self) -> IntegerNoise:
        return DiscreteLaplace(self.scale)

    def worst_case(self, asked: int, answered: int) -> WorstCaseGuarantee:
        asked, _ = parameters.limits(asked, answered)

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
        object.__setattr__(self, "sigma", parameters.noise(self.sigma, "sigma"))

    @property
    def noise(self) -> IntegerNoise:
        return DiscreteGaussian(self.sigma)

    def worst_case(self, asked: int, answered: int) -> WorstCaseGuarantee:
        asked, _ = parameters.limits(asked, answered)
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


def _never_declined(log_labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """With a last column for ⊥, which has probability 0."""
    return np.pad(log_labels, ((0, 0), (0, 1)), constant_values=-np.inf)
