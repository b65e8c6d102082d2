"""Change one record, in any source and in any way: no other record's part, features or label changes.

Or the file is refused, by one line that names file and row and not the value.
"""

from __future__ import annotations

import csv
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate.data._settings import CsvData, NpzData, ParquetData
from pate.data._shards import ShardReader, read_all
from pate.data._sources import load
from pate.data.partition import split_into_parts
from pate.data.private import Shards, records_of
from pate.errors import DataError
from pate.mechanisms.base import Split

KEY = b"o" * 32
N_PARTS = 5
N_RECORDS = 14
KINDS = {"csv": CsvData, "npz": NpzData, "parquet": ParquetData}
COLUMNS = ["who", "age", "zip", "when", "kind"]
WHEN = ["1900-03-01", "2100-03-01"]
AGES = [-(2**62), 2**62]  # the range of public examples, within which nothing is clipped
MISSING = ["refuse", "public_median", "indicator", "keep"]
VALUES = [
    *(None, "", "  ", "x", "17", " 17 ", "17.0", "+17", "017", 17, 17.0, 17.5, -1, True, b"1", 2**62 + 1, 2**70, 1e300),
    *(
        "k.A.",
        "K.a. ",
        "-9",
        -9,
        -9.0,
        float("nan"),
        float("inf"),
        "9" * 5000,
        "e\u0301",
        "\u0661",
        '"',
        '"x',
        'x"',
        "x,y",
        "x\ny",
        '",\r\n1,1,10,"',
        "\x00",
        "\ud800",
    ),
]
Records = list[dict[str, Any]]
Placed = Counter[tuple[int, bytes, int]]


def records(with_text_ids: bool) -> Records:
    """Two records for each person; one age is rounded to another float if it was not a 64-bit float before."""
    rng = np.random.default_rng(3)
    who = [f"p{i // 2}" if with_text_ids else i // 2 for i in range(N_RECORDS)]
    ages = [2**60 + 2**36 + 1, *range(20, 19 + N_RECORDS)]
    zips, kinds = rng.integers(10, 13, N_RECORDS).tolist(), rng.integers(0, 2, N_RECORDS).tolist()
    rows = zip(who, ages, zips, [f"19{70 + i}-02-28" for i in range(N_RECORDS)], kinds, strict=True)
    return [dict(zip(COLUMNS, row, strict=True)) for row in rows]


def write(folder: Path, source: str, rows: Records, n_files: int, as_pandas: bool, public_gap: bool = False) -> None:
    """Private records in `n_files` and public ones in another, or, with 0, all in one file that says which is which."""
    public: Records = [{"age": age, "zip": 10, "when": when} for age, when in zip(AGES, WHEN, strict=True)]
    if public_gap:
        public.append({"age": None, "zip": 11, "when": None})
    if n_files == 0:
        save_in_one(folder, source, rows, public, as_pandas)
        return
    for i in range(n_files):
        save(folder / f"shard-{i}.{source}", source, rows[i::n_files], as_pandas)
    save(folder / f"public.{source}", source, public, False)


def save_in_one(folder: Path, source: str, rows: Records, public: Records, as_pandas: bool) -> None:
    if source == "csv":
        of_private = [row | {"part": "private"} for row in rows]
        of_public = [dict.fromkeys(rows[0], "") | row | {"part": "public"} for row in public]
        save(folder / "shard-0.csv", source, [*of_public[:1], *of_private, *of_public[1:]], as_pandas)
        return
    for name, records in (("private", rows), ("public", public)):
        save(folder / f"{name}.npz", source, records, as_pandas)
    arrays = {
        f"{key}_{name}": array
        for name in ("private", "public")
        for key, array in np.load(folder / f"{name}.npz").items()
    }
    np.savez(folder / "shard-0.npz", **arrays)


def save(path: Path, source: str, rows: Records, as_pandas: bool) -> None:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    if source == "csv":
        with path.open("w", newline="", encoding="utf-8", errors="replace") as file:
            if as_pandas:  # every cell quoted where it must be
                writer = csv.writer(file)
                writer.writerows([list(columns), *zip(*columns.values(), strict=True)])
            else:
                lines = [list(columns), *zip(*columns.values(), strict=True)]
                file.writelines(",".join("" if cell is None else str(cell) for cell in line) + "\n" for line in lines)
    elif source == "parquet":
        pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        parquet = pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({n: arrow(pyarrow, v, as_pandas) for n, v in columns.items()}), path)
    else:
        names = {"y": "kind", "id": "who"}
        arrays = {key: array(columns[name]) for key, name in names.items() if name in columns}
        np.savez(path, X=array([list(pair) for pair in zip(columns["age"], columns["zip"], strict=True)]), **arrays)


