"""Nobody hears teachers, workers and actors: what they print is dropped, what they raise is told by its kind."""

from __future__ import annotations

import os
import sys
import traceback
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator

from pate.boundary._aggregator import RemoteAggregator
from pate.errors import RunError
from pate.teachers import Recipe
from pate.voters.teachers._checkpoints import InMemory, TeacherFiles
from pate.voters.teachers._worker import RemotePart, Teaching, Worker
from pate.voters.teachers.ensemble import Local

SECRET = "canary 0.8675309"


class Prints(BaseEstimator):
    """Tells what it sees, as it learns and as it votes."""

    def fit(self, X: np.ndarray, y: np.ndarray) -> Prints:
        print(SECRET)
        self.classes_ = np.unique(y)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        print(SECRET, file=sys.stderr)
        os.write(1, SECRET.encode())
        return np.full(len(X), self.classes_[0])


def test_teachers_in_this_process_are_not_heard(capfd: pytest.CaptureFixture[str]) -> None:
    records = np.zeros((4, 2), dtype=np.float32), np.array([0, 1, 0, 1])
    local = Local(Teaching([Recipe(f"{__name__}.Prints", {})], 2, 0, (0, 0)), InMemory())
    local.train(lambda part: records, lambda n: None)
    assert capfd.readouterr() == ("", "")
    assert local.voters(records[0])[0].counts.tolist() == [[2, 0]] * 4
    assert capfd.readouterr() == ("", "")
    Prints().fit(*records).predict(records[0])  # as it would be heard
    assert "".join(capfd.readouterr()).count(SECRET) == 3


def speak_as_a_worker() -> None:
    Worker(Teaching([Recipe(f"{__name__}.Prints", {})], 2, 0), own_process=True)
    for stream in (1, 2):
        os.write(stream, SECRET.encode())


def test_a_worker_with_a_process_of_its_own_is_never_heard(capfd: pytest.CaptureFixture[str]) -> None:
    process = get_context("fork").Process(target=speak_as_a_worker)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert capfd.readouterr() == ("", "")


def test_trained_teachers_are_for_their_owner(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        TeacherFiles(tmp_path, b"k" * 32).save(3, b"what it learned", failure="ValueError")
    finally:
        os.umask(umask)
    assert {path.stat().st_mode & 0o077 for path in tmp_path.rglob("*")} == {0}


def failing_actor(*methods: str) -> Any:
    """An actor's handle whose calls end as Ray ends those that raise something it cannot have been prepared for."""
    from ray.exceptions import RayTaskError

    def remote(*_: Any) -> None:
        raise RayTaskError(SECRET, SECRET, ValueError(SECRET))

    return SimpleNamespace(**{name: SimpleNamespace(remote=remote) for name in methods})


def test_what_an_actor_raises_is_told_by_its_kind() -> None:
    remote = RemoteAggregator.__new__(RemoteAggregator)
    remote._actor = failing_actor("room")
    reader = RemotePart((failing_actor("part"),), 0)
    for call, words in ((remote.room, "the aggregator failed"), (reader.fetch, "private shards cannot be read")):
        with pytest.raises(RunError, match=words) as caught:
            call()
        assert "canary" not in "".join(traceback.format_exception(caught.value))
