"""The guard that the fuzzers rely on notices what it is there for."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from support.fuzzing import MEGABYTE, Hangs, command_survives, no_traceback

from pate.errors import DataError


def _raises(error: BaseException) -> None:
    raise error


def test_success_and_refusals_pass() -> None:
    assert no_traceback(lambda: None) is None
    assert no_traceback(lambda: sys.exit(0)) is None
    assert no_traceback(lambda: _raises(DataError("votes.npy: no"))) == "votes.npy: no"
    assert no_traceback(lambda: sys.exit(2)) == "ended with status 2"


@pytest.mark.parametrize("error", [ValueError("no"), RecursionError(), MemoryError(), KeyError(3)])
def test_any_other_error_fails(error: Exception) -> None:
    with pytest.raises(type(error)):
        no_traceback(lambda: _raises(error))


class _TwoLines(DataError):
    def __str__(self) -> str:
        return "one\ntwo"


def test_other_statuses_and_several_lines_fail() -> None:
    with pytest.raises(AssertionError, match="status 1"):
        no_traceback(lambda: sys.exit(1))
    with pytest.raises(AssertionError, match="not one line"):
        no_traceback(lambda: _raises(_TwoLines("whatever")))


def _busy() -> None:
    while True:
        try:
            sum(range(1000))
        except Exception:  # as a program might that goes on whatever happens
            continue


def test_a_hang_fails() -> None:
    with pytest.raises(Hangs):
        no_traceback(_busy, patience=0.05)


def test_a_large_allocation_fails() -> None:
    with pytest.raises(AssertionError, match="8 MB allocated"):
        no_traceback(lambda: np.zeros(8 * MEGABYTE, dtype=np.uint8), max_bytes=4 * MEGABYTE)


def test_a_command_says_one_line() -> None:
    said = command_survives("plan", "nowhere.yaml")
    assert said is not None
    assert "nowhere.yaml" in said
    assert command_survives("--version") is None
