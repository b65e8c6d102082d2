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


def expected_counts(released: NDArray[np.int64], noise: IntegerNoise) -> NDArray[np.float64]:
    """The mean of each true count given its noisy value, every count from 0 on being as likely before.

    >>> from pate.noise.integer import DiscreteLaplace
    >>> expected_counts(np.array([[100, 0, -50]]), DiscreteLaplace(2)).round(1).tolist()
    [[100.0, 1.5, 1.5]]
    """
    values, where = np.unique(released, return_inverse=True)
    reach = int(max(values.max(initial=0), 0) + _REACH * noise.scale) + 1
    true = np.arange(reach)
    means = np.empty(len(values))
    for i, value in enumerate(values):
        log_likelihood = noise.log_pmf(value - true)
        likelihood = np.exp(log_likelihood - log_likelihood.max())
        means[i] = (likelihood * true).sum() / likelihood.sum()
    return means[where].reshape(released.shape)


def shares(released: NDArray[np.int64], noise: IntegerNoise) -> NDArray[np.float64]:
    """Each class's share of a cell's votes as far as the noisy counts tell; near uniform where a cell has few."""
    counts = expected_counts(released, noise)
    return np.asarray(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300), dtype=np.float64)


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
