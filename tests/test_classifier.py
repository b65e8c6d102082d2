"""PATEClassifier: scikit-learn's contract, and what the guarantee rests on."""

from __future__ import annotations

import os
import pickle
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any

import cloudpickle
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GroupKFold, cross_val_score, cross_validate
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import has_fit_parameter

from pate.classifier import PATEClassifier, PrivacyWarning
from pate.config import TeacherFamily
from pate.data._model_input import Encoder, person_ids, split_off_public
from pate.data.private import Records, is_per_person
from pate.errors import ConfigError, RunError
from pate.mechanisms import ConfidentGNMax, GNMax, Histogram
from pate.planning.plan import recommend
from pate.teachers import recipes
from pate.voters import voters_of
from pate.voters.teachers._worker import Teaching
from pate.voters.teachers.ensemble import Ensemble, parts_of, split_records

NOISE = "two fits draw different noise, which is never seeded, so their predictions differ"
CANNOT_APPLY = {
    "check_supervised_y_2d": NOISE,
    "check_classifier_data_not_an_array": NOISE,
    "check_fit_idempotent": NOISE,
}
SMALL = PATEClassifier(n_teachers=5, mechanism=GNMax(3.0), max_queries=40, public_fraction=0.4, force=True)
NEAR = PATEClassifier(mechanism=Histogram(1.0), public_fraction=0.4)


@pytest.fixture(autouse=True)
def _warnings_are_expected() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        yield


def cannot_apply(estimator: PATEClassifier) -> dict[str, str]:
    own = {"check_estimators_nan_inf": "a record that is no number casts no vote, and is no reason to stop"}
    return CANNOT_APPLY | own if isinstance(estimator.mechanism, Histogram) else CANNOT_APPLY


@parametrize_with_checks([SMALL, NEAR], expected_failed_checks=cannot_apply)
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
    model = PATEClassifier(teachers, n_teachers=40, epsilon=6, max_queries=100, classes=["up", "down"])
    return model.fit(X, y, X_public=records(150, seed=1)[0])


def test_it_learns_and_says_what_it_cost(fitted: PATEClassifier) -> None:
    X, y = records(300, seed=2)
    assert (fitted.predict(X) == y).mean() > 0.7
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
        PATEClassifier(n_teachers=20, mechanism=GNMax(10.0), max_queries=60, classes=["up", "down"])
        .fit(X, y, X_public=records(60, seed=1)[0])
        .labels_
        for _ in range(2)
    ]
    assert (fits[0] != fits[1]).any()
    assert sum(drawn) > 0


def test_records_split_off_as_public_are_told_and_chosen_one_by_one() -> None:
    X, y = records()
    model = PATEClassifier(n_teachers=20, mechanism=GNMax(5.0), max_queries=20, classes=["up", "down"])
    with pytest.warns(PrivacyWarning, match="not protected"):
        model.fit(X, y)
    chosen = split_off_public(X, None, 0.2, 0)
    assert 0.1 < chosen.mean() < 0.3
    changed = X.copy()
    changed[7] += 1
    others = np.arange(len(X)) != 7
    np.testing.assert_array_equal(split_off_public(changed, None, 0.2, 0)[others], chosen[others])
    np.testing.assert_array_equal(split_off_public(X[9:], None, 0.2, 0), chosen[9:])
    assert (split_off_public(X, None, 0.2, 1) != chosen).any()


def test_records_taken_as_public_are_no_longer_private() -> None:
    X, y = records()
    with pytest.warns(PrivacyWarning, match="not protected"):
        public, private, _ = PATEClassifier(classes=["up", "down"])._prepared(X, y, None, None)
    found = [row.tobytes() for part in (private.X, public.X_public) for row in part]
    assert len(found) == len(set(found)) == len(X)
    assert len(private.y) == len(private.X)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.filterwarnings("ignore::pate.classifier.PrivacyWarning")
def test_medians_and_categories_are_those_of_public_examples(given: bool) -> None:
    """A word or a number that only protected records have makes no feature, and moves no median."""
    X, spies = frame(300, 0), np.arange(300) % 3 > 0
    X.loc[spies, "job"], X.loc[spies, "age"] = "spy", X["age"] + 500
    model = PATEClassifier(classes=[0, 1])
    X = X[~(spies & split_off_public(X, None, 0.2, 0))]  # a record's own hash decides
    public, private, _ = model._prepared(X, np.arange(len(X)) % 2, frame(60, 1) if given else None, None)
    declared = ["town=Wien"] if given else []  # which types of private columns say too, so that they have no say there
    assert public.features == ("age", "town=Bonn", "town=Ulm", *declared, "job=clerk", "job=cook", "count")
    ages, times = np.unique(private.X[:, 0], return_counts=True)
    assert ages[-1] < 200, "numbers beyond the public range count as its end"
    assert 40 < ages[times[:-1].argmax()] < 60  # what stands where one was missing


