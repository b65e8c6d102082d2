"""Distillation: any classifier, fitted to the released labels and, if wanted, to its own surest guesses."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import logsumexp, softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import Pipeline
from sklearn.utils.validation import has_fit_parameter

from pate.config._components import listed
from pate.errors import ConfigError
from pate.features import Features, build_features
from pate.mechanisms import UNANSWERED
from pate.storage._files import whole_numbers
from pate.teachers import PartClassifier, build_estimator, copied_estimator, full_name

if TYPE_CHECKING:  # of torch, which takes seconds to load
    from pate.teachers.network import Network

_USUAL = {"class_weight": None, "dual": False, "l1_ratio": 0.0, "penalty": "deprecated", "solver": "lbfgs"}
_USUAL |= {"intercept_scaling": 1, "warm_start": False}


def _is_network(model: object) -> TypeGuard[Network]:
    """Whether it is a network; where their module was not loaded there is none."""
    module = sys.modules.get("pate.teachers.network")
    return module is not None and isinstance(model, module.Network)


def _rows(X: NDArray) -> NDArray:
    return X.reshape(len(X), math.prod(X.shape[1:]))


def _decides_by_class(estimator: Any) -> bool:
    """Whether its decision function has a column for each class, and not for each pair of them."""
    settings = estimator.get_params() if hasattr(estimator, "get_params") else {}
    by_pair = any(name.endswith("decision_function_shape") and value == "ovo" for name, value in settings.items())
    return hasattr(estimator, "decision_function") and not by_pair


@dataclass(eq=False, repr=False)
class Supervised(ClassifierMixin, BaseEstimator):
    """Distillation: any classifier, fitted to the released labels.

    Examples that were not answered are dropped, unless `unlabelled` is 'mark'. With `self_training` rounds the
    estimator is fitted again on the released labels and on its own confident guesses about unlabelled examples, which
    needs `predict_proba`.

    Parameters
    ----------
    estimator : str, default 'sklearn.svm.SVC'
        Short name or dotted path of any kind of teacher.
    params : dict, optional
        Parameters of the estimator.
    unlabelled : {'ignore', 'mark'}, default 'ignore'
        With 'mark', unanswered and unasked examples go along with label −1, as sklearn.semi_supervised wants
        them.
    self_training : int, default 0
        Rounds of fitting again on its own guesses.
    threshold : float, default 0.9
        Confidence from which a guess counts as a label in self-training.
    random_state : int, default 0
        Seed of everything that is drawn while training.
    preprocessing : str, dict or list of them, optional
        Public transforms of `pate.features` before the estimator. They belong to the student: whoever predicts
        with it applies them too.
    standardise : bool, default False
        Whether columns are scaled by all public examples before the estimator.
    decision : {'likeliest', 'balanced'}, default 'likeliest'
        Which class is predicted: the one with the largest probability, or the one whose probability is largest
        compared with its share among the labels, so that rare classes are recognised as well as frequent ones.
        Probabilities are the same either way.
    """

    estimator: Any = "sklearn.svm.SVC"
    params: dict[str, Any] | None = None
    unlabelled: str = "ignore"
    self_training: int = 0
    threshold: float = 0.9
    random_state: int = 0
    preprocessing: Any = None
    standardise: bool = False
    decision: str = "likeliest"

    def fit(
        self,
        X: NDArray,
        y: NDArray[np.int64],
        X_unlabelled: NDArray | None = None,
        *,
        sample_weight: NDArray[np.float64] | None = None,
    ) -> Supervised:
        """Learn from `X` with labels `y`, where −1 is unanswered, and perhaps from `X_unlabelled`.

        With `sample_weight` each label counts by its weight, and an example may come with several.
        """
        if self.preprocessing:
            seen = self.transforms().transform
            many = None if X_unlabelled is None or len(X_unlabelled) == 0 else seen(X_unlabelled)
            return self.learned_by(self.bare().fit(seen(X), y, many, sample_weight=sample_weight))
        self._scaler = None
        if self.standardise:
            from sklearn.preprocessing import StandardScaler

            examples = X if X_unlabelled is None or not len(X_unlabelled) else np.concatenate([X, X_unlabelled])
            self._scaler = StandardScaler().fit(_rows(examples)) if len(examples) else None
        if sample_weight is not None:
            if self.unlabelled != "ignore" or self.self_training:
                raise ConfigError("student.params: neither unlabelled nor self_training goes with weighted labels")
            counts = (y != UNANSWERED) & (sample_weight > 0)
            self._fit(X[counts], y[counts], sample_weight[counts])
            return self
        if self.unlabelled not in ("ignore", "mark"):
            raise ConfigError(f"student.params.unlabelled = {self.unlabelled!r}: must be 'ignore' or 'mark'")
        pool = X[:0] if X_unlabelled is None else X_unlabelled
        if self.unlabelled == "mark":
            X = np.concatenate([X, pool])
            y = np.concatenate([y, np.full(len(pool), UNANSWERED)])
        else:
            pool = np.concatenate([X[y == UNANSWERED], pool])
            X, y = X[y != UNANSWERED], y[y != UNANSWERED]
        self._fit(X, y)
        for _ in range(self.self_training):
            if len(pool) == 0 or len(self.classes_) < 2:
                break
            if not hasattr(self.classifier_.estimator, "predict_proba"):
                raise ConfigError(
                    f"student.params.self_training: {full_name(self.build())} has no predict_proba to go by"
                )
            sure = self.predict_proba(pool).max(1) >= self.threshold
            self._fit(np.concatenate([X, pool[sure]]), np.concatenate([y, self.predict(pool[sure])]))
        return self

    def check(self) -> None:
        """Raise ConfigError where the estimator or the transforms could not be made."""
        if not isinstance(self.standardise, bool):
            raise ConfigError(f"student.params.standardise = {self.standardise!r}: must be true or false")
        if self.decision not in ("likeliest", "balanced"):
            raise ConfigError(f"student.params.decision = {self.decision!r}: must be 'likeliest' or 'balanced'")
        inner = self.build()
        if self.decision == "balanced" and not hasattr(inner, "predict_proba"):
            raise ConfigError(f"student.params.decision = 'balanced': {full_name(inner)} has no predict_proba to go by")
        if self.standardise and (_is_network(inner) or getattr(inner, "accepts_images", False)):
            raise ConfigError(
                "student.params.standardise: is for estimators that take rows of numbers, not for networks"
            )
        self.transforms()

    def build(self) -> BaseEstimator:
        """The estimator, not fitted."""
        key, params = "student.params.estimator", self.params or {}
        if isinstance(self.estimator, str):
            return build_estimator(self.estimator, params, self.random_state, key)
        return copied_estimator(self.estimator, params, self.random_state, key)

    def transforms(self) -> Features:
        """What comes before the estimator, built anew."""
        return build_features(listed(self.preprocessing or []), "student.params.preprocessing")

    def bare(self) -> Supervised:
        """An unfitted copy of this student for examples that are preprocessed already."""
        return Supervised(**(self.get_params() | {"preprocessing": None}))

    def learned_by(self, bare: Supervised) -> Supervised:
        """This student with what a `bare` one has learned from transformed examples."""
        self.prepared_ = self.transforms()
        self.classifier_: PartClassifier = bare.classifier_
        self.classes_: NDArray[np.int64] = bare.classes_
        self.class_shares_: NDArray[np.float64] = bare.class_shares_
        return self

    @property
    def stored_estimator(self) -> Any:
        """What was fitted, where that is no network: None where there was one class only."""
        inner = self.classifier_.estimator
        return None if len(self.classes_) < 2 or _is_network(inner) else inner

    def weights(self) -> dict[str, Any]:
        """The tensors of a network, by name."""
        inner = self.classifier_.estimator
        return inner.weights() if len(self.classes_) >= 2 and _is_network(inner) else {}

    def learned(self) -> dict[str, Any]:
        """All else that prediction needs, as plain values."""
        found: dict[str, Any] = {"present": self.classes_.tolist()}
        if len(self.classes_) < 2:
            return found
        if self.decision == "balanced":
            found["class_shares"] = self.class_shares_.tolist()
        inner = self.classifier_.estimator
        return found | ({"network": inner.learned()} if _is_network(inner) else {})

    def restore(self, weights: dict[str, Any], learned: dict[str, Any], estimator: Any = None) -> Supervised:
        """The fitted student again; ValueError if weights, what was learned and estimator do not belong together."""
        present = whole_numbers(learned["present"], "present")
        if self.decision not in ("likeliest", "balanced"):
            raise ValueError("decision: must be 'likeliest' or 'balanced'")
        self.prepared_ = self.transforms()
        fresh = self.build() if len(present) >= 2 else None
        if _is_network(fresh):
            if not all(UNANSWERED <= label < len(present) for label in learned["network"]["classes"]):
                raise ValueError("network.classes: more of them than are present")
            estimator = fresh.restore(weights, learned["network"])
        elif fresh is not None and estimator is None:
            raise ValueError(f"the {full_name(fresh)} that was fitted is not among its files")
        self.classifier_ = PartClassifier(estimator if len(present) >= 2 else None)
        self.classes_ = self.classifier_.present_ = np.asarray(present, dtype=np.int64)
        if self.decision == "balanced" and len(present) >= 2:
            shares = learned.get("class_shares")
            if not isinstance(shares, list) or len(shares) != len(present):
                raise ValueError("class_shares: must have one number for each class that is present")
            if not all(type(share) in (int, float) and 0 < share <= 1 for share in shares):
                raise ValueError("class_shares: must be numbers above 0 and at most 1")
            self.class_shares_ = np.asarray(shares, dtype=np.float64)
        return self

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        """The class of each example."""
        return self._predict(self._seen(X))

    def _predict(self, X: NDArray) -> NDArray[np.int64]:
        if not len(X):
            return np.zeros(0, dtype=np.int64)
        if self.decision == "balanced" and len(self.classes_) >= 2:
            found: NDArray[np.int64] = self.classes_[(self._shares(X) / self.class_shares_).argmax(axis=1)]
            return found
        return self.classifier_.predict(X)

    def predict_proba(self, X: NDArray) -> NDArray[np.float64]:
        """Probabilities, a column for each of `classes_`; all on the prediction where the estimator gives none."""
        return self._shares(self._seen(X))

    def scores(self, X: NDArray) -> NDArray[np.float64]:
        """What speaks for each of `classes_`, a column each: the decision function, else log-probabilities."""
        X, adapter, n_classes = self._seen(X), self.classifier_, len(self.classes_)
        if n_classes >= 2 and len(X) and _decides_by_class(adapter.estimator):
            found = np.asarray(adapter.estimator.decision_function(adapter.shaped(X)), dtype=np.float64)
            found = np.column_stack([-found, found]) if found.ndim == 1 else found
            if found.shape == (len(X), n_classes):
                return found
        return np.log(np.maximum(self._shares(X), np.finfo(np.float64).tiny))

    def answers(self, X: NDArray) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Classes and probabilities, with the transforms computed once."""
        X = self._seen(X)
        return self._predict(X), self._shares(X)

    def _seen(self, X: NDArray) -> NDArray:
        """Examples after the student's own transforms."""
        return self.prepared_.transform(X) if self.preprocessing and len(X) else X

    def _shares(self, X: NDArray) -> NDArray[np.float64]:
        adapter = self.classifier_
        if len(self.classes_) >= 2 and hasattr(adapter.estimator, "predict_proba") and len(X):
            shares = np.asarray(adapter.estimator.predict_proba(adapter.shaped(X)), dtype=np.float64)
            return np.where(np.isfinite(shares), shares, 1 / len(self.classes_))  # a spread that no label reached
        predicted = self.classifier_.predict(X) if len(X) else np.zeros(0, dtype=np.int64)
        return (predicted[:, None] == self.classes_).astype(np.float64)

    def _fit(self, X: NDArray, y: NDArray[np.int64], weights: NDArray[np.float64] | None = None) -> None:
        inner: Any = self.build()
        if weights is not None and not has_fit_parameter(inner, "sample_weight"):
            raise ConfigError(f"student.params.estimator = {full_name(inner)!r}: takes no weights; use one that does")
        learner = _SoftLabelClassifier(inner) if weights is not None and _suits_soft_labels(inner) else inner
        scaled = self._scaler.transform(_rows(X)) if self._scaler is not None and len(X) else X
        self.classifier_ = PartClassifier(learner).fit(scaled, y, weights)
        if self._scaler is not None:
            inner = Pipeline([("scaler", self._scaler), ("estimator", inner)])
        self.classifier_.estimator = inner
        self.classes_ = self.classifier_.present_
        counts = np.ones(len(y)) if weights is None else weights
        totals = np.array([counts[y == label].sum() for label in self.classes_], dtype=np.float64)
        # the share of each class among the labels
        self.class_shares_ = totals / max(totals.sum(), np.finfo(np.float64).tiny)


