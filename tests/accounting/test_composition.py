"""Composition against dp-accounting and closed forms; streams of noisy tests against the worst adversary."""

from __future__ import annotations

import itertools
import math
from functools import cache

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate.accounting.composition import (
    ORDERS,
    FixedGuarantee,
    LimitedTests,
    NoisyTest,
    RdpGuarantee,
    RepeatedGuarantee,
    TestLimits,
    randomised_response_rdp,
    rdp_epsilon,
    stream_rdp,
    with_sampling_error,
)
from pate.accounting.worst_case import threshold_test_rdp
from pate.errors import ConfigError
from pate.mechanisms import GNMax, LNMax
from pate.noise.integer import TV_ERROR_PER_DRAW, DiscreteGaussian, DiscreteLaplace


def test_gnmax_costs_what_dp_accounting_says_of_the_gaussian() -> None:
    from dp_accounting import GaussianDpEvent, SelfComposedDpEvent
    from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant(ORDERS)
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(40 / math.sqrt(2)), 1000))
    guarantee = GNMax(40.0).worst_case(1000, 1000).by_renyi()
    closed_form = RdpGuarantee(guarantee.rdp).epsilon(1e-5)
    assert closed_form == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)
    assert 0.6 * closed_form < guarantee.epsilon(1e-5) < closed_form


@given(st.floats(1e-9, 0.5), st.floats(1e-8, 100.0), st.floats(0.0, 1.5), st.booleans())
@settings(deadline=None, max_examples=40)
def test_renyi_costs_convert_as_dp_accounting_converts_them(
    delta: float, size: float, power: float, some_are_infinite: bool
) -> None:
    from dp_accounting.rdp import compute_epsilon

    rdp = size * ORDERS**power
    rdp[ORDERS > 50] = math.inf if some_are_infinite else rdp[ORDERS > 50]
    assert rdp_epsilon(ORDERS, rdp, delta) == pytest.approx(compute_epsilon(ORDERS, rdp, delta), rel=1e-12, abs=1e-14)


def exact_delta(guarantee: RepeatedGuarantee, epsilon: mp.mpf) -> mp.mpf:
    """The δ of Kairouz, Oh, Viswanath 2015, Theorem 3.3, loss by loss."""
    each, times = mp.mpf(guarantee.each_epsilon), guarantee.times
    p, finite = 1 / (1 + mp.exp(-each)), (1 - mp.mpf(guarantee.each_delta)) ** times
    losses = [(positive, (2 * positive - times) * each) for positive in range(times + 1)]
    chances = (
        mp.binomial(times, n) * p**n * (1 - p) ** (times - n) * -mp.expm1(epsilon - loss)
        for n, loss in losses
        if loss > epsilon
    )
    return 1 - finite * (1 - mp.fsum(chances))


@pytest.mark.parametrize(
    ("each_epsilon", "each_delta", "times", "delta"),
    [
        (0.05, 1e-9, 1000, 1e-6),  # here and in the next, losing everything takes nearly all of δ
        (0.3, 1e-9, 1000, 1e-6),
        (0.001, 0.0, 1000, 1e-6),
        (1.0, 1e-9, 100, 1e-5),
        (0.5, 0.0, 1, 0.2),
        (0.1, 0.0, 7, 1e-12),
    ],
)
def test_repeated_guarantees_cost_just_what_the_theorem_says(
    each_epsilon: float, each_delta: float, times: int, delta: float
) -> None:
    guarantee = RepeatedGuarantee(each_epsilon, each_delta, times)
    epsilon = mp.mpf(guarantee.epsilon(delta))
    with mp.workdps(50):
        assert (
            exact_delta(guarantee, epsilon * (1 - mp.mpf(1e-10)))
            > delta
            > exact_delta(guarantee, epsilon * (1 + mp.mpf(1e-10)))
        )


