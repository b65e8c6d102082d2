"""Cells of public examples, and which of them a record is nearest to: in whole numbers, so rounding decides nothing.

Neighbouring relation: one record added, removed or changed. Guarantee: the cells that a record votes in are a function
of the record's own bytes and of public data; so another record that comes or goes moves no vote but its own.

Floating point would break that: a matrix product may add up in another order when a record stands elsewhere in a
batch, and a record on the border between two cells would then move although nothing about it changed. So features are
rounded to whole numbers record by record, and from there on everything is whole numbers that are exact in double
precision, whatever the order, the batch, the number of threads or the machine. Ties go to the lower cell.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate import __version__
from pate.components._registry import found_file
from pate.errors import DataError
from pate.features import Transform, alone, build_steps
from pate.networks._process import one_thread
from pate.storage._files import make_folder, write_arrays

Array = NDArray[np.float64]

_FEATURE_BITS, _COMPONENT_BITS, _PLACE_BITS = 12, 12, 18  # public examples use these many; private ones, one more
_MAX_FEATURES, _MAX_PLACES = 1 << 20, 1 << 12
_BLOCK = 2048


@dataclass(frozen=True)
class Space:
    """From features to whole-numbered places, fixed by public examples: rounding, and their principal directions.

    Bounds: a feature is clipped to 2¹³, a direction's entries to 2¹², a place to 2¹⁹. A place sums at most 2²⁰ products
    below 2²⁵, a distance at most 2¹² products below 2³⁹: all below 2⁵³, where doubles are exact.
    """

    middle: Array
    gain: Array
    directions: Array | None = None
    shift: int = 0

    @classmethod
    def of(cls, features: NDArray, components: int | None, standardise: bool = False) -> Space:
        """The space of public `features` [examples, features]; `components` of them, by PCA, or all as they are."""
        features = np.asarray(features, dtype=np.float64)
        if not np.isfinite(features).all():
            raise DataError("neighbours.features: public examples have features that are NaN or infinite")
        middle = features.mean(axis=0)
        spread = features.std(axis=0) if standardise else np.full(features.shape[1], 1.0)
        spread = np.where(spread > 1e-9, spread, 1.0)
        largest = max(float(np.abs((features - middle) / spread).max(initial=0)), 1e-12)
        gain = (2.0**_FEATURE_BITS - 1) / largest / spread
        rounded = cls(middle, gain)
        if components is None or components >= min(features.shape):
            return rounded
        from sklearn.decomposition import PCA

        whole = rounded.places(features)
        found = PCA(components, random_state=0).fit(whole).components_.T
        directions = np.rint(found * (2.0**_COMPONENT_BITS - 1))
        reach = float(np.abs(whole @ directions).max(initial=1))
        shift = max(0, int(np.ceil(np.log2(reach / 2.0**_PLACE_BITS))))
        return cls(middle, gain, directions, shift)

    def places(self, features: NDArray) -> Array:
        """Where examples are: whole numbers; NaN where a feature was none."""
        features = np.asarray(features, dtype=np.float64)
        clip = 2.0 ** (_FEATURE_BITS + 1)
        with np.errstate(invalid="ignore", over="ignore"):
            whole = np.clip(np.rint((features - self.middle) * self.gain), -clip, clip)
        whole[~np.isfinite(features).all(axis=1)] = np.nan
        if self.directions is None:
            return whole
        clip = 2.0 ** (_PLACE_BITS + 1)
        return np.clip(np.floor((whole @ self.directions) * 2.0**-self.shift), -clip, clip)


@dataclass(frozen=True)
class Cells:
    """The cells of one round: a space and a centre for each of them. Public."""

    space: Space
    centres: Array

    @classmethod
    def of(cls, space: Space, features: NDArray, n_cells: int, seed: int) -> Cells:
        """Centres of clusters of the public examples; from public data alone, the same for the same seed."""
        from sklearn.cluster import KMeans

        places = space.places(features)
        if n_cells > len(places):
            raise DataError(f"neighbours.cells = {n_cells}: there are only {len(places)} public examples")
        if places.shape[1] > (_MAX_PLACES if space.directions is not None else _MAX_FEATURES):
            raise DataError(f"neighbours: {places.shape[1]} features are too many; name fewer neighbours.components")
        found = KMeans(n_cells, n_init=3, random_state=seed).fit(places)
        return cls(space, np.rint(found.cluster_centers_))

    def __len__(self) -> int:
        return len(self.centres)

    def nearest(self, features: NDArray, votes: int = 1) -> NDArray[np.int64]:
        """The `votes` nearest cells of each example, nearest first, ties to the lower cell; −1 where it has none.

        >>> Cells(Space(np.zeros(1), np.ones(1)), np.array([[0.0], [4.0]])).nearest(np.array([[1], [2], [np.nan]])).T
        array([[ 0,  0, -1]])
        """
        blocks = [self._nearest(features[i : i + _BLOCK], votes) for i in range(0, len(features), _BLOCK)]
        return np.concatenate([np.empty((0, votes), np.int64), *blocks])

    def _nearest(self, features: NDArray, votes: int) -> NDArray[np.int64]:
        places = self.space.places(features)
        somewhere = np.isfinite(places).all(axis=1, keepdims=True)
        distance = (self.centres**2).sum(axis=1) - 2 * (np.where(somewhere, places, 0) @ self.centres.T)
        if votes == 1:
            cells = distance.argmin(axis=1)[:, None]
        else:
            cells = np.argsort(distance, axis=1, kind="stable")[:, :votes]
        return np.where(somewhere, cells, -1).astype(np.int64)

    def nearest_examples(self, features: NDArray) -> NDArray[np.int64]:
        """For each cell, the public example nearest to its centre, the first of several."""
        places = self.space.places(features)
        distance = (places**2).sum(axis=1)[:, None] - 2 * (places @ self.centres.T)
        return distance.argmin(axis=0).astype(np.int64)

    def arrays(self) -> dict[str, Any]:
        """All of it, for a file."""
        content = {"middle": self.space.middle, "gain": self.space.gain, "shift": np.array(self.space.shift)}
        if self.space.directions is not None:
            content["directions"] = self.space.directions
        return content | {"centres": self.centres}

    @classmethod
    def read(cls, path: Path) -> Cells:
        """What `arrays` gave."""
        with np.load(path, allow_pickle=False) as file:
            directions = file["directions"] if "directions" in file.files else None
            return cls(Space(file["middle"], file["gain"], directions, int(file["shift"])), file["centres"])


_AT_ONCE = 4096  # records whose features are in memory together

Features = Callable[[NDArray], NDArray]


@dataclass(frozen=True)
class CellVote:
    """One round: what everybody who counts has to know. `features` works on each example by itself.

    `known` is a public example: where even its features cannot be computed, it is not a record's doing, and an error.
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
        """Features of records; NaN for one that they cannot be computed for."""
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


