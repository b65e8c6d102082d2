"""Private empirical risk minimisation: linear classifiers by output or objective perturbation.

Chaudhuri, Monteleoni, Sarwate, "Differentially Private Empirical Risk Minimization", JMLR 2011. The paper keeps
the number of records n public and fixed. Here n may differ between neighbours: the objective is a sum,

    F(w) = Σᵢ ℓ(yᵢ·w·xᵢ) + (λ/2)·|w|²,    λ = regularisation · n_records,

with `n_records` a public, configured figure, so neither λ nor the noise depends on how many records there are.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve
from sklearn.base import BaseEstimator, ClassifierMixin

from pate.accounting import _parameters as parameters
from pate.data.partition import split_into_parts
from pate.errors import ConfigError, DataError
from pate.features.basic import RandomFourierFeatures
from pate.noise import Entropy, exponential_choice, spherical_laplace

Vector = NDArray[np.float64]

_MAX_STEPS = 500
_HALVINGS = 60
_AIM = 0.01  # share of the tolerance that the solver tries to reach: floating-point numbers may end a little earlier


@dataclass(frozen=True)
class Logistic:
    """log(1 + e^−z): slope at most 1, curvature at most 1/4.

    `value`, `slope` and `second` are the loss and its first and second derivative at each margin.
    """

    curvature: float = 0.25

    def value(self, margins: Vector) -> Vector:
        return np.logaddexp(0.0, -margins)

    def slope(self, margins: Vector) -> Vector:
        return -0.5 * (1.0 - np.tanh(0.5 * margins))

    def second(self, margins: Vector) -> Vector:
        return 0.25 * (1.0 - np.tanh(0.5 * margins) ** 2)


@dataclass(frozen=True)
class Huber:
    """The hinge with its corner rounded over 2·`width` (Chaudhuri et al. 2011, equation 7): slope at most 1,
    curvature at most 1/(2·width).

    Methods are those of `Logistic`. The second derivative jumps at two margins; they are met on finitely many
    hyperplanes of w, a set of measure 0.
    """

    width: float = 0.5

    @property
    def curvature(self) -> float:
        return 1.0 / (2.0 * self.width)

    def value(self, margins: Vector) -> Vector:
        short = 1.0 + self.width - margins
        rounded = short**2 / (4.0 * self.width)
        return np.where(short <= 0.0, 0.0, np.where(short <= 2.0 * self.width, rounded, 1.0 - margins))

    def slope(self, margins: Vector) -> Vector:
        return -np.clip((1.0 + self.width - margins) / (2.0 * self.width), 0.0, 1.0)

    def second(self, margins: Vector) -> Vector:
        return np.where(np.abs(1.0 - margins) <= self.width, self.curvature, 0.0)


Loss = Logistic | Huber


def build_loss(name: str, huber_width: float) -> Loss:
    """The loss a config names."""
    if name == "logistic":
        return Logistic()
    if name == "huber":
        return Huber(parameters.positive(huber_width, "huber_width"))
    raise ConfigError(f"loss = {name!r}: must be 'logistic' or 'huber'")


def minimise(loss: Loss, rows: Vector, strength: float, tilt: Vector, tolerance: float) -> Vector:
    """w with |∇F(w)| ≤ `tolerance`, where F(w) = Σ loss(rows·w) + strength·|w|²/2 + tilt·w.

    `rows` are the examples times their signs ±1. F is `strength`-strongly convex, so w lies within
    tolerance/strength of the one minimum.

    No data set makes it fail. Newton's directions, or the gradient's where a Hessian cannot be factored for rounding,
    and steps at whose end the slope along them has at least halved: on a convex function with Lipschitz gradient that
    converges from anywhere, in real arithmetic. In floating point it aims a hundred times nearer than `tolerance` and
    gives the nearest point it saw; `dp_erm.min_strength` keeps away from where that could lie further off than
    `tolerance`.
    """
    w, found, nearest = np.zeros(rows.shape[1]), np.zeros(rows.shape[1]), np.inf
    for _ in range(_MAX_STEPS):
        margins = rows @ w
        gradient = rows.T @ loss.slope(margins) + strength * w + tilt
        length = float(np.linalg.norm(gradient))
        if length < nearest:
            found, nearest = w, length
        if length <= _AIM * tolerance:
            break
        direction = _direction(loss, rows, margins, strength, gradient)
        w = w + _step(loss, margins, rows @ direction, gradient, direction, strength) * direction
    return found


def _direction(loss: Loss, rows: Vector, margins: Vector, strength: float, gradient: Vector) -> Vector:
    hessian = (rows * loss.second(margins)[:, None]).T @ rows
    hessian[np.diag_indices_from(hessian)] += strength
    try:
        return np.asarray(cho_solve(cho_factor(hessian, check_finite=False), -gradient, check_finite=False))
    except LinAlgError:
        return -gradient / (loss.curvature * len(rows) + strength)


def _step(loss: Loss, margins: Vector, along: Vector, gradient: Vector, direction: Vector, strength: float) -> float:
    """How far to go: 1, or less where the slope along the direction, which only rises, would be steep upwards there."""
    at_start = float(gradient @ direction)
    rest = at_start - float(along @ loss.slope(margins))
    curved = strength * float(direction @ direction)
    low, high, size = 0.0, 1.0, 1.0
    for _ in range(_HALVINGS):
        slope = float(along @ loss.slope(margins + size * along)) + rest + size * curved
        if abs(slope) <= 0.5 * abs(at_start) or (slope < 0 and size == 1.0):
            break
        low, high = (size, high) if slope < 0 else (low, size)
        size = 0.5 * (low + high)
    return size


TOLERANCE = 1e-8
"""Largest gradient norm of what counts as the minimum, but see `tolerance_of`."""

_ROUNDING = 1e-11
"""Share of the size of a sum that rounding takes away, with much to spare."""

_WORST_CONDITION = 1e7
"""Most that curvature may differ between directions: beyond that floating-point numbers do not tell the minimum."""

SOLVER_SHARE = 0.01
"""Share of ε that objective perturbation spends on hiding how far the solver stopped from the exact minimum."""

GRID = 2.0**-30
"""What is released is rounded to multiples of this: the low bits of floating-point sums stay inside."""


@dataclass(eq=False, repr=False)
class DPLinearClassifier(ClassifierMixin, BaseEstimator):
    """Logistic regression or Huber SVM, ε-differentially private (δ = 0).

    Neighbouring data sets differ in one record: added, removed, or its content changed.

    Sensitivity. Rows are clipped to norm 1 one by one (the intercept is a column of the clipped row and
    regularised like the others; Fourier features have norm 1 by themselves), and |ℓ'| ≤ 1: a record adds at most 1 to
    the norm of ∇F, and changing one moves ∇F by at most 2. A record that is unusable (its label is not among `classes`;
    its features are no numbers, or are none after the transform) adds 0 to ∇F, and stops nothing.

    *Output perturbation* releases argmin F + b. F is λ-strongly convex, so its minimum moves by at most 2/λ, and what
    the solver returns by at most Δ = 2(1 + τ)/λ, with τ of `tolerance_of`. b has density ∝ exp(−(ε/Δ)|b|): ε-DP.

    *Objective perturbation* releases argmin F(w) + b·w, with b of density ∝ exp(−(ε′/2)|b|). For a given w the only b
    is −∇F(w), and the density of w is that of b times det ∇²F(w). Between neighbours |b| moves by at most 2: a factor
    e^ε′. Let A be ∇²F over the records both have. One side's determinant is at most det A·(1 + c/λ), with ℓ'' ≤ c, as
    one record adds a matrix of rank one and A ⪰ λ; the other's is at least det A. So the ratio is at most
    e^ε′·(1 + c/λ) (the paper bounds it by the square of that factor), and ε′ = ε₁ − ln(1 + c/λ). λ is raised to
    c/(e^{ε₁/2} − 1) where it is smaller, so that ε′ ≥ ε₁/2.
    All that is about the exact minimum. The solver stops within τ/λ of it; what it returned gets one more
    vector of noise, of density ∝ exp(−ε₂λ/(2τ)·|b₂|), which hides that distance at a cost of
    ε₂ = `SOLVER_SHARE`·ε (given the same exact minimum, two returned points differ by at most 2τ/λ).
    Together ε₁ + ε₂ = ε.

    More than two classes: one against the rest, each at ε divided by the number of classes (basic composition).

    Guarantee: `coef_`, and so everything predicted from it, is ε-DP in real arithmetic with the operating system's
    entropy; how long `fit` takes is not covered. Whether `fit` ends well depends on the settings alone: the solver gets
    there for every data set, and settings for which rounding could keep it from that are refused before.

    Parameters
    ----------
    epsilon : float, default=1.0
        ε of the guarantee; in a config `budget.epsilon`.
    n_records : float
        About how many private records there are, a figure that may be published; in a config `records`.
    loss : {"logistic", "huber"}, default="logistic"
        Logistic regression, or the support vector machine with a rounded hinge.
    method : {"objective", "output"}, default="objective"
        Where the noise goes: into what is minimised, which is nearly always better, or onto the minimum.
    regularisation : float, default=1e-3
        λ over `n_records`.
    classes : sequence, default=(0, 1)
        All labels that there can be; in a config those of the data.
    huber_width : float, default=0.5
        Half of the width over which the hinge is rounded, in margins.
    intercept : float, default=1.0
        The constant column's value beside rows of norm 1; 0 leaves the intercept out.
    fourier_features : int, default=0
        Random directions of a Gaussian kernel, two columns each; 0 is the plain columns.
    gamma : float, default=1.0
        The kernel is exp(−gamma·|x − x′|²).
    random_state : int, default=0
        Seed of those directions; no noise depends on it.
    entropy : callable, default=os.urandom
        entropy(n) gives n random bytes for the noise. Not for configs: other sources are for tests.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 2)); y = (X[:, 0] > 0).astype(int)
    >>> model = DPLinearClassifier(epsilon=1.0, n_records=2000).fit(X, y)
    >>> bool(model.score(X, y) > 0.8)
    True
    """

    name = "dp_erm"

    epsilon: float = 1.0
    _: KW_ONLY
    n_records: float
    loss: str = "logistic"
    method: str = "objective"
    regularisation: float = 1e-3
    classes: Sequence[Any] = (0, 1)
    huber_width: float = 0.5
    intercept: float = 1.0
    fourier_features: int = 0
    gamma: float = 1.0
    random_state: int = 0
    entropy: Entropy = os.urandom

    def fit(self, X: NDArray, y: NDArray) -> DPLinearClassifier:
        """Learn and release `coef_`, which costs `epsilon`. `left_out_`, how many records did not count, is private."""
        loss = self._checked_loss()
        self.classes_ = np.asarray(self.classes)
        positives = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        each = self.epsilon / len(positives)
        self._strength(loss, each)
        X, y = np.asarray(X, dtype=np.float64), np.asarray(y)
        usable = usable_records(X, y, self.classes)
        self.left_out_ = int((~usable).sum())
        rows = self._rows(X[usable])
        labels = y[usable]
        self.coef_ = np.stack(
            [self._release(loss, rows, np.where(labels == one, 1.0, -1.0), each) for one in positives]
        )
        self.epsilon_, self.delta_ = float(self.epsilon), 0.0
        self.n_features_in_ = X.shape[1]
        return self

    def decision_function(self, X: NDArray) -> NDArray[np.float64]:
        """One column per class, or one for the second of two classes."""
        scores = self._rows(X) @ self.coef_.T
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: NDArray) -> NDArray:
        """The class of each example."""
        scores = self.decision_function(X)
        return self.classes_[(scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(1)]

    def weights(self) -> dict[str, NDArray]:
        """What is released."""
        return {"coef": self.coef_}

    def learned(self) -> dict[str, Any]:
        """What `restore` needs beside the weights: nothing."""
        return {}

    def restore(self, weights: dict[str, NDArray], about: dict[str, Any]) -> DPLinearClassifier:
        """The fitted classifier again, from what was released; ValueError if that does not belong together."""
        self.coef_, self.classes_ = weights["coef"], np.asarray(self.classes)
        self._checked_loss()
        rows = 1 if len(self.classes_) == 2 else len(self.classes_)
        if self.coef_.ndim != 2 or len(self.coef_) != rows or not np.isfinite(self.coef_).all():
            raise ValueError(
                f"coef has shape {self.coef_.shape}, or holds NaN; {len(self.classes_)} classes need others"
            )
        columns = 2 * self.fourier_features + bool(self.intercept)
        if type(self.fourier_features) is not int or (self.fourier_features and self.coef_.shape[1] != columns):
            raise ValueError(
                f"fourier_features = {self.fourier_features!r} where coef has {self.coef_.shape[1]} columns"
            )
        if not all(math.isfinite(value) for value in (self.gamma, self.intercept, self.random_state)):
            raise ValueError("gamma, intercept and random_state must be finite numbers")
        self.epsilon_, self.delta_ = float(self.epsilon), 0.0
        return self

    def _checked_loss(self) -> Loss:
        parameters.epsilon(self.epsilon)
        for name in ("regularisation", "n_records", "gamma"):
            parameters.positive(getattr(self, name), name)
        parameters.number(self.intercept, "intercept", least=0)
        parameters.whole(self.fourier_features, "fourier_features", least=0, most=10**6)
        parameters.seed(self.random_state, "random_state")
        if self.method not in ("output", "objective"):
            raise ConfigError(f"method = {self.method!r}: must be 'output' or 'objective'")
        if len(set(self.classes)) != len(self.classes) or len(self.classes) < 2:
            raise ConfigError(f"classes = {list(self.classes)!r}: name two or more different ones")
        return build_loss(self.loss, self.huber_width)

    def _rows(self, X: NDArray) -> NDArray[np.float64]:
        """Examples as rows of norm at most 1, each computed from its own example alone."""
        X = np.asarray(X, dtype=np.float64)
        if X.ndim != 2:
            raise DataError(f"an example has shape {X.shape[1:]}; needed is (features,)")
        if not np.isfinite(X).all():
            raise DataError("examples hold NaN or infinity; fill missing values first")
        if self.fourier_features:
            rows = RandomFourierFeatures(self.fourier_features, self.gamma, self.random_state).transform(X)
            rows = np.where(np.isfinite(rows).all(axis=1, keepdims=True), rows, 0.0)
        else:
            rows = X
        if self.intercept:
            rows = clip_rows(rows)
            rows = np.column_stack([rows, np.full(len(rows), float(self.intercept))]) / math.hypot(1.0, self.intercept)
        return clip_rows(rows)

    def _strength(self, loss: Loss, epsilon: float) -> tuple[float, float]:
        """(λ, ε of the tilt) of one class, from public figures; ConfigError if λ is too small to find the minimum."""
        strength, tilt_epsilon = self.regularisation * self.n_records, math.inf
        if self.method == "objective":
            strength, tilt_epsilon = objective_parameters(epsilon * (1.0 - SOLVER_SHARE), strength, loss.curvature)
        if strength < min_strength(loss.curvature, self.n_records):
            raise ConfigError(
                f"regularisation = {self.regularisation:g}: must be at least {loss.curvature / _WORST_CONDITION:g} for "
                "this loss; with less, rounding hides where the minimum is"
            )
        return strength, tilt_epsilon

    def _release(self, loss: Loss, rows: NDArray[np.float64], signs: NDArray[np.float64], epsilon: float) -> NDArray:
        signed, dimension = rows * signs[:, None], rows.shape[1]
        strength, tilt_epsilon = self._strength(loss, epsilon)
        tolerance = tolerance_of(self.n_records, 2.0 * dimension / tilt_epsilon)
        if self.method == "output":
            best = minimise(loss, signed, strength, np.zeros(dimension), tolerance)
            sensitivity = 2.0 * (1.0 + tolerance) / strength
            released = best + spherical_laplace(dimension, epsilon / sensitivity, self.entropy)
        else:
            tilt = spherical_laplace(dimension, tilt_epsilon / 2.0, self.entropy)
            best = minimise(loss, signed, strength, tilt, tolerance)
            blur = epsilon * SOLVER_SHARE * strength / (2.0 * tolerance)
            released = best + spherical_laplace(dimension, blur, self.entropy)
        return np.round(released / GRID) * GRID


def usable_records(X: NDArray, y: NDArray, classes: Sequence[Any]) -> NDArray[np.bool_]:
    """Which records can be learned from, each by itself: features that are numbers, and a label among the classes."""
    known = set(np.asarray(classes).tolist())
    labelled = np.array([label in known for label in y.tolist()], dtype=bool)
    return np.isfinite(X).all(axis=tuple(range(1, X.ndim))) & labelled


def tolerance_of(n_records: float, mean_tilt: float) -> float:
    """Largest gradient norm of what counts as the minimum: what sums of this size reach in floating point.

    From public figures: about how many records there are, and how long the random tilt is on average.

    >>> tolerance_of(1000, 0.0), tolerance_of(50_000, 0.0)
    (1e-08, 5e-07)
    """
    return max(TOLERANCE, _ROUNDING * (n_records + mean_tilt))


def min_strength(curvature: float, n_records: float) -> float:
    """The least λ at which floating-point numbers tell the minimum, whatever the records."""
    return curvature * n_records / _WORST_CONDITION


def clip_rows(X: NDArray) -> NDArray[np.float64]:
    """Rows longer than 1 are shortened to 1, the others left alone.

    >>> clip_rows(np.array([[3.0, 4.0], [0.1, 0.0]]))
    array([[0.6, 0.8],
           [0.1, 0. ]])
    """
    norms = np.linalg.norm(X, axis=1, keepdims=True)
    clipped = X / np.maximum(norms, 1.0)
    # Division rounds: a row may come out a few units in the last place too long.
    return clipped / np.maximum(np.linalg.norm(clipped, axis=1, keepdims=True), 1.0)


def objective_parameters(epsilon: float, strength: float, curvature: float) -> tuple[float, float]:
    """(λ, ε′) of objective perturbation: λ raised where needed, ε′ = ε − ln(1 + curvature/λ) ≥ ε/2.

    >>> objective_parameters(1.0, 1000.0, 0.25)[1] > 0.999
    True
    >>> objective_parameters(0.1, 0.01, 0.25)[1]
    0.05
    """
    strength = max(strength, curvature / math.expm1(min(epsilon, 1000.0) / 2.0))
    return strength, max(epsilon - math.log1p(curvature / strength), epsilon / 2.0)


@dataclass(eq=False, repr=False)
class PrivatelyTuned(ClassifierMixin, BaseEstimator):
    """The best of several `DPLinearClassifier`s, chosen and trained at one ε (Chaudhuri et al. 2011, Algorithm 3).

    Neighbouring data sets differ in one record added or removed; with `ids`, also in its content under the same id.
    (Without ids a record's part is a hash of its bytes, so changing it can touch two parts: that is two steps.)

    Records are hashed into m + 1 parts; candidate i is trained on part i with ε, and the exponential mechanism with ε
    picks one by its number of errors on the last part. Sensitivity: a record is in one part. In a training part it
    changes one candidate, which is ε-DP, and the choice among candidates only processes that further; in the last
    part it changes each count of errors by at most 1.

    A record whose features are no numbers, or whose label is not among `classes`, is as if it were not there.

    Guarantee: the chosen candidate and its coefficients are ε-DP together.

    Parameters
    ----------
    epsilon : float, default=1.0
        ε of candidate and coefficients together; in a config `budget.epsilon`.
    n_records : float
        About how many private records there are, a figure that may be published; in a config `records`.
    candidates : sequence of dict
        Parameters of `DPLinearClassifier` to choose from.
    params : dict, default=None
        Its parameters that all candidates share.
    classes : sequence, default=(0, 1)
        All labels that there can be; in a config those of the data.
    random_state : int, default=0
        Seed of Fourier features, if there are any.
    entropy : callable, default=os.urandom
        entropy(n) gives n random bytes for noise and parts. Not for configs: other sources are for tests.
    """

    name = "dp_erm_tuned"

    epsilon: float = 1.0
    _: KW_ONLY
    n_records: float
    candidates: Sequence[dict[str, Any]]
    params: dict[str, Any] | None = None
    classes: Sequence[Any] = (0, 1)
    random_state: int = 0
    entropy: Entropy = os.urandom

    def fit(self, X: NDArray, y: NDArray, ids: Sequence[str] | None = None) -> PrivatelyTuned:
        """Train every candidate and choose one, which costs `epsilon` in all; `ids` say whose each record is."""
        if not self.candidates:
            raise ConfigError("candidates: give at least one set of parameters, such as {regularisation: 1e-3}")
        parameters.epsilon(self.epsilon)
        parameters.positive(self.n_records, "n_records")
        X, y = np.asarray(X, dtype=np.float64), np.asarray(y)
        usable = usable_records(X, y, self.classes)
        self.left_out_ = int((~usable).sum())
        X, y, ids = X[usable], y[usable], None if ids is None else [i for i, u in zip(ids, usable, strict=True) if u]
        models = [self._candidate(candidate) for candidate in self.candidates]
        *training, held_out = split_into_parts(X, y, ids, self.entropy(32), len(models) + 1)
        for model, part in zip(models, training, strict=True):
            model.fit(X[part], y[part])
        errors = [int((model.predict(X[held_out]) != y[held_out]).sum()) for model in models]
        chosen = exponential_choice(-np.array(errors), self.epsilon, self.entropy)
        self.best_params_, self.best_ = dict(self.candidates[chosen]), models[chosen]
        self.classes_ = self.best_.classes_
        self.epsilon_, self.delta_ = float(self.epsilon), 0.0
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X: NDArray) -> NDArray:
        """The class of each example, by the chosen candidate."""
        return self.best_.predict(X)

    def weights(self) -> dict[str, NDArray]:
        """What is released, together with `best_params_`."""
        return self.best_.weights()

    def learned(self) -> dict[str, Any]:
        """What `restore` needs beside the weights."""
        return {"best_params": self.best_params_}

    def restore(self, weights: dict[str, NDArray], about: dict[str, Any]) -> PrivatelyTuned:
        """The chosen classifier again, from what was released."""
        self.best_params_ = about["best_params"]
        self.best_ = self._candidate(self.best_params_).restore(weights, {})
        self.classes_ = self.best_.classes_
        self.epsilon_, self.delta_ = float(self.epsilon), 0.0
        return self

    def _candidate(self, candidate: dict[str, Any]) -> DPLinearClassifier:
        settings = {"random_state": self.random_state, **(self.params or {}), **candidate}
        given: dict[str, Any] = {"n_records": self.n_records / (len(self.candidates) + 1), "classes": self.classes}
        try:
            return DPLinearClassifier(self.epsilon, **given, entropy=self.entropy, **settings)
        except TypeError as error:
            raise ConfigError(f"candidates: {error}") from None
