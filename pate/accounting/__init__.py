"""What answers cost. Importable without ray and torch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

S = TypeVar("S")
T = TypeVar("T")


def map_on_all_cores(work: Callable[[S], T], items: Iterable[S]) -> list[T]:
    """work(item) for each item, in order; numpy lets the threads run side by side.

    BLAS is held to one thread meanwhile: its own threads would only wait for ours, at twenty times the cost.
    """
    with blas().limit(limits=1, user_api="blas"), ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        return list(pool.map(work, items))


@lru_cache(maxsize=1)
def blas() -> ThreadpoolController:
    """To limit the threads of matrix products: beside other work two threads are far slower than one."""
    return ThreadpoolController()
