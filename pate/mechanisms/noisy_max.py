"""The class with the most votes after noise on every count: LNMax, GNMax, permute-and-flip; or all noisy counts."""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from pate.accounting import _parameters as parameters
from pate.accounting import published_bounds
from pate.accounting.composition import Orders, PureGuarantee, gaussian_rdp, randomised_response_rdp
from pate.accounting.exact import move_votes
from pate.accounting.sanitise import PrivateCost, answers_cost, realised_cost
from pate.accounting.worst_case import (
    QueryCost,
    Question,
    WorstCaseGuarantee,
    argmax_cost,
    confident_cost,
    confident_price,
    threshold_test_cost,
    threshold_test_rdp,
    worst_case_rdp,
)
from pate.errors import ConfigError
from pate.mechanisms._cell_costs import CountCost, GaussianCount, PureChoice, PureCount
from pate.mechanisms._win_probabilities import Indices, legendre_on_unit_interval, log_wins, log_wins_after_moves
from pate.mechanisms.base import UNANSWERED, Counts, Mechanism, parameter
from pate.noise import Entropy
from pate.noise.integer import DiscreteGaussian, DiscreteLaplace, Geometric, IntegerNoise

_FINE = 200.0  # votes; wider noise is scaled down to this for a probability
_SUMMED = 45.0  # scales beyond the largest count: what is left out has probability exp(−45)


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

    def noise_draws(self, n_classes: int) -> int:
        return n_classes + 1  # a draw per class, and one to break a tie


class SymmetricNoisyMax(NoisyMax):
    """A noisy argmax whose noise is symmetric: what an answer costs, exactly and by its gap, is known."""

    has_sanitised_cost: ClassVar[bool] = True

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

    def sanitised_cost(self, counts: Counts, answered: NDArray[np.bool_], order: float) -> PrivateCost:
        if not self.has_sanitised_cost:
            return super().sanitised_cost(counts, answered, order)
        return answers_cost(counts, self.noise, order)

    def answer_probability(self, n_teachers: int, n_classes: int = 2) -> float:
        """For wide noise in coarser units, right to one vote in 200, since only the ratio of votes to noise matters."""
        factor = max(1.0, self.noise.scale / _FINE)
        noise = type(self.noise)(self.noise.scale / factor)
        unanimous = np.zeros((1, n_classes), dtype=np.int64)
        unanimous[0, 0] = round(min(n_teachers / factor, 2.0 * noise.half_width()))  # beyond, it is sure
        return float(np.exp(log_wins(noise, unanimous)[0, 0]))


@dataclass(frozen=True)
class LNMax(SymmetricNoisyMax):
    """argmax(counts + Lap(scale)), Papernot et al. 2017.

    Neighbouring relation: one vote moves. Sensitivity: two counts change by 1 each (L1 = 2).
    Guarantee: the two noisy counts that move are each (1/scale)-DP, with a privacy loss of exactly ±1/scale, as in
    randomised response; the argmax is computed from them and from noise that does not depend on the record. So a
    query costs no more than two rounds of randomised response at 1/scale: (2/scale)-DP, and its Rényi curve.
    `worst_case_rdp` bounds the argmax alone: about half of that, at the orders that matter.

    Parameters
    ----------
    scale : float
        Scale b of the Laplace noise on each count, in votes; the 2017 paper's γ is 1/scale.
    """

    name: ClassVar[str] = "lnmax"
    free_parameter: ClassVar[str | None] = "scale"
    scale: float = parameter(parameters.noise)

    @property
    def noise(self) -> IntegerNoise:
        return DiscreteLaplace(self.scale)

    def worst_case(self, max_queries: int, max_answers: int) -> WorstCaseGuarantee:
        max_queries, _ = parameters.limits(max_queries, max_answers)

        def both_counts(orders: Orders) -> NDArray[np.float64]:
            return 2 * randomised_response_rdp(1 / self.scale, orders)

        return WorstCaseGuarantee.of(argmax_cost(self.noise, max_queries, both_counts))

    def count_cost(self) -> CountCost:
        """The cost of the noisy count itself; the argmax is computed from it."""
        return PureCount(1 / self.scale)

    def published_epsilon(self, counts: Counts, delta: float, moments: int = 8) -> float:
        """Papernot et al. 2017, Theorems 2 and 3; the paper took 8 moments."""
        return published_bounds.lnmax_epsilon(counts, self.scale, delta, moments)

    def describe(self) -> str:
        return f"the class with most votes after integer Laplace noise of scale {self.scale:g} votes on each"


@dataclass(frozen=True)
class GNMax(SymmetricNoisyMax):
    """argmax(counts + N(0, sigma²)), Papernot et al. 2018, with discrete Gaussian noise.

    Neighbouring relation: one vote moves. Sensitivity: L2 = √2 (two counts change by 1 each).
    Guarantee: Rényi DP order/sigma² per query; discrete noise satisfies the continuous bound for integer shifts
    (Canonne, Kamath, Steinke 2020, Theorem 4), and the argmax is post-processing. `worst_case_rdp` bounds the
    argmax alone: about 2/π of that, at the orders that matter.

    Parameters
    ----------
    sigma : float
        Standard deviation of the noise on each count, in votes.
    """

    name: ClassVar[str] = "gnmax"
    free_parameter: ClassVar[str | None] = "sigma"
    sigma: float = parameter(parameters.noise)

    @property
    def noise(self) -> IntegerNoise:
        return DiscreteGaussian(self.sigma)

    def worst_case(self, max_queries: int, max_answers: int) -> WorstCaseGuarantee:
        max_queries, _ = parameters.limits(max_queries, max_answers)
        return WorstCaseGuarantee.of(self.answer_cost(max_queries))

    def count_cost(self) -> CountCost:
        """The cost of the noisy count itself. The argmax alone costs less, how much less depends on the rivals."""
        return GaussianCount(self.sigma)

    def published_rdp(self, counts: Counts, orders: Orders) -> NDArray[np.float64]:
        """Papernot et al. 2018, Theorem 6 and Proposition 10."""
        return published_bounds.gnmax_rdp(counts, self.sigma, orders)

    def describe(self) -> str:
        return (
            f"the class with most votes after integer Gaussian noise of standard deviation {self.sigma:g} votes on each"
        )

    def answer_cost(self, times: int) -> QueryCost:
        """What `times` answers cost."""
        return argmax_cost(self.noise, times, lambda orders: gaussian_rdp(math.sqrt(2), self.sigma, orders))