def arrow(pyarrow: Any, values: list[Any], as_pandas: bool) -> Any:
    """A column as Arrow infers it, or as pandas would have it: floats where one value is missing."""
    if as_pandas and all(value is None or isinstance(value, int) for value in values):
        made = np.array([np.nan if v is None else v for v in values])
        return pyarrow.array(made.astype(np.float64) if made.dtype == object else made)
    for attempt in (values, [None if v is None else str(v) for v in values]):
        try:
            return pyarrow.array(attempt)
        except (pyarrow.ArrowException, OverflowError, UnicodeEncodeError):
            continue
    return pyarrow.array([None if v is None else str(v).encode("ascii", "backslashreplace").decode() for v in values])


def array(values: list[Any]) -> np.ndarray:
    """As NumPy infers it; objects become text, for they cannot be saved."""
    try:
        made = np.array(values)
    except (ValueError, OverflowError):
        made = np.array(values, dtype=object)
    return made.astype(str) if made.dtype == object else made


def section(source: str, id_type: str | None, n_files: int, missing: str = "refuse") -> dict[str, Any]:
    one = source != "parquet" and n_files <= 1
    data: dict[str, Any] = {"source": source, "private": f"shard-0.{source}" if one else f"shard-*.{source}"}
    data |= {"classes": [0, 1], "id_type": id_type or "text"}
    if n_files:
        data |= {"public": f"public.{source}"}
    elif source == "npz":
        data = {key: value for key, value in data.items() if key != "private"} | {"file": "shard-0.npz"}
    else:
        data |= {"split": "part"}
    if source == "npz":
        return data | {"ids": id_type is not None}
    return data | {
        "label": "kind",
        "id": "who" if id_type else None,
        "categories": {"zip": [10, 11, 12]},
        "dates": {"when": "%Y-%m-%d"},
        "missing_values": {"markers": ["k.A.", "-9"], "treatment": missing},
        "ignore": [] if id_type else ["who"],
    }


def by_driver(data: dict[str, Any], folder: Path, keep: bool = False) -> Placed:
    """How often a part has a record with these features and this label."""
    _, private = load(KINDS[data["source"]].model_validate(data), None, folder, keep_missing=keep)
    read = records_of(private)
    parts = split_into_parts(read.X, read.y, read.ids, KEY, N_PARTS)
    rows = [(part, row) for part, members in enumerate(parts) for row in members]
    return Counter((part, read.X[row].tobytes(), int(read.y[row])) for part, row in rows)


def by_workers(data: dict[str, Any], folder: Path, keep: bool = False) -> Placed:
    """The same by a reader for each shard, none of which sees another's records."""
    if "public" not in data:
        return by_driver(data, folder, keep)
    settings_ = KINDS[data["source"]].model_validate(data | {"read_by": "workers"})
    _, shards = load(settings_, None, folder, by_workers=True, keep_missing=keep)
    assert isinstance(shards, Shards)
    found: Placed = Counter()
    for path in shards.paths:
        reader = ShardReader(replace(shards, paths=(path,)), KEY, Split(N_PARTS))
        answer = reader.load()
        if isinstance(answer, str):
            raise DataError(answer)
        for part in range(N_PARTS):
            block = reader.part(part)
            found.update((part, x.tobytes(), int(y)) for x, y in zip(block.X, block.y, strict=True))
    return found


