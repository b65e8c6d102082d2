"""Publishing a data-dependent ε: Gaussian noise scaled by smooth sensitivity, shifted up to stay a bound.

The mechanism is GNSS of Papernot et al. 2018 (arXiv:1802.08908, appendix B), with three changes.

- What is released is a bound on the exact cost of integer noise, not the published bound.
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

Its cost, in docs/proofs.md: a curve over one integer. An answer is charged by its gap alone, with the largest exact
cost of all histograms of that gap (`rdp_by_gap`); a threshold test by the largest count, with the exact cost of integer
noise. A moved vote changes the gap by at most 2 and the largest count by at most 1, so the curve's steps in a window of
that many votes a move bound how much one more moved vote can change the cost anywhere within d moved votes. The number
of teachers never changes. Everything that is returned from counts is private.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pate.accounting import _parameters as parameters
from pate.accounting._histogram_grid import (
    Floats,
    Ints,
    Plane,
    moment_excess,
    moves_among_others,
    tabulated,
    tests_above,
    two_class_excesses,
)
from pate.accounting.composition import Guarantee, RdpGuarantee, epsilon_of_rdp, rdp_epsilon
from pate.accounting.worst_case import LARGEST_SCALE, WorstCaseGuarantee, worst_case_rdp
from pate.noise import Entropy
from pate.noise.integer import TV_ERROR_PER_DRAW, IntegerNoise

_COST_ROUNDING = 1e-8  # relative
_MAX_BLOCKS = 1 << 20  # of the table: a few seconds


def rdp_by_gap(noise: IntegerNoise, order: float, n_classes: int, widest: int) -> Floats:
    """The Rényi cost of one answer, forward, by its gap 0 … widest: an upper bound that does not rise."""
    order, n_classes = parameters.order(order), parameters.classes(n_classes)
    return _rdp_by_gap(noise, order, n_classes, parameters.whole(widest, "widest", least=0)).copy()


@lru_cache(maxsize=32)
def _rdp_by_gap(noise: IntegerNoise, order: float, n_classes: int, widest: int) -> Floats:
    gaps = np.arange(widest + 1)
    worst, plane = worst_case_rdp(noise, order), Plane(noise, order)
    if noise.scale > LARGEST_SCALE or not plane.representable:
        return np.full(len(gaps), worst)
    largest, size = math.expm1((order - 1) * worst), _block_size(plane)
    tables = [_of_the_plurality(plane, size, gains, largest, n_classes, gaps) for gains in (False, True)]
    if n_classes > 2:
        among = moves_among_others(plane, largest, size)
        tables.append(among[np.minimum(gaps, len(among) - 1)])
    excess = np.minimum.accumulate(np.max(tables, axis=0))
    return np.minimum(np.log1p(excess * (1 + _COST_ROUNDING)) / (order - 1), worst)


def _block_size(plane: Plane) -> int:
    """The side of the blocks that the plane is tabulated in: single points for noise up to about 60 votes."""
    side, size = plane.far - plane.lowest + 2 * plane.radius, 1
    while (side // size) ** 2 > 2 * _MAX_BLOCKS:
        size *= 2
    return size


def _of_the_plurality(plane: Plane, size: int, gains: bool, largest: float, n_classes: int, gaps: Ints) -> Floats:
    """The excess where the plurality loses (or `gains`) a vote, by the gap."""
    of_two = two_class_excesses(plane.noise, plane.radius, plane.order)  # by the lead of a, from −2·radius on
    two_class = of_two[2 * plane.radius :: -1] if gains else of_two[2 * plane.radius :]
    two_class = np.append(np.maximum.accumulate(two_class[::-1])[::-1], 0.0)[np.minimum(gaps, len(two_class))]
    if n_classes == 2:
        return np.minimum(plane.with_slack(two_class), largest)
    first, table = tabulated(plane, size)
    table = table.T if gains else table  # [votes of the plurality, votes of the other class], counted from the rival
    own = first + size * np.arange(len(table))
    always = tests_above(plane, gains, own)
    if plane.noise.tail_ratio:  # the other class below 0, or −1, is a mixture of that and of being out of play
        always = np.maximum(always, table[:, ((0 if gains else -1) - first) // size])
    table = np.maximum.accumulate(table, axis=1)
    reach = plane.noise.half_width()
    highest = np.arange(-reach, reach + 1)  # of the rivals' noises
    mass = np.diff(np.exp((n_classes - 2) * plane.noise.log_cdf(np.append(highest - 1, reach))))
    missing = max(0.0, 1 - float(mass.sum())) + 1e-12  # noise further out: as if it were the worst
    found = np.empty(len(gaps))
    for i, gap in enumerate(gaps):
        column = (own + size - 1 - gap - first) // size  # the last with a lead of `gap` somewhere in its block
        best = np.where(column >= 0, table[np.arange(len(table)), np.clip(column, 0, len(table) - 1)], 0.0)
        best = np.maximum.accumulate(np.maximum(best, always)[::-1])[::-1]
        place = (gap - 1 - highest - first) // size
        value = np.where(place < 0, largest, best[np.clip(place, 0, len(best) - 1)])
        found[i] = float(mass @ np.maximum(value, two_class[i])) + missing * largest
    return np.minimum(plane.with_slack(found), largest)


@dataclass(frozen=True)
class PrivateCost:
    """The data-dependent cost of the labels released so far, and how much it may change.

    `rdp` and `local_sensitivity` depend on the votes: they are private, and left out of the printed form.
    `local_sensitivity[d]` bounds the change of `rdp` by one record, from any data within d records of these.
    `worst_case_rdp` holds for every data set and is public; so is `label_draws`, how often integer noise was drawn.
    """

    order: float
    worst_case_rdp: float
    label_draws: int
    rdp: float = field(repr=False)
    local_sensitivity: Floats = field(repr=False)

    def __post_init__(self) -> None:
        parameters.order(self.order)
        parameters.number(self.worst_case_rdp, "worst_case_rdp", least=0)
        parameters.number(self.label_draws, "label_draws", least=0)

    def smooth_sensitivity(self, beta: float) -> float:
        """The beta-smooth bound max_d exp(-beta d) local_sensitivity[d] (Nissim et al. 2007, Definition 2.2).

        It sums the queries before it takes the maximum, which is at most the sum of the queries' own bounds:
        one record moves at most one vote of every query, so d records reach at most d votes in each.
        """
        return float(discounted_maximum(self.local_sensitivity, beta))


def discounted_maximum(local_sensitivity: ArrayLike, beta: float) -> Floats:
    """Largest exp(-beta d) local_sensitivity[..., d] over the distances d of the last axis."""
    parameters.positive(beta, "beta")
    ladder = np.asarray(local_sensitivity, dtype=np.float64)
    return np.asarray(np.max(ladder * np.exp(-beta * np.arange(ladder.shape[-1])), axis=-1))


def answers_cost(counts: ArrayLike, noise: IntegerNoise, order: float) -> PrivateCost:
    """Cost of one argmax of noisy counts for every row of `counts`, int[queries, classes]."""
    votes = parameters.votes(counts, "counts")
    order = parameters.order(order)
    ordered = np.sort(votes, axis=1)
    n_teachers, n_classes = int(votes[0].sum()), votes.shape[1]
    curve = rdp_by_gap(noise, order, n_classes, n_teachers)
    return _along(curve, ordered[:, -1] - ordered[:, -2], 2, order, votes.size + len(votes))


def tests_cost(counts: ArrayLike, noise: IntegerNoise, threshold: float, order: float) -> PrivateCost:
    """Cost of the test max(counts) + noise ≥ threshold for every row of `counts`."""
    votes = parameters.votes(counts, "counts")
    curve = rdp_of_test_by_largest(noise, parameters.threshold(threshold), parameters.order(order), int(votes[0].sum()))
    return _along(curve, votes.max(axis=1), 1, order, len(votes))


def realised_cost(
    counts: ArrayLike,
    answered: ArrayLike,
    threshold: float,
    test_noise: IntegerNoise,
    answer_noise: IntegerNoise,
    order: float,
) -> PrivateCost:
    """Realised cost of ConfidentGNMax: every query pays the threshold test, answered ones pay the argmax too.

    Which queries were `answered` (bool[queries]) is released output, so the cost may be conditioned on it.
    """
    votes = parameters.votes(counts, "counts")
    mask = np.asarray(answered)
    if mask.dtype != np.bool_ or mask.shape != votes.shape[:1]:
        raise ValueError(f"answered must be bool[{len(votes)}], not {mask.dtype}{list(mask.shape)}")
    tests = tests_cost(votes, test_noise, threshold, order)
    if not mask.any():
        return tests
    labels = answers_cost(votes[mask], answer_noise, order)
    return PrivateCost(
        order=order,
        worst_case_rdp=tests.worst_case_rdp + labels.worst_case_rdp,
        label_draws=tests.label_draws + votes.size + len(votes),
        rdp=tests.rdp + labels.rdp,
        local_sensitivity=tests.local_sensitivity + labels.local_sensitivity,
    )


def rdp_of_test_by_largest(noise: IntegerNoise, threshold: float, order: float, n_teachers: int) -> Floats:
    """Rényi cost of the test, forward, by the largest count 0 … n_teachers: exact for integer noise, rounded up."""
    passes, fails = noise.log_test(math.ceil(threshold) - np.arange(-1, n_teachers + 2))
    here, less, more = slice(1, -1), slice(None, -2), slice(2, None)
    excess = [
        moment_excess(passes[here], passes[to], order) + moment_excess(fails[here], fails[to], order)
        for to in (less, more)
    ]
    return np.log1p(np.maximum(*excess) * (1 + _COST_ROUNDING)) / (order - 1)


def _along(curve: Floats, places: NDArray[np.integer], step: int, order: float, draws: int) -> PrivateCost:
    """The cost of queries at `places` of a curve along which a moved vote takes a query by at most `step`."""
    found, often = np.unique(places, return_counts=True)
    return PrivateCost(
        order=order,
        worst_case_rdp=len(places) * float(curve.max()),
        label_draws=draws,
        rdp=float(often @ curve[found]),
        local_sensitivity=often @ largest_steps(curve, found, step),
    )


def largest_steps(curve: Floats, places: Ints, step: int) -> Floats:
    """float[places, len(curve)]: largest change of the curve by one vote, within d = 0, 1, … votes of each place.

    After d votes a query is within d·step of its place, and from there or to there one vote takes it by at most
    `step`; so what counts are the changes over up to `step` between place − (d + 1)·step and place + (d + 1)·step.
    """
    last = len(curve) - 1
    changes = np.zeros(len(curve))  # changes[i]: the largest from i to i + 1 … i + step
    for far in range(1, min(step, last) + 1):
        changes[:-far] = np.maximum(changes[:-far], np.abs(curve[far:] - curve[:-far]))
    distance = np.arange(len(curve))
    first = np.clip(places[:, None] - (distance + 1) * step, 0, last)
    return _range_maximum(changes, first, np.clip(places[:, None] + distance * step, 0, last))


def _range_maximum(values: Floats, first: Ints, last: Ints) -> Floats:
    """Maxima of many index ranges [first, last] of one array, by a table of the maxima over powers of two."""
    levels = [values]
    while 2 ** len(levels) <= len(values):
        half = 2 ** (len(levels) - 1)
        levels.append(np.maximum(levels[-1][:-half], levels[-1][half:]))
    table = np.stack([np.pad(level, (0, len(values) - len(level))) for level in levels])
    level = np.frexp((last - first + 1).astype(np.float64))[1] - 1
    return np.asarray(np.maximum(table[level, first], table[level, last + 1 - 2**level]))


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


def _quantile(probability: float) -> float:
    """What a standard normal variable exceeds with this probability."""
    from scipy.special import ndtri  # costs 0.3 s: import where used

    return -float(ndtri(probability))


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

    `failure` is the part of `delta` spent on the bound being too low (by default a tenth). The figure is
    clipped at the public worst case and at zero, and rounded up to a multiple of `GRID`.
    """
    delta = parameters.delta(delta)
    lost = FAILURE_SHARE * delta if failure is None else parameters.number(failure, "failure", above=0, below=delta)
    quantile = _quantile(lost)
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
        return cls(labels, order, release_rdp(order, beta + ROUNDING, sigma_ss, _quantile(FAILURE_SHARE * delta)))

    def epsilon(self, delta: float) -> float:
        total = np.array([self.labels.rdp_at(self.order) + self.release])
        return rdp_epsilon(np.array([self.order]), total, delta)[0]


def check_release(
    labels: RdpGuarantee, order: float, beta: float, sigma_ss: float, delta: float, label_draws: int
) -> None:
    """Raise where `epsilon_sanitised` would, once all of the budget is spent: before any of it is."""
    own = release_rdp(order, beta + ROUNDING, sigma_ss, _quantile(FAILURE_SHARE * parameters.delta(delta)))
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
