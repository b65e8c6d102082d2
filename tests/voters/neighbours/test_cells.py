"""Cells: a record's own are a function of its own bytes, whatever the batch, the order or the number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from pate.errors import DataError
from pate.voters.neighbours._cells import Cells, Space


def public_features(n: int = 400, width: int = 60) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(n, width)) * np.linspace(3, 0.1, width)


@pytest.fixture(scope="module", params=[None, 12], ids=["all features", "principal components"])
def cells(request: pytest.FixtureRequest) -> Cells:
    features = public_features()
    return Cells.of(Space.of(features, request.param), features, 20, seed=3)


def test_cells_are_the_same_alone_in_any_batch_order_and_number_of_threads(cells: Cells) -> None:
    records = np.random.default_rng(2).normal(size=(3000, 60)) * np.linspace(3, 0.1, 60)
    whole = cells.nearest(records, 3)
    order = np.random.default_rng(3).permutation(len(records))
    np.testing.assert_array_equal(cells.nearest(records[order], 3), whole[order])
    alone = np.concatenate([cells.nearest(records[i : i + 1], 3) for i in range(0, 3000, 7)])
    np.testing.assert_array_equal(alone, whole[::7])
    with threadpool_limits(1):
        np.testing.assert_array_equal(cells.nearest(records, 3), whole)


def test_distances_are_exact(cells: Cells) -> None:
    """Against Python's own whole numbers, at places as far out as they can be."""
    rng = np.random.default_rng(4)
    records = rng.normal(size=(40, 60)) * 10.0 ** rng.integers(-3, 12, size=(40, 1))
    places = cells.space.places(records)
    assert (places == np.rint(places)).all()
    assert np.abs(places).max() <= 2**19  # what the proof that sums stay below 2⁵³ goes by
    assert (cells.centres == np.rint(cells.centres)).all()
    found = cells.nearest(records, 2)
    for place, own in zip(places.astype(int).tolist(), found.tolist(), strict=True):
        distances = [
            sum((a - b) ** 2 for a, b in zip(place, centre, strict=True))
            for centre in cells.centres.astype(int).tolist()
        ]
        assert own == sorted(range(len(distances)), key=lambda cell: (distances[cell], cell))[:2]


def test_a_place_is_exact_too() -> None:
    """A projection of whole numbers, in whole numbers."""
    features = public_features()
    space = Space.of(features, 12)
    assert space.directions is not None
    rounded = Space(space.middle, space.gain).places(features[:5]).astype(int).tolist()
    directions = space.directions.astype(int).T.tolist()
    expected = [
        [sum(a * b for a, b in zip(row, direction, strict=True)) >> space.shift for direction in directions]
        for row in rounded
    ]
    assert space.places(features[:5]).astype(int).tolist() == expected


def test_ties_go_to_the_lower_cell() -> None:
    cells = Cells(Space(np.zeros(1), np.ones(1)), np.array([[5.0], [-5.0], [5.0], [-5.0]]))
    assert cells.nearest(np.array([[0.0], [1.0]]), 3).tolist() == [[0, 1, 2], [0, 2, 1]]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.integers(-(2**60), 2**60)), min_size=2, max_size=2
    )
)
def test_any_record_has_cells_or_none(record: list[float]) -> None:
    cells = Cells(Space(np.zeros(2), np.ones(2)), np.array([[0.0, 0.0], [3.0, 4.0]]))
    (found,) = cells.nearest(np.array([record], dtype=np.float64), 2).tolist()
    assert sorted(found) == ([0, 1] if np.isfinite(record).all() else [-1, -1])


def test_cells_come_from_public_data_and_a_seed() -> None:
    features = public_features()
    space = Space.of(features, 12)
    again = Cells.of(Space.of(features.copy(), 12), features, 20, seed=3)
    np.testing.assert_array_equal(Cells.of(space, features, 20, seed=3).centres, again.centres)


def test_public_data_that_cannot_be_used() -> None:
    features = public_features(10)
    with pytest.raises(DataError, match="only 10 public examples"):
        Cells.of(Space.of(features, None), features, 11, seed=0)
    features[3, 4] = np.nan
    with pytest.raises(DataError, match="NaN"):
        Space.of(features, None)


def test_one_public_example_is_one_cell() -> None:
    features = np.array([[1.0, 2.0]])
    cells = Cells.of(Space.of(features, 5), features, 1, seed=0)
    assert cells.nearest(np.array([[7.0, -2.0]])).tolist() == [[0]]


def test_cells_come_back_from_a_file(tmp_path, cells: Cells) -> None:  # type: ignore[no-untyped-def]
    np.savez(tmp_path / "cells.npz", **cells.arrays())
    again, records = Cells.read(tmp_path / "cells.npz"), public_features(50)
    np.testing.assert_array_equal(again.nearest(records, 2), cells.nearest(records, 2))
