"""From the data section of a config to the data set that it describes: benchmarks, and the user's own files.

npz: either one file (`file:`) with the keys X_private, y_private, X_public and, if there are any, id_private,
X_test, y_test; or one file per part (`private:`, `public:`, `test:`) with the keys X, y and id. Never unpickled.

csv: one file per part, or one file with a `split` column that says private, public or test in every row. Columns are
numbers, dates in a form that is given under `dates`, or have their values listed under `categories` (one 0/1 feature
per value; others are all 0).

Shards (csv, npz, parquet): private records in several files, read here or by workers (`pate.data._shards`).

Columns, classes and the range of features come from the config and the public file, never from a private one. Public
and test files are compared column by column: both are public, and a test file stands in for new examples, of which
public ones of another year say little.
"""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.components._registry import nearest
from pate.data._columns import canonical, day_of
from pate.data._formats import Problems, Table, Wanted, content_of, npz_arrays
from pate.data._records import (
    Format,
    features_of,
    measured_in,
    no_valid_id,
    npz_table,
    read_table,
    records_of,
)
from pate.data._shards import matching, matching_files, named_once, read_all
from pate.data.private import PrivateData, Records, Shards
from pate.data.public import PublicData
from pate.errors import ConfigError, DataError
from pate.storage import is_url

if TYPE_CHECKING:
    from pate.data._settings import CsvData, DataSettings, NpzData, OwnData, ParquetData

_PARTS = ("private", "public", "test")
_MAX_NAMED = 9

_SHARE = 0.05  # of test cells beyond what is public
_DISTANCE = 0.25  # between distributions: Kolmogorov and Smirnov's of numbers, total variation of categories
_CHANCE = 2.2  # of either, in standard deviations: files that are alike are told of once in ten thousand columns
_FEWEST = 20  # cells: of fewer, nothing is said
_MAX_WARNINGS = 12


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
    if settings.source == "arrays":
        raise ConfigError(
            "data.source = 'arrays': they are given from Python, as pate.run(config, out, public=..., private=...)"
        )
    given = data_root(data_dir)
    if settings.source in ("csv", "npz", "parquet"):
        return _own_files(settings, given or config_dir, by_workers, keep_missing)
    from pate.data import _benchmarks

    if settings.source == "digits":
        return _benchmarks.load_digits()
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "pate"
    folders = [given] if data_dir and given else [folder for folder in (given, cache) if folder]
    if settings.source in ("adult", "kddcup99"):
        return _benchmarks.load_table(settings.source, folders)
    return _benchmarks.load_images(settings.source, folders)


def read_by_workers(settings: DataSettings, on_cluster: bool) -> bool:
    """Whether workers are to read the private records: as the config says, else of shards where there is a cluster."""
    chosen = getattr(settings, "read_by", "driver")
    return chosen == "workers" or (chosen is None and on_cluster and getattr(settings, "sharded", False))


def data_root(data_dir: Path | None) -> Path | None:
    """The folder that the user named for data: `data_dir`, else $PATE_DATA; None where neither is given."""
    return data_dir or (Path(os.environ["PATE_DATA"]) if os.environ.get("PATE_DATA") else None)


def existing(path: str, folder: Path) -> Path:
    """`path` as it stands or below the data folder; an error that names both where it is in neither."""
    for candidate in (folder / path, Path(path)):
        if candidate.is_file():
            return candidate
    raise DataError(f"{path}: no such file, nor below {folder}; give its folder with {{data_dir}}", data_dir=None)


