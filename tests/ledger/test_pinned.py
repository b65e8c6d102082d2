"""What was published pins the ledger, of a run here and in storage: quick, with nothing trained."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from support import ledgers, stored_ledgers

from pate.cli._look import verify
from pate.config import parse_config
from pate.errors import RunError
from pate.ledger import Pin
from pate.ledger._stored import FOLDER
from pate.runs._run_ledger import Labels, anchor_of, ledger_opener, write_labels
from pate.runs.run import Run
from pate.storage import open_storage
from pate.voters import voters_of

CONFIG = parse_config(
    {
        "n_teachers": 20,
        "data": {"source": "digits"},
        "teachers": [{"name": "sklearn.svm.SVC"}],
        "mechanism": {"name": "gnmax", "sigma": 5},
        "student": {"name": "supervised"},
    }
)
VOTERS = voters_of(CONFIG)
REFUSED = r"is not the ledger that labels\.npz was released from"


def publish(path: Path, pin: Pin) -> None:
    write_labels(path, Labels(np.array([1]), np.array([0]), pin), ("a", "b"))


def test_an_older_ledger_with_its_own_head_neither_goes_on_nor_verifies(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", CONFIG) as run:
        kept = (run.ledger_file, run.ledger_head)
        ledger_opener(VOTERS, run)().close()
        for path in kept:
            shutil.copy(path, tmp_path / path.name)
        ledger = ledger_opener(VOTERS, run)()
        ledgers.pay(ledger, [b"a"], [1])
        publish(run.labels_file, ledger.head())
        ledger.close()
        verify(str(run.path))
        for path in kept:
            shutil.copy(tmp_path / path.name, path)
        with pytest.raises(RunError, match=REFUSED):
            ledger_opener(VOTERS, run)()
    with pytest.raises(RunError, match=REFUSED):
        verify(str(tmp_path / "run"))


def test_links_that_are_gone_from_storage_are_missed_by_verify(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    storage = open_storage(url)
    storage.create("private/key", stored_ledgers.KEY)
    ledger = stored_ledgers.machine(url, tmp_path / "machine")
    stored_ledgers.pay(ledger, 1, 1, 2)
    publish(tmp_path / "labels.npz", ledger.head())
    storage.write({"labels.npz": (tmp_path / "labels.npz").read_bytes()})
    verify(url)
    storage.remove(storage.names(FOLDER)[-1])
    with pytest.raises(RunError, match=REFUSED):
        verify(url)


def test_the_anchor_that_a_run_was_begun_with_is_asked_without_being_named(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", CONFIG) as run:
        anchor = anchor_of(CONFIG, run, Path(), str(tmp_path / "anchor"), print)
        ledger_opener(VOTERS, run, anchor=anchor)().close()
        verify(str(run.path))
        for path in (run.ledger_file, run.ledger_head):
            shutil.copy(path, tmp_path / path.name)
        ledger = ledger_opener(VOTERS, run, anchor=anchor)()
        ledgers.pay(ledger, [b"a"], [1])
        ledger.close()
        for path in (run.ledger_file, run.ledger_head):
            shutil.copy(tmp_path / path.name, path)
    with pytest.raises(RunError, match="is not the ledger that the anchor"):
        verify(str(tmp_path / "run"))
    with (
        Run.create(tmp_path / "run", CONFIG, resume=True) as run,
        pytest.raises(RunError, match="rolled back, or another copy"),
    ):
        ledger_opener(VOTERS, run, anchor=anchor_of(CONFIG, run, Path(), None, print))()
