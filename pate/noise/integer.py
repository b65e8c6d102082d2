"""Exact integer noise from the operating system's entropy.

Votes are integers, so the noise is too: no low bits of a floating-point sum can give a count away, and tails, ties
and probabilities can be summed exactly.

A draw compares 128 random bits with a table of the cumulative distribution, computed in 60-digit decimal
arithmetic and cut where the tails hold less than 2⁻⁹⁹. Its total-variation distance from the untruncated
distribution is below `TV_ERROR_PER_DRAW`; the accountant charges that error to δ.
"""

from __future__ import annotations

import math
import os
from bisect import bisect_right
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from numbers import Real
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.noise import MAX_NOISE, MIN_NOISE, Entropy

TV_ERROR_PER_DRAW = 2.0**-98
"""Bound on the total-variation error of one draw: 2⁻⁹⁹ of cut tails and less than 2⁻¹⁰⁵ of rounding."""


@dataclass(frozen=True)
class IntegerNoise:
    """Unimodal noise on the integers with `scale` in votes: symmetric, or `one_sided` and never negative."""

    one_sided: ClassVar[bool] = False
    scale: float

    def __post_init__(self) -> None:
        scale = self.scale
        if isinstance(scale, bool) or not isinstance(scale, Real) or not MIN_NOISE <= scale <= MAX_NOISE:
            raise ValueError(f"scale = {scale!r}: must be a noise scale in votes, {MIN_NOISE:g} to {MAX_NOISE:,.0f}")
        object.__setattr__(self, "scale", float(scale))

    def sample(self, shape: tuple[int, ...], entropy: Entropy = os.urandom) -> NDArray[np.int64]:
        """Independent draws. 64 bits decide all but about one draw in 2⁵⁰; the others take 64 more."""
        boundaries, high = _sampling_table(self)
        words = np.frombuffer(entropy(8 * math.prod(shape)), dtype="<u8").astype(np.uint64)
        index = np.searchsorted(high, words, side="right")
        undecided = high[np.maximum(index, 1) - 1] == words
        for i in np.flatnonzero(undecided):
            bits = (int(words[i]) << 64) | int.from_bytes(entropy(8), "little")
            index[i] = bisect_right(boundaries, bits)
        lowest = 0 if self.one_sided else len(boundaries) // 2
        return (index - lowest).astype(np.int64).reshape(shape)

    def log_pmf(self, k: ArrayLike) -> NDArray[np.float64]:
        """log P(Z = k)."""
        raise NotImplementedError

    def log_cdf(self, k: ArrayLike) -> NDArray[np.float64]:
        """log P(Z ≤ k), to full relative precision in both tails."""
        raise NotImplementedError

    def log_sf(self, k: ArrayLike) -> NDArray[np.float64]:
        """log P(Z ≥ k)."""
        return self.log_cdf(-np.asarray(k))

    def log_test(self, needed: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """log P(Z ≥ needed) and log P(Z < needed): a test that needs so much noise passes, or fails."""
        return self.log_sf(needed), self.log_cdf(np.asarray(needed) - 1)

    @property
    def tail_ratio(self) -> float:
        """q with P(Z = k + 1) ≥ q·P(Z = k) for every k, and equality from k = 0 on; 0 if there is none.

        Z is then the sum of two independent variables, one of them geometric: P(G ≥ j) = q^j.
        """
        return 0.0

    def half_width(self) -> int:
        """How far sums over the noise go: P(|Z| > half_width) < 2⁻⁶²."""
        raise NotImplementedError

    def sampling_reach(self) -> int:
        """The largest |k| the sampler returns: P(|Z| > sampling_reach) < 2⁻⁹⁹."""
        raise NotImplementedError

    def _weights(self) -> list[Decimal]:
        """P(Z = k)/P(Z = 0) for k = 0 … sampling_reach, in the current decimal precision."""
        raise NotImplementedError


class _ExponentialTail(IntegerNoise):
    """P(Z = k + 1)/P(Z = k) = exp(−1/scale) for k ≥ 0."""

    @property
    def tail_ratio(self) -> float:
        return math.exp(-1 / self.scale)

    def half_width(self) -> int:
        return math.ceil(45 * self.scale) + 1  # 2 exp(−45) < 2⁻⁶²

    def sampling_reach(self) -> int:
        return math.ceil(70 * self.scale) + 1  # 2 exp(−70) < 2⁻⁹⁹

    def _weights(self) -> list[Decimal]:
        ratio = (-1 / Decimal(self.scale)).exp()
        weights = [Decimal(1)]
        for _ in range(self.sampling_reach()):
            weights.append(weights[-1] * ratio)
        return weights


@dataclass(frozen=True)
class DiscreteLaplace(_ExponentialTail):
    """P(Z = k) ∝ exp(−|k|/scale)."""

    def log_pmf(self, k: ArrayLike) -> NDArray[np.float64]:
        log_mass_at_zero = math.log(-math.expm1(-1 / self.scale)) - math.log1p(math.exp(-1 / self.scale))
        return log_mass_at_zero - np.abs(np.asarray(k)) / self.scale

    def log_cdf(self, k: ArrayLike) -> NDArray[np.float64]:
        k = np.asarray(k)
        log_normaliser = math.log1p(math.exp(-1 / self.scale))
        lower = np.minimum(k, 0) / self.scale - log_normaliser
        upper = np.log1p(-np.exp(-(np.maximum(k, 0) + 1) / self.scale - log_normaliser))
        return np.where(k < 0, lower, upper)


@dataclass(frozen=True)
class Geometric(_ExponentialTail):
    """P(Z = k) ∝ exp(−k/scale) for k ≥ 0: exponential noise on the integers."""

    one_sided: ClassVar[bool] = True

    def log_pmf(self, k: ArrayLike) -> NDArray[np.float64]:
        k = np.asarray(k)
        return np.where(k < 0, -np.inf, math.log(-math.expm1(-1 / self.scale)) - k / self.scale)

    def log_cdf(self, k: ArrayLike) -> NDArray[np.float64]:
        k = np.asarray(k)
        return np.where(k < 0, -np.inf, np.log(-np.expm1(-(np.maximum(k, 0) + 1) / self.scale)))

    def log_sf(self, k: ArrayLike) -> NDArray[np.float64]:
        return -np.maximum(np.asarray(k), 0) / self.scale


@dataclass(frozen=True)
class DiscreteGaussian(IntegerNoise):
    """P(Z = k) ∝ exp(−k²/(2·scale²)); its variance is at most scale² (Canonne, Kamath, Steinke 2020)."""

    def log_pmf(self, k: ArrayLike) -> NDArray[np.float64]:
        k = np.asarray(k, dtype=np.float64)
        return -0.5 * (k / self.scale) ** 2 - _gaussian_log_normaliser(self.scale)

    def log_cdf(self, k: ArrayLike) -> NDArray[np.float64]:
        k = np.asarray(k, dtype=np.int64)
        reach = int(np.abs(k).max(initial=0)) + 1
        reach = 1 << max(6, reach.bit_length())  # few distinct tables, however the calls vary
        lower = _gaussian_log_lower_tail(self.scale, reach)  # log P(Z ≤ −i) for i = 0 … reach
        with np.errstate(divide="ignore"):
            upper = np.log1p(-np.exp(lower[np.maximum(k, 0) + 1]))
        return np.where(k <= 0, lower[np.maximum(-k, 0)], upper)

    def half_width(self) -> int:
        return math.ceil(9.5 * self.scale) + 1  # 2 exp(−9.5²/2) < 2⁻⁶², the tails being sub-Gaussian

    def sampling_reach(self) -> int:
        return math.ceil(11.9 * self.scale) + 1  # 2 exp(−11.9²/2) < 2⁻⁹⁹

    def _weights(self) -> list[Decimal]:
        step = (-1 / Decimal(self.scale) ** 2).exp()
        ratio = (-1 / (2 * Decimal(self.scale) ** 2)).exp()
        weights = [Decimal(1)]
        for _ in range(self.sampling_reach()):
            weights.append(weights[-1] * ratio)
            ratio *= step
        return weights


@lru_cache(maxsize=64)
def _gaussian_log_normaliser(sigma: float) -> float:
    k = np.arange(1, math.ceil(40 * sigma) + 2, dtype=np.float64)
    return math.log1p(2 * math.fsum(np.exp(-0.5 * (k / sigma) ** 2)))


@lru_cache(maxsize=64)
def _gaussian_log_lower_tail(sigma: float, reach: int) -> NDArray[np.float64]:
    """log P(Z ≤ −i) for i = 0 … reach + 1, summed from far enough outside to be exact to rounding."""
    k = np.arange(reach + 2 + math.ceil(12 * sigma), -1, -1, dtype=np.float64)
    log_mass = -0.5 * (k / sigma) ** 2 - _gaussian_log_normaliser(sigma)
    tail = np.logaddexp.accumulate(log_mass)[::-1][: reach + 2]
    tail.flags.writeable = False
    return tail


@lru_cache(maxsize=16)
def _sampling_table(noise: IntegerNoise) -> tuple[list[int], NDArray[np.uint64]]:
    """Cumulative probabilities in units of 2⁻¹²⁸ (all but the last, which is 1), and their high 64 bits."""
    with localcontext() as context:
        context.prec = 60
        one_side = noise._weights()
        weights = one_side if noise.one_sided else one_side[:0:-1] + one_side
        total = sum(weights)
        unit = Decimal(2) ** 128 / total
        boundaries, cumulative = [], Decimal(0)
        for weight in weights[:-1]:
            cumulative += weight
            boundaries.append(min(int(cumulative * unit), 2**128 - 1))
    return boundaries, np.array([b >> 64 for b in boundaries], dtype=np.uint64)
