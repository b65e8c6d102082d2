"""Models as attacks see them, and how models of the same kind are trained: for shadow models.

A model gives a probability for each of all classes. Whoever gives none is asked for decision values, which rise with
them; who gives neither, for labels.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pate.config import BaselineConfig
    from pate.data.public import PublicData

Probabilities = NDArray[np.float64]


class Scorer(Protocol):
    """A trained model."""

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        """The class of each example, as a position in the list of classes."""

    def predict_proba(self, X: NDArray) -> Probabilities:
        """float[examples, classes]."""


class Trainer(Protocol):
    """Trains models of one kind; can be sent to another process."""

    @property
    def description(self) -> str:
        """What is trained, for people; equal for equal kinds."""

    def train(self, X: NDArray, y: NDArray[np.int64], seed: int) -> Scorer:
        """A model of these examples alone, the same for the same seed where the kind allows that."""


@dataclass(frozen=True)
class Fitted:
    """Any classifier of this package or scikit-learn's as a `Scorer` of `n_classes`."""

    model: Any
    n_classes: int
    flat: bool = False
    """Whether the model takes no images."""

    @classmethod
    def of_baseline(cls, model: Any, n_classes: int) -> Fitted:
        """A baseline's model; it says whether it takes images."""
        return cls(model, n_classes, not getattr(model, "accepts_images", False))

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        return np.asarray(self.model.predict(self._shaped(X))).astype(np.int64).reshape(-1)

    def predict_proba(self, X: NDArray) -> Probabilities:
        X = self._shaped(X)
        shares = _shares(self.model, X)
        if shares is None:
            return np.eye(self.n_classes)[self.predict(X)]
        classes = np.asarray(getattr(self.model, "classes_", np.arange(shares.shape[1]))).astype(np.int64)
        spread = np.zeros((len(X), self.n_classes))
        spread[:, classes] = shares
        return spread

    def _shaped(self, X: NDArray) -> NDArray:
        return X.reshape(len(X), -1) if self.flat else X


def _shares(model: Any, X: NDArray) -> Probabilities | None:
    """Probabilities of the model's own classes, made of decision values where it has no others."""
    model = getattr(model, "best_", model)  # of several candidates
    adapter = getattr(model, "classifier_", None)  # of a student that is any classifier
    inner = getattr(adapter, "estimator", None)
    if adapter is not None and inner is not None and not hasattr(inner, "predict_proba"):
        X = model.prepared_.transform(X) if model.preprocessing and len(X) else X
        return _from_decisions(inner, adapter.shaped(X))
    if hasattr(model, "predict_proba"):
        return np.asarray(model.predict_proba(X), dtype=np.float64)
    return _from_decisions(model, X)


def _from_decisions(estimator: Any, X: NDArray) -> Probabilities | None:
    """Softmax of decision values; None where there are none, or one for each pair of classes."""
    if not hasattr(estimator, "decision_function"):
        return None
    values = np.asarray(estimator.decision_function(X), dtype=np.float64)
    if values.ndim == 1:
        values = np.stack([-values / 2, values / 2], axis=1)
    if values.shape[1] != len(estimator.classes_):
        return None
    values = np.exp(values - values.max(axis=1, keepdims=True))
    return values / values.sum(axis=1, keepdims=True)


@dataclass(frozen=True)
class NonprivateTrainer:
    """Trains a classifier that a config would name, with its public features, on all examples together."""

    name: str
    n_classes: int
    params: dict[str, Any] = field(default_factory=dict)
    features: tuple[dict[str, Any], ...] = ()

    @property
    def description(self) -> str:
        given = ", ".join(f"{key}={value}" for key, value in self.params.items())
        before = "".join(f"{step['name']}, " for step in self.features)
        return f"{before}{self.name.rpartition('.')[2]}({given})"

    def train(self, X: NDArray, y: NDArray[np.int64], seed: int) -> Scorer:
        from pate.features import build_features
        from pate.networks.threads import one_thread
        from pate.teachers import build_estimator
        from pate.teachers.part import PartClassifier

        features = build_features(self.features, "nonprivate.features")
        with one_thread():
            adapter = PartClassifier(build_estimator(self.name, self.params, seed, "nonprivate.name"))
            adapter.fit(features.transform(X), y)
        return Fitted(_Prepared(features, adapter), self.n_classes)


@dataclass(frozen=True)
class _Prepared:
    """Public features and a classifier behind them, with its labels as they were before it re-coded them."""

    features: Any
    adapter: Any

    @property
    def classes_(self) -> NDArray[np.int64]:
        return np.asarray(self.adapter.present_, dtype=np.int64)

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        return np.asarray(self.adapter.predict(self.features.transform(X)), dtype=np.int64)

    def predict_proba(self, X: NDArray) -> Probabilities:
        estimator = self.adapter.estimator
        if len(self.classes_) < 2:
            return np.ones((len(X), len(self.classes_)))
        shares = _shares(estimator, self.adapter.shaped(self.features.transform(X)))
        return np.eye(len(self.classes_))[np.searchsorted(self.classes_, self.predict(X))] if shares is None else shares


@dataclass(frozen=True)
class Baseline:
    """Trains a baseline with the budget of its config, and noise of its own.

    Shadow models have fewer examples than the `n_records` it is for: their lots are the same share of them, so that
    they take as many steps.
    """

    name: str
    n_classes: int
    epsilon: float | None
    delta: float
    params: dict[str, Any] = field(default_factory=dict)
    X_public: NDArray | None = field(default=None, repr=False, compare=False)
    n_records: int | None = None

    @classmethod
    def of(cls, config: BaselineConfig, data: PublicData, n_records: int) -> Baseline:
        """The config's own baseline; `n_records` where the config does not say how many there are."""
        chosen, budget = config.baseline, config.budget
        n_records = n_records if config.records is None else config.records
        params = dict(chosen.params)
        return cls(chosen.name, data.n_classes, budget.epsilon, budget.delta, params, data.X_public, n_records)

    @property
    def description(self) -> str:
        return f"{self.name} with ε = {self.epsilon:g}" if self.epsilon is not None else self.name

    def build(self, n_records: int | None, seed: int) -> Any:
        """The model for so many records, not fitted."""
        from pate.baselines import build_baseline

        params = dict(self.params)
        if "lot_size" in params and n_records is not None and self.n_records not in (None, n_records):
            params["lot_size"] = max(1, round(params["lot_size"] * n_records / self.n_records))
        given = {"epsilon": self.epsilon, "delta": self.delta, "n_records": n_records, "random_state": seed}
        return build_baseline(self.name, params, given | {"classes": range(self.n_classes)})

    def train(self, X: NDArray, y: NDArray[np.int64], seed: int) -> Scorer:
        model = self.build(len(X), seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the choice of parameters, told when the run began
            if hasattr(model, "plan"):
                model.fit(X, y, X_public=self.X_public)
            else:
                model.fit(X.reshape(len(X), -1), y)
        return Fitted.of_baseline(model, self.n_classes)