def test_what_was_asked_for_is_what_is_run() -> None:
    X, y = records()
    teachers = [(GaussianNB(), 2.0), KNeighborsClassifier(3)]
    model = PATEClassifier(
        teachers, n_teachers=30, epsilon=3, delta=1e-6, max_queries=50, classes=["up", "down"], random_state=7
    )
    _, _, config = model._prepared(X, y, X[:80], None)
    assert (config.seed, config.n_teachers, config.budget.max_queries) == (7, 30, 50)
    assert (config.budget.delta, config.budget.epsilon) == (1e-6, 3)
    assert [family.weight for family in config.teachers] == [2.0, 1.0]
    cost = voters_of(config).publishable_epsilon(2)
    assert 2.9 < cost <= 3


def test_classes_are_those_that_were_given() -> None:
    """Whether or not a record has them; and probabilities stand in their columns."""
    X, y = records()
    classes = ["across", "down", "sideways", "up"]
    model = PATEClassifier(n_teachers=40, mechanism=GNMax(3.0), max_queries=40, classes=classes)
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
    model = PATEClassifier(n_teachers=10, mechanism=GNMax(9.0), epsilon=50, max_queries=10, classes=["up", "down"])
    model.fit(X, y, X_public=X[:20])
    assert model.epsilon_ == model.report_.privacy.epsilon < 20
    assert model.report_.privacy.unit == "record"
    assert model.report_.benchmark is None


def test_labels_have_no_part_in_which_records_are_public() -> None:
    X, y = records()
    model = PATEClassifier(classes=["up", "down"])
    (one, *_), (other, *_) = model._prepared(X, y, None, None), model._prepared(X, y[::-1], None, None)
    np.testing.assert_array_equal(one.X_public, other.X_public)


def test_what_is_fitted_holds_no_record(fitted: PATEClassifier) -> None:
    """It may be published."""
    content = pickle.dumps(fitted)
    assert len(content) > 1000
    X, _ = records()
    assert not [row for row in X if row.tobytes() in content or row.astype(np.float64).tobytes() in content]


def test_labels_that_are_taken_as_public_are_told() -> None:
    X, y = records()
    model = PATEClassifier(n_teachers=20, mechanism=GNMax(5.0), max_queries=20)
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
    model = PATEClassifier(n_teachers=20, epsilon=8, max_queries=60, classes=[0, 1]).fit(X, y, X_public=X_public)
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
    chosen = split_off_public(X, None, 0.2, 0)
    for column, value in (("count", None), ("count", "many"), ("age", "old"), ("job", 3), ("town", None)):
        changed = X.astype({column: object})
        changed.loc[3, column] = value
        if column == "count" and value is None:
            changed["count"] = changed["count"].astype(float)
        others = np.arange(50) != 3
        np.testing.assert_array_equal(encoder.transform(changed)[others], before[others])
        moved = split_off_public(changed, None, 0.2, 0)
        np.testing.assert_array_equal(moved[others], chosen[others])


def test_a_missing_number_becomes_the_median_of_public_examples() -> None:
    X, X_public = frame(50, 0), frame(30, 1)
    _, private, _ = PATEClassifier(classes=[0, 1])._prepared(X, np.resize([0, 1], 50), X_public, None)
    missing = X["age"].isna().to_numpy()
    assert missing.any()
    assert set(private.X[missing, 0].tolist()) == {np.float32(X_public["age"].median())}


