"""Ids: one declared type, one form for each person, whatever file they are in."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pate.data._columns import canonical_id
from pate.data._model_input import person_ids
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


def about(folder: Path, source: str, id_type: str | None, files: list[Any]) -> Any:
    """The data section for shards with these ids, which are written, and a public file."""
    for i, ids in enumerate(files):
        save(folder / f"shard-{i}.{source}", ids)
    data: dict[str, Any] = {"source": source, "private": f"shard-*.{source}", "public": f"public.{source}"}
    data |= {"classes": [0, 1]} | ({"ids": True} if source == "npz" else {"label": "kind", "id": "who"})
    if source == "npz":
        np.savez(folder / "public.npz", X=np.array([[0.0], [9.0]]))
    elif source == "csv":
        (folder / "public.csv").write_text("x\n0\n9\n")
    else:
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pyarrow.table({"x": [0.0, 9.0]}), folder / "public.parquet")
    return KINDS[source].model_validate(data if id_type is None else data | {"id_type": id_type})


def read(folder: Path, source: str, id_type: str | None, files: list[Any]) -> Records:
    return records_of(load(about(folder, source, id_type, files), None, folder)[1])


def shards(folder: Path, source: str, id_type: str, files: list[Any]) -> Shards:
    """The same, unread."""
    _, left = load(about(folder, source, id_type, files), None, folder, by_workers=True)
    assert isinstance(left, Shards)
    return left


@pytest.mark.parametrize("source", ["npz", "parquet"])
def test_a_person_is_one_in_files_of_different_width(source: str, tmp_path: Path) -> None:
    files = [np.array([1, 2, 3], dtype=kind) for kind in ("int64", "int32", "uint64", "int8", "uint16")]
    assert read(tmp_path, source, "integer", files).ids == ["1", "2", "3"] * 5


WRITTEN = [
    ("integer", [" 1", "01 ", "+1"], ["1", "1", "1"]),
    ("integer", ["-7", "-007", "-0"], ["-7", "-7", "0"]),
    ("integer", ["1.0", "1e0", "9" * 5000], ["9" * 5000]),
    ("text", [" ann", "ann\t", "\u2003ann"], ["ann", "ann", "ann"]),
    ("text", ["Ren\u00e9e", "Rene\u0301e", "ren\u00e9e"], ["Ren\u00e9e", "Ren\u00e9e", "ren\u00e9e"]),
    ("text", ["a\u0323\u0307", "a\u0307\u0323", "\u1ea1\u0307"], ["\u1ea1\u0307"] * 3),
    ("text", ["1", "01", "1.0"], ["1", "01", "1.0"]),
    ("text", ["", "  ", "bob"], ["bob"]),
]
"""A declared type, ids as three records write them, and whose they are."""
TYPED = [case for case in WRITTEN if case[0] == "text"]  # where files have types, whole numbers are no text


@pytest.mark.parametrize(
    ("source", "id_type", "cells", "ids"),
    [("csv", *case) for case in WRITTEN]
    + [(source, *case) for case in TYPED for source in ("npz", "npz in one file", "parquet", "parquet in categories")],
)
def test_ids_are_compared_by_their_canonical_form_in_every_source(
    source: str, id_type: str, cells: list[str], ids: list[str], tmp_path: Path
) -> None:
    """By who reads them too: a reader of shards gives two forms of one id to one person."""
    if source == "npz in one file":
        X, y = np.arange(3.0)[:, None], np.arange(3) % 2
        np.savez(tmp_path / "all.npz", X_private=X, y_private=y, id_private=np.array(cells), X_public=X)
        section = NpzData.model_validate({"source": "npz", "file": "all.npz", "classes": [0, 1]})
        records = records_of(load(section, None, tmp_path)[1])
    else:
        given: Any = np.array(cells) if source == "npz" else cells
        if source == "parquet in categories":
            given = pytest.importorskip("pyarrow").array(cells).dictionary_encode()
        records = read(tmp_path, source.split()[0], id_type, [given])
    assert records.ids == ids
    assert records.left_out == len(cells) - len(ids)
    assert len(records.X) == len(records.y) == len(ids)
    assert records.X[:, 0].tolist() == [place for place in range(3) if len(ids) == 3 or place == 2]


@pytest.mark.parametrize("source", ["csv", "npz", "parquet"])
def test_readers_know_a_person_by_the_canonical_form(source: str, tmp_path: Path) -> None:
    """Six records of one person in two forms of Unicode, in two shards: in one part, under one hash."""
    forms: Any = ["Ren\u00e9e", "Rene\u0301e", " Ren\u00e9e"]
    left = shards(tmp_path, source, "text", [forms, forms[::-1]])
    found = []
    for path in left.paths:
        reader = ShardReader(replace(left, paths=(path,)), b"k" * 32, Split(40))
        assert isinstance(reader.load(), Summary)
        for part in range(40):
            persons = reader.part(part).persons
            assert persons is not None
            found += [(part, bytes(one)) for one in persons]
    assert len(found) == 6
    assert len(set(found)) == 1


def test_ids_of_frames_and_arrays_are_compared_by_their_canonical_form() -> None:
    """In Python `ids=` may be numbers or text, each by itself."""
    for _, cells, ids in TYPED:
        assert [one for one in person_ids(cells) if one is not None] == ids
    assert person_ids(np.array([17, 4])) == person_ids(["17", "4 "]) == ["17", "4"]
    assert person_ids([17, None, True, float("nan"), "", "4"]) == ["17", None, None, None, None, "4"]
    with pytest.raises(DataError, match="not whole numbers or text"):
        person_ids([1.0, 2.0])


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
    left = shards(tmp_path, "csv", "text", [["ann", "", "cy"], ["", " ", "ann"]])
    summary = ShardReader(left, b"k" * 32, Split(4)).load()
    assert isinstance(summary, Summary)
    assert (summary.records, summary.left_out) == (3, 3)
    assert read(tmp_path, "csv", "text", [["ann", "", "cy"], ["", " ", "ann"]]).left_out == 3


def test_forgetting_finds_an_id_however_it_is_written(tmp_path: Path) -> None:
    records = read(tmp_path, "csv", "integer", [["17", "18", "017"]])
    assert _chosen(records, [" +17 "], [], "integer") == [0, 2]
    with pytest.raises(DataError, match="no record has that id"):
        _chosen(records, ["17.0"], [], "integer")


@given(st.text())
@settings(max_examples=60, deadline=None)
def test_the_canonical_form_is_its_own(text: str) -> None:
    for id_type in ("text", "integer"):
        form = canonical_id(text, id_type)
        if form is not None:
            assert canonical_id(f"\t{form} ", id_type) == form
            assert canonical_id(unicodedata.normalize("NFD", form), id_type) == form
            assert identities(np.ones((1, 1)), np.zeros(1), [form]) == [b"id:" + form.encode()]
