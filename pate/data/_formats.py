"""Data files by path or URL: which columns are read, parquet and npz archives a batch of rows at a time, npy arrays.

A file may be damaged, or made to do harm: nothing is unpickled, nothing is allocated because a header claims it is
there, and whatever a parser raises becomes one line that names the file and no value in it. Csv files are
`pate.data._csv_records`'.
"""

from __future__ import annotations

import difflib
import io
import math
import os
import socket
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

import numpy as np
from numpy.typing import NDArray

from pate.accounting import _parameters as parameters
from pate.components._registry import dotted
from pate.data._columns import SECONDS_PER_YEAR, Column, Family
from pate.errors import DataError, first_line, numbered
from pate.storage import is_url


class SeveralErrors(DataError):
    """Two or more errors about data, in one line."""

    def __init__(self, found: Sequence[DataError]) -> None:
        arguments = {name: value for error in found for name, value in error.arguments.items()}
        super().__init__(numbered([error.text() for error in found]), **arguments)
        self.found = tuple(found)
        self.private = "; ".join(error.private for error in found if error.private)


class Problems:
    """Errors about data, gathered until they are told in one line.

    >>> problems = Problems()
    >>> for name in ("age", "sex"):
    ...     with problems.gathered():
    ...         raise DataError(f"column {name!r} is missing")
    >>> problems.raise_all()
    Traceback (most recent call last):
    pate.data._formats.SeveralErrors: 2 problems: (1) column 'age' is missing; (2) column 'sex' is missing
    """

    def __init__(self, found: Iterable[DataError] = ()) -> None:
        self._found: list[DataError] = []
        for error in found:
            self.add(error)

    def add(self, error: DataError) -> None:
        """One more."""
        if error.text() not in (other.text() for other in self._found):
            self._found.append(error)

    @contextmanager
    def gathered(self) -> Iterator[None]:
        """Within it a DataError is kept for later."""
        try:
            yield
        except DataError as error:
            for one in error.found if isinstance(error, SeveralErrors) else [error]:
                self.add(one)

    def raise_all(self) -> None:
        """Raise what was gathered, if anything was."""
        if not self._found:
            return
        raise self._found[0] if len(self._found) == 1 else SeveralErrors(self._found)


Columns = dict[str, Column]
_ROWS_PER_BYTE = 100  # of a parquet file: runs of equal values take next to nothing, but not all columns are constant
_BYTES_AT_ONCE = 1 << 16  # of a column of a parquet file
_MAX_GROWTH, _SMALL = 10, 16_000_000  # an archive holds at most so many times its size, or so many bytes
_FROM_1970_TO_2000 = 946_684_800  # seconds
NO_FILE = "no such file"
_FEW_NAMES = 5
DELIMITERS = ",;\t|"
"""Signs that stand between cells, usually."""

_FAMILIES: dict[str, Family] = {"i": "integer", "u": "integer", "f": "real", "b": "boolean", "U": "text"}


def content_of(path: str) -> bytes:
    """A whole file, by path or URL."""
    with opened(path) as file:
        return file.read()


@contextmanager
def opened(path: str) -> Iterator[BinaryIO]:
    """A file by path or URL, to be read within the block."""
    try:
        if is_url(path):
            import fsspec

            file = fsspec.open(path, "rb").open()
        else:
            file = Path(path).open("rb")  # noqa: SIM115
    except (OSError, ImportError, ValueError) as error:
        raise _cannot_be_read(path, error) from None
    with file:
        try:
            yield file
        except OSError as error:
            raise _cannot_be_read(path, error) from None


def _cannot_be_read(path: str, error: Exception) -> DataError:
    if isinstance(error, FileNotFoundError):
        return DataError(f"{path}: {NO_FILE} on {socket.gethostname()}, which has to read it")
    reason = getattr(error, "strerror", None) or first_line(error)
    return DataError(f"{path}: cannot be read on {socket.gethostname()} ({reason.splitlines()[0]})")


