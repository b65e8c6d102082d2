"""Small privacy calculators: amplification, groups, accuracy, calibration, composition, and DP-SGD's ε.

Each answers one question of a textbook with one formula. They are for plans and comparisons: what a run is charged
comes from its mechanism, not from here. References:

* Dwork and Roth, "The Algorithmic Foundations of Differential Privacy", 2014;
* Balle, Barthe, Gaboardi, "Privacy Amplification by Subsampling", NeurIPS 2018;
* Balle and Wang, "Improving the Gaussian Mechanism for Differential Privacy", ICML 2018;
* Kairouz, Oh, Viswanath, "The Composition Theorem for Differential Privacy", ICML 2015;
* Abadi et al., "Deep Learning with Differential Privacy", CCS 2016;
* Bun and Steinke, "Concentrated Differential Privacy: Simplifications, Extensions, and Lower Bounds", TCC 2016;
* Mironov, Talwar, Zhang, "Rényi Differential Privacy of the Sampled Gaussian Mechanism", 2019.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import numpy as np

from pate.accounting import _parameters as parameters
from pate.accounting.composition import RepeatedGuarantee
from pate.accounting.published_bounds import epsilon_from_rdp

Conversion = Literal["abadi", "tight"]


class PrivacyParameters(NamedTuple):
    """An (ε, δ) guarantee."""

    epsilon: float
    delta: float


def amplify_exact(epsilon: float, delta: float, sampling_rate: float) -> PrivacyParameters:
    """What an (ε, δ) mechanism costs on a Poisson sample: (ln(1 + γ(e^ε − 1)), γδ), with γ = `sampling_rate`.

    Balle, Barthe and Gaboardi 2018, Theorem 8; no smaller pair holds for every mechanism.

    >>> round(amplify_exact(1.0, 1e-5, 0.01).epsilon, 6)
    0.017037
    """
    epsilon, delta = parameters.claimed(epsilon, delta)
    parameters.probability(sampling_rate, "sampling_rate")
    if math.isinf(epsilon):
        return PrivacyParameters(math.inf, sampling_rate * delta)
    # e^ε leaves the range of floats near 709: ln(1 + γ(e^ε − 1)) = ε + ln(γ + (1 − γ)e^−ε).
    amplified = (
        math.log1p(sampling_rate * math.expm1(epsilon))
        if epsilon < 1.0
        else epsilon + math.log(sampling_rate + (1.0 - sampling_rate) * math.exp(-epsilon))
    )
    return PrivacyParameters(amplified, sampling_rate * delta)


def amplify_linear(epsilon: float, delta: float, sampling_rate: float) -> PrivacyParameters:
    """The simpler textbook bound (2γε, γδ) for ε ≤ 1, with γ = `sampling_rate`.

    There e^ε − 1 ≤ 2ε, so it is never below `amplify_exact`.

    >>> amplify_linear(1.0, 0.0, 0.01).epsilon
    0.02
    """
    epsilon, delta = parameters.claimed(epsilon, delta)
    parameters.probability(sampling_rate, "sampling_rate")
    if epsilon > 1.0:
        raise parameters.ParameterError("epsilon", epsilon, "the linear bound holds up to 1; use amplify_exact")
    return PrivacyParameters(2.0 * sampling_rate * epsilon, sampling_rate * delta)


def amplify_lecture(epsilon: float, delta: float, sampling_rate: float) -> PrivacyParameters:
    """The lecture's bound (2γ(e^ε − e^−ε), γδ), with γ = `sampling_rate`; it holds for any ε.

    e^ε − e^−ε is at least e^ε − 1, so it is never below `amplify_exact`; for small ε it is four times that.

    >>> round(amplify_lecture(1.0, 0.0, 0.01).epsilon, 6)
    0.047008
    """
    epsilon, delta = parameters.claimed(epsilon, delta)
    parameters.probability(sampling_rate, "sampling_rate")
    try:
        amplified = 4.0 * sampling_rate * math.sinh(epsilon)
    except OverflowError:
        amplified = math.inf
    return PrivacyParameters(amplified, delta * sampling_rate)


def group_privacy(epsilon: float, delta: float, size: int) -> PrivacyParameters:
    """The guarantee for `size` = k records together: (kε, k·e^{(k−1)ε}·δ), δ at most 1.

    Dwork and Roth 2014, Theorem 2.2 (pure), and Vadhan, "The Complexity of Differential Privacy", 2017,
    Lemma 2.2 (with δ).
    """
    epsilon, delta = parameters.claimed(epsilon, delta)
    parameters.queries(size, "size", least=1)
    if delta == 0.0:
        return PrivacyParameters(size * epsilon, 0.0)
    log_delta = math.log(size) + (size - 1) * epsilon + math.log(delta)
    return PrivacyParameters(size * epsilon, math.exp(min(log_delta, 0.0)))


def laplace_accuracy(scale: float, n_counts: int, beta: float) -> float:
    """The error in votes that none of `n_counts` Laplace-noised counts exceeds with probability 1 − β.

    scale·ln(n_counts/β), from the exponential tail of |Lap(b)| and a union bound (Dwork and Roth 2014,
    Theorem 3.8).

    >>> round(laplace_accuracy(scale=20.0, n_counts=10, beta=0.05), 2)
    105.97
    """
    parameters.positive(scale, "scale")
    parameters.queries(n_counts, "n_counts", least=1)
    parameters.open_probability(beta, "beta")
    return scale * math.log(n_counts / beta)


def gaussian_sigma_classic(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """Gaussian σ by the textbook formula √(2·ln(1.25/δ))·Δ/ε (Dwork and Roth 2014, Theorem A.1).

    Proved for ε up to 1 only, and refused above.

    >>> round(gaussian_sigma_classic(1.0, 1e-5), 4)
    4.8448
    """
    _check_gaussian(epsilon, delta, sensitivity)
    if epsilon > 1.0:
        raise parameters.ParameterError("epsilon", epsilon, "the classic formula holds up to 1; use the analytic one")
    return math.sqrt(2.0 * math.log(1.25 / delta)) * sensitivity / epsilon


def gaussian_sigma_analytic(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The least Gaussian σ that gives (ε, δ), for any ε (Balle and Wang 2018, Theorem 8), by dp_accounting.

    >>> round(gaussian_sigma_analytic(1.0, 1e-5), 4)
    3.7306
    """
    import dp_accounting  # costs 1.6 s: import where used

    _check_gaussian(epsilon, delta, sensitivity)
    return sensitivity * float(dp_accounting.get_sigma_gaussian(epsilon, delta))


