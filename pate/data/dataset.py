"""What a data source provides: private data, public examples, a test set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pate.data.ranges import PublicRange
from pate.errors import DataError

if TYPE_CHECKING:
    from pate.data.records import Format


@dataclass(frozen=True)
class Records:
    """Private records that were read, with their labels as positions in the list of classes (−1: in none of them).

    Where a person is the unit of privacy, `ids` hold one canonical text per person (see `pate.data.columns`).
    `left_out` is how many records had no valid id and are not here, and `unlisted`, by file and column, how many have a
    category that the config does not list; these numbers are private too.
    """

    X: NDArray
    y: NDArray[np.int64]
    ids: Sequence[str] | None = None
    left_out: int = 0
    unlisted: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.X) != len(self.y):
            raise DataError("private data: not as many labels as records")
        if self.ids is not None:
            if len(self.X) != len(self.ids):
                raise DataError("private data: not as many ids as records")
            if not all(isinstance(i, str) for i in self.ids):
                raise DataError("private data: ids must all be text, one form for each person")

    def __len__(self) -> int:
        return len(self.X)

    @property
    def notes(self) -> tuple[str, ...]:
        """What the operator should know about the records; private, as they are."""
        return tuple(
            f"{column} of {count:,} records holds what data.categories does not list"
            for column, count in self.unlisted.items()
        )

    def usable(self, n_classes: int) -> NDArray[np.bool_]:
        """Which records have numbers for features and a class for a label, each by itself."""
        numbers = np.isfinite(self.X).all(axis=tuple(range(1, self.X.ndim)))
        return np.asarray(numbers & (self.y >= 0) & (self.y < n_classes))

    def only(self, kept: NDArray[np.bool_]) -> Records:
        """The records that the mask `kept` selects."""
        ids = None if self.ids is None else [i for i, keep in zip(self.ids, kept, strict=True) if keep]
        return replace(self, X=self.X[kept], y=self.y[kept], ids=ids)


@dataclass(frozen=True)
class Shards:
    """Private records that nobody has read yet: workers read them, each shard once.

    `patterns` stand for more files, which this machine does not see. `forgotten` are keyed digests of records to leave
    out.
    """

    paths: tuple[str, ...]
    format: Format
    patterns: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()


@dataclass(frozen=True)
class Votes:
    """Vote histograms on the public examples that were counted elsewhere; there are no private records."""

    counts: NDArray[np.int64]


Private = Records | Shards | Votes
"""What a run's private data can be."""


@dataclass(frozen=True)
class Dataset:
    """Private data, public examples without labels, and a test set.

    Labels are positions in `classes`, which is configured or part of the source's definition, never discovered.
    `benchmark` marks public data that plays private: evaluation figures may then be shown. `y_public` is only
    ever used for such figures. Test data counts as public: the student's accuracy on it is reported.
    `input` and `features` tell the users of a student how its examples are written. `public_rows` says which row of the
    source each public example was. `gaps` says that examples may hold NaN, which teachers and the student must take.
    `columns` says for a student's card how columns of files become features, and `range` to what all examples are
    clipped: that of the public ones. `notes` and, louder, `warnings` are public: what people should know about the
    source's files. `unused` names columns that become no feature, which is for the operator.
    """

    private: Private
    X_public: NDArray
    classes: tuple[str, ...]
    y_public: NDArray[np.int64] | None = None
    X_test: NDArray | None = None
    y_test: NDArray[np.int64] | None = None
    benchmark: bool = False
    input: str = "as in the data files"
    features: tuple[str, ...] | None = None
    public_rows: NDArray[np.int64] | None = None
    gaps: bool = False
    columns: Mapping[str, Any] | None = None
    range: PublicRange | None = None
    notes: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        private = self.private.X if isinstance(self.private, Records) else None
        named = {"private": private, "public": self.X_public, "test": self.X_test}
        shape = (self.X_public if private is None else private).shape[1:]
        for name, X in named.items():
            if X is None:
                continue
            if X.shape[1:] != shape:
                raise DataError(f"{name} examples have shape {X.shape[1:]}, private ones {shape}: make them the same")
            if len(X) == 0 and name == "public":
                raise DataError(f"the {name} data is empty")
            if name != "private":
                self._refuse_missing(X, name)
        if self.X_test is not None and self.y_test is not None and len(self.X_test) != len(self.y_test):
            raise DataError(f"{len(self.X_test)} test examples but {len(self.y_test)} labels")
        if len(self.classes) < 2:
            raise DataError("data.classes: at least two classes are needed")

    def refuse_missing(self) -> None:
        """Raise DataError where a private record holds NaN or infinity, or there is none: teachers could not learn.

        Where records vote themselves, such a record casts no vote, and nothing may be refused because of it.
        """
        if isinstance(self.private, Records):
            if not len(self.private):
                raise DataError("the private data is empty")
            self._refuse_missing(self.private.X, "private")

    def _refuse_missing(self, X: NDArray, name: str) -> None:
        wrong = np.isinf(X) if self.gaps else ~np.isfinite(X)
        if not wrong.any():
            return
        row, *place = (int(i) for i in np.argwhere(wrong)[0])
        column = f", {self.features[place[0]]!r}" if self.features is not None and len(place) == 1 else f", {place}"
        raise DataError(
            f"{name} data: NaN or infinity in row {row}{column} (counted from 0); fill missing values before the run"
        )

    @property
    def records(self) -> Records:
        """The private records, where this process has read them."""
        if not isinstance(self.private, Records):
            raise DataError("the private records are not here: workers read them, or there are only votes")
        return self.private

    @property
    def per_person(self) -> bool:
        """Whether the unit of privacy is an id, with all its records, instead of a record."""
        if isinstance(self.private, Shards):
            return self.private.format.id is not None
        return isinstance(self.private, Records) and self.private.ids is not None

    def test_digest(self) -> str | None:
        """Equal for equal test sets: figures are only comparable on the same one."""
        if self.X_test is None or self.y_test is None:
            return None
        digest = sha256()
        for array in (self.X_test, self.y_test):
            digest.update(repr((array.shape, str(array.dtype))).encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]

    def within_public_range(self) -> Dataset:
        """A copy of the data, what lies beyond the public range moved to its end, as it was where files were read.

        Not of benchmarks, whose ranges are part of their definition.
        """
        if self.benchmark or self.range is not None:
            return self
        public, private = PublicRange.of(self.X_public), self.private
        if isinstance(private, Records):
            private = replace(private, X=public.clip(private.X))
        X_test = None if self.X_test is None else public.clip(self.X_test)
        return replace(self, private=private, X_test=X_test, range=public)

    def with_queries_first(self, rows: NDArray[np.int64]) -> Dataset:
        """A copy of the data with the public examples `rows` before the others."""
        if np.array_equal(rows, np.arange(len(rows))):
            return self
        return self.reordered(np.concatenate([rows, np.setdiff1d(np.arange(len(self.X_public)), rows)]))

    def in_source_order(self) -> Dataset:
        """A copy of the data with its public examples in the order of their source."""
        return self if self.public_rows is None else self.reordered(np.argsort(self.public_rows, kind="stable"))

    def reordered(self, rows: NDArray[np.int64]) -> Dataset:
        """A copy of the data with its public examples, and all that belongs to them, in the order of `rows`."""
        return replace(
            self,
            X_public=self.X_public[rows],
            y_public=None if self.y_public is None else self.y_public[rows],
            private=Votes(self.private.counts[rows]) if isinstance(self.private, Votes) else self.private,
            public_rows=rows if self.public_rows is None else self.public_rows[rows],
        )