def test_it_works_in_pipelines_and_cross_validation_but_not_behind_a_fitted_scaler() -> None:
    X, y = records()
    model = PATEClassifier(
        teachers=[make_pipeline(StandardScaler(), LogisticRegression())],
        n_teachers=20,
        mechanism=GNMax(2.0),
        max_queries=40,
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
        max_queries=150,
        classes=range(10),
    )
    model.fit(digits.data[:1200], digits.target[:1200], X_public=digits.data[1200:1400])
    assert (model.labels_ == -1).any()
    assert model.predict_proba(digits.data[1400:1410]).shape == (10, 10)
    assert (model.predict(digits.data[1400:]) == digits.target[1400:]).mean() > 0.5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"epsilon": -1}, "^epsilon = -1: must be a number above 0"),
        ({"epsilon": "2"}, "^epsilon = '2': .* without quotes"),
        ({"epsilon": 1e-4}, "^epsilon=0.0001: out of reach for 20 queries"),
        ({"delta": 2}, "^delta = 2"),
        ({"delta": 0.01}, "^delta = 0.01: more than 0.001, so that .* write 1e-4 or less$"),
        ({"delta": 1e-3, "public_record_count": 20_000}, "^delta = 0.001: more than one over the about 20,000"),
        ({"n_teachers": 1}, "^n_teachers = 1"),
        ({"n_teachers": None}, "^n_teachers = 250: .*too small.* give public_record_count, .*force=True$"),
        ({"public_record_count": 0}, "^public_record_count = 0"),
        (
            {"public_record_count": 300, "n_teachers": None, "voters": "teachers", "epsilon": 0.5},
            "^public_record_count = 300: too few for voters = 'teachers' within epsilon = 0.5",
        ),
        ({"public_record_count": 60, "n_teachers": None}, "^epsilon=2.0: out of reach with 60 records"),
        ({"max_queries": 0}, "^max_queries = 0"),
        ({"mechanism": GNMax(3.0), "epsilon": 0.1}, "^epsilon = 0.1"),
        ({"backend": "dask"}, "^backend = 'dask': must be 'local' or 'ray'"),
        ({"student": "mixmtch"}, "^student = 'mixmtch': .*'mixmatch'"),
        ({"student": LinearRegression()}, "^student = .*: a regressor, not a classifier"),
        ({"teachers": [GaussianNB(), LinearRegression()]}, r"^teachers\[1\] = .*: a regressor, not a classifier"),
        ({"teachers": [(GaussianNB(), -1)]}, r"^teachers\[0\]: weight = -1"),
        ({"teachers": SVC(C=-1)}, r"^teachers\[0\] = 'sklearn.svm.SVC': The 'C' parameter"),
        ({"teachers": []}, "^teachers = \\[\\]"),
        ({"random_state": -1}, "^random_state = -1"),
        ({"public_fraction": 1.0}, "^public_fraction = 1.0"),
        ({"classes": ["up"]}, r"^classes = \['up'\]: must hold at least two"),
        ({"n_jobs": 0}, "^n_jobs = 0"),
        ({"voters": "neighbours", "teachers": GaussianNB()}, "^teachers: is for voters = 'teachers'"),
        ({"voters": "neighbours"}, "^n_teachers: is for voters = 'teachers'"),
        ({"votes_per_record": 2}, "^votes_per_record: is for voters = 'neighbours'"),
        ({"features": ["fourier"]}, "^features: is for voters = 'neighbours'"),
        ({"voters": "neighbors"}, "^voters = 'neighbors': must be 'auto', 'teachers' or 'neighbours'"),
        (
            {"voters": "neighbours", "n_teachers": None, "max_queries": 21},
            "^max_queries = 21: there are only 20 public examples",
        ),
        (
            {"votes_per_record": 3, "n_teachers": None, "max_queries": 3},
            "^votes_per_record = 3: must be fewer than the cells, 3",
        ),
        ({"features": ["furier"], "n_teachers": None}, "^features.*'furier'"),
    ],
)
def test_a_wrong_value_is_a_value_error_that_names_the_parameter(settings: dict[str, object], words: str) -> None:
    X, y = records(100)
    with pytest.raises(ValueError, match=words) as error:
        PATEClassifier(**{"n_teachers": 10, "classes": ["up", "down"]} | settings).fit(X, y, X_public=X[:20])  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
    assert not re.search("target_epsilon|budget|neighbours\\.|asdict", str(error.value))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"mechanism": "gnmax"}, "^mechanism = 'gnmax': must be one of pate.mechanisms, such as GNMax"),
        ({"mechanism": GNMax}, "^mechanism = GNMax: is a class"),
        ({"teachers": LogisticRegression}, r"^teachers = LogisticRegression: is a class; write LogisticRegression\(\)"),
        ({"teachers": [GaussianNB(), "svm"]}, r"^teachers\[1\] = 'svm': must be a classifier"),
        (
            {"teachers": (GaussianNB(), 2)},
            r"^teachers\[1\] = 2: must be a classifier, or \(classifier, weight\) in a list",
        ),
        ({"student": LogisticRegression}, "^student = LogisticRegression: is a class"),
        ({"student": 7}, "^student = 7: must be a classifier, or the name of a student"),
        ({"random_state": np.random.default_rng(0)}, "^random_state = Generator"),
    ],
)
def test_a_thing_of_another_kind_is_a_type_error_that_names_the_parameter(
    settings: dict[str, object], words: str
) -> None:
    X, y = records(100)
    with pytest.raises(TypeError, match=words):
        PATEClassifier(**{"n_teachers": 10, "classes": ["up", "down"]} | settings).fit(X, y, X_public=X[:20])  # type: ignore[arg-type]


