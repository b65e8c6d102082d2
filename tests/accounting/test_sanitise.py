"""Releasing a data-dependent ε: its cost against quadrature, its sampler, its guarantee end to end."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy.special import logsumexp, ndtri
from scipy.stats import binomtest, kstest, norm

from pate.accounting import sanitise
from pate.accounting.composition import epsilon_of_rdp, rdp_epsilon
from pate.accounting.sanitise import (
    PrivateCost,
    WithRelease,
    answers_cost,
    epsilon_sanitised,
    release_rdp,
    standard_normal,
)
from pate.mechanisms import GNMax
from pate.noise.integer import TV_ERROR_PER_DRAW, DiscreteGaussian

FALSE_ALARM = 1e-6


def seeded(seed: int) -> sanitise.Entropy:
    return np.random.default_rng(seed).bytes


def divergence(order: float, mean: float, scale: float, other_mean: float, other_scale: float) -> float:
    """Rényi divergence of two normal distributions by the trapezoidal rule, exact to rounding here."""
    y = np.linspace(-600, 600, 60_001)
    density = order * norm.logpdf(y, mean, scale) + (1 - order) * norm.logpdf(y, other_mean, other_scale)
    return float((logsumexp(density) + math.log(y[1] - y[0])) / (order - 1))


CASES = [(14.0, 0.4 / 14, 5.0, 0.0), (14.0, 0.01, 4.0, 4.4), (2.5, 0.2, 3.0, 1.0), (6.0, 0.05, 2.0, 3.0)]


@pytest.mark.parametrize(("order", "beta", "sigma", "quantile"), CASES)
def test_cost_is_the_divergence_at_its_worst(order: float, beta: float, sigma: float, quantile: float) -> None:
    cost = release_rdp(order, beta, sigma, quantile)
    for log_ratio, sign in itertools.product(np.linspace(-beta, beta, 5), (-1, 0.5, 1)):
        ratio = math.exp(log_ratio)
        other_mean = sign * min(1.0, ratio) + ratio * sigma * quantile
        found = divergence(order, sigma * quantile, sigma, other_mean, ratio * sigma)
        assert found <= cost * (1 + 1e-9)
    shrunk = math.exp(-beta)
    worst = divergence(order, sigma * quantile, sigma, shrunk * (sigma * quantile - 1), shrunk * sigma)
    assert worst == pytest.approx(cost, rel=1e-8)


def test_theorem_23_as_published_is_too_small() -> None:
    """Why the paper's formula is not used: a pair of normals within its premises diverges by more."""
    order, beta, sigma = 14.0, 0.4 / 14, 5.0
    published = order * math.exp(2 * beta) / sigma**2
    published += (order * beta - 0.5 * math.log(1 - 2 * order * beta)) / (order - 1)
    shrunk = math.exp(-beta)
    assert divergence(order, 0.0, sigma, shrunk, shrunk * sigma) > 1.7 * published


@pytest.mark.parametrize("order", [1.5, 2.0, 14.0, 100.0])
def test_beta_has_a_limit(order: float) -> None:
    limit = math.log(order / (order - 1)) / 2
    assert math.isfinite(release_rdp(order, 0.999 * limit, 5.0))
    for beta in (1.0001 * limit, 0.0, -0.1):
        with pytest.raises(ValueError, match="must lie between"):
            release_rdp(order, beta, 5.0)


def test_standard_normal_is_normal() -> None:
    entropy = seeded(1)
    draws = np.array([float(standard_normal(entropy)) for _ in range(1_500)])
    assert kstest(draws, norm.cdf).pvalue > FALSE_ALARM
    assert kstest(np.abs(draws) % 1 % 2**-8 * 2**8, "uniform").pvalue > FALSE_ALARM


def test_exact_coins() -> None:
    entropy = seeded(2)
    for numerator, denominator in ((1, 3), (7, 2), (1, 1), (0, 1)):
        heads = sum(sanitise._coin_exp(Fraction(numerator, denominator), entropy) for _ in range(2000))
        assert binomtest(heads, 2000, math.exp(-numerator / denominator)).pvalue > FALSE_ALARM


