"""MStab and MSamp: the plurality itself, released only where one record could not change it.

Both follow Bassily, Thakkar, Thakurta 2018, "Model-agnostic private learning", which builds on the distance
to instability of Smith and Thakurta 2013. No noise is added to the answer; noise is added to how far the
histogram is from one with another plurality. Where a record could change the plurality the answer is ⊥,
except with probability δ. With Gaussian noise thresholds are several times lower where many queries are asked.
"""

from __future__ import annotations

import math
import os
from abc import abstractmethod
from bisect import bisect_left
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.accounting import _parameters as parameters
from pate.accounting.calculators import compose_advanced
from pate.accounting.composition import Guarantee, LimitedTests, NoisyTest, RepeatedGuarantee, TestLimits
from pate.mechanisms.base import UNANSWERED, Counts, Mechanism, Split, parameter
from pate.mechanisms.noisy_max import argmax_with_random_ties
from pate.noise import Entropy
from pate.noise.integer import DiscreteGaussian, DiscreteLaplace, IntegerNoise

CLEAR_LEAD = 0.75
"""The lead, as a share of the teachers, for which a sampling rate is chosen."""


def plurality_gap(counts: Counts) -> NDArray[np.int64]:
    """Votes between the largest count and the second largest; all votes if there is one class only."""
    votes = np.asarray(counts, dtype=np.int64)
    if votes.shape[1] == 1:
        return votes[:, 0]
    top = np.partition(votes, -2, axis=1)
    return top[:, -1] - top[:, -2]