def _own_files(
    settings: CsvData | NpzData | ParquetData, folder: Path, by_workers: bool, keep_missing: bool
) -> tuple[PublicData, PrivateData]:
    """Both sides of the user's own files, below `folder`; all mistakes that can be seen together are told at once."""
    paths, patterns = _expanded(settings.private or "", folder, by_workers) if settings.sharded else ((), ())
    if settings.source == "npz" and settings.file is not None:
        tables = _npz_in_one(settings, str(existing(settings.file, folder)))
    elif settings.source == "csv" and settings.split is not None:
        tables = _csv_in_one(settings, folder, keep_missing)
    else:
        tables = _in_files(settings, folder, paths, keep_missing)
    private_table, test = tables.get("private"), tables.get("test")
    if settings.source == "npz":
        has_ids = settings.ids or (private_table is not None and "id" in private_table.columns)
        format = Format.of_arrays(settings, tables["public"], has_ids)
    else:
        if not settings.sharded:
            _check_tables(settings, tables, keep_missing)
        format = Format.of_columns(settings, tables["public"].columns, tables["public"].where).fitted(tables["public"])
    public, format, problems = tables["public"], replace(format, keep_missing=keep_missing), Problems()
    X_test = y_test = None
    with problems.gathered():
        X_public = features_of(public, format)
        format = format.with_range(X_public)
        notes, unused = _category_notes(public, format), _unused_columns(public, test, format)
        y_public = _public_labels(public, format)
    if test is not None:
        with problems.gathered():
            X_test = features_of(test, format)
        with problems.gathered():
            y_test = (
                test.columns[format.settings.label].labels(format.settings.classes)
                if format.settings.label in test.columns
                else None
            )
    private: Records | Shards
    with problems.gathered():
        if by_workers and settings.sharded:
            private = Shards(paths, format, patterns)
        else:
            records = read_all(paths, format) if private_table is None else records_of(private_table, format)
            if records.left_out and not len(records) and not keep_missing:
                raise no_valid_id(format.settings.id_type)
            private = records
    problems.raise_all()
    found = PublicData(
        X_public=X_public,
        classes=tuple(str(name) for name in format.settings.classes),
        y_public=y_public,
        X_test=X_test,
        y_test=y_test,
        per_person=format.id is not None,
        features=format.feature_names,
        has_missing_values=format.treatment == "keep",
        columns=format.on_card(),
        range=format.range,
        notes=notes,
        warnings=_drift_warnings(public, test, format),
    )
    return found, replace(private, unused=unused)


def _in_files(
    settings: CsvData | NpzData | ParquetData, folder: Path, shards: Collection[str], keep_bad: bool
) -> dict[str, Table]:
    """The public and the test table and, unless shards hold the records, the private one, each from its own file."""
    tables, places, problems = dict[str, Table](), dict[str, str](), Problems()
    for part in ("public", "private", "test"):
        path = getattr(settings, part)
        if path is not None and not (part == "private" and settings.sharded):
            with problems.gathered():
                places[part] = _place(path, folder) if settings.sharded else str(existing(path, folder))
    problems.raise_all()
    _check_not_private(settings, places, shards if settings.sharded else [places["private"]])
    for part, path in places.items():
        with problems.gathered():
            own = {"label": getattr(settings, "label", None), "id": getattr(settings, "id", None)}
            known = tables["public"].columns if "public" in tables else ()
            is_private, ignored = part == "private", getattr(settings, "ignore", ())
            wanted = Wanted(own if is_private else {}, ignored, known, keep_bad and is_private)
            tables[part] = read_table(path, settings.source, wanted, settings.dialect)
    problems.raise_all()
    return tables


def _check_not_private(settings: OwnData, places: Mapping[str, str], private: Collection[str]) -> None:
    """Refuse a public or test file, by its place, that is one of the private ones under whatever name.

    What the config's own words tell was refused before; links, other spellings and other folders are seen here.
    """
    real = {os.path.realpath(path) for path in private}
    for part, path in places.items():
        if part != "private" and os.path.realpath(path) in real:
            raise DataError(
                f"data.{part} = {getattr(settings, part)!r}: is a private file by another name, and what is {part} is "
                "treated as known to everybody; name another file"
            )


def _npz_in_one(settings: NpzData, path: str) -> dict[str, Table]:
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
    whole = read_table(str(existing(settings.private, folder)), "csv", wanted, settings.dialect)
    split = whole.columns.pop(settings.split or "")
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


