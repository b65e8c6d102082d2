"""`pate …` as people type it."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
import warnings
from typing import Any, NamedTuple

from support import REPOSITORY

PATE = [sys.executable, "-m", "pate.cli"]
SMALL = ["--set", "n_teachers=20", "--set", "budget.max_queries=300", "--set", "mechanism.sigma=20"]
SMALL += ["--set", "teachers=[{name: sklearn.svm.SVC, params: {C: 10}}]"]
SMALL += ["--set", "student={name: supervised, params: {estimator: sklearn.linear_model.LogisticRegression}}"]
SMALL += ["--set", "ray.workers=1"]
TINY = ["--set", "n_teachers=10", "--set", "budget.max_queries=40", "--set", "mechanism.sigma=5"]
TINY += ["--set", "nonprivate=null", "--set", "teachers=[{name: sklearn.naive_bayes.GaussianNB}]"]
TINY += ["--set", "student={name: supervised, params: {estimator: sklearn.svm.SVC}}"]


class Ended(NamedTuple):
    """A command that has ended, with the names of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def pate(*arguments: str, timeout: float = 240) -> subprocess.CompletedProcess[str]:
    """`pate …` in a process of its own."""
    return subprocess.run([*PATE, *arguments], capture_output=True, text=True, timeout=timeout, cwd=REPOSITORY)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def in_process(*arguments: object, terminal: bool = False) -> Ended:
    """`pate …` in this process, which has loaded everything: a second instead of ten; at a terminal, or into pipes."""
    from pate import cli

    out, err = (_Terminal(), _Terminal()) if terminal else (io.StringIO(), io.StringIO())
    before, sys.argv = sys.argv, ["pate", *map(str, arguments)]
    status: Any = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
            cli.main()
    except SystemExit as end:
        status = end.code or 0
    finally:
        sys.argv = before
    return Ended(status, out.getvalue(), err.getvalue())
