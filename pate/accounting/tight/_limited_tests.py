"""What a stream of noisy tests costs if each of its two outcomes may come up only so often.

A test asks whether a whole number `score`, of sensitivity 1, reaches a threshold when integer noise is added. Its
noise is drawn anew each time. A test that passes and one that fails may be charged differently, which makes a
stream with few failures cheap however many tests pass: the idea of the sparse vector, without noise on the threshold.

Neighbouring relation: every score changes by at most 1, and stays within [0, most].
Guarantee (Rényi, order α). Let p, f be the probabilities that a test passes and fails, p′, f′ those of a neighbour, and
let charges x ≥ 0 for a pass and y ≥ 0 for a failure be such that

    p^α·p′^(1−α)·e^(−(α−1)x) + f^α·f′^(1−α)·e^(−(α−1)y) ≤ 1            for all neighbouring scores, in both directions.

Then, by induction over the tests, the last one first, Σ P^α·Q^(1−α)·e^(−(α−1)·charges) ≤ 1 over all streams of answers,
whoever chooses the tests, in view of earlier answers or not. So the Rényi divergence of the whole stream is at most
the largest sum of charges that its limits allow. Scores are whole and bounded, so "for all" is a finite list, and all
of it is gone through. x = y is ordinary composition; the best x is searched for, any x being valid.

Zhu and Wang 2020 ("Improving sparse vector technique with Rényi differential privacy") bound such streams, with noise
on the threshold too, by a term ln(1 + most tests)/(α − 1) for the time of stopping, once for each failure. Here that
time costs (most tests)·x, once. Charging for rare outcomes alone, in (ε, δ) terms: Cohen and Lyu 2023, "The
target-charging technique for privacy analysis across interactive computations".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pate.accounting import _parameters as parameters
from pate.accounting.composition import ORDERS, Guarantee, epsilon_by_order, rdp_epsilon
from pate.noise.integer import IntegerNoise

_ROUNDING = 1e-9  # relative, on every charge; the sums are of positive terms, and more precise by far
_RANGE = 16.0  # charges for a pass are searched from e^-16 to e^16 times those of ordinary composition
_STEPS = 32  # of a golden section, which leaves a millionth of that range
_GOLDEN = (math.sqrt(5) - 1) / 2
_MIN_ORDER = 1.02  # where a search for the best one begins
_THIN_FROM = 25.0  # a search looks at about so many scores per noise scale; what is proven at all of them
_TRIED = (-2, 0, 2)  # orders round the best one found, in steps of `ORDERS`


@dataclass(frozen=True)
class NoisyTest:
    """score + noise ≥ threshold, for scores from 0 to `most`."""

    noise: IntegerNoise
    threshold: int
    most: int

    def log_probabilities(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """log-probabilities to pass and to fail of the scores `most`, …, 0."""
        return _log_probabilities(self)


@dataclass(frozen=True)
class TestLimits:
    """The most tests, and how many of them pass and fail at most."""

    tests: int
    passes: int
    failures: int

    def __post_init__(self) -> None:
        for name in ("tests", "passes", "failures"):
            parameters.queries(getattr(self, name), name)

    def largest(self, x: float, y: float) -> float:
        """The largest sum of charges, x for each pass and y for each failure."""
        passes, failures = min(self.passes, self.tests), min(self.failures, self.tests)
        if x > y:
            return passes * x + min(failures, self.tests - passes) * y
        return failures * y + min(passes, self.tests - failures) * x


@lru_cache(maxsize=16)
def _log_probabilities(test: NoisyTest) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    missing = np.arange(test.threshold - test.most, test.threshold + 1)
    return test.noise.log_sf(missing), test.noise.log_cdf(missing - 1)


@lru_cache(maxsize=8192)
def stream_rdp(test: NoisyTest, limits: TestLimits, order: float, thin: int = 1) -> float:
    """Rényi DP of a stream of tests at `order`: the least sum of charges, by the best x.

    With `thin` above 1 only every so manieth score is looked at: quick, and it proves nothing.
    """
    log_pass, log_fail = _log_moments(test, parameters.order(order), thin)
    alike = float(np.logaddexp(log_pass, log_fail).max()) / (order - 1)  # x = y
    floor = max(0.0, float(log_pass.max()) / (order - 1))  # a smaller x leaves nothing for failures

    def cost(log_excess: float) -> float:
        """The sum of charges with x = floor + e^log_excess and the least y that goes with it."""
        x = floor + math.exp(log_excess)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            left = np.log(-np.expm1(log_pass - (order - 1) * x))
            worst = float(np.max(log_fail - left)) / (order - 1)
        return math.inf if math.isnan(worst) else limits.largest(x, max(0.0, worst))

    best = limits.largest(alike, alike)
    if alike > floor and (limits.failures < limits.tests or limits.passes < limits.tests):
        middle = math.log(alike - floor)
        best = min(best, _least(cost, middle - _RANGE, middle + _RANGE))
    return best * (1 + _ROUNDING)


def _least(cost: Callable[[float], float], low: float, high: float) -> float:
    """The smallest value of a convex function that a golden section sees."""
    a, b = high - _GOLDEN * (high - low), low + _GOLDEN * (high - low)
    at_a, at_b = cost(a), cost(b)
    best = min(at_a, at_b)
    for _ in range(_STEPS):
        if at_a <= at_b and not math.isinf(at_a):
            high, b, at_b = b, a, at_a
            a = high - _GOLDEN * (high - low)
            at_a = cost(a)
        else:
            low, a, at_a = a, b, at_b
            b = low + _GOLDEN * (high - low)
            at_b = cost(b)
        best = min(best, at_a, at_b)
    return best


def _log_moments(test: NoisyTest, order: float, thin: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """log p^α·p′^(1−α) and log f^α·f′^(1−α) of all neighbouring scores, in both directions."""
    moments = []
    for log in test.log_probabilities():
        one, other = log[:-1:thin], log[1::thin]
        moments.append(np.concatenate([order * one + (1 - order) * other, order * other + (1 - order) * one]))
    return moments[0], moments[1]


@dataclass(frozen=True)
class LimitedTests(Guarantee):
    """A stream of tests within limits, but for an event of probability `lost`, which is charged to δ."""

    test: NoisyTest
    limits: TestLimits
    lost: float

    def __post_init__(self) -> None:
        parameters.number(self.lost, "lost", least=0, most=1)

    def epsilon(self, delta: float) -> float:
        parameters.delta_or_zero(delta)
        if self.limits.tests == 0:
            return 0.0
        if self.lost >= delta:
            return math.inf
        best = self._best_order(delta)
        orders = ORDERS[np.unique(np.clip(best + np.array(_TRIED), 0, len(ORDERS) - 1))]
        rdp = np.array([stream_rdp(self.test, self.limits, float(order)) for order in orders])
        return rdp_epsilon(orders, rdp, delta - self.lost)[0]

    def quick_epsilon(self, delta: float) -> float:
        if self.limits.tests == 0 or self.lost >= delta:
            return self.epsilon(delta)
        return self._thinly(self._best_order(delta), delta)

    def by_method(self, delta: float) -> dict[str, float]:
        everything = TestLimits(self.limits.tests, self.limits.tests, self.limits.tests)
        return {
            "Rényi, limits on both answers": self.epsilon(delta),
            "Rényi, most queries alone": LimitedTests(self.test, everything, self.lost).epsilon(delta),
        }

    def _best_order(self, delta: float) -> int:
        """Where in `ORDERS` the best one is, by a golden section; any other would be valid too."""
        low, high = int(np.searchsorted(ORDERS, _MIN_ORDER)), len(ORDERS) - 1
        while high - low > 2:
            a, b = high - round(_GOLDEN * (high - low)), low + round(_GOLDEN * (high - low))
            if a == b:
                b += 1
            low, high = (low, b) if self._thinly(a, delta) <= self._thinly(b, delta) else (a, high)
        return min(range(low, high + 1), key=lambda i: self._thinly(i, delta))

    def _thinly(self, index: int, delta: float) -> float:
        """ε by one of `ORDERS` and some of the scores; for searches."""
        thin = max(1, int(self.test.noise.scale / _THIN_FROM))
        rdp = np.array([stream_rdp(self.test, self.limits, float(ORDERS[index]), thin)])
        return max(0.0, float(epsilon_by_order(ORDERS[index : index + 1], rdp, delta - self.lost)[0]))
