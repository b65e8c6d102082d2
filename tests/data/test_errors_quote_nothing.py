"""What is wrong with a private file is said by file, column and row: no value of it is quoted, nothing is counted."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate.data._settings import CsvData, NpzData, ParquetData
from pate.data._shards import ShardReader
from pate.data._sources import load
from pate.data.private import Shards, records_of
from pate.errors import DataError
from pate.mechanisms.base import Split

CANARY = "canary7731"
GOOD = "who,age,sex,kind\nann,30,f,no\n"
CSV = {"source": "csv", "private": "private.csv", "public": "public.csv", "label": "kind", "id": "who"}
CSV |= {"classes": ["no", "yes"], "categories": {"sex": ["f", "m"]}}


def refusals(folder: Path, settings: Any) -> list[str]:
    """What driver and workers say of the same data; the folder's name, which pytest makes of the data, left out."""
    with pytest.raises(DataError) as caught:
        load(settings, None, folder)
    said = [str(caught.value)]
    _, left = load(settings.model_copy(update={"read_by": "workers"}), None, folder, by_workers=True)
    assert isinstance(left, Shards)
    answer = ShardReader(left, b"k" * 32, Split(3)).load()
    assert isinstance(answer, str)
    return [text.replace(str(folder), "") for text in (*said, answer)]


@pytest.mark.parametrize(
    ("private", "place"),
    [
        (GOOD + f"bob,{CANARY},m,yes\n", r"column 'age', row 1 \(counted from 0\)"),
        (GOOD + f"bob,7731e7731,m,yes\n{CANARY},1,f,no\n", r"column 'age', row 1 "),
        (GOOD + f"bob,41,m,{CANARY}\n", r"column 'kind', row 1 "),
        (GOOD + f"bob,41,m,yes,{CANARY}\n", r"row 1 .*not as many fields"),
        (GOOD + f'bob,41,"m,{CANARY}\nx,1,f,no\n', r"row 1 .*quote"),
        (GOOD + f'"bob\n{CANARY}",41,m,no\ncy,41,"m"{CANARY},no\n', r"row 2 .*quote"),
        (GOOD + f'"bob\n{CANARY}",41,m,no\ncy,41,m{CANARY}",no\n', r"row 2 .*quote"),
        (GOOD + f'bob,41,"m"{CANARY},no\n', r"row 1 .*quote"),
        (GOOD + "x" * 200_000 + CANARY + ",41,m,yes\n", r"row 1 .*huge cell"),
        (f"ann,30,f,{CANARY}\nbob,41,m,{CANARY}\n", r"no column 'kind' \(data\.label\)"),  # the header was forgotten
        ("kind7731,30,f,no\n", r"no column 'kind' .*is there a header line"),  # a cell that looks like a name
        (f"{CANARY},{CANARY},f,no\n", r"no column 'kind'"),  # and two cells of it are equal
        ("who,age,sex,age,kind\nann,30,f,7731,no\n", r"column 'age' is there twice"),
    ],
)
@pytest.mark.parametrize("pattern", [False, True])
def test_csv(private: str, place: str, pattern: bool, tmp_path: Path) -> None:
    (tmp_path / "private.csv").write_text(private)
    (tmp_path / "public.csv").write_text("age,sex\n33,m\n")
    settings = CsvData.model_validate(CSV | ({"private": ["private.csv"]} if pattern else {}))
    for said in refusals(tmp_path, settings):
        assert re.search(rf"private\.csv[,:] {place}", said), said
        assert "\n" not in said
        assert "7731" not in said


def test_wrong_encodings(tmp_path: Path) -> None:
    (tmp_path / "public.csv").write_text("age,sex\n33,m\n")
    for encoding, letter in (("utf-16", "é"), ("latin-1", "é"), ("cp1252", "€")):
        (tmp_path / "private.csv").write_bytes((GOOD + f"{letter}{CANARY},1,f,no\n").encode(encoding))
        for said in refusals(tmp_path, CsvData.model_validate(CSV)):
            assert ("private.csv: is UTF-16 text" if encoding == "utf-16" else "private.csv: not UTF-8 text") in said
            assert "7731" not in said


