"""Private records in several files (csv, npz or parquet shards), read by the driver or by the cluster itself.

A record's part is a keyed hash of its own identity, so who reads it, and with which others, changes nothing: parts,
teachers and votes are the same. Columns and classes come from the config and the public file, never from a shard.
"""

from __future__ import annotations

import glob
import io
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.data.dataset import Dataset, class_positions
from pate.data.partition import contents, identities, keyed_digest, ranks, split_into_parts, subsample_parts
from pate.data.tables import csv_rows, npz_arrays, numbers
from pate.errors import DataError
from pate.storage import is_url

if TYPE_CHECKING:
    from pate.data.settings import CsvData, NpzData, ParquetData

Columns = dict[str, NDArray]
_DIGEST_BITS = 128


@dataclass(frozen=True)
class Format:
    """How a shard is read: everything about it that is fixed before the first one is opened."""

    source: str
    classes: tuple[str | int, ...]
    shape: tuple[int, ...]
    label: str = "y"
    id: str | None = None
    features: tuple[str, ...] = ()
    categories: tuple[tuple[str, tuple[str | int, ...]], ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class Shards:
    """Private records that nobody has read yet."""

    paths: tuple[str, ...]
    format: Format


@dataclass(frozen=True)
class Split:
    """How records go to parts; with a rate, MSamp's subsamples."""

    n_parts: int
    rate: float | None = None
    kappa: int = 1


@dataclass(frozen=True)
class Summary:
    """What a reader found; private, as the records are. The digest does not depend on order or shards."""

    records: int
    digest: int


class Block:
    """The records of one part that one reader has, in the order of their ranks."""

    def __init__(self, X: NDArray, y: NDArray[np.int64], ranks: list[bytes]) -> None:
        self.X, self.y, self.ranks = X, y, ranks

    @staticmethod
    def merged(blocks: Sequence[Block]) -> tuple[NDArray, NDArray[np.int64]]:
        """The whole part, in the order it would have if one reader had read everything."""
        order_of = [rank for block in blocks for rank in block.ranks]
        order = sorted(range(len(order_of)), key=order_of.__getitem__)
        X, y = np.concatenate([block.X for block in blocks]), np.concatenate([block.y for block in blocks])
        return X[order], y[order]


class ShardReader:
    """Reads some shards once and hands out their records by part. A plain class; `pate.readers` makes it an actor."""

    def __init__(self, paths: Sequence[str], format: Format, key: bytes, split: Split) -> None:
        self._paths, self._format, self._key, self._split = paths, format, key, split
        self._rows: list[NDArray[np.int64]] | None = None

    def load(self) -> Summary | str:
        """Read everything; what is wrong with a shard comes back as text, so that no log quotes it."""
        try:
            self._X, self._y, ids = read_all(self._paths, self._format)
        except DataError as error:
            return str(error)
        records, split = (self._X, self._y, ids, self._key, self._split.n_parts), self._split
        if split.rate is None:
            self._rows = split_into_parts(*records)
        else:
            self._rows = subsample_parts(*records, split.rate, split.kappa)
        names = identities(self._X, self._y, ids)
        whole = names if ids is None else [a + b for a, b in zip(names, contents(self._X, self._y), strict=True)]
        digests = (keyed_digest(self._key, b"data", record) for record in whole)
        return Summary(len(names), sum(int.from_bytes(d, "little") for d in digests) % 2**_DIGEST_BITS)

    def part(self, number: int) -> Block:
        """This reader's records of a part."""
        if self._rows is None and isinstance(self.load(), str):  # started again elsewhere
            raise DataError(f"private shards cannot be read again on {socket.gethostname()}")
        assert self._rows is not None
        rows = self._rows[number]
        X, y = self._X[rows], self._y[rows]
        return Block(X, y, ranks(X, y, self._key))


def digest_of(summaries: Sequence[Summary]) -> str:
    """Equal for the same records, however they are spread over shards and readers."""
    return f"{sum(summary.digest for summary in summaries) % 2**_DIGEST_BITS:032x}"


def load_sharded(settings: CsvData | NpzData | ParquetData, folder: Path, by_workers: bool) -> Dataset:
    """The data set; private records are left to the workers if the config says so and the caller can."""
    assert settings.private is not None  # checked by the config
    assert settings.public is not None
    paths = _expanded(settings.private, folder)
    public = _read(_place(settings.public, folder), settings.source)
    test = None if settings.test is None else _read(_place(settings.test, folder), settings.source)
    format = _format(settings, public)
    X_test = None if test is None else _features(test, format, settings.test or "")
    y_test = None
    if test is not None and format.label in test:
        y_test = class_positions(test[format.label], settings.classes, f"{settings.test}: labels")
    left = by_workers and settings.read_by == "workers"
    X, y, ids = read_all([] if left else paths, format)
    return Dataset(
        X_private=X,
        y_private=y,
        X_public=_features(public, format, settings.public),
        classes=tuple(str(name) for name in settings.classes),
        ids_private=ids,
        X_test=X_test,
        y_test=y_test,
        features=_feature_names(format) if format.features else None,
        shards=Shards(tuple(paths), format) if left else None,
    )


def read_all(paths: Sequence[str], format: Format) -> tuple[NDArray, NDArray[np.int64], list[str] | None]:
    """Features, labels and ids of some shards, in the order given. Every mistake names its shard."""
    X, y, ids = [np.empty((0, *format.shape), np.float32)], [np.empty(0, np.int64)], []
    for path in paths:
        columns = _read(path, format.source)
        if format.label not in columns:
            raise DataError(f"{path}: no column {format.label!r}, the label; there are {', '.join(columns)}")
        if format.id is not None and format.id not in columns:
            raise DataError(f"{path}: no column {format.id!r}, the id; there are {', '.join(columns)}")
        if format.source == "npz" and format.id is None and "id" in columns:
            raise DataError(f"{path}: holds ids; say `ids: true` under data to protect persons, or leave them out")
        X.append(_features(columns, format, path))
        y.append(class_positions(columns[format.label], format.classes, f"{path}: labels"))
        if len(X[-1]) != len(y[-1]):
            raise DataError(f"{path}: {len(X[-1])} records but {len(y[-1])} labels")
        if format.id is not None:
            ids += [str(i).strip() for i in columns[format.id]]
    return np.concatenate(X), np.concatenate(y), ids if format.id is not None else None


def _format(settings: CsvData | NpzData | ParquetData, public: Columns) -> Format:
    if settings.source == "npz":
        if "X" not in public:
            raise DataError(f"{settings.public}: no array X; the keys are listed in docs/data.md")
        return Format("npz", settings.classes, public["X"].shape[1:], id="id" if settings.ids else None)
    special = {settings.label, settings.id, *settings.ignore}
    features = tuple(column for column in public if column not in special)
    if not features:
        raise DataError(f"{settings.public}: no feature columns are left")
    categories = tuple((column, settings.categories[column]) for column in features if column in settings.categories)
    width = len(features) - len(categories) + sum(len(values) for _, values in categories)
    return Format(
        settings.source,
        settings.classes,
        (width,),
        settings.label,
        settings.id,
        features,
        categories,
        tuple(settings.ignore),
    )


def _features(columns: Columns, format: Format, where: str) -> NDArray[np.float32]:
    if format.source == "npz":
        if "X" not in columns or columns["X"].dtype.kind not in "fiub":
            raise DataError(f"{where}: no array X of numbers")
        X = columns["X"].astype(np.float32)
        if X.shape[1:] != format.shape:
            raise DataError(f"{where}: examples of shape {X.shape[1:]}, those of the public file have {format.shape}")
        return _finite(X, where)
    categories = dict(format.categories)
    extra = [c for c in columns if c not in (*format.features, *format.ignore, format.label, format.id)]
    if extra:
        raise DataError(f"{where}: column {extra[0]!r} is not in the public file; add it there or to data.ignore")
    blocks = []
    for column in format.features:
        if column not in columns:
            raise DataError(f"{where}: column {column!r} of the public file is missing")
        values = columns[column]
        if column in categories:
            known = np.array([str(value) for value in categories[column]])
            blocks.append((values.astype(str)[:, None] == known[None, :]).astype(np.float32))
        elif values.dtype.kind in "fiub":
            blocks.append(values.astype(np.float32)[:, None])
        else:
            blocks.append(numbers(values.astype(str).tolist(), column, where)[:, None])
    return _finite(np.concatenate(blocks, axis=1), where)


def _feature_names(format: Format) -> tuple[str, ...]:
    categories = dict(format.categories)
    groups = ([f"{c}={v}" for v in categories[c]] if c in categories else [c] for c in format.features)
    return tuple(name for group in groups for name in group)


def _finite(X: NDArray[np.float32], where: str) -> NDArray[np.float32]:
    if not np.isfinite(X).all():
        row = int(np.argwhere(~np.isfinite(X))[0][0])
        raise DataError(f"{where}: NaN or infinity in row {row} (counted from 0); fill missing values before the run")
    return X


def _read(path: str, source: str) -> Columns:
    """A file's columns or arrays, by name."""
    content = _bytes(path)
    if source == "npz":
        return npz_arrays(io.BytesIO(content), path)
    if source == "parquet":
        return _parquet(content, path)
    rows = csv_rows(io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline=""), path)
    if not rows:
        raise DataError(f"{path}: no rows")
    return {column: np.array([row[column].strip() for row in rows]) for column in rows[0]}


