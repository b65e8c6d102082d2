"""The contract of every student: ⊥, missing classes, seeds, and a round trip through files that run no code."""

from __future__ import annotations

import argparse
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate.errors import ConfigError, DataError, NotTrusted, RunError
from pate.mechanisms import UNANSWERED
from pate.runs.model_store import load_model, save_model
from pate.students import STUDENTS, build_student

QUICK = {"steps": 60, "batch_size": 24, "channels": 8, "hidden": 64, "ema": 0.9, "learning_rate": 5e-3}
GAN = QUICK | {"consistency_weight": 5.0}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "svc": ("supervised", {"estimator": "sklearn.svm.SVC"}),
    "label spreading": (
        "supervised",
        {"estimator": "sklearn.semi_supervised.LabelSpreading", "params": {"kernel": "knn"}, "unlabelled": "mark"},
    ),
    "self-training": (
        "supervised",
        {"estimator": "sklearn.linear_model.LogisticRegression", "self_training": 2, "threshold": 0.6},
    ),
    "network": ("supervised", {"estimator": "network", "params": {"architecture": "mlp", "hidden": 32}}),
    "mixmatch": ("mixmatch", QUICK),
    "gan": ("gan", GAN),
    "gan, mixed": ("gan", GAN | {"alpha": 0.75, "normed": "batch", "depth": 4}),
}
SHAPES = [(10,), (14, 12), (32, 32, 3)]
each_kind = pytest.mark.parametrize(("name", "params"), KINDS.values(), ids=KINDS)


