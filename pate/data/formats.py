"""The content of a data file → columns: csv and parquet, and what arrays hold (see `pate.data.arrays`).

A file may be damaged, or made to do harm: nothing is unpickled, nothing is allocated because a
header claims it is there, and whatever a parser raises becomes one line that names the file and no value in it.
"""

from __future__ import annotations

import csv
import difflib
import io
import socket
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pate.data.columns import SECONDS_PER_YEAR, Column, Family
from pate.data.problems import Problems
from pate.errors import DataError
from pate.storage import is_url

Columns = dict[str, Column]
_ROWS_PER_BYTE = 100  # of a parquet file: runs of equal values take next to nothing, but not all columns are constant
_FROM_1970_TO_2000 = 946_684_800  # seconds
_DELIMITERS = ",;\t|"
_FAMILIES: dict[str, Family] = {"i": "integer", "u": "integer", "f": "real", "b": "boolean", "U": "text"}


def content_of(path: str) -> bytes:
    """A whole file, by path or URL."""
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


@dataclass(frozen=True)
class Dialect:
    """How a csv file is written: what stands between cells, what before decimals, and its encoding."""

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"


USUAL = Dialect()


@dataclass(frozen=True)
class Wanted:
    """Which columns of a file are read.

    `needed` maps keys of the config to the columns that they name, and `ignored` ones are left out unless needed.
    `known` names are public: those of the public file.
    """

    needed: Mapping[str, str | None]
    ignored: Collection[str] = ()
    known: Collection[str] = ()

    def columns(self, header: Sequence[str], where: str) -> dict[int, str]:
        """Positions and names of the columns that are read. DataError where a needed one is missing, one is there
        twice or one has no name.

        The file's own names are quoted only after the needed ones were found: else its first line may be a record.
        """
        names, problems = [name.strip() for name in header], Problems()
        for key, name in self.needed.items():
            if name is not None and name not in names:
                problems.add(DataError(f"{where}: no column {name!r} (data.{key}){self._hint(name, names)}"))
        problems.tell()
        for name, times in Counter(names).items():
            if not name and name not in self.ignored:
                place = f"{where}: column {names.index(name)} (counted from 0) has no name"
                problems.add(
                    DataError(f"{place}; remove it, such as an index that pandas wrote, or add '' to data.ignore")
                )
            elif times > 1 and name:
                problems.add(DataError(f"{where}: column {name!r} is there twice; rename or remove one of them"))
        problems.tell()
        return {i: name for i, name in enumerate(names) if name not in self.ignored or name in self.needed.values()}

    def _hint(self, name: str, names: Sequence[str]) -> str:
        """What the missing column may be called; only where the first line cannot be a record."""
        if len(names) == 1:
            found = next((sign for sign in _DELIMITERS if sign in names[0]), None)
            return "" if found is None else f"; is the file separated by {found!r}? say data.delimiter"
        public = {*self.known, *(other for other in self.needed.values() if other)}
        alike = next((other for other in names if other.casefold() == name.casefold()), None)
        if alike is not None:
            return f"; did you mean '{alike}'?"
        if 2 * sum(other in public for other in names) < len(names):
            return "; is there a header line?"
        close = difflib.get_close_matches(name, names, n=1)
        return f"; did you mean '{close[0]}'?" if close else ""


def csv_columns(
    content: bytes, where: str, wanted: Wanted, dialect: Dialect = USUAL
) -> tuple[Columns, tuple[str, ...]]:
    """The columns of a csv file with a header that are wanted, and the names of all."""
    encoding = "utf-8-sig" if dialect.encoding.lower().replace("_", "-") in ("utf-8", "utf8") else dialect.encoding
    file = io.TextIOWrapper(io.BytesIO(content), encoding, newline="")
    reader = csv.reader(file, skipinitialspace=True, strict=True, delimiter=dialect.delimiter)
    rows: list[list[str]] = []
    lines = 0
    try:
        for row in reader:
            lines += 1
            if reader.line_num != lines:  # it would have swallowed other records
                raise DataError(
                    f"{_row(where, rows)}: spans lines; close its quote, or take line breaks out of its cells"
                )
            if rows and row and len(row) != len(rows[0]):
                raise DataError(
                    f"{_row(where, rows)}: not as many fields as the header has; put cells that hold "
                    f"{dialect.delimiter!r} into quotes, or is data.delimiter another?"
                )
            if row:
                rows.append(row)
    except UnicodeError:
        name = "UTF-8" if encoding == "utf-8-sig" else dialect.encoding
        raise DataError(f"{where}: not {name} text; say its encoding with data.encoding, such as cp1252") from None
    except csv.Error:
        raise DataError(
            f"{_row(where, rows)}: not csv: a quote that is not closed or not doubled, or a huge cell"
        ) from None
    if not rows:
        raise DataError(f"{where}: no header line")
    header = rows.pop(0)
    columns = {
        name: Column(
            f"{where}: column {name!r}", "cells", "text", [row[i].strip() for row in rows], decimal=dialect.decimal
        )
        for i, name in wanted.columns(header, where).items()
    }
    return columns, tuple(name.strip() for name in header)