def _check_tables(settings: CsvData | ParquetData, tables: dict[str, Table], keep_missing: bool) -> None:
    """Refuse a side without rows, and to ignore a column that is in no file: it may be misspelt."""
    for part in ("private", "public"):
        may_be_empty = part == "private" and keep_missing
        if part not in tables or not (may_be_empty or len(tables[part])):
            raise DataError(f"data.{part}: no rows; a csv source needs private and public ones")
    there = {name for table in tables.values() for name in table.header}
    Problems(
        DataError(f"data.ignore: no file has a column {name!r}; {nearest(name, there)}")
        for name in settings.ignore
        if name not in there
    ).raise_all()


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


def _public_labels(table: Table, format: Format) -> NDArray[np.int64] | None:
    """The labels in a public file, where every row has one: nobody needs them, so none is refused."""
    with suppress(DataError):
        if format.settings.label in table.columns:
            labels = table.columns[format.settings.label].labels(format.settings.classes, keep_unknown=True)
            return labels if (labels >= 0).all() else None
    return None


def _category_notes(public: Table, format: Format) -> tuple[str, ...]:
    """What people should know about listed categories and those in the public file; all of it is public.

    DataError where a listed one is written otherwise there, or none of a column's occurs: it would match nothing.
    """
    notes, problems = [], Problems()
    for name, listed in format.settings.categories.items():
        found = {canonical(text) for text in format.column(public, name).texts()} - {""}
        names = [canonical(str(value)) for value in listed]
        absent, others = [value for value in names if value and value not in found], sorted(found - set(names))
        key, shown = f"data.categories.{name}", ", ".join(map(repr, others[:_MAX_NAMED]))
        for value in absent:
            alike = next((other for other in others if _loosely(other) == _loosely(value)), None)
            if alike is not None:
                text = f"{value!r} does not occur in {public.where}, but {alike!r} does; write it as the file does"
                problems.add(DataError(f"{key}: {text}"))
        if found and len(absent) == len(names):
            problems.add(DataError(f"{key}: none of these values occurs in {public.where}, which has {shown}"))
        if absent:
            notes.append(f"{key}: {', '.join(map(repr, absent[:_MAX_NAMED]))} never occurs in the public file")
        if others:
            notes.append(
                f"column {name!r} of the public file holds {shown}, not listed under {key}: no feature says so"
            )
    problems.raise_all()
    return tuple(notes)


def _loosely(text: str) -> str:
    """What people would take for the same category."""
    text = "".join(text.casefold().split()).replace("_", "").replace("-", "")
    try:
        return repr(float(text))
    except ValueError:
        return text


def _unused_columns(public: Table, test: Table | None, format: Format) -> tuple[str, ...]:
    """Says which columns become no feature: those that the config ignores, and those that only the test file has."""
    notes = []
    if format.settings.ignore:
        shown = ", ".join(map(repr, format.settings.ignore))
        notes.append(
            f"not used: {shown} (data.ignore); text becomes features only by values that are listed (data.categories)"
        )
    if test is not None and format.settings.source != "npz":
        others = [
            repr(name) for name in test.columns if name not in {*public.columns, format.settings.label, format.id}
        ]
        notes += [f"not used: {', '.join(others)}, which only {test.where} has"] if others else []
    return tuple(notes)


def _drift_warnings(public: Table, test: Table | None, format: Format) -> tuple[str, ...]:
    """A line for each column in which the test file is unlike the public one, and what can be done."""
    found: list[str] = []
    with suppress(DataError):  # a column that is missing, or of another type, is refused elsewhere
        found = [] if test is None else [text for text in _unlike(public, test, format) if text]
    more = len(found) - _MAX_WARNINGS
    if more > 0:
        found[_MAX_WARNINGS:] = [f"{more} more columns of the test file are unlike public ones"]
    return tuple(found)


