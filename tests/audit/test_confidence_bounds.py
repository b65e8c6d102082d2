"""Bounds from attacks: against closed forms, brute force and mechanisms whose ε is known."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import binom, binomtest

from pate.audit.confidence_bounds import (
    epsilon_from_pairs,
    epsilon_from_rates,
    one_run_epsilon,
    one_run_p_value,
    plan,
)


def tail(n, k, p):
    """P[Binomial(n, p) ≥ k], term by term."""
    return math.fsum(math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(max(k, 0), n + 1))


@pytest.mark.parametrize(("guesses", "correct"), [(1, 1), (10, 10), (40, 31), (300, 210)])
def test_without_delta_the_bound_is_where_the_binomial_tail_is_the_miss(guesses, correct):
    epsilon = one_run_epsilon(1000, guesses, correct, 0.0, 0.95)
    if epsilon == 0:
        assert tail(guesses, correct, 0.5) >= 0.05
    else:
        assert tail(guesses, correct, 1 / (1 + math.exp(-epsilon))) == pytest.approx(0.05, rel=1e-6)


def test_all_right_has_a_closed_form():
    right = 0.05 ** (1 / 200)
    assert one_run_epsilon(200, 200, 200, 0.0, 0.95) == pytest.approx(math.log(right / (1 - right)))


@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.05])
@pytest.mark.parametrize(("guesses", "correct"), [(7, 5), (20, 20), (30, 24)])
def test_the_p_value_is_the_theorems_formula_term_by_term(guesses, correct, delta):
    m, epsilon = 50, 0.7
    q = 1 / (1 + math.exp(-epsilon))
    f = {v: tail(guesses, v, q) for v in range(-m, guesses + 2)}
    worst = max((f[correct - i] - f[correct]) / i for i in range(1, m + 1))
    expected = min(1.0, f[correct] + 2 * m * delta * worst)
    assert one_run_p_value(m, guesses, correct, epsilon, delta) == pytest.approx(expected, rel=1e-9)


def rises(values):
    return all(a <= b + 1e-9 for a, b in pairwise(values))


def test_bounds_are_monotone_in_everything():
    def of(m=400, r=200, v=160, delta=1e-5, confidence=0.95):
        return one_run_epsilon(m, r, v, delta, confidence)

    assert rises([of(v=v) for v in range(0, 201, 5)])
    assert rises([of(r=r) for r in range(400, 159, -10)])
    assert rises([of(m=m) for m in (100_000, 10_000, 1000, 400, 200)])
    assert rises([of(delta=d) for d in (0.5, 0.01, 1e-3, 1e-5, 1e-9, 0.0)])
    assert rises([of(confidence=c) for c in (1 - 1e-6, 0.999, 0.95, 0.5, 0.1)])
    assert rises([one_run_epsilon(m, m, m, 1e-7, 0.95) for m in (1, 2, 5, 10, 100, 1000, 10_000)])

    def rates(tp=80, p=100, fp=5, n=100, delta=1e-5, confidence=0.95):
        return epsilon_from_rates(tp, p, fp, n, delta, confidence)

    assert rises([rates(tp=tp) for tp in range(50, 101)])
    assert rises([rates(fp=fp) for fp in range(20, -1, -1)])
    assert rises([rates(delta=d) for d in (0.9, 0.1, 0.01, 0.0)])
    assert rises([rates(confidence=c) for c in (0.999, 0.95, 0.5)])
    assert rises([rates(8 * k, 10 * k, k, 10 * k) for k in (1, 3, 10, 100, 1000)])


@pytest.mark.parametrize("delta", [0.0, 1e-6, 1e-4, 0.01])
def test_a_larger_epsilon_is_never_easier_to_refute(delta):
    """So that where `one_run_epsilon` halves the interval, it ends at the first ε that stands."""
    for guesses, correct in ((10, 9), (100, 70), (100, 100), (1000, 600), (1000, 990)):
        values = [one_run_p_value(1000, guesses, correct, e, delta) for e in np.linspace(0, 12, 200)]
        refuted = [value < 0.2 for value in values]
        assert refuted == sorted(refuted, reverse=True)


def test_nobody_shows_more_than_the_best():
    m, delta, confidence = 12, 1e-3, 0.9
    found = [one_run_epsilon(m, r, v, delta, confidence) for r in range(m + 1) for v in range(r + 1)]
    assert max(found) == pytest.approx(one_run_epsilon(m, m, m, delta, confidence))


def test_randomised_response_is_not_accused_and_nearly_shown():
    """Each canary's coin is told by randomised response: exactly ε-DP. False alarm of this test: 1e-6."""
    rng = np.random.default_rng(1)
    epsilon, m, trials, confidence = 1.0, 2000, 400, 0.9
    right = rng.binomial(m, 1 / (1 + math.exp(-epsilon)), trials)
    shown = {v: one_run_epsilon(m, m, v, 0.0, confidence) for v in set(right.tolist())}
    found = np.array([shown[v] for v in right.tolist()])
    assert binomtest(int((found > epsilon).sum()), trials, 1 - confidence, alternative="greater").pvalue > 1e-6
    assert (found > epsilon).any()  # and no slack is left: at this confidence some are above
    assert np.median(found) == pytest.approx(plan([m], 0.0, confidence, epsilon)[0].expected, abs=0.02)
    assert 0.9 * epsilon < np.median(found) < epsilon
    many = plan([10**6], 0.0, 0.95, epsilon)[0].expected
    assert 0.99 * epsilon < many < epsilon