def test_repeated_guarantees_beyond_floating_point_are_bounded_by_the_sum() -> None:
    assert 2500 < RepeatedGuarantee(3.0, 0.0, 1000).epsilon(1e-6) < 3000
    assert RepeatedGuarantee(800.0, 0.0, 3).epsilon(1e-6) == 2400
    assert RepeatedGuarantee(0.1, 1e-6, 100).epsilon(1e-5) == math.inf
    assert RepeatedGuarantee(0.1, 0.0, 100).epsilon(0.0) == pytest.approx(10.0)
    assert RepeatedGuarantee(0.01, 0.0, 4).epsilon(0.9) == 0.0


def test_lnmax_is_never_worse_than_its_pure_epsilon() -> None:
    for scale in (1.0, 20.0):
        for asked in (1, 50):
            assert LNMax(scale).worst_case(asked, asked).by_renyi().epsilon(1e-12) <= 2 * asked / scale * 1.002


def test_randomised_response_rdp_against_the_definition() -> None:
    p = math.exp(0.7) / (1 + math.exp(0.7))
    for order in (1.5, 2.0, 10.0):
        direct = math.log(p**order * (1 - p) ** (1 - order) + (1 - p) ** order * p ** (1 - order)) / (order - 1)
        assert randomised_response_rdp(0.7, np.array([order]))[0] == pytest.approx(direct, rel=1e-12)


def test_finer_and_wider_orders_change_nothing_that_shows() -> None:
    fine = 1 + np.geomspace(1e-4, 1e6, 12_000)
    for mechanism, queries in ((GNMax(8.0), 100), (LNMax(20.0), 100), (LNMax(500.0), 1), (GNMax(1.0), 1000)):
        guarantee = RdpGuarantee(mechanism.worst_case(queries, queries).rdp)  # type: ignore[attr-defined]
        finest = rdp_epsilon(fine, guarantee.rdp(fine), 1e-5)[0]
        assert guarantee.epsilon(1e-5) == pytest.approx(finest, rel=5e-4)


def test_sampling_error_is_charged_to_delta() -> None:
    epsilon_at = GNMax(8.0).worst_case(100, 100).by_renyi().epsilon
    ideal = epsilon_at(1e-5)
    real = with_sampling_error(epsilon_at, 1e-5, 1100 * 2**38)
    assert ideal < real < ideal * 1.001
    assert with_sampling_error(epsilon_at, 1e-5, 1100 * 2**78) == math.inf
    assert with_sampling_error(GNMax(0.05).worst_case(1000, 1000).by_renyi().epsilon, 1e-5, 2**38) == math.inf


@pytest.mark.parametrize("epsilon", [0.0, 2.0, 10.0])
@pytest.mark.parametrize("draws", [0, 1, 40, 1000])
@pytest.mark.parametrize("times", [2**38, 2**58, 2**68])
def test_the_share_set_aside_covers_both_samplers_errors(epsilon: float, draws: int, times: int) -> None:
    """(1 + e^ε)·draws·error comes off δ, and what is left is all that the mechanism may spend."""
    spent: list[float] = []

    def epsilon_at(delta: float) -> float:
        spent.append(delta)
        return epsilon

    needed = (1 + math.exp(epsilon)) * draws * times * TV_ERROR_PER_DRAW
    found = with_sampling_error(epsilon_at, 1e-5, draws * times)
    if needed > 0.5e-5:
        assert found == math.inf
    else:
        assert found == epsilon
        assert spent[-1] + needed <= 1e-5 * (1 + 1e-12)


def test_a_guarantee_holds_at_its_own_delta_and_above() -> None:
    fixed = FixedGuarantee(1.5, 1e-6)
    assert [fixed.epsilon(delta) for delta in (0.0, 0.99e-6, 1e-6, 1e-3)] == [math.inf, math.inf, 1.5, 1.5]
    repeated = RepeatedGuarantee(0.1, 1e-6, 5)
    assert repeated.epsilon(4.9e-6) == math.inf
    assert repeated.epsilon(5.1e-6) == pytest.approx(0.5, rel=1e-3)


