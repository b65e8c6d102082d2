"""Columns and arrays of a file → records. How is fixed by the config before the first private file is opened.

A record without a valid id, where the config names an id, is left out: it belongs to a person nobody knows, so no
part is the right one for it. That rule looks at the record alone; the file is not refused, and others do not move.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.components._registry import nearest
from pate.data._columns import (
    ABSOLUTE,
    Column,
    IdType,
    Treatment,
    array_features,
    canonical,
    features_of_date,
    is_number,
    names_of,
    one_hot,
)
from pate.data._csv_records import csv_tables
from pate.data._formats import (
    USUAL,
    Dialect,
    Problems,
    Table,
    Wanted,
    array_column,
    npz_batches,
    opened,
    parquet_tables,
)
from pate.data._settings import CsvData, NpzData, ParquetData
from pate.data.private import Records
from pate.data.public import PublicRange
from pate.errors import DataError

_MAX_FEATURES = 1_000_000
_MISSING = (
    "missing, not a finite number; say what becomes of missing values with data.missing_values.treatment: "
    "public_median, indicator or keep, or add the column to data.ignore"
)
_FILLED = ("public_median", "indicator")  # what becomes of gaps, where something stands for them


@dataclass(frozen=True)
class Format:
    """How a file is read: everything about it that is fixed before the first private one is opened."""

    settings: CsvData | NpzData | ParquetData
    shape: tuple[int, ...]
    features: tuple[str, ...] = ()
    id: str | None = None
    medians: Mapping[str, float] = field(default_factory=dict)
    """What stands for a missing number: the median of the public ones, for every feature of numbers or dates."""
    indicators: tuple[str, ...] = ()
    """Columns that have a 0/1 feature besides that says whether the number is missing: those with public gaps."""
    range: PublicRange | None = None
    """The range of public examples; every record is clipped to it."""
    keep_missing: bool = False
    """Private records that are unusable are kept, to cast no vote; else they are refused: features that are no numbers,
    a label that is no class (kept as −1). And whether there is any record to use is no reason to stop."""

    @property
    def dialect(self) -> Dialect:
        """How csv files are written."""
        return self.settings.dialect

    @property
    def treatment(self) -> Treatment:
        """What becomes of missing numbers and dates."""
        return self.settings.missing_values.treatment

    @property
    def markers(self) -> tuple[str, ...]:
        """Texts that mean "missing" in every column of features, and in one of ids unless they are numbers."""
        return tuple(str(marker) for marker in self.settings.missing_values.markers)

    @classmethod
    def of_columns(cls, settings: CsvData | ParquetData, columns: Iterable[str], where: str) -> Format:
        """For files with the features among `columns`."""
        special = {settings.label, settings.id, *settings.ignore}
        features = tuple(column for column in columns if column not in special)
        if not features:
            raise DataError(f"{where}: no feature columns are left")
        Problems(
            DataError(f"data.{key}.{name}: {where} has no such column; {nearest(name, features)}")
            for key in ("categories", "dates")
            for name in getattr(settings, key)
            if name not in features
        ).raise_all()
        found = cls(settings, (), features, settings.id)
        names = [feature for name in found.measured for feature in found.names_of(name)]
        counts = Counter(names)
        twice = next((name for name in features if counts[name] > 1), None)
        if twice is not None:
            raise DataError(f"{where}: column {twice!r} is called as what data.date_features makes; rename it")
        return replace(found, shape=(len(found.feature_names or ()),))

    def fitted(self, public: Table) -> Format:
        """The format with what fills gaps, which the public table alone decides."""
        if self.treatment not in _FILLED:
            return self
        medians, gaps, problems, measured = dict[str, float](), list[str](), Problems(), measured_in(public, self)
        for name in self.measured:
            with problems.gathered():
                own, found = measured(name)
                if not np.isfinite(own).any() and np.isinf(own).any():
                    row, form = int(np.argmax(np.isinf(own))), self.settings.dates.get(name)
                    raise self.column(public, name).no_number(row, form)
                gaps += [name] if np.isnan(own).any() else []
                for feature, numbers in found.items():
                    there = numbers[np.isfinite(numbers)]
                    if not len(there):
                        text = f"{public.where}: column {feature!r} holds no number, so there is no median of it"
                        raise DataError(f"{text}; add it to data.ignore")
                    medians[feature] = float(np.median(there))
        problems.raise_all()
        indicators = tuple(gaps) if self.treatment == "indicator" else ()
        shape = (self.shape[0] + len(indicators),)
        return replace(self, medians=medians, indicators=indicators, shape=shape)

    def column(self, table: Table, name: str) -> Column:
        """A column of features, empty where a marker says that nothing is there."""
        if name not in table.columns:
            text = f"no column {name!r}, which the public file has; add it here or to data.ignore"
            raise DataError(f"{table.where}: {text}")
        return table.columns[name].with_markers_as_missing(self.markers)

    def with_range(self, X_public: NDArray) -> Format:
        """The format with the range of public examples, to which all others are clipped."""
        flags = [name in self.settings.categories for name in self.features for _ in self.names_of(name)]
        return replace(self, range=PublicRange.of(X_public, [*flags, *(True for _ in self.indicators)]))

    @property
    def measured(self) -> tuple[str, ...]:
        """The columns of numbers and dates."""
        return tuple(name for name in self.features if name not in self.settings.categories)

    @classmethod
    def of_arrays(cls, settings: NpzData, public: Table, with_ids: bool) -> Format:
        """For archives with examples like the public ones."""
        shape = array_features(_array(public), f"{public.where}: array X").shape[1:]
        return cls(settings, shape, id="id" if with_ids else None)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """A name for each feature, where there are any."""
        names = [name for column in self.features for name in self.names_of(column)]
        return (*names, *(f"{column} missing" for column in self.indicators)) or None

    def names_of(self, column: str) -> list[str]:
        """The names of the features that a column becomes, but for the mark of its gaps."""
        if column in self.settings.categories:
            return [f"{column}={value}" for value in self.settings.categories[column]]
        return names_of(column, self.settings.date_features.get(column, (ABSOLUTE,)))

    def on_card(self) -> dict[str, Any] | None:
        """How files become features, for a student's card; None where they hold arrays of numbers.

        Neither the column of ids nor columns that are ignored are named.
        """
        if self.settings.source == "npz":
            return None
        return {
            "label": self.settings.label,
            "features": list(self.features),
            "categories": {name: [str(value) for value in values] for name, values in self.settings.categories.items()},
            "dates": self.settings.dates,
            "date_features": {name: list(features) for name, features in self.settings.date_features.items()},
            "missing_values": {"markers": list(self.markers), "treatment": self.treatment},
            "medians": dict(self.medians),
            "indicators": list(self.indicators),
            "csv": asdict(self.dialect),
        }

    @classmethod
    def of_card(cls, card: Mapping[str, Any]) -> Format:
        """What `on_card` wrote, held to the rules of a config; ValueError if it is anything else, or has no columns.

        A card may come from anybody.
        """
        columns, shape = card.get("columns"), tuple(card.get("shape") or ())
        if not isinstance(columns, dict):
            raise ValueError("does not say how columns become features: give its examples as an array, .npz or .npy")
        shared = ("label", "categories", "dates", "date_features", "missing_values")
        try:
            features, indicators = (_listed(columns.get(key)) for key in ("features", "indicators"))
            medians = {name: float(value) for name, value in columns["medians"].items()}
            if not all(type(value) in (int, float) and isfinite(value) for value in columns["medians"].values()):
                raise ValueError("medians are numbers")
            dialect = {key: columns["csv"][key] for key in ("delimiter", "decimal", "encoding")}
            files = {"source": "csv", "private": "private.csv", "public": "public.csv", "classes": card["classes"]}
            settings = CsvData.model_validate({**files, **dialect, **{key: columns[key] for key in shared}})
            found = cls.of_columns(settings, features, "its files")
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, DataError):
            raise ValueError("says nothing that can be used about its columns") from None
        found = replace(found, medians=medians, indicators=indicators, shape=shape)
        known = {feature for name in found.measured for feature in found.names_of(name)}
        if not set(medians) <= known or not set(indicators) <= set(features):
            raise ValueError("speaks of columns that are not among its features")
        if shape != (len(found.feature_names or ()),):
            raise ValueError(
                f"has columns for {len(found.feature_names or ())} features, and a student of shape {shape}"
            )
        return found


def _listed(values: Any) -> tuple[str, ...]:
    """Names on a card, none of them twice; ValueError if it is anything else."""
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise ValueError("no list of names")
    if len(values) > _MAX_FEATURES or len(set(values)) < len(values):
        raise ValueError("too many names, or one that repeats")
    return tuple(values)


def no_valid_id(id_type: IdType) -> DataError:
    """The error for data in which no record has a valid id."""
    return DataError(f"no private record has a valid id: data.id_type = {id_type!r}, or the column of ids, is wrong")


def read_table(path: str, source: str, wanted: Wanted, dialect: Dialect = USUAL) -> Table:
    """The table in a file."""
    (whole,) = tables_in(path, source, wanted, dialect)
    return whole


def tables_in(
    path: str, source: str, wanted: Wanted, dialect: Dialect = USUAL, at_once: int | None = None
) -> Iterator[Table]:
    """Tables of `at_once` rows each, so that memory does not grow with the file; at least one table."""
    with opened(path) as file:
        if source == "npz":
            first_row = 0
            for arrays in npz_batches(file, path, ("X", "y", "id"), at_once):
                yield npz_table(arrays, path, first_row=first_row)
                first_row += at_once or 0
        elif source == "parquet":
            yield from parquet_tables(file, path, wanted, at_once)
        else:
            yield from csv_tables(file, path, wanted, dialect, at_once)


def npz_table(arrays: Mapping[str, NDArray], where: str, suffix: str = "", first_row: int = 0) -> Table:
    """What an archive holds under the keys X, y and id, each with the suffix; of batches, the rows from `first_row`."""
    names = {key: f"{key}{suffix}" for key in ("y", "id")}
    found = {key: (name, arrays[name]) for key, name in names.items() if name in arrays}
    columns = {key: array_column(values, f"{where}: array {name}", first_row) for key, (name, values) in found.items()}
    return Table(where, columns, arrays.get(f"X{suffix}"), first_row=first_row)


def features_of(table: Table, format: Format, keep_missing: bool = False) -> NDArray[np.float32]:
    """The features of every record; a cell that cannot be used is refused by column and row, or kept as no number."""
    if format.settings.source == "npz":
        X = _array(table)
        if X.shape[1:] != format.shape:
            raise DataError(
                f"{table.where}: examples of shape {X.shape[1:]}, those of the public file have {format.shape}"
            )
        features = array_features(X, f"{table.where}: array X", keep_missing, table.first_row)
    else:
        features = _column_features(table, format, keep_missing)
    return features if format.range is None else format.range.clip(features)


def _column_features(table: Table, format: Format, keep_missing: bool) -> NDArray[np.float32]:
    categories, medians, dates = format.settings.categories, format.medians, format.settings.dates
    blocks, gaps, problems, measured = list[NDArray](), list[NDArray](), Problems(), measured_in(table, format)
    for name in format.features:
        with problems.gathered():
            column, known = format.column(table, name), categories.get(name)
            if known is not None:
                blocks.append(one_hot(column.texts(), known))
                continue
            own, found = measured(name)
            missing, wrong = np.isnan(own), np.isinf(own)
            filled = format.treatment in _FILLED and all(feature in medians for feature in found)
            if not filled and format.treatment != "keep" and not keep_missing and missing.any():
                problems.add(column.error(int(np.argmax(missing)), _MISSING))
            if wrong.any() and not keep_missing:
                raise column.no_number(int(np.argmax(wrong)), dates.get(name))
            for feature, numbers in found.items():
                if feature in medians:
                    numbers[np.isnan(numbers)] = medians[feature]
                blocks.append(numbers[:, None])
            gaps += [missing[:, None].astype(np.float32)] if name in format.indicators else []
    problems.raise_all()
    return np.concatenate([*blocks, *gaps], axis=1)


def measured_in(table: Table, format: Format) -> Callable[[str], tuple[NDArray, dict[str, NDArray[np.float32]]]]:
    """Gives, for a column of numbers or dates, its own values and those of its features, by name.

    Each is NaN where something is missing, and infinity where a cell is neither that nor a number (or date). Dates are
    years since 2000, and a column of them is read once.
    """
    dates = format.settings.dates
    years = cache(lambda name: format.column(table, name).years(dates[name]))

    def measured(name: str) -> tuple[NDArray, dict[str, NDArray[np.float32]]]:
        if name in dates:
            return years(name), features_of_date(name, format.settings.date_features.get(name, (ABSOLUTE,)), years)
        numbers = format.column(table, name).numbers(lenient=True)
        return numbers, {name: numbers.copy()}

    return measured


def records_of(table: Table, format: Format) -> Records:
    """The records of a private file, those without a valid id left out; its columns are those of the public file."""
    problems = Problems()
    if format.settings.source != "npz":
        with problems.gathered():
            _check_columns(table, format)
    elif format.id is None and "id" in table.columns:
        raise DataError(f"{table.where}: holds ids; say `ids: true` under data to protect persons, or leave them out")
    with problems.gathered():
        X = features_of(table, format, format.keep_missing)
    with problems.gathered():
        y = _needed(table, format.settings.label).labels(format.settings.classes, format.keep_missing)
    with problems.gathered():
        words = [marker for marker in format.markers if not is_number(marker)]  # a number may be somebody's id
        ids = []
        if format.id is not None:
            ids = _needed(table, format.id).with_markers_as_missing(words).ids(format.settings.id_type)
    problems.raise_all()
    if len(X) != len(y):
        raise DataError(f"{table.where}: not as many labels as records")
    unlisted = {}
    for name, listed in format.settings.categories.items():
        known = {"", *(canonical(str(value)) for value in listed)}
        if count := sum(canonical(text) not in known for text in format.column(table, name).texts()):
            unlisted[f"{table.where}: column {name!r}"] = count
    if format.id is None:
        return Records(X, y, None, 0, unlisted)
    if len(X) != len(ids):
        raise DataError(f"{table.where}: not as many ids as records")
    kept = [i for i in ids if i is not None]
    if len(kept) < len(ids):
        valid = np.array([i is not None for i in ids])
        X, y = X[valid], y[valid]
    return Records(X, y, kept, len(ids) - len(kept), unlisted)


def _check_columns(table: Table, format: Format) -> None:
    """Refuse a column that the public file has not: it would be left out unnoticed."""
    known = {*format.features, *format.settings.ignore, format.settings.label, format.id}
    extra = [name for name in table.columns if name not in known]
    Problems(
        DataError(f"{table.where}: column {name!r} is not in the public file; add it there or to data.ignore")
        for name in extra
    ).raise_all()


def _needed(table: Table, name: str) -> Column:
    if name not in table.columns:
        raise DataError(f"{table.where}: no array {name}; the keys are listed in docs/data.md")
    return table.columns[name]


def _array(table: Table) -> NDArray:
    if table.X is None:
        raise DataError(f"{table.where}: no array X; the keys are listed in docs/data.md")
    if table.X.ndim == 0:
        raise DataError(f"{table.where}: array X is a single number; the first axis is examples, the others features")
    return table.X
