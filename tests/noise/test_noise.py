"""Noise, integer and continuous: samplers against their distributions, those against mpmath.

Statistical tests have a false-alarm rate of 1e-6 each, and are fixed by their seeds.
"""

from __future__ import annotations

import itertools
import random

import mpmath
import numpy as np
import pytest
from scipy import stats
from support.exact_noise import exact_mass

from pate.noise import bernoulli, exponential_choice, gaussians, seeded_entropy, spherical_laplace, uniforms
from pate.noise.integer import (
    TV_ERROR_PER_DRAW,
    DiscreteGaussian,
    DiscreteLaplace,
    Geometric,
    IntegerNoise,
    _sampling_table,
)

NOISES = [
    DiscreteLaplace(0.3),
    DiscreteLaplace(1.0),
    DiscreteLaplace(20.0),
    DiscreteGaussian(0.4),
    DiscreteGaussian(3.0),
    DiscreteGaussian(40.0),
]
FALSE_ALARM = 1e-6


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_log_pmf_and_log_cdf_are_exact(noise: IntegerNoise) -> None:
    with mpmath.workdps(60):
        for k in (0, 1, -1, 5, -7, int(6 * noise.scale), -int(9 * noise.scale) - 3):
            mass = exact_mass(noise, k)
            assert float(noise.log_pmf(k)) == pytest.approx(float(mpmath.log(mass)), rel=1e-12, abs=1e-13)
    k = np.arange(-30, 31)
    direct = np.cumsum(np.exp(noise.log_pmf(np.arange(-int(60 * noise.scale) - 60, 31))))[-61:]
    np.testing.assert_allclose(np.exp(noise.log_cdf(k)), direct, rtol=1e-11)
    np.testing.assert_allclose(np.exp(noise.log_cdf(k - 1)) + np.exp(noise.log_sf(k)), 1, rtol=1e-13)


def test_gaussian_tail_is_exact_far_out() -> None:
    with mpmath.workdps(60):
        tail = sum(exact_mass(DiscreteGaussian(3.0), -k) for k in range(60, 120))
        expected = float(mpmath.log(tail))  # about −204: a probability of 1e-89
    assert float(DiscreteGaussian(3.0).log_cdf(-60)) == pytest.approx(expected, rel=1e-13)


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_sampling_table_is_within_its_stated_error(noise: IntegerNoise) -> None:
    """Total variation between the table and the exact distribution, summed in 60 digits, is below what is charged."""
    boundaries, high = _sampling_table(noise)
    width = noise.sampling_reach()
    assert len(boundaries) == 2 * width == len(high)
    with mpmath.workdps(60):
        edges = [0, *boundaries, 2**128]
        masses = [mpmath.mpf(b - a) / mpmath.mpf(2) ** 128 for a, b in itertools.pairwise(edges)]
        scale = mpmath.mpf(noise.scale)
        weights = [
            mpmath.exp(-abs(k) / scale if isinstance(noise, DiscreteLaplace) else -(k**2) / (2 * scale**2))
            for k in range(-2 * width, 2 * width + 1)
        ]
        total = sum(weights)
        exact = [w / total for w in weights]
        inside = sum(abs(m - e) for m, e in zip(masses, exact[width : 3 * width + 1], strict=True))
        outside = sum(exact[:width]) + sum(exact[3 * width + 1 :])
        assert (inside + outside) / 2 < TV_ERROR_PER_DRAW


@pytest.mark.parametrize("noise", NOISES, ids=str)
def test_samples_follow_the_distribution(noise: IntegerNoise) -> None:
    """χ² over all values with 20 or more expected draws; false-alarm rate 1e-6, and fixed by the seed."""
    draws = noise.sample((200_000,), random.Random(7).randbytes)
    reach = noise.sampling_reach()
    values = np.arange(-reach, reach + 1)
    expected = np.exp(noise.log_pmf(values)) * len(draws)
    observed = np.bincount(draws + reach, minlength=len(values))
    common = expected >= 20
    cells_expected = np.append(expected[common], expected[~common].sum() + 1e-9)
    cells_observed = np.append(observed[common], observed[~common].sum())
    statistic = ((cells_observed - cells_expected) ** 2 / cells_expected)[cells_expected > 1].sum()
    assert statistic < stats.chi2.isf(1e-6, common.sum() + 1)


