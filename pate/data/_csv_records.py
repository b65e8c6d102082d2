"""Records of a csv file, as Python's `csv.writer` writes them: where one ends and the next begins, their cells, and
columns of these a batch of rows at a time.

Guarantee, for files that a csv writer can write: a record's cells depend on its own text alone, whatever other records
hold. A quoted cell may hold line breaks and is one record's; `\\n` outside quotes ends a record, and nothing else
does. A record that is wrong in itself is told apart (`Flaw`) and costs no other. One thing cannot be confined: a quote
that is opened and never closed takes what follows for its cell. So where quotes do not balance, the whole file is
refused (`OpenQuote`); that is complete for any one record that no writer can write among others that one can.
"""

from __future__ import annotations

import codecs
import csv
import io
import re
import sys
from collections.abc import Iterable, Iterator
from enum import Enum
from itertools import islice
from typing import Any, BinaryIO

from pate.data._columns import Column
from pate.data._formats import USUAL, Dialect, Table, Wanted
from pate.errors import DataError

_WITHOUT_A_TABLE = {"utf-8", "utf-8-sig", "ascii", "iso8859-1"}
_NOT_TEXT = re.compile("[\udc80-\udcff]")  # what the error handler surrogateescape makes of a byte
_CARRIAGE_RETURN = "\udc0d"  # stands for one within a cell, which would end a record for the csv module


class Flaw(Enum):
    """What is wrong with one record, and with no other."""

    CELLS = "not csv: a quote that is not closed or not doubled, or a huge cell"
    ENCODING = "not text of the file's encoding"


class OpenQuote(ValueError):
    """Quotes do not balance; `record` is where that was seen first, the first record of the file being 0."""

    def __init__(self, record: int) -> None:
        super().__init__("quotes do not balance")
        self.record = record


def is_delimiter(text: str) -> bool:
    """Whether that may stand between cells: one sign, neither a quote nor a line's end, no letter and no digit."""
    return len(text) == 1 and text not in '"\r\n' and not text.isalnum()


def records_of_file(source: io.BufferedReader[Any], delimiter: str, codec: str) -> Iterator[list[str] | Flaw]:
    """The cells of every record of a file, the header's too; blank lines are none.

    OpenQuote where quotes do not balance. UnicodeError for a byte that is not text, where the encoding does not tell
    which record it belongs to: in UTF-16 one byte too many shifts all that follow.
    """
    errors = "surrogateescape" if _errors_stay_in_place(codec) else "strict"
    return records_of_lines(io.TextIOWrapper(source, codec, errors, newline="\n"), delimiter)


def records_of_lines(lines: Iterable[str], delimiter: str) -> Iterator[list[str] | Flaw]:
    r"""The cells of every record of a text, given as lines that end in "\n".

    >>> list(records_of_lines(["a,b\n", '1,"x\n', 'y"\n', "\n", '2,"x"y\n'], ","))
    [['a', 'b'], ['1', 'x\ny'], <Flaw.CELLS: 'not csv: a quote that is not closed or not doubled, or a huge cell'>]
    """
    for text in _whole_records(lines, _Quotes(delimiter)):
        found = Flaw.CELLS if text is None else _cells(text, delimiter)
        if found:
            yield found


def _errors_stay_in_place(codec: str) -> bool:
    """Whether a wrong byte leaves the text after it as it is: one byte for each sign, or UTF-8."""
    found = codecs.lookup(codec)
    module = sys.modules.get(getattr(found.incrementaldecoder, "__module__", ""))
    return found.name in _WITHOUT_A_TABLE or hasattr(module, "decoding_table")


class _Quotes:
    """Follows quotes from line to line, by the rules of Python's csv module: a cell is quoted if it begins with one."""

    def __init__(self, delimiter: str) -> None:
        blanks = "" if delimiter == " " else " *+"
        self._opening = re.compile(f'(?:^|{re.escape(delimiter)}){blanks}"')
        self._rest_of_cell = re.compile('[^"]*+(?:""[^"]*+)*+"')
        self.is_open = False
        """Whether a cell is open where the last line ended."""
        self.is_loose = False
        """Whether a quote of this record neither opens nor closes a cell nor is doubled within one."""
        self._signs = 0  # of the open cell, so far

    @property
    def is_too_long(self) -> bool:
        """Whether the open cell is longer than any may be, each quote within it being doubled."""
        return self._signs > 2 * csv.field_size_limit()

    def follow(self, line: str) -> None:
        """The next line: of the same record if a cell is open, else of the next one."""
        place = 0
        self.is_loose = self.is_loose and self.is_open
        while True:
            if self.is_open:
                cell = self._rest_of_cell.match(line, place)
                if cell is None:
                    self._signs += len(line) - place
                    return
                place, self.is_open, self._signs = cell.end(), False, 0
            opening = self._opening.search(line, place)
            unquoted = len(line) if opening is None else opening.start()
            self.is_loose = self.is_loose or line.find('"', place, unquoted) >= 0
            if opening is None:
                return
            place, self.is_open = opening.end(), True


def _whole_records(lines: Iterable[str], quotes: _Quotes) -> Iterator[str | None]:
    """The text of each record; None for one with a cell that is longer than any may be.

    An open quote ends at the next quote, wherever that is. So where a record spans lines, quotes must balance in all of
    the file: else either a quote is left over in what was taken for a cell, or some record has an odd number of them.
    """
    held: list[str] | None = []  # of a record that is not complete
    done, any_spans, suspect = 0, False, -1
    for line in lines:
        spans = quotes.is_open
        if not spans and '"' not in line:
            done += bool(line.strip("\r\n"))
            yield line
            continue
        quotes.follow(line)
        if held is not None:
            held.append(line)
        if quotes.is_too_long:
            held = None
        if quotes.is_open:
            continue
        any_spans = any_spans or spans
        if suspect < 0 and (quotes.is_loose if spans else line.count('"') % 2):
            suspect = done
        if any_spans and suspect >= 0:
            raise OpenQuote(suspect)
        done += 1
        yield None if held is None else "".join(held)
        held = []
    if quotes.is_open:
        raise OpenQuote(done)


