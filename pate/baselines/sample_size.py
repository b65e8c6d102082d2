"""How many records DP-ERM needs: a bound on what a private classifier loses against the best of a given norm.

The bound is ours. Chaudhuri, Monteleoni and Sarwate 2011 have theorems of the same kind, whose constants could not be
checked. This one is about `DPLinearClassifier` as it is: its factor, its solver, its rounding. The proof is in
docs/proofs.md; of other people's it takes symmetrisation, contraction of Rademacher averages and McDiarmid's
inequality (Shalev-Shwartz and Ben-David, "Understanding Machine Learning", 2014, Lemmas 26.2, 26.4, 26.9 and 26.10).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from scipy.optimize import minimize_scalar
from scipy.special import gammainccinv

from pate.accounting import _parameters as parameters
from pate.baselines.dp_erm import GRID, SOLVER_SHARE, build_loss, min_strength, objective_parameters, tolerance_of
from pate.errors import ConfigError

MAX_RECORDS = 10**15


class SufficientRecords(NamedTuple):
    """So many records are enough, with this `regularisation` of `DPLinearClassifier`."""

    records: int
    regularisation: float


@dataclass(frozen=True)
class ExcessLoss:
    """What a private linear classifier of two classes loses at most, against any one of norm `norm` or less.

    Statement. Let n records be drawn independently from one distribution, and be learned from by `DPLinearClassifier`
    with `n_records` = n. Write L(w) for the expected loss of w on one more record, over rows as the classifier makes
    them (norm at most 1; `dimension` counts their columns, the intercept's too). With probability at least
    1 − `failure` over records and noise,

        L(released) ≤ L(w₀) + bound(n, regularisation)  for every w₀ with |w₀| ≤ `norm`.

    Nothing is assumed of the distribution. With Λ the regularisation (for objective perturbation: as the classifier
    raises it) and s = (2 + √(2·ln(2/failure)))/√n, the bound is

    * objective: Λ·norm²/2 + (s² + s·t + t²/2)/Λ, where t is the length of the random tilt, over n;
    * output: Λ·norm²/2 and the lesser of s²/Λ + v and (s/Λ + 2v)·s + (c + Λ)·v²/2, where v is the length of what is
      added, and ℓ'' ≤ c;

    and, for both, how far solver, blur and rounding move the result, which is little. Noise is taken as long as it gets
    with probability 1 − failure/2, by the exact quantile of a Gamma(`dimension`) variable.

    >>> round(ExcessLoss(epsilon=0.1, dimension=105, norm=1.0).sufficient_records(0.1).records, -2)
    36300
    """

    epsilon: float
    dimension: int
    norm: float
    failure: float = 0.05
    method: str = "objective"
    loss: str = "logistic"
    huber_width: float = 0.5

    def __post_init__(self) -> None:
        parameters.epsilon(self.epsilon)
        parameters.whole(self.dimension, "dimension", least=1)
        parameters.positive(self.norm, "norm")
        parameters.open_probability(self.failure, "failure")
        build_loss(self.loss, self.huber_width)
        if self.method not in ("output", "objective"):
            raise ConfigError(f"method = {self.method!r}: must be 'output' or 'objective'")

    def bound(self, records: float, regularisation: float) -> float:
        """The most that is lost, with probability 1 − `failure`; infinite where the classifier refuses its settings."""
        parameters.positive(records, "records")
        parameters.positive(regularisation, "regularisation")
        if self.method == "objective":
            return self._objective(records, regularisation)
        return self._output(records, regularisation)

    def sufficient_records(self, excess: float) -> SufficientRecords:
        """Records whose bound, at the regularisation beside them, is `excess` or less; to a thousandth the fewest."""
        parameters.positive(excess, "excess")
        low, high = 1, MAX_RECORDS
        least, regularisation = self._best(high)
        if least > excess:
            raise ConfigError(f"excess = {excess:g}: would need more than {MAX_RECORDS:,} records")
        while high - low > max(1, low // 1000):
            middle = min(math.ceil(math.sqrt(low * high)), high - 1)
            least, best = self._best(middle)
            if least <= excess:
                high, regularisation = middle, best
            else:
                low = middle
        return SufficientRecords(high, regularisation)

    def _best(self, records: float) -> tuple[float, float]:
        """(bound, regularisation) at about the best regularisation; whichever it is, the bound holds there."""
        least = 1.001 * min_strength(self.curvature, records) / records
        spread = math.log(least), math.log(max(1e3, 1e3 / self.norm**2))
        found = minimize_scalar(lambda x: self.bound(records, math.exp(x)), bounds=spread, method="bounded")
        return float(found.fun), math.exp(float(found.x))

    @property
    def curvature(self) -> float:
        """c: the loss's second derivative at most."""
        return build_loss(self.loss, self.huber_width).curvature

    def _objective(self, records: float, regularisation: float) -> float:
        epsilon = self.epsilon * (1.0 - SOLVER_SHARE)
        strength, tilt_epsilon = objective_parameters(epsilon, regularisation * records, self.curvature)
        if strength < min_strength(self.curvature, records):
            return math.inf
        tolerance = tolerance_of(records, 2.0 * self.dimension / tilt_epsilon)
        # Two vectors of noise: half of the failure of noise for each.
        length = self._noise(0.25)
        tilt, spread = length * 2.0 / tilt_epsilon / records, self._spread(records)
        blur = length * 2.0 * tolerance / (self.epsilon * SOLVER_SHARE * strength)
        learned = (spread**2 + spread * tilt + 0.5 * tilt**2) / (strength / records)
        return 0.5 * strength / records * self.norm**2 + learned + blur + tolerance / strength + self._rounding()

    def _output(self, records: float, regularisation: float) -> float:
        strength = regularisation * records
        if strength < min_strength(self.curvature, records):
            return math.inf
        tolerance = tolerance_of(records, 0.0)
        added = (self._noise(0.5) * 2.0 * (1.0 + tolerance) / self.epsilon + tolerance) / strength
        spread = self._spread(records)
        by_slope = spread**2 / regularisation + added
        by_curvature = (spread / regularisation + 2.0 * added) * spread
        by_curvature += 0.5 * (self.curvature + regularisation) * added**2
        return 0.5 * regularisation * self.norm**2 + min(by_slope, by_curvature) + self._rounding()

    def _noise(self, share: float) -> float:
        """What a Gamma(dimension) variable exceeds with a probability of that share of `failure`."""
        return float(gammainccinv(self.dimension, share * self.failure))

    def _spread(self, records: float) -> float:
        return (2.0 + math.sqrt(2.0 * math.log(2.0 / self.failure))) / math.sqrt(records)

    def _rounding(self) -> float:
        return math.sqrt(self.dimension) * GRID / 2.0