def compose_basic(epsilon: float, delta: float, k: int) -> PrivacyParameters:
    """k runs of an (ε, δ) mechanism cost (kε, kδ) (Dwork and Roth 2014, Theorem 3.16)."""
    epsilon, delta = parameters.claimed(epsilon, delta)
    parameters.queries(k, "k", least=1)
    return PrivacyParameters(k * epsilon, min(k * delta, 1.0))


def compose_advanced(epsilon: float, delta: float, k: int, slack: float) -> PrivacyParameters:
    """k runs cost (√(2k·ln(1/δ'))·ε + kε(e^ε − 1), kδ + δ'), with δ' = `slack`.

    Dwork and Roth 2014, Theorem 3.20.

    >>> round(compose_advanced(0.1, 0.0, 100, 1e-5).epsilon, 3)
    5.85
    """
    epsilon, delta = parameters.claimed(epsilon, delta)
    parameters.queries(k, "k", least=1)
    parameters.delta(slack, "slack")
    return PrivacyParameters(_advanced_epsilon(epsilon, k, slack), min(k * delta + slack, 1.0))


def compose_optimal(epsilon: float, delta: float, k: int, total_delta: float) -> PrivacyParameters:
    """The least ε at `total_delta` that holds for any k mechanisms which are (ε, δ) each.

    Kairouz, Oh and Viswanath 2015, Theorem 3.3. Infinite where `total_delta` is less than the chance
    1 − (1 − δ)^k of losing everything.

    >>> round(compose_optimal(0.1, 0.0, 100, 1e-5).epsilon, 3)
    4.307
    """
    parameters.epsilon(epsilon)
    parameters.queries(k, "k", least=1)
    parameters.delta(total_delta, "total_delta")
    return PrivacyParameters(RepeatedGuarantee(epsilon, delta, k).epsilon(total_delta), total_delta)


def moments_epsilon(
    q: float, sigma: float, steps: int, delta: float, conversion: Conversion = "abadi", max_order: int = 256
) -> float:
    """ε of DP-SGD by the moments accountant, for `steps` steps at sampling rate `q`.

    `sigma` is the noise multiplier: the noise's standard deviation over the clipping norm. The moments are
    those of the Poisson-sampled Gaussian at the whole orders 2 to `max_order`, from dp_accounting. "abadi"
    converts as the paper does, ε = min over λ of (moment(λ) + ln(1/δ))/λ (Abadi et al. 2016, Theorem 2);
    "tight" converts as dp_accounting does (Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential
    Privacy", 2020, Proposition 12), which is never larger.

    >>> round(moments_epsilon(0.01, 4.0, 10_000, 1e-5), 2)
    1.26
    """
    import dp_accounting

    _check_sgd(q, sigma, steps, delta)
    if conversion not in ("abadi", "tight"):
        raise parameters.ParameterError("conversion", conversion, "must be 'abadi' or 'tight'")
    parameters.whole(max_order, "max_order", least=2, most=100_000)
    orders = np.arange(2, max_order + 1, dtype=np.float64)
    accountant = dp_accounting.rdp.RdpAccountant(orders)
    step = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    accountant.compose(step, steps)
    if conversion == "tight":
        return float(accountant.get_epsilon(delta))
    return epsilon_from_rdp(accountant.orders, accountant.rdp, delta)[0]


