"""The calculators against worked examples, closed forms, and dp_accounting."""

from __future__ import annotations

import math

import dp_accounting
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from pate.accounting import calculators as calc

SGD = {"q": 0.01, "sigma": 4.0, "steps": 10_000, "delta": 1e-5}  # the example of Abadi et al. 2016


# Amplification and groups.


def test_amplification_worked_example():
    exact, linear = calc.amplify_exact(1.0, 1e-5, 0.01), calc.amplify_linear(1.0, 1e-5, 0.01)
    assert exact == (pytest.approx(math.log(1 + 0.01 * (math.e - 1))), pytest.approx(1e-7))
    assert linear == (pytest.approx(0.02), pytest.approx(1e-7))


@given(st.floats(0.0, 500.0), st.floats(1e-6, 1.0))
@settings(deadline=None, max_examples=40)
def test_exact_amplification_matches_the_oracle(epsilon, rate):
    with mp.workdps(300):
        expected = float(mp.log(1 + mp.mpf(rate) * mp.expm1(mp.mpf(epsilon))))
    assert calc.amplify_exact(epsilon, 0.0, rate).epsilon == pytest.approx(expected, rel=1e-9, abs=1e-300)


@given(st.floats(0.0, 700.0), st.floats(1e-6, 1.0))
@settings(deadline=None, max_examples=40)
def test_the_lectures_amplification_holds_for_any_epsilon(epsilon, rate):
    lecture = calc.amplify_lecture(epsilon, 1e-6, rate)
    with mp.workdps(330):
        expected = float(2 * mp.mpf(rate) * (mp.exp(epsilon) - mp.exp(-epsilon)))
    assert lecture == (pytest.approx(expected, rel=1e-9), pytest.approx(rate * 1e-6))
    assert lecture.epsilon >= calc.amplify_exact(epsilon, 1e-6, rate).epsilon * (1 - 1e-12)


def test_amplification_of_very_weak_guarantees():
    assert calc.amplify_exact(5000.0, 0.0, 0.5).epsilon == pytest.approx(5000.0 - math.log(2))
    assert calc.amplify_exact(math.inf, 0.0, 0.5).epsilon == math.inf


def test_group_privacy_worked_example():
    assert calc.group_privacy(0.5, 1e-6, 3) == (pytest.approx(1.5), pytest.approx(3 * math.e * 1e-6))
    assert calc.group_privacy(0.5, 1e-6, 1) == (0.5, pytest.approx(1e-6))
    assert calc.group_privacy(2.0, 0.0, 1000) == (2000.0, 0.0)
    assert calc.group_privacy(10.0, 1e-6, 1000).delta == 1.0


# Accuracy and calibration.


def test_laplace_accuracy_worked_example():
    assert calc.laplace_accuracy(20.0, 10, 0.05) == pytest.approx(20 * math.log(200))


def test_laplace_accuracy_holds_in_simulation():
    """False-alarm rate below 1e-6: the failure rate lies in [β − β²/2, β]; 5.5 deviations on each side."""
    trials, beta = 20_000, 0.05
    allowed = 5.5 * math.sqrt(trials * beta)
    noise = np.random.default_rng(7).laplace(scale=20.0, size=(trials, 10))
    failures = int((np.abs(noise).max(axis=1) > calc.laplace_accuracy(20.0, 10, beta)).sum())
    assert trials * (beta - beta**2 / 2) - allowed <= failures <= trials * beta + allowed


def gaussian_delta(epsilon: float, sigma: float, sensitivity: float) -> float:
    """Balle and Wang 2018, Theorem 8."""
    near, far = sensitivity / (2 * sigma), epsilon * sigma / sensitivity
    return float(norm.cdf(near - far) - math.exp(epsilon) * norm.cdf(-near - far))


@pytest.mark.parametrize("sensitivity", [1.0, math.sqrt(2)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (0.5, 1e-5), (1.0, 1e-5), (8.0, 1e-5)])
def test_analytic_calibration_is_exact(epsilon, delta, sensitivity):
    sigma = calc.gaussian_sigma_analytic(epsilon, delta, sensitivity)
    assert gaussian_delta(epsilon, sigma, sensitivity) == pytest.approx(delta, rel=1e-6)
    if epsilon <= 1:
        assert sigma < calc.gaussian_sigma_classic(epsilon, delta, sensitivity)


def test_classic_calibration_worked_example():
    assert calc.gaussian_sigma_classic(0.5, 1e-5, 2.0) == pytest.approx(math.sqrt(2 * math.log(1.25e5)) * 4)


# Composition.


def test_composition_worked_example():
    assert calc.compose_basic(0.1, 1e-8, 100) == (pytest.approx(10.0), pytest.approx(1e-6))
    advanced = calc.compose_advanced(0.1, 1e-8, 100, 9e-6)
    expected = math.sqrt(200 * math.log(1 / 9e-6)) * 0.1 + 10 * math.expm1(0.1)
    assert advanced == (pytest.approx(expected), pytest.approx(1e-5))
    assert calc.compose_optimal(0.1, 1e-8, 100, 1e-5).epsilon == pytest.approx(4.330, abs=1e-3)


