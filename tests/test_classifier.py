"""PATEClassifier: scikit-learn's contract, and what the guarantee rests on."""

from __future__ import annotations

import os
import pickle
import warnings
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from pate.classifier import PATEClassifier, PrivacyWarning
from pate.data.frames import Encoder
from pate.errors import ConfigError
from pate.mechanisms import ConfidentGNMax, GNMax
from pate.planning.budget import publishable_epsilon

NOISE = "two fits draw different noise, which is never seeded, so their predictions differ"
CANNOT_APPLY = {
    "check_supervised_y_2d": NOISE,
    "check_classifier_data_not_an_array": NOISE,
    "check_fit_idempotent": NOISE,
}
SMALL = PATEClassifier(n_teachers=5, mechanism=GNMax(3.0), queries=40, public_fraction=0.4)


@pytest.fixture(autouse=True)
def _warnings_are_expected() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        yield


@parametrize_with_checks([SMALL], expected_failed_checks=lambda _: CANNOT_APPLY)
def test_scikit_learns_own_checks(estimator: PATEClassifier, check: object) -> None:
    check(estimator)  # type: ignore[operator]


def records(n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    return X, np.where(X[:, 0] + X[:, 1] > 0, "up", "down")


@pytest.fixture(scope="module")
def fitted() -> PATEClassifier:
    X, y = records()
    teachers = [(GaussianNB(), 2.0), (KNeighborsClassifier(3), 1.0)]
    model = PATEClassifier(teachers, n_teachers=40, epsilon=6, queries=100, classes=["up", "down"])
    return model.fit(X, y, X_public=records(150, seed=1)[0])


def test_it_learns_and_says_what_it_cost(fitted: PATEClassifier) -> None:
    X, y = records(300, seed=2)
    assert (fitted.predict(X) == y).mean() > 0.85
    assert 5 < fitted.epsilon_ <= 6
    assert fitted.delta_ == 1e-5
    assert fitted.report_.privacy.epsilon == fitted.epsilon_
    assert fitted.report_.benchmark is None
    assert len(fitted.labels_) == 100
    assert set(fitted.labels_) <= {0, 1}
    probabilities = fitted.predict_proba(X)
    assert probabilities.shape == (300, 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_array_equal(fitted.classes_[probabilities.argmax(axis=1)], fitted.predict(X))


def test_a_notebook_shows_epsilon_and_labels(fitted: PATEClassifier) -> None:
    shown = fitted._repr_html_()
    assert f"{fitted.epsilon_:.3g}" in shown
    assert "100 released labels" in shown
    assert "<td>up</td>" in shown
    assert "not fitted" in PATEClassifier()._repr_html_()


def test_two_fits_differ_and_draw_from_the_operating_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """With σ = 10 on 20 votes, two lists of 60 labels agree with probability below 2⁻³⁰."""
    X, y = records()
    drawn: list[int] = []
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda n: (drawn.append(n), real(n))[1])
    fits = [
        PATEClassifier(n_teachers=20, mechanism=GNMax(10.0), queries=60, classes=["up", "down"])
        .fit(X, y, X_public=records(60, seed=1)[0])
        .labels_
        for _ in range(2)
    ]
    assert (fits[0] != fits[1]).any()
    assert sum(drawn) > 0


def test_records_split_off_as_public_are_told_and_chosen_one_by_one() -> None:
    X, y = records()
    model = PATEClassifier(n_teachers=20, mechanism=GNMax(5.0), queries=20, classes=["up", "down"])
    with pytest.warns(PrivacyWarning, match="not protected"):
        model.fit(X, y)
    chosen = model._public(X, np.zeros(len(X), dtype=np.int64))
    assert 0.1 < chosen.mean() < 0.3
    changed = X.copy()
    changed[7] += 1
    others = np.arange(len(X)) != 7
    np.testing.assert_array_equal(model._public(changed, np.zeros(len(X), dtype=np.int64))[others], chosen[others])
    np.testing.assert_array_equal(model._public(X[9:], np.zeros(len(X) - 9, dtype=np.int64)), chosen[9:])
    np.testing.assert_array_equal(model._public(X, np.arange(len(X))), chosen)  # labels are private


def test_records_taken_as_public_are_no_longer_private() -> None:
    X, y = records()
    with pytest.warns(PrivacyWarning, match="not protected"):
        data = PATEClassifier(classes=["up", "down"])._dataset(X, y, None)
    found = [row.tobytes() for part in (data.records.X, data.X_public) for row in part]
    assert len(found) == len(set(found)) == len(X)
    assert len(data.records.y) == len(data.records.X)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.filterwarnings("ignore::pate.classifier.PrivacyWarning")
def test_medians_and_categories_are_those_of_public_examples(given: bool) -> None:
    """A word or a number that only protected records have makes no feature, and moves no median."""
    X, spies = frame(300, 0), np.arange(300) % 3 > 0
    X.loc[spies, "job"], X.loc[spies, "age"] = "spy", X["age"] + 500
    model = PATEClassifier(classes=[0, 1])
    X = X[~(spies & model._public(X, np.zeros(300, dtype=np.int64)))]  # a record's own hash decides
    data = model._dataset(X, np.arange(len(X)) % 2, frame(60, 1) if given else None)
    assert data.features == ("age", "town=Bonn", "town=Ulm", "town=Wien", "job=clerk", "job=cook", "count")
    ages, times = np.unique(data.records.X[:, 0], return_counts=True)
    assert ages[-1] < 200, "numbers beyond the public range count as its end"
    assert 40 < ages[times[:-1].argmax()] < 60  # what stands where one was missing


def test_what_was_asked_for_is_what_is_run() -> None:
    X, y = records()
    teachers = [(GaussianNB(), 2.0), KNeighborsClassifier(3)]
    model = PATEClassifier(
        teachers, n_teachers=30, epsilon=3, delta=1e-6, queries=50, classes=["up", "down"], random_state=7
    )
    config = model._config(model._dataset(X, y, X[:80]))
    assert (config.seed, config.n_teachers, config.budget.asked) == (7, 30, 50)
    assert (config.budget.delta, config.budget.epsilon) == (1e-6, 3)
    assert [family.weight for family in config.teachers] == [2.0, 1.0]
    cost = publishable_epsilon(config, config.build_mechanism(), 2)
    assert 2.9 < cost <= 3


def test_classes_are_those_that_were_given() -> None:
    """Whether or not a record has them; and probabilities stand in their columns."""
    X, y = records()
    classes = ["across", "down", "sideways", "up"]
    model = PATEClassifier(n_teachers=40, mechanism=GNMax(3.0), queries=40, classes=classes)
    model.fit(X, y, X_public=X[np.abs(X[:, 0] + X[:, 1]) > 1][:60])  # where teachers agree
    assert model.classes_.tolist() == classes
    found = model.predict_proba(X)
    never = np.setdiff1d(np.arange(4), model.labels_)
    assert len(never) > 0  # two classes that nobody votes for, at nine standard deviations
    assert found[:, never].max() == 0
    np.testing.assert_array_equal(model.classes_[found.argmax(axis=1)], model.predict(X))
    with pytest.raises(ValueError, match="not among classes"):
        PATEClassifier(classes=["down", "zzz"]).fit(X, y, X_public=X[:30])


def test_the_epsilon_told_is_the_cost_not_the_limit() -> None:
    X, y = records(100)
    model = PATEClassifier(n_teachers=10, mechanism=GNMax(9.0), epsilon=50, queries=10, classes=["up", "down"])
    model.fit(X, y, X_public=X[:20])
    assert model.epsilon_ == model.report_.privacy.epsilon < 20
    assert model.report_.privacy.unit == "record"
    assert model.report_.benchmark is None


def test_labels_have_no_part_in_which_records_are_public() -> None:
    X, _ = records()
    model = PATEClassifier()
    no, yes = (np.full(len(X), label, dtype=np.int64) for label in (0, 1))
    np.testing.assert_array_equal(model._public(X, no), model._public(X, yes))


def test_what_is_fitted_holds_no_record(fitted: PATEClassifier) -> None:
    """It may be published."""
    content = pickle.dumps(fitted)
    assert len(content) > 1000
    X, _ = records()
    assert not [row for row in X if row.tobytes() in content or row.astype(np.float64).tobytes() in content]


def test_labels_that_are_taken_as_public_are_told() -> None:
    X, y = records()
    model = PATEClassifier(n_teachers=20, mechanism=GNMax(5.0), queries=20)
    with pytest.warns(PrivacyWarning, match="public knowledge"):
        model.fit(X, y, X_public=X[:30])
    with pytest.raises(ValueError, match="not among classes"):
        PATEClassifier(classes=["up", "sideways"]).fit(X, y, X_public=X[:30])


def frame(n: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": np.where(rng.random(n) < 0.1, np.nan, rng.normal(50, 10, n)),
            "town": pd.Categorical(rng.choice(["Bonn", "Ulm"], n), categories=["Bonn", "Ulm", "Wien"]),
            "job": np.where(rng.random(n) < 0.1, None, rng.choice(["cook", "clerk"], n)),
            "count": rng.integers(5, size=n),
        }
    )


