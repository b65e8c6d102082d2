"""What a source keeps private: records that were read, shards that nobody has read yet, or votes counted elsewhere.

Students, features, networks, the report, `predict` and planning never import this module (`tests/test_layering.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.data.public import PublicData, PublicRange, refuse_missing
from pate.errors import DataError

if TYPE_CHECKING:
    from pate.data._records import Format


@dataclass(frozen=True)
class Records:
    """Private records that were read, with their labels as positions in the list of classes (−1: in none of them).

    Where a person is the unit of privacy, `ids` hold one canonical text per person (see `pate.data._columns`).
    `left_out` is how many records had no valid id and are not here, and `unlisted`, by file and column, how many have a
    category that the config does not list; these numbers are private too. `unused` says which columns become no
    feature, for the operator.
    """

    X: NDArray
    y: NDArray[np.int64]
    ids: Sequence[str] | None = None
    left_out: int = 0
    unlisted: Mapping[str, int] = field(default_factory=dict)
    unused: tuple[str, ...] = ()

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
        unlisted = (
            f"{column} of {count:,} records holds what data.categories does not list"
            for column, count in self.unlisted.items()
        )
        return (*self.unused, *unlisted)

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
    out. `unused` says which columns become no feature, for the operator.
    """

    paths: tuple[str, ...]
    format: Format
    patterns: tuple[str, ...] = ()
    forgotten: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What the operator should know about the records."""
        return self.unused


@dataclass(frozen=True)
class Votes:
    """Vote histograms on the public examples, in the order of their source, that were counted elsewhere."""

    counts: NDArray[np.int64]
    notes: tuple[str, ...] = ()


PrivateData = Records | Shards | Votes
"""What the private side of a source can be."""


def records_of(private: PrivateData) -> Records:
    """The private records, where this process has read them; else DataError."""
    if not isinstance(private, Records):
        raise DataError("the private records are not here: workers read them, or there are only votes")
    return private


def is_per_person(private: PrivateData) -> bool:
    """Whether the unit of privacy is an id, with all its records, instead of a record."""
    if isinstance(private, Shards):
        return private.format.id is not None
    return isinstance(private, Records) and private.ids is not None


def prepare_data(public: PublicData, private: PrivateData, keep_missing: bool) -> tuple[PublicData, PrivateData]:
    """Both sides as a run takes them: within the range of the public examples, checked, and the unit of privacy noted.

    DataError where they do not fit each other; `keep_missing` is that of `check_private`.
    """
    public, private = clip_to_public_range(public, private)
    check_private(public, private, keep_missing)
    return replace(public, per_person=is_per_person(private)), private


def check_private(public: PublicData, private: PrivateData, keep_missing: bool) -> None:
    """Raise DataError where private records do not fit the public examples.

    Unless `keep_missing`, also where one holds NaN or infinity, or there is none: teachers could not learn. With it,
    such a record counts for nothing, and nothing may be refused because of it.
    """
    if not isinstance(private, Records):
        return
    shape = private.X.shape[1:]
    for name, X in (("public", public.X_public), ("test", public.X_test)):
        if X is not None and X.shape[1:] != shape:
            raise DataError(f"{name} examples have shape {X.shape[1:]}, private ones {shape}: make them the same")
    if not keep_missing:
        if not len(private):
            raise DataError("the private data is empty")
        refuse_missing(private.X, "private", public.has_missing_values, public.features)


def clip_to_public_range(public: PublicData, private: PrivateData) -> tuple[PublicData, PrivateData]:
    """Both, with what lies beyond the range of the public examples moved to its end, as where files are read.

    Benchmarks stay as they are: their ranges are part of their definition.
    """
    if public.benchmark or public.range is not None:
        return public, private
    known = PublicRange.of(public.X_public)
    if isinstance(private, Records):
        private = replace(private, X=known.clip(private.X))
    X_test = None if public.X_test is None else known.clip(public.X_test)
    return replace(public, X_test=X_test, range=known), private