def test_what_is_wrong_with_data_is_a_value_error_that_names_the_argument() -> None:
    X, y = records(100)
    model, table = PATEClassifier(n_teachers=10, max_queries=20, classes=["up", "down"]), frame(100, 0)
    for arguments, words in (
        ({"X": table, "y": y[:99], "X_public": frame(30, 1)}, "inconsistent numbers of samples"),
        ({"X": X, "y": y[:99], "X_public": X[:30]}, "inconsistent numbers of samples"),
        ({"X": X, "y": y, "X_public": X[:30, :2]}, "^X_public: has 2 columns, X has 3"),
        ({"X": table, "y": y, "X_public": frame(30, 1).drop(columns="job")}, "^X_public: has no column 'job'"),
        ({"X": table, "y": y, "X_public": X[:30]}, "^X_public: must be a data frame where X is one"),
        ({"X": X, "y": y, "X_public": np.full((9, 3), np.nan)}, "X_public contains NaN"),
        ({"X": X, "y": y, "X_public": X[:0]}, "^X_public: holds no examples"),
        ({"X": X, "y": y, "X_public": X[:30], "ids": range(99)}, "^ids: 99 of them for 100 records"),
        ({"X": X, "y": y, "X_public": X[:30], "ids": np.linspace(0, 1, 100)}, "^ids: holds float64"),
        (
            {"X": X, "y": np.where(y == "up", "up", "sideways"), "X_public": X[:30]},
            "^y: holds a label that is not among",
        ),
    ):
        with pytest.raises(ValueError, match=words):
            model.fit(**arguments)
    for sparse in ({"X": csr_matrix(X), "X_public": X[:30]}, {"X": X, "X_public": csr_matrix(X[:30])}):
        with pytest.raises(TypeError, match=r"Sparse data was passed.*dense data is required"):
            model.fit(y=y, **sparse)


def test_voters_follow_from_public_figures_as_a_plan_recommends() -> None:
    """133 records, for which 250 teachers would be parts with less than one record."""
    X, y = records(133)
    X_public = records(60, seed=1)[0]
    recommended = recommend(133, 2, 2.0, 1e-5, 60).choice
    _, _, config = PATEClassifier(public_record_count=133, classes=["up", "down"])._prepared(X, y, X_public, None)
    assert (config.voters, config.neighbours.cells) == (recommended.voters, recommended.asked)  # type: ignore[union-attr]
    model = PATEClassifier(public_record_count=133, classes=["up", "down"]).fit(X, y, X_public=X_public)
    assert model.score(*records(300, seed=2)) > 0.65
    many = recommend(20_000, 2, 2.0, 1e-5, 2_000).choice
    X_public = records(2_000, seed=1)[0]
    _, _, config = PATEClassifier(public_record_count=20_000, classes=["up", "down"])._prepared(X, y, X_public, None)
    assert (config.voters, config.n_teachers, config.budget.max_queries) == ("teachers", many.n_teachers, many.asked)
    assert 1.98 < voters_of(config).publishable_epsilon(2) <= 2
    near = PATEClassifier(voters="neighbours", public_record_count=30, classes=["up", "down"])  # a plan has none
    assert near._prepared(X, y, X_public[:60], None)[2].neighbours.cells == 15  # type: ignore[union-attr]


@pytest.mark.parametrize("count", [None, 2_000, 20_000])
@pytest.mark.parametrize("voters", ["auto", "teachers", "neighbours"])
def test_one_record_more_changes_neither_voters_nor_their_number(voters: str, count: int | None) -> None:
    X, y = records(400)
    X_public = records(80, seed=1)[0]
    model = PATEClassifier(voters=voters, public_record_count=count, classes=["up", "down"])  # type: ignore[arg-type]
    configs = [model._prepared(X[:n], y[:n], X_public, None)[2] for n in (2, 133, 400)]
    assert configs[0] == configs[1] == configs[2]


def test_parts_that_are_too_small_are_refused_unless_that_is_forced() -> None:
    """As `pate run` does it; how many records there are is not said."""
    X, y = records(133)
    model = PATEClassifier(epsilon=8, max_queries=20, classes=["up", "down"])
    with pytest.raises(ValueError, match=r"n_teachers = 250: parts .* too small to learn from") as error:
        model.fit(X, y, X_public=X[:20])
    assert "133" not in str(error.value)
    assert model.set_params(force=True).fit(X, y, X_public=X[:20]).epsilon_ <= 8


