"""The range of public examples: what lies beyond it counts as its end, for nothing was ever seen out there.

Guarantee: what becomes of a record depends on that record and on public examples alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class PublicRange:
    """The least and the largest value of each feature, or of all pixels of images alike, among public examples."""

    low: tuple[float, ...]
    high: tuple[float, ...]

    @classmethod
    def of(cls, X_public: NDArray, between_0_and_1: Sequence[bool] = ()) -> PublicRange:
        """The range of public examples; of features that say yes or no, 0 and 1, whether or not both occur.

        >>> PublicRange.of(np.array([[1.0, 0], [3, 0]]), [False, True])
        PublicRange(low=(1.0, 0.0), high=(3.0, 1.0))
        """
        flat = X_public if X_public.ndim == 2 else X_public.reshape(-1, 1)
        there = np.isfinite(flat)
        low = flat.min(axis=0, initial=_LARGEST, where=there).astype(np.float64)
        high = flat.max(axis=0, initial=-_LARGEST, where=there).astype(np.float64)
        nowhere = low > high  # no public number
        low, high = np.where(nowhere, -_LARGEST, low), np.where(nowhere, _LARGEST, high)
        if len(between_0_and_1):
            low, high = np.where(between_0_and_1, 0, low), np.where(between_0_and_1, 1, high)
        return cls(tuple(low.tolist()), tuple(high.tolist()))

    @classmethod
    def of_card(cls, content: Any, shape: tuple[int, ...]) -> PublicRange | None:
        """What `on_card` wrote for examples of a shape; ValueError if it is anything else."""
        if content is None:
            return None
        given = content if isinstance(content, dict) else {}
        low, high = (_numbers(given.get(end), shape[0] if len(shape) == 1 else 1) for end in ("low", "high"))
        if any(a > b for a, b in zip(low, high, strict=True)):
            raise ValueError("has a range that ends before it begins")
        return cls(low, high)

    def on_card(self) -> dict[str, list[float]]:
        """The range, for a student's card."""
        return {"low": list(self.low), "high": list(self.high)}

    def clip(self, X: NDArray) -> NDArray:
        """The examples, what is beyond the range moved to its end; NaN and infinity, which are no numbers, stay.

        >>> PublicRange((0.0,), (1.0,)).clip(np.array([[-2], [0.5], [7], [np.inf]], dtype=np.float32)).T.tolist()
        [[0.0, 0.5, 1.0, inf]]
        """
        low, high = np.asarray(self.low, dtype=X.dtype), np.asarray(self.high, dtype=X.dtype)
        return np.where(np.isinf(X), X, np.clip(X, low, high))


def _numbers(values: Any, width: int) -> tuple[float, ...]:
    """One end of a range that a card names."""
    if not isinstance(values, list) or len(values) != width:
        raise ValueError("has a range that does not fit its features")
    if not all(type(value) in (int, float) and abs(value) <= _LARGEST for value in values):
        raise ValueError("has a range that is not of numbers")
    return tuple(float(value) for value in values)
