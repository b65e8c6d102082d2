"""Convex losses of the margin, and a Newton solver that says how near the minimum it came."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from pate.accounting import parameters
from pate.errors import ConfigError, RunError

Vector = NDArray[np.float64]

_MOST_STEPS = 200
_ARMIJO = 1e-4
_SHORTEST_STEP = 2.0**-40


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
    tolerance/strength of the one minimum. Newton's method with halved steps; an error where it does not get there,
    and then nothing is released.
    """
    w = np.zeros(rows.shape[1])
    margins = rows @ w

    def objective(w: Vector, margins: Vector) -> float:
        return float(loss.value(margins).sum() + 0.5 * strength * w @ w + tilt @ w)

    value = objective(w, margins)
    for _ in range(_MOST_STEPS):
        gradient = rows.T @ loss.slope(margins) + strength * w + tilt
        if np.linalg.norm(gradient) <= tolerance:
            return w
        hessian = (rows * loss.second(margins)[:, None]).T @ rows
        hessian[np.diag_indices_from(hessian)] += strength
        direction = cho_solve(cho_factor(hessian, check_finite=False), -gradient, check_finite=False)
        descent, along, size = float(gradient @ direction), rows @ direction, 1.0
        while True:
            moved, moved_margins = w + size * direction, margins + size * along
            new_value = objective(moved, moved_margins)
            # Near the minimum the objective's own rounding hides the last decrease: then the full step is taken.
            if new_value <= value + _ARMIJO * size * descent + 1e-13 * abs(value) or size < _SHORTEST_STEP:
                break
            size *= 0.5
        w, margins, value = moved, moved_margins, new_value
    raise RunError(
        f"the solver did not come to a gradient of {tolerance:g}; raise regularisation. Nothing was released"
    )
