"""A record's part depends on the record and the key alone."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from pate.baselines.dp_erm import PrivatelyTuned
from pate.config import parse_config
from pate.data.partition import assign_parts, identities, parts_of, split_into_parts
from pate.errors import DataError
from pate.mechanisms import Split

KEY = b"k" * 32
RECORDS = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 3)), min_size=2, max_size=30)


def arrays(records: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([[r[0]] for r in records], dtype=np.float32), np.array([r[1] for r in records])


@given(RECORDS, st.integers(0, 29), st.integers(2, 7))
@settings(max_examples=50, deadline=None)
def test_removing_a_record_moves_no_other(records: list[tuple[int, int]], position: int, n_parts: int) -> None:
    position %= len(records)
    X, y = arrays(records)
    others = np.delete(np.arange(len(records)), position)
    before = assign_parts(identities(X, y, None), KEY, n_parts)
    after = assign_parts(identities(X[others], y[others], None), KEY, n_parts)
    np.testing.assert_array_equal(before[others], after)


@given(RECORDS, st.randoms(), st.integers(2, 5))
@settings(max_examples=30, deadline=None)
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


def test_a_persons_records_stay_together_wherever_they_stand() -> None:
    X, y = arrays([(i, i % 3) for i in range(60)])
    ids = [f"person {i % 7}" for i in range(60)]
    part_of = {row: part for part, rows in enumerate(split_into_parts(X, y, ids, KEY, 20)) for row in rows}
    for row in range(60):
        assert part_of[row] == part_of[row % 7]
    others = np.arange(1, 60)
    without_first = split_into_parts(X[1:], y[1:], ids[1:], KEY, 20)
    assert {int(others[row]): part for part, rows in enumerate(without_first) for row in rows} == {
        row: part for row, part in part_of.items() if row
    }


def test_records_that_differ_in_features_or_label_only_are_two() -> None:
    """200 pairs: all of them in the same part of 20 by chance once in 10²⁶⁰."""
    X, y = arrays([(i, 0) for i in range(200)])
    plain = assign_parts(identities(X, y, None), KEY, 20)
    for changed in ((X, y + 1), (X + 1000, y)):
        assert (assign_parts(identities(*changed, None), KEY, 20) != plain).mean() > 0.8


def test_ids_are_one_text_per_record() -> None:
    X, y = arrays([(1, 0), (2, 1), (3, 2)])
    wrong: list[Any] = [["a", "b"], ["a", "b", "c", "d"], ["a", "b", 3], ["a", "b", b"c"], [1.0, 2.0, 3.0]]
    for ids in wrong:
        with pytest.raises(DataError, match="one id"):
            split_into_parts(X, y, ids, KEY, 3)


def test_more_parts_than_a_byte_counts_are_all_used() -> None:
    """20,000 ids over 500 parts: one is empty by chance less than once in 10¹⁴."""
    assert len(set(assign_parts([b"id:%d" % i for i in range(20_000)], KEY, 500))) == 500


def test_the_order_in_a_part_hangs_on_the_key() -> None:
    X, y = arrays([(i, 0) for i in range(40)])
    ids = ["one person"] * 40
    (here,), (there,) = (split_into_parts(X, y, ids, key, 1) for key in (KEY, b"j" * 32))
    assert here.tolist() != there.tolist()
    assert sorted(here) == sorted(there) == list(range(40))


def members(parts: list[np.ndarray], n_records: int) -> list[set[int]]:
    """The parts of each record."""
    found: list[set[int]] = [set() for _ in range(n_records)]
    for part, rows in enumerate(parts):
        for row in rows:
            found[row].add(part)
    return found


def test_subsamples_keep_to_the_mechanisms_rate_and_kappa() -> None:
    """400 records in 50 subsets at rate 0.1; what is asserted fails less than once in 10¹², and is fixed by the key."""
    X, y = arrays([(i, 0) for i in range(400)])
    free = members(parts_of(X, y, None, KEY, Split(50, 0.1, 50)), 400)
    held = members(parts_of(X, y, None, KEY, Split(50, 0.1, 6)), 400)
    assert all(kept <= drawn and len(kept) == min(6, len(drawn)) for kept, drawn in zip(held, free, strict=True))
    assert max(len(drawn) for drawn in free) > 6
    crowded = [(kept, drawn) for kept, drawn in zip(held, free, strict=True) if len(drawn) > 6]
    assert any(max(drawn) in kept for kept, drawn in crowded), "which subsets are kept hangs on no number of theirs"
    assert any(min(drawn) in kept for kept, drawn in crowded)
    assert 4 < np.mean([len(drawn) for drawn in free]) < 6
    assert sum(len(drawn & {0, 8}) == 1 for drawn in free) > 20, "subsets are drawn one by one"
    another = members(parts_of(X, y, None, b"j" * 32, Split(50, 0.1, 50)), 400)
    assert np.mean([a == b for a, b in zip(free, another, strict=True)]) < 0.1


def test_a_person_is_in_the_same_subsamples_with_every_record() -> None:
    X, y = arrays([(i, 0) for i in range(60)])
    ids = [f"person {i % 7}" for i in range(60)]
    found = members(parts_of(X, y, ids, KEY, Split(50, 0.3, 20)), 60)
    for row in range(60):
        assert found[row] == found[row % 7]
        assert len(found[row]) <= 20


def test_the_order_in_a_subsample_is_the_records_own() -> None:
    X, y = arrays([(i, 0) for i in range(50)])
    for split in (Split(3), Split(3, 1.0, 3)):
        here, there = parts_of(X, y, None, KEY, split), parts_of(X[::-1], y[::-1], None, KEY, split)
        for a, b in zip(here, there, strict=True):
            np.testing.assert_array_equal(X[a], X[::-1][b])


class Learner:
    """Stands for a candidate: notes what it is trained on, and predicts that."""

    trained: ClassVar[list[list[float]]] = []

    def __init__(self, epsilon: float, **settings: object) -> None:
        self.classes_ = np.array([0, 1])

    def fit(self, X: np.ndarray, y: np.ndarray) -> Learner:
        Learner.trained.append(X[:, 0].tolist())
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X), dtype=int)


def test_private_tuning_gives_all_records_of_a_person_to_one_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parts are made by ids, so a person whose records change moves one candidate, or the choice, and no other.

    Forty persons of three records: all of each in one of eleven parts, by their bytes, less than once in 10⁸⁰.
    """
    monkeypatch.setattr("pate.baselines.dp_erm.DPLinearClassifier", Learner)
    ids = [f"p{i % 40}" for i in range(120)]
    before, after = np.arange(120.0)[:, None], np.arange(120.0)[:, None]
    after[[7, 47, 87]] += 1000
    placed = []
    for X in (before, after):
        Learner.trained = []
        candidates = [{"regularisation": 0.1}] * 10
        tuned = PrivatelyTuned(1.0, n_records=120, candidates=candidates, entropy=lambda n: b"e" * n)
        tuned.fit(X, np.zeros(120, dtype=int), ids)
        placed.append([sorted(int(x) % 1000 for x in part) for part in Learner.trained])
        for part in placed[-1]:
            assert sorted(3 * [x % 40 for x in part[: len(part) // 3]]) == sorted(x % 40 for x in part)
        assert 50 < sum(map(len, placed[-1])) < 120
    assert placed[0] == placed[1]


def test_a_run_and_its_readers_split_as_the_mechanism_says() -> None:
    """κ of MSamp: the mechanism's own number, wherever records are given to parts."""
    config = parse_config(
        {
            "n_teachers": 50,
            "data": {"source": "digits"},
            "teachers": [{"name": "sklearn.svm.SVC"}],
            "mechanism": {"name": "msamp", "epsilon": 1, "query_delta": 1e-8, "sampling_rate": 0.1},
            "budget": {"max_queries": 1},
            "student": {"name": "supervised"},
        }
    )
    assert config.split == Split(50, 0.1, 10)