def test_a_word_on_a_boundary_takes_more_bits() -> None:
    """The first 64 bits equal a boundary's: the next 64 decide, on both sides of it."""
    noise = DiscreteLaplace(2.0)
    boundaries, _ = _sampling_table(noise)
    index = len(boundaries) // 2
    words = (boundaries[index] >> 64).to_bytes(8, "little")
    low = boundaries[index] & (2**64 - 1)
    results = []
    for second in (low - 1, low):
        pieces = iter([words, second.to_bytes(8, "little")])
        results.append(int(noise.sample((1,), lambda n, pieces=pieces: next(pieces))[0]))
    assert results == [0, 1]


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), 1e5])
def test_impossible_scales_are_refused(scale: float) -> None:
    with pytest.raises(ValueError, match="noise scale"):
        DiscreteLaplace(scale)


def test_geometric_noise_sums_up() -> None:
    noise, k = Geometric(2.5), np.arange(60)
    np.testing.assert_allclose(np.exp(noise.log_cdf(k)), np.cumsum(np.exp(noise.log_pmf(k))), rtol=1e-12)
    np.testing.assert_allclose(np.exp(noise.log_cdf(k)) + np.exp(noise.log_sf(k + 1)), 1, rtol=1e-12)


# Continuous noise


def test_uniforms_are_uniform_and_open() -> None:
    draws = uniforms(100_000, seeded_entropy(0))
    assert draws.min() > 0
    assert draws.max() < 1
    assert stats.kstest(draws, "uniform").pvalue > FALSE_ALARM
    assert uniforms(1, lambda n: b"\xff" * n)[0] < 1
    assert uniforms(1, lambda n: b"\x00" * n)[0] > 0


def test_gaussians_are_standard_normal() -> None:
    assert stats.kstest(gaussians(100_000, seeded_entropy(1)), "norm").pvalue > FALSE_ALARM


def test_spherical_laplace_has_the_stated_density() -> None:
    """Norm Gamma(d, 1/rate); each coordinate of the direction distributed alike."""
    entropy = seeded_entropy(2)
    draws = np.stack([spherical_laplace(3, 2.0, entropy) for _ in range(6_000)])
    norms = np.linalg.norm(draws, axis=1)
    assert stats.kstest(norms, stats.gamma(3, scale=0.5).cdf).pvalue > FALSE_ALARM
    for coordinate in (draws / norms[:, None]).T:  # on a sphere in three dimensions each coordinate is uniform
        assert stats.kstest(coordinate, stats.uniform(-1, 2).cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("probability", [0.0, 0.01, 0.7, 1.0])
def test_bernoulli_meets_its_probability(probability: float) -> None:
    heads = int(bernoulli(200_000, probability, seeded_entropy(4)).sum())
    assert stats.binomtest(heads, 200_000, probability).pvalue > FALSE_ALARM


def test_exponential_choice_has_the_stated_odds() -> None:
    entropy, scores, epsilon = seeded_entropy(5), np.array([-3.0, -1.0, 0.0]), 1.3
    counts = np.bincount([exponential_choice(scores, epsilon, entropy) for _ in range(8_000)], minlength=3)
    expected = np.exp(epsilon * scores / 2)
    assert stats.chisquare(counts, 8_000 * expected / expected.sum()).pvalue > FALSE_ALARM


def test_bernoulli_rounds_its_probability_down() -> None:
    assert not bernoulli(1, 2.0**-54, lambda n: b"\x00" * n)[0]
    assert bernoulli(1, 2.0**-53, lambda n: b"\x00" * n)[0]


def test_a_gaussian_is_made_of_four_draws() -> None:
    """The low bits of a single draw by inversion could tell what it was added to."""
    taken: list[int] = []

    def entropy(n: int) -> bytes:
        taken.append(n)
        return seeded_entropy(0)(n)

    gaussians(7, entropy)
    assert sum(taken) == 4 * 8 * 7