def public_data(shape: tuple[int, ...] = (8, 8), n: int = 120) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Examples of four kinds, their labels with some ⊥ among them, and the truth."""
    rng = np.random.default_rng(0)
    truth = np.arange(n) % 4
    patterns = rng.normal(size=(4, *shape))
    if len(shape) > 1:  # large smooth blots: small warps must not change the kind
        blots = rng.choice([-1.0, 1.0], size=(4, 2, 2, *shape[2:]))
        patterns = blots.repeat(shape[0] // 2, 1).repeat(shape[1] // 2, 2)
    X = (patterns[truth] + 0.3 * rng.normal(size=(n, *shape))).astype(np.float32)
    labels = truth.copy()
    labels[::9] = UNANSWERED
    return X, labels, truth


def fitted(name: str, params: dict[str, Any], shape: tuple[int, ...] = (8, 8), seed: int = 3) -> Any:
    X, labels, _ = public_data(shape)
    return build_student(name, params, seed).fit(X[:60], labels[:60], X[60:])


def test_every_student_of_the_folder_is_tried() -> None:
    assert set(STUDENTS.classes()) == {name for name, _ in KINDS.values()}


@each_kind
def test_learns_is_deterministic_and_survives_a_round_trip(name: str, params: dict, tmp_path: Path) -> None:
    X, _, truth = public_data()
    first, second = fitted(name, params), fitted(name, params)
    np.testing.assert_array_equal(first.predict_proba(X), second.predict_proba(X))
    assert (first.predict(X) == truth).mean() > 0.8
    save_model(first, tmp_path, {"classes": list("abcd"), "epsilon": 1.0})
    restored = load_model(tmp_path)
    np.testing.assert_array_equal(restored.predict(X), first.predict(X))
    np.testing.assert_array_equal(restored.predict_proba(X), first.predict_proba(X))
    assert json.loads((tmp_path / "student.json").read_text())["epsilon"] == 1.0
    assert {path.suffix for path in tmp_path.iterdir()} <= {".json", ".safetensors", ".skops"}


@each_kind
def test_probabilities_belong_to_the_classes_that_were_seen(name: str, params: dict) -> None:
    X, labels, _ = public_data()
    labels[labels == 2] = UNANSWERED
    student = build_student(name, params | ({"steps": 6} if "steps" in params else {}), 0).fit(X, labels, None)
    shares = student.predict_proba(X)
    assert student.classes_.tolist() == [0, 1, 3]
    assert shares.shape == (len(X), 3)
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-5)
    assert set(student.predict(X)) <= {0, 1, 3}
    assert student.predict(X[:0]).shape == (0,)


@each_kind
def test_one_released_class_gives_a_constant_student(name: str, params: dict, tmp_path: Path) -> None:
    X, _, _ = public_data()
    student = build_student(name, params, 0).fit(X, np.where(np.arange(len(X)) % 2, 2, UNANSWERED), None)
    save_model(student, tmp_path, {})
    restored = load_model(tmp_path)
    assert set(restored.predict(X)) == {2}
    assert restored.predict_proba(X).shape == (len(X), 1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["mixmatch", "gan"])
def test_networks_take_tables_and_images(name: str, shape: tuple[int, ...]) -> None:
    X, _, truth = public_data(shape)
    student = fitted(name, KINDS[name][1] | {"steps": 40, "channels": 4}, shape)
    assert (student.predict(X) == truth).mean() > 0.5
    with pytest.raises(DataError, match="shape"):
        student.predict(X[:, :-1])


@pytest.mark.parametrize(("name", "mix"), [("mixmatch", "labels"), ("gan", "even")])
def test_wanted_mix_of_classes(name: str, mix: str) -> None:
    X, _, truth = public_data()
    student = fitted(name, KINDS[name][1] | {"class_prior": mix, "label_smoothing": 0.1, "label_noise": 0.3})
    assert (student.predict(X) == truth).mean() > 0.8


@pytest.mark.parametrize("kind", ["mixmatch", "gan", "logistic"])
def test_unanswered_examples_count_as_unlabelled(kind: str) -> None:
    """An example answered ⊥ may as well have come with the unlabelled ones."""
    X, labels, _ = public_data()
    answered = labels != UNANSWERED
    X, labels = np.concatenate([X[answered], X[~answered]]), np.concatenate([labels[answered], labels[~answered]])
    n = int(answered.sum())
    name, params = kind, KINDS.get(kind, ("", {}))[1] | {"steps": 5}
    if kind == "logistic":
        name, params = "supervised", {"estimator": "sklearn.linear_model.LogisticRegression"}
    apart = build_student(name, params, 0).fit(X[:n], labels[:n], X[n:])
    among = build_student(name, params, 0).fit(X, labels, None)
    np.testing.assert_array_equal(apart.predict_proba(X), among.predict_proba(X))


def test_batch_norms_know_real_examples_alone() -> None:
    """What is known of real examples is used to predict: made-up ones must not be in it."""
    import torch

    from pate.networks._architectures import Classifier
    from pate.students.gan import _unremembered

    network = Classifier((8, 8), 3, 2, 4, "batch").train()
    before = {name: value.clone() for name, value in network.named_buffers()}
    with _unremembered(network):
        outputs = network(torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)) + 9)
        outputs.sum().backward()
    after = dict(network.named_buffers())
    names = [name for name in before if "running" in name]
    assert len(names) == 8
    assert all(torch.equal(before[name], after[name]) for name in names)
    network(torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0)) + 9)
    assert not any(torch.equal(before[name], after[name]) for name in names)


@each_kind
def test_the_seed_is_the_runs(name: str, params: dict) -> None:
    assert build_student(name, params, 17).random_state == 17
    assert build_student(name, params | {"random_state": 3}, 17).random_state == 3


def test_mistakes_are_clear(tmp_path: Path) -> None:
    X, labels, _ = public_data()
    with pytest.raises(ConfigError, match="did you mean 'supervised'"):
        build_student("supervized", {}, 0)
    with pytest.raises(ConfigError, match=r"student\.params"):
        build_student("supervised", {"estimater": "x"}, 0)
    with pytest.raises(ConfigError, match="unlabelled"):
        build_student("supervised", {"unlabelled": "maybe"}, 0).fit(X, labels, None)
    with pytest.raises(ConfigError, match="predict_proba"):
        build_student("supervised", {"self_training": 1}, 0).fit(X, labels, X)
    with pytest.raises(ConfigError, match="class_prior"):
        build_student("mixmatch", {"class_prior": "odd"}, 0).fit(X, labels, None)
    with pytest.raises(ConfigError, match="did you mean 'rotate'"):
        build_student("gan", {"augmentation": {"rotat": 1}}, 0).fit(X, labels, None)
    with pytest.raises(ConfigError, match="device"):
        build_student("gan", {"device": "abacus"}, 0).fit(X, labels, None)
    with pytest.raises(ConfigError, match=r"student\.params\.normed = 'bach'"):
        build_student("gan", {"normed": "bach"}, 0).fit(X, labels, None)
    with pytest.raises(ConfigError, match=r"student\.params\.depth = 5: must be 3 or 4"):
        build_student("mixmatch", {"depth": 5}, 0).fit(X, labels, None)
    with pytest.raises(DataError, match="nothing to learn from"):
        build_student("mixmatch", {}, 0).fit(X, np.full(len(X), UNANSWERED), None)
    with pytest.raises(RunError, match="there is no model; name the folder of a finished run"):
        load_model(tmp_path)


def test_a_foreign_type_in_a_saved_student_is_refused(tmp_path: Path) -> None:
    import skops.io

    X, labels, _ = public_data()
    student = build_student("supervised", {}, 0).fit(X, labels, None)
    save_model(student, tmp_path, {})
    skops.io.dump(argparse.Namespace(a=1), tmp_path / "model.skops")
    with pytest.raises(NotTrusted, match=r"trust=\['argparse\.Namespace'\]"):
        load_model(tmp_path)


def test_a_compressed_student_is_refused(tmp_path: Path) -> None:
    """What is unpacked could be far larger than the file."""
    X, labels, _ = public_data()
    save_model(build_student("supervised", {}, 0).fit(X, labels, None), tmp_path, {})
    packed = tmp_path / "model.skops"
    with zipfile.ZipFile(packed) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(RunError, match="compressed"):
        load_model(tmp_path)


def test_a_student_that_answers_with_classes_nobody_named_is_refused(tmp_path: Path) -> None:
    X, labels, _ = public_data()
    student = build_student("supervised", {}, 0).fit(X, labels, None)
    save_model(student, tmp_path, {"classes": ["a", "b", "c"]})
    with pytest.raises(RunError, match="classes that its card does not name"):
        load_model(tmp_path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_that_are_no_numbers_are_refused(value: float, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    save_model(fitted("mixmatch", QUICK | {"steps": 1}), tmp_path, {})
    weights = load_file(tmp_path / "model.safetensors")
    next(array for array in weights.values() if array.dtype == np.float32).flat[0] = value
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(RunError, match="NaN or infinity"):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "student.json"])
def test_a_damaged_student_is_one_line(name: str, tmp_path: Path) -> None:
    save_model(fitted("mixmatch", QUICK | {"steps": 2}), tmp_path, {})
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(RunError) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / name).unlink()
    with pytest.raises(RunError):
        load_model(tmp_path)


class Custom:
    """A student of somebody else's making."""

    def __init__(self, random_state: int = 0) -> None:
        self.random_state = random_state

    def get_params(self) -> dict[str, Any]:
        return {"random_state": self.random_state}

    def fit(self, X: np.ndarray, y: np.ndarray, X_unlabelled: np.ndarray | None = None) -> Custom:
        self.answer = int(y[0])
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.full(len(X), self.answer)


