"""Continuous noise from entropy. Statistical tests have a false-alarm rate of 1e-6 each."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from pate.noise import bernoulli, exponential_choice, gaussians, seeded_entropy, spherical_laplace, uniforms

FALSE_ALARM = 1e-6


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
    draws = np.stack([spherical_laplace(3, 2.0, entropy) for _ in range(20_000)])
    norms = np.linalg.norm(draws, axis=1)
    assert stats.kstest(norms, stats.gamma(3, scale=0.5).cdf).pvalue > FALSE_ALARM
    for coordinate in (draws / norms[:, None]).T:  # on a sphere in three dimensions each coordinate is uniform
        assert stats.kstest(coordinate, stats.uniform(-1, 2).cdf).pvalue > FALSE_ALARM


def test_in_one_dimension_it_is_laplace() -> None:
    entropy = seeded_entropy(3)
    draws = np.concatenate([spherical_laplace(1, 0.5, entropy) for _ in range(20_000)])
    assert stats.kstest(draws, stats.laplace(scale=2.0).cdf).pvalue > FALSE_ALARM


@pytest.mark.parametrize("probability", [0.0, 0.01, 0.7, 1.0])
def test_bernoulli_meets_its_probability(probability: float) -> None:
    heads = int(bernoulli(200_000, probability, seeded_entropy(4)).sum())
    assert stats.binomtest(heads, 200_000, probability).pvalue > FALSE_ALARM


def test_exponential_choice_has_the_stated_odds() -> None:
    entropy, scores, epsilon = seeded_entropy(5), np.array([-3.0, -1.0, 0.0]), 1.3
    counts = np.bincount([exponential_choice(scores, epsilon, entropy) for _ in range(20_000)], minlength=3)
    expected = np.exp(epsilon * scores / 2)
    assert stats.chisquare(counts, 20_000 * expected / expected.sum()).pvalue > FALSE_ALARM


def test_exponential_choice_survives_scores_far_apart() -> None:
    assert exponential_choice(np.array([-1e9, 0.0]), 5.0) == 1


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