def visits(n_persons: int = 120, each: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    X, y = records(n_persons * each)
    return X, y, np.repeat(np.arange(n_persons), each)


@pytest.mark.parametrize("form", ["numbers", "text", "series", "nullable"])
def test_all_records_of_a_person_are_protected_together(form: str) -> None:
    """They are in one part: whatever one person's records say, one teacher changes."""
    X, y, persons = visits()
    forms = {
        "numbers": persons,
        "text": [f"P{i}" for i in persons],
        "series": pd.Series(persons),
        "nullable": pd.Series(persons, dtype="Int64"),
    }
    model = PATEClassifier(n_teachers=12, mechanism=GNMax(4.0), max_queries=20, classes=["up", "down"])
    _, private, config = model._prepared(X, y, X[:20], forms[form])
    parts = parts_of(config, private, b"k" * 32)
    of_person = {
        person: {n for n, rows in enumerate(parts) if (persons[rows] == person).any()} for person in range(120)
    }
    assert all(len(found) == 1 for found in of_person.values())
    assert len(set().union(*of_person.values())) == 12
    assert model.fit(X, y, X_public=X[:20], ids=forms[form]).report_.privacy.unit == "id"


def test_a_person_has_the_votes_of_one_record() -> None:
    """Neighbours: 100 copies of a record, all of one person, count as one."""
    X, y, persons = visits(60, 1)
    copies = (np.repeat(X[:1], 100, axis=0), np.repeat(y[:1], 100), np.repeat(persons[:1], 100))
    X, y, persons = (np.concatenate(pair) for pair in zip((X, y, persons), copies, strict=True))
    model = PATEClassifier(mechanism=Histogram(1.0), max_queries=5, classes=["up", "down"])
    _, private, _ = model._prepared(X, y, records(30, seed=1)[0], persons)
    assert Counter(private.ids) == {"0": 101, **{str(i): 1 for i in range(1, 60)}}
    assert is_per_person(private)


def test_a_person_is_public_or_protected_whole_and_never_without_an_id() -> None:
    X, y, persons = visits()
    ids = [None if i % 10 == 0 else f"P{person}" for i, person in enumerate(persons)]
    with pytest.warns(PrivacyWarning, match="of the persons are taken as public"):
        public_data, private, _ = PATEClassifier(classes=["up", "down"])._prepared(X, y, None, ids)
    owner = {row.tobytes(): one for row, one in zip(X, ids, strict=True)}
    public = {owner[row.tobytes()] for row in public_data.X_public}
    assert None not in public
    assert 10 < len(public) < 40
    assert not public & set(private.ids or ())
    assert private.left_out == ids.count(None)
    assert len(public_data.X_public) + len(private.X) + ids.count(None) == len(X)


@given(st.lists(st.one_of(st.integers(), st.text(max_size=4), st.none(), st.booleans(), st.floats())), st.data())
def test_what_an_id_is_depends_on_no_other(ids: list[object], data: st.DataObject) -> None:
    kept = np.empty(len(ids), dtype=object)
    kept[:] = ids
    if len(ids) == 0:
        return
    found, place = person_ids(kept), data.draw(st.integers(0, len(ids) - 1))
    kept[place] = data.draw(st.one_of(st.integers(), st.text(max_size=4), st.none(), st.floats()))
    changed = person_ids(kept)
    assert [a for i, a in enumerate(found) if i != place] == [b for i, b in enumerate(changed) if i != place]
    assert all(one is None or one == one.strip() != "" for one in changed)


def test_ids_by_metadata_routing_in_a_pipeline_and_a_cross_validation() -> None:
    """With groups of the same persons for the splitter: nobody is in training and test."""
    X, y, persons = visits()
    X_public = records(40, seed=1)[0]
    with config_context(enable_metadata_routing=True):
        model = PATEClassifier(n_teachers=8, mechanism=GNMax(1.0), max_queries=30, classes=["up", "down"])
        model.set_fit_request(ids=True, X_public=True)
        pipeline = make_pipeline(FunctionTransformer(), model)
        fitted = pipeline.fit(X, y, ids=persons, X_public=X_public)
        assert fitted[-1].report_.privacy.unit == "id"
        routed = {"ids": persons, "groups": persons, "X_public": X_public}
        found = cross_validate(
            pipeline, X, y, cv=GroupKFold(3), params=routed, return_estimator=True, error_score="raise"
        )
        assert [one[-1].report_.privacy.unit for one in found["estimator"]] == ["id"] * 3
        assert found["test_score"].mean() > 0.7
    assert (
        make_pipeline(FunctionTransformer(), model).fit(X, y, pateclassifier__ids=persons)[-1].report_.privacy.unit
        == "id"
    )


class Threshold:
    """A classifier with nothing but fit and predict, and a parameter that is NaN."""

    def __init__(self, missing: float = np.nan) -> None:
        self.missing = missing

    def fit(self, X: np.ndarray, y: np.ndarray) -> Threshold:
        self.sign = 1 if (X[y == 1].sum(axis=1).mean()) > X[y == 0].sum(axis=1).mean() else -1
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return (self.sign * (X[:, 0] + X[:, 1]) > 0).astype(int)


class Boosted(ClassifierMixin, BaseEstimator, Threshold):
    """As XGBClassifier: `missing` is NaN, and its constructor does not tell of it."""

    def __init__(self, *, objective: str = "binary", **further: Any) -> None:
        self.objective = objective
        self.missing, self.random_state = further.get("missing", np.nan), further.get("random_state")

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"objective": self.objective, "missing": self.missing, "random_state": self.random_state}

    def predict(self, X: np.ndarray) -> np.ndarray:
        assert np.isnan(self.missing)
        return super().predict(X)


