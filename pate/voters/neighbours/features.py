"""Public features of records, worked out so that those of one record do not depend on the company it is in."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate import __version__
from pate.components.registry import found_file
from pate.features import Transform, alone, build_steps
from pate.networks.threads import one_thread
from pate.storage.files import make_folder, write_atomically


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
        found = _read(path, len(X))
        if found is None:
            found = self.features.computed(X)
            with suppress(OSError):
                make_folder(self.folder, 0o700)
                write_atomically(path, lambda partial: _save(partial, found))
        return np.asarray(found, dtype=np.float64)


def _read(path: Path, rows: int) -> NDArray | None:
    """The stored array, on disk still; None where there is none of so many rows."""
    try:
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError):
        return None
    return found if len(found) == rows else None


def _save(path: Path, array: NDArray) -> None:
    with path.open("wb") as file:
        np.save(file, array)


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
