"""Parameters chosen privately: each candidate learns from its own part of the data, one is chosen with noise."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

from pate.accounting import parameters
from pate.baselines.dp_erm import DPLinearClassifier, usable_records
from pate.data.partition import split_into_parts
from pate.errors import ConfigError
from pate.noise.continuous import Entropy, exponential_choice


class PrivatelyTuned(ClassifierMixin, BaseEstimator):
    """The best of several `DPLinearClassifier`s, chosen and trained at one ε (Chaudhuri et al. 2011, Algorithm 3).

    Neighbouring data sets differ in one record added or removed; with `ids`, also in its content under the same id.
    (Without ids a record's part is a hash of its bytes, so changing it can touch two parts: that is two steps.)

    Records are hashed into m + 1 parts; candidate i is trained on part i with ε, and the exponential mechanism with ε
    picks one by its number of errors on the last part. Sensitivity: a record is in one part. In a training part it
    changes one candidate, which is ε-DP, and the choice among candidates only processes that further; in the last
    part it changes each count of errors by at most 1.

    A record whose features are no numbers, or whose label is not among `classes`, is as if it were not there.

    Guarantee: the chosen candidate and its coefficients are ε-DP together.
    """

    def __init__(
        self,
        epsilon: float = 1.0,
        *,
        n_records: float,
        candidates: Sequence[dict[str, Any]],
        params: dict[str, Any] | None = None,
        classes: Sequence[Any] = (0, 1),
        random_state: int = 0,
        entropy: Entropy = os.urandom,
    ) -> None:
        self.epsilon = epsilon
        self.n_records = n_records
        self.candidates = candidates
        self.params = params
        self.classes = classes
        self.random_state = random_state
        self.entropy = entropy

    def fit(self, X: NDArray, y: NDArray, ids: Sequence[str] | None = None) -> PrivatelyTuned:
        """Train every candidate and choose one, which costs `epsilon` in all; `ids` say whose each record is."""
        if not self.candidates:
            raise ConfigError("candidates: give at least one set of parameters, such as {regularisation: 1e-3}")
        parameters.epsilon(self.epsilon)
        parameters.positive(self.n_records, "n_records")
        X, y = np.asarray(X, dtype=np.float64), np.asarray(y)
        usable = usable_records(X, y, self.classes)
        self.left_out_ = int((~usable).sum())
        X, y, ids = X[usable], y[usable], None if ids is None else [i for i, u in zip(ids, usable, strict=True) if u]
        models = [self._candidate(candidate) for candidate in self.candidates]
        *training, held_out = split_into_parts(X, y, ids, self.entropy(32), len(models) + 1)
        for model, part in zip(models, training, strict=True):
            model.fit(X[part], y[part])
        errors = [int((model.predict(X[held_out]) != y[held_out]).sum()) for model in models]
        chosen = exponential_choice(-np.array(errors), self.epsilon, self.entropy)
        self.best_params_, self.best_ = dict(self.candidates[chosen]), models[chosen]
        self.classes_ = self.best_.classes_
        self.epsilon_, self.delta_ = float(self.epsilon), 0.0
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X: NDArray) -> NDArray:
        """The class of each example, by the chosen candidate."""
        return self.best_.predict(X)

    def weights(self) -> dict[str, NDArray]:
        """What is released, together with `best_params_`."""
        return self.best_.weights()

    def learned(self) -> dict[str, Any]:
        """What `restore` needs beside the weights."""
        return {"best_params": self.best_params_}

    def restore(self, weights: dict[str, NDArray], about: dict[str, Any]) -> PrivatelyTuned:
        """The chosen classifier again, from what was released."""
        self.best_params_ = about["best_params"]
        self.best_ = self._candidate(self.best_params_).restore(weights, {})
        self.classes_ = self.best_.classes_
        self.epsilon_, self.delta_ = float(self.epsilon), 0.0
        return self

    def _candidate(self, candidate: dict[str, Any]) -> DPLinearClassifier:
        settings = {"random_state": self.random_state, **(self.params or {}), **candidate}
        try:
            return DPLinearClassifier(
                self.epsilon,
                n_records=self.n_records / (len(self.candidates) + 1),
                classes=self.classes,
                entropy=self.entropy,
                **settings,
            )
        except TypeError as error:
            raise ConfigError(f"candidates: {error}") from None
