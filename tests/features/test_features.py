"""Public features: one example at a time, never fitted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pate.errors import ConfigError, DataError
from pate.features import FEATURES, build_features, learned_steps
from pate.features.basic import Hog, Upright
from pate.students import STUDENTS, build_student
from pate.voters.neighbours._cells import RecordFeatures

NETWORK = "shufflenet_v2_x0_5"


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small torchvision network with random weights, as a file."""
    import torch
    import torchvision
    from safetensors.torch import save_file

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torchvision.models.get_model(NETWORK, weights=None)
    path = tmp_path_factory.mktemp("weights") / "network.safetensors"
    save_file(model.state_dict(), path)
    return str(path)


def images(n: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(n).random((n, *shape)).astype(np.float32)


ON_TABLES = {"fourier": {"n_pairs": 5, "gamma": 0.1}, "weighted": {"columns": [0, 3], "by": [2, 0.5]}}


@pytest.mark.parametrize("shape", [(28, 28), (16, 16, 3), (9,)])
@pytest.mark.parametrize("name", FEATURES.classes())
def test_every_example_by_itself(name: str, shape: tuple[int, ...], weights: str, tmp_path: Path) -> None:
    """To the last bit where records vote or train by themselves: in another batch it could be another cell."""
    if (len(shape) == 1) != (name in ON_TABLES):
        pytest.skip("for the other kind of examples")
    own = {"pretrained": {"weights": weights, "size": 32, "network": NETWORK}}
    own["self_supervised"] = {"atoms": 5, "patches": 50, "folder": str(tmp_path)}
    X = images(7, *shape)
    step = {"name": name, "params": (ON_TABLES | own).get(name, {})}
    steps = learned_steps([step], X, "teachers.0.features")
    chain = build_features(steps, "teachers.0.features")
    X.flags.writeable = False  # as arrays that come from Ray are
    whole = chain.transform(X)
    assert len(whole) == 7
    assert whole.dtype in (np.float32, np.float64)
    assert np.isfinite(whole).all()
    alone = np.concatenate([chain.transform(X[i : i + 1]) for i in range(7)])
    np.testing.assert_allclose(alone, whole, atol=1e-4)
    np.testing.assert_array_equal(chain.transform(X), whole)
    assert chain.transform(X[:0]).shape == (0, *whole.shape[1:])
    assert not hasattr(FEATURES.find(name, "key"), "fit")
    assert_same_in_any_company(RecordFeatures(steps), X)
    if name not in ON_TABLES:
        with pytest.raises(DataError, match="images"):
            chain.transform(np.zeros((3, 5), dtype=np.float32))


def assert_same_in_any_company(features: RecordFeatures, X: np.ndarray) -> None:
    whole = features(X)
    for rows in (slice(0, 1), slice(3, 6), slice(len(X) - 1, None), slice(None, None, -1)):
        np.testing.assert_array_equal(features(X[rows]), whole[rows])


@pytest.mark.parametrize("name", [name for name in STUDENTS.classes() if hasattr(STUDENTS.find(name, "k"), "features")])
def test_what_a_student_sees_of_a_record_is_the_same_in_any_company(name: str) -> None:
    """A network gives other last bits in another batch."""
    X = np.random.default_rng(0).normal(size=(40, 9)).astype(np.float32)
    student = build_student(name, {"steps": 3, "hidden": 32, "batch_size": 8}, 0).fit(X[:20], np.arange(20) % 3, X[20:])
    assert not np.array_equal(student.features(X), np.concatenate([student.features(row[None]) for row in X]))
    assert_same_in_any_company(RecordFeatures((), student), X)


class Draws:
    """A transform of one's own, which draws, and answers by how many examples come together."""

    def transform(self, X: np.ndarray) -> np.ndarray:
        return X + len(X) + np.random.random(X.shape)  # noqa: NPY002


def test_a_transform_of_ones_own_gets_every_record_alone() -> None:
    """Also where it draws from the process's generator, and where a record that it fails for is among the others."""
    X, step = images(6, 4), {"name": f"{__name__}.Draws"}
    assert_same_in_any_company(RecordFeatures([step]), X)
    chain = build_features([step], "k")
    whole = chain.transform_records(X, like=X[:1])
    for rows in (slice(0, 1), slice(2, 5), slice(None, None, -1)):
        np.testing.assert_array_equal(chain.transform_records(X[rows], like=X[:1]), whole[rows])


def test_hog_tells_direction_and_sign_of_an_edge() -> None:
    step = np.zeros((1, 16, 16), dtype=np.float32)
    step[:, :, 8:] = 1
    hog = Hog(orientations=4, cell=16, stride=16, softness=1e-6)
    np.testing.assert_allclose(hog.transform(step), [[1, 0, 0, 0]], atol=1e-3)
    np.testing.assert_allclose(hog.transform(1 - step), [[0, 0, 1, 0]], atol=1e-3)
    np.testing.assert_allclose(hog.transform(step.transpose(0, 2, 1)), [[0, 1, 0, 0]], atol=1e-3)
    unsigned = Hog(orientations=4, cell=16, stride=16, softness=1e-6, signed=False)
    np.testing.assert_allclose(unsigned.transform(1 - step), unsigned.transform(step), atol=1e-3)
    assert Hog().transform(images(2, 28, 28)).shape == (2, 432)


def test_upright_undoes_shift_slant_and_size() -> None:
    rows, columns = np.mgrid[:28, :28].astype(np.float32)

    def blob(x: float, y: float, slant: float, size: float) -> np.ndarray:
        u = (columns - x - slant * (rows - y)) / size
        v = (rows - y) / size
        return np.exp(-(u**2) - (v / 1.5) ** 2)[None].astype(np.float32)

    plain = Upright(most=4).transform(blob(13.5, 13.5, 0, 3))
    for other in (blob(11, 15, 0, 3), blob(13.5, 13.5, 0.4, 3), blob(13.5, 13.5, 0, 4)):
        assert np.abs(Upright(most=4).transform(other) - plain).mean() < 0.01
        assert np.abs(other - blob(13.5, 13.5, 0, 3)).mean() > 0.018
    assert np.isfinite(Upright().transform(np.zeros((1, 28, 28), dtype=np.float32))).all()


@pytest.mark.parametrize(
    ("step", "words"),
    [
        ({"name": "hgo"}, "did you mean 'hog'"),
        ({"name": "hog", "params": {"cells": 3}}, "unexpected keyword"),
        ({"name": "hog", "params": {"stride": 3}}, "divide"),
        ({"name": "sklearn.preprocessing.StandardScaler"}, "fitted to data"),
        ({"name": "collections.Counter"}, "no transform"),
        ({"name": "pretrained", "params": {"weights": "nowhere"}}, "no such file"),
    ],
)
def test_wrong_features_are_one_clear_line(step: dict, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_features([step], "teachers.0.features")


def test_weighted_columns_count_for_more_or_less() -> None:
    X = images(3, 4)
    found = build_features([{"name": "weighted", "params": {"columns": [2, 0], "by": [4, 0.5]}}], "f").transform(X)
    np.testing.assert_array_equal(found, X * np.array([0.5, 1, 4, 1], dtype=np.float32))
    with pytest.raises(DataError, match="columns up to 7"):
        build_features([{"name": "weighted", "params": {"columns": [7], "by": 4}}], "f").transform(X)
    for wrong in ({"columns": [-1], "by": 2}, {"columns": [0], "by": [1, 2]}, {"columns": [0], "by": float("nan")}):
        with pytest.raises(ConfigError, match="weighted"):
            build_features([{"name": "weighted", "params": wrong}], "f")


def test_weights_of_another_network_are_refused(weights: str, tmp_path: Path) -> None:
    chain = build_features([{"name": "pretrained", "params": {"weights": weights, "network": "resnet34"}}], "k")
    with pytest.raises(ConfigError, match="does not fit resnet34"):
        chain.transform(images(1, 28, 28))