@dataclass(frozen=True)
class RecordFeatures:
    """Transforms one after the other or, where there is one, what a student of released labels has learned to see.

    A transform that says `exact_by_row` gives a row the same bits in any batch and may be handed many at once; any
    other, and a network above all, gets every record alone: a batch could change the last bit, and that a cell.
    """

    steps: Sequence[Mapping[str, Any]]
    student: Any = None

    def __call__(self, X: NDArray) -> NDArray[np.float64]:
        return np.asarray(self.computed(X), dtype=np.float64)

    def computed(self, X: NDArray) -> NDArray:
        """Features in the precision they are computed in, [examples, features]; NaN for an example that holds NaN.

        No transform sees such an example: what it would make of it, or whether it would fail, is nobody's promise.
        """
        numbers = np.isfinite(X).reshape(len(X), -1).all(axis=1)
        if numbers.all():
            return self._of_numbers(X)
        found = self._of_numbers(np.where(numbers.reshape(-1, *[1] * (X.ndim - 1)), X, 0))
        found = np.array(found, dtype=np.result_type(found, np.float32))
        found[~numbers] = np.nan
        return found

    def _of_numbers(self, X: NDArray) -> NDArray:
        with one_thread():
            if self.student is not None:
                return alone(self.student.features, X)
            for step in build_steps(self.steps, "neighbours.features"):
                X = transformed(step, X)
        return np.asarray(X).reshape(len(X), -1)


def transformed(step: Transform, X: NDArray) -> NDArray:
    """What a transform makes of each example, bit for bit the same in any company."""
    return step.transform(X) if getattr(step, "exact_by_row", False) else alone(step.transform, X)


@dataclass(frozen=True)
class FeatureCache:
    """Features that are read from a file below `folder` where they were computed before.

    A file is known by a digest of the transforms, of the files that their parameters name (weights), and of the
    examples' own bytes. A file that cannot be written or read costs time and nothing else.
    """

    features: RecordFeatures
    folder: Path

    def __call__(self, X: NDArray) -> NDArray[np.float64]:
        path = self.folder / f"{_digest(self.features.steps, X)}.npy"
        with suppress(OSError, ValueError):
            found = np.load(path, mmap_mode="r", allow_pickle=False)
            if len(found) == len(X):
                return np.asarray(found, dtype=np.float64)
        found = self.features.computed(X)
        with suppress(OSError):
            make_folder(self.folder, 0o700)
            write_arrays(path, found)
        return np.asarray(found, dtype=np.float64)


def _digest(steps: Sequence[Mapping[str, Any]], X: NDArray) -> str:
    """Equal for equal transforms of equal examples."""
    digest = blake2b(digest_size=16)
    digest.update(json.dumps([__version__, list(steps), X.shape, X.dtype.str], default=str, sort_keys=True).encode())
    for value in (value for step in steps for value in step.get("params", {}).values()):
        file = found_file(value) if isinstance(value, str) else None
        if file is not None:
            digest.update(blake2b(file.read_bytes()).digest())
    digest.update(np.ascontiguousarray(X).data)
    return digest.hexdigest()
