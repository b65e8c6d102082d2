"""What numerical libraries share in a process: how many threads they use, and the global random generators.

The networks, tables and trees here are small: with one thread per core every step waits for the slowest thread, and
OpenMP's threads keep the cores busy while they wait. Beside busy processes, a network student was 4 to 17 times
slower with two threads that spin than with one, and a network on a table hundreds of times (benchmarks/threads.py).
Threads that sleep while they wait cost a network student twice the processor time of one thread, and were slower on
cores that were free. So students and the model without privacy have one thread, or $OMP_NUM_THREADS (as Ray sets it
for what it starts), and results do not depend on the number of cores. DP-SGD has large lots and DP-ERM large matrices:
they keep all cores, with threads that sleep. Teachers have one thread whatever the environment says, so that they vote
the same wherever they are trained.
"""

from __future__ import annotations

import math
import os
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import numpy as np

_POLICY = "OMP_WAIT_POLICY"
_NUMBER = "OMP_NUM_THREADS"
_CGROUPS = Path("/sys/fs/cgroup")

_held: list[int] = []  # the number of threads that `one_thread` holds, innermost last
_lock = threading.Lock()
_inside = 0  # how many `waiting_threads` hold
_undo: list[Callable[[], None]] = []  # what the first of them changed
_asleep: set[str] = set()  # files of OpenMP libraries that were loaded while the policy was to sleep


def usable_cpus() -> int:
    """CPUs that this process may use: those it is bound to, and no more than its container is given time for."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):  # of either version of cgroups
        with suppress(OSError, ValueError, ZeroDivisionError):
            time, period = " ".join((_CGROUPS / name).read_text() for name in files).split()
            quota = int(time) / int(period) if time.isdigit() else math.inf  # else it says max, or -1
            return math.ceil(min(_bound_cpus(), max(1.0, quota)))
    return _bound_cpus()


def _bound_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def use_passive_threads() -> None:
    """OpenMP's threads sleep while they wait for each other, in a process of our own: before anything loads OpenMP."""
    os.environ.setdefault(_POLICY, "PASSIVE")


@contextmanager
def waiting_threads() -> Iterator[None]:
    """Within, threads sleep while they wait for each other; afterwards the user's process is as it was.

    OpenMP reads its policy when it is loaded. What is loaded within has threads that sleep. What was loaded before
    without `OMP_WAIT_POLICY=PASSIVE` has threads that spin, and uses one of them within.
    """
    global _inside
    with _lock:
        if _inside == 0:
            _undo.append(_with_threads_asleep())
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0:
                _undo.pop()()


def _with_threads_asleep() -> Callable[[], None]:
    """Set the policy, and one thread for libraries whose threads spin; returns what undoes both."""
    before = os.environ.get(_POLICY)
    loaded = [library for library in _libraries() if library.user_api == "openmp"]
    if (before or "").upper() == "PASSIVE":
        _asleep.update(library.filepath for library in loaded)
    spinning = {library.filepath: library.num_threads for library in loaded if library.filepath not in _asleep}
    torch_threads = _torch_threads() if any("torch" in Path(path).parts for path in spinning) else None
    for library in loaded:
        if library.filepath in spinning:
            library.set_num_threads(1)
    if torch_threads is not None:
        limit_torch_threads(1)
    os.environ[_POLICY] = before or "PASSIVE"

    def undo() -> None:
        if before is None:
            os.environ.pop(_POLICY, None)
        for library in _libraries():
            if library.filepath in spinning:
                library.set_num_threads(spinning[library.filepath])
            elif library.user_api == "openmp" and (before or "PASSIVE").upper() == "PASSIVE":
                _asleep.add(library.filepath)
        if torch_threads is not None:
            limit_torch_threads(torch_threads)

    return undo


@contextmanager
def one_thread(obey_environment: bool = True) -> Iterator[None]:
    """Within, torch, OpenMP and BLAS use one thread, or $OMP_NUM_THREADS; also where they are loaded in between.

    With `obey_environment` False it is one thread in any case. Within another one of as few threads it does nothing:
    looking for libraries takes milliseconds, and records are seen one by one.
    """
    with _lock:
        wanted = os.environ.get(_NUMBER)
        number = _number(wanted) if obey_environment else 1
        held = not _held or _held[-1] > number
        undo = _with_threads(number) if held else None
    try:
        yield
    finally:
        if undo is not None:
            with _lock:
                undo()


def _with_threads(number: int) -> Callable[[], None]:
    """Set the number of threads, also for what is loaded later; returns what undoes it."""
    wanted, torch_before = os.environ.get(_NUMBER), _torch_threads()
    before = {}
    for library in _libraries():
        before[library.filepath] = library.num_threads
        library.set_num_threads(number)
    limit_torch_threads(number)
    os.environ[_NUMBER] = str(number) if wanted is None or _number(wanted) != number else wanted
    _held.append(number)

    def undo() -> None:
        _held.pop()
        if wanted is None:
            os.environ.pop(_NUMBER, None)
        else:
            os.environ[_NUMBER] = wanted
        for library in _libraries():
            library.set_num_threads(before.get(library.filepath) or _usual(library))
        limit_torch_threads(torch_before or _usual())

    return undo


def limit_threads(number: int = 1) -> None:
    """Torch, OpenMP and BLAS use so many threads from now on: for a process that shares the cores with others."""
    for library in _libraries():
        library.set_num_threads(number)
    limit_torch_threads(number)


def limit_torch_threads(number: int = 1) -> None:
    """Torch, if it is imported, uses so many threads from now on; repeat it after torch was imported: it is cheap."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(number)


def _libraries() -> list[Any]:
    """OpenMP and BLAS, as they are loaded now; each can say and set its number of threads."""
    from threadpoolctl import ThreadpoolController

    found: list[Any] = ThreadpoolController().lib_controllers
    return found


def _usual(library: Any = None) -> int:
    """How many threads torch, or a library, would have, had it been loaded outside."""
    blas = library is not None and library.internal_api == "openblas"
    wanted = (os.environ.get("OPENBLAS_NUM_THREADS") if blas else None) or os.environ.get(_NUMBER)
    return _number(wanted) if wanted else _bound_cpus()


def _number(wanted: str | None) -> int:
    """OMP_NUM_THREADS may be a list, one number for each level of nesting."""
    first = (wanted or "1").partition(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else 1


def _torch_threads() -> int | None:
    """None where torch is not imported."""
    return sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None


_NUMPY_SEEDS = 2**32


def seed_globally(seed: int) -> None:
    """Set all of them; torch's only where it is loaded."""
    random.seed(seed)
    np.random.seed(seed % _NUMPY_SEEDS)  # noqa: NPY002
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


@contextmanager
def seeded_globally(seed: int) -> Iterator[None]:
    """Seed the global generators within; afterwards they are as they were, so that nothing else depends on the seed."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    torch: Any = sys.modules.get("torch")
    initialised = torch is not None and torch.cuda.is_initialized()
    devices = range(torch.cuda.device_count()) if initialised else ()
    try:
        with nullcontext() if torch is None else torch.random.fork_rng(devices=devices):
            seed_globally(seed)
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
