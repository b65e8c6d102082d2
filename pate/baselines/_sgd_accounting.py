"""What DP-SGD costs: dp_accounting's RDP and PLD over one history, and the noise for a target ε."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache
from typing import Any

from pate.accounting import _parameters as parameters
from pate.errors import ConfigError

History = list[tuple[float, float, int]]
"""(noise multiplier, sampling rate, steps), in the order they were taken."""

ACCOUNTANTS = ("pld", "rdp")
_MAX_NOISE, _MIN_NOISE = 1e5, 0.05
_ORDERS = (*range(2, 64), 80, 100, 128, 160, 200, 256, 400, 640, 1024)
_SHARE = 0.01  # the grid of privacy losses, of ε over the root of the number of steps: what is rounded up adds up so
_FINEST, _COARSEST = 1e-6, 0.01
_LARGE = 1000.0  # an ε beyond this needs a grid too large for memory, and is no promise however it is bounded


def epsilon_of(history: History, delta: float, accountant: str = "pld") -> float:
    """ε of a history of Poisson-sampled Gaussian steps; neighbours differ by one record added or removed.

    "rdp" bounds every step's Rényi divergence and converts (Mironov, Talwar, Zhang 2019); "pld" composes privacy loss
    distributions on a grid, rounded up (Doroshenko et al. 2022), where the RDP bound is not above 1000, and takes the
    lesser of the two. Both are dp_accounting's.
    """
    if accountant not in ACCOUNTANTS:
        raise ConfigError(f"accountant = {accountant!r}: must be 'pld' or 'rdp'")
    parameters.delta(delta)
    for sigma, rate, steps in history:
        parameters.positive(sigma, "sigma")
        parameters.probability(rate, "rate")
        parameters.queries(steps, "steps")
    history = [entry for entry in history if entry[2] > 0]
    return _counted(tuple(history), delta, accountant) if history else 0.0


@lru_cache(maxsize=1024)  # a run is planned when it is checked, announced and fitted, each time by the same search
def _counted(history: tuple[tuple[float, float, int], ...], delta: float, accountant: str) -> float:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent  # takes 1.6 s to import
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    def composed(counted: Any) -> float:
        for sigma, rate, steps in history:
            counted.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(sigma)), steps)
        return float(counted.get_epsilon(delta))

    bound = composed(RdpAccountant(_ORDERS))
    if accountant == "rdp" or bound > _LARGE:
        return bound
    grid = min(max(_SHARE * bound / math.sqrt(sum(steps for _, _, steps in history)), _FINEST), _COARSEST)
    return min(bound, composed(PLDAccountant(value_discretization_interval=grid)))


def noise_for(epsilon: float, delta: float, rate: float, steps: int, before: History, accountant: str) -> float:
    """The least noise multiplier, to a thousandth, that keeps `before` and `steps` further steps within ε."""

    def cost(sigma: float) -> float:
        return epsilon_of([*before, (sigma, rate, steps)], delta, accountant)

    if before and epsilon_of(before, delta, accountant) >= epsilon:
        raise ConfigError(f"epsilon = {epsilon:g}: the private PCA alone costs more; raise pca_sigma or epsilon")
    high = 1.0 if accountant == "rdp" else noise_for(epsilon, delta, rate, steps, before, "rdp")  # near, and quick
    while cost(high) > epsilon:
        high *= 2.0
        if high > _MAX_NOISE:
            raise ConfigError(
                f"epsilon = {epsilon:g}: no noise reaches it at δ = {delta:g} with sampling rate {rate:g} and {steps} "
                "steps; raise epsilon, or take fewer epochs or smaller lots"
            )
    low = high / 2.0
    while cost(low) <= epsilon:
        low /= 2.0
        if low < _MIN_NOISE:
            return high
    while high - low > 1e-3 * high:
        middle = (low + high) / 2.0
        low, high = (low, middle) if cost(middle) <= epsilon else (middle, high)
    return high


def steps_within(epsilon: float, delta: float, rate: float, sigma: float, before: History, accountant: str) -> int:
    """The most steps that fit into ε."""

    def costs_more(steps: int) -> bool:
        return epsilon_of([*before, (sigma, rate, steps)], delta, accountant) > epsilon

    high = 1
    while not costs_more(high):
        high *= 2
    return bisect_left(range(1, high), True, key=costs_more)


def append_step(history: History, sigma: float, rate: float) -> None:
    """One more step, in place: to the last entry, if that has the same noise and rate."""
    if history and history[-1][:2] == (sigma, rate):
        history[-1] = (sigma, rate, history[-1][2] + 1)
    else:
        history.append((sigma, rate, 1))
