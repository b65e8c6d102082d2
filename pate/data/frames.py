"""Data frames and arrays → numbers, by rules that come from public examples alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.data.columns import canonical_id, one_hot
from pate.data.partition import contents, keyed_digest
from pate.data.ranges import PublicRange
from pate.errors import DataError

_BITS = 128  # of a digest

_MAX_BITS = 10_000  # Python writes no whole number of more than 4,300 digits


def is_frame(X: Any) -> bool:
    """Whether X is a table with named columns, of pandas or the like."""
    return hasattr(X, "columns") and hasattr(X, "dtypes")


@dataclass(frozen=True)
class _Numbers:
    """A column of numbers: a missing one becomes the median of the public examples."""

    name: str
    fill: float

    def transform(self, values: Any) -> NDArray[np.float32]:
        found = np.array([_number(value) for value in values], dtype=np.float32)
        return np.where(np.isfinite(found), found, np.float32(self.fill))[:, None]


@dataclass(frozen=True)
class _Categories:
    """A column of words: a 0/1 column for each known one; another, or none, is all zeros."""

    name: str
    known: tuple[str, ...]

    def transform(self, values: Any) -> NDArray[np.float32]:
        return one_hot([cell_text(value) for value in values], self.known)


@dataclass(frozen=True)
class Encoder:
    """How records become rows of numbers. Each record by itself: what it holds moves no other.

    Categories are those that a categorical column declares, else those among the public examples it was made from;
    medians are those of the public examples, and numbers beyond the range of these are clipped to it.
    """

    columns: tuple[_Numbers | _Categories, ...] | None
    range: PublicRange | None = None

    @classmethod
    def of(cls, public: Any, by_values: bool = False) -> Encoder:
        """From public examples; an array is taken as it is, within the range of the public ones.

        With `by_values` the types of columns say nothing: for examples that were split off from private records.
        """
        kinds = (_column(name, public[name], by_values) for name in public.columns) if is_frame(public) else None
        found = cls(None if kinds is None else tuple(kinds))
        flags = [isinstance(column, _Categories) for column in found.columns or () for _ in _names(column)]
        return replace(found, range=PublicRange.of(found.transform(public), flags))

    @property
    def names(self) -> tuple[str, ...] | None:
        """A name for each feature, where columns have names."""
        if self.columns is None:
            return None
        return tuple(name for column in self.columns for name in _names(column))

    def transform(self, X: Any) -> NDArray[np.float32]:
        """Rows of numbers; for arrays the numbers they hold."""
        if self.columns is None:
            found = np.asarray(X, dtype=np.float32)
        else:
            found = np.concatenate([column.transform(X[column.name]) for column in self.columns], axis=1)
        return found if self.range is None else self.range.clip(found)


def with_columns_of(X: Any, X_public: Any) -> Any:
    """Public examples, as a frame with the columns of the frame X or an array with as many as the array X."""
    from sklearn.utils import check_array

    if is_frame(X) != is_frame(X_public):
        raise DataError("X_public: must be a data frame where X is one, and an array where X is one")
    if is_frame(X):
        missing = [name for name in X.columns if name not in X_public.columns]
        if missing:
            raise DataError(f"X_public: has no column {missing[0]!r}, which X has")
        return X_public[list(X.columns)]
    X_public = check_array(X_public, dtype=np.float32, input_name="X_public", ensure_min_samples=0)
    if X_public.shape[1] != X.shape[1]:
        raise DataError(f"X_public: has {X_public.shape[1]} columns, X has {X.shape[1]}; give the same ones")
    return X_public


def person_ids(ids: Any) -> list[str | None]:
    """The canonical id of each record: whole numbers or text, each by itself; None where there is no valid one.

    Numbers with decimals are refused: one missing id makes floats of all, and whom a record belongs to would depend on
    others.

    >>> person_ids([17, 4]), person_ids([" Ann", "", None])
    (['17', '4'], ['Ann', None, None])
    """
    found = np.asarray(ids)
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.ndim != 1:
        raise DataError(f"ids: has shape {found.shape}; give one for each record")
    if found.dtype.kind not in "iuUTO":
        raise DataError(
            f"ids: holds {found.dtype}, not whole numbers or text; where one is missing, give text, or pandas' Int64"
        )
    return [_person_id(value) for value in found.tolist()]


def _person_id(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer | str):
        return None
    return canonical_id(str(value), "text")


def split_off_public(X: Any, ids: list[str] | None, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Which records are taken as public: a hash of a record's own features decides, or of its id.

    So nobody is public by one record and protected by another.
    """
    if ids is not None:
        identities = [b"id:" + one.encode() for one in ids]
    elif is_frame(X):
        identities = [identity(row) for row in X.to_numpy(dtype=object)]
    else:
        identities = contents(X, np.zeros(len(X), dtype=np.int64))
    key, limit = f"public {seed}".encode(), int(fraction * 2**_BITS)
    return np.array([int.from_bytes(keyed_digest(key, b"public", i), "little") < limit for i in identities], dtype=bool)


def identity(row: Any) -> bytes:
    """What a record of a frame says, the same whatever types other records give to its columns."""
    return b"record:" + repr([cell_text(value) for value in row]).encode()


def _names(column: _Numbers | _Categories) -> list[str]:
    return [f"{column.name}={known}" for known in column.known] if isinstance(column, _Categories) else [column.name]


def _column(name: Any, values: Any, by_values: bool = False) -> _Numbers | _Categories:
    if by_values:
        there = [value for value in values.tolist() if cell_text(value)]
        if not all(isinstance(value, int | float) for value in there):
            return _Categories(name, tuple(sorted({cell_text(value) for value in there})))
        finite = [number for number in map(_number, there) if np.isfinite(number)]
        return _Numbers(name, float(np.median(finite)) if finite else 0.0)
    declared = getattr(values.dtype, "categories", None)
    if declared is not None:
        return _Categories(name, tuple(cell_text(value) for value in declared))
    if getattr(values.dtype, "kind", "O") in "biuf":
        finite = [number for number in map(_number, values) if np.isfinite(number)]
        return _Numbers(name, float(np.median(finite)) if finite else 0.0)
    return _Categories(name, tuple(sorted({cell_text(value) for value in values} - {""})))


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):  # None, pandas.NA, a word, a whole number of 400 digits
        return float("nan")


def cell_text(value: Any) -> str:
    """A cell as text: a whole float is a whole number, since one missing value makes floats of a column."""
    if value is None or type(value).__name__ == "NAType" or value != value:
        return ""
    if isinstance(value, int) and value.bit_length() > _MAX_BITS:
        return hex(value)
    return str(int(value)) if isinstance(value, (float, np.floating)) and float(value).is_integer() else str(value)
