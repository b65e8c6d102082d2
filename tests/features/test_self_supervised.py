"""Features learned from public images: from those alone, and once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate import pipeline
from pate.config import BaselineConfig, Config, parse_config
from pate.data.private import Records
from pate.data.public import PublicData
from pate.errors import ConfigError, DataError
from pate.features import build_features, build_steps, learned_steps
from pate.features.self_supervised import SelfSupervised
from pate.preflight._features import with_learned_features, with_learned_preparation
from pate.runs._console import Quiet
from pate.runs.context import Outcome

SMALL = {"atoms": 6, "patch": 4, "patches": 300}


def images(seed: int, n: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).random((n, *shape), dtype=np.float32)


def stripes(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of 8 pixels with stripes: across in class 0, down in class 1, at any phase."""
    rng = np.random.default_rng(seed)
    y, phase = rng.integers(2, size=n), rng.integers(4, size=(n, 1, 1))
    rows, columns = np.mgrid[:8, :8]
    waves = ((np.where(y[:, None, None] == 0, rows, columns) + phase) // 2 % 2).astype(np.float32)
    return waves + 0.1 * rng.random(waves.shape, dtype=np.float32), y.astype(np.int64)


def test_learning_is_the_same_in_any_order_and_done_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X = images(0, 30, 10, 10, 3)
    first, second = (SelfSupervised(**SMALL, folder=str(tmp_path / name)) for name in "ab")
    assert first.learn(X) == second.learn(X[::-1])
    files = [sorted((tmp_path / name).iterdir()) for name in "ab"]
    assert len(files[0]) == 1
    assert files[0][0].read_bytes() == files[1][0].read_bytes()
    np.testing.assert_array_equal(first.transform(X), second.transform(X))
    monkeypatch.setattr(SelfSupervised, "_dictionary", None)  # whoever learned before need not do it again
    assert SelfSupervised(**SMALL, folder=str(tmp_path / "a")).learn(X) == {"learned": first.learned}


def test_other_images_or_parameters_are_learned_anew(tmp_path: Path) -> None:
    X = images(0, 30, 10, 10)
    changed = X.copy()
    changed[7, 3, 3] += 0.5
    others: list[tuple[np.ndarray, dict[str, Any]]] = [(X, {}), (changed, {}), (X[1:], {}), (X.reshape(30, 20, 5), {})]
    others += [(X, {"random_state": 1}), (X, {"atoms": 7}), (X, {"patch": 3}), (X, {"patches": 301})]
    names = [SelfSupervised(**SMALL | more, folder=str(tmp_path)).learn(given)["learned"] for given, more in others]
    assert len(set(names)) == len(names)
    same = [SelfSupervised(**SMALL, folder=str(tmp_path), **more) for more in ({"grid": 1}, {"root": False})]
    assert {one.learn(X)["learned"] for one in same} == {names[0]}  # how they are used is not learned


def test_features_are_the_responses_written_out(tmp_path: Path) -> None:
    X = images(3, 10, 7, 7)
    made = SelfSupervised(**SMALL, grid=1, threshold=0.2, root=False, folder=str(tmp_path))
    made.learn(X)
    filters, offsets, softness = (np.asarray(part) for part in made._loaded(1))
    sums = np.zeros(12)
    for y in range(4):
        for x in range(4):
            patch = X[5, y : y + 4, x : x + 4].reshape(-1).astype(np.float64)
            patch = patch - patch.mean()
            response = patch / np.sqrt((patch**2).mean() + softness) @ filters - offsets
            sums += np.maximum(np.concatenate([response, -response]) - 0.2, 0)
    np.testing.assert_allclose(made.transform(X)[5], sums / 16, rtol=1e-3, atol=1e-5)


def test_stripes_are_told_apart_at_any_phase(tmp_path: Path) -> None:
    public, _ = stripes(60, 0)
    X, y = stripes(100, 1)
    made = SelfSupervised(atoms=16, patch=4, patches=2000, grid=1, folder=str(tmp_path))
    made.learn(public)

    def near_alike(features: np.ndarray) -> float:
        flat = features.reshape(len(features), -1)
        distance = ((flat[:, None] - flat[None]) ** 2).sum(2) + np.diag(np.full(len(flat), np.inf))
        return float((y[distance.argsort(axis=1)[:, :30]] == y[:, None]).mean())

    assert near_alike(made.transform(X)) > 0.99
    assert near_alike(X) < 0.9


def test_what_was_not_learned_or_is_gone_is_one_clear_line(tmp_path: Path) -> None:
    X = images(4, 8, 8, 8)
    with pytest.raises(ConfigError, match="has learned nothing yet"):
        SelfSupervised(**SMALL).transform(X)
    made = SelfSupervised(**SMALL, folder=str(tmp_path))
    params = SMALL | {"folder": str(tmp_path)} | made.learn(X)
    with pytest.raises(DataError, match="other planes"):
        SelfSupervised(**params).transform(images(4, 8, 8, 8, 3))
    with pytest.raises(DataError, match="too small for grid"):
        SelfSupervised(**params | {"grid": 6}).transform(X)
    with pytest.raises(DataError, match="no public images"):
        SelfSupervised(**SMALL).learn(X[:0])
    with pytest.raises(ConfigError, match=r"Not a directory|File exists"):
        (tmp_path / "file").touch()
        SelfSupervised(**SMALL, folder=str(tmp_path / "file")).learn(X)
    next(tmp_path.glob("*.safetensors")).write_bytes(b"damaged")
    with pytest.raises(ConfigError, match="nothing readable was learned there"):
        SelfSupervised(**params).transform(X)


@pytest.mark.parametrize("params", [{"atoms": 0}, {"patch": 1}, {"threshold": -1}, {"learned": "../../etc/passwd"}])
def test_parameters_out_of_range_are_refused(params: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(params))):
        build_features([{"name": "self_supervised", "params": params}], "k")


