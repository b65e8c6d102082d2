"""What released counts say about public examples: labels with weights. Works on what was released alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.noise.integer import IntegerNoise

_REACH = 40.0  # scales of noise beyond a released count that its true value may be


@dataclass(frozen=True)
class Labelled:
    """Public examples by row, with labels and weights between 0 and 1; a row may come with several labels."""

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    weights: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.rows)

    def same_as(self, labels: NDArray[np.int64], weights: NDArray[np.float64] | None) -> bool:
        """Whether these are the labels that were published."""
        same = weights is not None and len(weights) == len(self) and np.allclose(weights, self.weights)
        return bool(same and np.array_equal(labels, self.labels))


def expected_counts(released: NDArray[np.int64], noise: IntegerNoise, mean: float) -> NDArray[np.float64]:
    """The mean of each true count given its noisy value, where counts are geometric with this `mean` before.

    >>> from pate.noise.integer import DiscreteLaplace
    >>> expected_counts(np.array([100, 0, -50]), DiscreteLaplace(2), mean=50).round(1).tolist()
    [99.8, 1.5, 1.5]
    """
    values, where = np.unique(released, return_inverse=True)
    true = np.arange(int(max(values.max(initial=0), 0) + _REACH * noise.scale) + 1)
    log_prior = true * np.log(mean / (1 + mean))
    means = np.empty(len(values))
    for i, value in enumerate(values):
        log_posterior = noise.log_pmf(value - true) + log_prior
        posterior = np.exp(log_posterior - log_posterior.max())
        means[i] = (posterior * true).sum() / posterior.sum()
    return means[where.reshape(-1)].reshape(released.shape)


def shares(released: NDArray[np.int64], noise: IntegerNoise) -> NDArray[np.float64]:
    """Each class's share of a cell's votes as far as the noisy counts tell, [cells, classes].

    Before its count is looked at, a class is as frequent in a cell as on average over all cells, of which the noisy
    counts tell more than of any one: so a cell with few votes has about the shares of all cells together.
    """
    means = np.maximum(released.mean(axis=0), _standard_error(noise, len(released)))
    counts = np.stack([expected_counts(released[:, k], noise, float(mean)) for k, mean in enumerate(means)], axis=1)
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300), dtype=np.float64)


def _standard_error(noise: IntegerNoise, n: int) -> float:
    """Of a mean of `n` noisy counts: what cannot be told from nothing is taken for that much."""
    k = np.arange(-noise.half_width(), noise.half_width() + 1)
    return float(np.sqrt((np.exp(noise.log_pmf(k)) * k**2).sum() / n))


def of_members(cell_shares: NDArray[np.float64], cells: NDArray[np.int64], least_share: float, soft: bool) -> Labelled:
    """Labels for every public example by the shares of its cell; cells whose largest share is lower are left out.

    `soft`: each class comes with its share as a weight; else the largest, with what it has beyond an even share.
    """
    n_classes = cell_shares.shape[1]
    kept = np.flatnonzero(cell_shares[cells].max(axis=1) >= least_share)
    own = cell_shares[cells[kept]]
    if not soft:
        weights = (own.max(axis=1) - 1 / n_classes) / (1 - 1 / n_classes)
        return Labelled(kept, own.argmax(axis=1).astype(np.int64), np.clip(weights, 0, 1))
    rows = np.repeat(kept, n_classes)
    return Labelled(rows, np.tile(np.arange(n_classes), len(kept)), own.reshape(-1))
