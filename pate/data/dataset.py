"""What a data source hands over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from pate.errors import DataError

if TYPE_CHECKING:
    from pate.data.shards import Shards


@dataclass(frozen=True)
class Dataset:
    """Private records with labels, public examples without, and a test set.

    Labels are positions in `classes`, which is configured or part of the source's definition, never discovered.
    `benchmark` marks public data that plays private: evaluation figures may then be shown. `y_public` is only
    ever used for such figures. Test data counts as public: the student's accuracy on it is reported.
    `input` and `features` tell the users of a student how its examples are written. `votes` are histograms on the
    public examples that were counted elsewhere; private data may then be empty. `public_rows` says which row of the
    source each public example was. `shards` are private records that nobody has read yet; the private arrays are then
    empty, and workers read them. `ids_private` are canonical, equal for one person and no other (see
    pate/data/columns.py); `left_out` records had none that is valid, and their number is private too. `remarks` are
    public: what people should know about the source's files.
    """

    X_private: NDArray
    y_private: NDArray[np.int64]
    X_public: NDArray
    classes: tuple[str, ...]
    ids_private: Sequence[str] | None = None
    y_public: NDArray[np.int64] | None = None
    X_test: NDArray | None = None
    y_test: NDArray[np.int64] | None = None
    benchmark: bool = False
    input: str = "as in the data files"
    features: tuple[str, ...] | None = None
    votes: NDArray[np.int64] | None = None
    public_rows: NDArray[np.int64] | None = None
    shards: Shards | None = None
    left_out: int = 0
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        shape = self.X_private.shape[1:]
        named = {"private": self.X_private, "public": self.X_public, "test": self.X_test}
        for name, X in named.items():
            if X is None:
                continue
            if X.shape[1:] != shape:
                raise DataError(f"{name} examples have shape {X.shape[1:]}, private ones {shape}: make them the same")
            if len(X) == 0 and name != "test" and (name == "public" or (self.votes is None and self.shards is None)):
                raise DataError(f"the {name} data is empty")
            if not np.isfinite(X).all():
                row = int(np.argwhere(~np.isfinite(X))[0][0])
                raise DataError(
                    f"{name} data: NaN or infinity in row {row} (counted from 0); fill missing values before the run"
                )
        if len(self.X_private) != len(self.y_private):
            raise DataError("private data: not as many labels as records")
        if self.ids_private is not None:
            if len(self.X_private) != len(self.ids_private):
                raise DataError("private data: not as many ids as records")
            if not all(isinstance(i, str) for i in self.ids_private):
                raise DataError("private data: ids must all be text, one form for each person")
        if self.X_test is not None and self.y_test is not None and len(self.X_test) != len(self.y_test):
            raise DataError(f"{len(self.X_test)} test examples but {len(self.y_test)} labels")
        if len(self.classes) < 2:
            raise DataError("data.classes: at least two classes are needed")

    def test_digest(self) -> str | None:
        """Equal for equal test sets: figures are only comparable on the same one."""
        if self.X_test is None or self.y_test is None:
            return None
        digest = sha256()
        for array in (self.X_test, self.y_test):
            digest.update(repr((array.shape, str(array.dtype))).encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()[:16]

    def asked_first(self, rows: NDArray[np.int64]) -> Dataset:
        """The same data with the public examples `rows` before the others."""
        if np.array_equal(rows, np.arange(len(rows))):
            return self
        return self.reordered(np.concatenate([rows, np.setdiff1d(np.arange(len(self.X_public)), rows)]))

    def reordered(self, rows: NDArray[np.int64]) -> Dataset:
        """The same data with its public examples, and all that belongs to them, in the order of `rows`."""
        return replace(
            self,
            X_public=self.X_public[rows],
            y_public=None if self.y_public is None else self.y_public[rows],
            votes=None if self.votes is None else self.votes[rows],
            public_rows=rows if self.public_rows is None else self.public_rows[rows],
        )
