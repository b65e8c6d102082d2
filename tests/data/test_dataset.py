"""What a data set says of itself: its unit of privacy, its test set, and which public example is which."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from pate.data.dataset import Dataset, Records, Shards, Votes
from pate.data.records import Format

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])


def small(private: Records | Shards | Votes) -> Dataset:
    return Dataset(private, X_public=X, classes=("a", "b"), y_public=Y, X_test=X[:3], y_test=Y[:3])


def test_persons_are_protected_where_there_are_ids_and_nowhere_else() -> None:
    format = Format("npz", ("a", "b"), (2,))
    assert not small(Records(X, Y)).per_person
    assert small(Records(X, Y, list("abcdef"))).per_person
    assert not small(Shards(("shard.npz",), format)).per_person
    assert small(Shards(("shard.npz",), replace(format, id="id"))).per_person
    assert not small(Votes(np.ones((6, 2), dtype=np.int64))).per_person


def test_all_that_belongs_to_a_public_example_goes_with_it() -> None:
    rows = np.array([4, 1, 5, 0, 2, 3])
    votes = np.stack([np.arange(6), 9 - np.arange(6)], axis=1)
    data = small(Votes(votes)).reordered(rows)
    np.testing.assert_array_equal(data.X_public, X[rows])
    np.testing.assert_array_equal(data.y_public, Y[rows])
    np.testing.assert_array_equal(data.private.counts, votes[rows])  # type: ignore[union-attr]
    np.testing.assert_array_equal(data.public_rows, rows)
    again = data.with_queries_first(np.array([5, 3]))
    np.testing.assert_array_equal(again.public_rows, [3, 0, 4, 1, 5, 2])
    np.testing.assert_array_equal(again.X_public, X[again.public_rows])


def test_test_sets_differ_by_examples_or_labels() -> None:
    data = small(Records(X, Y))
    others = [
        replace(data, X_test=X[:3] + 1),
        replace(data, y_test=1 - Y[:3]),
        replace(data, X_test=X[:2], y_test=Y[:2]),
    ]
    digests = {other.test_digest() for other in [data, *others]}
    assert len(digests) == 4
    assert replace(data, private=Records(X[:2], Y[:2])).test_digest() == data.test_digest()
