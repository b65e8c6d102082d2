"""What a source gives of itself: its unit of privacy, its test set, which public example is which, and what fits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pate.data._records import Format
from pate.data._settings import NpzData
from pate.data.private import Records, Shards, Votes, check_private, clip_to_public_range, is_per_person, records_of
from pate.data.public import PublicData, PublicRange
from pate.errors import DataError

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 0, 1, 0, 1])
VOTES = Votes(np.ones((6, 2), dtype=np.int64))
SHARDS = Shards(
    ("shard.npz",), Format(NpzData(source="npz", classes=("a", "b"), private="shard.npz", public="public.npz"), (2,))
)


def small() -> PublicData:
    return PublicData(X, classes=("a", "b"), y_public=Y, X_test=X[:3], y_test=Y[:3])


def test_persons_are_protected_where_there_are_ids_and_nowhere_else() -> None:
    assert not is_per_person(Records(X, Y))
    assert is_per_person(Records(X, Y, list("abcdef")))
    assert not is_per_person(SHARDS)
    assert is_per_person(replace(SHARDS, format=replace(SHARDS.format, id="id")))
    assert not is_per_person(VOTES)


def test_records_are_here_where_they_were_read_and_nowhere_else() -> None:
    records = Records(X, Y)
    assert records_of(records) is records
    for private in (SHARDS, VOTES):
        with pytest.raises(DataError, match="not here"):
            records_of(private)


def test_all_that_belongs_to_a_public_example_goes_with_it() -> None:
    """Votes that are stored stay in the order of the source, which `public_rows` tell."""
    rows = np.array([4, 1, 5, 0, 2, 3])
    data = small().reordered(rows)
    np.testing.assert_array_equal(data.X_public, X[rows])
    np.testing.assert_array_equal(data.y_public, Y[rows])
    np.testing.assert_array_equal(data.public_rows, rows)
    again = data.with_queries_first(np.array([5, 3]))
    np.testing.assert_array_equal(again.public_rows, [3, 0, 4, 1, 5, 2])
    np.testing.assert_array_equal(again.X_public, X[again.public_rows])
    np.testing.assert_array_equal(again.in_source_order().X_public, X)
    np.testing.assert_array_equal(again.in_source_order().y_public, Y)


def test_test_sets_differ_by_examples_or_labels() -> None:
    data = small()
    others = [
        replace(data, X_test=X[:3] + 1),
        replace(data, y_test=1 - Y[:3]),
        replace(data, X_test=X[:2], y_test=Y[:2]),
    ]
    digests = {other.test_digest() for other in [data, *others]}
    assert len(digests) == 4
    assert replace(data, X_public=X[:2], y_public=Y[:2]).test_digest() == data.test_digest()


@pytest.mark.parametrize("keep_missing", [False, True])
def test_private_records_must_have_the_shape_of_public_examples(keep_missing: bool) -> None:
    with pytest.raises(DataError, match=r"public examples have shape \(2,\), private ones \(1,\)"):
        check_private(small(), Records(X[:, :1], Y), keep_missing)


def test_what_no_teacher_could_learn_from_is_refused_and_where_records_vote_nothing_is() -> None:
    missing = np.where(X == 3, np.nan, X)
    for records, words in (
        (Records(X[:0], Y[:0]), "the private data is empty"),
        (Records(missing, Y), r"private data: NaN or infinity in row 1, \[1\]"),
        (Records(np.where(X == 3, np.inf, X), Y), "private data: NaN or infinity in row 1"),
    ):
        with pytest.raises(DataError, match=words):
            check_private(small(), records, keep_missing=False)
        check_private(small(), records, keep_missing=True)
    check_private(replace(small(), has_missing_values=True), Records(missing, Y), keep_missing=False)
    with pytest.raises(DataError, match="public data: NaN or infinity"):
        replace(small(), X_public=missing)


def test_what_lies_beyond_the_public_range_moves_to_its_end_except_in_a_benchmark() -> None:
    far = Records(X * 100, Y)
    public, private = clip_to_public_range(replace(small(), X_test=X[:3] - 100), far)
    assert public.range == PublicRange.of(X)
    assert records_of(private).X.max() == X.max()
    assert public.X_test is not None
    assert public.X_test.min() == X.min()
    assert clip_to_public_range(replace(small(), benchmark=True), far)[1] is far
    assert clip_to_public_range(public, far)[1] is far, "a source that gave a range has clipped by it"