def of_a_notebook() -> type:
    """A class that no module has."""

    class OfANotebook(ClassifierMixin, BaseEstimator):
        def __init__(self, missing: float = np.nan) -> None:
            self.missing = missing

        def fit(self, X: np.ndarray, y: np.ndarray) -> OfANotebook:
            self.sign = 1 if (X[y == 1].sum(axis=1).mean()) > X[y == 0].sum(axis=1).mean() else -1
            return self

        def predict(self, X: np.ndarray) -> np.ndarray:
            assert np.isnan(self.missing)
            return (self.sign * (X[:, 0] + X[:, 1]) > 0).astype(int)

    OfANotebook.__module__ = "__main__"
    return OfANotebook


@pytest.mark.parametrize("kind", ["fit and predict", "NaN", "notebook", "function in a pipeline", "RandomState"])
def test_anything_with_fit_and_predict_is_a_teacher_and_a_student(kind: str) -> None:
    estimator = {
        "fit and predict": Threshold(),
        "NaN": Boosted(),
        "notebook": of_a_notebook()(),
        "function in a pipeline": make_pipeline(FunctionTransformer(lambda X: X[:, :2]), LogisticRegression()),
        "RandomState": SVC(random_state=np.random.RandomState(3)),
    }[kind]
    X, y = records()
    model = PATEClassifier(estimator, n_teachers=20, mechanism=GNMax(2.0), max_queries=60, classes=["up", "down"])
    model.set_params(student=estimator).fit(X, y, X_public=records(60, seed=1)[0])
    held_out = records(200, seed=2)
    assert model.score(*held_out) > 0.75
    assert model.predict_proba(held_out[0]).shape == (200, 2)
    assert not vars(estimator).keys() & {"sign", "classes_", "n_features_in_"}  # a copy was fitted


def test_a_worker_that_lacks_a_module_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    (recipe,) = recipes([TeacherFamily(estimator=Boosted())])
    sent = cloudpickle.dumps(recipe)
    assert isinstance(pickle.loads(sent).estimator(0), Boosted)
    monkeypatch.setitem(sys.modules, __name__, None)
    with pytest.raises(ConfigError, match=r"^teachers\.0\.name = '.*Boosted': workers cannot import it"):
        pickle.loads(sent).estimator(0)


def test_copies_of_an_estimator_are_seeded_by_their_part() -> None:
    (recipe,) = recipes([TeacherFamily(estimator=Boosted())])
    assert recipe.prototype is not None
    assert [recipe.estimator(seed).get_params()["random_state"] for seed in (3, 4)] == [3, 4]
    (kept,) = recipes([TeacherFamily(estimator=Boosted(random_state=7))])
    assert kept.estimator(3).get_params()["random_state"] == 7


def test_the_default_student_scales_by_public_examples() -> None:
    """One column in millionths, one in millions: unscaled, logistic regression sees the latter only."""
    X, y = records()
    scale, X_public = np.array([1e-6, 1e-6, 1e6]), records(150, seed=1)[0]
    model = PATEClassifier(n_teachers=10, mechanism=GNMax(2.0), max_queries=100, classes=["up", "down"])
    model.fit(X * scale, y, X_public=X_public * scale)
    held_out, truth = records(300, seed=2)
    assert model.score(held_out * scale, truth) > 0.8
    scaler = model.student_.classifier_.estimator["scaler"]
    np.testing.assert_allclose(scaler.mean_, (X_public * scale).astype(np.float32).mean(axis=0), rtol=1e-3)