def test_costs_that_are_no_numbers_are_refused() -> None:
    for wrong in (math.nan, -1e-9):
        with pytest.raises(ValueError, match="rdp"):
            rdp_epsilon(np.array([2.0, 3.0]), np.array([1.0, wrong]), 1e-5)


# Streams of noisy tests

TESTS = [
    NoisyTest(DiscreteGaussian(1.0), 2, 6),
    NoisyTest(DiscreteGaussian(3.0), 7, 25),
    NoisyTest(DiscreteLaplace(2.0), 4, 20),
    NoisyTest(DiscreteGaussian(20.0), 80, 200),
]
SOME_ORDERS = [1.3, 2.0, 5.0, 17.0]


@cache
def probabilities(test: NoisyTest, score: int) -> tuple[float, float]:
    """To pass and to fail, by a plain sum over the noise."""
    width, missing = 3 * test.noise.half_width(), test.threshold - score
    weights = {z: math.exp(float(test.noise.log_pmf(z))) for z in range(-width, width + 1)}
    return math.fsum(w for z, w in weights.items() if z >= missing), math.fsum(
        w for z, w in weights.items() if z < missing
    )


def worst_moment(test: NoisyTest, limits: TestLimits, order: float) -> float:
    """Σ P^α·Q^(1−α) of the worst adversary, who chooses each pair of scores in view of all answers: value iteration."""
    scores = [probabilities(test, score) for score in range(test.most + 1)]
    pairs = [(a, b) for i, j in ((0, 1), (1, 0)) for a, b in zip(scores[i:], scores[j:], strict=False)]
    moments = [(p**order * q ** (1 - order), f**order * g ** (1 - order)) for (p, f), (q, g) in pairs]

    def value(tests: int, passes: int, failures: int, known: dict[tuple[int, int, int], float]) -> float:
        key = (tests, passes, failures)
        if not all(key):
            return 1.0  # one outcome may not come up any more: the stream has ended
        if key not in known:
            passed, failed = (
                value(tests - 1, passes - 1, failures, known),
                value(tests - 1, passes, failures - 1, known),
            )
            known[key] = max(1.0, *(a * passed + b * failed for a, b in moments))
        return known[key]

    return value(limits.tests, limits.passes, limits.failures, {})


@pytest.mark.parametrize("test", TESTS[:3], ids=str)
@pytest.mark.parametrize("limits", [(1, 1, 1), (6, 6, 1), (12, 12, 3), (12, 2, 12), (9, 4, 5), (30, 30, 30)], ids=str)
def test_charges_cover_the_worst_adversary_and_not_by_much(test: NoisyTest, limits: tuple[int, int, int]) -> None:
    for order in [order for order in SOME_ORDERS if order < 8 * test.noise.scale]:  # else the oracle overflows
        worst = math.log(worst_moment(test, TestLimits(*limits), order)) / (order - 1)
        charged = stream_rdp(test, TestLimits(*limits), order)
        assert worst <= charged * (1 + 1e-9)
        assert charged <= 2.0 * worst, "far more is charged than anybody can find out"


def test_few_failures_cost_far_less_than_all_tests() -> None:
    test, all_of_them = TESTS[3], TestLimits(1000, 1000, 1000)
    alike = stream_rdp(test, all_of_them, 6.0)
    assert alike == pytest.approx(1000 * threshold_test_rdp(test.noise, 6.0), rel=1e-3), "ordinary composition"
    assert stream_rdp(test, TestLimits(1000, 1000, 10), 6.0) < 0.3 * alike
    assert stream_rdp(test, TestLimits(1000, 10, 1000), 6.0) < 0.3 * alike, "either outcome may be the rare one"


@given(
    tests=st.integers(1, 60),
    passes=st.integers(0, 60),
    failures=st.integers(0, 60),
    more=st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
    order=st.sampled_from(SOME_ORDERS),
)
@settings(max_examples=25, deadline=None)
def test_wider_limits_never_cost_less(tests, passes, failures, more, order) -> None:
    limits = (tests, passes, failures)
    wider = tuple(a + b for a, b in zip(limits, more, strict=True))
    assert stream_rdp(TESTS[1], TestLimits(*wider), order) >= stream_rdp(TESTS[1], TestLimits(*limits), order) * (
        1 - 1e-5
    )


