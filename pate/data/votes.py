"""A votes file, for people who only want the accounting, or who compare students without training teachers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate.accounting import parameters
from pate.data.arrays import npy_array
from pate.data.dataset import Dataset, Votes
from pate.data.formats import content_of
from pate.errors import DataError

_ZIP = b"PK"


def load_votes(path: Path, first: int | None = None) -> NDArray[np.int64]:
    """Vote histograms, int[queries, classes], from a .npy file; every row sums to the number of teachers."""
    if not path.exists():
        raise DataError(f"{path}: no such file")
    content = content_of(str(path))
    if content.startswith(_ZIP):
        raise DataError(f"{path}: an archive; give a .npy file with one array")
    return parameters.votes(npy_array(content, str(path)), str(path))[:first]


def with_votes(images: Dataset, file: str, folder: Path) -> Dataset:
    """The public and test images of a benchmark, and stored votes on the former in place of private records.

    Row i of the file is the histogram of public image i; rows beyond the public images are left out.
    """
    from pate.data.tables import existing

    path = existing(file, folder)
    votes = load_votes(path)
    if votes.shape[1] != len(images.classes):
        raise DataError(f"{path}: has {votes.shape[1]} columns, but the images have {len(images.classes)} classes")
    if len(votes) < len(images.X_public):
        raise DataError(f"{path}: has {len(votes)} rows, but there are {len(images.X_public)} public images")
    return replace(images, private=Votes(votes[: len(images.X_public)]))