@dataclass(frozen=True)
class Dialect:
    """How a csv file is written: what stands between cells, what before decimals, and its encoding."""

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"

    @property
    def codec(self) -> str:
        """Python's name of the encoding; a byte order mark of UTF-8 is not part of the text."""
        return "utf-8-sig" if self.encoding.lower().replace("_", "-") in ("utf-8", "utf8") else self.encoding

    def __str__(self) -> str:
        return f"separated by {self.delimiter!r}, decimals by {self.decimal!r}, in {self.encoding}"


USUAL = Dialect()


def other_delimiter(names: Sequence[str]) -> str | None:
    """What a header seems to be separated by that was read as one long name; None of other headers.

    >>> other_delimiter(["age;sex"]), other_delimiter(["age", "sex"])
    (';', None)
    """
    return next((sign for sign in DELIMITERS if sign in names[0]), None) if len(names) == 1 else None


@dataclass(frozen=True)
class Wanted:
    """Which columns of a file are read.

    `needed` maps keys of the config to the columns that they name, and `ignored` ones are left out unless needed.
    `known` names are public: those of the public file. With `keep_bad`, a record that is not csv is one of which
    nothing is known, all its cells empty; else it is refused. A file that cannot be told apart into records is refused
    either way.
    """

    needed: Mapping[str, str | None]
    ignored: Collection[str] = ()
    known: Collection[str] = ()
    keep_bad: bool = False

    def columns(self, header: Sequence[str], where: str) -> dict[int, str]:
        """Positions and names of the columns that are read. DataError where a needed one is missing, one is there
        twice or one has no name.

        The file's own names are quoted only after the needed ones were found: else its first line may be a record.
        """
        names, problems = [name.strip() for name in header], Problems()
        Problems(
            DataError(f"{where}: no column {name!r} (data.{key}){self._hint(name, names)}")
            for key, name in self.needed.items()
            if name is not None and name not in names
        ).raise_all()
        for name, times in Counter(names).items():
            if not name and name not in self.ignored:
                place = f"{where}: column {names.index(name)} (counted from 0) has no name"
                problems.add(
                    DataError(f"{place}; remove it, such as an index that pandas wrote, or add '' to data.ignore")
                )
            elif times > 1 and name:
                problems.add(DataError(f"{where}: column {name!r} is there twice; rename or remove one of them"))
        problems.raise_all()
        return {i: name for i, name in enumerate(names) if name not in self.ignored or name in self.needed.values()}

    def _hint(self, name: str, names: Sequence[str]) -> str:
        """What the missing column may be called; only where the first line cannot be a record."""
        if len(names) == 1:
            sign = other_delimiter(names)
            written = '"\\t"' if sign == "\t" else repr(sign)  # as YAML takes it
            return "" if sign is None else f"; is the file separated by {sign!r}? say data.delimiter: {written}"
        if any("\r" in other for other in names):
            return "; do its lines end in carriage returns alone? save it with line feeds"
        public = {*self.known, *(other for other in self.needed.values() if other)}
        alike = next((other for other in names if other.casefold() == name.casefold()), None)
        if alike is not None:
            return f"; did you mean '{alike}'?"
        if 2 * sum(other in public for other in names) < len(names):
            return "; is there a header line?"
        close = difflib.get_close_matches(name, names, n=1)
        if close:
            return f"; did you mean '{close[0]}'?"
        own = [other for other in names if other not in self.known]
        return f"; besides what is public it has {', '.join(map(repr, own))}" if 0 < len(own) <= _FEW_NAMES else ""


@dataclass(frozen=True)
class Table:
    """A file, its private, public or test part, or a batch of its rows.

    In npz files all features are one array `X`, else columns.
    """

    where: str
    columns: Columns
    X: NDArray | None = None
    header: tuple[str, ...] = ()
    """The names of all columns, also of those that are ignored and were not read."""
    first_row: int = 0
    """The number of the first row of `X`, where it is a batch of a file's rows."""

    def __len__(self) -> int:
        if self.X is not None:
            return len(self.X)
        return next((len(column.values) for column in self.columns.values()), 0)


