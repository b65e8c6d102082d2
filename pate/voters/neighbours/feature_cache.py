"""Features of examples that were worked out before: kept inside the trust boundary, because they are slow to make.

A pre-trained network that sees one record at a time takes minutes for what every round, every seed and every resumed
run needs again. What is kept is what was computed, bit for bit, so a record has the same cells with and without it.
Features of private records are as private as the records: files are for their owner only, forgetting erases them, and
a run that is done with its rounds keeps none.
"""

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
from pate.storage.files import make_folder, write_atomically
from pate.voters.neighbours.features import RecordFeatures


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