def private_cost() -> PrivateCost:
    return answers_cost([[30, 12, 8], [28, 12, 10]] * 10, DiscreteGaussian(5.0), 5.0)


def test_figure_is_an_upper_bound_except_with_the_failure_probability() -> None:
    cost, entropy, draws, failure = private_cost(), seeded(3), 800, 0.2
    own = release_rdp(5.0, 0.02 + sanitise.ROUNDING, 4.0, float(-ndtri(failure)))
    low = 0
    for _ in range(draws):
        released = epsilon_sanitised(cost, beta=0.02, sigma_ss=4.0, delta=0.3, failure=failure, entropy=entropy)
        low += released.rdp_bound < cost.rdp
        assert released.rdp_bound <= cost.worst_case_rdp
        assert released.epsilon == pytest.approx(epsilon_of_rdp(released.rdp_bound + own, 5.0, 0.1))
    assert binomtest(low, draws, failure, alternative="greater").pvalue > FALSE_ALARM
    assert low > draws * failure / 2  # rounding up and the clip take little


def test_releases_lie_on_a_public_grid() -> None:
    cost, entropy = private_cost(), seeded(4)
    for _ in range(20):
        bound = epsilon_sanitised(cost, beta=0.02, sigma_ss=1.5, delta=1e-5, entropy=entropy).rdp_bound
        assert bound == cost.worst_case_rdp or bound * 1000 == pytest.approx(round(bound * 1000), abs=1e-9)


def test_guarantee_end_to_end() -> None:
    """E[1 - exp(ε(o) - privacy loss of label and figure)]+ <= delta for all neighbours, by quadrature."""
    n_teachers, sigma, order, beta, sigma_ss, failure, left = 12, 2.0, 3.0, 0.05, 1.5, 0.02, 0.03
    quantile = float(-ndtri(failure))
    own = release_rdp(order, beta, sigma_ss, quantile)
    noise = np.linspace(-9, 9, 20_001)
    weight = norm.pdf(noise) / norm.pdf(noise).sum()
    figures = [answers_cost([[c, n_teachers - c]], DiscreteGaussian(sigma), order) for c in range(n_teachers + 1)]
    scales = [sigma_ss * figure.smooth_sensitivity(beta) for figure in figures]
    worst_excess = 0.0
    for c, step in itertools.product(range(n_teachers + 1), (-1, 1)):
        if not 0 <= c + step <= n_teachers:
            continue
        here, there = c, c + step
        released = figures[here].rdp + scales[here] * (quantile + noise)
        shifted = (released - figures[there].rdp) / scales[there] - quantile
        loss = norm.logpdf(noise) - math.log(scales[here]) - norm.logpdf(shifted) + math.log(scales[there])
        bound = np.minimum(released, figures[here].worst_case_rdp)
        epsilon = epsilon_of_rdp(0.0, order, left) + bound + own
        too_large = 0.0
        for sign in (-1, 1):
            votes = [(count, n_teachers - count)[::sign] for count in (here, there)]
            log_p, log_q = GNMax(sigma).log_outcomes(np.array(votes))[:, 0]
            excess = -np.expm1(np.minimum(epsilon - loss - log_p + log_q, 0.0))
            too_large += math.exp(log_p) * float(weight @ excess)
        worst_excess = max(worst_excess, too_large)
    assert worst_excess <= failure + left


def test_refusals() -> None:
    cost = private_cost()
    with pytest.raises(ValueError, match=r"failure = 0\.0001: must be"):
        epsilon_sanitised(cost, beta=0.02, sigma_ss=4.0, delta=1e-5, failure=1e-4)
    with pytest.raises(ValueError, match=r"sigma_ss = 0\.0: must be"):
        release_rdp(5.0, 0.02, 0.0)
    with pytest.raises(ValueError, match="too large to sanitise"):
        epsilon_sanitised(
            answers_cost([[9, 1]] * 20_000, DiscreteGaussian(5.0), 3.0), beta=0.02, sigma_ss=4.0, delta=1e-5
        )


