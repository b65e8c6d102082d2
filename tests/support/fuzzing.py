"""What every fuzzer shares: how many examples it tries, and what the program may do with hostile input.

`PATE_FUZZ=10000 pytest tests/fuzz` tries so many of each; without it, a few that fit into an ordinary run of the tests.
Fuzz tests have names of their own (`test_fuzz_config.py` beside `test_config.py`): pytest knows files by name alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings

from pate.errors import PateError
from support.command_line import in_process

MEGABYTE = 1 << 20
_PATIENCE = 120.0
"""Seconds of processor after which a program is taken for one that never ends."""


class Hangs(BaseException):
    """Hostile input keeps the program busy. No `Exception`, so that nothing that is tested can catch it."""


def fuzz(examples: int = 100) -> settings:
    """Hypothesis settings: the same examples in every run, `examples` of them unless PATE_FUZZ says how many."""
    return settings(
        max_examples=int(os.environ.get("PATE_FUZZ") or examples),
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def no_traceback(call: Callable[[], Any], max_bytes: int = 64 * MEGABYTE, patience: float = _PATIENCE) -> str | None:
    """Run `call`; None if it accepted its input, and what it said if it refused it as a user's mistake.

    A refusal is a PateError of one line, or the end of the program with status 2. Anything else that is raised goes on
    and fails the test, as do a hang (`patience` in seconds of processor, far beyond what any input takes) and more than
    `max_bytes` allocated at a time. What `call` imports counts as allocated, so call it once on good input before.
    """
    with _memory_limit(max_bytes), hang_guard(patience):
        said, status = _outcome(call)
    assert status in (0, 2), f"ended with status {status!r}"
    assert said is None or len(said.splitlines()) == 1, f"not one line: {said}"
    return said


def _outcome(call: Callable[[], Any]) -> tuple[str | None, Any]:
    """What was said and the status."""
    try:
        call()
    except PateError as error:
        return str(error), 2
    except SystemExit as end:
        return ("ended with status 2" if end.code == 2 else None), end.code or 0
    return None, 0


def command_survives(*arguments: object, max_bytes: int = 64 * MEGABYTE) -> str | None:
    """`no_traceback` for a command: what it said on standard error, in one line, where it refused."""
    said: list[str] = []

    def call() -> None:
        status, _, err = in_process(*arguments)
        said.append(err)
        raise SystemExit(status)

    if no_traceback(call, max_bytes) is None:
        return None
    assert len(said[0].splitlines()) == 1, f"not one line: {said[0]}"
    return said[0]


def allowed_for(path: Path, least: int = 64 * MEGABYTE) -> int:
    """The bytes that a program may allocate to read a file: ten times its size, and what any program needs."""
    size = path.stat().st_size if path.is_file() else 0
    return max(least, 10 * size)


@contextlib.contextmanager
def hang_guard(patience: float = _PATIENCE) -> Iterator[None]:
    """Ends what never ends. Of processor time; by the clock ten times as much, for what waits without any."""

    def hangs(*_: object) -> None:
        raise Hangs(f"more than {patience:g} s")

    limits = ((signal.SIGPROF, signal.ITIMER_PROF, patience), (signal.SIGALRM, signal.ITIMER_REAL, 10 * patience))
    before = [signal.signal(number, hangs) for number, _, _ in limits]
    for _, timer, most in limits:
        signal.setitimer(timer, most)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(limits, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)


@contextlib.contextmanager
def _memory_limit(most: int) -> Iterator[None]:
    """What Python and NumPy allocate, looked at afterwards: it cannot save a machine, only tell."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= most, f"{peak / MEGABYTE:.0f} MB allocated, {most / MEGABYTE:.0f} MB allowed"
