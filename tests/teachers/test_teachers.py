"""Every teacher kind keeps the contract, on every awkward part."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import ExtraTreesClassifier
from sklearn.gaussian_process import GaussianProcessClassifier, kernels
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC

from pate.config import TeacherFamily
from pate.errors import ConfigError
from pate.teachers import TEACHERS, PartClassifier, assign_recipes, build_estimator, describe, recipes, seed_of_part

KINDS = [
    ("sklearn.svm.SVC", {}),
    ("sklearn.neighbors.KNeighborsClassifier", {"n_neighbors": 1}),
    ("sklearn.linear_model.LogisticRegression", {}),
    ("sklearn.ensemble.ExtraTreesClassifier", {"n_estimators": 5}),
    ("sklearn.naive_bayes.GaussianNB", {}),
    ("balanced", {}),
    ("balanced", {"estimator": "sklearn.tree.DecisionTreeClassifier", "params": {"max_depth": 3}}),
    ("network", {"architecture": "mlp", "steps": 10}),
    ("network", {"architecture": "cnn", "steps": 6, "channels": 4}),
    ("network", {"architecture": "cnn", "steps": 6, "channels": 4, "batch_norm": True, "shift": 1, "turn": 10}),
    ("network", {"architecture": "mlp", "steps": 6, "depth": 3, "hidden": 8, "batch_norm": True}),
    ("network", {"architecture": "cnn", "steps": 6, "depth": 1, "channels": 2}),
    ("network", {"architecture": f"{__name__}.TwoLayers", "steps": 6, "module_params": {"width": 7}}),
    (
        "sklearn.pipeline.Pipeline",
        {
            "steps": [
                ["scale", {"name": "sklearn.preprocessing.StandardScaler"}],
                ["trees", {"name": "sklearn.ensemble.ExtraTreesClassifier", "params": {"n_estimators": 3}}],
            ]
        },
    ),
]


class TwoLayers(torch.nn.Sequential):
    """A user's own module."""

    def __init__(self, shape: tuple[int, ...], n_classes: int, width: int) -> None:
        inside = int(np.prod(shape))
        super().__init__(
            torch.nn.Flatten(), torch.nn.Linear(inside, width), torch.nn.Tanh(), torch.nn.Linear(width, n_classes)
        )


