"""MStab and MSamp: the plurality itself, released only where one record could not change it.

Both follow Bassily, Thakkar, Thakurta 2018, "Model-agnostic private learning", which builds on the distance
to instability of Smith and Thakurta 2013. No noise is added to the answer; noise is added to how far the
histogram is from one with another plurality. Where a record could change the plurality the answer is ⊥,
except with probability δ.
"""

from __future__ import annotations

import hashlib
import math
import os
from abc import abstractmethod
from bisect import bisect_left
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.accounting import parameters
from pate.accounting.composition import Guarantee, RepeatedGuarantee
from pate.mechanisms.base import UNANSWERED, Counts, Mechanism
from pate.mechanisms.noisy_max import argmax_with_random_ties
from pate.noise.integer import DiscreteLaplace, Entropy

_UNIFORM_BITS = 64  # of hash that decide whether a record is in a subset


def plurality_gap(counts: Counts) -> NDArray[np.int64]:
    """Votes between the largest count and the second largest, or 0 votes if there is one class."""
    votes = np.asarray(counts, dtype=np.int64)
    if votes.shape[1] == 1:
        return votes[:, 0]
    top = np.partition(votes, -2, axis=1)
    return top[:, -1] - top[:, -2]


def stable_moves(gap: ArrayLike) -> NDArray[np.int64]:
    """d = max(0, ⌈gap/2⌉ − 1): how many votes may move, anyhow, while the plurality stays what it is.

    d moves take at most 2d from the gap, and 2d < gap; d + 1 moves can close it. Moving one vote changes d
    by at most 1, while the raw gap changes by up to 2.

    >>> stable_moves([0, 1, 2, 3, 4, 5]).tolist()
    [0, 0, 0, 1, 1, 2]
    """
    return np.maximum(0, (np.asarray(gap, dtype=np.int64) + 1) // 2 - 1)


def log_plurality_shares(counts: Counts) -> NDArray[np.float64]:
    """log-probability of each class to be the plurality: uniform among those with the largest count."""
    counts = np.asarray(counts)
    best = counts == counts.max(axis=1, keepdims=True)
    return np.where(best, -np.log(best.sum(axis=1, keepdims=True)), -np.inf)


class StabilityTest(Mechanism):
    """The plurality if a noisy test of the gap passes, else ⊥; ties are broken uniformly at random.

    A tie has gap 0, where the test passes with probability below δ, so how it is broken is of no account for
    the guarantee; drawing at random keeps the mechanism indifferent to the numbering of the classes.
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

    def answer_probability(self, n_teachers: int) -> float:
        """The probability of an answer when all of `n_teachers` agree: the most that can ever be had."""
        return self._pass_probability(n_teachers)

    def teachers_needed(self, probability: float) -> int | None:
        """The fewest teachers whose unanimous vote is answered with this probability; None if none do."""
        return max(1, self.gap_needed(probability))

    def _pass_probability(self, gap: int) -> float:
        return float(np.exp(self.log_pass(np.array([gap]))[0][0]))


class SingleStabilityTest(StabilityTest):
    """One noisy test a query, independent of every other; (`epsilon`, `query_delta`)-DP a query."""

    epsilon: float
    query_delta: float

    @property
    @abstractmethod
    def noise(self) -> DiscreteLaplace:
        """The noise on the tested number of votes."""

    @property
    @abstractmethod
    def exact_delta(self) -> float:
        """The probability of an answer where the plurality could change, which is below `query_delta`."""

    @abstractmethod
    def missing_noise(self, gap: ArrayLike) -> NDArray[np.int64]:
        """The smallest noise that passes the test."""

    def release(self, counts: Counts, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        counts = parameters.histograms(counts)
        passed = self.noise.sample((len(counts),), entropy) >= self.missing_noise(plurality_gap(counts))
        return np.where(passed, argmax_with_random_ties(counts, entropy), UNANSWERED)

    def log_pass(self, gap: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        missing = self.missing_noise(gap)
        return self.noise.log_sf(missing), self.noise.log_cdf(missing - 1)

    def worst_case(self, asked: int, answered: int) -> Guarantee:
        asked, _ = parameters.limits(asked, answered)
        return RepeatedGuarantee(self.epsilon, self.exact_delta, asked)

    def noise_draws(self, n_classes: int) -> int:
        return 2  # the test, and one to break a tie


@dataclass(frozen=True)
class MStab(SingleStabilityTest):
    """The plurality if d + Lap(1/epsilon) > ln(1/query_delta)/epsilon, else ⊥; d is `stable_moves`.

    Neighbouring relation: one vote moves. Sensitivity: d changes by at most 1.
    Guarantee: (epsilon, query_delta)-DP a query. Proof for integer noise. If d ≥ 1 on either of two
    neighbours, both have the same unique plurality; then the answer is a function of the test, which is
    epsilon-DP: shifting discrete Laplace noise by 1 costs exactly 1/scale. Otherwise d = 0 on both, ⊥ is
    equally likely, and a label comes with probability P(Z ≥ k), k the least integer above
    ln(1/query_delta)/epsilon: at most exp(−k·epsilon)/(1 + exp(−epsilon)) < query_delta/(1 + exp(−epsilon)).
    That probability is `exact_delta`: no smaller δ holds at this ε, and it is the one that is charged. (k
    would do as well with ≥ in place of >.)
    Source: Bassily, Thakkar, Thakurta 2018, Algorithm 1; Smith, Thakurta 2013, distance to instability.
    """

    name: ClassVar[str] = "mstab"
    epsilon: float
    query_delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", parameters.epsilon(self.epsilon))
        object.__setattr__(self, "query_delta", parameters.delta(self.query_delta, "query_delta"))
        check_noise(1 / self.epsilon, self.epsilon)

    @property
    def noise(self) -> DiscreteLaplace:
        return DiscreteLaplace(1 / self.epsilon)

    @property
    def exact_delta(self) -> float:
        return self._pass_probability(0)

    def missing_noise(self, gap: ArrayLike) -> NDArray[np.int64]:
        return math.floor(-math.log(self.query_delta) / self.epsilon) + 1 - stable_moves(gap)


@dataclass(frozen=True)
class MSamp(SingleStabilityTest):
    """The plurality if gap + Lap(2κ/epsilon) > 2κ·(1 + ln(1/query_delta)/epsilon), else ⊥.

    For teachers on Poisson subsamples of the records (`poisson_subsets`), in which one record is in at most
    κ = `votes_per_record` = ⌊2·sampling_rate·n_teachers⌋ (at least 1) of them.

    Neighbouring relation: up to κ votes move. Sensitivity: the gap changes by at most 2κ.
    Guarantee: (epsilon, query_delta)-DP a query. If the gap of either of two neighbours is above 2κ, both
    have the same unique plurality, and the answer is a function of the test, which is epsilon-DP. Otherwise
    ⊥ still has probabilities within exp(epsilon), and a label comes with probability at most `exact_delta` =
    P(Z ≥ k − 2κ), k the least integer above the threshold: below query_delta/(1 + exp(−epsilon/(2κ))).
    Source: Bassily, Thakkar, Thakurta 2018; subsample and aggregate, Smith, Thakurta 2013.
    """

    name: ClassVar[str] = "msamp"
    epsilon: float
    query_delta: float
    sampling_rate: float
    n_teachers: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", parameters.epsilon(self.epsilon))
        object.__setattr__(self, "query_delta", parameters.delta(self.query_delta, "query_delta"))
        object.__setattr__(self, "sampling_rate", parameters.probability(self.sampling_rate, "sampling_rate"))
        object.__setattr__(self, "n_teachers", parameters.teachers(self.n_teachers))
        check_noise(2 * self.votes_per_record / self.epsilon, self.epsilon)

    @property
    def votes_per_record(self) -> int:
        return max(1, math.floor(2 * _as_written(self.sampling_rate) * self.n_teachers))

    @property
    def noise(self) -> DiscreteLaplace:
        return DiscreteLaplace(2 * self.votes_per_record / self.epsilon)

    @property
    def exact_delta(self) -> float:
        return self._pass_probability(2 * self.votes_per_record)

    def missing_noise(self, gap: ArrayLike) -> NDArray[np.int64]:
        threshold = 2 * self.votes_per_record * (1 - math.log(self.query_delta) / self.epsilon)
        return math.floor(threshold) + 1 - np.asarray(gap, dtype=np.int64)

    def answer_probability(self, n_teachers: int) -> float:
        return replace(self, n_teachers=n_teachers)._pass_probability(n_teachers)

    def teachers_needed(self, probability: float) -> int | None:
        """The fewest teachers at this sampling rate; more of them may fail again, since κ grows with them.

        The gap needed is proportional to κ, but ⌊2·rate·n⌋ = κ holds for n below (κ + 1)/(2·rate): relative
        to the gap, κ = 1 has the most room. The next few are tried because both are rounded to whole votes.
        """
        rate = _as_written(self.sampling_rate)
        for kappa in range(1, 9):
            fewest = 1 if kappa == 1 else math.ceil(kappa / (2 * rate))
            most = math.ceil((kappa + 1) / (2 * rate)) - 1
            needed = max(fewest, replace(self, n_teachers=fewest).gap_needed(probability))
            if needed <= most:
                return needed
        return None


def poisson_subsets(record_id: bytes, key: bytes, n_subsets: int, rate: float, kappa: int) -> tuple[int, ...]:
    """The subsets a record is in: each with probability `rate`, independently, but never more than `kappa`.

    A keyed BLAKE2b of the record's own identity gives a number in [0, 2⁶⁴) for each subset; the record is in
    a subset if its number is below rate·2⁶⁴. Of those the `kappa` with the smallest numbers are kept.
    Nothing depends on any other record, so adding, removing or changing one record changes at most `kappa`
    subsets.

    >>> poisson_subsets(b"patient 3", b"secret", n_subsets=100, rate=0.05, kappa=4)
    (28, 93)
    """
    if not 1 <= len(key) <= hashlib.blake2b.MAX_KEY_SIZE:
        raise ValueError(f"the key must have 1 to {hashlib.blake2b.MAX_KEY_SIZE} bytes, not {len(key)}")
    parameters.probability(rate, "rate")
    parameters.teachers(n_subsets, "n_subsets")
    parameters.queries(kappa, "kappa", least=1)
    limit = math.floor(_as_written(rate) * 2**_UNIFORM_BITS)
    numbers = _uniform_numbers(record_id, key, n_subsets)
    inside = sorted((number, subset) for subset, number in enumerate(numbers) if number < limit)
    return tuple(sorted(subset for _, subset in inside[:kappa]))


def _uniform_numbers(record_id: bytes, key: bytes, n: int) -> list[int]:
    """n numbers of 64 bits, eight to a hash; the counter has a fixed width, so no two inputs coincide."""
    stream = b"".join(
        hashlib.blake2b(block.to_bytes(8, "little") + record_id, key=key, person=b"pate-subsets").digest()
        for block in range(-(-n // 8))
    )
    return [int.from_bytes(stream[8 * i : 8 * i + 8], "little") for i in range(n)]


def check_noise(scale: float, epsilon: float) -> None:
    """Refuse an ε whose noise, of `scale` votes, cannot be drawn."""
    try:
        parameters.noise(scale)
    except parameters.ParameterError as error:
        raise parameters.ParameterError("epsilon", epsilon, f"means noise of {scale:g}: {error.wanted}") from None


def _as_written(rate: float) -> Fraction:
    """The decimal the user wrote: 2·0.29·50 is 29, and not the 28.999… of binary floats."""
    return Fraction(repr(float(rate)))
