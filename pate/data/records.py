"""Columns and arrays of a file → records. How is fixed by the config before the first private file is opened.

A record without a valid id, where the config names an id, is left out: it belongs to a person nobody knows, so no
part is the right one for it. That rule looks at the record alone; the file is not refused, and others do not move.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.data.arrays import npz_arrays
from pate.data.columns import Column, IdType, array_features, one_hot
from pate.data.dataset import Records
from pate.data.formats import Columns, array_column, content_of, csv_columns, parquet_columns
from pate.errors import DataError

if TYPE_CHECKING:
    from pate.data.settings import CsvData, NpzData, ParquetData

Categories = tuple[tuple[str, tuple[str | int, ...]], ...]


@dataclass(frozen=True)
class Table:
    """A file, or its private, public or test part. In npz files all features are one array `X`, else columns."""

    where: str
    columns: Columns
    X: NDArray | None = None

    def __len__(self) -> int:
        if self.X is not None:
            return len(self.X)
        return next((len(column.values) for column in self.columns.values()), 0)


@dataclass(frozen=True)
class Format:
    """How a file is read: everything about it that is fixed before the first private one is opened."""

    source: str
    classes: tuple[str | int, ...]
    shape: tuple[int, ...]
    label: str = "y"
    id: str | None = None
    id_type: IdType = "text"
    features: tuple[str, ...] = ()
    categories: Categories = ()
    ignore: tuple[str, ...] = ()
    keep_missing: bool = False
    """Private records that are unusable are kept, to cast no vote; else they are refused: features that are no numbers,
    a label that is no class (kept as −1). And whether there is any record to use is no reason to stop."""

    @classmethod
    def of_columns(cls, settings: CsvData | ParquetData, columns: Iterable[str], where: str) -> Format:
        """For files with the features among `columns`."""
        special = {settings.label, settings.id, getattr(settings, "split", None), *settings.ignore}
        features = tuple(column for column in columns if column not in special)
        if not features:
            raise DataError(f"{where}: no feature columns are left")
        categories = tuple((name, settings.categories[name]) for name in features if name in settings.categories)
        width = len(features) - len(categories) + sum(len(values) for _, values in categories)
        return cls(
            source=settings.source,
            classes=settings.classes,
            shape=(width,),
            label=settings.label,
            id=settings.id,
            id_type=settings.id_type,
            features=features,
            categories=categories,
            ignore=tuple(settings.ignore),
        )

    @classmethod
    def of_arrays(cls, settings: NpzData, public: Table, with_ids: bool) -> Format:
        """For archives with examples like the public ones."""
        shape = array_features(_array(public), f"{public.where}: array X").shape[1:]
        return cls("npz", settings.classes, shape, id="id" if with_ids else None, id_type=settings.id_type)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """A name for each feature, where there are any."""
        categories = dict(self.categories)
        groups = ([f"{c}={v}" for v in categories[c]] if c in categories else [c] for c in self.features)
        return tuple(name for group in groups for name in group) or None


def joined(several: Sequence[Records], format: Format) -> Records:
    """The records of several files, in the order given."""
    return Records(
        np.concatenate([np.empty((0, *format.shape), np.float32), *(records.X for records in several)]),
        np.concatenate([np.empty(0, np.int64), *(records.y for records in several)]),
        None if format.id is None else [i for records in several for i in records.ids or ()],
        sum(records.left_out for records in several),
    )


def with_valid_ids(records: Records, format: Format) -> Records:
    """The records, unchanged; DataError if none of them has a valid id, which means that the config is wrong.

    Not where nothing that a private record holds may stop a run.
    """
    if records.left_out and not len(records) and not format.keep_missing:
        raise no_valid_id(format.id_type)
    return records


def no_valid_id(id_type: IdType) -> DataError:
    """The error for data in which no record has a valid id."""
    return DataError(f"no private record has a valid id: data.id_type = {id_type!r}, or the column of ids, is wrong")


def read_table(
    path: str, source: str, needed: Mapping[str, str | None], ignored: Sequence[str] = (), keep_bad: bool = False
) -> Table:
    """The table in a file; `needed` maps keys of the config to the columns that they name.

    With `keep_bad`, a line that is not csv is a record of empty cells; else the file is refused.
    """
    content = content_of(path)
    if source == "npz":
        return npz_table(npz_arrays(content, path, ("X", "y", "id")), path)
    if source == "parquet":
        return Table(path, parquet_columns(content, path, needed, ignored))
    return Table(path, csv_columns(content, path, needed, ignored, keep_bad))


def npz_table(arrays: Mapping[str, NDArray], where: str, suffix: str = "") -> Table:
    """What an archive holds under the keys X, y and id, each with the suffix."""
    names = {key: f"{key}{suffix}" for key in ("y", "id")}
    columns = {
        key: array_column(arrays[name], f"{where}: array {name}") for key, name in names.items() if name in arrays
    }
    return Table(where, columns, arrays.get(f"X{suffix}"))


def features_of(table: Table, format: Format, keep_missing: bool = False) -> NDArray[np.float32]:
    """The features of every record; a cell that cannot be used is refused by column and row, or kept as no number."""
    if format.source == "npz":
        X = _array(table)
        if X.shape[1:] != format.shape:
            raise DataError(
                f"{table.where}: examples of shape {X.shape[1:]}, those of the public file have {format.shape}"
            )
        return array_features(X, f"{table.where}: array X", keep_missing)
    categories, blocks = dict(format.categories), []
    for name in format.features:
        if name not in table.columns:
            raise DataError(f"{table.where}: column {name!r} is missing, which other files have")
        column = table.columns[name]
        known = categories.get(name)
        blocks.append(column.numbers(keep_missing)[:, None] if known is None else one_hot(column.texts(), known))
    return np.concatenate(blocks, axis=1)


def labels_of(table: Table, format: Format) -> NDArray[np.int64] | None:
    """The labels in a file, None if it has none."""
    return table.columns[format.label].labels(format.classes) if format.label in table.columns else None


def records_of(table: Table, format: Format) -> Records:
    """The records of a private file, those without a valid id left out."""
    X = features_of(table, format, format.keep_missing)
    y = _needed(table, format.label).labels(format.classes, format.keep_missing)
    if len(X) != len(y):
        raise DataError(f"{table.where}: not as many labels as records")
    if format.id is None:
        return Records(X, y, None, 0)
    ids = _needed(table, format.id).ids(format.id_type)
    if len(X) != len(ids):
        raise DataError(f"{table.where}: not as many ids as records")
    kept = [i for i in ids if i is not None]
    if len(kept) < len(ids):
        valid = np.array([i is not None for i in ids])
        X, y = X[valid], y[valid]
    return Records(X, y, kept, len(ids) - len(kept))


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
