"""Noise from an entropy source, the operating system's wherever something is released; imports no other folder.

Here it is continuous, for the baselines. Every draw begins with 52 or 53 random bits. What follows is floating-point
arithmetic, unlike the integer noise of the votes: the guarantees of the baselines are those of real arithmetic, and
callers blur the low bits (`gaussians` sums four draws; DP-ERM rounds what it releases to a grid).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

MIN_NOISE, MAX_NOISE = 1e-3, 10_000.0
"""Scales in votes. Less noise would be none: it changes a count with probability exp(-1000). More would need too large
a sampling table."""

Entropy = Callable[[int], bytes]
"""`entropy(n)` returns n random bytes; tests and benchmarks may pass a seeded one."""


def seeded_entropy(seed: int) -> Entropy:
    """A reproducible source, for tests and benchmarks only: noise that can be drawn again protects nobody."""
    return np.random.default_rng(seed).bytes


def uniforms(n: int, entropy: Entropy = os.urandom) -> NDArray[np.float64]:
    """n draws from the midpoints of 2⁵² equal steps of (0, 1): neither 0 nor 1 ever comes, not even by rounding."""
    words = np.frombuffer(entropy(8 * n), dtype="<u8") >> np.uint64(12)
    return (words.astype(np.float64) + 0.5) * 2.0**-52


def gaussians(n: int, entropy: Entropy = os.urandom) -> NDArray[np.float64]:
    """n standard normal draws, each half the sum of four.

    One inverse-CDF draw takes at most 2⁵² values, and which floating-point sums it can reach may show what it was
    added to; a sum of four has no such short list (Holohan and Braghin, "Secure Random Sampling in
    Differential Privacy", 2021).
    """
    from scipy.special import ndtri  # costs 0.3 s: import where used

    return 0.5 * ndtri(uniforms(4 * n, entropy)).reshape(4, n).sum(axis=0)


def spherical_laplace(dimension: int, rate: float, entropy: Entropy = os.urandom) -> NDArray[np.float64]:
    """One vector with density proportional to exp(−rate·|b|): a Gamma(dimension) norm, a uniform direction."""
    norm = -np.log(uniforms(dimension, entropy)).sum() / rate
    direction = gaussians(dimension, entropy)
    return direction * (norm / np.linalg.norm(direction))


def bernoulli(n: int, probability: float, entropy: Entropy = os.urandom) -> NDArray[np.bool_]:
    """n independent coins; the probability is met to 2⁻⁵³, rounded down."""
    words = np.frombuffer(entropy(8 * n), dtype="<u8") >> np.uint64(11)
    return words < np.uint64(math.floor(probability * 2.0**53))


def exponential_choice(scores: NDArray, epsilon: float, entropy: Entropy = os.urandom) -> int:
    """The exponential mechanism: i with probability proportional to exp(ε·scores[i]/2).

    Neighbouring relation: whatever moves every score by at most 1. Guarantee: ε-DP (McSherry and Talwar, 2007).
    """
    logits = 0.5 * epsilon * (np.asarray(scores, dtype=np.float64) - np.max(scores))
    cumulative = np.cumsum(np.exp(logits))
    place = uniforms(1, entropy)[0] * cumulative[-1]
    return min(int(np.searchsorted(cumulative, place, side="right")), len(logits) - 1)