@dataclass(frozen=True)
class Histogram(LNMax):
    """counts + Lap(scale), all of them, zeros too.

    Neighbouring relation: one vote moves (teachers), or one count changes by 1 (a record that votes near itself).
    Sensitivity: two counts by 1, or one.
    Guarantee: each changed count costs 1/scale, pure: its noisy value's privacy loss is exactly ±1/scale, and the
    other values do not depend on the record. A moved vote is two changed counts, 2/scale. Anything that is made
    of the noisy counts, the label with most of them or a posterior, costs nothing more.

    Parameters
    ----------
    scale : float
        Scale b of the Laplace noise on each count, in votes.
    """

    name: ClassVar[str] = "histogram"
    releases_counts: ClassVar[bool] = True
    has_sanitised_cost: ClassVar[bool] = False  # that of LNMax is for the argmax alone

    def release_counts(self, counts: Counts, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        """All noisy counts, [cells, classes]."""
        votes = parameters.histograms(counts)
        return votes + self.noise.sample(votes.shape, entropy)

    def worst_case(self, max_queries: int, max_answers: int) -> PureGuarantee:  # type: ignore[override]
        max_queries, _ = parameters.limits(max_queries, max_answers)
        return PureGuarantee.of(2 / self.scale, max_queries)

    def describe(self) -> str:
        return f"all counts of votes, each with integer Laplace noise of scale {self.scale:g} votes"


@dataclass(frozen=True)
class PermuteAndFlip(NoisyMax):
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
        Scale of the exponential noise on each count, in votes.
    """

    name: ClassVar[str] = "permute_and_flip"
    free_parameter: ClassVar[str | None] = "scale"
    scale: float = parameter(parameters.noise)

    @property
    def noise(self) -> Geometric:
        return Geometric(self.scale)

    def log_outcomes(self, counts: Counts) -> NDArray[np.float64]:
        """Exact, ties included: a sum over the winning noisy count, which is no less than the largest count."""
        votes = np.asarray(counts, dtype=np.int64)
        distinct, where = np.unique(votes, axis=0, return_inverse=True)
        return _never_declined(np.array([self._log_wins(row) for row in distinct])[where.reshape(-1)])

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

    def describe(self) -> str:
        return f"the class with most votes after integer exponential noise of scale {self.scale:g} votes on each"


def argmax_with_random_ties(noisy: NDArray[np.int64], entropy: Entropy) -> NDArray[np.int64]:
    """The class with the largest count in each row; ties are broken uniformly at random."""
    best = noisy == noisy.max(axis=1, keepdims=True)
    winner = best.argmax(axis=1)
    for row in np.flatnonzero(best.sum(axis=1) > 1):
        tied = np.flatnonzero(best[row])
        uniform = int.from_bytes(entropy(16), "little")
        winner[row] = tied[(uniform * len(tied)) >> 128]  # bias below 2⁻¹²⁰
    return winner.astype(np.int64)


def _never_declined(log_labels: NDArray[np.float64]) -> NDArray[np.float64]:
    """The outcomes with a last column for ⊥, which has probability 0."""
    return np.pad(log_labels, ((0, 0), (0, 1)), constant_values=-np.inf)


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
    threshold: float = parameter(parameters.threshold)
    sigma1: float = parameter(parameters.noise)
    sigma2: float = parameter(parameters.noise)
    n_teachers: int | None = parameter(parameters.teachers, default=None, repr=False)

    def release(self, counts: Counts, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        counts = parameters.histograms(counts)
        if self.n_teachers is not None and (counts.sum(axis=1) != self.n_teachers).any():  # which the cost is for
            raise parameters.VotesError(f"counts: a row does not hold the votes of {self.n_teachers:,} teachers")
        noisy_max = counts.max(axis=1) + DiscreteGaussian(self.sigma1).sample((len(counts),), entropy)
        labels = np.full(len(counts), UNANSWERED, dtype=np.int64)
        confident = noisy_max >= self.threshold
        if confident.any():
            labels[confident] = GNMax(self.sigma2).release(counts[confident], entropy)
        return labels

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
        votes = np.asarray(largest, dtype=np.int64)  # differences of unsigned numbers are never below 0
        return DiscreteGaussian(self.sigma1).log_test(math.ceil(self.threshold) - votes)

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
            noises = DiscreteGaussian(self.sigma1), DiscreteGaussian(self.sigma2)
            return threshold_test_rdp(noises[0], order), worst_case_rdp(noises[1], order)
        return confident_price(self._question(self.n_teachers), order, max_queries, max_answers)

    def _question(self, n_teachers: int) -> Question:
        noises = DiscreteGaussian(self.sigma1), DiscreteGaussian(self.sigma2)
        return Question(*noises, self.threshold, n_teachers)

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
