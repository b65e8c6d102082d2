"""An ensemble in this process: every teacher on its own part, as if trained alone, whatever else its worker does."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
from sklearn.base import BaseEstimator
from support.teachers import KEY, KINDS, private_data

from pate.config import Config, TeacherFamily, parse_config
from pate.data.partition import split_into_parts
from pate.data.private import Records
from pate.teachers import Recipe, assign_recipes, recipes, seed_of_part
from pate.voters.teachers._checkpoints import InMemory, TeacherFiles
from pate.voters.teachers._worker import Teaching, TrainingJob, Worker
from pate.voters.teachers.ensemble import Ensemble, split_records

N_PARTS = 12


class Draws(BaseEstimator):
    """Draws from the process's generators and from its seed; its votes are what it drew."""

    def __init__(self, random_state: int | None = None) -> None:
        self.random_state = random_state

    def fit(self, X: np.ndarray, y: np.ndarray) -> Draws:
        self.drawn = [random.random(), np.random.random(), self.random_state]  # noqa: NPY002
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.random.randint(2, size=len(X))  # noqa: NPY002


def small_config() -> Config:
    return parse_config(
        {
            "n_teachers": N_PARTS,
            "data": {"source": "arrays"},
            "teachers": [{"name": "sklearn.naive_bayes.GaussianNB"}],
            "mechanism": {"name": "gnmax", "sigma": 10},
            "student": {"name": "supervised"},
        }
    )


def test_every_record_is_in_one_part() -> None:
    X, y = private_data()
    records = split_records(small_config(), Records(X, y), KEY)
    found = [row.tobytes() for part in range(N_PARTS) for row in records.of_part(part)[0]]
    assert sorted(found) == sorted(row.tobytes() for row in X)


def test_each_teacher_is_trained_on_its_own_part() -> None:
    """Bit for bit what a worker makes of that part, single teachers and slots of a stack alike."""
    X, y = private_data()
    parts = split_into_parts(X, y, None, KEY, N_PARTS)
    teaching = Teaching(KINDS, 3, 0, assign_recipes(KINDS, N_PARTS))
    store = InMemory()
    with Ensemble(teaching, split_records(small_config(), Records(X, y), KEY), store) as ensemble:
        ensemble.train()
        counts = ensemble.count(X)
    worker = Worker(teaching)
    made = {}
    for job in teaching.jobs():
        trained = worker.train(job, {part: (X[parts[part]], y[parts[part]]) for part in job.parts})
        made.update({teacher.part: teacher.payload for teacher in trained})
    assert {part: store.load(part) for part in range(N_PARTS)} == made
    np.testing.assert_array_equal(counts, worker.count(X).counts)


def test_checkpoints_of_another_run_or_part_are_not_believed(tmp_path: Path) -> None:
    store = TeacherFiles(tmp_path, KEY)
    store.save(1, b"one")
    store.save(2, b"two", "ValueError")
    assert (store.load(1), store.load(2), store.load(3)) == (b"one", b"two", None)
    assert store.failures == {2: "ValueError"}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "teachers").iterdir()} == {0o600}
    assert TeacherFiles(tmp_path, b"x" * 32).load(1) is None
    (tmp_path / "teachers" / "000001").write_bytes((tmp_path / "teachers" / "000002").read_bytes())
    assert store.load(1) is None
    store.erase(2)
    assert store.load(2) is None
    assert store.failures == {}


def test_a_teacher_is_the_same_whatever_else_its_worker_does() -> None:
    """Also where it draws from the process's own generators, in training and in voting."""
    X, y = private_data(30)
    teaching = Teaching([Recipe(f"{__name__}.Draws", {})], 3, 7)
    busy, quiet = Worker(teaching), Worker(teaching)
    for part in (4, 5):
        busy.train(TrainingJob(0, (part,)), {part: (X, y)})
    (late,), (alone,) = (worker.train(TrainingJob(0, (6,)), {6: (X, y)}) for worker in (busy, quiet))
    assert late.payload == alone.payload
    first = [worker._teachers[6][1].estimator.drawn for worker in (busy, quiet)]
    assert first[0] == first[1]
    votes = [quiet.count(X).counts for _ in range(2)]
    np.testing.assert_array_equal(votes[0], votes[1])


def test_a_network_of_a_stack_has_the_seed_of_its_part() -> None:
    X, y = private_data(60)
    worker = Worker(Teaching(KINDS[2:], 3, 7))
    worker.train(TrainingJob(0, (8, 11)), {8: (X[:30], y[:30]), 11: (X[30:], y[30:])})
    seeds = {part: worker._teachers[part][1].estimator.random_state for part in (8, 11)}
    assert seeds == {part: seed_of_part(7, part) for part in (8, 11)}


def test_seeds_are_the_same_in_every_process_and_version() -> None:
    """A run that goes on elsewhere trains the teachers it would have trained."""
    assert [seed_of_part(0, 0), seed_of_part(3, 249), seed_of_part(0, 0, 1)] == [431686563, 431649780, 1461584451]


def test_kinds_with_other_features_have_their_own() -> None:
    X, y = private_data()
    plain = TeacherFamily(name="sklearn.neighbors.KNeighborsClassifier")
    hog = TeacherFamily(name=plain.name, features={"name": "hog", "params": {"cell": 4, "stride": 4}})
    worker = Worker(Teaching(recipes([plain, hog]), 3, 0))
    for part in (0, 1):
        worker.train(TrainingJob(part, (part,)), {part: (X, y)})
    assert [worker._teachers[part][1].estimator.n_features_in_ for part in (0, 1)] == [16, 12]


class Refuses(BaseEstimator):
    """Cannot be trained."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Refuses:
        raise ValueError("never")

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X))


def test_the_most_frequent_label_stands_in() -> None:
    X, _ = private_data(5)
    worker = Worker(Teaching([Recipe(f"{__name__}.Refuses", {})], 4, 0))
    (trained,) = worker.train(TrainingJob(0, (0,)), {0: (X, np.array([1, 2, 2, 2, 0]))})
    assert json.loads(trained.payload[1:]) == [2]
    assert worker.count(X).counts.tolist() == [[0, 0, 1, 0]] * 5
