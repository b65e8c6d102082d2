"""Whether a student is any good: figures against scikit-learn's, and words where it has collapsed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import balanced_accuracy_score, recall_score, roc_auc_score

from pate import pipeline
from pate.config import Config, parse_config
from pate.data.private import Votes
from pate.data.public import PublicData
from pate.report._builder import measure, recall_of, released_labels
from pate.report._files import summary_rows
from pate.report._pages import percent
from pate.report.schema import ReleasedLabels, Report, Student
from pate.report.sections._groups import mean_of_known
from pate.report.sections._quality import headline, is_majority_class_model, skewed, warnings_of
from pate.runs._console import Quiet
from pate.runs._files import RunFiles
from pate.students._posterior import Labelled

RNG = np.random.default_rng(0)
TEACHERS = 50


@pytest.mark.parametrize("n_classes", [2, 4])
def test_figures_are_scikit_learns(n_classes: int) -> None:
    y = RNG.integers(0, n_classes, 300)
    shares = RNG.dirichlet(np.ones(n_classes), 300) + 0.3 * np.eye(n_classes)[y]
    shares = (shares / shares.sum(axis=1, keepdims=True)).round(2)  # with ties
    predicted = shares.argmax(axis=1)

    class Model:
        def predict(self, X: np.ndarray) -> np.ndarray:
            return predicted[: len(X)]

        def predict_proba(self, X: np.ndarray) -> np.ndarray:
            return shares[: len(X)]

    names = tuple(map(str, range(n_classes)))
    found, _ = measure("m", Model(), PublicData(np.zeros((9, 1)), names, X_test=np.zeros((300, 1)), y_test=y))
    assert found.balanced_accuracy == pytest.approx(balanced_accuracy_score(y, predicted))
    assert found.recall == pytest.approx(recall_score(y, predicted, average=None))
    areas = [roc_auc_score(y == label, shares[:, label]) for label in range(n_classes)]
    assert found.auc == pytest.approx(np.mean(areas))
    one, _ = measure("m", Model(), PublicData(np.zeros((9, 1)), names, X_test=np.zeros((5, 1)), y_test=0 * y[:5]))
    assert one.auc is None, "of one class there is no curve"


def test_of_several_labels_of_an_example_the_likeliest_counts() -> None:
    given = Labelled(np.array([0, 0, 4, 4]), np.array([0, 1, 0, 1]), np.array([0.2, 0.8, 0.1, 0.9]))
    assert released_labels(given.labels, given, 2).by_class == (0, 2)
    assert released_labels(np.array([1, 0, -1, 1]), None, 2).by_class == (1, 2)


# Runs whose teachers' votes are made up.


def table(rare: float, n: int = 400) -> tuple[np.ndarray, np.ndarray]:
    y = (RNG.random(n) < rare).astype(np.int64)
    return (RNG.normal(size=(n, 3)) + 2.5 * y[:, None]).astype(np.float32), y


def config(**changes: Any) -> Config:
    student = {"name": "supervised", "params": {"estimator": "sklearn.linear_model.LogisticRegression"}}
    content = {
        "name": "quality",
        "voters": "stored",
        "stored": {"file": "given.npy"},
        "n_teachers": TEACHERS,
        "data": {"source": "arrays"},
        "mechanism": {"name": "gnmax", "sigma": 6},
        "budget": {"max_queries": 200},
        "student": student,
        "backend": "local",
    }
    return parse_config(content | changes)


def report_of(out: Path, said: np.ndarray, X: np.ndarray, test: tuple[np.ndarray, np.ndarray] | None) -> Report:
    """A run in which every teacher says `said` of the public examples `X`."""
    counts = TEACHERS * np.eye(2, dtype=np.int64)[said]
    public = PublicData(X, ("no", "yes"))
    if test is not None:
        public = replace(public, X_test=test[0], y_test=test[1])
    return pipeline.run(config(), out, public=public, private=Votes(counts), console=Quiet()).report


def test_a_good_student_has_no_warning(tmp_path: Path) -> None:
    X, y = table(0.3)
    report = report_of(tmp_path / "run", y, X, table(0.3))
    assert report.warnings == ()
    assert report.labels is not None
    assert sum(report.labels.by_class) == 200
    student = report.student
    assert student.agreement is None
    assert student.auc is not None
    assert student.balanced_accuracy is not None
    assert min(student.auc, student.balanced_accuracy, student.accuracy or 0) > 0.9
    assert student.calibration is not None
    told = dict(summary_rows(report))
    assert told["released labels"].startswith("no ")
    assert "AUC 0.9" in told["mean over classes"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "Is it any good?" in page
    assert 'class="warning"' not in page


def test_a_student_that_says_one_class_is_called_that(tmp_path: Path) -> None:
    """As seen: 199 of 200 labels of one class, and a headline that was the majority."""
    X, y = table(0.15)
    said = np.zeros_like(y)
    said[7] = 1
    report = report_of(tmp_path / "run", said, X, table(0.15))
    assert "no better than always saying one class" in headline(report)
    right, collapsed, labels = report.warnings
    assert "always saying 'no' would be right on" in right
    assert "it has collapsed to one class" in collapsed
    assert labels.startswith("Of the 200 released labels, ")
    assert "say 'no'" in labels
    assert "Asked about 400 of the 400 public examples, the student says 'no' of all" in collapsed
    assert [text for name, text in summary_rows(report) if name == "WARNING"] == list(report.warnings)
    page = (tmp_path / "run" / "report.html").read_text()
    assert page.count('class="warning"') == 3
    assert "right on" not in headline(report)


def test_where_classes_are_skewed_accuracy_does_not_stand_alone(tmp_path: Path) -> None:
    X, y = table(0.15)
    report = report_of(tmp_path / "run", y, X, table(0.15))
    student = report.student
    assert student.confusion is not None
    rare = student.confusion[1][1] / sum(student.confusion[1])
    beside = f"({percent(student.balanced_accuracy)} on average over classes, {percent(rare)} of the rarest)"
    assert beside in headline(report)
    assert beside in dict(summary_rows(report))["student"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert beside in page
    assert "right on average over classes" in page


@pytest.mark.parametrize(
    ("sizes", "is_so"),
    [((50, 50), False), ((60, 40), False), ((70, 30), True), ((45, 45, 10), True), ((10,) * 10, False), ((9,), False)],
)
def test_what_is_skewed(sizes: tuple[int, ...], is_so: bool) -> None:
    confusion = tuple(tuple(int(n) for n in row) for row in np.diag(sizes))
    assert skewed(Student(name="s", test_examples=sum(sizes), accuracy=1.0, confusion=confusion)) == is_so


def test_shares_of_rare_classes_are_something_to_learn_from(tmp_path: Path) -> None:
    """Where records vote near examples a rare class may be the likeliest of none, and its share be known well."""
    X, y = table(0.3)
    report = report_of(tmp_path / "run", y, X, None)

    def warned(by_class: tuple[int, int], shares: tuple[float, float]) -> tuple[str, ...]:
        labels = ReleasedLabels(by_class=by_class, commonest_share=1.0, expected_shares=shares)
        return warnings_of(report.model_copy(update={"labels": labels}))

    assert warned((400, 0), (0.86, 0.14)) == ()
    (only,) = warned((400, 0), (0.97, 0.03))
    assert only.startswith("By the released counts, 97.0 % of the 400 public examples are 'no'")
    given = Labelled(np.array([0, 0, 4, 4]), np.array([0, 1, 0, 1]), np.array([0.8, 0.2, 0.6, 0.4]))
    found = released_labels(given.labels, given, 2)
    assert found.by_class == (2, 0)
    assert found.expected_shares == pytest.approx((0.7, 0.3))


def test_without_test_labels_agreement_with_held_out_labels_is_told(tmp_path: Path) -> None:
    X, y = table(0.3)
    report = report_of(tmp_path / "run", y, X, None)
    found = report.student.agreement
    assert found is not None
    assert report.student.accuracy is None
    assert found.labels == 200
    assert found.share > 0.9 > found.commonest
    assert 0 < found.error < 0.05
    assert "released labels that it was not taught" in dict(summary_rows(report))["student"]
    assert "There are no test labels." in (tmp_path / "run" / "report.html").read_text()


def test_the_owner_is_told_what_teachers_think_of_rare_classes(tmp_path: Path) -> None:
    """Of every example two fifths of the teachers say yes: it has 40 % of the votes, and never wins."""
    X, _ = table(0.5)
    counts = np.tile([30, 20], (len(X), 1))
    public = PublicData(X, ("no", "yes"))
    pipeline.run(config(), tmp_path / "run", public=public, private=Votes(counts), console=Quiet())
    page = RunFiles(tmp_path / "run").private_page.read_text()
    assert "What teachers think of each class" in page
    assert "40.0 %" in page
    assert "&#39;yes&#39;: first far less often" in page
    for name in ("report.html", "report.json", "privacy.txt"):
        assert "40.0 %" not in (tmp_path / "run" / name).read_text()


def test_recognising_rare_classes_at_the_cost_of_accuracy_is_no_collapse() -> None:
    def student(confusion: tuple[tuple[int, ...], ...]) -> Student:
        counts = np.array(confusion)
        return Student(
            name="s",
            test_examples=int(counts.sum()),
            accuracy=float(np.trace(counts) / counts.sum()),
            confusion=confusion,
            balanced_accuracy=mean_of_known(recall_of(confusion)),
            commonest_share=float(counts.sum(axis=1).max() / counts.sum()),
        )

    assert is_majority_class_model(student(((850, 0), (150, 0))))
    assert is_majority_class_model(student(((845, 5), (145, 5))))
    assert not is_majority_class_model(student(((720, 130), (40, 110))))  # right on less, and far better
