"""A real run on the digits with teachers, votes, ledger and student, all in this process: no Ray, seconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from pate import pipeline
from pate.aggregator import Aggregator
from pate.config import Config, parse_config
from pate.data.dataset import Dataset
from pate.ensemble.worker import PartialCounts
from pate.forget import parts_of
from pate.ledger import Ledger
from pate.mechanisms import Mechanism
from pate.runs.run import Run

CONFIG = {
    "name": "digits",
    "n_teachers": 40,
    "data": {"source": "digits"},
    "teachers": [
        {"name": "sklearn.neighbors.KNeighborsClassifier", "params": {"n_neighbors": 1}, "weight": 2},
        {"name": "sklearn.svm.SVC", "vary": {"C": [1, 10]}, "features": "hog"},
    ],
    "mechanism": {"name": "confident_gnmax", "threshold": 25, "sigma1": 8, "sigma2": 6},
    "budget": {"asked": 120, "delta": 1e-5},
    "student": {"name": "supervised", "params": {"estimator": "sklearn.svm.SVC", "params": {"C": 10}}},
    "nonprivate": {"name": "sklearn.svm.SVC"},
}


def released_in_process(
    config: Config,
    mechanism: Mechanism,
    data: Dataset,
    directory: Run,
    open_ledger: Callable[[], Ledger],
    *_: Any,
) -> pipeline.Released:
    """What `pipeline._release_labels` does, without Ray."""
    aggregator = Aggregator(mechanism, open_ledger, directory.private, directory.key, config.n_teachers)
    parts = parts_of(config, data, directory.key)
    flat = data.X_private.reshape(len(data.X_private), -1)
    teachers = [KNeighborsClassifier(1).fit(flat[rows], data.y_private[rows]) for rows in parts]

    def count_votes(X: np.ndarray) -> list[PartialCounts]:
        votes = np.array([teacher.predict(X.reshape(len(X), -1)) for teacher in teachers])
        counts = np.array([np.bincount(column, minlength=len(data.classes)) for column in votes.T])
        return [PartialCounts(tuple(range(len(teachers))), counts)]

    queries = data.X_public[: config.budget.asked]
    aggregator.collect(queries, count_votes)
    aggregator.evaluate(data.X_public, data.y_public, count_votes)
    labels = aggregator.label(queries).labels
    aggregator.account(queries, config.budget.delta)
    spent, head = aggregator.spent(), aggregator.head()
    aggregator.close()
    return pipeline.Released(np.arange(len(labels)), labels, spent, None, head)


def make_run(out: Path) -> None:
    """Run it in the directory `out`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "_release_labels", released_in_process)
        pipeline.run(parse_config(CONFIG), out)
