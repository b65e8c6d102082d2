"""Ids: one declared type, one form for each person, whatever file they are in."""

from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate.data._columns import canonical_id
from pate.data._settings import CsvData, NpzData, ParquetData
from pate.data._shards import ShardReader, Summary
from pate.data._sources import load
from pate.data.partition import identities
from pate.data.private import Records, Shards, records_of
from pate.errors import DataError
from pate.followup import _chosen
from pate.mechanisms.base import Split

KINDS = {"csv": CsvData, "npz": NpzData, "parquet": ParquetData}


def save(path: Path, ids: Any, n: int = 3) -> None:
    """A private file with these ids; `ids` has a type of its own where the format has types."""
    x, y = np.arange(n, dtype=np.float32), np.arange(n) % 2
    if path.suffix == ".csv":
        rows = [f'"{i}",{a},{b}' for i, a, b in zip(ids, x, y, strict=True)]
        path.write_text("\n".join(["who,x,kind", *rows]) + "\n", encoding="utf-8")
    elif path.suffix == ".npz":
        np.savez(path, X=x[:, None], y=y, id=ids)
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"who": ids, "x": x, "kind": y}), path)


def read(folder: Path, source: str, id_type: str | None, files: list[Any]) -> Records:
    for i, ids in enumerate(files):
        save(folder / f"shard-{i}.{source}", ids)
    data: dict[str, Any] = {"source": source, "private": f"shard-*.{source}", "public": f"public.{source}"}
    data |= {"classes": [0, 1]} | ({"ids": True} if source == "npz" else {"label": "kind", "id": "who"})
    if source == "npz":
        np.savez(folder / "public.npz", X=np.ones((2, 1)))
    elif source == "csv":
        (folder / "public.csv").write_text("x\n1\n")
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"x": [1.0]}), folder / "public.parquet")
    if id_type is not None:
        data["id_type"] = id_type
    _, private = load(KINDS[source].model_validate(data), None, folder)
    return records_of(private)


@pytest.mark.parametrize("source", ["npz", "parquet"])
def test_a_person_is_one_in_files_of_different_width(source: str, tmp_path: Path) -> None:
    files = [np.array([1, 2, 3], dtype=kind) for kind in ("int64", "int32", "uint64", "int8", "uint16")]
    assert read(tmp_path, source, "integer", files).ids == ["1", "2", "3"] * 5


@pytest.mark.parametrize(
    ("id_type", "cells", "ids"),
    [
        ("integer", [" 1", "01 ", "+1"], ["1", "1", "1"]),
        ("integer", ["-7", "-007", "-0"], ["-7", "-7", "0"]),
        ("integer", ["1.0", "1e0", "9" * 5000], ["9" * 5000]),
        ("text", [" ann", "ann\t", "\u2003ann"], ["ann", "ann", "ann"]),
        ("text", ["Ren\u00e9e", "Rene\u0301e", "renée"], ["Renée", "Renée", "renée"]),
        ("text", ["1", "01", "1.0"], ["1", "01", "1.0"]),
        ("text", ["", "  ", "bob"], ["bob"]),
    ],
)
def test_csv_ids_are_compared_by_their_canonical_form(
    id_type: str, cells: list[str], ids: list[str], tmp_path: Path
) -> None:
    records = read(tmp_path, "csv", id_type, [cells])
    assert records.ids == ids
    assert records.left_out == len(cells) - len(ids)
    assert len(records.X) == len(records.y) == len(ids)


@pytest.mark.parametrize("source", ["npz", "parquet"])
@pytest.mark.parametrize(
    ("id_type", "wrong", "says"),
    [
        ("integer", np.array([1.0, 2.0, 3.0]), "float64|double"),
        ("integer", np.array(["1", "2", "3"]), "say data.id_type: text"),
        ("integer", np.array([True, False, True]), "bool"),
        (None, np.array([1, 2, 3]), "int64.* say data.id_type: integer"),
        (None, np.array([1.0, 2.0, 3.0]), "float64|double"),
        (None, np.array([b"1", b"2", b"3"]), r"\|S1|binary"),
    ],
)
def test_ids_of_another_type_are_refused_by_file_and_type(
    source: str, id_type: str | None, wrong: np.ndarray, says: str, tmp_path: Path
) -> None:
    right = np.array([1, 2, 3]) if id_type == "integer" else np.array(["1", "2", "3"])
    given = wrong.tolist() if source == "parquet" and wrong.dtype.kind in "SU" else wrong
    with pytest.raises(DataError, match=rf"shard-1\.{source}.*({says})") as caught:
        read(tmp_path, source, id_type, [right.tolist() if source == "parquet" else right, given])
    assert "data.id_type" in str(caught.value)