def check(
    source: str,
    id_type: str | None,
    n_files: int,
    as_pandas: bool,
    row: int,
    column: str,
    value: object,
    missing: str = "refuse",
    keep: bool = False,
) -> bool:
    """Whether the changed data was accepted; then the other records are where they were.

    `keep`: where nothing is refused because of a record, as for records that vote themselves.
    """
    rows = records(with_text_ids=id_type == "text")
    if source == "npz" and id_type is None:
        rows = [{name: cell for name, cell in record.items() if name != "who"} for record in rows]
    data = section(source, id_type, n_files, missing)
    gap = missing != "refuse" and source != "npz"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, source, rows, n_files, as_pandas, gap)
        before = by_driver(data, folder)
        assert before == by_workers(data, folder)
        assert before.total() == N_RECORDS
        write(folder, source, [*rows[:row], *rows[row + 1 :]], n_files, as_pandas, gap)
        others = by_driver(data, folder)
        assert others <= before
        write(folder, source, [*rows[:row], rows[row] | {column: value}, *rows[row + 1 :]], n_files, as_pandas, gap)
        try:
            after = by_driver(data, folder, keep)
        except DataError:
            with pytest.raises(DataError):
                by_workers(data, folder, keep)
            return False
        assert after == by_workers(data, folder, keep)
        assert others <= after
        lines = 1 + str(value).count("\n") if source == "csv" and not as_pandas else 1  # no csv writer wrote it
        assert N_RECORDS - 1 <= after.total() < N_RECORDS + lines  # it is there, or left out
    return True


TEXTS: dict[str, list[str]] = {
    "who": ["p1", " p1", "e\u0301", "\u00e9", "", "k.A.", "7", "07"],
    "age": ["1", "2.5", "2,5", "", "NA", "k.A.", "-9", "x", "1e39", "7.0", "1_0"],
    "zip": ["10", "10.0", " 11", "", "k.A.", "-9", "x", "12 "],
    "when": ["2020-02-29", "2020-02-30", "", "k.A.", "1999-12-31", "x", "20200229"],
    "kind": ["0", "1", "1.0", " 1", "", "2", "NA"],
}
"""What cells of text hold."""
TYPED: dict[str, list[Any]] = {
    "who": [1, 7, 2**53 + 1, -3, None],
    "age": [1.0, 2.5, 1e300, -9.0, float("nan"), float("inf"), None],
    "zip": [10, 11, 13, -9, None],
    "when": ["2020-02-29", "1999-12-31", "2020-02-30", None],
    "kind": [0, 1, 2, None],
}
"""What they hold where columns have types."""


@given(st.sampled_from(["csv", "parquet", "npz"]), st.booleans(), st.sampled_from(MISSING), st.data())
@settings(max_examples=80, deadline=None, derandomize=True)
def test_a_record_alone_in_its_file_is_what_it_is_among_others(
    source: str, typed: bool, missing: str, data: st.DataObject
) -> None:
    """Its features, label and id: by every rule for cells, every treatment of gaps, and every kind of file."""
    cells = TYPED if typed and source != "csv" else TEXTS
    id_type = "integer" if typed and source != "npz" else "text"
    if source == "npz":
        cells = TYPED | {"who": TEXTS["who"], "age": TYPED["age"][:-1], "zip": [10, 11], "kind": [0, 1, 1, 2]}
    record = st.fixed_dictionaries({column: st.sampled_from(values) for column, values in cells.items()})
    rows = data.draw(st.lists(record, min_size=2, max_size=6))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder, source, records(id_type == "text"), 1, True, public_gap=missing != "refuse" and source != "npz")
        about = KINDS[source].model_validate(section(source, id_type, 1, missing) | {"read_by": "workers"})
        _, left = load(about, None, folder, by_workers=True, keep_missing=True)
        assert isinstance(left, Shards)
        found = []
        for number, some in enumerate([rows, *([row] for row in rows)]):
            path = folder / f"{number}.{source}"
            save(path, source, some, source == "csv")
            found.append(read_all([str(path)], left.format))
    whole, *alone = found
    np.testing.assert_array_equal(whole.X, np.concatenate([one.X for one in alone]))
    assert whole.y.tolist() == [int(y) for one in alone for y in one.y]
    assert whole.ids == [i for one in alone for i in one.ids or ()]
    assert whole.left_out == sum(one.left_out for one in alone)


