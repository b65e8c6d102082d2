"""Distillation: any classifier, fitted to the released labels."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

from pate.errors import ConfigError
from pate.mechanisms import UNANSWERED
from pate.teachers import build_estimator
from pate.teachers.part import PartClassifier


class Supervised(ClassifierMixin, BaseEstimator):
    """`estimator` is any teacher kind. Examples answered ⊥ are dropped, unless `unlabelled` is 'mark': then they,
    and the public examples nobody asked about, go along with label −1, as `sklearn.semi_supervised` wants them.
    """

    def __init__(
        self,
        estimator: str = "sklearn.svm.SVC",
        params: dict[str, Any] | None = None,
        unlabelled: str = "ignore",
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.params = params
        self.unlabelled = unlabelled
        self.random_state = random_state

    def fit(self, X: NDArray, y: NDArray[np.int64], X_unlabelled: NDArray | None = None) -> Supervised:
        if self.unlabelled not in ("ignore", "mark"):
            raise ConfigError(f"student.params.unlabelled = {self.unlabelled!r}: must be 'ignore' or 'mark'")
        inner = build_estimator(self.estimator, self.params or {}, self.random_state, "student.params.estimator")
        if self.unlabelled == "mark" and X_unlabelled is not None:
            X = np.concatenate([X, X_unlabelled])
            y = np.concatenate([y, np.full(len(X_unlabelled), UNANSWERED)])
        elif self.unlabelled == "ignore":
            X, y = X[y != UNANSWERED], y[y != UNANSWERED]
        self.classifier_ = PartClassifier(inner).fit(X, y)
        return self

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        return self.classifier_.predict(X)
