"""PATEClassifier: scikit-learn's contract, and what the guarantee rests on."""

from __future__ import annotations

import os
import pickle
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from sklearn import config_context
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GroupKFold, cross_validate
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import SVC
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import has_fit_parameter

from pate.classifier import PATEClassifier, PrivacyWarning
from pate.config import Config, TeacherFamily
from pate.data._model_input import Encoder, person_ids, split_off_public
from pate.data.private import Records, is_per_person
from pate.data.public import PublicData
from pate.errors import ConfigError, RunError
from pate.mechanisms import ConfidentGNMax, GNMax, Histogram
from pate.planning.plan import recommend
from pate.runs._console import Quiet
from pate.teachers import recipes
from pate.voters import voters_of
from pate.voters.teachers._worker import Teaching
from pate.voters.teachers.ensemble import Ensemble, parts_of, split_records

NOISE = "two fits draw different noise, which is never seeded, so their predictions differ"
CANNOT_APPLY = dict.fromkeys(
    ("check_supervised_y_2d", "check_classifier_data_not_an_array", "check_fit_idempotent"), NOISE
)
NO_NUMBER = {"check_estimators_nan_inf": "a record that is no number casts no vote, and is no reason to stop"}
TEACHERS = PATEClassifier(n_teachers=2, mechanism=GNMax(3.0), max_queries=5, public_fraction=0.4, force=True)
NEIGHBOURS = PATEClassifier(mechanism=Histogram(1.0), public_fraction=0.4)


@pytest.fixture(autouse=True)
def _warnings_are_expected() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrivacyWarning)
        yield


@parametrize_with_checks([TEACHERS], expected_failed_checks=lambda _: CANNOT_APPLY)
def test_scikit_learns_own_checks(estimator: PATEClassifier, check: Any) -> None:
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks([NEIGHBOURS], expected_failed_checks=lambda _: CANNOT_APPLY | NO_NUMBER)
def test_scikit_learns_own_checks_where_records_vote(estimator: PATEClassifier, check: Any) -> None:
    check(estimator)


class Given(NamedTuple):
    """What a fit hands to the run."""

    config: Any
    public: PublicData
    private: Records
    options: dict[str, Any]


class Handed(Exception):
    """Stops a fit before its run."""


def handed(model: PATEClassifier, *arguments: Any) -> Given:
    """What `fit` hands to `pate.pipeline.run`, which is not run."""

    def run(config: Config, out: Path, *, public: PublicData, private: Records, **options: Any) -> None:
        raise Handed(Given(config, public, private, options))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("pate.pipeline.run", run)
        with pytest.raises(Handed) as found:
            model.fit(*arguments)
    given: Given = found.value.args[0]
    return given


def small(**changes: Any) -> PATEClassifier:
    """Ten teachers, little noise, two classes; with changes."""
    usual = {"n_teachers": 10, "mechanism": GNMax(2.0), "max_queries": 40, "classes": ["up", "down"]}
    return PATEClassifier(**{**usual, **changes})


def records(n: int = 400, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3)).astype(np.float32)
    return X, np.where(X[:, 0] + X[:, 1] > 0, "up", "down")


X, Y = records()
PUBLIC = records(60, seed=1)[0]
TEST = records(300, seed=2)


@pytest.fixture(scope="module")
def fitted() -> PATEClassifier:
    teachers = [(GaussianNB(), 2.0), (KNeighborsClassifier(3), 1.0)]
    model = PATEClassifier(teachers, n_teachers=20, epsilon=6, max_queries=60, classes=["up", "down"])
    return model.fit(X, Y, X_public=PUBLIC)


