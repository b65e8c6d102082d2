"""Files of vote histograms."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pate.accounting import parameters
from pate.data.arrays import npy_array
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
