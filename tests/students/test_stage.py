"""The student's stage: labels are published first, with the rows they belong to, and a finished student stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pate.config import Config, parse_config
from pate.data.public import PublicData
from pate.errors import RunError
from pate.ledger import Charge, Pin
from pate.runs._console import Quiet
from pate.runs.context import RunContext, RunOptions
from pate.runs.run import Run
from pate.students._stage import train_student
from pate.voters.base import Release

HEAD = Pin(5, b"m" * 32)
ROWS = np.array([9, 2, 7, 0, 5, 4, 3, 6, 8, 1])
LABELS = np.array([0, 1, 0, 1, 0, 1])


def config(estimator: str = "sklearn.naive_bayes.GaussianNB") -> Config:
    content = {
        "n_teachers": 5,
        "data": {"source": "arrays"},
        "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
        "mechanism": {"name": "gnmax", "sigma": 5},
        "budget": {"max_queries": 6},
        "student": {"name": "supervised", "params": {"estimator": estimator}},
    }
    return parse_config(content)


def data() -> PublicData:
    X = np.random.default_rng(0).normal(size=(10, 2)).astype(np.float32)
    return PublicData(X, ("a", "b"), public_rows=ROWS)


def train(run: Run, labels: np.ndarray, epsilon: float = 1.0) -> Any:
    """The student of these released labels, in the directory of the run."""
    context = RunContext(config(), run.path, RunOptions(), Quiet(), data(), epsilon=epsilon)
    context.run = run
    return train_student(context, Release(np.arange(6), labels, Charge(6, 6), 6, 6, HEAD))


def test_labels_are_published_with_the_rows_of_the_source(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", config()) as run:
        train(run, LABELS)
        published = run.labels
    assert published is not None
    assert (published.labels.tolist(), published.rows.tolist()) == (LABELS.tolist(), ROWS[:6].tolist())
    assert published.pin == HEAD


def test_labels_are_there_for_people_where_nothing_can_be_learned_from_them(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", config()) as run:
        with pytest.raises(RunError, match="none of the 6 queries was answered"):
            train(run, np.full(6, -1))
        assert run.labels is not None


def test_a_finished_student_is_not_trained_again(tmp_path: Path) -> None:
    """With the same labels it would be the same: so the second time they are others."""
    with Run.create(tmp_path / "run", config()) as run:
        first = train(run, LABELS)
        card = run.student_card.read_bytes()
        again = train(run, 1 - LABELS, epsilon=2.0)
        assert run.student_card.read_bytes() == card
    X = data().X_public
    np.testing.assert_array_equal(again.predict(X), first.predict(X))
