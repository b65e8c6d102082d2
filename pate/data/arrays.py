"""A npy or npz file → arrays of plain numbers or text, whole or a batch of rows at a time.

A file may be damaged, or made to do harm: nothing is unpickled, nothing is allocated because a
header claims it is there, and whatever a parser raises becomes one line that names the file.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import IO, BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from pate.accounting import parameters
from pate.components.registry import dotted
from pate.data.formats import content_of
from pate.errors import DataError

MAX_GROWTH = 10
_SMALL = 16_000_000
"""Bytes that any archive may hold; beyond, no more than `MAX_GROWTH` times its own size."""


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
            if sum(info.file_size for _, info in wanted) > max(_SMALL, MAX_GROWTH * size):
                raise DataError(
                    f"{where}: claims to hold more than {MAX_GROWTH} times its size; save it with numpy.savez, "
                    "without compression"
                )
            arrays = {
                name: _Rows(
                    stack.enter_context(_member(archive, info)), info.file_size, f"{where}: array {dotted([name])}"
                )
                for name, info in wanted
            }
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
        self._shape, by_columns, self._dtype = self._header(size)
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

    def _header(self, size: int) -> tuple[tuple[int, ...], bool, np.dtype]:
        try:
            version = np.lib.format.read_magic(self._file)
            read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            shape, by_columns, dtype = read_header[version](self._file)
            plain = dtype.kind in "biufcSUmM" and dtype.itemsize > 0
            if plain and math.prod(shape) * dtype.itemsize != size - self._file.tell():
                raise ValueError("cut off, or a header that claims too much")
            if plain:
                return shape, by_columns, dtype
        except Exception as error:  # numpy's parser evaluates a literal, which can fail in many ways
            raise self._not_whole(error) from None
        raise DataError(f"{self._where}: holds {dtype.kind!r} items, not plain numbers or text; it is never unpickled")

    def _read(self, items: int) -> bytes:
        content = self._file.read(items * self._dtype.itemsize)
        if len(content) != items * self._dtype.itemsize:
            raise self._not_whole(EOFError())
        return content

    def _not_whole(self, error: Exception) -> DataError:
        return DataError(f"{self._where}: not a whole npy file of plain numbers or text ({type(error).__name__})")


def _member(archive: ZipFile, info: ZipInfo) -> IO[bytes]:
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise BadZipFile("numpy compresses otherwise")
    return archive.open(info)


def _unreadable(where: str, error: Exception) -> DataError:
    return DataError(f"{where}: not a readable npz archive of plain arrays ({type(error).__name__})")


_ZIP = b"PK"


def load_votes(path: Path, first: int | None = None) -> NDArray[np.int64]:
    """Vote histograms, int[queries, classes], from a .npy file; every row sums to the number of teachers."""
    if not path.exists():
        raise DataError(f"{path}: no such file")
    content = content_of(str(path))
    if content.startswith(_ZIP):
        raise DataError(f"{path}: an archive; give a .npy file with one array")
    return parameters.votes(npy_array(content, str(path)), str(path))[:first]