def test_frames_with_categories_and_missing_values() -> None:
    X, X_public = frame(400, 0), frame(100, 1)
    y = (X["town"] == "Ulm").astype(int)
    model = PATEClassifier(n_teachers=20, epsilon=8, queries=60, classes=[0, 1]).fit(X, y, X_public=X_public)
    held_out = frame(200, 2)
    assert (model.predict(held_out) == (held_out["town"] == "Ulm")).mean() > 0.9
    assert model.feature_names_in_.tolist() == ["age", "town", "job", "count"]
    assert model.n_features_in_ == 4
    assert model.report_.classes == ("0", "1")
    with pytest.raises(ValueError, match="feature names"):
        model.predict(held_out.rename(columns={"age": "years"}))


def test_one_record_of_a_frame_changes_no_other() -> None:
    """A missing value makes floats of a column, a word makes objects of it: the others stay what they are."""
    X, encoder = frame(50, 0), Encoder.of(frame(30, 1))
    before = encoder.transform(X)
    chosen = PATEClassifier()._public(X, np.zeros(50, dtype=np.int64))
    for column, value in (("count", None), ("count", "many"), ("age", "old"), ("job", 3), ("town", None)):
        changed = X.astype({column: object})
        changed.loc[3, column] = value
        if column == "count" and value is None:
            changed["count"] = changed["count"].astype(float)
        others = np.arange(50) != 3
        np.testing.assert_array_equal(encoder.transform(changed)[others], before[others])
        moved = PATEClassifier()._public(changed, np.zeros(50, dtype=np.int64))
        np.testing.assert_array_equal(moved[others], chosen[others])


