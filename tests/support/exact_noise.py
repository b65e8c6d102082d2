"""Probabilities of integer noise in 60 digits."""

from __future__ import annotations

import mpmath

from pate.noise.integer import DiscreteLaplace, IntegerNoise


def exact_mass(noise: IntegerNoise, k: int) -> mpmath.mpf:
    """P(Z = k) by plain summation in 60 digits."""
    with mpmath.workdps(60):
        scale = mpmath.mpf(noise.scale)

        def weight(i: int) -> mpmath.mpf:
            return mpmath.exp(-abs(i) / scale if isinstance(noise, DiscreteLaplace) else -(i**2) / (2 * scale**2))

        reach = int(160 * noise.scale) + 60
        return weight(k) / (1 + 2 * sum(weight(i) for i in range(1, reach)))
