"""Publishing a data-dependent ε: Gaussian noise scaled by smooth sensitivity, shifted up to stay a bound.

The mechanism is GNSS of Papernot et al. 2018 (arXiv:1802.08908, appendix B), with three changes.

- What is released is a bound on the exact cost of integer noise (`smooth_sensitivity`), not the published bound.

- The RDP that its Theorem 23 states (order exp(2 beta) / sigma² + …) is smaller than the Rényi divergence of
  two normal distributions that its premises allow: 0.686 against 1.216 at order 14, beta = 0.4/14, sigma = 5.
  The cost here is the divergence itself, at its proven worst case.
- The shift that makes the figure an upper bound is a quantile of noise whose scale is private. So the shift
  is part of what is released, and its effect part of the cost.

Formal guarantee of `epsilon_sanitised`, proven in docs/proofs.md: with o all that was released (labels,
which queries were answered, the figure eps(o)), for every data set D, neighbour D' and event E,

    Pr[o(D) in E] <= integral over E of exp(eps(o)) dPr[o(D') = o] + delta.

It holds in both directions although costs are one-sided, because eps(o) is part of the output.
Order, beta, sigma_ss, delta and failure must be chosen without looking at the votes, and each call of
`epsilon_sanitised` for the same labels is a further release: publish one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from pate.accounting import parameters
from pate.accounting.composition import Guarantee, RdpGuarantee, epsilon_of_rdp, rdp_epsilon
from pate.accounting.published_bounds import ndtri
from pate.accounting.tight.smooth_sensitivity import PrivateCost
from pate.accounting.worst_case import WorstCaseGuarantee
from pate.noise.integer import TV_ERROR_PER_DRAW

Entropy = Callable[[int], bytes]

ROUNDING = 1e-9  # charged for floating point: far above the error of any cost or ratio of sensitivities here
GRID = Fraction(1, 1000)  # what is released is a multiple of this
_SAMPLER_ERROR = 2.0**-200  # total variation between the sampler and a rounded normal, see standard_normal
_FRACTION_BITS = 256
FAILURE_SHARE = 0.1
"""The share of δ that is spent on the released bound being too low."""


@dataclass(frozen=True)
class SanitisedEpsilon:
    """A released figure and what it is made of; all of it public."""

    epsilon: float
    delta: float
    order: float
    rdp_bound: float
    release_rdp: float


def release_rdp(order: float, beta: float, sigma_ss: float, quantile: float = 0.0) -> float:
    """RDP at `order` of releasing f + S * sigma_ss * (quantile + Z), Z standard normal, S beta-smooth for f.

    The exact divergence of N(f, S²) and N(f', S'²) (scaled, shifted) at its worst case: S' = S exp(-beta) and
    |f - f'| = S'. Needs beta < ln(order / (order - 1)) / 2, a little more than the paper's 1 / (2 order).
    """
    order, sigma_ss = parameters.order(order), parameters.positive(sigma_ss, "sigma_ss")
    quantile = parameters.number(quantile, "quantile", least=0)
    limit = math.log1p(1 / (order - 1)) / 2
    try:
        beta = parameters.number(beta, "beta", above=0, below=limit)
    except parameters.ParameterError as error:
        raise parameters.ParameterError(
            "beta", error.value, f"must lie between 0 and {limit:.6g} at order {order:g}"
        ) from None
    room = 1 - (order - 1) * math.expm1(2 * beta)  # times S'² sigma_ss²: the variance of the tilted normal
    if not room > 0:  # by rounding, next to the limit
        raise parameters.ParameterError("beta", beta, f"must lie further below {limit:.6g} at order {order:g}")
    moved = 1 + quantile * sigma_ss * math.expm1(beta)
    spread = -beta - math.log(room) / (2 * (order - 1))
    return spread + order * moved**2 / (2 * sigma_ss**2 * room)


def epsilon_sanitised(
    cost: PrivateCost,
    *,
    beta: float,
    sigma_ss: float,
    delta: float,
    failure: float | None = None,
    entropy: Entropy = os.urandom,
) -> SanitisedEpsilon:
    """Release an upper bound on the ε of the labels and of this release together.

    `failure` is the part of `delta` spent on the bound being too low (a tenth unless told). The figure is
    clipped at the public worst case and at zero, and rounded up to a multiple of `GRID`.
    """
    delta = parameters.delta(delta)
    lost = FAILURE_SHARE * delta if failure is None else parameters.number(failure, "failure", above=0, below=delta)
    quantile = -ndtri(lost)
    own = release_rdp(cost.order, beta + ROUNDING, sigma_ss, quantile)
    left = _delta_left(delta - lost, cost.worst_case_rdp, cost.order, own, cost.label_draws)
    scale = Fraction(cost.smooth_sensitivity(beta) + ROUNDING) * Fraction(sigma_ss)
    noisy = Fraction(cost.rdp) + scale * (Fraction(quantile) + standard_normal(entropy))
    bound = min(float(max(math.ceil(noisy / GRID), 0) * GRID), cost.worst_case_rdp)
    return SanitisedEpsilon(
        epsilon=max(0.0, epsilon_of_rdp(bound + own, cost.order, left)),
        delta=delta,
        order=cost.order,
        rdp_bound=bound,
        release_rdp=own,
    )


@dataclass(frozen=True)
class WithRelease(Guarantee):
    """What labels and a sanitised figure cost together, for every data set, at the figure's own order."""

    labels: WorstCaseGuarantee
    order: float
    release: float

    @classmethod
    def of(cls, labels: WorstCaseGuarantee, order: float, beta: float, sigma_ss: float, delta: float) -> WithRelease:
        """With the figure released at `delta`, the usual share of it for the chance that the figure is too low."""
        return cls(labels, order, release_rdp(order, beta + ROUNDING, sigma_ss, -ndtri(FAILURE_SHARE * delta)))

    def epsilon(self, delta: float) -> float:
        total = np.array([self.labels.rdp_at(self.order) + self.release])
        return rdp_epsilon(np.array([self.order]), total, delta)[0]


