"""Workers: isolation of parts, stacks and singles, failures that stay inside."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.base import BaseEstimator
from support.teachers import FAMILIES, KEY, KINDS, private_data, train_all

from pate.boundary import PartialCounts, sum_counts
from pate.config import TeacherFamily
from pate.data.partition import split_into_parts
from pate.errors import RunError
from pate.teachers import Recipe, assign_recipes, constant, recipes
from pate.voters.teachers._pool import joined
from pate.voters.teachers._worker import STACK, Teaching, TrainingJob, Worker


def predictions(X: np.ndarray, y: np.ndarray, queries: np.ndarray, n_parts: int) -> np.ndarray:
    """Each teacher's own predictions, for the test's eyes only."""
    worker = Worker(Teaching(KINDS, 3, 0))
    train_all(worker, KINDS, X, y, n_parts)
    return np.array([worker._teachers[part][1].predict(queries) for part in range(n_parts)])


@pytest.mark.parametrize("change", ["remove", "add", "one class left"])
def test_one_record_touches_one_teacher(change: str) -> None:
    """DESIGN's isolation rule: change one record, retrain all, at most one teacher votes differently."""
    X, y = private_data()
    queries = np.random.default_rng(2).random((200, 4, 4)).astype(np.float32)
    before = predictions(X, y, queries, 9)
    for record in (0, 119):
        if change == "remove":
            kept = np.delete(np.arange(len(X)), record)
            after = predictions(X[kept], y[kept], queries, 9)
        elif change == "add":
            after = predictions(np.concatenate([X[:1] + record, X]), np.concatenate([[2], y]), queries, 9)
        else:
            part = split_into_parts(X, y, None, KEY, 9)[record % 9]
            kept = np.setdiff1d(np.arange(len(X)), part[y[part] != y[part][0]])
            after = predictions(X[kept], y[kept], queries, 9)
        assert (before != after).any(axis=1).sum() <= 1


