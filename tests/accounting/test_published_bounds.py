"""The published bounds against a slow oracle, exact two-outcome divergences, and the papers' figures."""

from __future__ import annotations

import math
from functools import cache

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from hypothesis.strategies import DrawFn
from scipy.stats import norm

from pate.accounting import published_bounds
from pate.accounting.exact import exact_cost
from pate.mechanisms import ConfidentGNMax, GNMax, LNMax, Mechanism

ORDERS = np.array([1.01, 1.5, 2.0, 3.0, 7.5, 20.0, 64.0, 300.0])
HISTOGRAMS = np.array(
    [
        [250, 0, 0, 0],
        [249, 1, 0, 0],
        [230, 10, 6, 4],
        [200, 50, 0, 0],
        [140, 100, 5, 5],
        [126, 124, 0, 0],
        [125, 125, 0, 0],
        [63, 63, 62, 62],
        [0, 0, 0, 250],
        [4000, 0, 0, 0],
    ]
)

histograms = hnp.arrays(np.int64, st.tuples(st.integers(1, 6), st.integers(2, 12)), elements=st.integers(0, 400))
deviations = st.floats(1.0, 300.0)
order_lists = st.lists(st.floats(1.01, 500.0), min_size=1, max_size=8).map(sorted)


# The oracle: one query and one order at a time, plain formulas. 1 − q keeps a q of 1e-300 in 400 digits.


def oracle_lnmax_moment(votes: list[int], scale: float, moment: int) -> mp.mpf:
    gamma = 1 / mp.mpf(scale)
    winner = votes.index(max(votes))
    q = mp.mpf(0)
    for label, count in enumerate(votes):
        if label != winner:
            lead = gamma * (votes[winner] - count)
            q += (2 + lead) / (4 * mp.exp(lead))
    candidates = [2 * gamma**2 * moment * (moment + 1), 2 * gamma * moment]
    if q < (mp.exp(2 * gamma) - 1) / (mp.exp(4 * gamma) - 1):
        kept = (1 - q) * ((1 - q) / (1 - mp.exp(2 * gamma) * q)) ** moment
        candidates.append(mp.log(kept + q * mp.exp(2 * gamma * moment)))
    return min(candidates)


def oracle_theorem6(q: mp.mpf, order: float, sigma: mp.mpf) -> mp.mpf:
    order, fallback = mp.mpf(order), mp.mpf(order) / sigma**2
    mu2 = sigma * mp.sqrt(mp.log(1 / q))
    mu1 = mu2 + 1
    if mu2 <= 1 or order > mu1:
        return fallback
    epsilon1, epsilon2 = mu1 / sigma**2, mu2 / sigma**2
    limit = mp.exp((mu2 - 1) * epsilon2) / (mu1 / (mu1 - 1) * mu2 / (mu2 - 1)) ** mu2
    if q > limit or q * mp.exp(epsilon2) >= 1:
        return fallback
    a = (1 - q) / (1 - (q * mp.exp(epsilon2)) ** ((mu2 - 1) / mu2))
    b = mp.exp(epsilon1) / q ** (1 / (mu1 - 1))
    return min(fallback, mp.log((1 - q) * a ** (order - 1) + q * b ** (order - 1)) / (order - 1))


@cache  # the same for every order
def half_erfc(x: mp.mpf, digits: int) -> mp.mpf:
    with mp.workdps(digits):
        return mp.erfc(x) / 2


def oracle_gnmax(votes: list[int], sigma: float, order: float) -> mp.mpf:
    winner = votes.index(max(votes))
    others = [count for label, count in enumerate(votes) if label != winner]
    q = sum(half_erfc((votes[winner] - count) / (2 * mp.mpf(sigma)), mp.mp.dps) for count in others)
    return oracle_theorem6(min(q, 1 - mp.mpf(1) / len(votes)), order, mp.mpf(sigma))


def oracle_pass(votes: list[int], threshold: float, sigma1: float) -> mp.mpf:
    return half_erfc((threshold - max(votes)) / (mp.sqrt(2) * sigma1), mp.mp.dps)


def oracle_threshold(votes: list[int], threshold: float, sigma1: float, order: float) -> mp.mpf:
    passed = oracle_pass(votes, threshold, sigma1)
    failed = half_erfc((max(votes) - threshold) / (mp.sqrt(2) * sigma1), mp.mp.dps)
    return oracle_theorem6(min(passed, failed), order, mp.sqrt(2) * sigma1)


def table(oracle, arguments) -> np.ndarray:
    with mp.workdps(400):
        return np.array([[float(oracle(row, a)) for a in arguments] for row in HISTOGRAMS.tolist()])