def closed_moment_epsilon(q: float, sigma: float, steps: int, delta: float) -> float:
    """ε of DP-SGD by a closed bound on its moments: a step at order α costs 2q²α/σ² (Mironov, Talwar, Zhang 2019,
    Theorem 11; quoted without the paper at hand, so check its conditions before you rely on it), for q ≤ 1/5, σ ≥ 4 and
    orders that are not too large; infinite where none is allowed.

    It is the growth of Abadi et al. 2016, Lemma 3, q²λ(λ + 1)/((1 − q)σ²) to first order, with a constant that is
    proved; `moments_epsilon` computes the moments themselves and is never larger.

    >>> round(closed_moment_epsilon(0.01, 4.0, 10_000, 1e-5), 2)
    2.52
    """
    _check_sgd(q, sigma, steps, delta)
    if q > 0.2 or sigma < 4.0:
        return math.inf
    orders = np.linspace(1.0, 1024.0, 20_461)[1:]
    log = np.log1p(1 / (q * (orders - 1)))
    room = log + np.log(q * orders) + 1 / (2 * sigma**2)
    allowed = orders <= sigma**2 * log / 2 - 2 * math.log(sigma)
    allowed &= (room > 0) & (orders * room <= sigma**2 * log**2 / 2 - math.log(5) - 2 * math.log(sigma))
    if not allowed.any():
        return math.inf
    return epsilon_from_rdp(orders[allowed], steps * 2 * q**2 * orders[allowed] / sigma**2, delta)[0]


def zcdp_of_gaussian(sigma: float, sensitivity: float = 1.0) -> float:
    """ρ of the Gaussian mechanism: Δ²/(2σ²) (Bun and Steinke 2016, Proposition 1.6). ρ adds up over mechanisms."""
    parameters.positive(sigma, "sigma")
    parameters.positive(sensitivity, "sensitivity")
    return sensitivity**2 / (2 * sigma**2)


def zcdp_of_pure(epsilon: float) -> float:
    """ρ of an ε-DP mechanism: ε²/2 (Bun and Steinke 2016, Proposition 1.4)."""
    parameters.epsilon(epsilon)
    return epsilon**2 / 2


def zcdp_epsilon(rho: float, delta: float) -> float:
    """ε of ρ-zCDP: ρ + 2√(ρ·ln(1/δ)) (Bun and Steinke 2016, Proposition 1.3).

    >>> round(zcdp_epsilon(100 * zcdp_of_gaussian(40.0), 1e-5), 3)
    1.231
    """
    parameters.number(rho, "rho", least=0)
    parameters.delta(delta)
    return rho + 2 * math.sqrt(rho * math.log(1 / delta))


def strong_composition_epsilon(q: float, sigma: float, steps: int, delta: float) -> float:
    """ε of DP-SGD by strong composition, the baseline of Abadi et al. 2016 (Figure 2).

    One step is (ε₀, δ₀) with ε₀ = √(2·ln(1.25/δ₀))/σ; sampling makes it (q·ε₀, q·δ₀); advanced composition
    (Dwork and Roth 2014, Theorem 3.20) adds δ'. The split of δ = steps·q·δ₀ + δ' is the one of least ε.

    For the comparison only, not a guarantee: the paper takes amplification as linear (`amplify_exact` gives
    more, and 26.4 in the example) and the textbook ε₀ also above 1, where it is not proved. The paper prints
    9.34 for the example, which comes out to the digit if e^ε − 1 in the composition theorem is read as ε.

    >>> round(strong_composition_epsilon(0.01, 4.0, 10_000, 1e-5), 2)
    9.35
    """
    from scipy.optimize import minimize_scalar  # costs 0.3 s: import where used

    _check_sgd(q, sigma, steps, delta)

    def epsilon_of(log_odds: float) -> float:
        share = 1.0 / (1.0 + math.exp(-log_odds))
        delta0 = min(share * delta / (steps * q), 1.0)
        epsilon0 = math.sqrt(2.0 * math.log(1.25 / delta0)) / sigma
        return _advanced_epsilon(q * epsilon0, steps, (1.0 - share) * delta)

    return float(minimize_scalar(epsilon_of, bounds=(-30.0, 30.0), method="bounded").fun)


def _advanced_epsilon(epsilon: float, k: int, slack: float) -> float:
    try:
        drift = k * epsilon * math.expm1(epsilon)
    except OverflowError:
        return math.inf
    return math.sqrt(2.0 * k * math.log(1.0 / slack)) * epsilon + drift


def _check_gaussian(epsilon: float, delta: float, sensitivity: float) -> None:
    parameters.epsilon(epsilon)
    parameters.delta(delta)
    parameters.positive(sensitivity, "sensitivity")


def _check_sgd(q: float, sigma: float, steps: int, delta: float) -> None:
    parameters.probability(q, "q")
    parameters.positive(sigma, "sigma")
    parameters.queries(steps, "steps", least=1)
    parameters.delta(delta)
