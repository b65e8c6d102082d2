"""The content of a npy or npz file → arrays of plain numbers or text.

A file may be damaged, or made to do harm: nothing is unpickled, nothing is allocated because a
header claims it is there, and whatever a parser raises becomes one line that names the file.
"""

from __future__ import annotations

import io
import math
from collections.abc import Collection
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import numpy as np
from numpy.typing import NDArray

from pate.errors import DataError
from pate.naming import dotted

MOST_GROWTH = 10
_SMALL = 16_000_000
"""Bytes that any archive may hold; beyond, no more than `MOST_GROWTH` times its own size."""


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
    """Those arrays of an archive that are among `names`."""
    try:
        with ZipFile(io.BytesIO(content)) as archive:
            members = [(info.filename.removesuffix(".npy"), info) for info in archive.infolist()]
            wanted = [(name, info) for name, info in members if name in names]
            if len(dict(wanted)) != len(wanted):
                raise DataError(f"{where}: an array is there twice")
            if sum(info.file_size for _, info in wanted) > max(_SMALL, MOST_GROWTH * len(content)):
                raise DataError(
                    f"{where}: claims to hold more than {MOST_GROWTH} times its size; save it with numpy.savez, "
                    "without compression"
                )
            return {
                name: npy_array(_member(archive, info), f"{where}: array {dotted([name])}") for name, info in wanted
            }
    except DataError:
        raise
    except Exception as error:  # zipfile and zlib raise many kinds
        raise _unreadable(where, error) from None


def npy_array(content: bytes, where: str) -> NDArray:
    """The array in a npy file, read-only, in place. The header must claim exactly what is there."""
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, by_columns, dtype = read_header[version](file)
        plain = dtype.kind in "biufcSUmM" and dtype.itemsize > 0
        if plain and math.prod(shape) * dtype.itemsize != len(content) - file.tell():
            raise ValueError("cut off, or a header that claims too much")
        if plain:
            return np.ndarray(shape, dtype, content, file.tell(), order="F" if by_columns else "C")
    except Exception as error:  # numpy's parser evaluates a literal, which can fail in many ways
        raise DataError(f"{where}: not a whole npy file of plain numbers or text ({type(error).__name__})") from None
    raise DataError(f"{where}: holds {dtype.kind!r} items, not plain numbers or text; it is never unpickled")


def _member(archive: ZipFile, info: ZipInfo) -> bytes:
    if info.compress_type not in (ZIP_STORED, ZIP_DEFLATED):
        raise BadZipFile("numpy compresses otherwise")
    return archive.read(info)


def _unreadable(where: str, error: Exception) -> DataError:
    return DataError(f"{where}: not a readable npz archive of plain arrays ({type(error).__name__})")