def parquet_tables(file: BinaryIO, where: str, wanted: Wanted, at_once: int | None = None) -> Iterator[Table]:
    """A parquet file in tables of `at_once` rows each; at least one."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise DataError(f"{where}: parquet needs the package pyarrow: pip install 'pate[parquet]'") from None
    try:
        size = file.seek(0, os.SEEK_END)
        content = pyarrow.parquet.ParquetFile(file, pre_buffer=False, buffer_size=_BYTES_AT_ONCE)
        if not 0 <= content.metadata.num_rows <= _ROWS_PER_BYTE * size:
            raise ValueError("it claims more rows than it can hold")
        begin = 0
        if at_once is None or content.metadata.num_rows == 0:
            tables = iter([content.read(use_threads=False)])  # with threads a damaged column ends others by a crash
        else:
            batches = content.iter_batches(at_once, use_threads=False)
            tables = (pyarrow.Table.from_batches([batch]) for batch in batches)
        for table in tables:
            table.validate(full=True)
            header, numbers = list(table.column_names), range(begin, begin + len(table))
            columns = {
                name: replace(_arrow_column(table.column(i), f"{where}: column {name!r}"), rows=numbers)
                for i, name in wanted.columns(header, where).items()
            }
            yield Table(where, columns, None, tuple(name.strip() for name in header))
            begin = numbers.stop
    except DataError:
        raise
    except Exception as error:  # pyarrow raises many kinds
        raise DataError(f"{where}: not a readable parquet file ({type(error).__name__})") from None


def array_column(values: NDArray, where: str, first_row: int = 0) -> Column:
    """A column that was saved as an array, or the rows of it from `first_row` on."""
    if values.ndim != 1:
        raise DataError(f"{where}: has {values.ndim} axes, needed is 1")
    family, stored_as = _FAMILIES.get(values.dtype.kind, "other"), str(values.dtype)
    rows = range(first_row, first_row + len(values))
    if family != "text":
        return Column(where, family, stored_as, values, rows=rows)
    try:
        return Column(where, family, stored_as, [text.strip() for text in values.tolist()], rows=rows)
    except ValueError:
        raise DataError(f"{where}: holds what is not text") from None


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
    if types.is_date(kind) or types.is_timestamp(kind):  # years, by the same rule as texts; time zones count as UTC
        since_1970 = values.cast(pyarrow.timestamp("us"), safe=False).cast(pyarrow.int64()).fill_null(0).to_numpy()
        seconds = (since_1970 - _FROM_1970_TO_2000 * 10**6) / 1e6
        return Column(where, "date", stored_as, seconds / SECONDS_PER_YEAR, values.is_null().to_numpy())
    family: Family = "integer" if types.is_integer(kind) else "boolean" if types.is_boolean(kind) else "real"
    if family == "real":
        if not (types.is_floating(kind) or types.is_decimal(kind)):
            return Column(where, "other", stored_as, [])
        if not (types.is_float32(kind) or types.is_float64(kind)):
            values = values.cast(pyarrow.float64())
    missing = values.is_null().to_numpy()
    fill = pyarrow.scalar(False if family == "boolean" else 0, type=values.type)
    return Column(where, family, stored_as, values.fill_null(fill).to_numpy(), missing)


def is_archive(content: bytes) -> bool:
    """Whether it is a npz archive rather than a npy file."""
    return content.startswith((b"PK\x03\x04", b"PK\x05\x06"))


def npz_names(content: bytes, where: str) -> list[str]:
    """The names of the arrays that an archive lists."""
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            return [info.filename.removesuffix(".npy") for info in archive.infolist()]
    except Exception as error:
        raise _unreadable(where, error) from None


def npz_arrays(content: bytes, where: str, names: Collection[str]) -> dict[str, NDArray]:
    """The arrays of an archive that are among `names`."""
    (whole,) = npz_batches(io.BytesIO(content), where, names)
    return whole


def npz_batches(
    file: BinaryIO, where: str, names: Collection[str], at_once: int | None = None
) -> Iterator[dict[str, NDArray]]:
    """The named arrays of an archive in batches of `at_once` rows, until the longest ends; at least one batch."""
    try:
        size = file.seek(0, os.SEEK_END)
        with ExitStack() as stack:
            archive = stack.enter_context(ZipFile(file))
            members = [(info.filename.removesuffix(".npy"), info) for info in archive.infolist()]
            wanted = [(name, info) for name, info in members if name in names]
            if len(dict(wanted)) != len(wanted):
                raise DataError(f"{where}: an array is there twice")
            if sum(info.file_size for _, info in wanted) > max(_SMALL, _MAX_GROWTH * size):
                raise DataError(
                    f"{where}: claims to hold more than {_MAX_GROWTH} times its size; save it with numpy.savez, "
                    "without compression"
                )
            arrays: dict[str, _Rows] = {}
            for name, info in wanted:
                if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
                    raise BadZipFile("numpy compresses otherwise")
                member = stack.enter_context(archive.open(info))
                arrays[name] = _Rows(member, info.file_size, f"{where}: array {dotted([name])}")
            yield {name: rows.next(at_once) for name, rows in arrays.items()}
            while any(rows.left for rows in arrays.values()):
                yield {name: rows.next(at_once) for name, rows in arrays.items()}
    except DataError:
        raise
    except Exception as error:  # zipfile and zlib raise many kinds
        raise _unreadable(where, error) from None


def npy_array(content: bytes, where: str) -> NDArray:
    """The array in a npy file. The header must claim exactly what is there."""
    return _Rows(io.BytesIO(content), len(content), where).next(None)


class _Rows:
    """The array in a npy file, some rows after the others, each read-only. `left` is how many are still to come."""

    def __init__(self, file: IO[bytes], size: int, where: str) -> None:
        self._file, self._where = file, where
        try:
            version = np.lib.format.read_magic(file)
            read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            self._shape, by_columns, dtype = read_header[version](file)
            plain = dtype.kind in "biufcSUmM" and dtype.itemsize > 0
            if plain and math.prod(self._shape) * dtype.itemsize != size - file.tell():
                raise ValueError("cut off, or a header that claims too much")
        except Exception as error:  # numpy's parser evaluates a literal, which can fail in many ways
            raise self._not_whole(error) from None
        if not plain:
            raise DataError(f"{where}: holds {dtype.kind!r} items, not plain numbers or text; it is never unpickled")
        self._dtype = dtype
        self.left = self._shape[0] if self._shape else 0
        self._whole: NDArray | None = None
        if not self._shape or (by_columns and len(self._shape) > 1):  # its rows are not one after the other
            self._whole = np.ndarray(self._shape, self._dtype, self._read(math.prod(self._shape)), order="F")

    def next(self, most: int | None) -> NDArray:
        """The next rows, at most so many."""
        n = self.left if most is None else min(most, self.left)
        begin = self._shape[0] - self.left if self._shape else 0
        self.left -= n
        if self._whole is not None:
            return self._whole[begin : begin + n] if self._shape else self._whole
        shape = (n, *self._shape[1:])
        return np.ndarray(shape, self._dtype, self._read(math.prod(shape)))

    def _read(self, items: int) -> bytes:
        content = self._file.read(items * self._dtype.itemsize)
        if len(content) != items * self._dtype.itemsize:
            raise self._not_whole(EOFError())
        return content

    def _not_whole(self, error: Exception) -> DataError:
        return DataError(f"{self._where}: not a whole npy file of plain numbers or text ({type(error).__name__})")


def _unreadable(where: str, error: Exception) -> DataError:
    return DataError(f"{where}: not a readable npz archive of plain arrays ({type(error).__name__})")


def load_votes(path: Path, first: int | None = None) -> NDArray[np.int64]:
    """Vote histograms, int[queries, classes], from a .npy file; every row sums to the number of teachers."""
    if not path.exists():
        raise DataError(f"{path}: no such file")
    content = content_of(str(path))
    if is_archive(content):
        raise DataError(f"{path}: an archive; give a .npy file with one array")
    return parameters.votes(npy_array(content, str(path)), str(path))[:first]
