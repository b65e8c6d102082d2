"""Principal components from public examples, or differentially private ones; never silently from private ones."""

from __future__ import annotations

import math
import os

import numpy as np
from numpy.typing import NDArray

from pate.noise.continuous import Entropy, gaussians


def public_components(X_public: NDArray, n_components: int) -> NDArray[np.float32]:
    """The leading directions of public examples, each scaled to norm 1 first: (features, n_components)."""
    rows = _unit_rows(X_public)
    return _leading(rows.T @ rows, n_components)


def private_components(
    X: NDArray, n_components: int, sigma: float, entropy: Entropy = os.urandom
) -> NDArray[np.float32]:
    """The leading directions of ΣxxT plus noise (Dwork, Talwar, Thakurta, Zhang 2014, "Analyze Gauss").

    Neighbouring data sets differ in one record added or removed. Sensitivity: a row has norm 1, so xxT has
    Frobenius norm 1, and its upper triangle at most that. Every entry there gets N(0, σ²).
    Guarantee: one Gaussian mechanism of noise multiplier `sigma`, to be counted with whatever else is released.
    """
    rows = _unit_rows(X)
    covariance = rows.T @ rows
    upper = np.triu_indices(len(covariance))
    noisy = np.zeros_like(covariance)
    noisy[upper] = covariance[upper] + sigma * gaussians(len(upper[0]), entropy)
    return _leading(noisy + np.triu(noisy, 1).T, n_components)


def project(X: NDArray, components: NDArray) -> NDArray[np.float32]:
    """Examples in the components' coordinates: rows of norm 1, times a fixed factor so that coordinates are about 1."""
    return (_unit_rows(X) @ components * np.sqrt(components.shape[1])).astype(np.float32)


def _unit_rows(X: NDArray) -> NDArray[np.float64]:
    rows = np.asarray(X, dtype=np.float64).reshape(len(X), math.prod(np.shape(X)[1:]))
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    # a row that is not finite, or too long to be squared, counts as zero
    usable = np.isfinite(norms)
    return np.where(usable, rows, 0.0) / np.where(usable & (norms > 0), norms, 1.0)


def _leading(symmetric: NDArray[np.float64], n_components: int) -> NDArray[np.float32]:
    if not 1 <= n_components <= len(symmetric):
        raise ValueError(f"{n_components} components of {len(symmetric)} features: there cannot be more than features")
    _, vectors = np.linalg.eigh(symmetric)
    return np.ascontiguousarray(vectors[:, ::-1][:, :n_components]).astype(np.float32)
