"""The student's stage: what a student is given, what is published and stored, how it is tried on held-out labels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from pate.config import Config, parse_config
from pate.data.public import PublicData
from pate.errors import RunError
from pate.ledger import Charge
from pate.ledger._chain import MAC_BYTES, Pin
from pate.mechanisms import UNANSWERED
from pate.runs._console import Quiet
from pate.runs._run_ledger import published_pins
from pate.runs.context import RunContext, RunOptions
from pate.runs.run import Run
from pate.students._posterior import Labelled
from pate.students._stage import HeldOut, held_out, train_student
from pate.voters.base import Release

HEAD = Pin(7, b"m" * MAC_BYTES)
LABELS = np.array([1, 2, UNANSWERED, 1, 2, 1, 2, 0, 1, 2, 1, 2])
RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 2)).astype(np.float32)
ROWS = RNG.permutation(90)[:30]
DATA = PublicData(  # labels that are not released differ from those that are
    X_public=X[:30],
    y_public=np.zeros(30, dtype=np.int64),
    X_test=X[30:],
    y_test=np.zeros(20, dtype=np.int64),
    classes=("a", "b", "c"),
    benchmark=True,
    public_rows=ROWS,
)
SOFT = Labelled(  # of 9 cells, their members in any order; every class of an example comes with its weight
    rows=np.repeat(np.arange(27, 0, -1), 3),
    labels=np.tile([0, 1, 2], 27),
    weights=np.round(np.random.default_rng(1).dirichlet([0.3, 0.3, 0.3], size=27), 3).reshape(-1),
    cells=np.repeat(np.arange(27) % 9, 3),
)


class Fit(NamedTuple):
    """What a student was given."""

    X: NDArray
    y: NDArray
    X_unlabelled: NDArray
    weights: NDArray | None


class Watched:
    """A student of somebody's own, which remembers all that it is given and what it is asked.

    It answers with the heaviest label of the nearest example that has one, and finds it twice as likely as the others.
    """

    fits: ClassVar[list[Fit]] = []
    asked: ClassVar[list[NDArray]] = []

    def __init__(self, random_state: int = 0, calm: float = 0.5) -> None:
        self.random_state, self.calm = random_state, calm
        self.classes_ = np.arange(3)

    def get_params(self) -> dict[str, Any]:
        return {"random_state": self.random_state, "calm": self.calm}

    def fit(self, X: NDArray, y: NDArray, X_unlabelled: NDArray, *, sample_weight: NDArray | None = None) -> Watched:
        self.mine = Fit(X, y, X_unlabelled, sample_weight)
        self.fits.append(self.mine)
        return self

    def predict_proba(self, X: NDArray) -> NDArray:
        known = self.mine.y != UNANSWERED
        Z, y = self.mine.X[known], self.mine.y[known]
        weights = np.ones(len(y)) if self.mine.weights is None else self.mine.weights[known]
        nearest = Z[np.linalg.norm(X[:, None] - Z, axis=2).argmin(axis=1)]
        same = (nearest[:, None] == Z).all(axis=2)
        best = np.stack([(same * weights * (y == k)).sum(axis=1) for k in range(3)], axis=1).argmax(axis=1)
        return (1 + np.eye(3)[best]) / 4

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        self.asked.append(X)
        return self.predict_proba(X).argmax(axis=1)


WATCHED = {"name": f"{__name__}.Watched"}


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    Watched.fits.clear()
    Watched.asked.clear()


def config_of(student: dict[str, Any] = WATCHED, **neighbours: Any) -> Config:
    voters: dict[str, Any] = {
        "n_teachers": 10,
        "teachers": [{"name": "sklearn.svm.SVC"}],
        "mechanism": {"name": "gnmax", "sigma": 3},
        "budget": {"max_queries": 12, "epsilon": 100, "delta": 1e-6},
    }
    if neighbours:
        mechanism = {"name": "histogram", "scale": 9}
        voters = {"voters": "neighbours", "neighbours": {"cells": 9, **neighbours}, "mechanism": mechanism}
    return parse_config({"data": {"source": "arrays"}, "student": student, **voters})


@contextmanager
def begun(folder: Path, config: Config, data: PublicData = DATA, epsilon: float = 1.25) -> Iterator[RunContext]:
    with Run.create(folder, config, resume=folder.exists()) as run:
        context = RunContext(config, run.path, RunOptions(), Quiet(), data, epsilon=epsilon)
        context.run = run
        yield context


def train(context: RunContext, labels: NDArray = LABELS, labelled: Labelled | None = None) -> Any:
    """The student of these released labels."""
    rows = np.arange(len(labels)) if labelled is None else labelled.rows
    return train_student(context, Release(rows, labels, Charge(12, 11), 12, 11, HEAD, None, labelled))


# What it is given.


def test_a_student_is_given_public_examples_and_released_labels_alone(tmp_path: Path) -> None:
    """Once, and it is asked nothing: neither test examples nor true labels have a part in it."""
    with begun(tmp_path / "run", config_of()) as context:
        train(context)
    ((X, y, X_unlabelled, weights),) = Watched.fits
    assert weights is None
    assert not Watched.asked
    np.testing.assert_array_equal(X, DATA.X_public[:12])
    np.testing.assert_array_equal(y, LABELS)
    np.testing.assert_array_equal(X_unlabelled, DATA.X_public[12:])


def test_a_student_of_weighted_labels_is_given_each_with_its_example_and_weight(tmp_path: Path) -> None:
    """Those that hardly count are left out, and all other public examples come without labels."""
    with begun(tmp_path / "run", config_of(soft=True)) as context:
        train(context, SOFT.labels, SOFT)
        published = context.run.labels
    ((X, y, X_unlabelled, weights),) = Watched.fits
    counts = SOFT.weights >= 0.005
    assert 0 < (~counts).sum() < 40
    np.testing.assert_array_equal(X, DATA.X_public[SOFT.rows[counts]])
    np.testing.assert_array_equal(y, SOFT.labels[counts])
    np.testing.assert_array_equal(weights, SOFT.weights[counts])
    np.testing.assert_array_equal(X_unlabelled, DATA.X_public[[0, 28, 29]])
    assert published is not None
    assert published.rows.tolist() == ROWS[SOFT.rows].tolist()
    np.testing.assert_array_equal(published.weights, SOFT.weights)
    np.testing.assert_array_equal(published.cells, SOFT.cells)


def test_each_further_student_learns_the_released_shares_refined_by_the_one_before(tmp_path: Path) -> None:
    with begun(tmp_path / "run", config_of(soft=True, refine=2)) as context:
        last = train(context, SOFT.labels, SOFT)
    first, second, third = Watched.fits
    assert last.mine is third
    for before, after in ((first, second), (second, third)):
        student = Watched()
        student.mine = before
        refined = SOFT.refined(student.predict_proba(DATA.X_public))
        counts = refined.weights >= 0.005
        np.testing.assert_allclose(after.weights, refined.weights[counts])
        np.testing.assert_array_equal(after.X, DATA.X_public[refined.rows[counts]])
        np.testing.assert_array_equal(after.y, refined.labels[counts])


# What is published, and stored with it.


def test_labels_are_published_with_the_rows_of_the_source_whether_or_not_anything_can_be_learned(
    tmp_path: Path,
) -> None:
    with begun(tmp_path / "run", config_of()) as context:
        train(context)
        published = context.run.labels
    assert published is not None
    assert (published.labels.tolist(), published.rows.tolist()) == (LABELS.tolist(), ROWS[:12].tolist())
    assert (published.pin, published.weights, published.cells) == (HEAD, None, None)
    with begun(tmp_path / "none", config_of()) as context:
        with pytest.raises(RunError, match="none of the 12 queries was answered"):
            train(context, np.full(12, UNANSWERED))
        assert context.run.labels is not None


def test_the_card_tells_the_cost_and_pins_the_ledger_and_a_finished_student_stays(tmp_path: Path) -> None:
    """With the same labels it would be the same: so the second time they are others."""
    config = config_of({"name": "supervised", "params": {"estimator": "sklearn.naive_bayes.GaussianNB"}})
    with begun(tmp_path / "run", config) as context:
        first = train(context)
        content = context.run.student_card.read_bytes()
    card = json.loads(content)
    assert (card["epsilon"], card["delta"], card["classes"]) == (1.25, 1e-6, ["a", "b", "c"])
    assert card["mechanism"] == {"name": "gnmax", "sigma": 3}
    assert list(published_pins(tmp_path / "run").values()) == [HEAD, HEAD]
    with begun(tmp_path / "run", config, epsilon=2.0) as context:
        again = train(context, 2 - LABELS)
        assert context.run.student_card.read_bytes() == content
    np.testing.assert_array_equal(again.predict(X), first.predict(X))


# Held-out labels.


def test_students_are_tried_on_labels_of_which_they_were_taught_none(tmp_path: Path) -> None:
    """Each label by one student, which is told that it is not answered; equal examples are held out together."""
    X = DATA.X_public.copy()
    X[1::2] = X[::2]
    data = PublicData(X, DATA.classes)
    labels = np.where(np.arange(28) == 4, UNANSWERED, np.arange(28) % 3)
    with begun(tmp_path / "run", config_of(), data) as context:
        found = held_out(context.config, data, labels, None, context.run, Quiet())
        assert found is not None
        places = np.flatnonzero(labels != UNANSWERED)
        np.testing.assert_array_equal(found.labels, labels[places])
        np.testing.assert_array_equal(found.weights, np.ones(27))
        group = dict(zip(places.tolist(), found.groups.tolist(), strict=True))
        assert all(group[i] == group[i + 1] for i in range(0, 28, 2) if i != 4)
        untaught = np.stack([fit.y == UNANSWERED for fit in Watched.fits])
        assert untaught[:, places].sum(axis=0).tolist() == [1] * 27
        for fit, own in zip(Watched.fits, untaught, strict=True):
            np.testing.assert_array_equal(fit.X, X[:28])
            np.testing.assert_array_equal(fit.y[~own], labels[~own])
            np.testing.assert_array_equal(own[::2] | (labels[::2] < 0), own[1::2] | (labels[::2] < 0))
            student = Watched()
            student.mine = fit
            np.testing.assert_array_equal(found.predicted[own[places]], student.predict(X[places[own[places]]]))
        again = held_out(context.config, data, labels, None, context.run, Quiet())
        assert len(Watched.fits) == 3, "what was found is kept"
        np.testing.assert_array_equal(again.predicted, found.predicted)
        first = held_out(context.config, data, labels, None, context.run, Quiet(), tries=1)
        assert len(Watched.fits) == 4
        assert set(first.groups) < set(found.groups)
        held_out(config_of(WATCHED | {"params": {"calm": 1}}), data, labels, None, context.run, Quiet())
        assert len(Watched.fits) == 7, "another student is tried by itself"


def test_weighted_labels_are_held_out_by_cells_and_count_by_their_weights(tmp_path: Path) -> None:
    with begun(tmp_path / "run", config_of(soft=True)) as context:
        found = held_out(context.config, DATA, SOFT.labels, SOFT, context.run, Quiet())
    assert found is not None
    counts = SOFT.weights > 0
    np.testing.assert_array_equal(found.weights, SOFT.weights[counts])
    np.testing.assert_array_equal(found.labels, SOFT.labels[counts])
    np.testing.assert_array_equal(found.groups, SOFT.cells[counts])
    cell_of = dict(zip(map(tuple, DATA.X_public[SOFT.rows].tolist()), SOFT.cells.tolist(), strict=False))
    taught = [{cell_of[tuple(x)] for x in fit.X.tolist()} for fit in Watched.fits]
    tried = [{cell_of[tuple(x)] for x in asked.tolist()} for asked in Watched.asked]
    assert sorted(cell for cells in tried for cell in cells) == list(range(9))
    assert all(a | b == set(range(9)) and not a & b for a, b in zip(taught, tried, strict=True))
    predicted = np.full(len(SOFT), -1)
    for fit, own in zip(Watched.fits, tried, strict=True):
        student, there = Watched(), np.isin(SOFT.cells, list(own))
        student.mine = fit
        predicted[there] = student.predict(DATA.X_public[SOFT.rows[there]])
    np.testing.assert_array_equal(found.predicted, predicted[counts])


def test_too_few_groups_of_labels_say_nothing(tmp_path: Path) -> None:
    with begun(tmp_path / "run", config_of()) as context:
        for labels in (LABELS[:8], np.where(np.arange(12) < 8, 1, UNANSWERED)):
            assert held_out(context.config, DATA, labels, None, context.run, Quiet()) is None
    assert not Watched.fits


def test_a_weight_counts_as_so_many_labels_of_the_same_group() -> None:
    rng = np.random.default_rng(2)
    predicted, labels, groups = (rng.integers(0, n, 60) for n in (3, 3, 15))
    times = rng.integers(0, 4, 60)
    weighted = HeldOut(predicted, labels, times / 3, groups)
    repeated = HeldOut(*(np.repeat(a, times) for a in (predicted, labels, np.ones(60), groups)))
    for figure in ("share", "error", "balanced", "commonest"):
        assert getattr(weighted, figure) == pytest.approx(getattr(repeated, figure)), figure
    assert repeated.share == pytest.approx((repeated.predicted == repeated.labels).mean())
    assert repeated.commonest == pytest.approx(np.bincount(repeated.labels).max() / len(repeated.labels))
    recalls = [(repeated.predicted == k)[repeated.labels == k].mean() for k in range(3)]
    assert repeated.balanced == pytest.approx(np.mean(recalls))