def test_the_error_of_the_labels_noise_is_charged_to_delta() -> None:
    """(1 + e^ε)·τ for each draw, ε the largest there can be: off δ, or refused where nothing is left."""
    few, many = (
        epsilon_sanitised(
            replace(private_cost(), label_draws=draws), beta=0.02, sigma_ss=4.0, delta=1e-5, entropy=seeded(6)
        )
        for draws in (0, 2**60)
    )
    largest = many.release_rdp + private_cost().worst_case_rdp + math.log(2 / 9e-6) / 4
    left = 9e-6 - (1 + math.exp(largest)) * 2**60 * TV_ERROR_PER_DRAW
    assert few.epsilon < many.epsilon == pytest.approx(epsilon_of_rdp(many.rdp_bound + many.release_rdp, 5.0, left))
    with pytest.raises(ValueError, match="too large to sanitise"):
        epsilon_sanitised(replace(private_cost(), label_draws=2**85), beta=0.02, sigma_ss=4.0, delta=1e-5)


def test_the_figure_is_the_noisy_cost_shifted_and_rounded_up() -> None:
    """Drawn again from the same bytes: the cost, a quantile and the noise, next above on the grid of a thousandth."""
    cost, beta, sigma_ss, failure = private_cost(), 0.02, 1.5, 0.2
    between = 0
    for seed in range(30):
        options = {"beta": beta, "sigma_ss": sigma_ss, "delta": 0.3, "failure": failure}
        bound = epsilon_sanitised(cost, **options, entropy=seeded(seed)).rdp_bound
        noise = -ndtri(failure) + float(standard_normal(seeded(seed)))
        noisy = cost.rdp + cost.smooth_sensitivity(beta) * sigma_ss * noise
        if 0 < noisy < cost.worst_case_rdp:
            between += 1
            assert -1e-9 <= bound - noisy < 1e-3 + 1e-6 or bound == cost.worst_case_rdp
    assert between > 10


def test_the_budget_counts_what_the_figure_costs() -> None:
    """Labels and figure together, at the figure's order, with the shift of a figure that fails with a tenth of δ."""
    labels, delta = GNMax(20.0).worst_case(50, 50), 1e-5
    together = WithRelease.of(labels, 8.0, 0.02, 4.0, delta)
    own = release_rdp(8.0, 0.02 + sanitise.ROUNDING, 4.0, float(-ndtri(delta / 10)))
    assert own > release_rdp(8.0, 0.02 + sanitise.ROUNDING, 4.0, 0.0)
    expected = rdp_epsilon(np.array([8.0]), np.array([labels.rdp_at(8.0) + own]), delta)[0]
    assert together.epsilon(delta) == pytest.approx(expected, rel=1e-12)


def test_nine_tenths_of_delta_are_left_for_the_conversion() -> None:
    released = epsilon_sanitised(private_cost(), beta=0.02, sigma_ss=4.0, delta=1e-5)
    expected = epsilon_of_rdp(released.rdp_bound + released.release_rdp, 5.0, 9e-6)
    assert released.epsilon == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("label_draws", [0, 2**60, 2**85])
@pytest.mark.parametrize("sigma", [0.3, 5.0, 40.0])
def test_what_is_refused_at_the_end_is_refused_before_anything_is_spent(label_draws: int, sigma: float) -> None:
    """`check_release` by the limits alone; a figure of labels that used them up then finds as much of δ left."""
    labels = GNMax(sigma).worst_case(20, 20)
    cost = PrivateCost(5.0, float(labels.rdp(np.array([5.0]))[0]), label_draws, 0.1, np.array([0.01]))
    refused = []
    for call in (
        lambda: sanitise.check_release(labels, 5.0, 0.02, 4.0, 1e-5, label_draws),
        lambda: epsilon_sanitised(cost, beta=0.02, sigma_ss=4.0, delta=1e-5),
    ):
        try:
            call()
            refused.append(False)
        except ValueError:
            refused.append(True)
    assert refused[0] == refused[1] == (sigma == 0.3 or label_draws == 2**85)
