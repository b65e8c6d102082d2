"""How many threads numerical libraries use, in one place.

The networks, tables and trees here are small: with one thread per core every step waits for the slowest thread, and
OpenMP's threads keep the cores busy while they wait. Beside busy processes, a network student was 4 to 17 times
slower with two threads than with one (benchmarks/busy.py). One thread also makes results independent of the number of
cores. If OMP_NUM_THREADS is set, it is obeyed. DP-SGD has large lots and DP-ERM large matrices: they keep all cores.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_within: list[None] = []  # something, while `one_thread` holds


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


def hold_to_one_thread() -> None:
    """Torch, OpenMP and BLAS use one thread from now on: for a process that shares the cores with others like it."""
    from threadpoolctl import threadpool_limits

    threadpool_limits(1)
    hold_torch_to_one_thread()


def hold_torch_to_one_thread() -> None:
    """Torch, if it is imported, uses one thread from now on; repeat it after torch was imported, it costs nothing."""
    _set_torch(1)


def _number(wanted: str | None) -> int:
    """OMP_NUM_THREADS may be a list, one number for each level of nesting."""
    first = (wanted or "1").partition(",")[0].strip()
    return int(first) if first.isdigit() and int(first) > 0 else 1


def _set_torch(number: int) -> None:
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(number)
