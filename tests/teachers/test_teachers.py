"""Every teacher kind keeps the contract, on every awkward part."""

from __future__ import annotations

import numpy as np
import pytest

from pate.config import TeacherFamily
from pate.errors import ConfigError
from pate.naming import short_names
from pate.teachers import _class_in, build_estimator, family_of_part, seed_of_part
from pate.teachers.part import PartClassifier

KINDS = [
    ("sklearn.svm.SVC", {}),
    ("sklearn.neighbors.KNeighborsClassifier", {"n_neighbors": 1}),
    ("sklearn.linear_model.LogisticRegression", {}),
    ("sklearn.ensemble.ExtraTreesClassifier", {"n_estimators": 5}),
    ("sklearn.naive_bayes.GaussianNB", {}),
    ("network", {"architecture": "mlp", "epochs": 3}),
    ("network", {"architecture": "cnn", "epochs": 2, "channels": 4}),
]


def part(n: int, n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    X = rng.random((n, 8, 8)).astype(np.float32)
    X[np.arange(n), y % 8, y % 8] += 3
    return X, y


def test_every_class_of_the_folder_is_tried() -> None:
    own = {name for name in short_names("pate.teachers") if _class_in(name) is not None}
    assert own <= {name for name, _ in KINDS}


@pytest.mark.parametrize(("name", "params"), KINDS, ids=lambda value: str(value))
def test_contract(name: str, params: dict) -> None:
    def teacher() -> PartClassifier:
        return PartClassifier(build_estimator(name, params, 5, "teachers.0.name"))

    X, y = part(60, 3)
    first, second = teacher().fit(X, y).predict(X), teacher().fit(X, y).predict(X)
    np.testing.assert_array_equal(first, second)
    assert first.dtype == np.int64
    assert first.shape == (60,)
    X.flags.writeable = False  # as arrays that come from Ray are
    np.testing.assert_array_equal(teacher().fit(X, y).predict(X), first)
    gap = np.where(y == 1, 7, y)  # classes 0, 2 and 7 of ten
    assert set(teacher().fit(X, gap).predict(X)) <= {0, 2, 7}
    assert set(teacher().fit(X, np.full(60, 4)).predict(X)) == {4}
    assert set(teacher().fit(X[:0], y[:0]).predict(X)) == {0}
    if name == "network":  # scikit-learn's own refuse an empty array
        assert len(teacher().fit(X, y).predict(X[:0])) == 0


def test_network_learns() -> None:
    X, y = part(120, 4)
    for architecture in ("mlp", "cnn"):
        network = build_estimator("network", {"architecture": architecture, "epochs": 30}, 1, "k")
        assert (network.fit(X, y).predict(X) == y).mean() > 0.9
        assert network.predict_proba(X).sum(axis=1) == pytest.approx(np.ones(120), abs=1e-5)


def test_network_leaves_the_global_generator_alone() -> None:
    import torch

    before = torch.random.get_rng_state()
    build_estimator("network", {"architecture": "mlp", "epochs": 1}, 1, "k").fit(*part(20, 2))
    assert torch.equal(before, torch.random.get_rng_state())


def test_families_share_parts_by_weight_and_evenly() -> None:
    families = [TeacherFamily(name="a", weight=3), TeacherFamily(name="b", weight=2), TeacherFamily(name="c", weight=5)]
    chosen = family_of_part(families, 100)
    assert [chosen.count(i) for i in range(3)] == [30, 20, 50]
    for start in range(0, 100, 10):
        assert sorted(chosen[start : start + 10]) == sorted(chosen[:10])
    assert family_of_part([families[0]], 7) == [0] * 7


def test_seeds_differ_by_part_and_attempt_only() -> None:
    seeds = {seed_of_part(1, part, attempt) for part in range(100) for attempt in range(2)}
    assert len(seeds) == 200
    assert seed_of_part(1, 5) == seed_of_part(1, 5)


@pytest.mark.parametrize(
    ("name", "params", "words"),
    [
        ("netwrok", {}, "did you mean 'network'"),
        ("sklearn.svm.SVX", {}, "has no SVX"),
        ("sklaern.svm.SVC", {}, "cannot import"),
        ("sklearn.svm.SVC", {"sigma": 1}, "unexpected keyword"),
        ("os.path.join", {}, "fit and predict"),
    ],
)
def test_a_wrong_teacher_is_one_clear_line(name: str, params: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_estimator(name, params, 0, "teachers.0.name")