@pytest.mark.parametrize("scale", [0.5, 20.0, 150.0])
def test_lnmax_moments_match_the_oracle(scale):
    expected = table(lambda row, moment: oracle_lnmax_moment(row, scale, moment), range(1, 13))
    np.testing.assert_allclose(published_bounds.lnmax_moments(HISTOGRAMS, scale, 12), expected, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize("sigma", [0.8, 40.0, 400.0])
def test_gnmax_rdp_matches_the_oracle(sigma):
    expected = table(lambda row, order: oracle_gnmax(row, sigma, order), ORDERS)
    np.testing.assert_allclose(published_bounds.gnmax_rdp(HISTOGRAMS, sigma, ORDERS), expected, rtol=1e-9, atol=1e-300)


@pytest.mark.parametrize(("threshold", "sigma1"), [(200.0, 150.0), (300.0, 200.0), (200.0, 10.0), (125.0, 2.0)])
def test_confident_gnmax_matches_the_oracle(threshold, sigma1):
    test = table(lambda row, order: oracle_threshold(row, threshold, sigma1, order), ORDERS)
    got = published_bounds.threshold_rdp(HISTOGRAMS, threshold, sigma1, ORDERS)
    np.testing.assert_allclose(got, test, rtol=1e-9, atol=1e-300)

    answer = table(lambda row, order: oracle_pass(row, threshold, sigma1) * oracle_gnmax(row, 40.0, order), ORDERS)
    got = published_bounds.confident_gnmax_expected_rdp(HISTOGRAMS, threshold, sigma1, 40.0, ORDERS)
    np.testing.assert_allclose(got, test + answer, rtol=1e-9, atol=1e-300)

    passed = table(lambda row, _: oracle_pass(row, threshold, sigma1), [0]).sum()
    assert published_bounds.expected_answered(HISTOGRAMS, threshold, sigma1) == pytest.approx(passed, rel=1e-9)


def test_the_oracle_sees_both_sides_of_theorem_6():
    """Else the comparison above would only compare two fallbacks."""
    rdp = published_bounds.gnmax_rdp(HISTOGRAMS, 40.0, ORDERS)
    tightened = rdp < ORDERS / 40.0**2 * (1 - 1e-6)
    assert 5 <= tightened.sum() <= tightened.size - 5


# With two outcomes the true divergence is known in closed form, and the theorems must lie above it.


def renyi(p: np.ndarray, p_fail: np.ndarray, r: np.ndarray, r_fail: np.ndarray, orders: np.ndarray) -> np.ndarray:
    """Rényi divergence of two-outcome distributions given as log-probabilities."""
    parts = [a[:, None] * orders + b[:, None] * (1 - orders) for a, b in ((p, r), (p_fail, r_fail))]
    return np.logaddexp(*parts) / (orders - 1)


@pytest.mark.parametrize("sigma", [3.0, 20.0, 40.0, 120.0])
@pytest.mark.parametrize("moved", [-2, 2])
def test_gnmax_bound_covers_the_true_divergence(sigma, moved):
    lead = np.arange(0, 251)
    counts = np.stack([lead, np.zeros_like(lead)], axis=1)
    here, there = lead / (math.sqrt(2) * sigma), (lead + moved) / (math.sqrt(2) * sigma)
    true = renyi(norm.logcdf(here), norm.logsf(here), norm.logcdf(there), norm.logsf(there), ORDERS)
    assert np.all(true <= published_bounds.gnmax_rdp(counts, sigma, ORDERS) * (1 + 1e-9) + 1e-14)


@pytest.mark.parametrize("sigma1", [3.0, 50.0, 150.0])
@pytest.mark.parametrize("moved", [-1, 1])
def test_threshold_bound_covers_the_true_divergence(sigma1, moved):
    top = np.arange(0, 401)
    counts = np.stack([top, np.zeros_like(top)], axis=1)
    here, there = (top - 200.0) / sigma1, (top + moved - 200.0) / sigma1
    true = renyi(norm.logcdf(here), norm.logsf(here), norm.logcdf(there), norm.logsf(there), ORDERS)
    assert np.all(true <= published_bounds.threshold_rdp(counts, 200.0, sigma1, ORDERS) * (1 + 1e-9) + 1e-14)


@pytest.mark.parametrize("scale", [2.0, 10.0, 20.0])
@pytest.mark.parametrize("moved", [-2, 2])
def test_lnmax_bound_covers_the_true_divergence(scale, moved):
    """Two classes and a lead of 2 or more on both sides: there Lemma 4 is the exact probability."""
    lead = np.arange(4, 251)
    counts = np.stack([lead, np.zeros_like(lead)], axis=1)
    here, there = (np.log((2 + x / scale) / 4) - x / scale for x in (lead, lead + moved))
    moments = np.arange(1.0, 9.0)
    true = moments * renyi(np.log1p(-np.exp(here)), here, np.log1p(-np.exp(there)), there, moments + 1)
    assert np.all(true <= published_bounds.lnmax_moments(counts, scale) * (1 + 1e-9) + 1e-14)


# Invariants.


@given(histograms, deviations, order_lists)
@settings(deadline=None, max_examples=30)
def test_gnmax_rdp_invariants(counts, sigma, orders):
    orders = np.array(orders)
    rdp = published_bounds.gnmax_rdp(counts, sigma, orders)
    assert rdp.shape == (len(counts), orders.size)
    assert np.all((rdp >= 0) & (rdp <= orders / sigma**2))
    assert np.all(np.diff(rdp, axis=1) >= -1e-12 * rdp[:, 1:])
    np.testing.assert_allclose(published_bounds.gnmax_rdp(counts[:, ::-1], sigma, orders), rdp, rtol=1e-12)


@given(histograms, st.floats(-100.0, 500.0), deviations, order_lists)
@settings(deadline=None, max_examples=30)
def test_threshold_rdp_invariants(counts, threshold, sigma1, orders):
    orders = np.array(orders)
    rdp = published_bounds.threshold_rdp(counts, threshold, sigma1, orders)
    assert np.all((rdp >= 0) & (rdp <= orders / (2 * sigma1**2) * (1 + 1e-12)))
    assert np.all(np.diff(rdp, axis=1) >= -1e-12 * rdp[:, 1:])
    expected = published_bounds.confident_gnmax_expected_rdp(counts, threshold, sigma1, 40.0, orders)
    assert np.all((expected >= rdp) & (expected <= rdp + published_bounds.gnmax_rdp(counts, 40.0, orders)))
    assert 0 <= published_bounds.expected_answered(counts, threshold, sigma1) <= len(counts)


@given(histograms, st.floats(0.5, 200.0), st.integers(1, 40))
@settings(deadline=None, max_examples=30)
def test_lnmax_moment_invariants(counts, scale, lambda_max):
    moments = published_bounds.lnmax_moments(counts, scale, lambda_max)
    index = np.arange(1, lambda_max + 1)
    assert moments.shape == (len(counts), lambda_max)
    assert np.all(moments >= 0)
    assert np.all(moments <= np.minimum(2 / scale**2 * index * (index + 1), 2 / scale * index) * (1 + 1e-12))
    assert np.all(np.diff(moments / index, axis=1) >= -1e-12 * moments[:, 1:])


def test_each_query_is_priced_on_its_own():
    """Rows with the same q are computed once; every row must still get its own figure, in its own place."""
    shuffled = np.random.default_rng(0).integers(0, len(HISTOGRAMS), size=50)
    whole = published_bounds.gnmax_rdp(HISTOGRAMS[shuffled], 40.0, ORDERS)
    np.testing.assert_array_equal(whole, published_bounds.gnmax_rdp(HISTOGRAMS, 40.0, ORDERS)[shuffled])


def test_a_lead_that_no_noise_can_overturn_costs_nothing():
    assert np.all(published_bounds.gnmax_rdp([[10**6, 0]], 1e-3, [2.0, 10.0]) == 0.0)
    assert np.all(published_bounds.threshold_rdp([[10**6, 0]], 200.0, 1e-3, [2.0, 10.0]) == 0.0)
    assert np.all(published_bounds.lnmax_moments([[10**6, 0]], 1e-3) == 0.0)


def test_conversion():
    epsilon, order = published_bounds.epsilon_from_rdp([2.0, 11.0], [0.1, 0.2], 1e-5)
    assert (epsilon, order) == (pytest.approx(0.2 + math.log(1e5) / 10), 11.0)
    assert published_bounds.epsilon_from_rdp([2.0, 3.0], [0.5, np.inf], 1e-5)[1] == 2.0


# The theorems bound the forward direction of the exact cost, for noise of 5 votes or more.

FEW_ORDERS = np.array([1.5, 2.0, 4.0, 9.0, 20.0])


@st.composite
def large_histograms(draw: DrawFn) -> np.ndarray:
    """A few histograms of up to 500 teachers and 20 classes, from unanimous to even."""
    n_teachers, n_classes = draw(st.integers(1, 500)), draw(st.integers(2, 20))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    shares = rng.dirichlet(np.full(n_classes, draw(st.sampled_from([0.02, 0.2, 1.0, 20.0]))), size=3)
    return rng.multinomial(n_teachers, shares)


@given(counts=large_histograms(), scale=st.floats(5, 60))
@settings(max_examples=12, deadline=None)
def test_lnmax_forward_is_within_theorem_3(counts: np.ndarray, scale: float) -> None:
    cost = exact_cost(LNMax(scale), counts, np.arange(2.0, 10.0))
    moments = np.arange(1, 9)
    published = published_bounds.lnmax_moments(counts, scale, 8) / moments
    assert (cost.forward <= published * (1 + 1e-9) + 1e-12).all()
    _is_a_divergence(cost.forward)
    _is_a_divergence(cost.backward)


@given(counts=large_histograms(), sigma=st.floats(5, 80))
@settings(max_examples=12, deadline=None)
def test_gnmax_forward_is_within_theorem_6(counts: np.ndarray, sigma: float) -> None:
    cost = exact_cost(GNMax(sigma), counts, FEW_ORDERS)
    assert (cost.forward <= published_bounds.gnmax_rdp(counts, sigma, FEW_ORDERS) * (1 + 1e-9) + 1e-12).all()
    _is_a_divergence(cost.forward)


def _is_a_divergence(rdp: np.ndarray) -> None:
    assert (rdp >= 0).all()
    assert (np.diff(rdp, axis=1) >= -1e-12).all()


@given(counts=large_histograms(), name=st.sampled_from(["lnmax", "gnmax", "confident"]), noise=st.floats(5, 40))
@settings(max_examples=12, deadline=None)
def test_no_histogram_costs_more_than_the_worst_case(counts: np.ndarray, name: str, noise: float) -> None:
    """Both directions, any number of classes: what makes ε publishable."""
    noise = round(noise)
    mechanisms: dict[str, Mechanism] = {
        "lnmax": LNMax(noise),
        "gnmax": GNMax(noise),
        "confident": ConfidentGNMax(threshold=0.6 * counts.sum(axis=1)[0], sigma1=2.0 * noise, sigma2=noise),
    }
    mechanism = mechanisms[name]
    cost = exact_cost(mechanism, counts, np.array([2.0, 9.0]))
    for i, order in enumerate((2.0, 9.0)):
        claimed = mechanism.worst_case(1, 1).rdp_at(order)  # type: ignore[attr-defined]
        assert max(cost.forward[:, i].max(), cost.backward[:, i].max()) <= claimed * (1 + 1e-9)


# The papers' figures, from the authors' own votes.


@pytest.mark.parametrize(
    ("name", "queries", "scale", "delta", "epsilon"),
    [("mnist", 100, 20.0, 1e-5, 2.043), ("svhn", 500, 10.0, 1e-6, 5.041), ("svhn", 1000, 10.0, 1e-6, 8.192)],
)
def test_lnmax_figures_of_2017(authors_votes, name, queries, scale, delta, epsilon):
    got = published_bounds.lnmax_epsilon(authors_votes(name)[:queries], scale, delta, lambda_max=8)
    assert got == pytest.approx(epsilon, abs=0.002)


@pytest.mark.parametrize(
    ("name", "queries", "threshold", "sigma1", "delta", "epsilon", "tolerance"),
    [("mnist", 640, 200.0, 150.0, 1e-5, 2.00, 0.01), ("svhn", 8500, 300.0, 200.0, 1e-6, 4.92, 0.02)],
)
def test_confident_gnmax_figures_of_2018(authors_votes, name, queries, threshold, sigma1, delta, epsilon, tolerance):
    counts, orders = authors_votes(name)[:queries], published_bounds.DEFAULT_ORDERS
    total = published_bounds.confident_gnmax_expected_rdp(counts, threshold, sigma1, 40.0, orders).sum(axis=0)
    got, order = published_bounds.epsilon_from_rdp(orders, total, delta)
    assert got == pytest.approx(epsilon, abs=tolerance)
    assert orders[0] < order < orders[-1]


def test_expected_answers_on_mnist(authors_votes):
    """282.7 with continuous noise. Integer noise passes half a vote more easily, and answers 283.5."""
    counts = authors_votes("mnist")[:640]
    assert published_bounds.expected_answered(counts, 200.0, 150.0) == pytest.approx(282.72, abs=0.01)
    assert published_bounds.expected_answered(counts, 199.5, 150.0) == pytest.approx(283.54, abs=0.01)
