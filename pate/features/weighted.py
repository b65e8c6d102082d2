"""Columns of a table made to count for more or less where distances are taken."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from pate.errors import DataError


class Weighted:
    """Columns of a table multiplied by factors, so that they count for more or less in distances.

    Numbers between 0 and 1 hardly count beside categories, which are 0 or 1 whole; a factor makes up for that.

    Parameters
    ----------
    columns : list of int
        Columns by number; the first is 0.
    by : float or list of float
        One factor for all of them, or one for each.
    """

    exact_by_row = True  # elementwise

    def __init__(self, columns: Sequence[int], by: float | Sequence[float]) -> None:
        if any(isinstance(column, bool) or not isinstance(column, int) or column < 0 for column in columns):
            raise ValueError(f"columns = {list(columns)}: must be whole numbers, the first column is 0")
        try:
            factors = np.broadcast_to(np.asarray(by, dtype=np.float32), (len(columns),))
        except ValueError:
            raise ValueError(f"by = {by!r}: must be one number, or one for each of {len(columns)} columns") from None
        if not np.isfinite(factors).all():
            raise ValueError(f"by = {by!r}: must be finite")
        self.columns = list(columns)
        self.by = by
        self._factors = factors

    def transform(self, X: NDArray) -> NDArray[np.float32]:
        X = np.array(X, dtype=np.float32)
        if X.ndim != 2 or X.shape[1] <= max(self.columns, default=0):
            raise DataError(
                f"weighted: columns up to {max(self.columns, default=0)} are not in examples of {X.shape[1:]}"
            )
        X[:, self.columns] *= self._factors
        return X
