"""The user's own data in one file per part, or all in one: NumPy archives and csv files.

npz: either one file (`file:`) with the keys X_private, y_private, X_public and, if there are any, id_private,
X_test, y_test; or one file per part (`private:`, `public:`, `test:`) with the keys X, y and id. Never unpickled.

csv: one file per part, or one file with a `split` column that says private, public or test in every row. Columns are
numbers, or have their values listed under `categories` (one 0/1 feature per value; others are all 0).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pate.data.arrays import npz_arrays
from pate.data.dataset import Dataset
from pate.data.formats import content_of
from pate.data.records import Format, Table, features_of, labels_of, npz_table, read_table, records_of, with_valid_ids
from pate.errors import DataError

if TYPE_CHECKING:
    from pate.data.settings import CsvData, NpzData

_PARTS = ("private", "public", "test")


def existing(path: str, folder: Path) -> Path:
    """`path` as it stands or below the data folder; an error that names both where it is in neither."""
    for candidate in (folder / path, Path(path)):
        if candidate.is_file():
            return candidate
    raise DataError(f"{path}: no such file, nor below {folder}; give its folder with {{data_dir}}", data_dir=None)


def load_npz(settings: NpzData, folder: Path, keep_missing: bool = False) -> Dataset:
    """The data set in the archives that `settings` name, from below `folder`."""
    tables = _npz_in_one(settings, folder) if settings.file is not None else _files(settings, folder, keep_missing)
    format = Format.of_arrays(settings, tables["public"], settings.ids or "id" in tables["private"].columns)
    return dataset(tables, replace(format, keep_missing=keep_missing))


def load_csv(settings: CsvData, folder: Path, keep_missing: bool = False) -> Dataset:
    """The data set in the csv files that `settings` name, from below `folder`."""
    in_one = settings.split is not None
    tables = _csv_in_one(settings, folder, keep_missing) if in_one else _files(settings, folder, keep_missing)
    for part in ("private", "public"):
        may_be_empty = part == "private" and keep_missing
        if part not in tables or not (may_be_empty or len(tables[part])):
            raise DataError(f"data.{part}: no rows; a csv source needs private and public ones")
    private = tables["private"]
    format = Format.of_columns(settings, private.columns, private.where)
    return dataset(tables, replace(format, keep_missing=keep_missing))


def dataset(tables: dict[str, Table], format: Format) -> Dataset:
    """The data set made of a private, a public and perhaps a test table."""
    test = tables.get("test")
    return Dataset(
        private=with_valid_ids(records_of(tables["private"], format), format),
        X_public=features_of(tables["public"], format),
        classes=tuple(str(name) for name in format.classes),
        X_test=None if test is None else features_of(test, format),
        y_test=None if test is None else labels_of(test, format),
        features=format.feature_names,
    )


def _files(settings: CsvData | NpzData, folder: Path, keep_bad: bool) -> dict[str, Table]:
    """The tables, each from a file of its own."""
    named = {"label": getattr(settings, "label", None), "id": getattr(settings, "id", None)}
    tables = {}
    for part in _PARTS:
        path = getattr(settings, part)
        if path is not None:
            needed = named if part == "private" else {}
            place = str(existing(path, folder))
            ignored, keep = getattr(settings, "ignore", ()), keep_bad and part == "private"
            tables[part] = read_table(place, settings.source, needed, ignored, keep)
    return tables


def _npz_in_one(settings: NpzData, folder: Path) -> dict[str, Table]:
    path = str(existing(settings.file or "", folder))
    names = [f"{key}_{part}" for key in ("X", "y", "id") for part in _PARTS]
    arrays = npz_arrays(content_of(path), path, names)
    parts = [part for part in _PARTS if part != "test" or "X_test" in arrays]
    return {part: npz_table(arrays, f"{path} ({part})", f"_{part}") for part in parts}


def _csv_in_one(settings: CsvData, folder: Path, keep_bad: bool) -> dict[str, Table]:
    """One file whose rows say where they belong; one that does not is refused or, with `keep_bad`, left out."""
    if not isinstance(settings.private, str):
        raise DataError("data.split needs data.private, the one file that holds all rows")
    needed = {key: getattr(settings, key) for key in ("label", "id", "split")}
    whole = read_table(str(existing(settings.private, folder)), "csv", needed, settings.ignore, keep_bad)
    split = whole.columns[settings.split or ""]
    rows: dict[str, list[int]] = {"private": []}
    for row, part in enumerate(split.texts()):
        if part not in _PARTS:
            if keep_bad:
                continue
            raise split.error(row, "says neither private nor public nor test")
        rows.setdefault(part, []).append(row)
    return {
        part: Table(whole.where, {name: column.take(own) for name, column in whole.columns.items()})
        for part, own in rows.items()
    }
