"""From the data section of a config to the data set that it describes: benchmarks, and the user's own files.

npz: either one file (`file:`) with the keys X_private, y_private, X_public and, if there are any, id_private,
X_test, y_test; or one file per part (`private:`, `public:`, `test:`) with the keys X, y and id. Never unpickled.

csv: one file per part, or one file with a `split` column that says private, public or test in every row. Columns are
numbers, dates in a form that is given under `dates`, or have their values listed under `categories` (one 0/1 feature
per value; others are all 0).

Shards (csv, npz, parquet): private records in several files, read here or by workers (`pate.data._shards`).
"""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pate.components._registry import nearest
from pate.data._drift import drift_warnings
from pate.data._formats import USUAL, Problems, Wanted, content_of, npz_arrays
from pate.data._model_input import describe_columns
from pate.data._records import (
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
from pate.data._shards import matching, matching_files, named_once, read_all, with_known_columns
from pate.data.private import PrivateData, Records, Shards
from pate.data.public import PublicData
from pate.errors import ConfigError, DataError
from pate.storage import is_url

if TYPE_CHECKING:
    from pate.data._settings import CsvData, DataSettings, NpzData, OwnData, ParquetData

_PARTS = ("private", "public", "test")


def load(
    settings: DataSettings,
    data_dir: Path | None,
    config_dir: Path,
    by_workers: bool = False,
    keep_missing: bool = False,
) -> tuple[PublicData, PrivateData]:
    """The two sides, public and private, of what the config's data section describes.

    `by_workers`: leave private shards unread, for workers to read them. `keep_missing`: keep private
    records whose features are no numbers or whose label is no class (−1), which cast no vote where records vote
    themselves and count as zero in a baseline, and take an empty private set; else they are refused.

    Files are looked for below `data_dir`, else below $PATE_DATA. If there is neither, the
    user's own files are looked for beside the config and benchmarks in ~/.cache/pate, where downloads go too.
    """
    if data_dir is not None and not Path(data_dir).is_dir():
        raise DataError("{data_dir}: no such folder; name one that is there", data_dir=data_dir)
    if settings.source == "digits":
        return _digits()
    if settings.source == "arrays":
        raise ConfigError(
            "data.source = 'arrays': they are given from Python, as pate.run(config, out, public=..., private=...)"
        )
    given = data_root(data_dir)
    if settings.source in ("csv", "npz", "parquet") and settings.sharded:
        return _sharded(settings, given or config_dir, by_workers, keep_missing)
    if settings.source == "npz":
        return _npz(settings, given or config_dir, keep_missing)
    if settings.source == "csv":
        return _csv(settings, given or config_dir, keep_missing)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pate"
    folders = [given] if data_dir and given else [folder for folder in (given, cache) if folder]
    if settings.source in ("adult", "kddcup99"):
        from pate.data._benchmarks import load_table

        return load_table(settings.source, folders)
    from pate.data._benchmarks import load_images

    return load_images(settings.source, folders)


def read_by_workers(settings: DataSettings, on_cluster: bool) -> bool:
    """Whether workers are to read the private records: as the config says, else of shards where there is a cluster."""
    chosen = getattr(settings, "read_by", "driver")
    return chosen == "workers" or (chosen is None and on_cluster and getattr(settings, "sharded", False))


def data_root(data_dir: Path | None) -> Path | None:
    """The folder that the user named for data: `data_dir`, else $PATE_DATA; None where neither is given."""
    return data_dir or (Path(os.environ["PATE_DATA"]) if os.environ.get("PATE_DATA") else None)


def _digits() -> tuple[PublicData, Records]:
    """scikit-learn's bundled 8×8 digits: 1,797 images, of which 1,197 play private, 400 public and 200 test."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    shuffled = np.random.default_rng(0).permutation(len(images))  # part of the source's definition
    X = (images / 16).astype(np.float32).reshape(-1, 8, 8)[shuffled]
    y = labels.astype(np.int64)[shuffled]
    public = PublicData(
        X_public=X[1197:1597],
        y_public=y[1197:1597],
        X_test=X[1597:],
        y_test=y[1597:],
        classes=tuple(str(digit) for digit in range(10)),
        benchmark=True,
        input="images of 8×8 pixels, each divided by 16",
    )
    return public, Records(X[:1197], y[:1197])


def existing(path: str, folder: Path) -> Path:
    """`path` as it stands or below the data folder; an error that names both where it is in neither."""
    for candidate in (folder / path, Path(path)):
        if candidate.is_file():
            return candidate
    raise DataError(f"{path}: no such file, nor below {folder}; give its folder with {{data_dir}}", data_dir=None)


def _check_not_private(settings: OwnData, places: Mapping[str, str], private: Collection[str]) -> None:
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


def _npz(settings: NpzData, folder: Path, keep_missing: bool = False) -> tuple[PublicData, PrivateData]:
    """The data set in the archives that `settings` name, from below `folder`."""
    tables = _npz_in_one(settings, folder) if settings.file is not None else _files(settings, folder, keep_missing)
    format = Format.of_arrays(settings, tables["public"], settings.ids or "id" in tables["private"].columns)
    return _of_tables(tables, replace(format, keep_missing=keep_missing))


def _csv(settings: CsvData, folder: Path, keep_missing: bool = False) -> tuple[PublicData, PrivateData]:
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
    return _of_tables(tables, replace(format, keep_missing=keep_missing))


def _dataset(
    public: Table,
    test: Table | None,
    format: Format,
    read_private: Callable[[Format], Records | Shards],
    problems: Problems,
) -> tuple[PublicData, PrivateData]:
    """Both sides of the user's own files, which `format` describes; all mistakes are reported at once, with those that
    were found before."""
    X_test = y_test = None
    with problems.gathered():
        X_public = features_of(public, format)
        format = format.with_range(X_public)
        notes, unused = unlisted_category_notes(public, format), unused_columns(public, test, format)
        y_public = public_labels(public, format)
    if test is not None:
        with problems.gathered():
            X_test = features_of(test, format)
        with problems.gathered():
            y_test = labels_of(test, format)
    with problems.gathered():
        private = read_private(format)
    problems.raise_all()
    found = PublicData(
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
        warnings=drift_warnings(public, test, format),
    )
    return found, replace(private, unused=unused)


def _of_tables(tables: dict[str, Table], format: Format) -> tuple[PublicData, PrivateData]:
    """The data made of a private, a public and perhaps a test table."""
    public = tables["public"]

    def private(known: Format) -> Records:
        return with_valid_ids(records_of(tables["private"], known), known)

    return _dataset(public, tables.get("test"), format, private, Problems())


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
    _check_not_private(
        settings, {part: path for part, path in places.items() if part != "private"}, [places["private"]]
    )
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


def _sharded(
    settings: CsvData | NpzData | ParquetData, folder: Path, by_workers: bool, keep_missing: bool
) -> tuple[PublicData, PrivateData]:
    """Both sides of shards; private ones are left to the workers if `by_workers`."""
    assert settings.private is not None  # checked by the config
    paths, patterns = _expanded(settings.private, folder, may_be_elsewhere=by_workers)
    ignored, dialect = ((), USUAL) if settings.source == "npz" else (settings.ignore, dialect_of(settings))
    wanted = Wanted({}, ignored)
    places = {
        part: _place(path, folder) for part in ("public", "test") if (path := getattr(settings, part)) is not None
    }
    _check_not_private(settings, places, paths)
    public, test, problems = read_table(places["public"], settings.source, wanted, dialect), None, Problems()
    if settings.source == "npz":
        format = Format.of_arrays(settings, public, settings.ids)
    else:
        format = Format.of_columns(settings, public.columns, public.where).fitted(public)
    if "test" in places:
        with problems.gathered():
            test = with_known_columns(read_table(places["test"], settings.source, wanted, dialect), format)

    def private(known: Format) -> Records | Shards:
        return Shards(paths, known, patterns) if by_workers else with_valid_ids(read_all(paths, known), known)

    return _dataset(public, test, replace(format, keep_missing=keep_missing), private, problems)


def _expanded(
    private: str | tuple[str, ...], folder: Path, may_be_elsewhere: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The shards by name, and patterns that no file on this machine matches, if files `may_be_elsewhere`.

    Names that are listed need not be here.
    """
    paths: list[str] = []
    patterns: list[str] = []
    for entry in (private,) if isinstance(private, str) else private:
        place = _place(entry, folder)
        if not glob.has_magic(entry):
            paths.append(place)
        elif may_be_elsewhere and not matching_files(place):
            patterns.append(place)
        else:
            paths += matching([place])
    return named_once(paths), tuple(patterns)


def _place(entry: str, folder: Path) -> str:
    return entry if is_url(entry) else str((folder / entry).absolute())
