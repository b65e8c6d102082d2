"""From the cost of single queries, or of a stream of noisy tests, to the (ε, δ) of a whole run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pate.accounting import _parameters as parameters
from pate.noise.integer import TV_ERROR_PER_DRAW, IntegerNoise

Orders = NDArray[np.float64]

ORDERS: Orders = 1 + np.geomspace(1e-3, 1e5, 600)
"""Rényi orders: a step of 3 %, over the range in which an ε between 10⁻⁴ and 10⁴ can have its best order."""

SAMPLER_SHARES = (1e-3, 1e-2, 0.1, 0.5)
"""Shares of δ that may be set aside for the sampling error of the integer noise."""

_ROUNDING = 1e-9  # relative, on every charge; the sums are of positive terms, and more precise by far
_RANGE = 16.0  # charges for a pass are searched from e^-16 to e^16 times those of ordinary composition
_STEPS = 32  # of a golden section, which leaves a millionth of that range
_GOLDEN = (math.sqrt(5) - 1) / 2
_MIN_ORDER = 1.02  # where a search for the best one begins
_THIN_FROM = 25.0  # a search looks at about so many scores per noise scale; what is proven at all of them
_TRIED = (-2, 0, 2)  # orders round the best one found, in steps of `ORDERS`


class Guarantee(ABC):
    """A promise about a mechanism, or a composition of them, that converts to ε for any δ."""

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """The smallest ε for which (ε, δ)-DP follows; infinity where none does."""

    def quick_epsilon(self, delta: float) -> float:
        """About `epsilon`, for searches; proves nothing."""
        return self.epsilon(delta)

    @property
    def is_tightened(self) -> bool:
        """Whether `epsilon` may be less than `quick_epsilon` promises, by a method that takes seconds."""
        return False

    def by_method(self, delta: float) -> dict[str, float]:
        """ε by each method that is proven for it, for people to compare; empty where there is one alone."""
        return {}


@dataclass(frozen=True)
class RdpGuarantee(Guarantee):
    """Rényi differential privacy: `rdp(orders)` is the cost at each order."""

    rdp: Callable[[Orders], NDArray[np.float64]]

    def epsilon(self, delta: float) -> float:
        return rdp_epsilon(ORDERS, self.rdp(ORDERS), delta)[0]

    def rdp_at(self, order: float) -> float:
        """The cost at one order."""
        return float(self.rdp(np.array([order]))[0])


@dataclass(frozen=True)
class FixedGuarantee(Guarantee):
    """(claimed_epsilon, claimed_delta)-DP and nothing else: a larger δ buys no smaller ε."""

    claimed_epsilon: float
    claimed_delta: float

    def __post_init__(self) -> None:
        parameters.claimed(self.claimed_epsilon, self.claimed_delta)

    def epsilon(self, delta: float) -> float:
        parameters.delta_or_zero(delta)
        return self.claimed_epsilon if delta >= self.claimed_delta else math.inf


@dataclass(frozen=True)
class RepeatedGuarantee(Guarantee):
    """`times` adaptively chosen mechanisms, each (each_epsilon, each_delta)-DP.

    The composition is the optimal one (Kairouz, Oh, Viswanath 2015, Theorem 3.3): every such mechanism is
    dominated by one whose privacy loss is ±each_epsilon, or infinite with probability each_delta. Nothing is
    rounded but floating point.
    """

    each_epsilon: float
    each_delta: float
    times: int

    def __post_init__(self) -> None:
        parameters.claimed(self.each_epsilon, self.each_delta)
        parameters.queries(self.times, "times")

    def epsilon(self, delta: float) -> float:
        parameters.delta_or_zero(delta)
        if self.times == 0:
            return 0.0
        lost = -math.expm1(self.times * math.log1p(-self.each_delta))
        if lost > delta:
            return math.inf
        return min(self.times * self.each_epsilon, self._composed((delta - lost) / (1 - lost)))

    def by_method(self, delta: float) -> dict[str, float]:
        from pate.accounting.calculators import compose_advanced  # which is written in terms of this class

        lost = self.times * self.each_delta
        simple = self.times * self.each_epsilon if lost <= delta else math.inf
        advanced = math.inf
        if self.times and lost < delta:
            advanced = compose_advanced(self.each_epsilon, self.each_delta, self.times, delta - lost).epsilon
        return {
            "optimal composition": self.epsilon(delta),
            "advanced composition": advanced,
            "simple composition": simple,
        }

    def _composed(self, delta: float) -> float:
        """ε at `delta` of the finite losses, of which a binomial number is positive.

        δ(ε) = P(at least m are) − e^ε·Q(at least m are) for every ε from the total loss with m − 1 positive ones
        to that with m. P and Q, the chances on the two sides, are incomplete beta functions.
        """
        from scipy.special import betainc  # costs 0.3 s: import where used

        odds = math.exp(-self.each_epsilon)

        def solution(m: int) -> float:
            """The ε for which that is `delta`."""
            p, q = (float(betainc(m, self.times - m + 1, x / (1 + odds))) for x in (1.0, odds))
            if p <= delta:
                return -math.inf
            return math.log((p - delta) / q) if q > 0 else math.inf

        m = 1 + bisect_left(range(1, self.times + 1), True, key=lambda m: solution(m) <= self._total_loss(m))
        if m > self.times:  # by rounding alone: no loss is larger
            return self._total_loss(self.times)
        return max(0.0, self._total_loss(m - 1), solution(m))  # from m − 1 on the formula holds

    def _total_loss(self, positive: int) -> float:
        return (2 * positive - self.times) * self.each_epsilon


@dataclass(frozen=True)
class PureGuarantee(RdpGuarantee):
    """`times` adaptively chosen mechanisms, each (each_epsilon, 0)-DP: also in Rényi terms, for a shared ledger.

    Randomised response dominates every such mechanism, so its Rényi divergence bounds theirs.
    """

    each_epsilon: float
    times: int

    @classmethod
    def of(cls, each_epsilon: float, times: int) -> PureGuarantee:
        return cls(lambda orders: times * randomised_response_rdp(each_epsilon, orders), each_epsilon, times)

    def epsilon(self, delta: float) -> float:
        return RepeatedGuarantee(self.each_epsilon, 0.0, self.times).epsilon(delta)


def rdp_epsilon(orders: Orders, rdp: NDArray[np.float64], delta: float) -> tuple[float, float]:
    """ε and the order it comes from (Canonne, Kamath, Steinke 2020, Prop. 12)."""
    parameters.delta(delta)
    parameters.orders(orders)
    if not np.all(rdp >= 0):  # NaN neither
        raise parameters.ParameterError("rdp", rdp, "must hold costs, neither negative nor NaN")
    epsilons = epsilon_by_order(orders, rdp, delta)
    best = int(np.argmin(epsilons))
    return max(0.0, float(epsilons[best])), float(orders[best])


def epsilon_by_order(orders: Orders, rdp: NDArray[np.float64], delta: float) -> NDArray[np.float64]:
    """The ε that follows from the cost at each order, rdp[…, orders], as dp-accounting converts; below 0 means 0.

    Where the order is nearly 1 the formula has no digits left, and is not used.
    """
    usable = orders > 1.01
    a = orders[usable]
    epsilons = np.full(rdp.shape, np.inf)
    epsilons[..., usable] = rdp[..., usable] + np.log1p(-1 / a) - np.log(delta * a) / (a - 1)
    epsilons[delta**2 + np.expm1(-rdp) > 0] = 0.0  # δ ≤ √(1 − exp(−KL)), Bretagnolle–Huber
    return epsilons


def epsilon_of_rdp(rdp: float, order: float, delta: float) -> float:
    """The ε that follows from the cost at one order, by the same conversion; may be below 0."""
    return rdp + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def gaussian_rdp(sensitivity: float, sigma: float, orders: Orders) -> NDArray[np.float64]:
    """Gaussian noise, discrete or continuous: order·Δ²/(2σ²)."""
    parameters.positive(sigma, "sigma")
    parameters.positive(sensitivity, "sensitivity")
    return orders * sensitivity**2 / (2 * sigma**2)


def randomised_response_rdp(epsilon: float, orders: Orders) -> NDArray[np.float64]:
    """The Rényi divergence of a fair coin pushed by ε: outcomes with odds e^ε : 1 against 1 : e^ε."""
    parameters.positive(epsilon, "epsilon")
    log_likely = -math.log1p(math.exp(-epsilon))
    log_unlikely = log_likely - epsilon
    a, b = orders, 1 - orders
    moment = np.logaddexp(a * log_likely + b * log_unlikely, a * log_unlikely + b * log_likely)
    return np.maximum(moment / (orders - 1), 0.0)


def with_sampling_error(epsilon_at: Callable[[float], float], delta: float, draws: int) -> float:
    """ε at `delta` of a mechanism that draws integer noise so often, with the sampler's total-variation error.

    If each of two neighbouring output distributions is within τ of its ideal, (ε, δ₀)-DP of the ideal is
    (ε, δ₀ + (1 + e^ε)·τ)-DP of the real one. A share of δ is set aside for the second term, the smallest of
    `SAMPLER_SHARES` that covers it; `epsilon_at` gives the ideal ε for what is left. Infinity if none does.
    """
    parameters.delta(delta)
    error = parameters.number(draws, "draws", least=0) * TV_ERROR_PER_DRAW
    for share in SAMPLER_SHARES:
        epsilon = epsilon_at(delta * (1 - share))
        if _covers(share, epsilon, delta, error):
            return epsilon
    return math.inf


def sampler_share(epsilon: float, delta: float, draws: int) -> float | None:
    """The share of `delta` to set aside for the error of so many draws of integer noise; None if none covers it."""
    covering = (share for share in SAMPLER_SHARES if _covers(share, epsilon, delta, draws * TV_ERROR_PER_DRAW))
    return next(covering, None)


def _covers(share: float, epsilon: float, delta: float, error: float) -> bool:
    return epsilon < 700 and (1 + math.exp(epsilon)) * error <= share * delta


@dataclass(frozen=True)
class NoisyTest:
    """score + noise ≥ threshold, for scores from 0 to `most`."""

    noise: IntegerNoise
    threshold: int
    most: int


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
    """log-probabilities to pass and to fail of the scores `most`, …, 0."""
    return test.noise.log_test(np.arange(test.threshold - test.most, test.threshold + 1))


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
    for log in _log_probabilities(test):
        one, other = log[:-1:thin], log[1::thin]
        moments.append(np.concatenate([order * one + (1 - order) * other, order * other + (1 - order) * one]))
    return moments[0], moments[1]


@dataclass(frozen=True)
class LimitedTests(Guarantee):
    """A stream of noisy tests whose outcomes may each come up only so often, but for an event of probability `lost`.

    A test asks whether a whole number, its score, reaches a threshold when integer noise, drawn anew each time, is
    added. Passes and failures may be charged differently, which makes a stream with few failures cheap however many
    tests pass: the idea of the sparse vector, without noise on the threshold. `lost` is charged to δ.

    Neighbouring relation: every score changes by at most 1, and stays within [0, most].
    Guarantee (Rényi, order α). Let p, f be the probabilities that a test passes and fails, p′, f′ those of a neighbour,
    and let charges x ≥ 0 for a pass and y ≥ 0 for a failure be such that, for all neighbouring scores, both ways,

        p^α·p′^(1−α)·e^(−(α−1)x) + f^α·f′^(1−α)·e^(−(α−1)y) ≤ 1.

    Then, by induction over the tests, the last one first, Σ P^α·Q^(1−α)·e^(−(α−1)·charges) ≤ 1 over all streams of
    answers, whoever chooses the tests, in view of earlier answers or not. So the Rényi divergence of the whole stream
    is at most the largest sum of charges that its limits allow. Scores are whole and bounded, so "for all" is a finite
    list, and all of it is gone through. x = y is ordinary composition; the best x is searched for, any x being valid.

    Zhu and Wang 2020 ("Improving sparse vector technique with Rényi differential privacy") bound such streams, with
    noise on the threshold too, by a term ln(1 + most tests)/(α − 1) for the time of stopping, once for each failure.
    Here that time costs (most tests)·x, once. Charging for rare outcomes alone, in (ε, δ) terms: Cohen and Lyu 2023,
    "The target-charging technique for privacy analysis across interactive computations".
    """

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
