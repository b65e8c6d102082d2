"""MSvec: many stable queries for the price of a few unstable ones, with the least noise that a named ε needs."""

from __future__ import annotations

import math
import os
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.accounting import _parameters as parameters
from pate.accounting.composition import (
    SAMPLER_SHARES,
    Guarantee,
    LimitedTests,
    NoisyTest,
    RepeatedGuarantee,
    TestLimits,
)
from pate.errors import BudgetExceeded, ConfigError
from pate.mechanisms.base import FEW_QUERIES, UNANSWERED, Counts, Stream, parameter
from pate.mechanisms.noisy_max import argmax_with_random_ties
from pate.mechanisms.stability import (
    StabilityTest,
    check_noise,
    gaussian_test,
    plurality_gap,
    stable_moves,
)
from pate.noise import MAX_NOISE, MIN_NOISE, Entropy
from pate.noise.integer import DiscreteLaplace, IntegerNoise

_BAD_SHARES = (0.5, 0.9, 0.99)  # of δ, for answers that one vote decides; the rest is for composition
_PRECISE = 1.001  # how near a search comes to the least noise


@dataclass(frozen=True)
class Design:
    """Noise and threshold of a stream; with noise on the threshold too it is the sparse vector of the textbooks."""

    noise: IntegerNoise
    threshold_noise: DiscreteLaplace | None
    votes_to_pass: int
    most: int | None = None
    """The largest score that counts; all do if there is none."""

    def __str__(self) -> str:
        kind = "Gaussian" if self.threshold_noise is None else "Laplace"
        on_threshold = f", {self.threshold_noise.scale:g} on it" if self.threshold_noise is not None else ""
        return f"{kind} noise {self.noise.scale:g}, threshold {self.votes_to_pass}{on_threshold}"

    def scores(self, gap: ArrayLike) -> NDArray[np.int64]:
        """What is tested: how many votes may move."""
        moves = stable_moves(gap)
        return moves if self.most is None else np.minimum(moves, self.most)

    def threshold_values(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """What the threshold's noise can be, and its log-probabilities."""
        if self.threshold_noise is None:
            return np.zeros(1, dtype=np.int64), np.zeros(1)
        width = self.threshold_noise.half_width()
        values = np.arange(-width, width + 1)
        return values, self.threshold_noise.log_pmf(values)

    def bad_answer(self) -> float:
        """The probability that a score of 0 passes under a fresh threshold."""
        return math.exp(float(self.log_pass(np.zeros(1, dtype=np.int64))[0][0]))

    def log_pass(self, scores: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """log-probabilities that one query passes, under a threshold of its own, and that it does not."""
        missing = self.votes_to_pass - scores
        if self.threshold_noise is None:
            return self.noise.log_test(missing)
        scale = self.threshold_noise.scale
        return _log_tail(scale, missing), _log_tail(scale, 1 - missing)

    def guarantee(self, max_queries: int, max_answers: int, unstable: int) -> Guarantee:
        """What a stream costs at most that ends after `unstable` times ⊥."""
        if self.threshold_noise is not None:
            return RepeatedGuarantee(2 / self.threshold_noise.scale, self.bad_answer(), unstable)
        assert self.most is not None
        lost = -math.expm1(unstable * math.log1p(-self.bad_answer()))
        test = NoisyTest(self.noise, self.votes_to_pass, self.most)
        return LimitedTests(test, TestLimits(max_queries, max(1, max_answers), unstable), lost)


@lru_cache(maxsize=64)
def _calibrated(epsilon: float, delta: float, unstable: int, max_queries: int) -> Design:
    """The design with the lowest threshold that costs (epsilon, delta) at most, the sampler's share of δ set aside."""
    usable = delta * (1 - SAMPLER_SHARES[0])

    def fits(design: Design) -> bool:
        return design.guarantee(max_queries, max_queries, unstable).epsilon(usable) <= epsilon

    def quick(design: Design) -> bool:
        return design.guarantee(max_queries, max_queries, unstable).quick_epsilon(usable) <= epsilon

    bad = _BAD_SHARES[0] * usable / unstable

    def gaussian(sigma: float) -> Design:
        test = gaussian_test(sigma, bad)
        return Design(test.noise, None, test.threshold, test.most)

    found = [_min_noise(gaussian, quick, fits)]  # first, as it has no secret to lose
    for share in _BAD_SHARES:
        rarer = share * usable / unstable
        found.append(_min_noise(lambda scale, b=rarer: _laplace_design(scale, b), fits, fits))  # type: ignore[misc]
    designs = [design for design in found if design is not None]
    if not designs:
        wanted = f"too small for msvec with unstable = {unstable}: no noise up to {MAX_NOISE:,.0f} votes is enough"
        raise parameters.ParameterError("epsilon", epsilon, wanted)
    return min(designs, key=lambda design: design.votes_to_pass)


def _laplace_design(scale: float, bad_answer: float) -> Design:
    """Laplace noise of `scale` on the threshold and twice that on a query; a bad answer is as rare as wanted."""

    def rare(k: int) -> bool:
        return float(_log_tail(scale, np.array([k]))[0]) <= math.log(bad_answer)

    votes = bisect_left(range(math.ceil(2 * scale * (1 - math.log(bad_answer))) + 2), True, key=rare)
    return Design(DiscreteLaplace(2 * scale), DiscreteLaplace(scale), votes)


def _min_noise(
    design_of: Callable[[float], Design], quick: Callable[[Design], bool], fits: Callable[[Design], bool]
) -> Design | None:
    """The design with the least noise that fits, to four digits; None if there is none."""
    low, high = MIN_NOISE, 1.0
    while not quick(design_of(high)):
        low, high = high, 4 * high
        if high > MAX_NOISE / 2:
            return None
    while high / low > _PRECISE:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if quick(design_of(middle)) else (middle, high)
    while high <= MAX_NOISE / 2:
        found = design_of(float(f"{high:.4g}"))
        if fits(found):
            return found
        high *= _PRECISE
    return None


def _log_tail(scale: float, least: NDArray[np.int64]) -> NDArray[np.float64]:
    """log P(X + Y ≥ least) for discrete Laplace X of scale 2·scale and Y of `scale`.

    With p = exp(−1/(2·scale)), X weighs k by p^|k| and Y by p^(2|k|). Partial fractions of the product of
    their generating functions give, for k ≥ 1, P(X + Y ≥ k) = p^k·(1 + p)/(1 + p + p²)·(1 − p^(k+1)/((1 +
    p)(1 + p²))), without cancellation; the rest is symmetry.
    """
    p = math.exp(-1 / (2 * scale))
    k = np.where(least >= 1, least, 1 - least)
    log_upper = -k / (2 * scale) + math.log((1 + p) / (1 + p + p * p))
    log_upper = log_upper + np.log1p(-np.exp(-(k + 1) / (2 * scale)) / ((1 + p) * (1 + p * p)))
    return np.where(least >= 1, log_upper, np.log1p(-np.exp(log_upper)))


@dataclass(frozen=True, repr=False)
class MSvec(StabilityTest):
    """The plurality if d and noise reach a threshold, else ⊥; d is `stable_moves`. Ends after `unstable` times ⊥.

    Or after `max_queries` queries; both are fixed beforehand. `epsilon` and `delta` are named, and noise and threshold
    are the lowest of two designs whose proven cost is that:

    * Gaussian noise on d, drawn anew for every query, and a fixed threshold (where more than a few may be unstable);
    * Laplace noise of scale 2λ on d and λ on the threshold, which is drawn again after each ⊥ only.

    Neighbouring relation: one vote moves in every query. Sensitivity: each d changes by at most 1.
    Guarantee: (epsilon, delta)-DP for the whole stream, queries chosen adaptively. Call a query bad if d = 0 on both of
    two neighbours: then ⊥ is equally likely on both. Otherwise both have the same unique plurality, and the answer is
    a function of the test. Proof for integer noise:

    *Gaussian.* A bad query is answered with probability at most b, by noise of its own. If none of the first
    `unstable` bad ones is answered they end the stream. So an answer to a bad query has a probability of at most
    1 − (1 − b)^unstable, which is charged to δ. All other streams of answers have the probabilities of a stream of
    tests, times (1 − b)^(bad queries) on both sides; `LimitedTests` bounds their Rényi divergence by
    charges for at most `unstable` failures and `max_queries` tests.

    *Laplace.* Call the queries under one noisy threshold, up to its ⊥, an epoch. (1) As in AboveThreshold, shifting the
    threshold by 1 and the noise of the one ⊥ by 2 turns a run on one data set into the same run on its neighbour: an
    epoch's bits are (2/λ)-DP. (2) Of the bad queries in an epoch the first is answered or ends it, so an epoch answers
    one with probability at most b = P(Lap(2λ) + Lap(λ) ≥ threshold), and is (2/λ, b)-DP. (3) At most `unstable` epochs
    compose, optimally (`RepeatedGuarantee`).

    Source: Bassily, Thakkar, Thakurta 2018, Algorithm 2; sparse vector, Dwork, Roth 2014, Section 3.6, with above and
    below exchanged, since here the queries below the threshold are the few. `LectureMSvec` has their noise.

    Parameters
    ----------
    epsilon : float
        The ε of the whole stream, which noise and threshold follow from.
    delta : float
        The δ of the whole stream.
    unstable : int
        How many queries may stay unanswered (⊥); the stream ends with the last of them.
    max_queries : int
        How many queries may be asked.
    """

    name: ClassVar[str] = "msvec"
    priced_as_stream: ClassVar[bool] = True
    epsilon: float = parameter(parameters.epsilon)
    delta: float = parameter(parameters.delta)
    unstable: int = parameter(partial(parameters.queries, least=1))
    max_queries: int = parameter(partial(parameters.queries, least=1))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.unstable > self.max_queries:
            wanted = f"must not exceed max_queries = {self.max_queries}"
            raise parameters.ParameterError("unstable", self.unstable, wanted)
        self.design  # noqa: B018 - an ε that no noise gives is refused here

    def __repr__(self) -> str:
        """With the noise, so that a ledger knows a stream by it."""
        named = ", ".join(f"{field.name}={getattr(self, field.name)!r}" for field in fields(self))
        return f"{type(self).__name__}({named}: {self.design})"

    @cached_property
    def design(self) -> Design:
        """Noise and threshold, which are public."""
        return _calibrated(self.epsilon, self.delta, self.unstable, self.max_queries)

    @property
    def votes_to_pass(self) -> int:
        """A query passes if d and its noise reach this and the threshold's noise."""
        return self.design.votes_to_pass

    def worst_case(self, max_queries: int, max_answers: int) -> Guarantee:
        max_queries, max_answers = parameters.limits(max_queries, max_answers)
        if max_queries > self.max_queries:
            raise BudgetExceeded(f"{max_queries} queries are more than {self.name}'s max_queries = {self.max_queries}")
        return self.design.guarantee(max_queries, max_answers, min(max_queries, self.unstable))

    def check(self, max_queries: int, delta: float, n_teachers: int) -> None:
        if max_queries > self.max_queries:
            raise ConfigError(
                f"budget.max_queries = {max_queries}: more than mechanism.max_queries = {self.max_queries}"
            )
        if self.delta > delta:
            raise ConfigError(f"mechanism.delta = {self.delta:g}: must not exceed budget.delta = {delta:g}")

    @classmethod
    def default_queries(cls, settings: Mapping[str, Any]) -> int:
        max_queries: int = settings.get("max_queries", FEW_QUERIES)
        return max_queries

    @property
    def note(self) -> str:
        return f"{self.design}; a lead of {self.gap_needed(0.5)} votes is answered every second time"

    def describe(self) -> str:
        return "the class with most votes, if its lead passes a noisy threshold (sparse vector), else nothing (⊥)"

    def noise_draws(self, n_classes: int) -> int:
        noisy_threshold = self.design.threshold_noise is not None
        return 2 + noisy_threshold  # the query, one to break a tie, and its threshold if there is none yet

    def begin(self, unstable: int = 0, asked: int = 0) -> MSvecStream:
        """The stream from its beginning or, after the program has stopped, from what the ledger holds.

        A noisy threshold was lost then, so going on begins a new epoch and costs one of `unstable`.
        `unstable` is `MSvecStream.unstable` as stored with the last label, which counts earlier resumptions.
        """
        unstable, asked = parameters.queries(unstable, "unstable"), parameters.queries(asked, "asked")
        resumed = self.design.threshold_noise is not None and (unstable > 0 or asked > 0)
        return MSvecStream(self, min(self.unstable, unstable + resumed), asked)

    def release(self, counts: Counts, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        """A whole stream in one call, which costs (epsilon, delta); ⊥ for what is asked after its end."""
        labels = np.full(len(counts), UNANSWERED, dtype=np.int64)
        if len(counts):
            answers = self.begin().answer(counts[: self.max_queries], entropy)
            labels[: len(answers)] = answers
        return labels

    def log_pass(self, gap: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """For one query under a threshold of its own."""
        return self.design.log_pass(self.design.scores(gap))

    def expected_answered(self, counts: Counts) -> float:
        """How many histograms of a stream get a label, on average: exact, by how likely each threshold is by then."""
        values, log_fresh = self.design.threshold_values()
        fresh = np.exp(log_fresh)
        most = min(self.unstable, len(counts) + 1)
        likely = np.zeros((most, len(values)))  # how many ⊥ so far, and the threshold's noise
        likely[0] = fresh
        answered = 0.0
        for score in self.design.scores(plurality_gap(counts))[: self.max_queries]:
            passes = np.exp(self.design.noise.log_sf(self.votes_to_pass + values - score))
            before = likely.sum(axis=1)
            likely = likely * passes
            after = likely.sum(axis=1)
            answered += float(after.sum())
            likely[1:] += np.maximum(before - after, 0.0)[:-1, None] * fresh
        return answered


class MSvecStream(Stream):
    """A stream under way. Its noisy threshold is secret, lives in memory only and cannot be pickled.

    `unstable` and `asked` are what has been used up; store both with the labels, in one transaction, before
    anyone sees the labels. If that fails, drop the stream and resume from the ledger.
    """

    def __init__(self, mechanism: MSvec, unstable: int, asked: int) -> None:
        self.unstable = unstable
        self.asked = asked
        self._mechanism: MSvec = mechanism
        self._threshold: int | None = None

    def __repr__(self) -> str:
        return f"MSvecStream({self._mechanism!r}, unstable={self.unstable}, asked={self.asked})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a stream holds a secret threshold and is never stored; resume it with MSvec.begin")

    @property
    def ended(self) -> bool:
        return self.unstable >= self._mechanism.unstable

    def answer(self, counts: Counts, entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        """Answers to the histograms in turn; fewer than there are histograms if a ⊥ ends the stream."""
        counts = parameters.histograms(counts)
        if self.ended:
            raise BudgetExceeded(f"the stream has ended: unstable = {self._mechanism.unstable} is used up")
        left = self._mechanism.max_queries - self.asked
        if len(counts) > left:
            raise BudgetExceeded(f"{len(counts)} queries do not fit: {max(0, left)} of max_queries are left")
        design = self._mechanism.design
        noisy = design.scores(plurality_gap(counts)) + design.noise.sample((len(counts),), entropy)
        labels = argmax_with_random_ties(counts, entropy)
        for i in range(len(counts)):
            self.asked += 1
            if self._threshold is None:
                noise = 0 if design.threshold_noise is None else int(design.threshold_noise.sample((1,), entropy)[0])
                self._threshold = design.votes_to_pass + noise
            if noisy[i] < self._threshold:
                labels[i] = UNANSWERED
                self.unstable += 1
                self._threshold = None
            if self.ended:
                return labels[: i + 1]
        return labels


@dataclass(frozen=True, repr=False)
class LectureMSvec(MSvec):
    """MSvec with the noise of the lecture: λ = √(32·unstable·ln(2/delta))/epsilon, T = 2λ·ln(2·max_queries/delta).

    The plurality if d + Lap(2λ) > T + Lap(λ), else ⊥, the noise on T being drawn again after each ⊥ only.

    Guarantee: (epsilon, delta)-DP for the whole stream, as for MSvec with Laplace noise. Its epochs compose to
    2·unstable/λ, which is at most epsilon if unstable ≤ 8·ln(2/delta); else by advanced composition with delta/2, whose
    second term is at most epsilon/2 unless epsilon is far too large to be of use. The constructor checks that. What
    is published is the optimal composition of the epochs, several times less. Kept for comparison.

    Parameters
    ----------
    epsilon : float
        The ε of the whole stream, which noise and threshold follow from.
    delta : float
        The δ of the whole stream.
    unstable : int
        How many queries may stay unanswered (⊥); the stream ends with the last of them.
    max_queries : int
        How many queries may be asked.
    """

    name: ClassVar[str] = "lecture_msvec"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self._composes_simply or self._second_order_term <= self.epsilon / 2):
            wanted = "too large for the lecture's bound to hold; lower it"
            raise parameters.ParameterError("epsilon", self.epsilon, wanted)

    @property
    def noise_scale(self) -> float:
        """λ, in votes: the threshold has noise of this scale, a query of twice this."""
        return math.sqrt(32 * self.unstable * math.log(2 / self.delta)) / self.epsilon

    @cached_property
    def design(self) -> Design:
        for scale in (self.noise_scale, 2 * self.noise_scale):  # of the threshold, and of a query
            check_noise(scale, self.epsilon)
        above = math.floor(2 * self.noise_scale * math.log(2 * self.max_queries / self.delta)) + 1
        return Design(DiscreteLaplace(2 * self.noise_scale), DiscreteLaplace(self.noise_scale), above)

    @property
    def exact_delta(self) -> float:
        """The δ that the lecture's proof needs at `epsilon`: below `delta`, and far below if few are unstable."""
        return self.unstable * self.design.bad_answer() + (0 if self._composes_simply else self.delta / 2)

    @property
    def _composes_simply(self) -> bool:
        return self.unstable <= 8 * math.log(2 / self.delta)

    @property
    def _second_order_term(self) -> float:
        each = 2 / self.noise_scale
        return self.unstable * each * math.expm1(each)

    def published_epsilon(self, counts: Counts, delta: float, moments: int = 8) -> float:
        return self.epsilon if delta >= self.delta else math.inf