def check_release(
    labels: RdpGuarantee, order: float, beta: float, sigma_ss: float, delta: float, label_draws: int
) -> None:
    """Raise where `epsilon_sanitised` would, once all of the budget is spent: before any of it is."""
    own = release_rdp(order, beta + ROUNDING, sigma_ss, -ndtri(FAILURE_SHARE * parameters.delta(delta)))
    _delta_left((1 - FAILURE_SHARE) * delta, float(labels.rdp(np.array([order]))[0]), order, own, label_draws)


def _delta_left(delta: float, worst_case_rdp: float, order: float, own: float, label_draws: int) -> float:
    """What the samplers' errors, weighed by exp(largest ε), leave of delta for the conversion from RDP."""
    error = _SAMPLER_ERROR + parameters.number(label_draws, "label_draws", least=0) * TV_ERROR_PER_DRAW
    largest = worst_case_rdp + own + math.log(2 / delta) / (order - 1)
    charged = (1 + math.exp(min(largest, 700.0))) * error
    if charged > delta / 2:
        raise ValueError(f"the worst case, ε = {largest:.4g}, is too large to sanitise; answer fewer queries")
    return delta - charged


def standard_normal(entropy: Entropy) -> Fraction:
    """A normal draw ±(k + u), u a fraction of 256 bits, by rejection with exact coins (after Karney 2014).

    k has weight exp(-k²/2), then u weight exp(-u (2k + u) / 2): the product is exp(-(k + u)²/2). Every
    coin is exact; the one error is that u lies on a lattice of 2^-256. Scaled by S sigma_ss and rounded up to
    `GRID`, a draw next to a boundary may fall on its wrong side: a total variation below 2^-200 while
    S sigma_ss is below 2^40 grid cells. The lattice depends on the votes, and does not show after rounding.
    """
    while True:
        whole = 0
        while _coin_exp(Fraction(1, 2), entropy):
            whole += 1
        if not _coin_exp(Fraction(whole * (whole - 1), 2), entropy):
            continue
        bits = int.from_bytes(entropy(_FRACTION_BITS // 8), "big")
        part = Fraction(2 * bits + 1, 2 ** (_FRACTION_BITS + 1))
        if _coin_exp(part * (2 * whole + part) / 2, entropy):
            return (whole + part) * (1 if entropy(1)[0] & 1 else -1)


def _coin_exp(exponent: Fraction, entropy: Entropy) -> bool:
    """True with probability exp(-exponent) (Canonne, Kamath, Steinke 2020, Algorithm 1)."""
    while exponent > 1:
        if not _coin_exp(Fraction(1), entropy):
            return False
        exponent -= 1
    tosses = 1
    while _coin(exponent / tosses, entropy):
        tosses += 1
    return tosses % 2 == 1


def _coin(probability: Fraction, entropy: Entropy) -> bool:
    """True with the given probability, exactly: a uniform integer below the denominator, by rejection."""
    bits = (probability.denominator - 1).bit_length()
    n_bytes = (bits + 7) // 8
    while True:
        draw = int.from_bytes(entropy(n_bytes), "big") >> (8 * n_bytes - bits)
        if draw < probability.denominator:
            return draw < probability.numerator
