"""The audit of records that vote near themselves, from records to released counts: a second vote is found."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from pate.audit.confidence_bounds import epsilon_from_samples
from pate.mechanisms import Histogram
from pate.mechanisms._cell_costs import Round, cost_of
from pate.voters.neighbours._cells import Cells, CellVote, Space

RUNS = 40_000
MECHANISM = Histogram(2.0)
CELLS = Cells(Space(np.zeros(1), np.ones(1)), np.array([[0.0], [10.0], [20.0]]))
ELECTION = CellVote(lambda X: X, CELLS, 1, 2)
RECORDS = np.array([[1.0], [2.0], [9.0], [19.0], [21.0]]), np.array([0, 1, 0, 1, 1])
CHANGED = np.array([[11.0], *RECORDS[0][1:]]), np.array([1, *RECORDS[1][1:]])  # the first record, under its id

Count = Callable[[np.ndarray, np.ndarray], np.ndarray]


def lower_bound(count: Count) -> float:
    """Of ε of a round, from releases on two neighbouring data sets; too high with probability 1e-6."""
    entropy = np.random.default_rng(1).bytes
    samples = []
    for X, y in (RECORDS, CHANGED):
        counts = count(X, y)
        released = np.concatenate(
            [MECHANISM.release_counts(np.tile(counts, (RUNS // 10, 1)), entropy) for _ in range(10)]
        ).reshape(RUNS, *counts.shape)
        # the direction of the likelihood ratio: what went down against what went up, cut off where it no longer changes
        samples.append(np.clip(released[:, 0, 0], 0, 1) - np.clip(released[:, 1, 1], 0, 1))
    return epsilon_from_samples(*samples, delta=0.0).epsilon_lower_bound


def second_vote_in_the_same_cell(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    return ELECTION.count(np.concatenate([X, X[:1]]), np.concatenate([y, y[:1]]))


def test_one_vote_keeps_the_promise_and_comes_near_it() -> None:
    claimed = cost_of([Round(len(CELLS), MECHANISM)], 1, 1e-5, 2).epsilon
    found = lower_bound(ELECTION.count)
    assert claimed == pytest.approx(1.0, rel=1e-3)
    assert 0.8 * claimed < found < claimed


def test_a_second_vote_is_found() -> None:
    claimed = cost_of([Round(len(CELLS), MECHANISM)], 1, 1e-5, 2).epsilon
    assert lower_bound(second_vote_in_the_same_cell) > 1.1 * claimed