def _unlike(public: Table, test: Table, format: Format) -> Iterator[str]:
    if public.X is not None and test.X is not None:
        if public.X.ndim == test.X.ndim == 2 and public.X.shape[1:] == test.X.shape[1:]:
            for number, (own, other) in enumerate(zip(public.X.T, test.X.T, strict=True)):
                yield _numbers_unlike(f"feature {number}", own, other)
        return
    categories, dates = format.settings.categories, format.settings.dates
    of_public, of_test = measured_in(public, format), measured_in(test, format)
    for name in format.features:
        if name in categories:
            cells = ([canonical(text) for text in format.column(table, name).texts()] for table in (public, test))
            yield _categories_unlike(name, *cells)
            continue
        own, features = of_public(name)
        other, others = of_test(name)
        lines = [_missing_unlike(name, np.isnan(own), np.isnan(other))]
        for feature in features:
            where = f"column {name!r}" + ("" if feature == name else f" ({feature.removeprefix(f'{name}: ')})")
            date = name if name in dates and feature == name else None
            lines.append(_numbers_unlike(where, features[feature], others[feature], date))
        yield next(filter(None, lines), "")


def _least_distance(n_public: int, n_test: int, factor: float = 1.0) -> float:
    """The distance between two distributions beyond which they are unlike; nothing is said of few cells."""
    if min(n_public, n_test) < _FEWEST:
        return np.inf
    return max(_DISTANCE, _CHANCE * factor * np.sqrt(1 / n_public + 1 / n_test))


def _numbers_unlike(where: str, own: NDArray, other: NDArray, date: str | None = None) -> str:
    """The line about numbers, or about the absolute dates of the column `date`; "" where they are alike."""
    own, other = own[np.isfinite(own)], other[np.isfinite(other)]
    if min(len(own), len(other)) < _FEWEST:
        return ""
    show = day_of if date else "{:.4g}".format
    low, high = own.min(), own.max()
    beyond, expected = float(((other < low) | (other > high)).mean()), 2 / (len(own) + 1)
    if beyond > max(_SHARE, expected + 4 * np.sqrt(expected / len(other)) + 2 / len(other)):
        said = f"{where}: {100 * beyond:.0f} % of the test file lies beyond the public file's range, "
        said += f"{show(low)} to {show(high)}"
        if date:
            return (
                f"{said}; an absolute date means nothing in another year: write data.date_features: "
                f"{{{date}: [month, weekday]}} or 'days since' another date, or add the column to data.ignore"
            )
        return f"{said}, and counts as the end of it; {_MEND}"
    at = np.unique(np.concatenate([own, other]))
    below = [np.searchsorted(np.sort(values), at, side="right") / len(values) for values in (own, other)]
    if np.abs(below[0] - below[1]).max() > _least_distance(len(own), len(other)):
        medians = show(np.median(other)), show(np.median(own))
        return f"{where}: the test file is unlike the public one (median {medians[0]}, there {medians[1]}); {_MEND}"
    return ""


_MEND = "if its unit or meaning is another, mend it, or add the column to data.ignore"


def _categories_unlike(name: str, own: list[str], other: list[str]) -> str:
    known, found = Counter(own), Counter(other)
    unknown = Counter({value: times for value, times in found.items() if value not in known})
    share = unknown.total() / max(1, len(other))
    if share > _SHARE and min(len(own), len(other)) >= _FEWEST:
        shown = ", ".join(repr(value) for value, _ in unknown.most_common(5))
        return (
            f"column {name!r}: {100 * share:.0f} % of the test file holds what the public file never does ({shown}); "
            "write the same values in all files, or add the column to data.ignore"
        )
    least = _least_distance(len(own), len(other), np.sqrt(len(known)) / 2)
    if np.isfinite(least) and least < sum(abs(known[v] / len(own) - found[v] / len(other)) for v in known | found) / 2:
        most = [counts.most_common(1)[0][0] for counts in (found, known)]
        return (
            f"column {name!r}: the test file has other shares of values than the public one (most often {most[0]!r}, "
            f"there {most[1]!r}); if it means something else there, add the column to data.ignore"
        )
    return ""


def _missing_unlike(name: str, own: NDArray[np.bool_], other: NDArray[np.bool_]) -> str:
    shares = (float(other.mean()), float(own.mean())) if len(own) and len(other) else (0.0, 0.0)
    if abs(shares[0] - shares[1]) <= _least_distance(len(own), len(other)):
        return ""
    return (
        f"column {name!r}: {100 * shares[0]:.0f} % of the test file is missing, and {100 * shares[1]:.0f} % of the "
        "public one; write missing values alike, or add the column to data.ignore"
    )