def test_it_learns_and_says_what_it_cost_and_what_it_has_learned(fitted: PATEClassifier) -> None:
    """What it has learned is named here, whatever is added: all of it is published with the model."""
    assert (fitted.predict(TEST[0]) == TEST[1]).mean() > 0.7
    assert 5 < fitted.epsilon_ <= 6
    assert fitted.delta_ == 1e-5
    assert fitted.report_.privacy.epsilon == fitted.epsilon_
    assert fitted.report_.privacy.unit == "record"
    assert fitted.report_.benchmark is None, "figures of benchmarks are none of private data"
    assert len(fitted.labels_) == len(fitted.public_rows_) == 60
    assert set(fitted.labels_) <= {0, 1}
    assert set(fitted.public_rows_) == set(range(60))
    truth = np.array(["down", "up"]).searchsorted(records(60, seed=1)[1])
    assert (fitted.labels_ == truth[fitted.public_rows_]).mean() > 0.6, "each label is that of its own example"
    probabilities = fitted.predict_proba(TEST[0])
    np.testing.assert_allclose(probabilities.sum(axis=1), 1)
    np.testing.assert_array_equal(fitted.classes_[probabilities.argmax(axis=1)], fitted.predict(TEST[0]))
    shown = fitted._repr_html_()
    assert all(words in shown for words in (f"{fitted.epsilon_:.3g}", "60 released labels", "<td>up</td>"))
    assert "not fitted" in PATEClassifier()._repr_html_()
    learned = {name for name in vars(fitted) if name not in fitted.get_params(deep=False)}
    promised = re.findall(r"(?m)^    (\w+_(?:, \w+_)*) : ", str(PATEClassifier.__doc__).partition("Attributes")[2])
    assert learned == {"_encoder"} | set(", ".join(promised).split(", ")) - {"feature_names_in_"}


def test_what_is_fitted_holds_no_record(fitted: PATEClassifier) -> None:
    """It may be published."""
    content = pickle.dumps(fitted)
    assert len(content) > 1000
    assert not [row for row in X if row.tobytes() in content or row.astype(np.float64).tobytes() in content]


