"""Private records vote near themselves.

Neighbouring relation: one record added, removed, or changed under its id; with ids, all records of a person.
Sensitivity: a record (a person) has at most `votes` votes in all, each in another cell. Added or removed it changes at
most `votes` counts by 1; changed, at most twice as many.
Which cells those are depends on the record's (the person's) own bytes, the key and public data alone.
A record whose features are not numbers or cannot be worked out, or whose label is not a class, casts no vote. Neither
that, nor that there is no record at all, is a reason to stop.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pate.voters.neighbours.cells import Cells

_AT_ONCE = 4096  # records whose features are in memory together

Features = Callable[[NDArray], NDArray]


@dataclass(frozen=True)
class CellVote:
    """One round: what everybody who counts has to know. `features` works on each example by itself.

    `known` is a public example: where even its features cannot be worked out, it is not a record's doing, and an error.
    """

    features: Features
    cells: Cells
    votes: int
    n_classes: int
    known: NDArray | None = None

    def count(self, X: NDArray, y: NDArray[np.int64]) -> NDArray[np.int64]:
        """Votes of records by cell and class, [cells, classes]."""
        counts = np.zeros(len(self.cells) * self.n_classes, dtype=np.int64)
        for rows, nearest in self._nearest(X):
            self._add(counts, nearest.reshape(-1), np.repeat(y[rows], self.votes))
        return counts.reshape(len(self.cells), self.n_classes)

    def count_persons(
        self, X: NDArray, y: NDArray[np.int64], ids: Sequence[Hashable], ranks: Sequence[bytes]
    ) -> NDArray[np.int64]:
        """Votes of persons by cell and class, [cells, classes]; all records of each person must be here.

        `ranks` are keyed hashes of the records' content.
        """
        counts = np.zeros(len(self.cells) * self.n_classes, dtype=np.int64)
        nearest = np.concatenate([np.empty((0, self.votes), np.int64), *(found for _, found in self._nearest(X))])
        nearest[~self._is_class(y)] = -1
        for cells, labels in _of_persons(nearest, y, ids, ranks, self.votes):
            self._add(counts, cells, labels)
        return counts.reshape(len(self.cells), self.n_classes)

    def _nearest(self, X: NDArray) -> Iterator[tuple[slice, NDArray[np.int64]]]:
        for begin in range(0, len(X), _AT_ONCE):
            rows = slice(begin, begin + _AT_ONCE)
            yield rows, self.cells.nearest(self._features_of(X[rows]), self.votes)

    def _features_of(self, X: NDArray) -> NDArray:
        """Features of records; NaN for one that they cannot be worked out for."""
        width = self.cells.space.middle.shape
        try:
            found = self.features(X)
            if found.shape == (len(X), *width):
                return found
        except Exception:
            if self.known is not None:
                self.features(self.known)
        alone = np.full((len(X), *width), np.nan)
        for i in range(len(X)):
            with suppress(Exception):  # also where there are more or fewer features than everybody else has
                alone[i : i + 1] = self.features(X[i : i + 1]).reshape(1, *width)
        return alone

    def _is_class(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (labels >= 0) & (labels < self.n_classes)

    def _add(self, counts: NDArray[np.int64], cells: NDArray[np.int64], labels: NDArray[np.int64]) -> None:
        voting = (cells >= 0) & self._is_class(labels)
        counts += np.bincount(cells[voting] * self.n_classes + labels[voting], minlength=len(counts))


def _of_persons(
    nearest: NDArray[np.int64], y: NDArray[np.int64], ids: Sequence[Hashable], rank: Sequence[bytes], votes: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Cells and labels of each person's votes: at most `votes`, no two in one cell.

    A person's records are gone through in the order of a keyed hash of their content; each offers the cell it is
    nearest to, then all offer the next nearest, and cells that the person has not voted in are taken until enough are.
    """
    records: dict[Hashable, list[int]] = {}
    for row, person in enumerate(ids):
        records.setdefault(person, []).append(row)
    for rows in records.values():
        taken: dict[int, int] = {}
        rows.sort(key=rank.__getitem__)
        for row, cell in ((row, int(nearest[row, depth])) for depth in range(votes) for row in rows):
            if len(taken) == votes:
                break
            if cell >= 0:
                taken.setdefault(cell, int(y[row]))
        yield np.array(list(taken), dtype=np.int64), np.array(list(taken.values()), dtype=np.int64)
