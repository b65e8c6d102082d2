"""What a source gives of itself: its unit of privacy, its test set, which public example is which, and what fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate.data import _shards
from pate.data._records import Format
from pate.data._settings import CsvData, NpzData
from pate.data._shards import ShardReader, Summary
from pate.data._sources import load
from pate.data.partition import forgetting_marks
from pate.data.private import (
    Records,
    Shards,
    Votes,
    check_private,
    clip_to_public_range,
    is_per_person,
    prepare_data,
    records_of,
)
from pate.data.public import PublicData, PublicRange
from pate.errors import DataError
from pate.mechanisms import Split

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


SECTION: dict[str, Any] = {
    "source": "csv", "private": "private-*.csv", "public": "public.csv", "label": "ill", "id": "who", "delimiter": ";",
    "decimal": ",", "classes": ["no", "yes"], "categories": {"sex": ["f", "m"]}, "dates": {"seen": "%Y-%m-%d %H:%M"},
}  # fmt: skip


def in_files(folder: Path, **changes: Any) -> CsvData:
    """Two shards, whose second record has a category that is not listed, and whole public rows of one sex."""
    header = "age;seen;sex;who;ill\n"
    for number in range(2):
        rows = f"4{number},5;2020-01-01 12:00;m;p{number};no\n30;2020-01-01 00:30;x;q;yes\n"
        (folder / f"private-{number}.csv").write_text(header + rows, encoding="utf-8-sig")
    public = header + "0,5;2019-01-01 00:00;f;p0;no\n90;2021-01-01 00:00;f;v;yes\n"
    (folder / "public.csv").write_text(public, encoding="utf-8-sig")
    return CsvData.model_validate(SECTION | changes)


def test_a_source_hands_on_all_that_it_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with a byte order mark, found below $PATE_DATA; every shard has its share in what the holder is told."""
    settings = in_files(tmp_path)
    monkeypatch.setenv("PATE_DATA", str(tmp_path))
    public, private = load(settings, None, tmp_path / "beside the config")
    records = records_of(private)
    assert public.per_person
    assert public.features == ("age", "seen", "sex=f", "sex=m"), "neither an id nor a label, in a public file too"
    assert records.ids == ["p0", "q", "p1", "q"]
    assert records.X[:, 0].tolist() == [40.5, 30, 41.5, 30]
    assert records.X[:, 2:].tolist() == [[0, 1], [0, 0]] * 2, "a listed category that no public row has is one"
    assert [note.split("csv: ")[1][:27] for note in records.notes] == ["column 'sex' of 1 records h"] * 2
    assert public.columns is not None
    assert public.columns["csv"] == {"delimiter": ";", "decimal": ",", "encoding": "utf-8"}


def test_what_is_not_here_is_left_to_the_workers_by_its_pattern(tmp_path: Path) -> None:
    settings = in_files(tmp_path, private=["private-*.csv", "elsewhere-*.csv"])
    _, left = load(settings, tmp_path, tmp_path, by_workers=True)
    assert isinstance(left, Shards)
    assert len(left.paths) == 2
    assert left.patterns == (str(tmp_path / "elsewhere-*.csv"),)


def test_a_reader_hands_out_every_record_once_in_stretches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And whose each is by a keyed hash, which nobody without the key can compute."""
    _, left = load(in_files(tmp_path), tmp_path, tmp_path, by_workers=True)
    assert isinstance(left, Shards)
    monkeypatch.setattr(_shards, "_MAX_ROWS_AT_ONCE", 3)
    persons = set()
    for key in (b"k" * 32, b"j" * 32):
        reader = ShardReader(left, key, Split(1))
        assert isinstance(reader.load(), Summary)
        found = [float(age) for begin in (0, 3, 6) for age in reader.stretch(begin)[0][:, 0]]
        assert sorted(found) == [30, 30, 40.5, 41.5]
        whose = reader.part(0).persons
        assert whose is not None
        persons |= set(whose.tolist())
    assert len(persons) == 2 * 3
    assert set(forgetting_marks([b"id:p0"], b"k" * 32)).isdisjoint(forgetting_marks([b"id:p0"], b"j" * 32))


def test_a_public_row_that_is_wrong_is_refused_where_private_ones_are_not(tmp_path: Path) -> None:
    for name in ("private-0", "public"):
        settings = in_files(tmp_path)
        with (tmp_path / f"{name}.csv").open("a") as file:
            file.write("1;2\n")
        if name == "private-0":
            assert len(records_of(load(settings, tmp_path, tmp_path, keep_missing=True)[1])) == 4
        else:
            with pytest.raises(DataError, match=r"public\.csv, row 2"):
                load(settings, tmp_path, tmp_path, keep_missing=True)


def test_records_given_from_python_say_their_unit_and_which_of_them_can_be_used() -> None:
    records = Records(X, np.array([0, 1, 2, -1, 1, 0]), list("aabbcc"))
    assert prepare_data(small(), records, keep_missing=True)[0].unit == "id"
    assert prepare_data(small(), Records(X, Y), keep_missing=True)[0].unit == "record"
    usable = records.usable(2)
    assert usable.tolist() == [True, True, False, False, True, True]
    assert records.only(usable).ids == ["a", "a", "c", "c"]