@pytest.mark.parametrize(
    "student", [None, SVC(break_ties=True), SVC(decision_function_shape="ovo"), GaussianNB(), Threshold()]
)
@pytest.mark.parametrize("n_classes", [2, 3])
def test_scores_agree_with_predictions(student: object, n_classes: int) -> None:
    """Also where no released label names one of the classes, and whichever labels are released.

    An SVC that does not break ties predicts by votes between pairs of classes, and scores otherwise.
    """
    X, _ = records()
    y = np.digitize(X[:, 0] + X[:, 1], [-0.7, 0.7] if n_classes == 3 else [0]) + 1
    classes = range(5) if n_classes == 3 else [1, 2]
    model = PATEClassifier(n_teachers=20, mechanism=GNMax(2.0), max_queries=100, classes=classes, student=student)
    model.fit(X, y, X_public=records(150, seed=1)[0])
    held_out = records(100, seed=2)[0]
    scores, probabilities = model.decision_function(held_out), model.predict_proba(held_out)
    assert np.isfinite(scores).all()
    by_score = (scores > 0).astype(int) if n_classes == 2 else scores.argmax(axis=1)
    np.testing.assert_array_equal(model.classes_[by_score], model.predict(held_out))
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(model.predict_log_proba(held_out), np.log(probabilities))


def test_weights_and_partial_fits_are_refused_and_why_is_said() -> None:
    X, y = records(100)
    model = PATEClassifier(n_teachers=10, mechanism=GNMax(9.0), max_queries=10, classes=["up", "down"])
    with pytest.raises(ValueError, match=r"^sample_weight: is not taken; every record .* same vote"):
        model.fit(X, y, X_public=X[:20], sample_weight=np.ones(100))
    with pytest.raises(TypeError, match="unexpected keyword argument 'groups'"):
        model.fit(X, y, groups=np.ones(100))
    assert not has_fit_parameter(model, "sample_weight")
    assert not hasattr(model, "partial_fit")
    with pytest.raises(
        AttributeError, match=r"no partial_fit: every fit is a release of its own and adds its epsilon_"
    ):
        model.partial_fit(X, y)
    model.fit(X, y, X_public=X[:20], sample_weight=None)


def test_random_states_are_drawn_from_as_scikit_learn_does() -> None:
    X, y = records(100)
    model = PATEClassifier(n_teachers=10, mechanism=GNMax(9.0), max_queries=10, classes=["up", "down"])

    def seeds(state: object) -> list[int]:
        model.set_params(random_state=state)
        return [model._prepared(X, y, X[:20], None)[2].seed for _ in range(2)]

    assert seeds(7) == [7, 7]
    first, second = seeds(np.random.RandomState(3))
    assert first != second
    assert seeds(np.random.RandomState(3)) == [first, second]
    assert len(set(seeds(None))) == 2
    assert model.seed_ == model.set_params(random_state=model.seed_).fit(X, y, X_public=X[:20]).seed_


def test_progress_is_shown_if_wanted_and_nothing_private_to_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    X, y = records(133)
    model = PATEClassifier(n_teachers=10, mechanism=GNMax(9.0), max_queries=10, classes=["up", "down"])
    model.fit(X, y, X_public=X[:20])
    assert capsys.readouterr() == ("", "")
    model.set_params(verbose=True).fit(X, y, X_public=X[:20], ids=np.arange(133))
    out, err = capsys.readouterr()
    assert out == ""
    assert "10 teachers, GNMax" in err
    assert "133" not in err
    near = PATEClassifier(mechanism=Histogram(2.0), max_queries=5, classes=["up", "down"], verbose=True)
    near.fit(X, y, X_public=X[:20], ids=np.arange(133))
    assert "one vote per person" in capsys.readouterr().err


def test_processes_train_the_same_teachers() -> None:
    """Also of classes that they cannot import, and where one kind has features of its own."""
    X, y = records()
    seen = {"name": "fourier", "params": {"n_pairs": 4, "gamma": 0.1}}
    families = [TeacherFamily(estimator=GaussianNB(), features=seen), TeacherFamily(estimator=of_a_notebook()())]
    teaching = Teaching(recipes(families), 2, 0, [0, 1] * 4)
    private = Records(X, (y == "up").astype(np.int64))
    found: list[np.ndarray] = []
    config = PATEClassifier(n_teachers=8, mechanism=GNMax(9.0), classes=["up", "down"])._prepared(X, y, X, None)[2]
    for n_jobs in (None, 2):
        with Ensemble(teaching, split_records(config, private, b"k" * 32), n_jobs=n_jobs) as ensemble:
            done: list[int] = []
            ensemble.train(done.append)
            assert done[-1] == 8
            assert not ensemble.store.failures
            found.append(ensemble.count(records(50, seed=1)[0]))
    np.testing.assert_array_equal(*found)


