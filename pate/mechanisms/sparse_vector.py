"""MSvec: many stable queries for the price of a few unstable ones."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.accounting import parameters
from pate.accounting.composition import FixedGuarantee, Guarantee, RepeatedGuarantee
from pate.errors import BudgetExceeded, ConfigError
from pate.mechanisms.base import FEW_QUERIES, UNANSWERED, Counts, Stream, parameter
from pate.mechanisms.noisy_max import argmax_with_random_ties
from pate.mechanisms.stability import (
    StabilityTest,
    check_noise,
    log_plurality_shares,
    plurality_gap,
    stable_moves,
)
from pate.noise.integer import DiscreteLaplace, Entropy

_MOST_JOINT_QUERIES = 8


@dataclass(frozen=True)
class MSvec(StabilityTest):
    """The plurality if d + Lap(2λ) > T + Lap(λ), else ⊥, the noise on T being drawn again after each ⊥ only.

    λ = √(32·unstable·ln(2/delta))/epsilon and T = 2λ·ln(2·max_queries/delta); d is `stable_moves`. The
    stream stops after `unstable` times ⊥ or `max_queries` queries, both fixed beforehand.

    Neighbouring relation: one vote moves in every query. Sensitivity: each d changes by at most 1.
    Guarantee: (epsilon, delta)-DP for the whole stream, queries chosen adaptively. Proof for integer noise.
    Call the queries under one noisy threshold, up to its ⊥, an epoch. (1) As in AboveThreshold, shifting the
    threshold by 1 and the noise of the one ⊥ by 2 turns a run on one data set into the same run on its
    neighbour: an epoch's bits are (2/λ)-DP. (2) Call a query bad if its plurality differs between the
    neighbours; then d = 0 on both. Of the bad queries in an epoch the first is answered or ends it, so an
    epoch answers one with probability at most P(Lap(2λ) + Lap(λ) > T) < delta/(2·max_queries), and is (2/λ,
    that)-DP. (3) At most `unstable` epochs compose: to 2·unstable/λ, which is at most epsilon if unstable ≤
    8·ln(2/delta); else by advanced composition with delta/2, whose second term is at most epsilon/2 unless
    epsilon is far too large to be of use. The constructor checks that.
    Source: Bassily, Thakkar, Thakurta 2018, Algorithm 2; sparse vector, Dwork, Roth 2014, Section 3.6, with
    above and below exchanged, since here the queries below the threshold are the few.
    """

    name: ClassVar[str] = "msvec"
    charged_as_stream: ClassVar[bool] = True
    epsilon: float = parameter("ε of the stream")
    delta: float = parameter("δ of the stream")
    unstable: int = parameter("most ⊥")
    max_queries: int = parameter("most queries")

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", parameters.epsilon(self.epsilon))
        object.__setattr__(self, "delta", parameters.delta(self.delta))
        for field in ("unstable", "max_queries"):
            object.__setattr__(self, field, parameters.queries(getattr(self, field), field, least=1))
        if self.unstable > self.max_queries:
            wanted = f"must not exceed max_queries = {self.max_queries}"
            raise parameters.ParameterError("unstable", self.unstable, wanted)
        for scale in (self.noise_scale, 2 * self.noise_scale):  # of the threshold, and of a query
            check_noise(scale, self.epsilon)
        if not (self._composes_simply or self._second_order_term <= self.epsilon / 2):
            raise parameters.ParameterError("epsilon", self.epsilon, "too large for msvec's bound to hold; lower it")

    @property
    def noise_scale(self) -> float:
        """λ, in votes: the threshold has noise of this scale, a query of twice this."""
        return math.sqrt(32 * self.unstable * math.log(2 / self.delta)) / self.epsilon

    @property
    def votes_to_pass(self) -> int:
        """The least integer above T: a query passes if d and noise reach this and the threshold's noise."""
        return math.floor(2 * self.noise_scale * math.log(2 * self.max_queries / self.delta)) + 1

    @property
    def exact_delta(self) -> float:
        """The δ that the proof needs at `epsilon`: below `delta`, and far below if few are unstable."""
        return self.unstable * self._bad_answer + (0 if self._composes_simply else self.delta / 2)

    @property
    def _bad_answer(self) -> float:
        return self._pass_probability(0)

    @property
    def _composes_simply(self) -> bool:
        return self.unstable <= 8 * math.log(2 / self.delta)

    @property
    def _second_order_term(self) -> float:
        each = 2 / self.noise_scale
        return self.unstable * each * math.expm1(each)

    def worst_case(self, asked: int, answered: int) -> Guarantee:
        asked, _ = parameters.limits(asked, answered)
        if asked > self.max_queries:
            raise BudgetExceeded(f"{asked} queries are more than msvec's max_queries = {self.max_queries}")
        return FixedGuarantee(self.epsilon, self.exact_delta) if asked else FixedGuarantee(0.0, 0.0)

    def optimal_case(self) -> Guarantee:
        """The same stream by optimal composition of its epochs, which gives an ε below `epsilon`."""
        return RepeatedGuarantee(2 / self.noise_scale, self._bad_answer, self.unstable)

    def published_epsilon(self, counts: Counts, delta: float, moments: int = 8) -> float:
        return self.epsilon if delta >= self.delta else math.inf

    def published_epsilons(self, counts: Counts, delta: float, at: NDArray[np.int64]) -> NDArray[np.float64]:
        return np.full(len(at), self.published_epsilon(counts, delta))

    def check(self, asked: int, delta: float, n_teachers: int) -> None:
        if asked > self.max_queries:
            raise ConfigError(f"budget.asked = {asked}: more than mechanism.max_queries = {self.max_queries}")
        if self.delta > delta:
            raise ConfigError(f"mechanism.delta = {self.delta:g}: must not exceed budget.delta = {delta:g}")

    @classmethod
    def default_asked(cls, settings: Mapping[str, Any]) -> int:
        asked: int = settings.get("max_queries", FEW_QUERIES)
        return asked

    def in_words(self) -> str:
        return "the class with most votes, if its lead passes a noisy threshold (sparse vector), else nothing (⊥)"

    def noise_draws(self, n_classes: int) -> int:
        return 3  # the query, its threshold if there is none yet, and one to break a tie

    def begin(self, unstable: int = 0, asked: int = 0) -> MSvecStream:
        """The stream from its beginning or, after the program has stopped, from what the ledger holds.

        Its threshold was lost then, so going on begins a new epoch and costs one of `unstable`.
        `unstable` is `MSvecStream.unstable` as stored with the last label, which counts earlier resumptions.
        """
        unstable, asked = parameters.queries(unstable, "unstable"), parameters.queries(asked, "asked")
        resumed = unstable > 0 or asked > 0
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
        missing = self.votes_to_pass - stable_moves(gap)
        return _log_tail(self.noise_scale, missing), _log_tail(self.noise_scale, 1 - missing)

    def expected_answered(self, counts: Counts) -> float:
        """How many histograms of a stream get a label, on average: exact, by how likely each threshold is by then."""
        threshold, test = DiscreteLaplace(self.noise_scale), DiscreteLaplace(2 * self.noise_scale)
        values = np.arange(-threshold.half_width(), threshold.half_width() + 1)
        fresh = np.exp(threshold.log_pmf(values))
        likely = np.zeros((self.unstable, len(values)))  # how many ⊥ so far, and the threshold's noise
        likely[0] = fresh
        answered = 0.0
        for moves in stable_moves(plurality_gap(counts))[: self.max_queries]:
            passes = np.exp(test.log_sf(self.votes_to_pass + values - moves))
            before = likely.sum(axis=1)
            likely = likely * passes
            after = likely.sum(axis=1)
            answered += float(after.sum())
            likely[1:] += np.maximum(before - after, 0.0)[:-1, None] * fresh
        return answered

    def log_stream_outcomes(self, counts: Counts) -> NDArray[np.float64]:
        """Exact joint log-probabilities of a short stream: one axis per query, each of n_classes + 1, ⊥ last.

        A tuple of labels, with `UNANSWERED` = −1, is an index. What follows the stream's end is ⊥.
        """
        n_queries, n_classes = counts.shape
        if n_queries > _MOST_JOINT_QUERIES:
            raise ValueError(f"joint outcomes of at most {_MOST_JOINT_QUERIES} queries, not {n_queries}")
        declined = np.append(np.full(n_classes, -np.inf), 0.0)
        answered = np.column_stack([log_plurality_shares(counts), np.full(n_queries, -np.inf)])
        total = np.full((n_classes + 1,) * n_queries, -np.inf)
        moves = tuple(stable_moves(plurality_gap(counts)).tolist())
        for bits in product((True, False), repeat=n_queries):
            joint = np.asarray(_log_bits(self, moves, bits))
            for i, bit in enumerate(bits):
                joint = np.add.outer(joint, answered[i] if bit else declined)
            total = np.logaddexp(total, joint)
        return total


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
        self._refuse_beyond_limits(len(counts))
        test = DiscreteLaplace(2 * self._mechanism.noise_scale)
        noisy = stable_moves(plurality_gap(counts)) + test.sample((len(counts),), entropy)
        labels = argmax_with_random_ties(counts, entropy)
        for i in range(len(counts)):
            self.asked += 1
            if noisy[i] < self._noisy_threshold(entropy):
                labels[i] = UNANSWERED
                self.unstable += 1
                self._threshold = None
            if self.ended:
                return labels[: i + 1]
        return labels

    def _noisy_threshold(self, entropy: Entropy) -> int:
        if self._threshold is None:
            noise = DiscreteLaplace(self._mechanism.noise_scale).sample((1,), entropy)
            self._threshold = self._mechanism.votes_to_pass + int(noise[0])
        return self._threshold

    def _refuse_beyond_limits(self, n_queries: int) -> None:
        if self.ended:
            raise BudgetExceeded(f"the stream has ended: unstable = {self._mechanism.unstable} is used up")
        left = self._mechanism.max_queries - self.asked
        if n_queries > left:
            raise BudgetExceeded(f"{n_queries} queries do not fit: {max(0, left)} of max_queries are left")


@lru_cache(maxsize=4096)
def _log_bits(mechanism: MSvec, moves: tuple[int, ...], bits: tuple[bool, ...]) -> float:
    """log-probability that just these queries are answered: a sum over each epoch's threshold noise."""
    from scipy.special import logsumexp  # costs 0.3 s: import where used

    scale = mechanism.noise_scale
    threshold, test = DiscreteLaplace(scale), DiscreteLaplace(2 * scale)
    values = np.arange(-threshold.half_width(), threshold.half_width() + 1)
    log_epoch, unstable = threshold.log_pmf(values), 0
    for i, bit in enumerate(bits):
        if unstable == mechanism.unstable or i == mechanism.max_queries:
            return -np.inf if any(bits[i:]) else float(logsumexp(log_epoch))
        missing = mechanism.votes_to_pass + values - moves[i]
        if bit:
            log_epoch = log_epoch + test.log_sf(missing)
        else:
            log_epoch = threshold.log_pmf(values) + logsumexp(log_epoch + test.log_cdf(missing - 1))
            unstable += 1
    return float(logsumexp(log_epoch))


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
