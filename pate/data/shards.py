"""Private records in several files (csv, npz or parquet shards), read by the driver or by the cluster itself.

A record's part is a keyed hash of its own identity, so who reads it, and with which others, changes nothing: parts,
teachers and votes are the same. Columns and classes come from the config and the public file, never from a shard.
"""

from __future__ import annotations

import glob
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.data.by_card import columns_for_card
from pate.data.dataset import Dataset, Records, Shards
from pate.data.formats import USUAL, Wanted
from pate.data.partition import contents, identities, keyed_digest, parts_of, ranks
from pate.data.problems import Problems
from pate.data.records import (
    Format,
    Table,
    category_remarks,
    dialect_of,
    features_of,
    joined,
    labels_of,
    read_table,
    records_of,
    with_valid_ids,
)
from pate.errors import DataError
from pate.mechanisms.base import Split
from pate.storage import is_url

if TYPE_CHECKING:
    from pate.data.settings import CsvData, NpzData, ParquetData

_DIGEST_BITS = 128


@dataclass(frozen=True)
class Summary:
    """What a reader found: private, as the records are. The digest is the same for any order and split into shards."""

    records: int
    digest: int
    left_out: int = 0


class Block:
    """The records of one part that one reader has, with the rank of each and, where there are any, its id."""

    def __init__(self, X: NDArray, y: NDArray[np.int64], ranks: list[bytes], ids: list[str] | None = None) -> None:
        self.X, self.y, self.ranks, self.ids = X, y, ranks, ids

    @staticmethod
    def merged(blocks: Sequence[Block]) -> tuple[NDArray, NDArray[np.int64]]:
        """The whole part, in the order it would have if one reader had read everything."""
        order_of = [rank for block in blocks for rank in block.ranks]
        order = sorted(range(len(order_of)), key=order_of.__getitem__)
        X, y = np.concatenate([block.X for block in blocks]), np.concatenate([block.y for block in blocks])
        return X[order], y[order]


class ShardReader:
    """Reads some shards once and hands out their records by part. `pate.ensemble.readers` makes actors of it."""

    def __init__(self, paths: Sequence[str], format: Format, key: bytes, split: Split) -> None:
        self._paths, self._format, self._key, self._split = paths, format, key, split
        self._rows: list[NDArray[np.int64]] | None = None

    def load(self) -> Summary | str:
        """Read everything; what is wrong with a shard comes back as text, so that no log quotes it."""
        try:
            found = read_all(self._paths, self._format)
        except DataError as error:
            return str(error)
        self._X, self._y, ids = found.X, found.y, found.ids
        self._ids = ids
        self._rows = parts_of(self._X, self._y, ids, self._key, self._split)
        names = identities(self._X, self._y, ids)
        whole = names if ids is None else [a + b for a, b in zip(names, contents(self._X, self._y), strict=True)]
        digests = (keyed_digest(self._key, b"data", record) for record in whole)
        digest = sum(int.from_bytes(d, "little") for d in digests) % 2**_DIGEST_BITS
        return Summary(len(names), digest, found.left_out)

    def part(self, number: int) -> Block:
        """This reader's records of a part."""
        rows = self._loaded()[number]
        X, y = self._X[rows], self._y[rows]
        ids = None if self._ids is None else [self._ids[row] for row in rows]
        return Block(X, y, ranks(X, y, self._key), ids)

    def stretch(self, begin: int, size: int) -> tuple[NDArray, NDArray[np.int64]]:
        """This reader's records from the one numbered `begin` on, `size` of them or what is left."""
        self._loaded()
        return self._X[begin : begin + size], self._y[begin : begin + size]

    def _loaded(self) -> list[NDArray[np.int64]]:
        if self._rows is None and isinstance(self.load(), str):  # started again elsewhere
            raise DataError(f"private shards cannot be read again on {socket.gethostname()}")
        assert self._rows is not None
        return self._rows


def digest_of(summaries: Sequence[Summary]) -> str:
    """Equal for the same records, however they are spread over shards and readers."""
    return f"{sum(summary.digest for summary in summaries) % 2**_DIGEST_BITS:032x}"


def load_sharded(
    settings: CsvData | NpzData | ParquetData, folder: Path, by_workers: bool, keep_missing: bool = False
) -> Dataset:
    """The data set; private records are left to the workers if the config says so and the caller can."""
    assert settings.private is not None  # checked by the config
    assert settings.public is not None
    paths = _expanded(settings.private, folder)
    wanted = Wanted({}, () if settings.source == "npz" else settings.ignore)
    dialect = USUAL if settings.source == "npz" else dialect_of(settings)
    public = read_table(_place(settings.public, folder), settings.source, wanted, dialect)
    format = (
        Format.of_arrays(settings, public, settings.ids)
        if settings.source == "npz"
        else Format.of_columns(settings, public.columns, public.where).fitted(public)
    )
    format = replace(format, keep_missing=keep_missing)
    left, test, problems = by_workers and settings.read_by == "workers", None, Problems()
    with problems.gathered():
        X_public = features_of(public, format)
        remarks = category_remarks(public, format)
    with problems.gathered():
        if settings.test is not None:
            test = read_table(_place(settings.test, folder), settings.source, wanted, dialect)
            X_test = features_of(_with_known_columns(test, format), format)
    with problems.gathered():
        y_test = None if test is None else labels_of(test, format)
    with problems.gathered():
        private = Shards(tuple(paths), format) if left else with_valid_ids(read_all(paths, format), format)
    problems.tell()
    return Dataset(
        private=private,
        X_public=X_public,
        classes=tuple(str(name) for name in settings.classes),
        X_test=None if test is None else X_test,
        y_test=y_test,
        features=format.feature_names,
        gaps=format.missing == "keep",
        columns=columns_for_card(format),
        remarks=remarks,
    )


def read_all(paths: Sequence[str], format: Format) -> Records:
    """The records of some shards, in the order given. Every mistake names its shard."""
    needed = {} if format.source == "npz" else {"label": format.label, "id": format.id}
    found, problems = [], Problems()
    wanted = Wanted(needed, format.ignore, format.features, format.keep_missing)
    for path in paths:
        with problems.gathered():
            table = read_table(path, format.source, wanted, format.dialect)
            if format.source == "npz" and format.id is None and "id" in table.columns:
                raise DataError(f"{path}: holds ids; say `ids: true` under data to protect persons, or leave them out")
            found.append(records_of(_with_known_columns(table, format), format))
    problems.tell()
    return joined(found, format)


def _with_known_columns(table: Table, format: Format) -> Table:
    """The table, refused if it has columns that the public file has not: they would be left out unnoticed."""
    known = {*format.features, *format.ignore, format.label, format.id}
    extra = [] if format.source == "npz" else [name for name in table.columns if name not in known]
    problems = Problems()
    for name in extra:
        problems.add(
            DataError(f"{table.where}: column {name!r} is not in the public file; add it there or to data.ignore")
        )
    problems.tell()
    return table


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
