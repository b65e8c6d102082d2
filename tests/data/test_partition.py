"""A record's part depends on the record and the key alone."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from pate.data.partition import assign_parts, identities, split_into_parts

KEY = b"k" * 32
RECORDS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), min_size=2, max_size=30)


def arrays(records: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([[r[0]] for r in records], dtype=np.float32), np.array([r[1] for r in records])


@given(RECORDS, st.integers(0, 29), st.integers(2, 7))
@settings(max_examples=200, deadline=None)
def test_removing_a_record_moves_no_other(records: list[tuple[int, int]], position: int, n_parts: int) -> None:
    position %= len(records)
    X, y = arrays(records)
    others = np.delete(np.arange(len(records)), position)
    before = assign_parts(identities(X, y, None), KEY, n_parts)
    after = assign_parts(identities(X[others], y[others], None), KEY, n_parts)
    np.testing.assert_array_equal(before[others], after)


@given(RECORDS, st.randoms(), st.integers(2, 5))
@settings(max_examples=100, deadline=None)
def test_order_in_the_file_changes_nothing_a_teacher_sees(
    records: list[tuple[int, int]], rng: object, n_parts: int
) -> None:
    X, y = arrays(records)
    shuffled = list(range(len(records)))
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    here = split_into_parts(X, y, None, KEY, n_parts)
    there = split_into_parts(X[shuffled], y[shuffled], None, KEY, n_parts)
    for a, b in zip(here, there, strict=True):
        np.testing.assert_array_equal(X[a], X[shuffled][b])
        np.testing.assert_array_equal(y[a], y[shuffled][b])


def test_changing_content_under_an_id_stays_in_its_part() -> None:
    X, y = arrays([(1, 0), (2, 1), (3, 2), (4, 0)])
    ids = ["ann", "bob", "ann", "cy"]
    before = split_into_parts(X, y, ids, KEY, 3)
    X[1] = 99
    after = split_into_parts(X, y, ids, KEY, 3)
    for a, b in zip(before, after, strict=True):
        assert set(a) == set(b)
    part_of = {row: part for part, rows in enumerate(before) for row in rows}
    assert part_of[0] == part_of[2]


def test_every_record_is_in_exactly_one_part_even_if_parts_are_empty() -> None:
    X, y = arrays([(1, 0), (2, 1), (3, 2)])
    parts = split_into_parts(X, y, None, KEY, 50)
    assert len(parts) == 50
    assert sorted(np.concatenate(parts)) == [0, 1, 2]


def test_parts_are_of_even_size_and_another_key_gives_other_parts() -> None:
    """χ² on 20,000 ids over 50 parts; false-alarm rate 1e-6, fixed by the key."""
    ids = [b"id:%d" % i for i in range(20_000)]
    parts = assign_parts(ids, KEY, 50)
    sizes = np.bincount(parts, minlength=50)
    assert ((sizes - 400) ** 2 / 400).sum() < chi2.isf(1e-6, 49)
    assert (parts != assign_parts(ids, b"j" * 32, 50)).mean() > 0.9
