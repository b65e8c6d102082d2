"""MStab and MSamp with Gaussian noise: thresholds several times lower where many queries are asked."""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.accounting import parameters
from pate.accounting.composition import Guarantee
from pate.accounting.tight.limited_tests import LimitedTests, NoisyTest, TestLimits
from pate.mechanisms.base import parameter
from pate.mechanisms.stability import RATE_IN_WORDS, SingleStabilityTest, Subsampling, stable_moves
from pate.noise.integer import DiscreteGaussian, IntegerNoise

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


class GaussianStabilityTest(SingleStabilityTest):
    """The plurality if d + N(0, sigma²) reaches a threshold, else ⊥; d is `stable_moves`.

    The threshold is the least whole number that d = 0 reaches with a probability of at most `query_delta`.

    Neighbouring relation: one record changes, and with it at most `votes_per_record` votes of every query.
    Sensitivity: d changes by at most 1; so does min(d, most), which is what is tested.
    Guarantee: of `max_queries` queries, of which at most `max_answers` get a label, chosen adaptively; ε at δ by
    `LimitedTests`. Proof. Call a query bad if d = 0 on both of two neighbours. If it is not, d ≥ 1 on one of them, so
    both have the same unique plurality, and the answer is a function of the test. If it is, ⊥ is equally likely on
    both, and a label comes with probability at most `exact_delta` = b. Answers without a label for a bad query have the
    probabilities of a stream of tests, times (1 − b)^(bad queries), which is the same factor on both sides: for those
    the Rényi bound of the tests holds. All others together have a probability of at most 1 − (1 − b)^max_queries,
    which is charged to δ.
    """

    sigma: float
    may_decline: ClassVar[bool] = True
    free_parameter: ClassVar[str | None] = "sigma"

    def __post_init__(self) -> None:
        object.__setattr__(self, "sigma", parameters.noise(self.sigma, "sigma"))
        object.__setattr__(self, "query_delta", parameters.delta(self.query_delta, "query_delta"))

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

    @abstractmethod
    def describe(self) -> str: ...

    @property
    def note(self) -> str:
        lead = f"a lead of {self.gap_needed(0.5)} votes is answered every second time"
        return f"Gaussian noise {self.sigma:g}, threshold {self.test.threshold}; {lead}"

    def worst_case(self, max_queries: int, max_answers: int) -> Guarantee:
        max_queries, max_answers = parameters.limits(max_queries, max_answers)
        lost = -math.expm1(max_queries * math.log1p(-self.exact_delta))
        return LimitedTests(self.test, TestLimits(max_queries, max(1, max_answers), max_queries), lost)


@dataclass(frozen=True)
class GaussianMStab(GaussianStabilityTest):
    """MStab with Gaussian noise: see `GaussianStabilityTest`. One record is one vote, and d counts votes.

    Source: Bassily, Thakkar, Thakurta 2018, Algorithm 1, with its noise replaced; the accounting is our own.

    Parameters
    ----------
    sigma : float
        Standard deviation of the noise, in votes.
    query_delta : float
        Most probability of an answer where one vote decides it.
    """

    name: ClassVar[str] = "gaussian_mstab"
    sigma: float = parameter("standard deviation of the noise, in votes")
    query_delta: float = parameter("most probability of an answer where one vote decides it")

    def describe(self) -> str:
        return "the class with most votes, if its lead is safely large (tested with noise), else nothing (⊥)"


@dataclass(frozen=True)
class GaussianMSamp(GaussianStabilityTest, Subsampling):
    """MSamp with Gaussian noise: see `GaussianStabilityTest` and `Subsampling`. d counts records, 2κ votes of gap each.

    Source: Bassily, Thakkar, Thakurta 2018; subsample and aggregate, Smith, Thakurta 2013; the noise is our own.

    Parameters
    ----------
    sigma : float
        Standard deviation of the noise, in records.
    query_delta : float
        Most probability of an answer where one record decides it.
    sampling_rate : float, optional
        Probability of each record to be in a subsample; the largest for which κ is 2·sampling_rate·n_teachers
        where left out.
    n_teachers : int, optional
        Number of teachers.
    """

    name: ClassVar[str] = "gaussian_msamp"
    sigma: float = parameter("standard deviation of the noise, in records")
    query_delta: float = parameter("most probability of an answer where one record decides it")
    sampling_rate: float | None = parameter(RATE_IN_WORDS, default=None)
    n_teachers: int | None = parameter("number of teachers", default=None)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_subsampling()

    @property
    def note(self) -> str:
        return f"{super().note}; {self.describe_subsamples()}"

    def describe(self) -> str:
        return "the class with most votes of teachers on random subsets, if its lead is safely large, else nothing (⊥)"
