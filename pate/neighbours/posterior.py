"""What released counts say about public examples: labels with weights. Works on what was released alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pate.noise.integer import IntegerNoise

_REACH = 40.0  # scales of noise beyond a released count that its true value may be
_FITTINGS = 30  # of a cell's guesses to its shares: far more than labels are told apart by
_LEAST = 1e-4  # what a share or a guess is at least, so that no class is ruled out for good


@dataclass(frozen=True)
class Labelled:
    """Public examples by row, with labels and weights between 0 and 1; a row may come with several labels.

    `cells` says which cell each of them has its label from, where whole cells were labelled.
    """

    rows: NDArray[np.int64]
    labels: NDArray[np.int64]
    weights: NDArray[np.float64]
    cells: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def same_as(self, labels: NDArray[np.int64], weights: NDArray[np.float64] | None) -> bool:
        """Whether these are the labels that were published."""
        same = weights is not None and len(weights) == len(self) and np.allclose(weights, self.weights)
        return bool(same and np.array_equal(labels, self.labels))

    def refined(self, guesses: NDArray[np.float64]) -> Labelled:
        """The same cells with the same shares, but within a cell every example as a student guesses: the guesses
        [public examples, classes] nearest to the student's (in relative entropy) whose mean in each cell is its share.

        Votes tell what share of a cell has a class, not which examples: a student that learned from all cells may know.
        Works on what was released and on public examples alone. For soft labels, which come with every class.
        """
        assert self.cells is not None
        n_classes = guesses.shape[1]
        own = self.weights.reshape(-1, n_classes)
        rows, cells = self.rows[::n_classes], self.cells[::n_classes]
        matched = _with_means(guesses[rows], cells, own)
        return replace(self, weights=matched.reshape(-1))


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


def _with_means(
    guesses: NDArray[np.float64], cells: NDArray[np.int64], shares: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Rows proportional to `guesses` times one factor per cell and class, so that their means are the cell's shares.

    `shares` has a row for each of `guesses`, the same within a cell; the factors are found by iterative proportional
    fitting (Deming and Stephan 1940).
    """
    names, members, sizes = np.unique(cells, return_inverse=True, return_counts=True)
    wanted = np.zeros((len(names), shares.shape[1]))
    wanted[members] = np.maximum(shares, _LEAST)
    guesses = np.maximum(guesses, _LEAST)
    factors = np.ones_like(wanted)
    for _ in range(_FITTINGS):
        scaled = guesses * factors[members]
        scaled /= scaled.sum(axis=1, keepdims=True)
        means = np.zeros_like(wanted)
        np.add.at(means, members, scaled)
        factors *= wanted / np.maximum(means / sizes[:, None], 1e-300)
    fitted = guesses * factors[members]
    return np.asarray(fitted / fitted.sum(axis=1, keepdims=True))


def of_members(cell_shares: NDArray[np.float64], cells: NDArray[np.int64], least_share: float, soft: bool) -> Labelled:
    """Labels for every public example by the shares of its cell; cells whose largest share is lower are left out.

    `soft`: each class comes with its share as a weight; else the largest, with what it has beyond an even share.
    """
    n_classes = cell_shares.shape[1]
    kept = np.flatnonzero(cell_shares[cells].max(axis=1) >= least_share)
    own = cell_shares[cells[kept]]
    if not soft:
        weights = (own.max(axis=1) - 1 / n_classes) / (1 - 1 / n_classes)
        return Labelled(kept, own.argmax(axis=1).astype(np.int64), np.clip(weights, 0, 1), cells[kept])
    rows = np.repeat(kept, n_classes)
    labels = np.tile(np.arange(n_classes), len(kept))
    return Labelled(rows, labels, own.reshape(-1), np.repeat(cells[kept], n_classes))
