"""How many threads numerical libraries use, in one place.

The networks, tables and trees here are small: with one thread per core every step waits for the slowest thread, and
OpenMP's threads keep the cores busy while they wait. Beside busy processes, a network student was 4 to 17 times
slower with two threads than with one (benchmarks/busy.py). One thread also makes results independent of the number of
cores. If OMP_NUM_THREADS is set (as Ray does for what it starts), it is obeyed. DP-SGD has large lots and DP-ERM large
matrices: they keep all cores.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_within: list[None] = []  # something, while `one_thread` holds


_CGROUPS = Path("/sys/fs/cgroup")


def usable_cpus() -> int:
    """CPUs that this process may use: those it is bound to, and no more than its container is given time for."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota()
    return bound if quota is None else max(1, min(bound, math.ceil(quota)))


def _quota() -> float | None:
    """How many CPUs' time a container has, by its control group of either version; None where nothing limits it."""
    for files in (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")):
        with suppress(OSError, ValueError, ZeroDivisionError):
            time, period = " ".join((_CGROUPS / name).read_text() for name in files).split()
            return int(time) / int(period) if time.isdigit() else None  # else it says max, or -1
    return None


def wait_without_burning() -> None:
    """OpenMP's threads sleep while they wait for each other. To be called before anything loads OpenMP."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@contextmanager
def one_thread() -> Iterator[None]:
    """Within, torch and OpenMP use one thread, or $OMP_NUM_THREADS; also where they are loaded in between.

    Within another one it does nothing: looking for libraries takes milliseconds, and records are seen one by one.
    """
    if _within:
        yield
        return
    from threadpoolctl import threadpool_limits

    wanted = os.environ.get("OMP_NUM_THREADS")
    loaded = sys.modules.get("torch")
    before = loaded.get_num_threads() if loaded else len(os.sched_getaffinity(0))
    os.environ["OMP_NUM_THREADS"] = wanted or "1"
    try:
        with threadpool_limits(_number(wanted), user_api="openmp"):
            _set_torch(_number(wanted))
            _within.append(None)
            yield
    finally:
        _within.clear()
        if wanted is None:
            os.environ.pop("OMP_NUM_THREADS", None)
            _set_torch(before)


def hold_to_threads(number: int = 1) -> None:
    """Torch, OpenMP and BLAS use so many threads from now on: for a process that shares the cores with others."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(number)
    hold_torch_to_threads(number)


def hold_torch_to_threads(number: int = 1) -> None:
    """Torch, if it is imported, uses so many threads from now on; repeat it after torch was imported: it is cheap."""
    _set_torch(number)


def _number(wanted: str | None) -> int:
    """OMP_NUM_THREADS may be a list, one number for each level of nesting."""
    first = (wanted or "1").partition(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else 1


def _set_torch(number: int) -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(number)
