"""All small vote histograms, what one moved vote makes of each, and what tells two of them apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from pate.mechanisms import Mechanism

Row = tuple[int, ...]


@cache
def histograms(votes: int, classes: int) -> NDArray[np.int64]:
    """Every way to give so many votes to the classes; do not change it."""
    cuts = itertools.combinations(range(votes + classes - 1), classes - 1)
    return np.array([np.diff([-1, *cut, votes + classes - 1]) - 1 for cut in cuts])


def neighbours(row: Row) -> list[Row]:
    """All histograms one moved vote away."""
    pairs = itertools.permutations(range(len(row)), 2)
    return [tuple(int(c) - (i == a) + (i == b) for i, c in enumerate(row)) for a, b in pairs if row[a] > 0]


def neighbouring_outcomes(
    mechanism: Mechanism, votes: int, classes: int
) -> Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """log-probabilities for all pairs of histograms of so many votes that are one moved vote apart, both directions."""
    every = [tuple(row) for row in histograms(votes, classes).tolist()]
    log = dict(zip(every, mechanism.log_outcomes(np.array(every)), strict=True))
    for row in every:
        for moved in neighbours(row):
            yield log[row], log[moved]


def pairs_of_outcomes(mechanism: Mechanism, votes: int, classes: int) -> tuple[NDArray, NDArray]:
    """Those pairs as two arrays, [pairs, outcomes]."""
    one, other = zip(*neighbouring_outcomes(mechanism, votes, classes), strict=True)
    return np.array(one), np.array(other)


def renyi(log_p: NDArray[np.float64], log_q: NDArray[np.float64], order: float) -> NDArray[np.float64]:
    """D_order(P ‖ Q) of each row; infinite where P gives an answer that Q never gives."""
    possible = np.isfinite(log_p)
    exponents = order * np.where(possible, log_p, 0.0) + (1 - order) * np.where(possible, log_q, 0.0)
    return np.asarray(logsumexp(np.where(possible, exponents, -np.inf), axis=-1) / (order - 1))


def hockey_stick(log_p: NDArray[np.float64], log_q: NDArray[np.float64], epsilon: float) -> NDArray[np.float64]:
    """The smallest δ of each row for which P ≤ e^ε·Q + δ for all events."""
    return np.asarray(np.maximum(0, np.exp(log_p) - math.exp(epsilon) * np.exp(log_q)).sum(axis=-1))