def _parquet(content: bytes, path: str) -> Columns:
    try:
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{path}: parquet needs the package pyarrow: pip install 'pate[parquet]'") from None
    try:
        table = pyarrow.parquet.read_table(io.BytesIO(content))
        columns = {name: table[name].to_numpy() for name in table.column_names}
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        raise DataError(f"{path}: not a readable parquet file ({str(error).splitlines()[0]})") from None
    for name, values in columns.items():
        if values.dtype == object and any(value is None for value in values):
            raise DataError(f"{path}: column {name!r} has missing values; fill them before the run")
    return columns


def _bytes(path: str) -> bytes:
    try:
        if not is_url(path):
            return Path(path).read_bytes()
        import fsspec

        with fsspec.open(path, "rb") as file:
            content: bytes = file.read()
            return content
    except FileNotFoundError:
        raise DataError(f"{path}: no such file on {socket.gethostname()}, which has to read it") from None
    except (OSError, ImportError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DataError(f"{path}: cannot be read on {socket.gethostname()} ({reason.splitlines()[0]})") from None


def _expanded(private: str | tuple[str, ...], folder: Path) -> list[str]:
    """The shards by name. A pattern is matched on this machine; names that are listed need not be here."""
    paths: list[str] = []
    for entry in (private,) if isinstance(private, str) else private:
        place = _place(entry, folder)
        if not glob.has_magic(entry):
            paths.append(place)
            continue
        found = _matching(place)
        if not found:
            raise DataError(f"{entry}: no file here matches; list the shards by name if only other machines see them")
        paths += found
    repeated = sorted({path for path in paths if paths.count(path) > 1})
    if repeated:
        raise DataError(f"{repeated[0]}: listed twice; its records would count double")
    return paths


def _matching(pattern: str) -> list[str]:
    if not is_url(pattern):
        return sorted(glob.glob(pattern))
    import fsspec

    try:
        fs, path = fsspec.url_to_fs(pattern)
        return sorted(fs.unstrip_protocol(name) for name in fs.glob(path))
    except Exception as error:
        raise DataError(f"{pattern}: cannot be listed ({str(error) or type(error).__name__})") from None


def _place(entry: str, folder: Path) -> str:
    return entry if is_url(entry) else str((folder / entry).absolute())