def test_a_run_that_fails_with_probability_delta_is_not_accused_more_often():
    """With probability m·δ everything is told, else nothing: (0, δ')-DP for δ' = m·δ. False alarm: 1e-6."""
    rng = np.random.default_rng(2)
    m, delta, trials, confidence = 100, 0.02, 2000, 0.9
    told = rng.random(trials) < delta
    right = np.where(told, m, rng.binomial(m, 0.5, trials))
    shown = {v: one_run_epsilon(m, m, v, delta, confidence) for v in set(right.tolist())}
    accused = sum(shown[v] > 0 for v in right.tolist())
    assert binomtest(accused, trials, 1 - confidence, alternative="greater").pvalue > 1e-6


def test_rates_of_randomised_response_are_not_accused_in_either_direction():
    """False alarm of this test: 1e-6."""
    rng = np.random.default_rng(3)
    epsilon, n, trials, confidence = 1.5, 500, 400, 0.9
    likely = 1 / (1 + math.exp(-epsilon))
    tp, fp = rng.binomial(n, likely, trials), rng.binomial(n, 1 - likely, trials)
    found = np.array([epsilon_from_rates(int(a), n, int(b), n, 0.0, confidence) for a, b in zip(tp, fp, strict=True)])
    assert binomtest(int((found > epsilon).sum()), trials, 1 - confidence, alternative="greater").pvalue > 1e-6
    assert 0.8 * epsilon < np.median(found) < epsilon


def test_rates_use_both_directions():
    """What only tells that somebody is out tells as much as what only tells that somebody is in."""
    into = epsilon_from_rates(300, 1000, 0, 1000, 1e-5, 0.95)
    out = epsilon_from_rates(1000, 1000, 700, 1000, 1e-5, 0.95)
    assert into == pytest.approx(out)
    low = binom.ppf(0.0125, 1000, 0.3) / 1000  # near Clopper and Pearson's limit of the rate that was seen
    assert into == pytest.approx(math.log((low - 1e-5) / (1 - 0.025 ** (1 / 1000))), abs=0.02)


def test_pairs_are_narrower_than_rates_and_as_honest():
    """Two events with p = e^ε·q + δ exactly; as many are accused as stated. False alarm of this test: 1e-6."""
    rng = np.random.default_rng(4)
    epsilon, q, delta, n, trials, confidence = 0.1, 0.02, 1e-4, 200_000, 400, 0.9
    p = math.exp(epsilon) * q + delta
    x, y, both = (
        rng.binomial(n, p * (1 - q), trials),
        rng.binomial(n, q * (1 - p), trials),
        rng.binomial(n, p * q, trials),
    )
    by_pairs, by_rates = [], []
    for a, b, c in zip(x.tolist(), y.tolist(), both.tolist(), strict=True):
        by_pairs.append(epsilon_from_pairs(a, b, c, n, delta, confidence))
        by_rates.append(epsilon_from_rates(a + c, n, b + c, n, delta, confidence))
    accused = int((np.array(by_pairs) > epsilon).sum())
    assert binomtest(accused, trials, 1 - confidence, alternative="greater").pvalue > 1e-6
    assert accused > 0  # and no slack is left
    assert np.median(by_rates) < np.median(by_pairs) < epsilon
    assert epsilon_from_pairs(0, 10, 0, 100, 0.0, 0.95) == epsilon_from_pairs(10, 0, 0, 100, 0.0, 0.95) == 0
    with pytest.raises(ValueError, match="cannot be"):
        epsilon_from_pairs(5, 5, 5, 10, 0.0, 0.95)


def test_what_cannot_be_is_refused():
    for bad in ((10, 5, 6), (10, 11, 3), (10, 5, -1), (0, 0, 0)):
        with pytest.raises(ValueError):
            one_run_epsilon(*bad, 1e-5, 0.95)
    with pytest.raises(ValueError, match="confidence"):
        one_run_epsilon(10, 10, 10, 1e-5, 1.0)
    with pytest.raises(ValueError, match="true_positives"):
        epsilon_from_rates(11, 10, 0, 10, 0.0, 0.95)
    assert one_run_epsilon(10, 0, 0, 1e-5, 0.95) == 0