def _suits_soft_labels(estimator: Any) -> bool:
    """Whether `_SoftLabelClassifier` finds what the estimator's own fit would."""
    settings = estimator.get_params() if type(estimator) is LogisticRegression else {}
    return bool(settings) and all(settings.get(name, value) in (value, "l2") for name, value in _USUAL.items())


class _SoftLabelClassifier:
    """Fits a scikit-learn LogisticRegression to weighted labels, where an example may come with several in a row.

    The function that is minimised is scikit-learn's, C·Σ weight·loss + |coefficients|²/2 with a free intercept, and so
    is its minimum; but an example's loss is computed once for all its labels: with ten classes, in a tenth of the time.
    """

    def __init__(self, estimator: LogisticRegression) -> None:
        self.estimator = estimator

    def fit(self, X: NDArray, y: NDArray[np.int64], sample_weight: NDArray[np.float64]) -> _SoftLabelClassifier:
        """Labels are 0 … m−1, and each of them is there; sets what the estimator's own fit sets."""
        model, n_classes = self.estimator, int(y.max()) + 1
        first = np.concatenate([[True], (X[1:] != X[:-1]).any(axis=1)])
        rows = np.asarray(X[first], dtype=np.float64)
        weights = np.zeros((len(rows), n_classes))
        np.add.at(weights, (np.cumsum(first) - 1, y), sample_weight)
        columns = n_classes if n_classes > 2 else 1  # of two classes, scikit-learn gives the second a score
        total, penalty = weights.sum(), 1 / (model.C * weights.sum())

        def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
            coefficients, intercept = flat[:-columns].reshape(columns, -1), flat[-columns:]
            scores = rows @ coefficients.T + intercept
            scores = scores if columns > 1 else np.column_stack([np.zeros(len(rows)), scores])
            of_example = weights.sum(axis=1)
            value = (of_example @ logsumexp(scores, axis=1) - (weights * scores).sum()) / total
            residual = (of_example[:, None] * softmax(scores, axis=1) - weights)[:, -columns:] / total
            slope = residual.T @ rows + penalty * coefficients
            free = residual.sum(axis=0) if model.fit_intercept else np.zeros(columns)
            return value + penalty / 2 * (coefficients**2).sum(), np.concatenate([slope.ravel(), free])

        start = np.zeros(columns * (rows.shape[1] + 1))
        options = {"maxiter": model.max_iter, "gtol": model.tol, "ftol": 64 * np.finfo(float).eps, "maxls": 50}
        found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
        model.coef_, model.intercept_ = found.x[:-columns].reshape(columns, -1), found.x[-columns:]
        model.classes_, model.n_iter_ = np.arange(n_classes), np.array([found.nit], dtype=np.int32)
        model.n_features_in_ = rows.shape[1]
        return self