def _cells(record: str, delimiter: str) -> list[str] | Flaw:
    """The cells of one record, none of a blank one."""
    if not record.isascii() and _NOT_TEXT.search(record):
        return Flaw.ENCODING
    text = record.rstrip("\r\n").replace("\r", _CARRIAGE_RETURN)
    reader = csv.reader([text], delimiter=delimiter, skipinitialspace=delimiter != " ", strict=True)
    try:
        row = next(reader)
    except csv.Error:
        return Flaw.CELLS
    return row if text.isascii() else [cell.replace(_CARRIAGE_RETURN, "\r") for cell in row]


def csv_tables(
    file: BinaryIO, where: str, wanted: Wanted, dialect: Dialect = USUAL, at_once: int | None = None
) -> Iterator[Table]:
    """A csv file in tables of `at_once` rows each, read once from its beginning; at least one."""
    source: io.BufferedReader[Any] = file if isinstance(file, io.BufferedReader) else io.BufferedReader(file)
    start = source.peek(4)[:4]
    if start == b"PK\x03\x04":
        raise DataError(f"{where}: is a workbook of Excel, or another zip file; save it as csv")
    if start.startswith((b"\xff\xfe", b"\xfe\xff")) and not dialect.codec.lower().replace("_", "-").startswith(
        "utf-16"
    ):
        raise DataError(f"{where}: is UTF-16 text; say data.encoding: utf-16, or save it as UTF-8")
    if not start:
        raise DataError(f"{where}: is empty; it needs a header line with the names of the columns")
    lines = _rows(source, where, dialect, wanted.keep_bad)
    header = next(lines, None)
    if header is None:
        raise DataError(f"{where}: no header line")
    chosen, names = wanted.columns(header, where), tuple(name.strip() for name in header)
    rows, begin = list(islice(lines, at_once)), 0
    while True:
        numbers = range(begin, begin + len(rows))
        columns = {
            name: Column(
                f"{where}: column {name!r}",
                "cells",
                "text",
                [row[i].strip() for row in rows],
                rows=numbers,
                decimal=dialect.decimal,
            )
            for i, name in chosen.items()
        }
        yield Table(where, columns, None, names)
        rows, begin = list(islice(lines, at_once)), numbers.stop
        if not rows:
            return


def _is_utf8(cell: str, dialect: Dialect) -> bool:
    """Whether a cell was read by a one-byte encoding though its bytes are UTF-8: `mÃ¤nnlich`."""
    if cell.isascii() or dialect.codec.lower().startswith("utf"):
        return False
    try:
        return bool(cell.encode(dialect.codec).decode("utf-8"))
    except UnicodeError:
        return False


def _rows(source: io.BufferedReader[Any], where: str, dialect: Dialect, keep_bad: bool) -> Iterator[list[str]]:
    """The header, then the cells of every record; one that is not csv, or not as wide as the header, has empty cells if
    `keep_bad`, else the file is refused."""
    width, done = 0, 0
    try:
        for row in records_of_file(source, dialect.delimiter, dialect.codec):
            wrong = _what_is_wrong(row, where, dialect, width, done)
            if wrong is not None and not (keep_bad and done):
                raise wrong
            width, done = len(row) if isinstance(row, list) and not done else width, done + 1
            yield row if isinstance(row, list) and len(row) == width else [""] * width
    except UnicodeError:
        raise _not_text(where, dialect) from None
    except OpenQuote as error:
        place = f"{_row(where, error.record)}: {Flaw.CELLS.value}"
        if not keep_bad:
            raise DataError(place) from None
        text = f"{where}: cannot be told apart into records; a csv writer closes every quote and doubles those in cells"
        raise DataError(text).privately(place) from None


def _what_is_wrong(row: list[str] | Flaw, where: str, dialect: Dialect, width: int, done: int) -> DataError | None:
    """What is wrong with the record after `done` others, of which the first is the header, of that width."""
    if row is Flaw.ENCODING:
        return _not_text(where, dialect)
    if isinstance(row, Flaw):
        return DataError(f"{_row(where, done)}: {row.value}")
    if any(_is_utf8(cell, dialect) for cell in row):
        return DataError(
            f"{_row(where, done)}: in UTF-8, though the encoding is said to be {dialect.encoding} "
            "(data.encoding); save all files alike"
        )
    if done and len(row) != width:
        hint = f"put cells that hold {dialect.delimiter!r} into quotes, or is data.delimiter another?"
        if width == 1:
            hint = "is the first line the header, or something above it?"
        return DataError(f"{_row(where, done)}: not as many fields as the header has; {hint}")
    return None


def _not_text(where: str, dialect: Dialect) -> DataError:
    name = "UTF-8" if dialect.codec == "utf-8-sig" else dialect.encoding
    hint = ", such as cp1252" if name == "UTF-8" else ", or save all files as UTF-8"
    return DataError(f"{where}: not {name} text; say its encoding with data.encoding{hint}")


def _row(where: str, done: int) -> str:
    """The place of the next row, for an error, after so many, of which the first is the header."""
    return f"{where}, row {done - 1} (counted from 0)" if done else f"{where}, header"
