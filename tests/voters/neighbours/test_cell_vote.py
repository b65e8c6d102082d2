"""Votes of records near themselves: how many counts one record can change, over all small data sets."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from pate.data.partition import ranks
from pate.voters.neighbours._cells import Cells, CellVote, Space

KEY = b"k" * 32
CENTRES = np.array([[0.0], [10.0], [20.0], [30.0]])


def cell_vote(votes: int) -> CellVote:
    return CellVote(lambda X: X, Cells(Space(np.zeros(1), np.ones(1)), CENTRES), votes, n_classes=2)


Record = tuple[str, float, int]  # id, the one feature, label


def counted(records: list[Record], votes: int) -> np.ndarray:
    X = np.array([[x] for _, x, _ in records]).reshape(-1, 1)
    y = np.array([label for _, _, label in records], dtype=np.int64)
    return cell_vote(votes).count_persons(X, y, [person for person, _, _ in records], ranks(X, y, KEY))


CONTENTS: list[list[tuple[float, int]]] = [
    [],
    [(1.0, 0)],
    [(1.0, 1)],
    [(14.0, 0)],
    [(29.0, 1)],
    [(np.nan, 1)],
    [(1.0, 0), (1.0, 0)],
    [(1.0, 0), (1.0, 1), (19.0, 1)],
    [(1.0, 0), (11.0, 1), (21.0, 0), (31.0, 1)],
]
"""All that one person may have: from nothing to a record in every cell."""


@pytest.mark.parametrize("votes", [1, 2, 3])
def test_one_person_changes_no_more_counts_than_claimed(votes: int) -> None:
    """Over all pairs of contents of one person, beside all contents of another one."""
    for other, before, after in itertools.product(CONTENTS, repeat=3):
        company = [("b", x, label) for x, label in other]
        first = counted([("a", x, label) for x, label in before] + company, votes)
        second = counted(company + [("a", x, label) for x, label in after], votes)
        change = np.abs(first - second)
        assert change.max(initial=0) <= 1, "a count moved by more than 1"
        added_or_removed = not before or not after
        assert change.sum() <= votes * (1 if added_or_removed else 2)
        alone = counted([("a", x, label) for x, label in before], votes)
        assert alone.max(initial=0) <= 1
        assert alone.sum() <= votes
        np.testing.assert_array_equal(alone + counted(company, votes), first)  # nobody's vote depends on others


def test_a_planted_double_vote_is_noticed() -> None:
    """The same check on a rule that lets every record of a person vote: it must fail, or it could not fail."""
    records = [("a", 1.0, 0), ("a", 2.0, 0), ("a", 19.0, 1)]
    X = np.array([[x] for _, x, _ in records])
    y = np.array([label for _, _, label in records])
    assert cell_vote(1).count(X, y).sum() == 3  # as if each record were a person
    assert counted(records, 1).sum() == 1


@pytest.mark.parametrize("votes", [1, 2])
def test_a_record_without_id_has_its_votes_in_different_cells(votes: int) -> None:
    X, y = np.array([[1.0], [14.0], [np.nan], [np.inf]]), np.array([0, 1, 1, 0])
    total = np.zeros((4, 2), dtype=np.int64)
    for row in range(len(X)):
        own = cell_vote(votes).count(X[row : row + 1], y[row : row + 1])
        assert own.max() <= 1
        assert own.sum() == (votes if np.isfinite(X[row, 0]) else 0)
        total += own
    np.testing.assert_array_equal(cell_vote(votes).count(X, y), total)


def test_an_id_with_very_many_records_is_normal() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.uniform(0, 30, size=(20_000, 1)), rng.integers(0, 2, size=20_000)
    votes = cell_vote(3).count_persons(X, y, ["one"] * len(X), [bytes([i % 251, i % 13]) for i in range(len(X))])
    assert votes.sum() == 3
    assert (votes.sum(axis=1) <= 1).all()


def test_whose_record_comes_first_does_not_matter() -> None:
    records: list[Record] = [("a", 1.0, 0), ("a", 11.0, 1), ("b", 21.0, 1), ("a", 31.0, 0), ("b", 2.0, 0)]
    expected = counted(records, 2)
    for order in itertools.permutations(records):
        np.testing.assert_array_equal(counted(list(order), 2), expected)
