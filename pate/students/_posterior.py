"""What released counts say about public examples: labels with weights. Works on what was released alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pate.noise.integer import IntegerNoise

_REACH = 10.0  # scales of noise beyond the largest released count that a true one may be
_STEPS_TOGETHER, _STEPS_A_CLASS = 100, 5  # of expectation maximisation: few, so that no law is made of chance alone
_POSSIBLE = 1e-9  # of what was thought before stays possible, so that no count is ruled out for good
_DOUBT = 0.1  # votes, in scales of noise, that every cell is taken to have in the shares of all cells together
_FITTINGS = 30  # of a cell's guesses to its shares: far more than labels are told apart by
_FOUR_DEVIATIONS = 4.0
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

    def only(self, kept: NDArray[np.bool_]) -> Labelled:
        """The labels that are `kept`."""
        cells = None if self.cells is None else self.cells[kept]
        return Labelled(self.rows[kept], self.labels[kept], self.weights[kept], cells)

    def refined(self, guesses: NDArray[np.float64]) -> Labelled:
        """Soft labels that keep each cell's shares and follow a student's guesses within the cell.

        They are the soft labels [public examples, classes] nearest to the guesses in relative entropy whose mean in
        each cell is the cell's share.

        Votes tell what share of a cell has a class, not which examples: a student that learned from all cells may know.
        Works on what was released and on public examples alone. For soft labels, which come with every class.
        """
        assert self.cells is not None
        n_classes = guesses.shape[1]
        shares, own = self.weights.reshape(-1, n_classes), guesses[self.rows[::n_classes]]
        return replace(self, weights=_with_means(own, self.cells[::n_classes], shares).reshape(-1))


def is_only_noise(released: NDArray[np.int64], noise: IntegerNoise) -> bool:
    """Whether all released counts together are what noise alone would give, so that hardly any record can have voted.

    By chance it is said of no votes at all in all but 1 of 10,000 rounds; and of what was released alone.

    >>> from pate.noise.integer import DiscreteLaplace
    >>> drawn = np.array([[1, -2], [0, 1]])
    >>> is_only_noise(drawn, DiscreteLaplace(1.0)), is_only_noise(drawn + 20, DiscreteLaplace(1.0))
    (True, False)
    """
    k = np.arange(-noise.half_width(), noise.half_width() + 1)
    variance = float((k.astype(float) ** 2 * np.exp(noise.log_pmf(k))).sum())
    return bool(released.sum() < _FOUR_DEVIATIONS * np.sqrt(variance * released.size))


def _expected_counts(
    released: NDArray[np.int64], noise: IntegerNoise, counts: NDArray[np.int64], prior: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The mean of each true count given its noisy value, where it was one of `counts` with these probabilities before.

    >>> from pate.noise.integer import DiscreteLaplace
    >>> _expected_counts(np.array([90, 51, -5]), DiscreteLaplace(2), np.array([0, 100]), np.array([0.5, 0.5])).round(1)
    array([100. ,  73.1,   0. ])
    """
    values, where = np.unique(released, return_inverse=True)
    likely = _likelihoods(values, noise, counts) * prior
    means = likely @ counts / likely.sum(axis=1)
    return np.asarray(means[where.reshape(-1)].reshape(released.shape))


def shares(released: NDArray[np.int64], noise: IntegerNoise) -> NDArray[np.float64]:
    """Each class's share of a cell's votes as far as the noisy counts tell, [cells, classes].

    How true counts are spread is learned from all noisy counts together, of which there are many: it is the law that
    makes them likeliest (Kiefer and Wolfowitz 1956), by expectation maximisation stopped early; then, a few steps
    further, that of each class. A count is then its mean given its noisy value. So where most cells are pure, a
    count that stands out of the noise is believed, and the others are taken for nothing. A cell that may be empty
    has about the shares of all cells together.
    """
    counts = _support(int(released.max(initial=0)), noise.scale)
    values, where = np.unique(released, return_inverse=True)
    where = where.reshape(released.shape)
    likelihoods = _likelihoods(values, noise, counts)
    flat = np.gradient(counts.astype(np.float64)) / (counts + noise.scale)  # about even over magnitudes
    pooled = _learned(flat / flat.sum(), likelihoods, np.bincount(where.reshape(-1)), _STEPS_TOGETHER)
    expected = np.empty(released.shape)
    for k in range(released.shape[1]):
        seen = np.bincount(where[:, k], minlength=len(values))
        prior = _learned(pooled, likelihoods, seen, _STEPS_A_CLASS)
        expected[:, k] = _expected_counts(released[:, k], noise, counts, prior)
    expected += _DOUBT * noise.scale * expected.sum(axis=0) / expected.sum()
    return np.asarray(expected / expected.sum(axis=1, keepdims=True), dtype=np.float64)


def _learned(
    prior: NDArray[np.float64], likelihoods: NDArray[np.float64], seen: NDArray[np.int64], steps: int
) -> NDArray[np.float64]:
    """`prior` after that many steps of expectation maximisation on values that were `seen` so often."""
    begun = prior
    for _ in range(steps):
        prior = prior * ((seen / (likelihoods @ prior)) @ likelihoods) / seen.sum()
        prior = (1 - _POSSIBLE) * prior + _POSSIBLE * begun
    return prior


def _likelihoods(values: NDArray[np.int64], noise: IntegerNoise, counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """How likely each noisy value is for each true count, up to a factor for each value, [values, counts]."""
    logs = noise.log_pmf(values[:, None] - counts[None, :])
    return np.asarray(np.exp(logs - logs.max(axis=1, keepdims=True)))


def _support(largest: int, scale: float) -> NDArray[np.int64]:
    """True counts that are told apart: a quarter of a scale of noise from each other, and for large ones a 500th."""
    step, top = max(1, int(scale / 4)), largest + _REACH * scale
    even = np.arange(0, min(top, 200 * scale) + step, step)
    further = np.ceil(np.log(max(top / even[-1], 1.0)) / np.log(1.002))
    growing = np.rint(even[-1] * 1.002 ** np.arange(1, further + 1))
    return np.unique(np.concatenate([even, growing])).astype(np.int64)


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


def label_members(
    cell_shares: NDArray[np.float64], cells: NDArray[np.int64], min_vote_share: float, soft: bool
) -> Labelled:
    """Labels for every public example by the shares of its cell; cells whose largest share is lower are left out.

    `soft`: each class comes with its share as a weight; else the largest, with what it has beyond an even share.
    """
    n_classes = cell_shares.shape[1]
    kept = np.flatnonzero(cell_shares[cells].max(axis=1) >= min_vote_share)
    own = cell_shares[cells[kept]]
    if not soft:
        weights = (own.max(axis=1) - 1 / n_classes) / (1 - 1 / n_classes)
        return Labelled(kept, own.argmax(axis=1).astype(np.int64), np.clip(weights, 0, 1), cells[kept])
    rows = np.repeat(kept, n_classes)
    labels = np.tile(np.arange(n_classes), len(kept))
    return Labelled(rows, labels, own.reshape(-1), np.repeat(cells[kept], n_classes))
