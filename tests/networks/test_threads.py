"""Threads of numerical libraries: how many a student, a teacher and a user's own process have."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from sklearn.base import BaseEstimator
from support import REPOSITORY
from threadpoolctl import threadpool_limits

from pate.networks._process import one_thread, waiting_threads
from pate.teachers import Recipe
from pate.voters.teachers._checkpoints import InMemory
from pate.voters.teachers._worker import Teaching
from pate.voters.teachers.ensemble import Local

_COUNT = """import os, sys, numpy as np
from threadpoolctl import threadpool_info
seen = set()
def look():
    import torch
    seen.update(pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "openmp")
    seen.add(torch.get_num_threads())
class Looks:
    def fit(self, X, y):
        import sklearn.cluster  # loads OpenMP
        look()
        return self
    def predict(self, X):
        return np.zeros(len(X))
X, y = np.zeros((20, 8, 8), dtype=np.float32), np.arange(20) % 2
"""
_STUDENT = """
from pate.students import build_student
student = build_student("mixmatch", {"steps": 2, "batch_size": 4, "channels": 2, "hidden": 4}, 0)
student.fit(X, y, X, progress=lambda _: look())
"""
_ELSEWHERE = """
from pate.networks._process import one_thread
with one_thread():
    Looks().fit(X, y)
import torch
seen.discard(1)
numbers = {pool["num_threads"] for pool in threadpool_info()} | {torch.get_num_threads()}
seen.add(("after", numbers == {len(os.sched_getaffinity(0))}, os.environ.get("OMP_NUM_THREADS")))
"""


def seen_by(code: str, **settings: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    shown = subprocess.run(
        [sys.executable, "-c", _COUNT + code + "\nprint(seen)"],
        env=environment | {"PYTHONPATH": str(REPOSITORY)} | settings,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert shown.returncode == 0, shown.stderr
    return shown.stdout.strip()


several = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: nothing to choose")


@several
def test_a_network_student_trains_with_one_thread_and_afterwards_all_is_as_before() -> None:
    """Torch was imported for the student: what comes later finds it so."""
    assert seen_by(_STUDENT + "\nprint(seen)" + _ELSEWHERE).splitlines() == ["{1}", "{('after', True, None)}"]


@pytest.mark.parametrize(("number", "obeys", "threads"), [(None, True, 1), ("2", True, 2), ("2", False, 1)])
def test_whoever_sets_a_number_gets_it_but_for_teachers(
    number: str | None, obeys: bool, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A teacher votes the same wherever it is trained."""
    import torch

    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if number is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", number)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with one_thread(obey_environment=obeys):
            assert torch.get_num_threads() == threads
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


@several
def test_afterwards_all_is_as_before_where_torch_was_imported_within() -> None:
    assert seen_by(_ELSEWHERE) == "{('after', True, None)}"


def test_threads_that_wait_sleep_in_the_program() -> None:
    code = """
import atexit
from pate.cli import main
atexit.register(lambda: print(os.environ["OMP_WAIT_POLICY"]))
sys.argv = ["pate", "--version"]
main()
"""
    assert seen_by(code).splitlines()[-1] == "PASSIVE"


