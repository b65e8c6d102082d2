"""Threads of numerical libraries, in fresh processes that were told nothing by the environment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import REPOSITORY

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
from pate.networks.threads import one_thread
with one_thread():
    Looks().fit(X, y)
import torch
seen.discard(1)
seen.add(("after", torch.get_num_threads() == len(os.sched_getaffinity(0)), os.environ.get("OMP_NUM_THREADS")))
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


@several
def test_whoever_sets_a_number_gets_it() -> None:
    assert seen_by(_STUDENT, OMP_NUM_THREADS="2") == "{2}"


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

    from pate.networks.threads import one_thread

    looks: list[object] = []
    real = threadpoolctl.threadpool_limits
    monkeypatch.setattr(threadpoolctl, "threadpool_limits", lambda *a, **k: looks.append(a) or real(*a, **k))
    for _ in range(2):
        with one_thread(), one_thread():
            pass
    assert len(looks) == 2


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
    from pate.networks import threads

    for name, content in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{content}\n")
    monkeypatch.setattr(threads, "_CGROUPS", tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert threads.usable_cpus() == cpus


def test_a_student_is_tried_with_the_threads_that_it_will_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the time that is told would be that of other threads."""
    from pate import trying
    from pate.networks import threads

    within: list[bool] = []
    monkeypatch.setattr(trying, "try_teachers", lambda *_: None)
    monkeypatch.setattr(trying, "try_student", lambda *_: within.append(bool(threads._within)))
    monkeypatch.setattr(trying, "student_seconds", lambda *_: within.append(bool(threads._within)) or 1.0)
    config, data, mechanism = (
        SimpleNamespace(nonprivate=None, voters="neighbours"),
        None,
        SimpleNamespace(may_decline=True),
    )
    assert trying.try_everything(config, data, mechanism, 1.0, pages=False) == 1.0  # type: ignore[arg-type]
    assert within == [True, True]
