"""Teachers of three kinds, and records for them."""

from __future__ import annotations

import numpy as np

from pate.config import TeacherFamily
from pate.data.partition import split_into_parts
from pate.teachers import Recipe, assign_recipes, recipes
from pate.voters.teachers._worker import Teaching, Worker

FAMILIES = (
    TeacherFamily(name="sklearn.neighbors.KNeighborsClassifier", params={"n_neighbors": 1}),
    TeacherFamily(name="sklearn.ensemble.ExtraTreesClassifier", params={"n_estimators": 3}),
    TeacherFamily(name="network", params={"architecture": "mlp", "steps": 8, "hidden": 8}),
)
KINDS = recipes(FAMILIES)
KEY = b"k" * 32


def private_data(n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.random((n, 4, 4)).astype(np.float32), rng.integers(3, size=n)


def train_all(worker: Worker, kinds: list[Recipe], X: np.ndarray, y: np.ndarray, n_parts: int) -> None:
    parts = split_into_parts(X, y, None, KEY, n_parts)
    for job in Teaching(kinds, 3, 0, assign_recipes(kinds, n_parts)).jobs():
        for trained in worker.train(job, {p: (X[parts[p]], y[parts[p]]) for p in job.parts}):
            assert trained.failure is None