def test_two_fits_differ_draw_from_the_operating_system_and_leave_nothing_on_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With σ = 10 on 20 votes, two lists of 60 labels agree with probability below 2⁻³⁰."""
    drawn: list[int] = []
    real = os.urandom
    monkeypatch.setattr(os, "urandom", lambda n: (drawn.append(n), real(n))[1])
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "scratch").mkdir()
    model = small(n_teachers=20, mechanism=GNMax(10.0), max_queries=60)
    fits = [model.fit(X, Y, X_public=PUBLIC).labels_ for _ in range(2)]
    assert (fits[0] != fits[1]).any()
    assert sum(drawn) > 0
    left = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {"key"}, "the user's own; votes and teachers are private"


def test_every_parameter_reaches_the_run() -> None:
    """Also one that is added later: its row is missing here."""
    teachers = [(GaussianNB(), 2.0), KNeighborsClassifier(3)]
    own = {"force": True, "n_jobs": 3, "backend": "ray", "random_state": 7, "delta": 1e-6, "public_fraction": 0.5}
    model = PATEClassifier(teachers, 30, epsilon=3, max_queries=50, classes=["up", "no", "down"], **own)
    model.set_params(student={"name": "supervised", "params": {"n_students": 2, "estimator": "sklearn.svm.SVC"}})
    config, public, private, options = handed(model, X, Y)
    assert (config.seed, config.n_teachers, config.backend, config.ray.workers.max) == (7, 30, "ray", 3)
    assert (config.budget.delta, config.budget.epsilon, config.budget.max_queries) == (1e-6, 3, 50)
    assert [family.weight for family in config.teachers] == [2.0, 1.0]
    assert config.student.params == {"n_students": 2, "estimator": "sklearn.svm.SVC"}
    assert public.classes == ("down", "no", "up")
    assert 150 < len(public.X_public) < 250
    assert len(private.X) + len(public.X_public) == 400
    assert 2.9 < voters_of(config).publishable_epsilon(3) <= 3
    assert (options["force"], options["n_jobs"], options["anchor"], options["pages"]) == (True, 3, "none", False)
    assert isinstance(options["console"], Quiet)
    told = handed(small(verbose=True, mechanism=ConfidentGNMax(15, 6, 4), epsilon=60), X, Y, PUBLIC)
    assert not isinstance(told.options["console"], Quiet)
    assert told.options["force"] is False
    assert told.config.mechanism == {"name": "confident_gnmax", "threshold": 15, "sigma1": 6, "sigma2": 4}
    assert told.config.budget.epsilon == 60
    near = PATEClassifier(voters="neighbours", votes_per_record=2, features="hog", classes=[0, 1], max_queries=9)
    found = handed(near.set_params(public_record_count=5000), X, (Y == "up").astype(int), PUBLIC).config
    assert (found.voters, found.neighbours.votes_per_record, found.neighbours.cells) == ("neighbours", 2, 9)
    assert [step.name for step in found.neighbours.features] == ["hog"]
    set_here = [*own, "teachers", "n_teachers", "epsilon", "max_queries", "classes", "student", "verbose", "mechanism"]
    set_here += ["voters", "votes_per_record", "features", "public_record_count"]
    assert set(set_here) == model.get_params(deep=False).keys()


def test_records_split_off_as_public_are_told_chosen_one_by_one_and_no_longer_private() -> None:
    with pytest.warns(PrivacyWarning, match="about 20 % of the records are taken as public .* not protected"):
        _, public, private, _ = handed(small(), X, Y)
    found = [row.tobytes() for part in (private.X, public.X_public) for row in part]
    assert len(found) == len(set(found)) == len(X)
    label = {row.tobytes(): y for row, y in zip(X, Y, strict=True)}
    pairs = [(label.get(row.tobytes()), ("down", "up")[y]) for row, y in zip(private.X, private.y, strict=True)]
    assert all(one in (None, other) for one, other in pairs), "each record has its label"
    assert len([one for one, _ in pairs if one]) > 200, "the others lie beyond the range of public examples"
    np.testing.assert_array_equal(handed(small(), X, Y[::-1]).public.X_public, public.X_public, "whatever labels are")
    chosen = split_off_public(X, None, 0.2, 0)
    assert 0.1 < chosen.mean() < 0.3
    np.testing.assert_array_equal(X[chosen], public.X_public)
    changed, others = X.copy(), np.arange(len(X)) != 7
    changed[7] += 1
    np.testing.assert_array_equal(split_off_public(changed, None, 0.2, 0)[others], chosen[others])
    np.testing.assert_array_equal(split_off_public(X[9:], None, 0.2, 0), chosen[9:])
    assert (split_off_public(X, None, 0.2, 1) != chosen).any()


def test_classes_are_those_that_were_given() -> None:
    """Whether or not a record has them; and probabilities stand in their columns."""
    classes = ["across", "down", "sideways", "up"]
    model = small(n_teachers=40, mechanism=GNMax(3.0), classes=classes)
    model.fit(X, Y, X_public=X[np.abs(X[:, 0] + X[:, 1]) > 1][:60])  # where teachers agree
    assert model.classes_.tolist() == classes
    found = model.predict_proba(X)
    never = np.setdiff1d(np.arange(4), model.labels_)
    assert len(never) > 0  # two classes that nobody votes for, at nine standard deviations
    assert found[:, never].max() == 0
    np.testing.assert_array_equal(model.classes_[found.argmax(axis=1)], model.predict(X))
    with pytest.raises(ValueError, match="not among classes"):
        small(classes=["down", "zzz"]).fit(X, Y, X_public=PUBLIC)
    with pytest.warns(PrivacyWarning, match="public knowledge"):
        assert handed(small(classes=None), X, Y, PUBLIC).public.classes == ("down", "up")


def test_the_epsilon_told_is_the_cost_not_the_limit() -> None:
    model = small(mechanism=GNMax(9.0), epsilon=50, max_queries=10, delta=1e-6).fit(X[:100], Y[:100], X_public=PUBLIC)
    assert model.epsilon_ == model.report_.privacy.epsilon < 20
    assert model.delta_ == model.report_.privacy.delta == 1e-6


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
    """A missing number becomes the median of the public examples."""
    table, X_public, held_out = frame(400, 0), frame(60, 1), frame(200, 2)
    y = (table["town"] == "Ulm").astype(int)
    model = small(epsilon=8, mechanism=None, max_queries=50, classes=[0, 1])
    missing = table["age"].isna().to_numpy()
    given = handed(model, table, y, X_public)
    assert set(given.private.X[missing, 0].tolist()) == {np.float32(X_public["age"].median())}
    assert given.public.range is not None
    model.fit(table, y, X_public=X_public)
    assert (model.predict(held_out) == (held_out["town"] == "Ulm")).mean() > 0.9
    assert model.feature_names_in_.tolist() == ["age", "town", "job", "count"]
    assert model.n_features_in_ == 4
    assert model.report_.classes == ("0", "1")
    with pytest.raises(ValueError, match="feature names"):
        model.predict(held_out.rename(columns={"age": "years"}))


@pytest.mark.parametrize("given", [True, False])
def test_medians_and_categories_are_those_of_public_examples(given: bool) -> None:
    """A word or a number that only protected records have makes no feature, and moves no median."""
    table, spies = frame(300, 0), np.arange(300) % 3 > 0
    table.loc[spies, "job"], table.loc[spies, "age"] = "spy", table["age"] + 500
    table = table[~(spies & split_off_public(table, None, 0.2, 0))]  # a record's own hash decides
    labels = np.arange(len(table)) % 2
    _, public, private, _ = handed(PATEClassifier(classes=[0, 1]), table, labels, frame(60, 1) if given else None)
    declared = ["town=Wien"] if given else []  # which types of private columns say too, so that they have no say there
    assert public.features == ("age", "town=Bonn", "town=Ulm", *declared, "job=clerk", "job=cook", "count")
    ages, times = np.unique(private.X[:, 0], return_counts=True)
    assert ages[-1] < 200, "numbers beyond the public range count as its end"
    assert 40 < ages[times[:-1].argmax()] < 60  # what stands where one was missing


def test_one_record_of_a_frame_changes_no_other() -> None:
    """A missing value makes floats of a column, a word makes objects of it: the others stay what they are."""
    table, encoder = frame(50, 0), Encoder.of(frame(30, 1))
    before = encoder.transform(table)
    chosen = split_off_public(table, None, 0.2, 0)
    for column, value in (("count", None), ("count", "many"), ("age", "old"), ("job", 3), ("town", None)):
        changed = table.astype({column: object})
        changed.loc[3, column] = value
        if column == "count" and value is None:
            changed["count"] = changed["count"].astype(float)
        others = np.arange(50) != 3
        np.testing.assert_array_equal(encoder.transform(changed)[others], before[others])
        moved = split_off_public(changed, None, 0.2, 0)
        np.testing.assert_array_equal(moved[others], chosen[others])


@pytest.mark.parametrize("change", ["a word among numbers", "a declared category"])
def test_a_protected_record_decides_nothing_about_columns_of_records_split_off(change: str) -> None:
    """Types of a frame's columns are those of all its rows, protected ones too."""
    table = pd.DataFrame({"age": [float(20 + i % 12) for i in range(60)], "c": ["a", "b"] * 30})
    public = split_off_public(table, None, 0.3, 0)
    row = int(np.flatnonzero(~public)[0])
    other = table.astype({"age": object}) if change == "a word among numbers" else table.copy()
    if change == "a word among numbers":
        other.loc[row, "age"] = "unknown"
    else:
        other.loc[row, "c"] = "HIV"
        other["c"] = other["c"].astype("category")
    assert (split_off_public(other, None, 0.3, 0)[public]).all()
    rest = np.arange(len(table)) != row
    encoders = [Encoder.of(one[public], by_values=True) for one in (table, other)]
    assert encoders[0].names == encoders[1].names == ("age", "c=a", "c=b")
    np.testing.assert_array_equal(encoders[0].transform(table[rest]), encoders[1].transform(other[rest]))


