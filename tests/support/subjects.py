"""Models under attack whose leak is known: made by hand, in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pate.audit._target import NonprivateTrainer, Subject, TargetExamples
from pate.config import parse_config
from pate.data.private import Records
from pate.data.public import PublicData
from pate.teachers import Recipe
from support.small_run import CONFIG

OVERFITTING = NonprivateTrainer(Recipe("sklearn.linear_model.LogisticRegression", {"C": 100.0, "max_iter": 300}), 2)
"""With more features than records, it separates whatever it is given."""


@dataclass(frozen=True)
class Memory:
    """Says the label of every record that it has seen, and else one at random, the same each time."""

    seen: dict[bytes, int]
    n_classes: int

    @classmethod
    def of(cls, X: NDArray, y: NDArray[np.int64], n_classes: int) -> Memory:
        return cls({row.tobytes(): int(label) for row, label in zip(X, y, strict=True)}, n_classes)

    def predict(self, X: NDArray) -> NDArray[np.int64]:
        return self.predict_proba(X).argmax(axis=1)

    def predict_proba(self, X: NDArray) -> NDArray[np.float64]:
        guesses = [self.seen.get(row.tobytes(), int(abs(row.sum()) * 1e4) % self.n_classes) for row in X]
        return 0.9 * np.eye(self.n_classes)[guesses] + 0.1 / self.n_classes


def random_examples(n: int, width: int, n_classes: int, seed: int) -> TargetExamples:
    """Features that say nothing about the labels."""
    generator = np.random.default_rng(seed)
    X = generator.standard_normal((n, width)).astype(np.float32)
    return TargetExamples(X, generator.integers(0, n_classes, n), np.arange(n))


def made_subject(
    members: TargetExamples, outsiders: TargetExamples, model: Any, n_classes: int = 2, **others: Any
) -> Subject:
    """A model under attack with these members and outsiders."""
    shaped = random_examples(50, members.X[0].size, n_classes, 99).X.reshape(50, *members.X.shape[1:])
    data = PublicData(
        X_public=shaped,
        X_test=outsiders.X,
        y_test=outsiders.y,
        classes=tuple(map(str, range(n_classes))),
        benchmark=True,
    )
    known: dict[str, Any] = {
        "name": "model",
        "kind": "without privacy",
        "method": "made",
        "trainer": OVERFITTING,
        "reference": OVERFITTING,
        "config": parse_config(CONFIG),
        "epsilon": None,
        "delta": 1e-5,
    }
    records = Records(members.X, members.y)
    made = {"model": model, "members": members, "outsiders": outsiders, "data": data, "records": records}
    return Subject(**{**known, **made, **others})
