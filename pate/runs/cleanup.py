"""A start that failed leaves nothing behind that would be in the way of the next."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from pate.errors import PateError
from pate.runs.anchoring import forget_anchor
from pate.runs.files import CELLS, FEATURES, TEACHERS, VOTES, RunFiles

if TYPE_CHECKING:
    from pate.runs.run import Run


@contextmanager
def remove_empty_run(run: Run) -> Iterator[None]:
    """Remove a run that was begun this moment if it ends in a mistake of the user and nothing was trained, counted or
    charged. One that is resumed, is to be resumed by what the error says, is in storage or was interrupted stays as it
    is. Within the run's own lock.
    """
    try:
        yield
    except PateError as error:
        stays = run.resumed or "resume" in error.arguments or run.storage is not None
        if not stays and not _worth_keeping(run):
            forget_anchor(run)
            shutil.rmtree(run.path, ignore_errors=True)
        raise


def _worth_keeping(run: RunFiles) -> bool:
    """Whether anything was paid for, or took time; in doubt yes."""
    if run.labels_file.exists() or (run.private / VOTES).exists():
        return True
    if any(
        (run.private / name).exists() and any((run.private / name).iterdir()) for name in (CELLS, FEATURES, TEACHERS)
    ):
        return True
    if not run.ledger_file.exists():
        return False
    try:
        with closing(sqlite3.connect(f"{run.ledger_file.resolve().as_uri()}?mode=ro", uri=True)) as ledger:
            return any(ledger.execute(f"SELECT 1 FROM {table} LIMIT 1").fetchone() for table in ("charges", "answers"))
    except sqlite3.Error:
        return True
