"""The user's own data in one file per part, or all in one: NumPy archives and csv files.

npz: either one file (`file:`) with the keys X_private, y_private, X_public and, if there are any, id_private,
X_test, y_test; or one file per part (`private:`, `public:`, `test:`) with the keys X, y and id. Never unpickled.

csv: one file per part, or one file with a `split` column that says private, public or test in every row. Columns are
numbers, dates in a form that is given under `dates`, or have their values listed under `categories` (one 0/1 feature
per value; others are all 0).
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.components.registry import nearest
from pate.data.drift import drift_warnings
from pate.data.formats import USUAL, Problems, Wanted, content_of, npz_arrays
from pate.data.model_input import describe_columns
from pate.data.private import Records
from pate.data.public import PublicData
from pate.data.records import (
    Format,
    Table,
    dialect_of,
    features_of,
    labels_of,
    npz_table,
    public_labels,
    read_table,
    records_of,
    unlisted_category_notes,
    unused_columns,
    with_valid_ids,
)
from pate.errors import DataError

if TYPE_CHECKING:
    from pate.data.settings import CsvData, NpzData, OwnData

_PARTS = ("private", "public", "test")


def existing(path: str, folder: Path) -> Path:
    """`path` as it stands or below the data folder; an error that names both where it is in neither."""
    for candidate in (folder / path, Path(path)):
        if candidate.is_file():
            return candidate
    raise DataError(f"{path}: no such file, nor below {folder}; give its folder with {{data_dir}}", data_dir=None)


def check_not_private(settings: OwnData, places: Mapping[str, str], private: Collection[str]) -> None:
    """Refuse a public or test file, by its place, that is one of the private ones under whatever name.

    What the config's own words tell was refused before; links, other spellings and other folders are seen here.
    """
    real = {os.path.realpath(path) for path in private}
    for part, path in places.items():
        if os.path.realpath(path) in real:
            raise DataError(
                f"data.{part} = {getattr(settings, part)!r}: is a private file by another name, and what is {part} is "
                "treated as known to everybody; name another file"
            )


def load_npz(settings: NpzData, folder: Path, keep_missing: bool = False) -> tuple[PublicData, Records]:
    """The data set in the archives that `settings` name, from below `folder`."""
    tables = _npz_in_one(settings, folder) if settings.file is not None else _files(settings, folder, keep_missing)
    format = Format.of_arrays(settings, tables["public"], settings.ids or "id" in tables["private"].columns)
    return dataset(tables, replace(format, keep_missing=keep_missing))


def load_csv(settings: CsvData, folder: Path, keep_missing: bool = False) -> tuple[PublicData, Records]:
    """The data set in the csv files that `settings` name, from below `folder`."""
    in_one = settings.split is not None
    tables = _csv_in_one(settings, folder, keep_missing) if in_one else _files(settings, folder, keep_missing)
    for part in ("private", "public"):
        may_be_empty = part == "private" and keep_missing
        if part not in tables or not (may_be_empty or len(tables[part])):
            raise DataError(f"data.{part}: no rows; a csv source needs private and public ones")
    _check_ignored(settings, tables)
    private, public = tables["private"], tables["public"]
    _check_features_are_private_too(settings, private, public)
    in_order = [*(name for name in public.columns if name in private.columns), *private.columns]  # as of shards
    format = Format.of_columns(settings, dict.fromkeys(in_order), private.where).fitted(public)
    return dataset(tables, replace(format, keep_missing=keep_missing))


def dataset(tables: dict[str, Table], format: Format) -> tuple[PublicData, Records]:
    """The data made of a private, a public and perhaps a test table; all mistakes are reported at once."""
    public, test, problems = tables["public"], tables.get("test"), Problems()
    with problems.gathered():
        X_public = features_of(public, format)
        format = format.with_range(X_public)
        notes, unused = unlisted_category_notes(public, format), unused_columns(public, test, format)
        y_public = public_labels(public, format)
    with problems.gathered():
        X_test = None if test is None else features_of(test, format)
    with problems.gathered():
        y_test = None if test is None else labels_of(test, format)
    with problems.gathered():
        records = with_valid_ids(records_of(tables["private"], format), format)
    problems.raise_all()
    public_data = public_data_of(
        X_public, y_public, X_test, y_test, format, notes, drift_warnings(public, test, format)
    )
    return public_data, replace(records, unused=unused)


def public_data_of(
    X_public: NDArray,
    y_public: NDArray[np.int64] | None,
    X_test: NDArray | None,
    y_test: NDArray[np.int64] | None,
    format: Format,
    notes: tuple[str, ...],
    warnings: tuple[str, ...],
) -> PublicData:
    """The public side of the user's own files, which `format` describes."""
    return PublicData(
        X_public=X_public,
        classes=tuple(str(name) for name in format.classes),
        y_public=y_public,
        X_test=X_test,
        y_test=y_test,
        per_person=format.id is not None,
        features=format.feature_names,
        has_missing_values=format.treatment == "keep",
        columns=describe_columns(format),
        range=format.range,
        notes=notes,
        warnings=warnings,
    )