@given(st.floats(0.01, 1.5), st.integers(1, 60), st.floats(1e-7, 1e-2))
@settings(deadline=None, max_examples=40)
def test_optimal_composition_is_never_beaten(epsilon, k, slack):
    advanced = calc.compose_advanced(epsilon, slack / (2 * k), k, slack / 2)
    optimal = calc.compose_optimal(epsilon, slack / (2 * k), k, advanced.delta)
    assert optimal.epsilon <= min(advanced.epsilon, k * epsilon) * (1 + 1e-9)


# DP-SGD.


def test_moments_accountant_of_abadi():
    assert calc.moments_epsilon(**SGD) == pytest.approx(1.26, abs=0.005)
    assert calc.moments_epsilon(**SGD, conversion="tight") == pytest.approx(1.04, abs=0.005)


def test_moments_match_the_binomial_sum():
    """The closed form at whole orders (Mironov, Talwar, Zhang 2019, Section 3.3), without dp_accounting."""
    q, sigma, steps, delta = 0.05, 1.5, 300, 1e-5
    with mp.workdps(40):
        best = min(
            (steps * mp.log(oracle_sampled_gaussian(q, sigma, order)) - mp.log(delta)) / (order - 1)
            for order in range(2, 65)
        )
    assert calc.moments_epsilon(q, sigma, steps, delta, max_order=64) == pytest.approx(float(best), rel=1e-9)


def oracle_sampled_gaussian(q: float, sigma: float, order: int) -> mp.mpf:
    rate, variance = mp.mpf(q), mp.mpf(sigma) ** 2
    return mp.fsum(
        mp.binomial(order, j) * (1 - rate) ** (order - j) * rate**j * mp.exp(j * (j - 1) / (2 * variance))
        for j in range(order + 1)
    )


def test_tight_conversion_is_dp_accountings():
    accountant = dp_accounting.rdp.RdpAccountant(range(2, 257))
    accountant.compose(dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(2.0)), 500)
    got = calc.moments_epsilon(0.02, 2.0, 500, 1e-6, conversion="tight")
    assert got == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-12)
    assert got <= calc.moments_epsilon(0.02, 2.0, 500, 1e-6)


def test_strong_composition_of_abadi():
    assert calc.strong_composition_epsilon(**SGD) == pytest.approx(9.34, abs=0.05)


@pytest.mark.parametrize(
    ("q", "sigma", "steps", "delta"), [(0.01, 4.0, 10_000, 1e-5), (0.1, 0.5, 100, 1e-6), (1e-6, 4.0, 1, 0.1)]
)
def test_strong_composition_finds_the_best_split(q, sigma, steps, delta):
    best = math.inf
    for share in np.linspace(0.0005, 0.9995, 1999):
        delta0 = min(share * delta / (steps * q), 1.0)
        step = q * math.sqrt(2 * math.log(1.25 / delta0)) / sigma
        best = min(best, calc.compose_advanced(step, q * delta0, steps, (1 - share) * delta).epsilon)
    got = calc.strong_composition_epsilon(q, sigma, steps, delta)
    assert best * (1 - 1e-3) <= got <= best * (1 + 1e-9)


# Concentrated differential privacy, and the closed bound on moments.


@given(st.floats(0.5, 1000.0), st.floats(0.1, 10.0), st.integers(1, 1000), st.floats(1e-12, 0.5))
@settings(deadline=None, max_examples=40)
def test_zcdp_of_gaussians_is_what_its_renyi_costs_give(sigma, sensitivity, k, delta):
    rho = k * calc.zcdp_of_gaussian(sigma, sensitivity)
    orders = 1 + math.sqrt(math.log(1 / delta) / rho)  # the best one for α·ρ + ln(1/δ)/(α − 1)
    assert calc.zcdp_epsilon(rho, delta) == pytest.approx(orders * rho + math.log(1 / delta) / (orders - 1))


def test_zcdp_of_a_pure_mechanism_bounds_randomised_response():
    for epsilon in (0.1, 1.0, 4.0):
        p = math.exp(epsilon) / (1 + math.exp(epsilon))
        for order in (1.5, 2.0, 8.0, 64.0):
            moment = p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)
            assert math.log(moment) / (order - 1) <= order * calc.zcdp_of_pure(epsilon) * (1 + 1e-12)


@pytest.mark.parametrize(("q", "sigma", "steps"), [(0.01, 4.0, 10_000), (0.2, 10.0, 100), (0.001, 4.0, 100_000)])
def test_the_closed_bound_is_never_below_the_moments(q, sigma, steps):
    assert calc.closed_moment_epsilon(q, sigma, steps, 1e-5) >= calc.moments_epsilon(q, sigma, steps, 1e-5)


def test_the_closed_bound_says_where_it_does_not_hold():
    assert calc.closed_moment_epsilon(0.3, 4.0, 10, 1e-5) == math.inf
    assert calc.closed_moment_epsilon(0.01, 3.9, 10, 1e-5) == math.inf
    assert calc.closed_moment_epsilon(**SGD) == pytest.approx(2.524, abs=1e-3)