class FailsLater(Threshold):
    """On real labels, which do not alternate as those it is tried with do."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> FailsLater:
        if (np.diff(y) == 0).any():
            raise MemoryError("no room")
        super().fit(X, y)
        return self


def test_what_fails_after_labels_were_paid_for_gives_no_advice_that_is_not_true() -> None:
    X, y = records()
    model = PATEClassifier(
        n_teachers=20, mechanism=GNMax(2.0), max_queries=60, classes=["up", "down"], student=FailsLater()
    )
    with pytest.raises(
        RunError, match=r"the student failed .* another adds its ε to what this one may have spent$"
    ) as error:
        model.fit(X, y, X_public=records(60, seed=1)[0])
    assert not re.search("resume|/tmp|kept in", str(error.value))


def test_records_vote_themselves_with_the_least_noise_for_epsilon() -> None:
    """Of a frame with words and missing numbers; two votes a record, ten cells."""
    X = frame(600, 0)
    y = np.where(X["town"] == "Ulm", "yes", "no")
    model = PATEClassifier(voters="neighbours", votes_per_record=2, max_queries=10, epsilon=2, classes=["no", "yes"])
    model.fit(X, y, X_public=frame(80, 1))
    assert 1.98 < model.epsilon_ <= 2
    assert model.delta_ == 1e-5
    assert model.report_.voters.kind == "neighbours"
    assert model.report_.privacy.epsilon_added_or_removed == pytest.approx(1.0, rel=0.01)
    assert len(model.labels_) == len(model.public_rows_) == 80
    held_out = frame(200, 2)
    assert (model.predict(held_out) == np.where(held_out["town"] == "Ulm", "yes", "no")).mean() > 0.9
    assert model.predict_proba(held_out).shape == (200, 2)


def test_a_record_that_is_no_number_casts_no_vote_and_stops_nothing() -> None:
    """For neighbours; teachers refuse it."""
    X, y = records()
    X[3, 1] = np.nan
    model = PATEClassifier(voters="neighbours", max_queries=10, epsilon=2, classes=["up", "down"])
    assert (model.fit(X, y, X_public=records(60, seed=1)[0]).predict(X[4:]) == y[4:]).mean() > 0.7
    with pytest.raises(ValueError, match="NaN"):
        PATEClassifier(classes=["up", "down"]).fit(X, y, X_public=X[10:20])


def test_cells_are_made_of_records_split_off_and_in_features_that_were_named() -> None:
    X, y = records()
    steps = [{"name": "fourier", "params": {"n_pairs": 20, "gamma": 0.5}}]
    model = PATEClassifier(voters="neighbours", features=steps, classes=["up", "down"])
    public, _, config = model._prepared(X, y, None, None)
    assert config.neighbours is not None
    assert config.neighbours.cells == len(public.X_public) // 4
    assert [step.name for step in config.neighbours.features] == ["fourier"]
    assert not config.neighbours.standardise
    assert config.mechanism["name"] == "histogram"
    assert 1.98 < voters_of(config).publishable_epsilon(2) <= 2


@pytest.mark.usefixtures("local_ray")
def test_on_ray_it_is_the_same_classifier() -> None:
    X, y = records()
    model = PATEClassifier(n_teachers=10, mechanism=GNMax(1.0), max_queries=30, classes=["up", "down"], backend="ray")
    model.set_params(teachers=[GaussianNB(), of_a_notebook()()], n_jobs=1)
    assert (model.fit(X, y, X_public=records(60, seed=1)[0]).predict(X) == y).mean() > 0.8


@pytest.mark.parametrize("change", ["a word among numbers", "a declared category"])
def test_a_protected_record_decides_nothing_about_columns_of_records_split_off(change: str) -> None:
    """Types of a frame's columns are those of all its rows, protected ones too."""
    import pandas as pd

    from pate.data._model_input import Encoder, split_off_public

    frame = pd.DataFrame({"age": [float(20 + i % 12) for i in range(60)], "c": ["a", "b"] * 30})
    public = split_off_public(frame, None, 0.3, 0)
    row = int(np.flatnonzero(~public)[0])
    other = frame.astype({"age": object}) if change == "a word among numbers" else frame.copy()
    if change == "a word among numbers":
        other.loc[row, "age"] = "unknown"
    else:
        other.loc[row, "c"] = "HIV"
        other["c"] = other["c"].astype("category")
    assert (split_off_public(other, None, 0.3, 0)[public]).all()
    rest = np.arange(len(frame)) != row
    encoders = [Encoder.of(one[public], by_values=True) for one in (frame, other)]
    assert encoders[0].names == encoders[1].names == ("age", "c=a", "c=b")
    np.testing.assert_array_equal(encoders[0].transform(frame[rest]), encoders[1].transform(other[rest]))
