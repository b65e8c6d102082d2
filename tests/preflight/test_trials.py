"""Nothing is charged before everything was tried: what would fail later is refused first, and leaves nothing behind."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from pate import pipeline
from pate.cli import app
from pate.components._registry import dummy_labels, make_importable
from pate.config import Config, parse_config
from pate.data._settings import BenchmarkData
from pate.data._sources import load
from pate.data.private import Votes
from pate.data.public import PublicData
from pate.errors import ConfigError, PateError, RunError
from pate.preflight._student import student_seconds, try_student
from pate.report._plots import plain
from pate.students import STUDENTS

TEACHERS = 40
ASKED = 60


def config_of(student: dict, **changes: object) -> Config:
    content = {
        "name": "tried",
        "voters": "stored",
        "stored": {"file": "given.npy"},
        "n_teachers": TEACHERS,
        "data": {"source": "digits"},
        "mechanism": {"name": "confident_gnmax", "threshold": 20, "sigma1": 6, "sigma2": 6},
        "budget": {"max_queries": ASKED},
        "student": student,
    }
    return parse_config({key: value for key, value in (content | changes).items() if value is not None})


SVC = {"name": "supervised", "params": {"estimator": "sklearn.svm.SVC"}}
BY_TEACHERS = {
    "voters": "teachers",
    "stored": None,
    "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
    "backend": "local",
}


@pytest.fixture(scope="module")
def digits() -> PublicData:
    return load(BenchmarkData(source="digits"), None, Path())[0]


@pytest.fixture(scope="module")
def votes(digits: PublicData) -> Votes:
    """Votes on the digits that were counted already: a run without teachers and without Ray."""
    return Votes(TEACHERS * np.eye(10, dtype=np.int64)[digits.y_public])


@pytest.fixture
def own_students_folder(tmp_path: Path) -> Path:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "some_students_of_mine.py").write_text(OWN)
    return tmp_path / "mine"


OWN = '''
import os
import numpy as np
from sklearn.dummy import DummyClassifier
from sklearn.base import BaseEstimator

class Fails(BaseEstimator):
    def __init__(self, random_state=0):
        self.random_state = random_state
    def fit(self, X, y, X_unlabelled=None):
        raise ZeroDivisionError("not today\\nnor tomorrow")
    def predict(self, X):
        return np.zeros(len(X), dtype=int)

class SaysNothing(Fails):
    def fit(self, X, y, X_unlabelled=None):
        return self
    def predict(self, X):
        return np.array(["?"] * len(X))

class CannotBeStored(Fails):
    def fit(self, X, y, X_unlabelled=None):
        self.function_ = lambda: 3
        return self

class FailsOnAll(Fails):
    """Only once there are as many labels as the run asks for: no try with fewer can tell."""
    def fit(self, X, y, X_unlabelled=None):
        if "PATE_TEST_FAIL" in os.environ and len(X) + len(X_unlabelled) > 300:
            raise MemoryError("no room")
        return self

class Slow(Fails):
    """A hundredth of a second for each step."""
    def __init__(self, steps=200, random_state=0):
        self.steps, self.random_state = steps, random_state
    def fit(self, X, y, X_unlabelled=None):
        import time
        time.sleep(0.01 * self.steps)
        return self

class WantsMany(Fails):
    """Takes no less than 80 labels: too few to be tried on 60, enough in the run."""
    def fit(self, X, y, X_unlabelled=None):
        if len(X) < 80:
            raise ValueError("too few")
        return self

class SlowToLoad:
    loaded = False
    def transform(self, X):
        import time
        time.sleep(0 if self.loaded else 2)
        self.loaded = True
        return X.reshape(len(X), -1)
'''


@pytest.mark.parametrize(
    ("student", "words"),
    [
        (
            {"name": "supervised", "params": {"estimator": "sklearn.linear_model.LogisticRegresion"}},
            "LogisticRegresion",
        ),
        ({"name": "supervised", "params": {"estimator": "sklearn.svm.SVC", "params": {"C": -1}}}, "'C' parameter"),
        ({"name": "supervised", "params": {"estimator": "sklearn.svm.SVC", "params": {"c": 1}}}, "'c'"),
        ({"name": "supervised", "params": {"unlabelled": "ignroe"}}, "unlabelled = 'ignroe'"),
        ({"name": "supervised", "params": {"self_training": 1}}, "predict_proba"),
        ({"name": "mixmatch", "params": {"class_prior": "evn"}}, "class_prior = 'evn'"),
        ({"name": "mixmatch", "params": {"augmentation": {"shfit": 1}}}, "shfit"),
        ({"name": "mixmatch", "params": {"steps": "many"}}, "student.name = 'mixmatch'"),
        ({"name": "mixmatch", "params": {"device": "gpu7"}}, "device = 'gpu7'"),
        ({"name": "gan", "params": {"batch_size": 0.5}}, "student.name = 'gan'"),
        ({"name": "some_students_of_mine.Fails"}, "cannot be trained.*ZeroDivisionError: not today$"),
        ({"name": "some_students_of_mine.SaysNothing"}, "cannot be asked"),
        ({"name": "some_students_of_mine.CannotBeStored"}, "cannot be stored and loaded"),
    ],
    ids=lambda value: str(value.get("params", value["name"])) if isinstance(value, dict) else "",
)
def test_a_student_that_would_fail_is_refused_before_anything_is_charged(
    student: dict, words: str, digits: PublicData, votes: Votes, tmp_path: Path, own_students_folder: Path
) -> None:
    out = tmp_path / "run"
    with pytest.raises(ConfigError, match=words) as caught:
        pipeline.run(config_of(student), out, public=digits, private=votes, config_dir=own_students_folder)
    assert "\n" not in str(caught.value)
    assert not out.exists()


def test_the_same_directory_serves_once_the_student_is_mended(digits: PublicData, votes: Votes, tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        pipeline.run(
            config_of({"name": "mixmatch", "params": {"class_prior": "evn"}}),
            tmp_path / "run",
            public=digits,
            private=votes,
        )
    outcome = pipeline.run(config_of(SVC), tmp_path / "run", public=digits, private=votes, pages=False)
    assert outcome.report.queries.asked == ASKED
    assert outcome.seconds["try"] > 0


def test_a_mistyped_model_without_privacy_is_refused_too(tmp_path: Path) -> None:
    model = {"name": "sklearn.svm.SVC", "params": {"kernel": "linaer"}}
    config = config_of(SVC, nonprivate=model, **BY_TEACHERS)
    with pytest.raises(ConfigError, match=r"nonprivate\.name.*kernel"):
        pipeline.run(config, tmp_path / "run", config_dir=tmp_path)
    assert not (tmp_path / "run").exists()


def test_a_doubting_order_needs_a_student_that_can_doubt(
    digits: PublicData, votes: Votes, tmp_path: Path, own_students_folder: Path
) -> None:
    config = config_of(
        {"name": "some_students_of_mine.WantsMany"}, budget={"max_queries": 100, "query_selection": "uncertainty"}
    )
    with pytest.raises(ConfigError, match="predict_proba"):
        pipeline.run(config, tmp_path / "run", public=digits, private=votes, config_dir=own_students_folder)
    assert not (tmp_path / "run").exists()


def test_a_student_that_wants_more_than_a_few_labels_is_not_refused(
    digits: PublicData, votes: Votes, tmp_path: Path, own_students_folder: Path
) -> None:
    config = config_of({"name": "some_students_of_mine.WantsMany"}, budget={"max_queries": 100})
    pipeline.run(config, tmp_path / "run", public=digits, private=votes, config_dir=own_students_folder, pages=False)


NETWORK = {"estimator": "network", "params": {"architecture": "mlp", "steps": 10**9}}


@pytest.mark.parametrize("name", [*sorted(STUDENTS.classes()), "network"])
def test_every_student_is_tried_for_a_few_steps_alone_and_timed_for_all(name: str, digits: PublicData) -> None:
    """A try of all its steps would take years; a tenth of a microsecond is less than any step takes."""
    params = NETWORK if name == "network" else {} if name == "supervised" else {"steps": 10**9}
    config = config_of({"name": "supervised" if name == "network" else name, "params": params})
    try_student(config, digits, True)
    seconds = student_seconds(config, digits, True)
    assert (seconds > 100) == (name != "supervised")  # scikit-learn's classifiers count none


@pytest.mark.parametrize("seed", [-1, 2**40, 2**32, 0.5, True, "x"])
def test_seeds_that_no_library_takes_are_refused(seed: object, tmp_path: Path) -> None:
    with pytest.raises(PateError, match=r"^seed = "):
        app(["run", "--set", f"seed={seed}", "--out", str(tmp_path / "run")], standalone_mode=False)
    assert not (tmp_path / "run").exists()


def test_the_largest_seed_does(digits: PublicData, votes: Votes, tmp_path: Path) -> None:
    pipeline.run(config_of(SVC, seed=2**32 - 1), tmp_path / "run", public=digits, private=votes, pages=False)
    try_student(config_of({"name": "mixmatch"}, seed=2**32 - 1), digits, True)


NAMES = ["$10_$20", "<b>", "x" * 5000, "数字 ٣ é 👩‍🔬", "a\nb\x00\x1b[31m", r"$\frac{", "_hidden", "", "\"&'", r"\$5"]


@pytest.mark.filterwarnings("ignore:Glyph")
def test_a_run_whose_classes_have_any_name_ends_in_a_report(digits: PublicData, votes: Votes, tmp_path: Path) -> None:
    """Dollars used to be taken for formulas, and broke the plots once the labels were paid for."""
    outcome = pipeline.run(
        config_of(SVC), tmp_path / "run", public=replace(digits, classes=tuple(NAMES)), private=votes
    )
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;" in page
    assert "<b><b>" not in page
    assert outcome.report.classes == tuple(NAMES)
    for plot in (tmp_path / "run" / "plots").glob("*.svg"):
        ElementTree.parse(plot)
    drawn = (tmp_path / "run" / "plots" / "classes.svg").read_text(encoding="utf-8")
    assert "$10_$20" in drawn
    assert r"\$5" in drawn


def test_a_name_that_no_file_can_hold_is_refused_before_anything_is_charged(
    digits: PublicData, votes: Votes, tmp_path: Path
) -> None:
    classes = ("\ud800", *digits.classes[1:])
    with pytest.raises(ConfigError, match="class") as caught:
        pipeline.run(config_of(SVC), tmp_path / "run", public=replace(digits, classes=classes), private=votes)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_plain_text_is_no_formula() -> None:
    from matplotlib.cbook import is_math_text

    for name in NAMES:
        assert not is_math_text(plain(name))


def test_what_was_paid_for_is_kept_when_the_student_fails_all_the_same(
    digits: PublicData, votes: Votes, tmp_path: Path, own_students_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3
    from contextlib import closing

    config, out = config_of({"name": "some_students_of_mine.FailsOnAll"}), tmp_path / "run"
    monkeypatch.setenv("PATE_TEST_FAIL", "1")
    with pytest.raises(RunError, match=r"the student failed \(MemoryError: no room\).*labels are paid for and kept"):
        pipeline.run(config, out, public=digits, private=votes, config_dir=own_students_folder, pages=False)
    with np.load(out / "labels.npz") as archive:
        labels = archive["labels"]

    def charged() -> int:
        with closing(sqlite3.connect(out / "ledger.db")) as ledger:
            return ledger.execute("SELECT sum(asked) FROM charges").fetchone()[0]

    assert charged() == ASKED
    monkeypatch.delenv("PATE_TEST_FAIL")
    pipeline.run(config, out, public=digits, private=votes, config_dir=own_students_folder, resume=True, pages=False)
    assert charged() == ASKED
    with np.load(out / "labels.npz") as archive:
        np.testing.assert_array_equal(archive["labels"], labels)


def test_made_up_labels_hold_every_class() -> None:
    labels = dummy_labels(60, 10, may_decline=True)
    assert set(labels.tolist()) == {*range(10), -1}
    assert set(dummy_labels(60, 10, may_decline=False).tolist()) == set(range(10))
    assert dummy_labels(3, 10, may_decline=True).tolist() == [0, 1, 2]


class Clock:
    """One that goes on only while somebody sleeps."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "perf_counter", clock)
    monkeypatch.setattr(time, "sleep", clock.sleep)
    return clock


@pytest.mark.usefixtures("clock")
def test_time_estimates_include_every_student_that_will_be_taught(
    digits: PublicData, own_students_folder: Path
) -> None:
    make_importable(own_students_folder)
    slow = config_of({"name": "some_students_of_mine.Slow"})
    assert student_seconds(slow, digits, True) == pytest.approx(2.0)  # 200 steps of a hundredth of a second
    without = replace(digits, X_test=None, y_test=None)
    assert student_seconds(slow, without, True) == pytest.approx(2.0 * (1 + 2 / 3))
    wants_many = config_of({"name": "some_students_of_mine.WantsMany"}, budget={"max_queries": 100})
    assert student_seconds(wants_many, digits, True) == 0.0


def test_what_a_transform_takes_to_load_is_not_counted_for_every_example(
    digits: PublicData, clock: Clock, own_students_folder: Path
) -> None:
    make_importable(own_students_folder)
    params = {"preprocessing": "some_students_of_mine.SlowToLoad", "estimator": "sklearn.naive_bayes.GaussianNB"}
    config = config_of({"name": "supervised", "params": params}, budget={"max_queries": 300})
    assert student_seconds(config, digits, False) == 0
    assert clock.now >= 2