def part(n: int, n_classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    y = np.arange(n) % n_classes
    X = rng.random((n, 8, 8)).astype(np.float32)
    X[np.arange(n), y % 8, y % 8] += 3
    return X, y


def test_every_class_of_the_folder_is_tried() -> None:
    assert set(TEACHERS.classes()) <= {name for name, _ in KINDS}


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
        network = build_estimator("network", {"architecture": architecture, "steps": 60}, 1, "k")
        assert (network.fit(X, y).predict(X) == y).mean() > 0.9
        assert network.predict_proba(X).sum(axis=1) == pytest.approx(np.ones(120), abs=1e-5)


def test_network_leaves_the_global_generator_alone() -> None:
    import torch

    before = torch.random.get_rng_state()
    build_estimator("network", {"architecture": "mlp", "steps": 1}, 1, "k").fit(*part(20, 2))
    assert torch.equal(before, torch.random.get_rng_state())


def test_families_share_parts_by_weight_and_evenly() -> None:
    families = [TeacherFamily(name="a", weight=3), TeacherFamily(name="b", weight=2), TeacherFamily(name="c", weight=5)]
    chosen = assign_recipes(recipes(families), 100)
    assert [chosen.count(i) for i in range(3)] == [30, 20, 50]
    for start in range(0, 100, 10):
        assert sorted(chosen[start : start + 10]) == sorted(chosen[:10])
    assert assign_recipes(recipes([families[0]]), 7) == [0] * 7


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
        ("sklearn.svm.SVC", {"sigma": 1}, "has no parameter 'sigma'"),
        ("sklearn.svm.SVC", {"kernel": "rdf"}, "The 'kernel' parameter of SVC must be"),
        ("sklearn.ensemble.RandomForrest", {}, "did you mean RandomForestClassifier"),
        ("os.getcwd", {}, "fit and predict"),
        (".svm.SVC", {}, "cannot import"),
        ("sklearn.pipeline.make_pipeline", {"steps": {"name": "sklearn.svm.SVC", "params": [1]}}, "params must be"),
    ],
)
def test_a_wrong_teacher_is_one_clear_line(name: str, params: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_estimator(name, params, 0, "teachers.0.name")


@pytest.mark.parametrize(
    "estimator",
    [
        SVC(),
        SVC(C=np.float64(3), class_weight="balanced"),
        make_pipeline(StandardScaler(with_mean=False), ExtraTreesClassifier(3, max_features=None)),
        CalibratedClassifierCV(SVC(kernel="linear"), cv=2),
        GaussianProcessClassifier(kernels.ConstantKernel(2.0) * kernels.RBF(0.5)),
    ],
)
def test_an_estimator_object_is_what_a_config_would_write(estimator: object) -> None:
    written = describe(estimator)
    again = build_estimator(written["name"], written["params"], 0, "k")
    assert describe(again) == describe(build_estimator(**describe(again), random_state=0, key="k"))
    given = {k: v for k, v in estimator.get_params().items() if isinstance(v, int | float | str)}  # type: ignore[attr-defined]
    assert {k: again.get_params()[k] for k in given} == given
    family = TeacherFamily(estimator=estimator, weight=2)
    assert (family.name, family.params, family.weight) == (written["name"], written["params"], 2)
    assert TeacherFamily.model_validate(estimator).name == written["name"]


def test_objects_that_a_config_cannot_write_are_refused() -> None:
    class Local(SVC):
        pass

    with pytest.raises(ConfigError, match="module of its own"):
        describe(Local())
    with pytest.raises(ConfigError, match="plain values"):
        describe(make_pipeline(FunctionTransformer(np.log1p), SVC()))
    with pytest.raises(ConfigError, match="get_params"):
        describe(object())


def test_every_step_of_a_pipeline_is_seeded() -> None:
    params = describe(make_pipeline(StandardScaler(), ExtraTreesClassifier(2)))["params"]
    seeds = [build_estimator("sklearn.pipeline.Pipeline", params, seed, "k").get_params() for seed in (1, 2)]
    assert [s["extratreesclassifier__random_state"] for s in seeds] == [1, 2]


def test_varied_parameters_are_kinds_of_their_own() -> None:
    family = TeacherFamily(name="network", params={"steps": 5}, grid={"hidden": (8, 16), "depth": (1, 2)}, weight=3)
    kinds = recipes([TeacherFamily(name="sklearn.svm.SVC"), family])
    assert [kind.params for kind in kinds[1:]] == [
        {"steps": 5, "hidden": h, "depth": d} for h in (8, 16) for d in (1, 2)
    ]
    assert [kind.weight for kind in kinds] == [1, 0.75, 0.75, 0.75, 0.75]
    assert [kind.key for kind in kinds] == ["teachers.0"] + ["teachers.1"] * 4
    chosen = assign_recipes(kinds, 160)
    assert [chosen.count(i) for i in range(5)] == [40, 30, 30, 30, 30]


def test_a_network_that_diverges_says_so() -> None:
    X, y = part(40, 2)
    X[3] = np.nan
    with pytest.raises(ValueError):
        build_estimator("network", {"architecture": "mlp", "steps": 20}, 1, "k").fit(X, y)


def test_a_part_that_lacks_classes_votes_for_those_it_has() -> None:
    X, y = np.arange(6.0)[:, None], np.array([2, 5, 2, 7, 5, 7])
    teacher = PartClassifier(build_estimator("sklearn.neighbors.KNeighborsClassifier", {"n_neighbors": 1}, 0, "key"))
    np.testing.assert_array_equal(teacher.fit(X, y).predict(X), y)


def test_balanced_teachers_see_evenly_many_of_each_class_of_their_own_part() -> None:
    """One in eight is of the rare class; where both are as likely by their looks, half of them are said to be."""
    rng = np.random.default_rng(0)
    y = (np.arange(800) % 8 == 0).astype(np.int64)
    X = (rng.normal(size=(800, 1)) + y[:, None]).astype(np.float32)
    plain, even = (
        PartClassifier(build_estimator(name, {}, 0, "k")).fit(X, y)
        for name in ("sklearn.linear_model.LogisticRegression", "balanced")
    )
    shown = np.array([[0.4], [0.6]], dtype=np.float32)  # the middle of both classes is at a half
    assert plain.predict(shown).tolist() == [0, 0]
    assert even.predict(shown).tolist() == [0, 1]
    recall = [(teacher.predict(X)[y == 1] == 1).mean() for teacher in (plain, even)]
    assert recall[0] < 0.2 < 0.6 < recall[1]
    again = PartClassifier(build_estimator("balanced", {}, 0, "k")).fit(X, y)
    np.testing.assert_array_equal(again.estimator.predict_proba(X), even.estimator.predict_proba(X))


def test_a_balanced_student_can_be_stored_by_anybody(tmp_path: Path) -> None:
    from pate.runs.model_store import load_model, save_model
    from pate.students import build_student

    X, y = part(60, 3)
    params = {"estimator": "balanced", "params": {"estimator": "sklearn.svm.SVC", "params": {"probability": True}}}
    student = build_student("supervised", params, 0).fit(X, y)
    save_model(student, tmp_path / "student", {"classes": ["a", "b", "c"]})
    again = load_model(tmp_path / "student")
    np.testing.assert_array_equal(again.predict(X), student.predict(X))
    np.testing.assert_allclose(again.predict_proba(X), student.predict_proba(X))
