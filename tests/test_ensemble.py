"""Workers and pool: isolation of parts, every part counted once, deaths made up for."""

from __future__ import annotations

import numpy as np
import pytest

from pate.config import RaySettings, TeacherFamily
from pate.data.partition import split_into_parts
from pate.ensemble import PartialCounts, Pool, Worker, sum_counts
from pate.errors import ConfigError, RunError
from pate.teachers import family_of_part

FAMILIES = (
    TeacherFamily(name="sklearn.neighbors.KNeighborsClassifier", params={"n_neighbors": 1}),
    TeacherFamily(name="sklearn.ensemble.ExtraTreesClassifier", params={"n_estimators": 3}),
    TeacherFamily(name="network", params={"architecture": "mlp", "epochs": 2, "hidden": 8}),
)
KEY = b"k" * 32


def private_data(n: int = 120) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    return rng.random((n, 4, 4)).astype(np.float32), rng.integers(3, size=n)


def predictions(X: np.ndarray, y: np.ndarray, queries: np.ndarray, n_parts: int) -> np.ndarray:
    """Each teacher's own predictions, for the test's eyes only."""
    assignment = family_of_part(FAMILIES, n_parts)
    rows = []
    for part, members in enumerate(split_into_parts(X, y, None, KEY, n_parts)):
        worker = Worker(FAMILIES, 3, seed=0)
        assert worker.train(part, assignment[part], X[members], y[members]) is None
        rows.append(worker.count(queries).counts.argmax(axis=1))
    return np.array(rows)


@pytest.mark.parametrize("change", ["remove", "add"])
def test_one_record_touches_one_teacher(change: str) -> None:
    """DESIGN's isolation rule: change one record, retrain all, at most one teacher votes differently."""
    X, y = private_data()
    queries = np.random.default_rng(2).random((200, 4, 4)).astype(np.float32)
    before = predictions(X, y, queries, 9)
    for record in (0, 60, 119):
        if change == "remove":
            kept = np.delete(np.arange(len(X)), record)
            after = predictions(X[kept], y[kept], queries, 9)
        else:
            after = predictions(np.concatenate([X[:1] + record, X]), np.concatenate([[2], y]), queries, 9)
        assert (before != after).any(axis=1).sum() <= 1


def test_sum_refuses_anything_but_every_part_once() -> None:
    counts = np.ones((2, 3), dtype=np.int64)
    whole = [PartialCounts((0, 2), counts), PartialCounts((1,), counts)]
    np.testing.assert_array_equal(sum_counts(whole, 3), 2 * counts)
    for partials in (whole[:1], [*whole, whole[1]], [PartialCounts((0, 1, 3), counts)], []):
        with pytest.raises(RunError, match="nothing was drawn"):
            sum_counts(partials, 3)


class Refuses:
    """A classifier whose message quotes its data."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Refuses:
        raise ValueError(f"secret {X[0]}")

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X))


def test_a_failing_teacher_becomes_a_constant_and_its_message_stays_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = private_data(10)
    worker = Worker(FAMILIES, 3, seed=0)
    monkeypatch.setattr(worker, "_estimator", lambda family, seed: Refuses())
    assert worker.train(4, 0, X, np.full(10, 2) - (y > 1)) == "ValueError"
    partial = worker.count(X)
    assert partial.parts == (4,)
    assert (partial.counts.sum(axis=0) > 0).sum() == 1


class CannotPredict:
    """Fits, answers about one example, and fails on more."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> CannotPredict:
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        if len(X) > 1:
            raise ValueError(f"secret {X[0]}")
        return np.zeros(len(X))


def test_a_teacher_that_cannot_answer_does_not_stop_the_vote(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = private_data(10)
    worker = Worker(FAMILIES, 3, seed=0)
    monkeypatch.setattr(worker, "_estimator", lambda family, seed: CannotPredict())
    worker.train(0, 0, X, y)
    assert worker.count(X).counts.tolist() == [[1, 0, 0]] * 10


def test_probe_says_what_is_wrong_with_a_family() -> None:
    bad = (TeacherFamily(name="sklearn.svm.SVC", params={"C": -1}),)
    shown = Worker(bad, 3, seed=0).probe(0, private_data()[0], 30)
    assert "teachers.0.name = 'sklearn.svm.SVC'" in str(shown)
    seconds = Worker(FAMILIES, 3, seed=0).probe(0, private_data()[0], 30)
    assert isinstance(seconds, float)


@pytest.mark.usefixtures("local_ray")
def test_pool_counts_what_one_worker_would() -> None:
    import ray

    X, y = private_data()
    parts = split_into_parts(X, y, None, KEY, 8)
    assignment = family_of_part(FAMILIES, 8)
    pool = Pool(FAMILIES, assignment, 3, 0, RaySettings(workers=2))
    assert pool.probe(X, 15) > 0
    done: list[int] = []
    pool.train(lambda part: (X[parts[part]], y[parts[part]]), done.append)
    assert done == list(range(1, 9))
    alone = Worker(FAMILIES, 3, seed=0)
    for part in range(8):
        alone.train(part, assignment[part], X[parts[part]], y[parts[part]])
    partials = ray.get([worker.count.remote(X) for worker in pool.workers])
    np.testing.assert_array_equal(sum_counts(partials, 8), alone.count(X).counts)


@pytest.mark.usefixtures("local_ray")
def test_a_killed_worker_is_replaced_and_votes_are_the_same() -> None:
    import ray

    X, y = private_data()
    parts = split_into_parts(X, y, None, KEY, 8)
    pool = Pool(FAMILIES[:2], family_of_part(FAMILIES[:2], 8), 3, 0, RaySettings(workers=2))
    kills = iter([3, 6])
    next_kill = next(kills)

    def done(count: int) -> None:
        nonlocal next_kill
        if count >= next_kill:
            next_kill = next(kills, 99)
            ray.kill(pool.workers[0])

    pool.train(lambda part: (X[parts[part]], y[parts[part]]), done)
    pool.forget_dead()
    pool.train(lambda part: (X[parts[part]], y[parts[part]]), lambda _: None)
    partials = ray.get([worker.count.remote(X) for worker in pool.workers])
    alone = Worker(FAMILIES[:2], 3, seed=0)
    for part in range(8):
        alone.train(part, part % 2, X[parts[part]], y[parts[part]])
    np.testing.assert_array_equal(sum_counts(partials, 8), alone.count(X).counts)


@pytest.mark.usefixtures("local_ray")
def test_pool_refuses_a_family_that_cannot_fit_and_resources_that_are_not_there() -> None:
    bad = (TeacherFamily(name="sklearn.svm.SVC", params={"kernel": "nope"}),)
    with pytest.raises(ConfigError, match=r"teachers\.0\.name"):
        Pool(bad, [0, 0], 3, 0, RaySettings(workers=1)).probe(private_data()[0], 10)
    with pytest.raises(RunError, match="GPUs"):
        Pool(FAMILIES, [0, 0], 3, 0, RaySettings(gpus_per_worker=1))
