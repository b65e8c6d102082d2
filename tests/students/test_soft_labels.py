"""Soft labels fitted one row per example: the minimum is that of scikit-learn's own fit on one row per label."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, RidgeClassifier
from sklearn.svm import SVC

from pate.students.supervised import Supervised, _SoftLabelClassifier, _suits_soft_labels


def soft(n: int, n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """As neighbours give them: every example once for each class, with its share."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 5))
    shares = rng.dirichlet(np.ones(n_classes), size=n)
    return np.repeat(X, n_classes, axis=0), np.tile(np.arange(n_classes), n), shares.reshape(-1)


def other_cases() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    X, y, weights = soft(80, 3, seed=4)
    rng = np.random.default_rng(5)
    some = np.sort(rng.permutation(len(X))[:150])
    shuffled = rng.permutation(len(X))
    hard = rng.normal(size=(70, 5)), rng.integers(0, 3, 70), rng.random(70)
    return {
        "soft": (X, y, weights),
        "some labels of each": (X[some], y[some], weights[some]),
        "labels apart": (X[shuffled], y[shuffled], weights[shuffled]),
        "one label each": hard,
        "equal neighbours": (np.zeros((6, 5)), np.arange(6) % 3, np.arange(1.0, 7.0)),
    }


@pytest.mark.parametrize("settings", [{}, {"C": 0.01}, {"C": 30.0}, {"fit_intercept": False}])
@pytest.mark.parametrize("n_classes", [2, 3, 10])
def test_the_minimum_is_that_of_scikit_learn(n_classes: int, settings: dict[str, Any]) -> None:
    X, y, weights = soft(200, n_classes)
    exact = {"tol": 1e-10, "max_iter": 5000}
    theirs = LogisticRegression(**settings, **exact).fit(X, y, weights)
    ours = LogisticRegression(**settings, **exact)
    _SoftLabelClassifier(ours).fit(X, y, weights)
    np.testing.assert_allclose(ours.coef_, theirs.coef_, atol=2e-5)
    np.testing.assert_allclose(ours.predict_proba(X), theirs.predict_proba(X), atol=2e-5)
    assert (ours.classes_ == theirs.classes_).all()
    assert ours.coef_.shape == theirs.coef_.shape
    assert ours.intercept_.shape == theirs.intercept_.shape


@pytest.mark.parametrize("case", other_cases())
def test_any_weighted_labels_give_the_same_student(case: str) -> None:
    X, y, weights = other_cases()[case]
    params = {"tol": 1e-10, "max_iter": 5000}
    student = Supervised("sklearn.linear_model.LogisticRegression", params).fit(X, y, sample_weight=weights)
    theirs = LogisticRegression(**params).fit(X, y, weights)
    np.testing.assert_allclose(student.predict_proba(X), theirs.predict_proba(X), atol=2e-5)


def test_a_student_lacks_the_classes_that_no_label_has() -> None:
    X, y, weights = soft(60, 4)
    weights[y == 1] = 0
    student = Supervised("sklearn.linear_model.LogisticRegression").fit(X, y, sample_weight=weights)
    assert student.classes_.tolist() == [0, 2, 3]
    assert set(student.predict(X)) <= {0, 2, 3}
    one = Supervised("sklearn.linear_model.LogisticRegression").fit(X[y == 2], y[y == 2], sample_weight=weights[y == 2])
    assert one.predict(X[:3]).tolist() == [2, 2, 2]


def test_rows_that_are_the_same_are_computed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    from pate.students import supervised

    def noted(scores: np.ndarray, axis: int) -> np.ndarray:
        seen.append(len(scores))
        return np.logaddexp.reduce(scores, axis=axis)

    monkeypatch.setattr(supervised, "logsumexp", noted)
    X, y, weights = soft(50, 10)
    Supervised("sklearn.linear_model.LogisticRegression").fit(X, y, sample_weight=weights)
    assert set(seen) == {50}


def test_what_has_other_settings_is_fitted_as_before() -> None:
    assert _suits_soft_labels(LogisticRegression(C=3.0, max_iter=7))
    for estimator in (
        LogisticRegression(class_weight="balanced"),
        LogisticRegression(l1_ratio=0.5, solver="saga"),
        LogisticRegression(solver="newton-cg"),
        RidgeClassifier(),
        SVC(),
    ):
        assert not _suits_soft_labels(estimator)
