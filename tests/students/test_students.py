"""Students: contract, ⊥, and a round trip through files that run no code."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from pate.errors import ConfigError, RunError
from pate.mechanisms import UNANSWERED
from pate.naming import short_names
from pate.students import _class_in, build_student
from pate.students.storage import load_student, save_student

KINDS = [
    {"estimator": "sklearn.svm.SVC"},
    {"estimator": "sklearn.semi_supervised.LabelSpreading", "params": {"kernel": "knn"}, "unlabelled": "mark"},
    {"estimator": "network", "params": {"architecture": "cnn", "steps": 60, "channels": 4}},
]


def public_data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = np.arange(80) % 4
    X = rng.random((80, 8, 8)).astype(np.float32)
    X[np.arange(80), y, y] += 4
    labels = y.copy()
    labels[::9] = UNANSWERED
    return X, labels, y


def test_every_class_of_the_folder_is_tried() -> None:
    assert [name for name in short_names("pate.students") if _class_in(name)] == ["supervised"]


@pytest.mark.parametrize("params", KINDS, ids=lambda params: params["estimator"])
def test_learns_is_deterministic_and_survives_a_round_trip(params: dict, tmp_path: Path) -> None:
    X, labels, y = public_data()
    first, second = (build_student("supervised", params, 3).fit(X[:60], labels[:60], X[60:]) for _ in range(2))
    np.testing.assert_array_equal(first.predict(X), second.predict(X))
    assert (first.predict(X) == y).mean() > 0.8
    save_student(first, tmp_path, {"classes": list("abcd"), "epsilon": 1.0})
    np.testing.assert_array_equal(load_student(tmp_path).predict(X), first.predict(X))
    card = json.loads((tmp_path / "student.json").read_text())
    assert card["epsilon"] == 1.0
    assert not list(tmp_path.glob("*.pkl"))


def test_one_released_class_gives_a_constant_student(tmp_path: Path) -> None:
    X, _, _ = public_data()
    student = build_student("supervised", {}, 0).fit(X, np.full(80, 2), None)
    save_student(student, tmp_path, {})
    assert set(load_student(tmp_path).predict(X)) == {2}


def test_mistakes_are_clear(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'supervised'"):
        build_student("supervized", {}, 0)
    with pytest.raises(ConfigError, match=r"student\.params"):
        build_student("supervised", {"estimater": "x"}, 0)
    X, labels, _ = public_data()
    with pytest.raises(ConfigError, match="unlabelled"):
        build_student("supervised", {"unlabelled": "maybe"}, 0).fit(X, labels, None)
    with pytest.raises(RunError, match="no readable student"):
        load_student(tmp_path)


def test_a_foreign_type_in_a_saved_student_is_refused(tmp_path: Path) -> None:
    import skops.io

    X, labels, _ = public_data()
    student = build_student("supervised", {}, 0).fit(X, labels, None)
    save_student(student, tmp_path, {})
    skops.io.dump(argparse.Namespace(a=1), tmp_path / "model.skops")
    with pytest.raises(RunError, match="Namespace"):
        load_student(tmp_path)
