"""Convex losses of the margin, and a Newton solver that comes near the minimum for every data set."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from pate.accounting import parameters
from pate.errors import ConfigError

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
