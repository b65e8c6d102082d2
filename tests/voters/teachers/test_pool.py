"""The pool: every part once, deaths made up for, nothing hangs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from support import REPOSITORY
from support.teachers import KEY, KINDS, private_data, train_all

from pate.boundary import sum_counts
from pate.boundary._guard import WorkerLost
from pate.config import RaySettings
from pate.data.partition import split_into_parts
from pate.errors import RunError
from pate.teachers import Recipe, assign_recipes
from pate.voters.teachers._checkpoints import InMemory, TeacherFiles
from pate.voters.teachers._pool import Pool
from pate.voters.teachers._worker import Teaching, Worker

pytestmark = pytest.mark.usefixtures("local_ray")
N_PARTS = 9
_POOLS: list[Pool] = []
HERE = "voters.teachers.test_pool"  # as workers find it below the one folder that is importable there


def pool_of(
    kinds: list[Recipe],
    n_parts: int = N_PARTS,
    store: object = None,
    say: Callable[[str], object] = str,
    **settings: object,
) -> Pool:
    settings = {"workers": 2} | settings
    chosen = store or InMemory()
    ray_settings = RaySettings(**settings)  # type: ignore[arg-type]
    teaching = Teaching(kinds, 3, 0, assign_recipes(kinds, n_parts), [str(REPOSITORY / "tests")])
    pool = Pool(teaching, chosen, ray_settings, say)  # type: ignore[arg-type]
    _POOLS.append(pool)
    return pool


@pytest.fixture(autouse=True)
def _close_pools() -> Iterator[None]:
    yield
    while _POOLS:
        _POOLS.pop().close()


def train(pool: Pool, n_parts: int = N_PARTS, done: object = lambda _: None) -> None:
    X, y = private_data()
    parts = split_into_parts(X, y, None, KEY, n_parts)
    pool.train(lambda part: (X[parts[part]], y[parts[part]]), done)  # type: ignore[arg-type]


def votes(pool: Pool, n_parts: int = N_PARTS) -> np.ndarray:
    X, _ = private_data()
    return sum_counts(pool.voters(X), n_parts)


@pytest.fixture(scope="module")
def undisturbed() -> np.ndarray:
    X, y = private_data()
    worker = Worker(Teaching(KINDS, 3, 0))
    train_all(worker, KINDS, X, y, N_PARTS)
    return worker.count(X).counts


def test_pool_counts_what_one_worker_would(undisturbed: np.ndarray, tmp_path: Path) -> None:
    """And a second one, which takes over what the first has trained, but for what is gone or nobody wrote."""
    store = TeacherFiles(tmp_path, KEY)
    first = pool_of(KINDS, store=store)
    assert first.probe(private_data()[0], 15) > 0
    done: list[int] = []
    train(first, done=done.append)
    assert done == sorted(done)
    assert done[-1] == N_PARTS
    np.testing.assert_array_equal(votes(first), undisturbed)
    first.close()
    (tmp_path / "teachers" / "000003").write_bytes(b"not what was written")
    (tmp_path / "teachers" / "000004").unlink()
    written = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "teachers").iterdir()}
    pool = pool_of(KINDS, store=store)
    train(pool)
    np.testing.assert_array_equal(votes(pool), undisturbed)
    again = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "teachers").iterdir()}
    assert {name for name in again if again[name] != written.get(name)} == {"000003", "000004"}


class NotesWhatItSees:
    """A public transform that writes down every example it is given."""

    def __init__(self, file: str) -> None:
        self.file = file

    def transform(self, X: np.ndarray) -> np.ndarray:
        with open(self.file, "a") as file:
            file.writelines(f"{row.tobytes().hex()}\n" for row in np.ascontiguousarray(X))
        return X.reshape(len(X), -1)


def test_features_of_queries_are_worked_out_once_for_all_workers(tmp_path: Path) -> None:
    """And a worker that dies with some of them is a worker that is lost, for those who wait for them too."""
    seen = tmp_path / "seen"
    noting = ({"name": f"{HERE}.NotesWhatItSees", "params": {"file": str(seen)}},)
    kinds = [
        Recipe("sklearn.tree.DecisionTreeClassifier", {"max_depth": depth}, noting, key=f"teachers.{depth}")
        for depth in (1, 2)
    ]
    pool = pool_of(kinds)
    train(pool)
    X, _ = private_data()
    seen.unlink()
    queries = np.random.default_rng(0).random((4100, *X.shape[1:])).astype(X.dtype)
    counts = sum_counts(pool.voters(queries), N_PARTS)
    assert sorted(seen.read_text().split()) == sorted(row.tobytes().hex() for row in queries)
    assert (counts.sum(axis=1) == N_PARTS).all()
    os.kill(pool.pids()[0], signal.SIGKILL)
    with pytest.raises(WorkerLost):
        pool.voters(queries)


def test_a_ray_of_its_own_is_asked_for_no_more_than_it_has() -> None:
    pool = pool_of(KINDS, workers=None)  # as many as there is work for: nine
    assert pool.pending == 2


@pytest.mark.parametrize(
    "share", [pytest.param(0.1, marks=pytest.mark.slow), 0.5, pytest.param(0.9, marks=pytest.mark.slow)]
)
def test_a_worker_killed_in_training_costs_nothing_finished(
    share: float, undisturbed: np.ndarray, tmp_path: Path
) -> None:
    store = TeacherFiles(tmp_path, KEY)
    pool = pool_of(KINDS, store=store)
    killed: list[int] = []
    finished: dict[int, bytes] = {}

    def done(count: int) -> None:
        if count >= max(1, int(share * N_PARTS)) and not killed:
            pid = pool.pids()[0]
            killed.append(pid)
            finished.update({part: payload for part in range(N_PARTS) if (payload := store.load(part)) is not None})
            os.kill(pid, signal.SIGKILL)

    train(pool, done=done)
    pool.forget_dead()
    train(pool)
    assert killed
    for part, payload in finished.items():
        assert store.load(part) == payload
    np.testing.assert_array_equal(votes(pool), undisturbed)


def test_stored_teachers_that_cannot_be_read_are_trained_again() -> None:
    store = InMemory()
    for part in range(4):
        store.save(part, b"p not a pickle")
    pool = pool_of(KINDS[:1], 4, store)
    train(pool, 4)
    assert votes(pool, 4).sum(axis=1).tolist() == [4] * len(private_data()[0])


class Hangs(BaseEstimator):
    """Never ends for the records of part 2 (which it knows by their label), or takes its process down."""

    def __init__(self, deadly: bool = False) -> None:
        self.deadly = deadly

    def fit(self, X: np.ndarray, y: np.ndarray) -> Hangs:
        if X[0, 0] == 7:
            if self.deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(600)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X))


@pytest.mark.parametrize("deadly", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_record_that_hangs_or_kills_its_worker_costs_one_teacher(deadly: bool) -> None:
    store = InMemory()
    kinds = [Recipe(f"{HERE}.Hangs", {"deadly": deadly})]
    pool = pool_of(kinds, 5, store, teacher_timeout_seconds=4.0)
    pool.probe(private_data()[0], 10)
    X, y = np.zeros((6, 4), dtype=np.float32), np.array([0, 1, 2, 2, 2, 2])

    def part_data(part: int) -> tuple[np.ndarray, np.ndarray]:
        return (X + 7 if part == 2 else X), y

    pool.train(part_data, lambda _: None)
    assert store.failures == {2: "GivenUp"}
    np.testing.assert_array_equal(votes(pool, 5), [[4, 0, 1]] * len(private_data()[0]))


def test_resources_that_are_not_there_end_in_a_line() -> None:
    said: list[str] = []
    pool = pool_of(KINDS, gpus_per_worker=1, cpus_per_worker=3, worker_timeout_seconds=7, say=said.append)
    with pytest.raises(
        RunError,
        match=r"7 s \(ray.worker_timeout_seconds\).*3 CPUs and one with 1 GPU.*no node is big enough.*resume=True",
    ):
        pool.probe(private_data()[0], 10)
    assert any("waiting for a worker with 3 CPUs" in text and "of 2 CPUs" in text for text in said)


class SlowOnce(BaseEstimator):
    """Takes for ever where it is first asked to learn from part 2, as on a machine that limps; quick elsewhere."""

    def __init__(self, flag: str = "") -> None:
        self.flag = flag

    def fit(self, X: np.ndarray, y: np.ndarray) -> SlowOnce:
        if X[0, 0] == 7:
            try:
                Path(self.flag).touch(exist_ok=False)
                time.sleep(600)
            except FileExistsError:
                pass
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.zeros(len(X))


@pytest.mark.slow
def test_a_job_that_hangs_on_one_machine_is_also_given_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pate.voters.teachers._schedule.SLOW_SECONDS", 2.0)
    store = InMemory()
    pool = pool_of([Recipe(f"{HERE}.SlowOnce", {"flag": str(tmp_path / "flag")})], 5, store)
    X, y = np.zeros((6, 4), dtype=np.float32), np.array([0, 1, 2, 2, 2, 2])
    pool.train(lambda part: ((X + 7 if part == 2 else X), y), lambda _: None)
    assert (tmp_path / "flag").exists()
    assert store.failures == {}
    np.testing.assert_array_equal(votes(pool, 5), [[5, 0, 0]] * len(private_data()[0]))
