"""ConfidentGNMax: answer only where the teachers agree."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pate.accounting import _parameters as parameters
from pate.accounting import published_bounds
from pate.accounting._neighbours_of_histogram import move_votes
from pate.accounting.composition import gaussian_rdp
from pate.accounting.sanitise import PrivateCost, realised_cost
from pate.accounting.tight._margins import Question, log_test
from pate.accounting.worst_case import (
    WorstCaseGuarantee,
    confident_cost,
    confident_price,
    threshold_test_cost,
    threshold_test_rdp,
    worst_case_rdp,
)
from pate.errors import ConfigError
from pate.mechanisms._win_probabilities import Indices
from pate.mechanisms.base import UNANSWERED, Counts, Mechanism, parameter
from pate.mechanisms.noisy_max import GNMax
from pate.noise.integer import DiscreteGaussian, Entropy


@dataclass(frozen=True)
class ConfidentGNMax(Mechanism):
    """If max(counts) + N(0, sigma1²) ≥ threshold then GNMax(sigma2), else ⊥; Papernot et al. 2018.

    Neighbouring relation: one vote moves. Sensitivity: 1 for the largest count, L2 = √2 for the vector.
    Guarantee: Rényi DP order/(2·sigma1²) for every query asked, and order/sigma2² more for every one answered.
    The limits on both are fixed beforehand; whatever order the answers come in, the composed cost at each Rényi
    order never exceeds the cost of the limits. `threshold_test_rdp` and `worst_case_rdp` are tighter still, and where
    `n_teachers` is known so is what both cost together, `confident_price`: no histogram has the worst of both.

    Parameters
    ----------
    threshold : float
        Votes that the noisy largest count needs for an answer; about 70 % of the teachers is usual.
    sigma1 : float
        Standard deviation of the noise on the test, in votes.
    sigma2 : float
        Standard deviation of the noise on each count of an answer, in votes.
    n_teachers : int, default=None
        Number of votes in every histogram; where it is given, test and answer together cost less.
    """

    name: ClassVar[str] = "confident_gnmax"
    may_decline: ClassVar[bool] = True
    has_sanitised_cost: ClassVar[bool] = True
    free_parameter: ClassVar[str | None] = "sigma2"
    threshold: float = parameter("votes the noisy plurality needs")
    sigma1: float = parameter("noise of the test, a standard deviation in votes")
    sigma2: float = parameter("noise of the answer, a standard deviation in votes")
    n_teachers: int | None = parameter("number of votes in every histogram", default=None, repr=False)

    def __post_init__(self) -> None:
        if self.n_teachers is not None:
            object.__setattr__(self, "n_teachers", parameters.teachers(self.n_teachers))
        object.__setattr__(self, "threshold", parameters.threshold(self.threshold))
        for name in ("sigma1", "sigma2"):
            object.__setattr__(self, name, parameters.noise(getattr(self, name), name))

    def release(self, counts: Counts, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        counts = self._counted(counts)
        noisy_max = counts.max(axis=1) + DiscreteGaussian(self.sigma1).sample((len(counts),), entropy)
        labels = np.full(len(counts), UNANSWERED, dtype=np.int64)
        confident = noisy_max >= self.threshold
        if confident.any():
            labels[confident] = GNMax(self.sigma2).release(counts[confident], entropy)
        return labels

    def _counted(self, counts: Counts) -> NDArray[np.int64]:
        """The histograms, each with as many votes as the cost was computed for."""
        votes = parameters.histograms(counts)
        if self.n_teachers is not None and (votes.sum(axis=1) != self.n_teachers).any():
            raise parameters.VotesError(f"counts: a row does not hold the votes of {self.n_teachers:,} teachers")
        return votes

    def log_outcomes(self, counts: Counts) -> NDArray[np.float64]:
        return self._behind_test(counts.max(axis=1), GNMax(self.sigma2).log_outcomes(counts))

    def log_outcomes_after_moves(
        self, counts: Counts, rows: Indices, sources: Indices, targets: Indices
    ) -> NDArray[np.float64]:
        """`log_outcomes` of counts[rows[i]] with a vote moved from sources[i] to targets[i], quicker."""
        votes = np.asarray(counts, dtype=np.int64)
        labels = GNMax(self.sigma2).log_outcomes_after_moves(votes, rows, sources, targets)
        return self._behind_test(move_votes(votes, rows, sources, targets).max(axis=1), labels)

    def _behind_test(self, largest: NDArray[np.integer], labels: NDArray[np.float64]) -> NDArray[np.float64]:
        """The outcomes where `labels` are released only if the largest count passes the noisy test."""
        log_passed, log_declined = self.log_test(largest)
        outcomes = labels + log_passed[:, None]
        outcomes[:, -1] = log_declined
        return outcomes

    def log_test(self, largest: NDArray[np.integer]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """log-probabilities that a largest count passes the noisy test, and that it does not."""
        return log_test(DiscreteGaussian(self.sigma1), self.threshold, largest)

    def worst_case(self, max_queries: int, max_answers: int) -> WorstCaseGuarantee:
        max_queries, max_answers = parameters.limits(max_queries, max_answers)
        tests = threshold_test_cost(
            DiscreteGaussian(self.sigma1), max_queries, lambda orders: gaussian_rdp(1.0, self.sigma1, orders)
        )
        answers = GNMax(self.sigma2).answer_cost(max_answers)
        if self.n_teachers is None:
            return WorstCaseGuarantee.of(tests, answers)
        return WorstCaseGuarantee.of(
            confident_cost(self._question(self.n_teachers), max_queries, max_answers, tests, answers)
        )

    def rdp_per_query(self, order: float, max_queries: int = 1, max_answers: int = 1) -> tuple[float, float]:
        if self.n_teachers is None:
            return threshold_test_rdp(DiscreteGaussian(self.sigma1), order), worst_case_rdp(
                DiscreteGaussian(self.sigma2), order
            )
        return confident_price(self._question(self.n_teachers), order, max_queries, max_answers)

    def _question(self, n_teachers: int) -> Question:
        return Question(DiscreteGaussian(self.sigma1), DiscreteGaussian(self.sigma2), self.threshold, n_teachers)

    def noise_draws(self, n_classes: int) -> int:
        return n_classes + 2

    def published_rdp(self, counts: Counts, orders: NDArray[np.float64]) -> NDArray[np.float64]:
        """Papernot et al. 2018, as their program counts it: an answer by the probability that there is one."""
        return published_bounds.confident_gnmax_expected_rdp(counts, self.threshold, self.sigma1, self.sigma2, orders)

    def sanitised_cost(self, counts: Counts, answered: NDArray[np.bool_], order: float) -> PrivateCost:
        noises = DiscreteGaussian(self.sigma1), DiscreteGaussian(self.sigma2)
        return realised_cost(counts, answered, self.threshold, *noises, order)

    def check(self, max_queries: int, delta: float, n_teachers: int) -> None:
        if n_teachers and self.threshold > n_teachers + self.sigma1:  # Papernot et al. 2018 have 300 of 250, σ₁ 200
            raise ConfigError(
                f"mechanism.threshold = {self.threshold:g}: more votes than the {n_teachers} teachers have, so even if "
                f"all agree an answer is luck, 1 time in 6 or less; about {round(0.7 * n_teachers)} is usual"
            )

    def expected_answered(self, counts: Counts) -> float:
        return float(np.exp(self.log_test(counts.max(axis=1))[0]).sum())

    def answer_probability(self, n_teachers: int, n_classes: int = 2) -> float:
        largest = np.array([min(n_teachers, 2 * parameters.MAX_VOTES)])
        passes = float(np.exp(self.log_test(largest)[0][0]))
        return passes * GNMax(self.sigma2).answer_probability(n_teachers, n_classes)

    @property
    def title(self) -> str:
        return "Confident-GNMax"

    def describe(self) -> str:
        return (
            f"nothing (⊥) unless the largest count, with Gaussian noise of standard deviation {self.sigma1:g} votes, "
            f"reaches {self.threshold:g}; else the class with most votes after Gaussian noise of standard deviation "
            f"{self.sigma2:g} votes"
        )