def test_a_missing_number_becomes_the_median_of_public_examples() -> None:
    X, X_public = frame(50, 0), frame(30, 1)
    data = PATEClassifier(classes=[0, 1])._dataset(X, np.resize([0, 1], 50), X_public)
    missing = X["age"].isna().to_numpy()
    assert missing.any()
    assert set(data.records.X[missing, 0].tolist()) == {np.float32(X_public["age"].median())}


def test_it_works_in_pipelines_and_cross_validation_but_not_behind_a_fitted_scaler() -> None:
    X, y = records()
    model = PATEClassifier(
        teachers=[make_pipeline(StandardScaler(), LogisticRegression())],
        n_teachers=20,
        mechanism=GNMax(2.0),
        queries=40,
        classes=["up", "down"],
    )
    assert cross_val_score(make_pipeline(FunctionTransformer(), model), X, y, cv=2).mean() > 0.7
    with pytest.raises(ValueError, match="step 'standardscaler' before it was fitted on all private records"):
        make_pipeline(StandardScaler(), model).fit(X, y)


def test_the_mechanism_students_and_images() -> None:
    digits = load_digits()
    model = PATEClassifier(
        GaussianNB(),
        n_teachers=30,
        mechanism=ConfidentGNMax(threshold=15, sigma1=6, sigma2=4),
        student=KNeighborsClassifier(3),
        queries=150,
        classes=range(10),
    )
    model.fit(digits.data[:1200], digits.target[:1200], X_public=digits.data[1200:1400])
    assert (model.labels_ == -1).any()
    assert model.predict_proba(digits.data[1400:1410]).shape == (10, 10)
    assert (model.predict(digits.data[1400:]) == digits.target[1400:]).mean() > 0.5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon": -1}, "epsilon"),
        ({"delta": 2}, "delta"),
        ({"n_teachers": 1}, "n_teachers"),
        ({"mechanism": GNMax(3.0), "epsilon": 0.1}, "budget.epsilon"),
        ({"backend": "dask"}, "backend"),
        ({"student": "mixmtch"}, "mixmatch"),
        ({"random_state": -1}, "seed"),
        ({"voters": "neighbours", "teachers": GaussianNB()}, "teachers: is for voters = 'teachers'"),
        ({"voters": "neighbours"}, "n_teachers: is for voters = 'teachers'"),
        ({"votes": 2}, "votes: is for voters = 'neighbours'"),
        ({"features": ["fourier"]}, "features: is for voters = 'neighbours'"),
        ({"voters": "neighbors"}, "must be 'teachers' or 'neighbours'"),
        ({"voters": "neighbours", "n_teachers": 250, "queries": 21}, "only 20 public examples"),
        ({"voters": "neighbours", "n_teachers": 250, "queries": 3, "votes": 3}, "must be fewer than the cells, 3"),
    ],
)
def test_a_mistake_is_one_line(settings: dict[str, object], words: str) -> None:
    X, y = records(100)
    with pytest.raises(ConfigError, match=words):
        PATEClassifier(**{"n_teachers": 10, "classes": ["up", "down"]} | settings).fit(X, y, X_public=X[:20])  # type: ignore[arg-type]