class Witness:
    """Tells what it was asked to learn from."""

    seen: list[np.ndarray] = []  # noqa: RUF012

    def __init__(self, factor: float = 0.0) -> None:
        self.factor = factor

    def learn(self, X_public: np.ndarray) -> dict[str, Any]:
        Witness.seen.append(X_public)
        return {"factor": 2.0}

    def transform(self, X: np.ndarray) -> np.ndarray:
        return X * self.factor


class Forgetful(Witness):
    def learn(self, X_public: np.ndarray) -> Any:
        return 3


class Failing(Witness):
    def learn(self, X_public: np.ndarray) -> dict[str, Any]:
        raise RuntimeError("no\nway")


def own(name: str) -> str:
    return f"{__name__}.{name}"


def config(folder: Path, **changes: Any) -> Config:
    content: dict[str, Any] = {
        "name": "learned",
        "data": {"source": "arrays"},
        "voters": "neighbours",
        "neighbours": {
            "cells": 4,
            "features": {"name": "self_supervised", "params": {**SMALL, "folder": str(folder)}},
        },
        "mechanism": {"name": "histogram", "scale": 2},
        "student": {"name": "supervised", "params": {"estimator": "sklearn.linear_model.LogisticRegression"}},
        "backend": "local",
    }
    return parse_config({key: value for key, value in (content | changes).items() if value is not None})


def data() -> PublicData:
    X_public, y_public = stripes(60, 3)
    return PublicData(X_public, ("across", "down"), y_public, X_public, y_public, benchmark=True)


def run(place: Path, chosen: Config, private: Records | None = None, **further: Any) -> Outcome:
    private = private or Records(*stripes(300, 2))
    return pipeline.run(chosen, place, public=data(), private=private, console=Quiet(), pages=False, **further)


