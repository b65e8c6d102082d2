"""The content of a data file → columns: csv and parquet, and what arrays hold (see `pate.data.arrays`).

A file may be damaged, or made to do harm: nothing is unpickled, nothing is allocated because a
header claims it is there, and whatever a parser raises becomes one line that names the file and no value in it.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import socket
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pate.data.columns import Column, Family
from pate.errors import DataError
from pate.storage import is_url

Columns = dict[str, Column]
_ROWS_PER_BYTE = 100  # of a parquet file: runs of equal values take next to nothing, but not all columns are constant
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


def csv_columns(
    content: bytes,
    where: str,
    needed: Mapping[str, str | None],
    ignored: Collection[str] = (),
    keep_bad: bool = False,
) -> Columns:
    """The columns of a csv file with a header, without those to ignore unless they are needed.

    `needed` maps keys of the config to the columns that they name. A line that is not csv is refused or, with
    `keep_bad`, a record of which nothing is known: all its cells are empty.
    """
    rows = _lines_by_themselves(content) if keep_bad else _lines(content, where)
    if not rows:
        raise DataError(f"{where}: no header line")
    header = rows.pop(0)
    _check_header(header, where, needed)
    return {
        name: Column(f"{where}: column {name!r}", "cells", "text", [row[i].strip() for row in rows])
        for i, name in enumerate(header)
        if name not in ignored or name in needed.values()
    }


def _lines_by_themselves(content: bytes) -> list[list[str]]:
    """Every line parsed alone, so that an open quote reaches no other; one that is not csv has empty cells."""
    rows: list[list[str]] = []
    for line in re.split(rb"\r\n|\n|\r", content.removeprefix(codecs.BOM_UTF8)):
        row = [""]
        with suppress(UnicodeDecodeError, csv.Error):
            row = next(csv.reader([line.decode()], skipinitialspace=True, strict=True), [])
        if row:
            rows.append(row if not rows or len(row) == len(rows[0]) else [""] * len(rows[0]))
    return rows


def _lines(content: bytes, where: str) -> list[list[str]]:
    file = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="")
    reader = csv.reader(file, skipinitialspace=True, strict=True)
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
                raise DataError(f"{_row(where, rows)}: not as many fields as the header has")
            if row:
                rows.append(row)
    except UnicodeDecodeError:
        raise DataError(f"{where}: not UTF-8 text") from None
    except csv.Error:
        raise DataError(
            f"{_row(where, rows)}: not csv: a quote that is not closed or not doubled, or a huge cell"
        ) from None
    return rows


def parquet_columns(
    content: bytes, where: str, needed: Mapping[str, str | None], ignored: Collection[str] = ()
) -> Columns:
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
        names = list(table.column_names)
        _check_header(names, where, needed)
        return {
            name: _arrow_column(table.column(i), f"{where}: column {name!r}")
            for i, name in enumerate(names)
            if name not in ignored or name in needed.values()
        }
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


def _check_header(header: list[str], where: str, needed: Mapping[str, str | None]) -> None:
    """Raise DataError where a needed column is missing or one is there twice.

    The file's own names are quoted only after the needed ones were found: else its first line may be a record.
    """
    for key, name in needed.items():
        if name is not None and name not in header:
            raise DataError(f"{where}: no column {name!r} (data.{key})")
    for name, times in Counter(header).items():
        if times > 1:
            raise DataError(f"{where}: column {name!r} is there twice; rename or remove one of them")


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
    family: Family = "integer" if types.is_integer(kind) else "boolean" if types.is_boolean(kind) else "real"
    if family == "real":
        if not (types.is_floating(kind) or types.is_decimal(kind)):
            return Column(where, "other", stored_as, [])
        if not (types.is_float32(kind) or types.is_float64(kind)):
            values = values.cast(pyarrow.float64())
    missing = values.is_null().to_numpy()
    fill = pyarrow.scalar(False if family == "boolean" else 0, type=values.type)
    return Column(where, family, stored_as, values.fill_null(fill).to_numpy(), missing)