def test_a_missing_id_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    """NULL is nobody, not person 0; and it makes no floats of ids that no float can hold."""
    records = read(tmp_path, "parquet", "integer", [[2**53 + 1, None, 0]])
    assert records.ids == ["9007199254740993", "0"]
    assert records.left_out == 1


@pytest.mark.parametrize("n_ids", [2, 4])
@pytest.mark.parametrize("private", ["private.npz", ["private.npz"]])
def test_as_many_ids_as_records(n_ids: int, private: object, tmp_path: Path) -> None:
    np.savez(tmp_path / "private.npz", X=np.ones((3, 1)), y=np.array([0, 1, 0]), id=np.array(["a"] * n_ids))
    np.savez(tmp_path / "public.npz", X=np.ones((2, 1)))
    data = {"source": "npz", "private": private, "public": "public.npz", "classes": [0, 1], "ids": True}
    with pytest.raises(DataError, match=r"private\.npz: not as many ids as records"):
        load(NpzData.model_validate(data), None, tmp_path)
    with pytest.raises(DataError, match="not as many ids as records"):
        Records(np.ones((3, 1)), np.zeros(3, np.int64), ["a"] * n_ids)
    with pytest.raises(DataError, match="every record has one id"):
        identities(np.ones((3, 1)), np.zeros(3), ["a"] * n_ids)


def test_ids_that_the_config_promises_must_be_there(tmp_path: Path) -> None:
    np.savez(tmp_path / "all.npz", X_private=np.ones((3, 1)), y_private=[0, 1, 0], X_public=np.ones((1, 1)))
    data = {"source": "npz", "file": "all.npz", "classes": [0, 1], "ids": True}
    with pytest.raises(DataError, match=r"all\.npz \(private\): no array id"):
        load(NpzData.model_validate(data), None, tmp_path)


@pytest.mark.parametrize("ids", [[1, 1.0, 2], ["1", 1, b"1"]])
def test_ids_from_python_are_text(ids: list[Any]) -> None:
    with pytest.raises(DataError, match="text"):
        Records(np.ones((3, 1)), np.zeros(3, np.int64), ids)
    with pytest.raises(DataError, match="text"):
        identities(np.ones((3, 1)), np.zeros(3), ids)


def test_a_config_that_fits_no_id_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no private record has a valid id: data\.id_type = 'integer'"):
        read(tmp_path, "csv", "integer", [["ann", "bob", "cy"]])


def test_readers_count_what_they_leave_out(tmp_path: Path) -> None:
    read(tmp_path, "csv", "text", [["ann", "", "cy"], ["", " ", "ann"]])
    data = {"source": "csv", "private": "shard-*.csv", "public": "public.csv", "label": "kind", "id": "who"}
    settings_ = CsvData.model_validate(data | {"classes": [0, 1], "read_by": "workers"})
    _, shards = load(settings_, None, tmp_path, by_workers=True)
    assert isinstance(shards, Shards)
    summary = ShardReader(shards, b"k" * 32, Split(4)).load()
    assert isinstance(summary, Summary)
    assert (summary.records, summary.left_out) == (3, 3)


def test_forgetting_finds_an_id_however_it_is_written(tmp_path: Path) -> None:
    records = read(tmp_path, "csv", "integer", [["17", "18", "017"]])
    assert _chosen(records, [" +17 "], [], "integer") == [0, 2]
    with pytest.raises(DataError, match="no record has that id"):
        _chosen(records, ["17.0"], [], "integer")


@given(st.text())
@settings(max_examples=200, deadline=None)
def test_the_canonical_form_is_its_own(text: str) -> None:
    for id_type in ("text", "integer"):
        form = canonical_id(text, id_type)
        if form is not None:
            assert canonical_id(f"\t{form} ", id_type) == form
            assert canonical_id(unicodedata.normalize("NFD", form), id_type) == form
            assert identities(np.ones((1, 1)), np.zeros(1), [form]) == [b"id:" + form.encode()]
