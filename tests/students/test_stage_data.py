"""The student's stage: what a student is given, and what is stored with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from pate.config import parse_config
from pate.data.public import PublicData
from pate.ledger import Charge
from pate.ledger._chain import MAC_BYTES, Pin
from pate.mechanisms import UNANSWERED
from pate.runs._console import Quiet
from pate.runs._run_ledger import published_pins
from pate.runs.context import RunContext, RunOptions
from pate.runs.run import Run
from pate.students._stage import train_student
from pate.voters.base import Release

HEAD = Pin(7, b"m" * MAC_BYTES)
SEEN: list[tuple[str, tuple[np.ndarray, ...]]] = []


class Watched(LogisticRegression):
    """A student of somebody's own, which remembers all that it is given."""

    def fit(self, X: np.ndarray, y: np.ndarray, X_unlabelled: np.ndarray | None = None) -> Watched:
        assert X_unlabelled is not None
        SEEN.append(("fit", (X, y, X_unlabelled)))
        super().fit(X[y != UNANSWERED], y[y != UNANSWERED])
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        SEEN.append(("predict", (X,)))
        return super().predict(X)


@pytest.fixture
def data() -> PublicData:
    """Where labels that are not released differ from those that are."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2)).astype(np.float32)
    zeros = np.zeros(60, dtype=np.int64)
    return PublicData(
        X_public=X[10:40],
        y_public=zeros[10:40],
        X_test=X[40:],
        y_test=zeros[40:],
        classes=("a", "b", "c"),
        benchmark=True,
    )


@pytest.fixture
def trained(data: PublicData, tmp_path: Path) -> Callable[..., Path]:
    """Trains the student that a config names on 12 released labels; the run's directory."""

    def train(student: dict[str, Any]) -> Path:
        config = parse_config(
            {
                "n_teachers": 10,
                "data": {"source": "arrays"},
                "teachers": [{"name": "sklearn.svm.SVC"}],
                "mechanism": {"name": "gnmax", "sigma": 3},
                "budget": {"max_queries": 12, "epsilon": 100, "delta": 1e-6},
                "student": student,
            }
        )
        with Run.create(tmp_path / "run", config) as directory:
            context = RunContext(config, directory.path, RunOptions(), Quiet(), data, epsilon=1.25)
            context.run = directory
            train_student(context, Release(np.arange(12), LABELS, Charge(12, 11), 12, 11, HEAD))
        return tmp_path / "run"

    return train


LABELS = np.array([1, 2, UNANSWERED, 1, 2, 1, 2, 0, 1, 2, 1, 2])


def test_a_student_is_given_public_examples_and_released_labels_alone(
    trained: Callable[..., Path], data: PublicData
) -> None:
    """Once, and it is asked nothing: neither test examples nor true labels have a part in it."""
    SEEN.clear()
    trained({"name": f"{__name__}.Watched"})
    ((what, (X, y, X_unlabelled)),) = SEEN
    assert what == "fit"
    np.testing.assert_array_equal(X, data.X_public[:12])
    np.testing.assert_array_equal(y, LABELS)
    np.testing.assert_array_equal(X_unlabelled, data.X_public[12:])


def test_the_card_tells_the_cost_and_pins_the_ledger(trained: Callable[..., Path]) -> None:
    run = trained({"name": "supervised", "params": {"estimator": "sklearn.linear_model.LogisticRegression"}})
    card = json.loads((run / "student" / "student.json").read_text())
    assert (card["epsilon"], card["delta"], card["classes"]) == (1.25, 1e-6, ["a", "b", "c"])
    assert card["mechanism"] == {"name": "gnmax", "sigma": 3}
    assert set(published_pins(run).values()) == {HEAD}
    assert len(published_pins(run)) == 2
