"""What a source makes public: examples without labels, a test set, what its columns and classes are, and the range of
public examples: what lies beyond it counts as its end, for nothing was ever seen out there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.components._registry import shown
from pate.data._columns import ABSOLUTE, names_of
from pate.errors import ConfigError, DataError


@dataclass(frozen=True)
class PublicData:
    """Public examples, the classes, and a test set: all that students, features, the report and planning may see.

    Parameters
    ----------
    X_public : ndarray of shape (n_examples, ...)
        Examples without labels that anybody may see.
    classes : tuple of str
        Names of the classes; labels are positions in it. Configured, or part of the source's definition: never
        discovered among private labels.
    y_public : ndarray of int, default=None
        Labels of the public examples, where they have any. Used for figures on benchmarks and for rehearsals only.
    X_test, y_test : ndarray, default=None
        The test set. It counts as public: the student's accuracy on it is reported.
    benchmark : bool, default=False
        Whether public data plays private, so that evaluation figures may be shown.
    per_person : bool, default=False
        Whether the unit of privacy is an id with all its records, instead of a record.
    input : str, default="as in the data files"
        How the examples are written, for the users of a student.
    features : tuple of str, default=None
        The names of the features.
    public_rows : ndarray of int, default=None
        Which row of the source each public example was.
    has_missing_values : bool, default=False
        Whether examples may hold NaN, which teachers and the student must then take.
    columns : mapping, default=None
        How columns of files become features, for a student's card.
    range : PublicRange, default=None
        What all examples are clipped to: the range of the public ones.
    notes, warnings : tuple of str, default=()
        What people should know about the source's files.
    """

    X_public: NDArray
    classes: tuple[str, ...]
    y_public: NDArray[np.int64] | None = None
    X_test: NDArray | None = None
    y_test: NDArray[np.int64] | None = None
    benchmark: bool = False
    per_person: bool = False
    input: str = "as in the data files"
    features: tuple[str, ...] | None = None
    public_rows: NDArray[np.int64] | None = None
    has_missing_values: bool = False
    columns: Mapping[str, Any] | None = None
    range: PublicRange | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shape = self.X_public.shape[1:]
        if len(self.X_public) == 0:
            raise DataError("the public data is empty")
        for name, X in (("public", self.X_public), ("test", self.X_test)):
            if X is not None:
                if X.shape[1:] != shape:
                    raise DataError(
                        f"{name} examples have shape {X.shape[1:]}, public ones {shape}: make them the same"
                    )
                refuse_missing(X, name, self.has_missing_values, self.features)
        if self.X_test is not None and self.y_test is not None and len(self.X_test) != len(self.y_test):
            raise DataError(f"{len(self.X_test)} test examples but {len(self.y_test)} labels")
        if len(self.classes) < 2:
            raise DataError("data.classes: at least two classes are needed")

    @property
    def n_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)

    @property
    def unit(self) -> str:
        """The unit of privacy: "id" or "record"."""
        return "id" if self.per_person else "record"

    def test_digest(self) -> str | None:
        """Equal for equal test sets: figures are only comparable on the same one."""
        if self.X_test is None or self.y_test is None:
            return None
        digest = sha256()
        for array in (self.X_test, self.y_test):
            digest.update(repr((array.shape, str(array.dtype))).encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]

    def with_queries_first(self, rows: NDArray[np.int64]) -> PublicData:
        """A copy with the public examples `rows` before the others."""
        if np.array_equal(rows, np.arange(len(rows))):
            return self
        return self.reordered(np.concatenate([rows, np.setdiff1d(np.arange(len(self.X_public)), rows)]))

    def in_source_order(self) -> PublicData:
        """A copy with the public examples in the order of their source."""
        return self if self.public_rows is None else self.reordered(np.argsort(self.public_rows, kind="stable"))

    def reordered(self, rows: NDArray[np.int64]) -> PublicData:
        """A copy with the public examples, and all that belongs to them, in the order of `rows`."""
        return replace(
            self,
            X_public=self.X_public[rows],
            y_public=None if self.y_public is None else self.y_public[rows],
            public_rows=rows if self.public_rows is None else self.public_rows[rows],
        )


def refuse_missing(X: NDArray, name: str, missing_allowed: bool, features: tuple[str, ...] | None) -> None:
    """Raise DataError where examples hold infinity or, unless allowed, NaN."""
    wrong = np.isinf(X) if missing_allowed else ~np.isfinite(X)
    if not wrong.any():
        return
    row, *place = (int(i) for i in np.argwhere(wrong)[0])
    column = f", {features[place[0]]!r}" if features is not None and len(place) == 1 else f", {place}"
    raise DataError(
        f"{name} data: NaN or infinity in row {row}{column} (counted from 0); fill missing values before the run"
    )


OTHER = "other"
_MAX_NAMED = 30


@dataclass(frozen=True)
class Grouping:
    """The test examples by one column: `members` holds, for each of them, the position of its group in `values`."""

    column: str
    values: tuple[str, ...]
    members: NDArray[np.int64]


def groupings(data: PublicData, columns: Sequence[str]) -> tuple[Grouping, ...]:
    """The test examples by each of `columns`; ConfigError where that cannot be told.

    Every listed value is a group, also one that no test example has. Those with no listed value, if there are any, are
    one more: other.
    """
    if not columns:
        return ()
    if data.X_test is None or data.y_test is None or not len(data.X_test):
        raise ConfigError(
            "report.groups: there are no test examples with labels to count by group; name a file of them under "
            "data.test, or leave report.groups out"
        )
    known, found = category_columns(data), list[Grouping]()
    for column in columns:
        if column not in known:
            more = f" and {len(known) - _MAX_NAMED} more" if len(known) > _MAX_NAMED else ""
            there = f"there are {', '.join(list(known)[:_MAX_NAMED])}{more}"
            hint = there if known else "this data has none, so leave report.groups out"
            raise ConfigError(f"report.groups: {shown(column)} is not a column of categories; {hint}")
        values = tuple(known[column])
        block = data.X_test[:, list(known[column].values())] == 1
        listed = block.any(axis=1)
        members = np.where(listed, block.argmax(axis=1), len(values)).astype(np.int64)
        if not listed.all():
            taken = OTHER in (value.casefold() for value in values)
            values += (f"{OTHER} (not listed)" if taken else OTHER,)
        found.append(Grouping(column, values, members))
    return tuple(found)


def category_columns(data: PublicData) -> dict[str, dict[str, int]]:
    """The columns of categories: for each of their values, which feature says so by 1.

    By the configured columns where files have them, else by the names of the features: "column=value".
    """
    found: dict[str, dict[str, int]] = {}
    if data.columns is not None:
        categories, dates, place = data.columns["categories"], data.columns["date_features"], 0
        for column in data.columns["features"]:
            values = categories.get(column)
            if values is not None:
                found[column] = {value: place + i for i, value in enumerate(values)}
            place += len(names_of(column, dates.get(column, (ABSOLUTE,)))) if values is None else len(values)
        return found
    for place, feature in enumerate(data.features or ()):
        column, sign, value = feature.partition("=")
        if sign:
            found.setdefault(column, {})[value] = place
    return {column: places for column, places in found.items() if _are_categories(data.X_test, places)}


def _are_categories(X: NDArray | None, places: dict[str, int]) -> bool:
    """Whether at most one of the features is 1, and all others are 0: a name alone does not tell."""
    if X is None:
        return True
    block = X[:, list(places.values())]
    return bool(np.isin(block, (0, 1)).all() and (block.sum(axis=1) <= 1).all())


_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class PublicRange:
    """The least and the largest value of each feature, or of all pixels of images alike, among public examples."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of(cls, X_public: NDArray, between_0_and_1: Sequence[bool] = ()) -> PublicRange:
        """The range of public examples; of features that say yes or no, 0 and 1, whether or not both occur.

        >>> PublicRange.of(np.array([[1.0, 0], [3, 0]]), [False, True])
        PublicRange(low=(1.0, 0.0), high=(3.0, 1.0))
        """
        flat = X_public if X_public.ndim == 2 else X_public.reshape(-1, 1)
        there = np.isfinite(flat)
        low = flat.min(axis=0, initial=_LARGEST, where=there).astype(np.float64)
        high = flat.max(axis=0, initial=-_LARGEST, where=there).astype(np.float64)
        nowhere = low > high  # no public number
        low, high = np.where(nowhere, -_LARGEST, low), np.where(nowhere, _LARGEST, high)
        if len(between_0_and_1):
            low, high = np.where(between_0_and_1, 0, low), np.where(between_0_and_1, 1, high)
        return cls(tuple(low.tolist()), tuple(high.tolist()))

    @classmethod
    def of_card(cls, content: Any, shape: tuple[int, ...]) -> PublicRange | None:
        """What `on_card` wrote for examples of a shape; ValueError if it is anything else."""
        if content is None:
            return None
        given = content if isinstance(content, dict) else {}
        low, high = (_numbers(given.get(end), shape[0] if len(shape) == 1 else 1) for end in ("low", "high"))
        if any(a > b for a, b in zip(low, high, strict=True)):
            raise ValueError("has a range that ends before it begins")
        return cls(low, high)

    def on_card(self) -> dict[str, list[float]]:
        """The range, for a student's card."""
        return {"low": list(self.low), "high": list(self.high)}

    def clip(self, X: NDArray) -> NDArray:
        """The examples, what is beyond the range moved to its end; NaN and infinity, which are no numbers, stay.

        >>> PublicRange((0.0,), (1.0,)).clip(np.array([[-2], [0.5], [7], [np.inf]], dtype=np.float32)).T.tolist()
        [[0.0, 0.5, 1.0, inf]]
        """
        low, high = np.asarray(self.low, dtype=X.dtype), np.asarray(self.high, dtype=X.dtype)
        return np.where(np.isinf(X), X, np.clip(X, low, high))


def _numbers(values: Any, width: int) -> tuple[float, ...]:
    """One end of a range that a card names."""
    if not isinstance(values, list) or len(values) != width:
        raise ValueError("has a range that does not fit its features")
    if not all(type(value) in (int, float) and abs(value) <= _LARGEST for value in values):
        raise ValueError("has a range that is not of numbers")
    return tuple(float(value) for value in values)