def test_a_run_learns_from_public_examples_alone_and_goes_on_with_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn, learned_from = SelfSupervised.learn, []

    def told(self: SelfSupervised, X_public: np.ndarray) -> dict[str, Any]:
        learned_from.append(X_public)
        return learn(self, X_public)

    monkeypatch.setattr(SelfSupervised, "learn", told)
    outcome = run(tmp_path / "run", config(tmp_path / "learned"))
    assert outcome.report.student.accuracy is not None
    assert len(list((tmp_path / "learned").iterdir())) == 1
    assert "learned:" not in (tmp_path / "run" / "config.yaml").read_text()
    run(tmp_path / "run", config(tmp_path / "learned"), resume=True)
    run(tmp_path / "other", config(tmp_path / "learned"), Records(*stripes(200, 9)))
    assert len(list((tmp_path / "learned").iterdir())) == 1  # other private records are seen through the same features
    assert len(learned_from) == 3
    for X in learned_from:
        np.testing.assert_array_equal(X, data().X_public)


def test_every_section_learns_and_steps_see_what_comes_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Witness, "seen", [])
    X, witness = images(5, 6, 8, 8), {"name": own("Witness")}
    steps = learned_steps([witness, {"name": "hog", "params": {"cell": 4}}, witness], X, "k")
    assert [step["params"].get("factor") for step in steps] == [2.0, None, 2.0]
    np.testing.assert_array_equal(Witness.seen[1], build_steps(steps[1:2], "k")[0].transform(2 * X))
    model = {"name": "sklearn.svm.SVC", "features": own("Witness")}
    teachers = {"voters": "teachers", "neighbours": None, "n_teachers": 5, "mechanism": {"name": "lnmax", "scale": 9}}
    learned = with_learned_features(config(Path(), **teachers, teachers=[model], nonprivate=model), X)
    assert learned.nonprivate is not None
    for section in (learned.teachers[0], learned.nonprivate):
        assert section.features[0].params == {"factor": 2.0}
    baseline = BaselineConfig.model_validate(
        {
            "name": "b",
            "data": {"source": "digits"},
            "baseline": {"name": "dp_sgd", "params": {"preprocessing": own("Witness")}},
            "budget": {"epsilon": 1, "delta": 1e-5},
        }
    )
    preprocessing = [{"name": own("Witness"), "params": {"factor": 2.0}}]
    assert with_learned_preparation(baseline, X).baseline.params["preprocessing"] == preprocessing


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ({"name": own("Forgetful")}, r"neighbours.features.0.name = .*must return parameters"),
        ({"name": own("Failing")}, "neighbours.features: cannot learn from public examples: RuntimeError: no$"),
        ({"name": "pretrained", "params": {"weights": __file__}}, "does not fit resnet18"),
        ({"name": "pretrained", "params": {"weights": __file__, "network": "not_there.Net"}}, "cannot import 'not_the"),
        ({"name": "self_supervised", "params": {"patch": 9, "folder": "unused"}}, "at least 9 pixels"),
    ],
)
def test_features_that_cannot_be_made_stop_a_run_before_it_begins(
    features: dict[str, Any], words: str, tmp_path: Path
) -> None:
    section = {"cells": 4, "features": features}
    with pytest.raises((ConfigError, DataError), match=words):
        run(tmp_path / "run", config(tmp_path, neighbours=section))
    assert not (tmp_path / "run").exists()


def test_weights_that_do_not_fit_stop_a_run_of_teachers_too(tmp_path: Path) -> None:
    model = {"name": "sklearn.svm.SVC", "features": {"name": "pretrained", "params": {"weights": __file__}}}
    teachers = {"voters": "teachers", "neighbours": None, "n_teachers": 5, "mechanism": {"name": "lnmax", "scale": 9}}
    chosen = config(tmp_path, **teachers, teachers=[model], budget={"max_queries": 20})
    with pytest.raises(ConfigError, match="does not fit resnet18"):
        run(tmp_path / "run", chosen)
    assert not (tmp_path / "run").exists()
