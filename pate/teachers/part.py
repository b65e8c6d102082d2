"""Any classifier on one part of the data, whatever the part lacks."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.mechanisms import UNANSWERED


class PartClassifier:
    """Adapts a scikit-learn style classifier to the configured set of classes.

    A part may lack classes, hold one class only, or be empty: then the answer is that class, or class 0.
    Labels are re-coded to 0 … m−1 for the estimator, since some want that; `UNANSWERED` passes through, for
    semi-supervised estimators. Images are flattened unless the estimator says `accepts_images = True`.
    """

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator

    def fit(self, X: NDArray, y: NDArray[np.int64], sample_weight: NDArray[np.float64] | None = None) -> PartClassifier:
        """Fit the estimator, if the part has two classes or more."""
        self.present_ = np.unique(y[y != UNANSWERED])
        if len(self.present_) >= 2:
            coded = np.searchsorted(self.present_, y)
            further = {} if sample_weight is None else {"sample_weight": sample_weight}
            self.estimator.fit(self._shaped(X), np.where(y == UNANSWERED, UNANSWERED, coded), **further)
        return self

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        """Labels among those of the part."""
        if len(self.present_) < 2:
            constant = self.present_[0] if len(self.present_) else 0
            return np.full(len(X), constant, dtype=np.int64)
        coded = np.asarray(self.estimator.predict(self._shaped(X))).astype(np.int64).reshape(-1)
        return self.present_[coded].astype(np.int64)

    def _shaped(self, X: NDArray) -> NDArray:
        return X if getattr(self.estimator, "accepts_images", False) else X.reshape(len(X), math.prod(X.shape[1:]))