def stable_moves(gap: ArrayLike, votes_per_record: int = 1) -> NDArray[np.int64]:
    """How many records may change, in any way, while the plurality stays the same; κ = `votes_per_record`.

    d = max(0, ⌈gap/2κ⌉ − 1): d records take at most 2κd from the gap, and 2κd < gap. One record changes the gap by
    at most 2κ, and so d by at most 1. With κ = 1, d + 1 moved votes can close the gap.

    >>> stable_moves([0, 1, 2, 3, 4, 5]).tolist()
    [0, 0, 0, 1, 1, 2]
    """
    per_record = 2 * votes_per_record
    return np.maximum(0, (np.asarray(gap, dtype=np.int64) + per_record - 1) // per_record - 1)


def log_plurality_shares(counts: Counts) -> NDArray[np.float64]:
    """log-probability of each class to be the plurality: uniform among those with the largest count."""
    counts = np.asarray(counts)
    best = counts == counts.max(axis=1, keepdims=True)
    return np.where(best, -np.log(best.sum(axis=1, keepdims=True)), -np.inf)


class StabilityTest(Mechanism):
    """The plurality if a noisy test of the gap passes, else ⊥; ties are broken uniformly at random.

    A tie has gap 0, where the test passes with probability below δ, so how it is broken does not matter for
    the guarantee; drawing at random makes the mechanism treat all classes alike.
    """

    may_decline: ClassVar[bool] = True

    @abstractmethod
    def log_pass(self, gap: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """log-probabilities that a histogram with this gap is answered, and that it is not."""

    def log_outcomes(self, counts: Counts) -> NDArray[np.float64]:
        log_answered, log_declined = self.log_pass(plurality_gap(counts))
        labels = log_plurality_shares(counts) + log_answered[:, None]
        return np.concatenate([labels, log_declined[:, None]], axis=1)

    def gap_needed(self, probability: float) -> int:
        """The smallest gap, in votes, that is answered with at least this probability."""
        parameters.open_probability(probability, "probability")
        upper = 1
        while self._pass_probability(upper) < probability:
            upper *= 2
        return bisect_left(range(upper), probability, key=self._pass_probability)

    def answer_probability(self, n_teachers: int, n_classes: int = 2) -> float:
        return self._pass_probability(n_teachers)

    def teachers_needed(self, probability: float, n_classes: int = 2) -> int | None:
        return max(1, self.gap_needed(probability))

    def _pass_probability(self, gap: int) -> float:
        return float(np.exp(self.log_pass(np.array([gap]))[0][0]))


class _SingleStabilityTest(StabilityTest):
    """One noisy test per query, independent of every other."""

    query_delta: float

    @property
    @abstractmethod
    def noise(self) -> IntegerNoise:
        """The noise on the tested number."""

    @property
    def exact_delta(self) -> float:
        """The probability of an answer where the plurality could change, which is at most `query_delta`."""
        return self._pass_probability(2 * self.votes_per_record)

    @abstractmethod
    def missing_noise(self, gap: ArrayLike) -> NDArray[np.int64]:
        """The smallest noise that passes the test."""

    def release(self, counts: Counts, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        counts = parameters.histograms(counts)
        passed = self.noise.sample((len(counts),), entropy) >= self.missing_noise(plurality_gap(counts))
        return np.where(passed, argmax_with_random_ties(counts, entropy), UNANSWERED)

    def log_pass(self, gap: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return self.noise.log_test(self.missing_noise(gap))

    def noise_draws(self, n_classes: int) -> int:
        return 2  # the test, and one to break a tie

    def describe(self) -> str:
        return "the class with most votes, if its lead is safely large (tested with noise), else nothing (⊥)"


@dataclass(frozen=True)
class _LaplaceStabilityTest(_SingleStabilityTest):
    """A test with Laplace noise; (`epsilon`, `query_delta`)-DP per query."""

    epsilon: float = parameter(parameters.epsilon)
    query_delta: float = parameter(parameters.delta)

    def worst_case(self, max_queries: int, max_answers: int) -> Guarantee:
        max_queries, _ = parameters.limits(max_queries, max_answers)
        return RepeatedGuarantee(self.epsilon, self.exact_delta, max_queries)

    def published_epsilon(self, counts: Counts, delta: float, moments: int = 8) -> float:
        """The cost by simple or advanced composition of (epsilon, query_delta), whichever is less."""
        slack = delta - len(counts) * self.query_delta
        if slack <= 0:
            return math.inf
        advanced = compose_advanced(self.epsilon, self.query_delta, len(counts), slack).epsilon
        return min(advanced, len(counts) * self.epsilon)


@dataclass(frozen=True)
class Subsampling(_SingleStabilityTest):
    """What MSamp's tests share: teachers on Poisson subsamples of the records, and how large those are.

    A record is in each subsample with probability `sampling_rate`, but in at most κ = `votes_per_record` =
    ⌊2·sampling_rate·n_teachers⌋ (at least 1) of them, by a rule local to the record. So κ votes move at most.
    """

    sampling_rate: float | None = None
    n_teachers: int | None = None

    def __post_init__(self) -> None:
        """The number of teachers and the rate are settled: the one that was given, or that of `_largest_rate`."""
        super().__post_init__()
        if self.n_teachers is None:
            raise parameters.ParameterError("n_teachers", None, f"{self.name} has to know the number of teachers")
        object.__setattr__(self, "n_teachers", parameters.teachers(self.n_teachers))
        if self.sampling_rate is None:
            object.__setattr__(self, "sampling_rate", _rate_for(1, self.n_teachers))
            object.__setattr__(self, "sampling_rate", self._largest_rate())
        object.__setattr__(self, "sampling_rate", parameters.probability(self.sampling_rate, "sampling_rate"))

    @property
    def votes_per_record(self) -> int:
        assert self.sampling_rate is not None
        assert self.n_teachers is not None
        return max(1, math.floor(2 * parameters.format_rate(self.sampling_rate) * self.n_teachers))

    def split(self, n_teachers: int) -> Split:
        """Poisson subsamples, a record in at most κ of them."""
        return Split(n_teachers, self.sampling_rate, self.votes_per_record)

    def describe(self) -> str:
        return "the class with most votes of teachers on random subsets, if its lead is safely large, else nothing (⊥)"

    def _largest_rate(self) -> float:
        """The largest rate at which a lead of `CLEAR_LEAD` of the teachers is answered with a probability of 99 %.

        Of public parameters alone. More records make better teachers, but a record then has more votes. If even κ = 1
        is out of reach, that is the rate.
        """
        assert self.n_teachers is not None
        lead, most = math.floor(CLEAR_LEAD * self.n_teachers), max(1, self.n_teachers // 2)

        def too_large(kappa: int) -> bool:
            tried = copy(self)  # without a second `__post_init__`, which leads here
            object.__setattr__(tried, "sampling_rate", _rate_for(kappa, self.n_teachers))
            try:
                return tried._pass_probability(lead) < 0.99
            except ValueError:  # more noise than can be drawn
                return True

        return _rate_for(max(1, bisect_left(range(1, most + 1), True, key=too_large)), self.n_teachers)

    def describe_subsamples(self) -> str:
        """Rate and κ, for people."""
        return f"each teacher sees {self.sampling_rate:.3%} of the records, a record has {self.votes_per_record} votes"

    def answer_probability(self, n_teachers: int, n_classes: int = 2) -> float:
        return replace(self, n_teachers=n_teachers)._pass_probability(n_teachers)

    def teachers_needed(self, probability: float, n_classes: int = 2) -> int | None:
        """The fewest teachers at this sampling rate; more of them may fail again, since κ grows with them.

        The gap needed is proportional to κ, but ⌊2·rate·n⌋ = κ holds for n below (κ + 1)/(2·rate): relative
        to the gap, κ = 1 has the most room. The next few are tried because both are rounded to whole votes.
        """
        assert self.sampling_rate is not None
        rate = parameters.format_rate(self.sampling_rate)
        for kappa in range(1, 9):
            fewest = 1 if kappa == 1 else math.ceil(kappa / (2 * rate))
            most = math.ceil((kappa + 1) / (2 * rate)) - 1
            needed = max(fewest, replace(self, n_teachers=fewest).gap_needed(probability))
            if needed <= most:
                return needed
        return None


def _rate_for(kappa: int, n_teachers: int | None) -> float:
    """Nearly the largest rate with ⌊2·rate·n_teachers⌋ = κ, in four digits; never above 1."""
    assert n_teachers is not None
    exact = (kappa + 0.9) / (2 * n_teachers)
    unit = 10.0 ** (math.floor(math.log10(exact)) - 3)
    return min(1.0, round(math.floor(exact / unit) * unit, 12))


def lecture_sampling_rate(epsilon: float, query_delta: float) -> float:
    """ε/(32·ln(1/δ)), at which ln(n/δ)/rate² teachers are to be had (Smith, Thakurta 2013; n records).

    >>> round(lecture_sampling_rate(1.0, 1e-5), 5)
    0.00271
    """
    rate = parameters.epsilon(epsilon) / (32 * math.log(1 / parameters.delta(query_delta, "query_delta")))
    return min(1.0, rate)


@dataclass(frozen=True)
class MStab(_LaplaceStabilityTest):
    """The plurality if d + Lap(1/epsilon) > ln(1/query_delta)/epsilon, else ⊥; d is `stable_moves`.

    Neighbouring relation: one vote moves. Sensitivity: d changes by at most 1.
    Guarantee: (epsilon, query_delta)-DP per query. Proof for integer noise. If d ≥ 1 on either of two
    neighbours, both have the same unique plurality; then the answer is a function of the test, which is
    epsilon-DP: shifting discrete Laplace noise by 1 costs exactly 1/scale. Otherwise d = 0 on both, ⊥ is
    equally likely, and a label comes with probability P(Z ≥ k), k the least integer above
    ln(1/query_delta)/epsilon: at most exp(−k·epsilon)/(1 + exp(−epsilon)) < query_delta/(1 + exp(−epsilon)).
    That probability is `exact_delta`: no smaller δ holds at this ε, and it is the one that is charged. (k
    would do as well with ≥ in place of >.)
    Source: Bassily, Thakkar, Thakurta 2018, Algorithm 1; Smith, Thakurta 2013, distance to instability.

    Parameters
    ----------
    epsilon : float
        The ε of each query; the noise follows from it.
    query_delta : float
        Most probability of an answer where one record decides it: the δ of each query.
    """

    name: ClassVar[str] = "mstab"
    free_parameter: ClassVar[str | None] = "epsilon"
    free_is_noise: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_noise(1 / self.epsilon, self.epsilon)

    @property
    def noise(self) -> DiscreteLaplace:
        return DiscreteLaplace(1 / self.epsilon)

    def missing_noise(self, gap: ArrayLike) -> NDArray[np.int64]:
        return math.floor(-math.log(self.query_delta) / self.epsilon) + 1 - stable_moves(gap)


@dataclass(frozen=True)
class MSamp(Subsampling, _LaplaceStabilityTest):
    """The plurality if gap + Lap(2κ/epsilon) > 2κ·(1 + ln(1/query_delta)/epsilon), else ⊥.

    For teachers on Poisson subsamples of the records (`Subsampling`), where a record has at most κ =
    `votes_per_record` votes. The rate may be left out: see `Subsampling` for the one that is taken then.

    Neighbouring relation: up to κ votes move. Sensitivity: the gap changes by at most 2κ.
    Guarantee: (epsilon, query_delta)-DP per query. If the gap of either of two neighbours is above 2κ, both
    have the same unique plurality, and the answer is a function of the test, which is epsilon-DP. Otherwise
    ⊥ still has probabilities within exp(epsilon), and a label comes with probability at most `exact_delta` =
    P(Z ≥ k − 2κ), k the least integer above the threshold: below query_delta/(1 + exp(−epsilon/(2κ))).
    Source: Bassily, Thakkar, Thakurta 2018; subsample and aggregate, Smith, Thakurta 2013.

    Parameters
    ----------
    epsilon : float
        The ε of each query; the noise follows from it.
    query_delta : float
        Most probability of an answer where one record decides it: the δ of each query.
    sampling_rate : float, default=None
        Probability of each record to be in a teacher's subsample; by default the largest at which a clear lead,
        of `CLEAR_LEAD` of the teachers, is answered.
    n_teachers : int, default=None
        Number of teachers, which has to be known; a run sets it.
    """

    name: ClassVar[str] = "msamp"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_noise(2 * self.votes_per_record / self.epsilon, self.epsilon)

    @property
    def noise(self) -> DiscreteLaplace:
        return DiscreteLaplace(2 * self.votes_per_record / self.epsilon)

    def missing_noise(self, gap: ArrayLike) -> NDArray[np.int64]:
        threshold = 2 * self.votes_per_record * (1 - math.log(self.query_delta) / self.epsilon)
        return math.floor(threshold) + 1 - np.asarray(gap, dtype=np.int64)

    @property
    def note(self) -> str:
        by_lecture = lecture_sampling_rate(self.epsilon, self.query_delta)
        return f"{self.describe_subsamples()}; by the lecture's rule the rate would be {by_lecture:.3%}"


def check_noise(scale: float, epsilon: float) -> None:
    """Refuse an ε whose noise, of `scale` votes, cannot be drawn."""
    try:
        parameters.noise(scale)
    except parameters.ParameterError as error:
        raise parameters.ParameterError("epsilon", epsilon, f"means noise of {scale:g}: {error.wanted}") from None


_CLIP = 6.0
"""Scores count up to so many noise scales above the threshold: what is clearer still is answered all the same."""


@lru_cache(maxsize=256)
def gaussian_test(sigma: float, bad_answer: float) -> NoisyTest:
    """The test with Gaussian noise that a score of 0 passes with a probability of at most `bad_answer`."""
    noise = DiscreteGaussian(sigma)

    def rare(k: int) -> bool:
        return math.exp(float(noise.log_sf(k))) <= bad_answer

    upper = 1
    while not rare(upper):
        upper *= 2
    threshold = bisect_left(range(upper + 1), True, key=rare)
    return NoisyTest(noise, threshold, threshold + math.ceil(_CLIP * sigma))


@dataclass(frozen=True)
class GaussianMStab(_SingleStabilityTest):
    """The plurality if d + N(0, sigma²) reaches a threshold, else ⊥; d is `stable_moves`: MStab with Gaussian noise.

    The threshold is the least whole number that d = 0 reaches with a probability of at most `query_delta`.

    Neighbouring relation: one record changes, and with it at most `votes_per_record` votes of every query, which is 1.
    Sensitivity: d changes by at most 1; so does min(d, most), which is what is tested.
    Guarantee: of `max_queries` queries, of which at most `max_answers` get a label, chosen adaptively; ε at δ by
    `LimitedTests`. Proof. Call a query bad if d = 0 on both of two neighbours. If it is not, d ≥ 1 on one of them, so
    both have the same unique plurality, and the answer is a function of the test. If it is, ⊥ is equally likely on
    both, and a label comes with probability at most `exact_delta` = b. Answers without a label for a bad query have the
    probabilities of a stream of tests, times (1 − b)^(bad queries), which is the same factor on both sides: for those
    the Rényi bound of the tests holds. All others together have a probability of at most 1 − (1 − b)^max_queries,
    which is charged to δ.

    Source: Bassily, Thakkar, Thakurta 2018, Algorithm 1, with its noise replaced; the accounting is our own.

    Parameters
    ----------
    sigma : float
        Standard deviation of the noise, in votes.
    query_delta : float
        Most probability of an answer where one vote decides it: the δ of each query.
    """

    name: ClassVar[str] = "gaussian_mstab"
    free_parameter: ClassVar[str | None] = "sigma"
    sigma: float = parameter(parameters.noise)
    query_delta: float = parameter(parameters.delta)

    @property
    def test(self) -> NoisyTest:
        """Noise, threshold and the largest score that counts."""
        return gaussian_test(self.sigma, self.query_delta)

    @property
    def noise(self) -> IntegerNoise:
        return self.test.noise

    @property
    def exact_delta(self) -> float:
        return math.exp(float(self.noise.log_sf(self.test.threshold)))

    def missing_noise(self, gap: ArrayLike) -> NDArray[np.int64]:
        return self.test.threshold - np.minimum(stable_moves(gap, self.votes_per_record), self.test.most)

    @property
    def note(self) -> str:
        lead = f"a lead of {self.gap_needed(0.5)} votes is answered every second time"
        return f"Gaussian noise {self.sigma:g}, threshold {self.test.threshold}; {lead}"

    def worst_case(self, max_queries: int, max_answers: int) -> Guarantee:
        max_queries, max_answers = parameters.limits(max_queries, max_answers)
        lost = -math.expm1(max_queries * math.log1p(-self.exact_delta))
        return LimitedTests(self.test, TestLimits(max_queries, max(1, max_answers), max_queries), lost)


@dataclass(frozen=True)
class GaussianMSamp(Subsampling, GaussianMStab):
    """MSamp with Gaussian noise: see `GaussianMStab` and `Subsampling`. d counts records, 2κ votes of gap each.

    Source: Bassily, Thakkar, Thakurta 2018; subsample and aggregate, Smith, Thakurta 2013; the noise is our own.

    Parameters
    ----------
    sigma : float
        Standard deviation of the noise, in records.
    query_delta : float
        Most probability of an answer where one record decides it: the δ of each query.
    sampling_rate : float, default=None
        Probability of each record to be in a teacher's subsample; by default the largest at which a clear lead,
        of `CLEAR_LEAD` of the teachers, is answered.
    n_teachers : int, default=None
        Number of teachers, which has to be known; a run sets it.
    """

    name: ClassVar[str] = "gaussian_msamp"

    @property
    def note(self) -> str:
        return f"{super().note}; {self.describe_subsamples()}"