def test_it_works_in_a_pipeline_but_not_behind_a_fitted_scaler() -> None:
    model = small(teachers=[make_pipeline(StandardScaler(), LogisticRegression())])
    assert make_pipeline(FunctionTransformer(), model).fit(X, Y).score(*TEST) > 0.7
    with pytest.raises(ValueError, match="step 'standardscaler' before it was fitted on all private records"):
        make_pipeline(StandardScaler(), model).fit(X, Y)


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
def test_a_wrong_value_is_a_value_error_that_names_the_parameter(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as error:
        small(**{"mechanism": None, "max_queries": None} | settings).fit(X[:100], Y[:100], X_public=X[:20])
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
def test_a_thing_of_another_kind_is_a_type_error_that_names_the_parameter(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        small(**settings).fit(X, Y, X_public=PUBLIC)


def test_what_is_wrong_with_data_is_a_value_error_that_names_the_argument() -> None:
    model, table, X, y = small(), frame(100, 0), *records(100)
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
    model, recommended = (
        PATEClassifier(public_record_count=133, classes=["up", "down"]),
        recommend(133, 2, 2.0, 1e-5, 60).choice,
    )
    config = handed(model, X[:133], Y[:133], PUBLIC).config
    assert (config.voters, config.neighbours.cells) == (recommended.voters, recommended.asked)
    assert model.fit(X[:133], Y[:133], X_public=PUBLIC).score(*TEST) > 0.65
    many = recommend(20_000, 2, 2.0, 1e-5, 2_000).choice
    config = handed(model.set_params(public_record_count=20_000), X, Y, records(2_000, seed=1)[0]).config
    assert (config.voters, config.n_teachers, config.budget.max_queries) == ("teachers", many.n_teachers, many.asked)
    assert 1.98 < voters_of(config).publishable_epsilon(2) <= 2
    near = PATEClassifier(voters="neighbours", public_record_count=30, classes=["up", "down"])  # a plan has none
    assert handed(near, X, Y, PUBLIC).config.neighbours.cells == 15


@pytest.mark.parametrize("count", [None, 2_000, 20_000])
@pytest.mark.parametrize("voters", ["auto", "teachers", "neighbours"])
def test_one_record_more_changes_neither_voters_nor_their_number(voters: str, count: int | None) -> None:
    model = PATEClassifier(voters=voters, public_record_count=count, classes=["up", "down"])  # type: ignore[arg-type]
    configs = [handed(model, X[:n], Y[:n], PUBLIC).config for n in (2, 133, 400)]
    assert configs[0] == configs[1] == configs[2]


def test_parts_that_are_too_small_are_refused_unless_that_is_forced() -> None:
    """As `pate run` does it; how many records there are is not said."""
    model = small(n_teachers=250, mechanism=GNMax(50.0), max_queries=5)
    with pytest.raises(ValueError, match=r"n_teachers = 250: parts .* too small to learn from") as error:
        model.fit(X[:133], Y[:133], X_public=PUBLIC)
    assert "133" not in str(error.value)
    assert model.set_params(force=True, n_teachers=40).fit(X[:133], Y[:133], X_public=PUBLIC).epsilon_ > 0


PERSONS = np.repeat(np.arange(100), 4)  # four records each


@pytest.mark.parametrize("form", ["numbers", "text", "series", "nullable"])
def test_all_records_of_a_person_are_protected_together(form: str) -> None:
    """They are in one part: whatever one person's records say, one teacher changes."""
    text, nullable = [f"P{i}" for i in PERSONS], pd.Series(PERSONS, dtype="Int64")
    ids = {"numbers": PERSONS, "text": text, "series": pd.Series(PERSONS), "nullable": nullable}[form]
    config, _, private, _ = handed(small(), X, Y, PUBLIC, ids)
    parts = parts_of(config, private, b"k" * 32)
    of_person = [{n for n, rows in enumerate(parts) if (PERSONS[rows] == one).any()} for one in range(100)]
    assert all(len(found) == 1 for found in of_person)
    assert len(set().union(*of_person)) == 10
    if form == "text":
        privacy = small().fit(X, Y, X_public=PUBLIC, ids=ids).report_.privacy
        assert privacy.unit == "id"
        assert privacy.statement.startswith("Adding, removing or changing all records of one id")


def test_a_person_has_the_votes_of_one_record() -> None:
    """Neighbours: 100 copies of a record, all of one person, count as one."""
    again = np.r_[np.arange(60), np.zeros(100, dtype=int)]
    model = PATEClassifier(mechanism=Histogram(1.0), max_queries=5, classes=["up", "down"])
    private = handed(model, X[again], Y[again], PUBLIC, again).private
    assert Counter(private.ids) == {"0": 101, **{str(i): 1 for i in range(1, 60)}}
    assert is_per_person(private)


def test_a_person_is_public_or_protected_whole_and_never_without_an_id() -> None:
    ids = [None if i % 10 == 0 else f"P{person}" for i, person in enumerate(PERSONS)]
    with pytest.warns(PrivacyWarning, match="of the persons are taken as public"):
        _, public_data, private, _ = handed(small(), X, Y, None, ids)
    owner = {row.tobytes(): one for row, one in zip(X, ids, strict=True)}
    public = {owner[row.tobytes()] for row in public_data.X_public}
    assert None not in public
    assert 8 < len(public) < 40
    pairs = list(zip((owner.get(row.tobytes()) for row in private.X), private.ids or (), strict=True))
    assert all(one in (None, other) for one, other in pairs), "each record is its owner's"
    assert len([one for one, _ in pairs if one]) > 200, "the others lie beyond the range of public examples"
    assert not public & set(private.ids or ())
    assert private.left_out == ids.count(None)
    assert len(public_data.X_public) + len(private.X) + ids.count(None) == len(X)


@given(st.lists(st.one_of(st.integers(), st.text(max_size=4), st.none(), st.booleans(), st.floats())), st.data())
@settings(max_examples=50)
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
    with config_context(enable_metadata_routing=True):
        model = small(n_teachers=5, max_queries=20).set_fit_request(ids=True, X_public=True)
        pipeline = make_pipeline(FunctionTransformer(), model)
        routed = {"ids": PERSONS, "groups": PERSONS, "X_public": PUBLIC}
        found = cross_validate(
            pipeline, X, Y, cv=GroupKFold(2), params=routed, return_estimator=True, error_score="raise"
        )
    assert [one[-1].report_.privacy.unit for one in found["estimator"]] == ["id"] * 2
    assert found["test_score"].mean() > 0.7


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


def copied(kind: str) -> Any:
    return {
        "fit and predict": Threshold(),
        "NaN": Boosted(),
        "notebook": of_a_notebook()(),
        "function in a pipeline": make_pipeline(FunctionTransformer(lambda X: X[:, :2]), LogisticRegression()),
        "RandomState": SVC(random_state=np.random.RandomState(3)),
    }[kind]


@pytest.mark.parametrize("kind", ["fit and predict", "NaN", "notebook", "function in a pipeline", "RandomState"])
def test_anything_with_fit_and_predict_is_a_teacher_and_a_student(kind: str) -> None:
    estimator = copied(kind)
    model = small(teachers=estimator, student=estimator).fit(X, Y, X_public=PUBLIC)
    assert model.score(*TEST) > 0.7
    assert model.predict_proba(TEST[0]).shape == (300, 2)
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
    scale = np.array([1e-6, 1e-6, 1e6])
    model = small().fit(X * scale, Y, X_public=PUBLIC * scale)
    assert model.score(TEST[0] * scale, TEST[1]) > 0.75
    scaler = model.student_.classifier_.estimator["scaler"]
    np.testing.assert_allclose(scaler.mean_, (PUBLIC * scale).astype(np.float32).mean(axis=0), rtol=1e-3)


@pytest.mark.parametrize(
    ("student", "n_classes"),
    [
        (None, 2),
        (SVC(), 2),
        (SVC(break_ties=True), 3),
        (SVC(decision_function_shape="ovo"), 3),
        (GaussianNB(), 3),
        (Threshold(), 2),
    ],
)
def test_scores_agree_with_predictions(student: object, n_classes: int) -> None:
    """Also where no released label names one of the classes, and whichever labels are released.

    An SVC that does not break ties predicts by votes between pairs of classes, and scores otherwise.
    """
    y = np.digitize(X[:, 0] + X[:, 1], [-0.7, 0.7] if n_classes == 3 else [0]) + 1
    model = small(classes=range(5) if n_classes == 3 else [1, 2], student=student, max_queries=60)
    model.fit(X, y, X_public=PUBLIC)
    scores, probabilities = model.decision_function(TEST[0]), model.predict_proba(TEST[0])
    assert np.isfinite(scores).all()
    by_score = (scores > 0).astype(int) if n_classes == 2 else scores.argmax(axis=1)
    np.testing.assert_array_equal(model.classes_[by_score], model.predict(TEST[0]))
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(model.predict_log_proba(TEST[0]), np.log(probabilities))


def test_weights_and_partial_fits_are_refused_and_why_is_said() -> None:
    model = small()
    with pytest.raises(ValueError, match=r"^sample_weight: is not taken; every record .* same vote"):
        model.fit(X, Y, X_public=PUBLIC, sample_weight=np.ones(400))
    with pytest.raises(TypeError, match="unexpected keyword argument 'groups'"):
        model.fit(X, Y, groups=np.ones(400))
    assert not has_fit_parameter(model, "sample_weight")
    assert not hasattr(model, "partial_fit")
    with pytest.raises(AttributeError, match="no partial_fit: every fit is a release of its own and adds its epsilon_"):
        model.partial_fit(X, Y)
    with pytest.raises(Handed), pytest.MonkeyPatch.context() as patched:
        patched.setattr("pate.pipeline.run", lambda *_, **__: (_ for _ in ()).throw(Handed))
        model.fit(X, Y, X_public=PUBLIC, sample_weight=None)


def test_random_states_are_drawn_from_as_scikit_learn_does() -> None:
    model = small()

    def seeds(state: object) -> list[int]:
        model.set_params(random_state=state)
        return [handed(model, X, Y, PUBLIC).config.seed for _ in range(2)]

    assert seeds(7) == [7, 7]
    first, second = seeds(np.random.RandomState(3))
    assert first != second
    assert seeds(np.random.RandomState(3)) == [first, second]
    assert len(set(seeds(None))) == 2
    assert seeds(model.seed_) == [model.seed_] * 2


def test_progress_is_shown_if_wanted_and_nothing_private_to_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    some, ids = records(133), np.arange(133)
    model = small(mechanism=GNMax(9.0), max_queries=10).fit(*some, X_public=PUBLIC)
    assert capsys.readouterr() == ("", "")
    model.set_params(verbose=True).fit(*some, X_public=PUBLIC, ids=ids)
    out, err = capsys.readouterr()
    assert out == ""
    assert "10 teachers, GNMax" in err
    assert "133" not in err
    near = PATEClassifier(mechanism=Histogram(2.0), max_queries=5, classes=["up", "down"], verbose=True)
    near.fit(*some, X_public=PUBLIC, ids=ids)
    assert "one vote per person" in capsys.readouterr().err


def test_processes_train_the_same_teachers() -> None:
    """Also of classes that they cannot import, and where one kind has features of its own."""
    seen = {"name": "fourier", "params": {"n_pairs": 4, "gamma": 0.1}}
    families = [TeacherFamily(estimator=GaussianNB(), features=seen), TeacherFamily(estimator=of_a_notebook()())]
    teaching, found = Teaching(recipes(families), 2, 0, [0, 1] * 4), []
    private, config = Records(X, (Y == "up").astype(np.int64)), handed(small(n_teachers=8), X, Y, PUBLIC).config
    for n_jobs in (None, 2):
        with Ensemble(teaching, split_records(config, private, b"k" * 32), n_jobs=n_jobs) as ensemble:
            ensemble.train(lambda _: None)
            assert not ensemble.store.failures
            found.append(ensemble.count(PUBLIC))
    np.testing.assert_array_equal(*found)
    assert found[0].sum(axis=1).tolist() == [8] * 60


class FailsLater(Threshold):
    """On real labels, which do not alternate as those it is tried with do."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> FailsLater:
        if (np.diff(y) == 0).any():
            raise MemoryError("no room")
        super().fit(X, y)
        return self


def test_what_fails_after_labels_were_paid_for_gives_no_advice_that_is_not_true() -> None:
    words = r"the student failed .* another adds its ε to what this one may have spent$"
    with pytest.raises(RunError, match=words) as error:
        small(student=FailsLater()).fit(X, Y, X_public=PUBLIC)
    assert not re.search("resume|/tmp|kept in", str(error.value))


def test_records_vote_themselves_with_the_least_noise_for_epsilon() -> None:
    """Of a frame with words and missing numbers; two votes a record, ten cells."""
    table, held_out = frame(600, 0), frame(200, 2)
    y = np.where(table["town"] == "Ulm", "yes", "no")
    model = PATEClassifier(voters="neighbours", votes_per_record=2, max_queries=10, epsilon=2, classes=["no", "yes"])
    model.fit(table, y, X_public=frame(80, 1))
    assert 1.98 < model.epsilon_ <= 2
    assert model.delta_ == 1e-5
    assert model.report_.voters.kind == "neighbours"
    assert model.report_.privacy.epsilon_added_or_removed == pytest.approx(1.0, rel=0.01)
    assert len(model.labels_) == len(model.public_rows_) == 80
    assert (model.predict(held_out) == np.where(held_out["town"] == "Ulm", "yes", "no")).mean() > 0.9


def test_a_record_that_is_no_number_casts_no_vote_and_stops_nothing() -> None:
    """For neighbours; teachers refuse it."""
    broken = X.copy()
    broken[3, 1] = np.nan
    model = PATEClassifier(voters="neighbours", max_queries=10, epsilon=2, classes=["up", "down"])
    assert (model.fit(broken, Y, X_public=PUBLIC).predict(X) == Y).mean() > 0.7
    with pytest.raises(ValueError, match="NaN"):
        small().fit(broken, Y, X_public=PUBLIC)


def test_cells_are_made_of_records_split_off_and_in_features_that_were_named() -> None:
    steps = [{"name": "fourier", "params": {"n_pairs": 20, "gamma": 0.5}}]
    model = PATEClassifier(voters="neighbours", features=steps, classes=["up", "down"])
    config, public, _, _ = handed(model, X, Y)
    assert config.neighbours.cells == len(public.X_public) // 4
    assert [step.name for step in config.neighbours.features] == ["fourier"]
    assert not config.neighbours.standardise
    assert config.mechanism["name"] == "histogram"
    assert 1.98 < voters_of(config).publishable_epsilon(2) <= 2


@pytest.mark.slow
@pytest.mark.usefixtures("local_ray")
def test_on_ray_it_is_the_same_classifier() -> None:
    model = small(backend="ray", teachers=[GaussianNB(), of_a_notebook()()], n_jobs=1, max_queries=30)
    assert (model.fit(X, Y, X_public=PUBLIC).predict(X) == Y).mean() > 0.75