def test_within_another_one_it_looks_for_no_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    import threadpoolctl

    looks: list[object] = []
    real = threadpoolctl.ThreadpoolController
    monkeypatch.setattr(threadpoolctl, "ThreadpoolController", lambda: looks.append(1) or real())
    with one_thread():
        outer = len(looks)
        with one_thread():
            pass
        assert len(looks) == outer


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, 8),
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "150000 100000"}, 2),
        ({"cpu.max": "20000 100000"}, 1),
        ({"cpu.max": "6400000 100000"}, 8),
        ({"cpu.max": "nonsense"}, 8),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
    ],
    ids=str,
)
def test_cpus_are_those_that_may_be_used(
    files: dict[str, str], cpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 64 CPUs the process is bound to eight, and its container may have time for fewer."""
    from pate.networks import _process as threads

    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    monkeypatch.setattr(threads, "_CGROUPS", tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert threads.usable_cpus() == cpus


def test_a_student_is_tried_with_the_threads_that_it_will_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the time that is told would be that of other threads."""
    from pate.config import load_config
    from pate.networks import _process as threads
    from pate.preflight import _student as student

    within: list[bool] = []
    monkeypatch.setattr(student, "try_student", lambda *_: within.append(bool(threads._held)))
    monkeypatch.setattr(student, "student_seconds", lambda *_: within.append(bool(threads._held)) or 1.0)
    context = SimpleNamespace(config=load_config(), public=None, student_seconds=0.0)
    student.check(context)  # type: ignore[arg-type]
    assert context.student_seconds == 1.0
    assert within == [True] * 2


_LIBRARY = """
import warnings
warnings.simplefilter("ignore")
from pate import PATEClassifier, run
from pate.students.mixmatch import MixMatch
from threadpoolctl import threadpool_info
def state():
    found = {pool["filepath"]: pool["num_threads"] for pool in threadpool_info()}
    if "torch" in sys.modules:
        found["torch"] = sys.modules["torch"].get_num_threads()
    return found
within = []
train = MixMatch._train
def look(self, *given):
    import torch
    spinning = [pool["num_threads"] for pool in threadpool_info() if pool["filepath"] in before]
    within.append((os.environ.get("OMP_WAIT_POLICY"), torch.get_num_threads(), max(spinning, default=1)))
    return train(self, *given)
MixMatch._train = look
X = np.random.default_rng(0).normal(size=(60, 3))
student = {"name": "mixmatch", "params": {"steps": 2, "batch_size": 4, "hidden": 4}}
def fit():
    PATEClassifier(n_teachers=3, epsilon=50, max_queries=8, classes=[0, 1], student=student).fit(
        X[:40], (X[:40, 0] > 0).astype(int), X_public=X[40:]
    )
def environment():
    return {name: value for name, value in os.environ.items() if not name.startswith("TORCH")}  # torch sets its own
before, usual = state(), environment()
fit()
after = state()
assert environment() == usual
assert {path: number for path, number in after.items() if path in before} == before
assert set(after.values()) == {len(os.sched_getaffinity(0))}, after
fit()
assert state() == after
assert within and set(within) == {("PASSIVE", 1, 1)}, within
"""


@several
@pytest.mark.parametrize(
    "first",
    [pytest.param("", marks=pytest.mark.slow), "import torch, sklearn.cluster"],
    ids=["loaded by the fit", "loaded before"],
)
def test_a_fit_lets_no_threads_spin_and_leaves_the_process_as_it_was(first: str) -> None:
    settings = {name: value for name, value in os.environ.items() if name in ("OMP_WAIT_POLICY", "OMP_NUM_THREADS")}
    code = "\n".join(f"os.environ.pop({name!r}, None)" for name in settings)
    seen_by(f"{code}\n{first}\n{_LIBRARY}")


_WAITING = """
from pate.networks._process import waiting_threads
def threads():
    look = {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "openmp"}
    return look | {sys.modules["torch"].get_num_threads()}
with waiting_threads():
    with waiting_threads():
        import torch
    seen.add(("loaded within", threads() == usual))
seen.add(("afterwards", os.environ.get("OMP_WAIT_POLICY")))
with waiting_threads():
    seen.add(("again", threads() == usual))
"""
_USUAL = "usual = {len(os.sched_getaffinity(0))}\n"


@pytest.mark.slow
@several
def test_what_spins_has_one_thread_within_and_what_is_loaded_within_or_has_its_users_word_keeps_them() -> None:
    def without_policy(code: str) -> str:
        return seen_by('os.environ.pop("OMP_WAIT_POLICY", None)\n' + _USUAL + code)

    shown = without_policy(_WAITING)
    assert "('loaded within', True)" in shown
    assert "('again', True)" in shown
    assert "('afterwards', None)" in shown
    assert "('loaded within', False)" in without_policy("import torch\n" + _WAITING)
    said = seen_by(_USUAL + "import torch\n" + _WAITING, OMP_WAIT_POLICY="passive")
    assert "('loaded within', True)" in said
    assert "('afterwards', 'passive')" in said


def test_a_teacher_in_this_process_has_one_thread_whatever_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from threadpoolctl import threadpool_info

    seen: set[int] = set()

    class Looks(BaseEstimator):
        def fit(self, X: np.ndarray, y: np.ndarray) -> Looks:
            seen.update(pool["num_threads"] for pool in threadpool_info())
            return self

        def predict(self, X: np.ndarray) -> np.ndarray:
            return np.zeros(len(X))

    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    teaching = Teaching([Recipe("looks.Looks", {}, prototype=Looks())], 2, 0, (0,))
    X, y = np.zeros((20, 3), dtype=np.float32), np.arange(20) % 2
    with threadpool_limits(2):
        Local(teaching, InMemory()).train(lambda part: (X, y), lambda _: None)
    assert seen == {1}


def test_threads_of_two_users_at_once_are_given_back() -> None:
    """The first to come may be the first to go."""
    import torch

    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with waiting_threads(), one_thread():
            entered.set()
            leave.wait()

    before = torch.get_num_threads(), dict(os.environ)
    thread = threading.Thread(target=other)
    thread.start()
    entered.wait()
    with waiting_threads(), one_thread():
        leave.set()
        thread.join()
    assert (torch.get_num_threads(), dict(os.environ)) == before