def _files(settings: CsvData | NpzData, folder: Path, keep_bad: bool) -> dict[str, Table]:
    """The tables, each from a file of its own; what is wrong with any of them is told at once."""
    named = {"label": getattr(settings, "label", None), "id": getattr(settings, "id", None)}
    dialect = USUAL if settings.source == "npz" else dialect_of(settings)
    tables: dict[str, Table] = {}
    places: dict[str, str] = {}
    problems = Problems()
    for part in ("public", "private", "test"):
        if getattr(settings, part) is not None:
            with problems.gathered():
                places[part] = str(existing(getattr(settings, part), folder))
    problems.raise_all()
    check_not_private(settings, {part: path for part, path in places.items() if part != "private"}, [places["private"]])
    for part, path in places.items():
        with problems.gathered():
            known = tables["public"].columns if "public" in tables else ()
            needed, keep = (named, keep_bad) if part == "private" else ({}, False)
            wanted = Wanted(needed, getattr(settings, "ignore", ()), known, keep)
            tables[part] = read_table(path, settings.source, wanted, dialect)
    problems.raise_all()
    return tables


def _check_features_are_private_too(settings: CsvData, private: Table, public: Table) -> None:
    """Refuse a column that the private file lacks: it would be left out of everybody's features unnoticed."""
    problems, roles = Problems(), (settings.label, settings.id)
    others = [repr(name) for name in private.columns if name not in (*public.columns, *roles)]
    instead = f" (it has {', '.join(others)}, which the public file has not)" if others else ""
    for name in public.columns:
        if name not in (*private.columns, *roles):
            text = f"no column {name!r}, which the public file has{instead}; add it here or to data.ignore"
            problems.add(DataError(f"{private.where}: {text}"))
    problems.raise_all()


def _check_ignored(settings: CsvData, tables: dict[str, Table]) -> None:
    """Refuse to ignore a column that is in no file: it may be misspelt, and the one that was meant be a feature."""
    there = {name for table in tables.values() for name in table.header}
    problems = Problems()
    for name in settings.ignore:
        if name not in there:
            problems.add(DataError(f"data.ignore: no file has a column {name!r}; {nearest(name, there)}"))
    problems.raise_all()


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
    wanted = Wanted(needed, settings.ignore, keep_bad=keep_bad)
    whole = read_table(str(existing(settings.private, folder)), "csv", wanted, dialect_of(settings))
    split = whole.columns[settings.split or ""]
    rows: dict[str, list[int]] = {"private": []}
    for row, part in enumerate(split.texts()):
        if part not in _PARTS:
            if keep_bad:
                continue
            raise split.error(row, "says neither private nor public nor test")
        rows.setdefault(part, []).append(row)
    return {
        part: Table(whole.where, {name: column.take(own) for name, column in whole.columns.items()}, None, whole.header)
        for part, own in rows.items()
    }
