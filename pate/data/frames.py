"""Data frames and arrays → numbers, by rules that come from public examples alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.data.columns import one_hot
from pate.data.ranges import PublicRange


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
    def of(cls, public: Any) -> Encoder:
        """From public examples; an array is taken as it is, within the range of the public ones."""
        found = cls(tuple(_column(name, public[name]) for name in public.columns) if is_frame(public) else None)
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


def identity(row: Any) -> bytes:
    """What a record of a frame says, the same whatever types other records give to its columns."""
    return b"record:" + repr([cell_text(value) for value in row]).encode()


def _names(column: _Numbers | _Categories) -> list[str]:
    return [f"{column.name}={known}" for known in column.known] if isinstance(column, _Categories) else [column.name]


def _column(name: Any, values: Any) -> _Numbers | _Categories:
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
    except (TypeError, ValueError):  # None, pandas.NA, a word
        return float("nan")


def cell_text(value: Any) -> str:
    """A cell as text: a whole float is a whole number, since one missing value makes floats of a column."""
    if value is None or type(value).__name__ == "NAType" or value != value:
        return ""
    return str(int(value)) if isinstance(value, (float, np.floating)) and float(value).is_integer() else str(value)