def test_a_student_by_dotted_path_is_trusted_only_by_name(tmp_path: Path) -> None:
    X, _, _ = public_data()
    path = f"{Custom.__module__}.Custom"
    student = build_student(path, {}, 0).fit(X, np.ones(len(X), dtype=int))
    save_model(student, tmp_path, {})
    with pytest.raises(NotTrusted, match=r"trust=\['.*Custom'\]"):
        load_model(tmp_path)
    assert set(load_model(tmp_path, trust=[path]).predict(X)) == {1}


def test_a_student_with_transforms_before_it_is_that_student_on_what_they_give(tmp_path: Path) -> None:
    from pate.features.basic import Hog

    rng = np.random.default_rng(0)
    X, y = rng.random((30, 8, 8)).astype(np.float32), np.arange(30) % 3
    params = {"estimator": "sklearn.linear_model.LogisticRegression", "preprocessing": [{"name": "hog"}]}
    student = build_student("supervised", params, 0).fit(X, y, X[:0])
    on_features = build_student("supervised", params | {"preprocessing": None}, 0).fit(Hog().transform(X), y)
    np.testing.assert_array_equal(student.predict_proba(X), on_features.predict_proba(Hog().transform(X)))
    np.testing.assert_array_equal(student.predict(X), on_features.predict(Hog().transform(X)))
    assert len(student.predict(X[:0])) == 0
    save_model(student, tmp_path / "student", {})
    np.testing.assert_array_equal(load_model(tmp_path / "student").predict_proba(X), student.predict_proba(X))


