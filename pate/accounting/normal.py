"""The standard normal distribution, by scipy; that takes 0.3 s to import, so the first call does it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def log_ndtr(x: ArrayLike) -> NDArray[np.float64]:
    """log P(Z ≤ x)."""
    from scipy.special import log_ndtr

    return np.asarray(log_ndtr(x), dtype=np.float64)


def ndtri(probability: float) -> float:
    """The x with P(Z ≤ x) = `probability`."""
    from scipy.special import ndtri

    return float(ndtri(probability))
