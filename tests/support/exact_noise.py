"""Probabilities of integer noise in 60 digits."""

from __future__ import annotations

from functools import cache

import mpmath

from pate.noise.integer import DiscreteLaplace, IntegerNoise


def exact_mass(noise: IntegerNoise, k: int) -> mpmath.mpf:
    """P(Z = k) by plain summation in 60 digits."""
    with mpmath.workdps(60):
        return _weight(noise, k) / _total(noise)


def _weight(noise: IntegerNoise, i: int) -> mpmath.mpf:
    scale = mpmath.mpf(noise.scale)
    return mpmath.exp(-abs(i) / scale if isinstance(noise, DiscreteLaplace) else -(i**2) / (2 * scale**2))


@cache
def _total(noise: IntegerNoise) -> mpmath.mpf:
    with mpmath.workdps(60):
        return 1 + 2 * sum(_weight(noise, i) for i in range(1, int(160 * noise.scale) + 60))