@pytest.mark.parametrize("weighted", [False, True])
def test_columns_are_scaled_by_all_public_examples(weighted: bool, tmp_path: Path) -> None:
    """Labelled or not; and a student that is stored brings its scale along."""
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(90, 3)) * [1e-5, 1, 1e5] + [0, 5, 0]).astype(np.float32)
    y = (X[:, 0] > 0).astype(np.int64)
    params = {"estimator": "sklearn.linear_model.LogisticRegression", "standardise": True}
    further = {"sample_weight": np.ones(60)} if weighted else {}
    student = build_student("supervised", params, 0).fit(X[:60], y[:60], X[60:], **further)
    own = (X - X.mean(axis=0)) / X.std(axis=0)
    plain = build_student("supervised", params | {"standardise": False}, 0).fit(own[:60], y[:60], own[60:], **further)
    np.testing.assert_allclose(student.predict_proba(X), plain.predict_proba(own), atol=1e-3)
    assert (student.predict(X) == y).mean() > 0.9
    save_model(student, tmp_path / "student", {})
    np.testing.assert_array_equal(load_model(tmp_path / "student").predict_proba(X), student.predict_proba(X))
    nobody = build_student("supervised", params, 0).fit(X[:5], np.full(5, UNANSWERED), None)
    assert set(nobody.predict(X)) == {0}


def test_what_cannot_be_scaled_is_one_line() -> None:
    network = {"estimator": "network", "params": {"architecture": "mlp", "steps": 1}}
    with pytest.raises(ConfigError, match=r"student\.params\.standardise: is for estimators that take rows"):
        build_student("supervised", network | {"standardise": True}, 0)
    with pytest.raises(ConfigError, match=r"student\.params\.standardise = 'yes': must be true or false"):
        build_student("supervised", {"standardise": "yes"}, 0)


def test_a_transform_that_is_not_known_is_one_line() -> None:
    with pytest.raises(ConfigError, match=r"student\.params\.preprocessing\.0\.name = 'hogg'"):
        build_student("supervised", {"preprocessing": ["hogg"]}, 0).fit(np.zeros((4, 8, 8)), np.arange(4) % 2)


def test_a_balanced_decision_recognises_rare_classes_by_the_same_probabilities(tmp_path: Path) -> None:
    """Of a class that is one in twenty, and says so in a number that overlaps with that of the others."""
    rng = np.random.default_rng(0)
    y = np.repeat([0, 1], [1900, 100])
    X = rng.normal(size=(2000, 1)) + 1.5 * y[:, None]
    params = {"estimator": "sklearn.linear_model.LogisticRegression", "standardise": True}
    plain, balanced = (
        build_student("supervised", params | {"decision": decision}, 0).fit(X, y)
        for decision in ("likeliest", "balanced")
    )
    np.testing.assert_array_equal(plain.predict_proba(X), balanced.predict_proba(X))
    recall = [(student.predict(X)[y == 1] == 1).mean() for student in (plain, balanced)]
    assert recall[0] < 0.4 < 0.6 < recall[1]
    save_model(balanced, tmp_path / "student", {})
    np.testing.assert_array_equal(load_model(tmp_path / "student").predict(X), balanced.predict(X))
    card = tmp_path / "student" / "student.json"
    for wrong in ([0.5], [0.5, 0], ["a", 1], None):
        content = json.loads(card.read_text())
        content["learned"]["class_shares"] = wrong
        card.write_text(json.dumps(content))
        with pytest.raises(RunError, match="class_shares"):
            load_model(tmp_path / "student")
    with pytest.raises(ConfigError, match=r"student\.params\.decision = 'rare'"):
        build_student("supervised", params | {"decision": "rare"}, 0)
    with pytest.raises(ConfigError, match=r"has no predict_proba"):
        build_student("supervised", {"estimator": "sklearn.svm.LinearSVC", "decision": "balanced"}, 0)