def test_the_largest_sum_of_charges_by_trying_every_stream() -> None:
    for tests, passes, failures in itertools.product(range(5), repeat=3):
        for x, y in ((1.0, 3.0), (3.0, 1.0), (0.0, 2.0)):
            streams = (a * x + b * y for a in range(passes + 1) for b in range(failures + 1) if a + b <= tests)
            assert TestLimits(tests, passes, failures).largest(x, y) == max(streams)


def worst_delta(test: NoisyTest, steps: list[tuple[int, int]], failures: int, epsilon: float) -> float:
    """The smallest δ at ε for all streams of three pairs of scores, which end after so many failures: all answers."""
    own, other = (np.array([probabilities(test, step[i]) for step in steps]) for i in (0, 1))
    total = np.zeros((len(steps),) * 3)
    for bits in itertools.product((0, 1), repeat=3):  # 1: failed
        p, q, failed = np.ones((1, 1, 1)), np.ones((1, 1, 1)), 0
        for place, bit in enumerate(bits):
            if failed == failures:  # nothing is asked any more
                p, q = (0 * p, 0 * q) if bit else (p, q)
                continue
            shape = np.roll([-1, 1, 1], place)
            p, q = p * own[:, bit].reshape(shape), q * other[:, bit].reshape(shape)
            failed += bit
        total = total + np.maximum(0.0, p - math.exp(epsilon) * q)
    return float(total.max())


@pytest.mark.parametrize("test", TESTS[:2], ids=str)
@pytest.mark.parametrize("failures", [1, 2, 3])
def test_epsilon_holds_for_every_short_stream(test: NoisyTest, failures: int) -> None:
    guarantee = LimitedTests(test, TestLimits(3, 3, failures), 0.0)
    scores = range(test.most + 1)
    steps = [(a, b) for a in scores for b in (a - 1, a + 1) if b in scores]
    for delta in (0.2, 1e-2, 1e-4):
        epsilons = guarantee.by_method(delta)
        assert guarantee.epsilon(delta) == epsilons["Rényi, limits on both answers"]
        assert worst_delta(test, steps, failures, min(epsilons.values())) <= delta * (1 + 1e-9), epsilons


def test_what_is_lost_is_charged_to_delta() -> None:
    limits = TestLimits(50, 50, 5)
    clean, lossy = LimitedTests(TESTS[3], limits, 0.0), LimitedTests(TESTS[3], limits, 0.9e-5)
    assert lossy.epsilon(1e-5) == pytest.approx(clean.epsilon(1e-6), rel=1e-6)
    assert lossy.epsilon(0.9e-5) == math.inf
    assert lossy.quick_epsilon(0.9e-5) == math.inf
    assert all(math.isinf(epsilon) for epsilon in lossy.by_method(0.9e-5).values())
    assert LimitedTests(TESTS[3], TestLimits(0, 0, 0), 0.5).epsilon(1e-5) == 0
    with pytest.raises(ConfigError, match="lost"):
        LimitedTests(TESTS[3], limits, 1.5)


def test_quick_is_about_as_good_and_no_order_is_much_better() -> None:
    guarantee = LimitedTests(NoisyTest(DiscreteGaussian(90.0), 450, 1000), TestLimits(1000, 1000, 50), 0.0)
    epsilon = guarantee.epsilon(1e-5)
    assert guarantee.quick_epsilon(1e-5) == pytest.approx(epsilon, rel=1e-3)
    orders = 1 + np.geomspace(1, 60, 25)
    rdp = np.array([stream_rdp(guarantee.test, guarantee.limits, float(order)) for order in orders])
    assert epsilon <= rdp_epsilon(orders, rdp, 1e-5)[0] * (1 + 1e-6)