def parquet_columns(content: bytes, where: str, wanted: Wanted) -> tuple[Columns, tuple[str, ...]]:
    """The columns of a parquet file, as `csv_columns`."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{where}: parquet needs the package pyarrow: pip install 'pate[parquet]'") from None
    try:
        file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(content), pre_buffer=False)
        if not 0 <= file.metadata.num_rows <= _ROWS_PER_BYTE * len(content):
            raise ValueError("it claims more rows than it can hold")
        table = file.read(use_threads=False)  # a damaged column ends the others' threads by a crash
        table.validate(full=True)
        header = list(table.column_names)
        columns = {
            name: _arrow_column(table.column(i), f"{where}: column {name!r}")
            for i, name in wanted.columns(header, where).items()
        }
        return columns, tuple(name.strip() for name in header)
    except DataError:
        raise
    except Exception as error:  # pyarrow raises many kinds
        raise DataError(f"{where}: not a readable parquet file ({type(error).__name__})") from None


def array_column(values: NDArray, where: str) -> Column:
    """A column that was saved as an array."""
    if values.ndim != 1:
        raise DataError(f"{where}: has {values.ndim} axes, needed is 1")
    family, stored_as = _FAMILIES.get(values.dtype.kind, "other"), str(values.dtype)
    if family != "text":
        return Column(where, family, stored_as, values)
    try:
        return Column(where, family, stored_as, [text.strip() for text in values.tolist()])
    except ValueError:
        raise DataError(f"{where}: holds what is not text") from None


def _row(where: str, rows: list[list[str]]) -> str:
    """The place of the next row, for an error, after `rows`, of which the first is the header."""
    return f"{where}, row {len(rows) - 1} (counted from 0)" if rows else f"{where}, header"


def _arrow_column(values: Any, where: str) -> Column:
    """By Arrow's own types: a missing value changes nothing about the others."""
    import pyarrow

    types = pyarrow.types
    if types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind, stored_as = values.type, str(values.type)
    if types.is_null(kind):
        return Column(where, "nothing", stored_as, [""] * len(values))
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return Column(where, "text", stored_as, [(text or "").strip() for text in values.to_pylist()])
    if types.is_date(kind) or types.is_timestamp(kind):
        return _arrow_dates(values, where, stored_as)
    family: Family = "integer" if types.is_integer(kind) else "boolean" if types.is_boolean(kind) else "real"
    if family == "real":
        if not (types.is_floating(kind) or types.is_decimal(kind)):
            return Column(where, "other", stored_as, [])
        if not (types.is_float32(kind) or types.is_float64(kind)):
            values = values.cast(pyarrow.float64())
    missing = values.is_null().to_numpy()
    fill = pyarrow.scalar(False if family == "boolean" else 0, type=values.type)
    return Column(where, family, stored_as, values.fill_null(fill).to_numpy(), missing)


def _arrow_dates(values: Any, where: str, stored_as: str) -> Column:
    """Dates as years, by the same rule as texts; time zones count as UTC."""
    import pyarrow

    since_1970 = values.cast(pyarrow.timestamp("us"), safe=False).cast(pyarrow.int64()).fill_null(0).to_numpy()
    seconds = (since_1970 - _FROM_1970_TO_2000 * 10**6) / 1e6
    return Column(where, "date", stored_as, seconds / SECONDS_PER_YEAR, values.is_null().to_numpy())
