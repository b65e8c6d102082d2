"""Random Fourier features: a linear model on them approximates a kernel machine with the Gaussian kernel."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class RandomFourierFeatures:
    """Random Fourier features, on which a linear model approximates one with the Gaussian kernel.

    x ↦ (cos(Ωx), sin(Ωx))/√n_pairs with Ω drawn once from N(0, 2·gamma): inner products come near exp(−gamma·|x −
    x'|²) (Rahimi and Recht 2007), and every row has norm exactly 1. Ω comes from the seed and the number of columns
    alone, so it is public.

    Parameters
    ----------
    n_pairs : int
        Number of frequencies; there are twice as many features.
    gamma : float
        Width of the kernel, as in sklearn.svm.SVC.
    random_state : int, default 0
        Seed of everything that is drawn while training.
    """

    def __init__(self, n_pairs: int, gamma: float, random_state: int = 0) -> None:
        if not 1 <= n_pairs <= 10**6:
            raise ValueError(f"n_pairs = {n_pairs}: must be 1 to 1,000,000")
        self.n_pairs = n_pairs
        self.gamma = gamma
        self.random_state = random_state

    def transform(self, X: NDArray) -> NDArray[np.float64]:
        rng = np.random.default_rng(self.random_state)
        frequencies = np.sqrt(2.0 * self.gamma) * rng.standard_normal((X.shape[1], self.n_pairs))
        angles = np.asarray(X, dtype=np.float64) @ frequencies
        return np.concatenate([np.cos(angles), np.sin(angles)], axis=1) / np.sqrt(self.n_pairs)