class Draws(torch.nn.Module):
    """Draws from torch's own generator in training and afterwards."""

    def __init__(self, shape: tuple[int, ...], n_classes: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(int(np.prod(shape)), n_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.dropout(self.layer(x.flatten(1)), 0.3, training=True)


class ScalesInPlace(BaseEstimator):
    """A classifier that ruins what it is given, by its own records, and answers as a column."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> ScalesInPlace:
        self.scale = X.mean()
        self.label = y[0]
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        X *= 1000 * self.scale
        return np.full((len(X), 1), self.label) + (X.reshape(len(X), -1).mean(axis=1, keepdims=True) < 0)


RUTHLESS = [
    Recipe(f"{__name__}.ScalesInPlace", {}),
    Recipe("network", {"architecture": f"{__name__}.Draws", "steps": 5}),
    Recipe("sklearn.neighbors.KNeighborsClassifier", {"n_neighbors": 1}),
    Recipe("network", {"architecture": "mlp", "steps": 8, "hidden": 8}),
]


def test_one_record_moves_one_vote_whatever_classes_do() -> None:
    """Through the very counts that leave a worker: at most one vote moves, and every teacher votes once."""
    X, y = private_data()
    queries = np.random.default_rng(2).random((100, 4, 4)).astype(np.float32)
    results = []
    for removed in (None, 0, 31, 62, 93):
        kept = np.delete(np.arange(len(X)), [] if removed is None else [removed])
        worker = Worker(Teaching(RUTHLESS, 3, 0))
        train_all(worker, RUTHLESS, X[kept], y[kept], 9)
        results.append(worker.count(queries).counts)
        np.testing.assert_array_equal(results[-1].sum(axis=1), 9)
    moved = [np.abs(other - results[0]).sum(axis=1).max() for other in results[1:]]
    assert max(moved) == 2


def test_a_teacher_says_only_what_its_part_holds() -> None:
    X, y = private_data(60)
    worker = Worker(Teaching(KINDS[2:], 3, 0))
    worker.train(TrainingJob(0, (0, 1)), {0: (X[:30], np.where(y[:30] == 1, 2, y[:30])), 1: (X[30:], y[30:])})
    assert set(worker._teachers[0][1].predict(X)) <= {0, 2}


def test_jobs_cover_every_part_once_and_stack_what_stacks_well() -> None:
    kinds = recipes([*FAMILIES, TeacherFamily(name="network", params={"architecture": "cnn"})])
    assignment = assign_recipes(kinds, 8 * STACK)
    jobs = Teaching(kinds, 3, 0, assignment).jobs()
    assert sorted(part for job in jobs for part in job.parts) == list(range(8 * STACK))
    assert {len(job.parts) for job in jobs if job.recipe != 2} == {1}
    assert {len(job.parts) for job in jobs if job.recipe == 2} == {STACK}
    assert {len(job.parts) for job in Teaching(kinds, 3, 0, assignment).jobs(stacked=[3]) if job.recipe == 3} == {STACK}
    for job in jobs:
        assert {assignment[part] for part in job.parts} == {job.recipe}


def test_a_part_of_a_stack_trained_later_is_the_same() -> None:
    """After a crash only what is missing is trained; the other slots stay blank."""
    X, y = private_data()
    parts = split_into_parts(X, y, None, KEY, 5)
    job = TrainingJob(2, (0, 1, 2, 3, 4))
    data = {p: (X[parts[p]], y[parts[p]]) for p in job.parts}
    whole, later = Worker(Teaching(KINDS, 3, 0)), Worker(Teaching(KINDS, 3, 0))
    together = {t.part: t.payload for t in whole.train(job, data)}
    assert [t.payload for t in later.train(job, {3: data[3]})] == [together[3]]
    assert later.count(X).parts == (3,)


def test_a_restored_teacher_votes_as_before() -> None:
    X, y = private_data()
    first, second = Worker(Teaching(KINDS, 3, 0)), Worker(Teaching(KINDS, 3, 0))
    parts = split_into_parts(X, y, None, KEY, 6)
    assignment = assign_recipes(KINDS, 6)
    for job in Teaching(KINDS, 3, 0, assignment).jobs():
        for trained in first.train(job, {p: (X[parts[p]], y[parts[p]]) for p in job.parts}):
            second.restore(assignment[trained.part], trained.part, trained.payload)
    first.train(TrainingJob(0, (6,)), {6: (X[:3], np.full(3, 1))})
    second.restore(0, 6, first.train(TrainingJob(0, (6,)), {6: (X[:3], np.full(3, 1))})[0].payload)
    assert first.count(X).parts == second.count(X).parts == (0, 1, 2, 3, 4, 5, 6)
    np.testing.assert_array_equal(first.count(X).counts, second.count(X).counts)


def test_blocks_on_which_other_parts_voted_are_refused() -> None:
    one, other = (PartialCounts(parts, np.ones((2, 3), dtype=np.int64)) for parts in ((0, 1), (0, 2)))
    assert joined([one, one]).counts.shape == (4, 3)
    with pytest.raises(RunError, match="nothing was drawn"):
        joined([one, other])


class Squared:
    """A public transform."""

    def transform(self, X: np.ndarray) -> np.ndarray:
        return X**2


def test_votes_counted_in_blocks_and_by_features_worked_out_before_are_the_votes() -> None:
    X, y = private_data()
    kinds = [replace(kind, features=({"name": f"{__name__}.Squared", "params": {}},)) for kind in KINDS[:1]] + KINDS[1:]
    teaching = Teaching(kinds, 3, 0, assign_recipes(kinds, 6))
    worker = Worker(teaching)
    train_all(worker, kinds, X, y, 6)
    queries = np.random.default_rng(3).random((2001, 4, 4)).astype(np.float32)
    counts = worker.count(queries).counts
    assert counts.shape == (2001, 3)
    assert (counts.sum(axis=1) == 6).all()
    np.testing.assert_array_equal(counts[1990:], worker.count(queries[1990:]).counts)
    with_features = teaching.chains()
    assert with_features == [0]
    features = [worker.features(recipe, queries) for recipe in with_features]
    np.testing.assert_array_equal(worker.count(queries, with_features, *features).counts, counts)


def test_sum_refuses_anything_but_every_part_once() -> None:
    counts = np.ones((2, 3), dtype=np.int64)
    whole = [PartialCounts((0, 2), counts), PartialCounts((1,), counts)]
    np.testing.assert_array_equal(sum_counts(whole, 3), 2 * counts)
    for partials in (whole[:1], [*whole, whole[1]], [PartialCounts((0, 1, 3), counts)], []):
        with pytest.raises(RunError, match="nothing was drawn"):
            sum_counts(partials, 3)


class Refuses(BaseEstimator):
    """A classifier whose message quotes its data; gives in where its seed is even."""

    def __init__(self, always: bool = True, random_state: int | None = None) -> None:
        self.always, self.random_state = always, random_state

    def fit(self, X: np.ndarray, y: np.ndarray) -> Refuses:
        if self.always or self.random_state % 2:  # type: ignore[operator]
            raise ValueError(f"secret {X[0]}")
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X))


class CannotPredict(BaseEstimator):
    """Fits, answers about one example, and fails on more."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> CannotPredict:
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        if len(X) > 1:
            raise ValueError(f"secret {X[0]}")
        return np.zeros(len(X))


def test_a_failing_teacher_becomes_a_constant_and_its_message_stays_inside() -> None:
    X, y = private_data(10)
    worker = Worker(Teaching([Recipe(f"{__name__}.Refuses", {})], 3, 0))
    (trained,) = worker.train(TrainingJob(0, (4,)), {4: (X, np.full(10, 2) - (y > 1))})
    assert trained.failure == "ValueError"
    assert b"secret" not in trained.payload
    partial = worker.count(X)
    assert partial.parts == (4,)
    assert (partial.counts.sum(axis=0) > 0).sum() == 1


def test_a_second_try_has_another_seed() -> None:
    X, y = private_data(10)
    worker = Worker(Teaching([Recipe(f"{__name__}.Refuses", {"always": False})], 3, 0))
    trained = [worker.train(TrainingJob(0, (part,)), {part: (X, y)})[0] for part in range(40)]
    second_try = [t for t in trained if t.failure and t.payload.startswith(b"p")]
    assert second_try
    assert any(t.failure is None for t in trained)


def test_a_network_that_diverges_becomes_a_constant_and_leaves_its_stack_alone() -> None:
    X, y = private_data(60)
    kinds = KINDS[2:]
    good = {0: (X[:20], y[:20]), 2: (X[40:], y[40:])}
    broken = X[20:40].copy()
    broken[0] = np.nan
    alone, together = Worker(Teaching(kinds, 3, 0)), Worker(Teaching(kinds, 3, 0))
    before = {t.part: t.payload for t in alone.train(TrainingJob(0, (0, 1, 2)), good)}
    after = {t.part: t for t in together.train(TrainingJob(0, (0, 1, 2)), {**good, 1: (broken, y[20:40])})}
    assert after[1].failure == "Diverged"
    assert after[1].payload.startswith(b"c")
    assert {part: after[part].payload for part in before} == before


@pytest.mark.parametrize("label", [7, -2])
def test_a_record_that_a_whole_stack_fails_for_is_its_own_teachers_affair(label: int) -> None:
    """A label that is no class ends the training of all networks of a stack at once: here, that of one."""
    X, y = private_data(60)
    kinds = KINDS[2:]
    good = {0: (X[:20], y[:20]), 2: (X[40:], y[40:])}
    strange = y[20:40].copy()
    strange[0] = label
    alone, together = Worker(Teaching(kinds, 3, 0)), Worker(Teaching(kinds, 3, 0))
    before = {t.part: t.payload for t in alone.train(TrainingJob(0, (0, 1, 2)), good)}
    after = {t.part: t.payload for t in together.train(TrainingJob(0, (0, 1, 2)), {**good, 1: (X[20:40], strange)})}
    assert {part: after[part] for part in before} == before
    assert together.count(X).parts == (0, 1, 2)
    assert (together.count(X).counts.sum(axis=1) == 3).all()


def test_a_stand_in_votes_for_a_class() -> None:
    assert constant(np.array([5, 5, 5, -4, 1]), 3).predict(np.zeros((2, 1))).tolist() == [1, 1]


def test_a_teacher_that_cannot_answer_does_not_stop_the_vote() -> None:
    X, y = private_data(10)
    worker = Worker(Teaching([Recipe(f"{__name__}.CannotPredict", {})], 3, 0))
    worker.train(TrainingJob(0, (0,)), {0: (X, y)})
    assert worker.count(X).counts.tolist() == [[1, 0, 0]] * 10


class Fragile(BaseEstimator):
    """Can be stored, and not be read again."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Fragile:
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X))

    def __setstate__(self, state: dict) -> None:
        raise RuntimeError("secret")


def test_probe_says_what_is_wrong_with_a_family() -> None:
    X, _ = private_data()
    bad = recipes([TeacherFamily(name="sklearn.svm.SVC", params={"C": -1})])
    shown = Worker(Teaching(bad, 3, 0)).probe(0, private_data()[0], 30)
    assert "teachers.0.name = 'sklearn.svm.SVC'" in str(shown)
    assert "cannot be fitted" in str(Worker(Teaching([Recipe(f"{__name__}.Fragile", {})], 3, 0)).probe(0, X, 30))
    worker = Worker(Teaching(KINDS, 3, 0))
    for kind, stack in ((0, 1), (2, 1), (2, 5)):
        assert isinstance(worker.probe(kind, private_data()[0], 30, stack), float)
    assert worker.count(private_data()[0]).parts == ()
