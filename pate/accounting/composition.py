"""From the cost of single queries to the (ε, δ) of a whole run."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.accounting import parameters

Orders = NDArray[np.float64]

ORDERS: Orders = 1 + np.geomspace(1e-3, 1e5, 600)
"""Rényi orders: a step of 3 %, over the range in which an ε between 10⁻⁴ and 10⁴ can have its best order."""

SAMPLER_SHARES = (1e-3, 1e-2, 0.1, 0.5)
"""Shares of δ that may be set aside for the sampling error of the integer noise."""


class Guarantee(ABC):
    """A promise about a mechanism, or a composition of them, that converts to ε for any δ."""

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """The smallest ε for which (ε, δ)-DP follows; infinity where none does."""

    def quick_epsilon(self, delta: float) -> float:
        """About `epsilon`, for searches; proves nothing."""
        return self.epsilon(delta)


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
    dominated by one whose privacy loss is ±each_epsilon, or infinite with probability each_delta. On a grid
    of step each_epsilon that privacy loss distribution is not rounded at all.
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
        if -math.expm1(self.times * math.log1p(-self.each_delta)) > delta:
            return math.inf
        return min(self.times * self.each_epsilon, self._composed(delta))

    def _composed(self, delta: float) -> float:
        from dp_accounting import pld  # costs 1.6 s: import where used

        parameters = pld.common.DifferentialPrivacyParameters(self.each_epsilon, self.each_delta)
        single = pld.privacy_loss_distribution.from_privacy_parameters(parameters, self.each_epsilon)
        return float(single.self_compose(self.times).get_epsilon_for_delta(delta))


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
    """ε and the order it comes from, by dp-accounting's conversion (Canonne, Kamath, Steinke 2020, Prop. 12)."""
    from dp_accounting.rdp import compute_epsilon  # costs 1.6 s: import where used

    parameters.delta(delta)
    parameters.orders(orders)
    if not np.all(rdp >= 0):  # NaN neither
        raise parameters.ParameterError("rdp", rdp, "must hold costs, neither negative nor NaN")
    epsilon, order = compute_epsilon(orders, rdp, delta)
    return float(epsilon), float(order)


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


def with_sampling_error(
    epsilon_at: Callable[[float], float], delta: float, draws: int, tv_error_per_draw: float
) -> float:
    """ε at `delta` of a mechanism whose noise comes from a sampler with a bounded total-variation error.

    If each of two neighbouring output distributions is within τ of its ideal, (ε, δ₀)-DP of the ideal is
    (ε, δ₀ + (1 + e^ε)·τ)-DP of the real one. A share of δ is set aside for the second term, the smallest of
    `SAMPLER_SHARES` that covers it; `epsilon_at` gives the ideal ε for what is left. Infinity if none does.
    """
    parameters.delta(delta)
    error = parameters.number(draws, "draws", least=0) * tv_error_per_draw
    for share in SAMPLER_SHARES:
        epsilon = epsilon_at(delta * (1 - share))
        if epsilon < 700 and (1 + math.exp(epsilon)) * error <= share * delta:
            return epsilon
    return math.inf
