"""Noise and threshold of MSvec's streams: what they cost, and the least that an ε needs."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.accounting import parameters
from pate.accounting.composition import SAMPLER_SHARES, Guarantee, RepeatedGuarantee
from pate.accounting.tight.limited_tests import LimitedTests, NoisyTest, TestLimits
from pate.mechanisms.gaussian_stability import gaussian_test
from pate.mechanisms.stability import stable_moves
from pate.noise import MAX_NOISE, MIN_NOISE
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
            return self.noise.log_sf(missing), self.noise.log_cdf(missing - 1)
        scale = self.threshold_noise.scale
        return _log_tail(scale, missing), _log_tail(scale, 1 - missing)


def guarantee_of(design: Design, asked: int, answered: int, unstable: int) -> Guarantee:
    """What a stream costs at most."""
    if design.threshold_noise is not None:
        return RepeatedGuarantee(2 / design.threshold_noise.scale, design.bad_answer(), unstable)
    assert design.most is not None
    lost = -math.expm1(unstable * math.log1p(-design.bad_answer()))
    return LimitedTests(
        NoisyTest(design.noise, design.votes_to_pass, design.most), TestLimits(asked, max(1, answered), unstable), lost
    )


@lru_cache(maxsize=64)
def calibrated(epsilon: float, delta: float, unstable: int, max_queries: int) -> Design:
    """The design with the lowest threshold that costs (epsilon, delta) at most, the sampler's share of δ set aside."""
    usable = delta * (1 - SAMPLER_SHARES[0])

    def fits(design: Design) -> bool:
        return guarantee_of(design, max_queries, max_queries, unstable).epsilon(usable) <= epsilon

    def quick(design: Design) -> bool:
        return guarantee_of(design, max_queries, max_queries, unstable).quick_epsilon(usable) <= epsilon

    bad = _BAD_SHARES[0] * usable / unstable
    found = [_min_noise(lambda sigma: _gaussian_design(sigma, bad), quick, fits)]  # first, as it has no secret to lose
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


def _gaussian_design(sigma: float, bad_answer: float) -> Design:
    test = gaussian_test(sigma, bad_answer)
    return Design(test.noise, None, test.threshold, test.most)


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
