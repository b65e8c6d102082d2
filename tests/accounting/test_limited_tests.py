"""Streams of noisy tests against the worst adversary by value iteration, brute force over short streams, plain sums."""

from __future__ import annotations

import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate.accounting.composition import LimitedTests, NoisyTest, TestLimits, rdp_epsilon, stream_rdp
from pate.accounting.worst_case import threshold_test_rdp
from pate.errors import ConfigError
from pate.noise.integer import DiscreteGaussian, DiscreteLaplace

TESTS = [
    NoisyTest(DiscreteGaussian(1.0), 2, 6),
    NoisyTest(DiscreteGaussian(3.0), 7, 25),
    NoisyTest(DiscreteLaplace(2.0), 4, 20),
    NoisyTest(DiscreteGaussian(20.0), 80, 200),
]
ORDERS = [1.3, 2.0, 5.0, 17.0]


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
    for order in [order for order in ORDERS if order < 8 * test.noise.scale]:  # else the oracle overflows
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
    order=st.sampled_from(ORDERS),
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


def test_far_cheaper_than_zhu_and_wang_where_many_fail() -> None:
    """Their bound, with noise on the threshold too: α/2σ₁² + 2α/σ₂² + ln(1 + m)/(α − 1) for each failure."""
    failures, most, delta = 100, 1000, 1e-5
    test = NoisyTest(DiscreteGaussian(23.5), 126, 270)
    ours = LimitedTests(test, TestLimits(most, most, failures), 0.0).epsilon(delta)
    orders = 1 + np.geomspace(0.1, 1000, 400)
    theirs = failures * (orders * (0.5 + 2) / 23.5**2 + math.log(1 + most) / (orders - 1))
    assert ours < 0.2 * rdp_epsilon(orders, theirs, delta)[0]
