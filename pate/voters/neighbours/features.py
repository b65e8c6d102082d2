"""Public features of records, worked out so that those of one record do not depend on the company it is in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.features import Transform, alone, build_steps
from pate.networks.threads import one_thread


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
