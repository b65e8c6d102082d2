"""Any classifier on evenly many examples of each class, for classes that are far from equally frequent."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.metaestimators import available_if

from pate.teachers import build_estimator


class Balanced(ClassifierMixin, BaseEstimator):
    """Any classifier on evenly many examples of each class, for classes of very different frequency.

    The estimator is fitted to as many examples of every class as the most frequent one has: each example at least
    once, those of rarer classes again. It predicts a class where an example is likelier within that class than within
    others, however rare the class is. What it draws depends on its own part and seed alone, so a record touches one
    teacher. Labels of such teachers have more of the rare classes than there are.

    Parameters
    ----------
    estimator : str, default 'sklearn.linear_model.LogisticRegression'
        Short name or dotted path of any kind of teacher.
    params : dict, optional
        Parameters of the estimator.
    random_state : int, default 0
        Seed of everything that is drawn while training.
    """

    estimator_: Any
    classes_: NDArray[np.int64]

    def __init__(
        self,
        estimator: str = "sklearn.linear_model.LogisticRegression",
        params: dict[str, Any] | None = None,
        random_state: int = 0,
    ) -> None:
        self.estimator = estimator
        self.params = params
        self.random_state = random_state

    def fit(self, X: NDArray, y: NDArray[np.int64]) -> Balanced:
        """Fit the estimator to evenly many examples of each class."""
        inner: Any = build_estimator(self.estimator, self.params or {}, self.random_state, "params.estimator")
        rows = _even_rows(y, np.random.default_rng(self.random_state))
        self.estimator_ = inner.fit(X[rows], y[rows])
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        """The class of each example."""
        found: NDArray[np.int64] = self.estimator_.predict(X)
        return found

    @available_if(lambda self: hasattr(self.estimator_, "predict_proba"))
    def predict_proba(self, X: NDArray) -> NDArray[np.float64]:
        """Probabilities as if classes were equally frequent, a column for each of `classes_`."""
        found: NDArray[np.float64] = self.estimator_.predict_proba(X)
        return found


def _even_rows(y: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """Row numbers: every row, and rows of rarer classes again until each class has as many as the commonest.

    >>> y = np.array([0, 0, 0, 0, 1, 2, 2])
    >>> np.bincount(y[_even_rows(y, np.random.default_rng(0))]).tolist()
    [4, 4, 4]
    """
    classes, counts = np.unique(y, return_counts=True)
    chosen = [np.arange(len(y))]
    for label, count in zip(classes, counts, strict=True):
        chosen.append(rng.choice(np.flatnonzero(y == label), counts.max() - count))
    return np.concatenate(chosen).astype(np.int64)