def test_a_split_column_tells_rows_of_the_file(tmp_path: Path) -> None:
    data = {"source": "csv", "private": "all.csv", "split": "part", "label": "kind", "classes": ["no", "yes"]}
    settings = CsvData.model_validate(data)
    for line, says in ((f"{CANARY},no,private", "column 'age', row 2 "), (f"1,no,{CANARY}", "column 'part', row 2 ")):
        (tmp_path / "all.csv").write_text(f"age,kind,part\n1,,public\n2,no,private\n{line}\n")
        with pytest.raises(DataError, match=says) as caught:
            load(settings, None, tmp_path)
        assert "7731" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"age": [30, 7731, None]}, "column 'age', row 2 "),
        ({"age": ["30", CANARY, "1"]}, "column 'age', row 1 "),
        ({"age": [30.0, 1e300, 7731.0]}, "column 'age', row 1 "),
        ({"kind": ["no", CANARY, "yes"]}, "column 'kind', row 1 "),
        ({"kind": [None, CANARY, "yes"]}, "column 'kind', row 0 "),
        ({"kind": [b"7731", b"no", b"yes"]}, "column 'kind' holds binary"),
        ({"age": [[7731], [1], [2]]}, "column 'age' holds list"),
        ({"who": [7731.0, 7731.0, 1.0]}, "column 'who' holds double"),
    ],
)
def test_parquet(changes: dict[str, Any], place: str, tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    good = {"who": ["a", "b", "c"], "age": [1, 2, 3], "sex": ["f", "m", "f"], "kind": ["no", "yes", "no"]}
    parquet.write_table(pyarrow.table(good | changes), tmp_path / "private.parquet")
    parquet.write_table(pyarrow.table({"age": [1], "sex": ["f"]}), tmp_path / "public.parquet")
    settings = CSV | {"source": "parquet", "private": "private.parquet", "public": "public.parquet"}
    for said in refusals(tmp_path, ParquetData.model_validate(settings)):
        assert f"private.parquet: {place}" in said
        assert "7731" not in said


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"X": np.array([[7731.0], [np.nan], [7731.0]])}, "array X, row 1 "),
        ({"X": np.array([[CANARY]] * 3)}, "array X holds <U10"),
        ({"X": np.ones(3)}, "examples of shape ()"),
        ({"X": np.ones((3, 2))}, "examples of shape (2,)"),
        ({"X": np.array(7731.0)}, "array X is a single number"),
        ({"y": np.array([0, 7731, 1])}, "array y, row 1 "),
        ({"y": np.array([0, 1] * 3000)}, "not as many labels as records"),
        ({"y": np.array([[0, 1, 0]])}, "array y: has 2 axes"),
        ({"y": np.array([(0, 1)] * 3, dtype=[(CANARY, int), ("b", int)])}, "array y: holds 'V' items"),
        ({"y": np.array([CANARY, 1, 1], dtype=object)}, "array y: holds 'O' items"),
        ({"id": np.array([7731.0, 1.0, 1.0])}, "array id holds float64"),
    ],
)
def test_npz(changes: dict[str, Any], place: str, tmp_path: Path) -> None:
    good = {"X": np.ones((3, 1)), "y": np.array([0, 1, 0]), "id": np.array(["a", "b", "c"])}
    np.savez(tmp_path / "private.npz", **(good | changes))
    np.savez(tmp_path / "public.npz", X=np.ones((2, 1)))
    data = {"source": "npz", "private": "private.npz", "public": "public.npz", "classes": [0, 1], "ids": True}
    for said in refusals(tmp_path, NpzData.model_validate(data)):
        assert f"private.npz: {place}" in said
        assert "7731" not in said
        assert "6000" not in said


def test_a_header_without_records_is_a_shard_like_others(tmp_path: Path) -> None:
    """Else the only record of a shard could not be taken out."""
    (tmp_path / "public.csv").write_text("age,sex\n33,m\n")
    for i, text in enumerate((GOOD, GOOD.splitlines()[0] + "\n")):
        (tmp_path / f"shard-{i}.csv").write_text(text)
    _, records = load(CsvData.model_validate(CSV | {"private": "shard-*.csv"}), None, tmp_path)
    assert len(records_of(records)) == 1
