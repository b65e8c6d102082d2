"""What crosses the trust boundary when something goes wrong inside it: this package's own words, or the kind of error.

A message of another package could quote a record. Ray keeps the text of errors, and what its workers print, in places
that are outside the boundary (a job's log, the dashboard, files of the session); so text is replaced, and printing
is ended, in the process where private data is handled.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import wraps
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import ParamSpec, TypeVar

from pate.errors import PateError, RunError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)


class Failed(RunError):
    """Something inside the boundary failed in a way that nobody foresaw; what it said stays there."""


class WorkerLost(RunError):
    """A teacher worker died while it was asked for votes."""


def error_kind(error: BaseException) -> str:
    """An error without its text: its class and, for an error of the operating system, what its number means."""
    name = type(error).__name__
    if isinstance(error, OSError) and isinstance(error.errno, int):
        return f"{name}: {os.strerror(error.errno)}"
    return name


def error_place(error: BaseException) -> str:
    """Where in this package an error came from: the innermost of its own lines in the traceback.

    >>> error_place(ValueError())
    'pate'
    """
    ours = [(frame, line) for frame, line in walk_tb(error.__traceback__) if _is_ours(frame)]
    if not ours:
        return "pate"
    frame, line = ours[-1]
    return f"{frame.f_globals['__name__']}, {Path(frame.f_code.co_filename).name}:{line}"


def is_pate_module(module: str) -> bool:
    """Whether a module is this package's.

    >>> is_pate_module("pate.ledger"), is_pate_module("sklearn.svm"), is_pate_module("pateous")
    (True, False, False)
    """
    return module.partition(".")[0] == __name__.partition(".")[0]


def raised_by_pate(error: BaseException) -> bool:
    """Whether the text of an error is this package's own: a line of this package raised it."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    return bool(frames) and _is_ours(frames[-1])


def guarded(what: str, then: str = "", **named: object) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function whose errors may cross: those for users that are worded by us, all others as `Failed`, by kind.

    Neither has a cause or a context, which would be shown with it. `then` is what the user can do, and may name
    arguments, given by name, as the text of a `PateError` does.
    """

    def guard(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*arguments: P.args, **options: P.kwargs) -> R:
            try:
                return function(*arguments, **options)
            except Exception as error:
                known = isinstance(error, PateError) and raised_by_pate(error)
                crossing = error if known else Failed(f"{what} failed ({error_kind(error)}){then}", **named)
            crossing.__context__ = None
            raise crossing from None

        return call

    return guard


def guarded_class(what: str, then: str = "", **named: object) -> Callable[[C], C]:
    """Apply `guarded` to every public method of a class, inherited ones included."""

    def guard(cls: C) -> C:
        for name, method in inspect.getmembers(cls, inspect.isfunction):
            if not name.startswith("_"):
                setattr(cls, name, guarded(what, then, **named)(method))
        return cls

    return guard


def silence() -> None:
    """Nothing that this process prints from now on is kept, whoever prints it: Python, a library, a thread."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


@contextmanager
def silenced() -> Iterator[None]:
    """Silence standard output and error within a block, a notebook's streams included."""
    _flush()
    kept = [(stream, os.dup(stream)) for stream in (1, 2)]
    silence()
    try:
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    finally:
        _flush()
        for stream, copy in kept:
            os.dup2(copy, stream)
            os.close(copy)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _is_ours(frame: FrameType) -> bool:
    return is_pate_module(str(frame.f_globals.get("__name__", "")))