def test_records_vote_themselves_with_the_least_noise_for_epsilon() -> None:
    """Of a frame with words and missing numbers; two votes a record, ten cells."""
    X = frame(600, 0)
    y = np.where(X["town"] == "Ulm", "yes", "no")
    model = PATEClassifier(voters="neighbours", votes=2, queries=10, epsilon=2, classes=["no", "yes"])
    model.fit(X, y, X_public=frame(80, 1))
    assert 1.98 < model.epsilon_ <= 2
    assert model.delta_ == 1e-5
    assert model.report_.voters == "neighbours"
    assert model.report_.privacy.epsilon_added_or_removed == pytest.approx(1.0, rel=0.01)
    assert len(model.labels_) == len(model.public_rows_) == 80
    held_out = frame(200, 2)
    assert (model.predict(held_out) == np.where(held_out["town"] == "Ulm", "yes", "no")).mean() > 0.9
    assert model.predict_proba(held_out).shape == (200, 2)


def test_a_record_that_is_no_number_casts_no_vote_and_stops_nothing() -> None:
    """For neighbours; teachers refuse it."""
    X, y = records()
    X[3, 1] = np.nan
    model = PATEClassifier(voters="neighbours", queries=10, epsilon=2, classes=["up", "down"])
    assert (model.fit(X, y, X_public=records(60, seed=1)[0]).predict(X[4:]) == y[4:]).mean() > 0.7
    with pytest.raises(ValueError, match="NaN"):
        PATEClassifier(classes=["up", "down"]).fit(X, y, X_public=X[10:20])


def test_cells_are_made_of_records_split_off_and_in_features_that_were_named() -> None:
    X, y = records()
    steps = [{"name": "fourier", "params": {"n_pairs": 20, "gamma": 0.5}}]
    model = PATEClassifier(voters="neighbours", features=steps, classes=["up", "down"])
    data = model._dataset(X, y, None)
    config = model._config(data)
    assert config.neighbours is not None
    assert config.neighbours.queries == len(data.X_public) // 4
    assert [step.name for step in config.neighbours.features] == ["fourier"]
    assert not config.neighbours.standardise
    assert config.mechanism["name"] == "histogram"
    assert 1.98 < publishable_epsilon(config, config.build_mechanism(), 2) <= 2


@pytest.mark.usefixtures("local_ray")
def test_on_ray_it_is_the_same_classifier() -> None:
    X, y = records()
    model = PATEClassifier(n_teachers=10, mechanism=GNMax(1.0), queries=30, classes=["up", "down"], backend="ray")
    assert (model.fit(X, y, X_public=records(60, seed=1)[0]).predict(X) == y).mean() > 0.8