@given(
    st.sampled_from(["csv", "parquet", "npz"]),
    st.sampled_from([None, "text", "integer"]),
    st.sampled_from([0, 1, 3]),
    st.booleans(),
    st.booleans(),
    st.integers(0, N_RECORDS - 1),
    st.sampled_from(COLUMNS),
    st.one_of(st.sampled_from(VALUES), st.text(max_size=5), st.integers(), st.floats(), st.dates().map(str)),
    st.sampled_from(MISSING),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_changed_record_changes_no_other(
    source: str,
    id_type: str | None,
    n_files: int,
    as_pandas: bool,
    keep: bool,
    row: int,
    column: str,
    value: object,
    missing: str,
) -> None:
    if source == "npz" and ((column == "who" and id_type is None) or column == "when"):
        column = "kind"
    n_files = 1 if source == "parquet" and n_files == 0 else n_files
    accepted = check(source, id_type, n_files, as_pandas, row, column, value, missing, keep)
    if keep and source == "csv" and (as_pandas or '"' not in str(value)):
        assert accepted, "nothing that a record holds refuses a file that a csv writer can write"


@pytest.mark.parametrize("n_files", [0, 3])
def test_whatever_a_record_of_a_csv_file_holds_the_others_vote_as_before(n_files: int) -> None:
    """Each column holds some of the values: all in one file, or in three."""
    for number, value in enumerate(VALUES):
        by_writer = number % 2 == 0 or '"' in str(value)
        column = COLUMNS[(number + n_files) % len(COLUMNS)]
        assert check("csv", "integer", n_files, by_writer, 4, column, value, keep=True)


@pytest.mark.parametrize("missing", MISSING[1:])
@pytest.mark.parametrize("source", ["csv", "parquet"])
@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("age", None),
        ("age", "NA"),
        ("age", "k.A."),
        ("age", -9),
        ("when", None),
        ("when", "k.A."),
        ("when", "1999-12-31"),
    ],
)
def test_a_gap_is_filled_from_public_data_and_moves_no_other(
    source: str, column: str, value: object, missing: str
) -> None:
    assert check(source, "integer", 3, False, 4, column, value, missing)
    assert check(source, None, 1, False, 4, column, value, missing)


@pytest.mark.parametrize("n_files", [1, 3])
@pytest.mark.parametrize(
    ("source", "id_type", "column", "value"),
    [
        ("parquet", "integer", "who", None),  # a missing id: that record alone is left out
        ("parquet", "text", "who", None),
        ("csv", "integer", "who", None),
        ("csv", "integer", "who", "17.0"),
        ("csv", "text", "who", " "),
        ("npz", "text", "who", ""),
        ("npz", "integer", "who", 10**18),
        ("parquet", "integer", "zip", None),  # a missing category: all zeros, in that record alone
        ("parquet", "text", "zip", 13.5),
        ("parquet", "text", "zip", "x"),
        ("csv", "text", "zip", "e\u0301"),
        ("parquet", None, "age", 17.5),
        ("npz", None, "age", 17.5),
        ("npz", None, "kind", 1.0),
        ("parquet", None, "kind", 1.0),
    ],
)
def test_what_is_accepted_changes_no_other(source: str, id_type: str, column: str, value: object, n_files: int) -> None:
    assert check(source, id_type, n_files, False, 4, column, value)


@pytest.mark.parametrize(
    ("source", "column", "value"),
    [
        ("csv", "age", ""),
        ("parquet", "age", None),
        ("npz", "age", float("nan")),
        ("csv", "age", "1e39"),
        ("parquet", "age", 1e300),
        ("npz", "age", 1e300),
        ("csv", "kind", ""),
        ("parquet", "kind", None),
        ("npz", "kind", 0.5),
        ("csv", "when", "2020-02-30"),
        ("parquet", "when", "01.02.2020"),
        ("csv", "when", ""),
        ("parquet", "when", None),
        ("csv", "age", "1_000"),
        ("csv", "zip", '"10'),  # an open quote would swallow the records below
        ("csv", "zip", '10\n"'),  # written as it stands, which no csv writer does
    ],
)
def test_what_is_refused(source: str, column: str, value: object) -> None:
    assert not check(source, "integer", 3, False, 4, column, value)
    assert not check(source, None, 1, False, 4, column, value)


def test_one_missing_value_once_moved_nearly_all_other_records(tmp_path: Path) -> None:
    """400 records by whole-number id in one parquet file: with one NULL, ids were read as floats."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    ids: list[int | None] = list(range(400))
    data = section("parquet", "integer", 1)
    parquet.write_table(pyarrow.table({"age": AGES, "zip": [10, 11], "when": WHEN}), tmp_path / "public.parquet")
    placed = []
    for who in (ids, [None, *ids[1:]]):
        table = {"who": who, "age": list(range(400)), "zip": [10] * 400, "kind": [0, 1] * 200, "when": WHEN * 200}
        parquet.write_table(pyarrow.table(table), tmp_path / "shard-0.parquet")
        placed.append(by_driver(data, tmp_path))
    assert placed[1] <= placed[0]
    assert (placed[0] - placed[1]).total() == 1
