"""Permute-and-flip: the class with the most votes after one-sided noise on every count."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pate.accounting import parameters
from pate.accounting.composition import PureGuarantee
from pate.accounting.count_release import CountCost, PureChoice
from pate.mechanisms.base import Counts, Mechanism, parameter
from pate.mechanisms.noisy_max import argmax_with_random_ties, never_declined
from pate.mechanisms.win_probabilities import legendre_on_unit_interval
from pate.noise.integer import Entropy, Geometric

_SUMMED = 45.0  # scales beyond the largest count: what is left out has probability exp(−45)


@dataclass(frozen=True)
class PermuteAndFlip(Mechanism):
    """argmax(counts + Exp(scale)) with integer noise, ties broken at random (McKenna, Sheldon 2020).

    With continuous exponential noise this is permute-and-flip, the best way to choose at a pure ε where nothing
    composes. With integer noise and random ties it is a distribution of its own, which `log_outcomes` is of.

    Neighbouring relation: one vote moves (teachers), or one count changes by 1 (a record that votes near itself).
    Sensitivity: two counts by 1, or one.
    Guarantee: one count changed costs 1/scale, pure; a moved vote is two such changes, 2/scale.
    Proof for a count c_j that grows by 1, with q = exp(−1/scale), so that P(G ≥ k) = q^k for k ≥ 0. Fix all noise but
    class i's own. Let M be the largest other noisy count, reached by t of them, and x = M − c_i. Class i wins with
    probability f(x, t) = q^x·(q + (1 − q)/(t + 1)) if x ≥ 0, and 1 if x < 0, where q ≤ q + (1 − q)/(t + 1) ≤ 1.
    For i = j, x falls by 1 and t stays: f grows by at most 1/q, from 0 to −1 too, and never falls. For i ≠ j, either
    nothing changes; or t grows by 1, and f falls to no less than q times itself, both factors lying in [q, 1]; or M
    grows by 1 and j alone reaches it, so that t = 1 from some t ≥ 1, which multiplies f by q or more. So every
    answer's probability changes by a factor between q and 1/q.

    Parameters
    ----------
    scale : float
        Scale of the exponential noise in votes.
    """

    name: ClassVar[str] = "permute_and_flip"
    free_parameter: ClassVar[str | None] = "scale"
    scale: float = parameter("scale of the exponential noise in votes")

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", parameters.noise(self.scale, "scale"))

    @property
    def noise(self) -> Geometric:
        return Geometric(self.scale)

    def release(self, counts: Counts, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        votes = parameters.histograms(counts)
        return argmax_with_random_ties(votes + self.noise.sample(votes.shape, entropy), entropy)

    def log_outcomes(self, counts: Counts) -> NDArray[np.float64]:
        """Exact, ties included: a sum over the winning noisy count, which is no less than the largest count."""
        votes = np.asarray(counts, dtype=np.int64)
        distinct, where = np.unique(votes, axis=0, return_inverse=True)
        return never_declined(np.array([self._log_wins(row) for row in distinct])[where.reshape(-1)])

    def _log_wins(self, row: NDArray[np.int64]) -> NDArray[np.float64]:
        """The rivals' ∏(F + t·p), integrated over t in [0, 1], shares ties; see `win_probabilities`."""
        nodes, log_weights = legendre_on_unit_interval(len(row) - 1)
        above = np.arange(row.max(), row.max() + math.ceil(_SUMMED * self.scale) + 1)[:, None] - row  # [noisy, classes]
        log_power = -above / self.scale
        log_one_less = math.log(-math.expm1(-1 / self.scale))
        not_beaten = np.log1p(-np.exp(log_power) * (1 - nodes[:, None, None] * math.exp(log_one_less)))
        rivals = not_beaten.sum(axis=2, keepdims=True) - not_beaten
        terms = log_weights[:, None, None] + log_one_less + log_power + rivals
        largest = terms.max(axis=(0, 1))
        result: NDArray[np.float64] = largest + np.log(np.exp(terms - largest).sum(axis=(0, 1)))
        return result

    def worst_case(self, max_queries: int, max_answers: int) -> PureGuarantee:
        max_queries, _ = parameters.limits(max_queries, max_answers)
        return PureGuarantee.of(2 / self.scale, max_queries)

    def count_cost(self) -> CountCost:
        return PureChoice(1 / self.scale)

    def noise_draws(self, n_classes: int) -> int:
        return n_classes + 1  # a draw per class, and one to break a tie

    def describe(self) -> str:
        return f"the class with most votes after integer exponential noise of scale {self.scale:g} votes on each"
