"""Nobody goes back behind what was released: edited, older and copied ledgers are found before anything is charged."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
from support import ledgers, stored_ledgers
from support.small_data import LOGISTIC, STORED_VOTES, digits_with_votes

from pate import pipeline
from pate.cli._look import verify
from pate.config import Config, parse_config
from pate.errors import RunError
from pate.ledger import Pin
from pate.ledger._stored import FOLDER
from pate.runs._run_ledger import Labels, anchor_of, ledger_opener, published_pins, read_labels, write_labels
from pate.runs.run import Run
from pate.storage import open_storage
from pate.voters import voters_of

REFUSED = r"is not the ledger that labels\.npz was released from"
data = cache(partial(digits_with_votes, 20))


def config() -> Config:
    budget = {"max_queries": 60, "sanitise": {"order": 6, "beta": 0.04}}  # which is released, and pinned, too
    content = {"n_teachers": 20, "mechanism": {"name": "gnmax", "sigma": 20}, "budget": budget}
    return parse_config(content | STORED_VOTES | {"student": LOGISTIC})


def run(out: Path | str, resume: bool = False, anchor: Path | str | None = None) -> list[int]:
    """The labels that a run published."""
    anchor = None if anchor is None else str(anchor)
    public, private = data()
    pipeline.run(config(), out, public=public, private=private, resume=resume, anchor=anchor, pages=False)
    published = read_labels(Path(str(out).removeprefix("file://")) / "labels.npz")
    assert published is not None
    return published.labels.tolist()


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`before`: a run that has released nothing yet. `after`: the same run, finished. `anchor`: its links."""
    folder = tmp_path_factory.mktemp("rollback")
    with Run.create(folder / "before", config(), resume=False) as directory:
        anchor = anchor_of(config(), directory, Path(), str(folder / "anchor"), print)
        ledger_opener(voters_of(config()), directory, anchor=anchor)().close()
    shutil.copytree(folder / "before", folder / "after")
    run(folder / "after", resume=True)
    return folder


@pytest.fixture(autouse=True)
def of_somebody_else(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known here of the runs that these are copies of."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def copies(runs: Path, tmp_path: Path) -> Path:
    """Copies to spoil, without an anchor."""
    for name in ("before", "after"):
        shutil.copytree(runs / name, tmp_path / name)
        (tmp_path / name / "private" / "anchor").write_text("none")
    return tmp_path


def ledger_of(source: Path, target: Path, *names: str) -> None:
    for name in ("ledger.db", "ledger.db-wal", "ledger.db-shm"):
        (target / name).unlink(missing_ok=True)
    for name in names:
        shutil.copy(source / name, target / name)


def charges_deleted(older: Path, out: Path) -> None:
    """Answers and charges are gone, the chain and its head are as they were."""
    ledgers.tampered(out, "DELETE FROM answers", "DELETE FROM charges")
    with sqlite3.connect(out / "ledger.db") as db:
        assert db.execute("SELECT COUNT(*) FROM chain").fetchone()[0] > 2


def older_without_head(older: Path, out: Path) -> None:
    ledger_of(older, out, "ledger.db")
    (out / "private" / "ledger.head").unlink()


def older_with_its_head(older: Path, out: Path) -> None:
    ledger_of(older, out, "ledger.db", "private/ledger.head")


def no_ledger(older: Path, out: Path) -> None:
    ledger_of(older, out)
    (out / "private" / "ledger.head").unlink()


def head_missing(older: Path, out: Path) -> None:
    (out / "private" / "ledger.head").unlink()


def older_and_labels_removed(older: Path, out: Path) -> None:
    """The student's card holds alone."""
    older_with_its_head(older, out)
    (out / "labels.npz").unlink()


def labels_edited(older: Path, out: Path) -> None:
    with np.load(out / "labels.npz") as archive:
        content = dict(archive)
    content["labels"][0] = (content["labels"][0] + 1) % 10
    np.savez(out / "labels.npz", **content)


def labels_without_pin(older: Path, out: Path) -> None:
    np.savez(out / "labels.npz", labels=np.zeros(60, dtype=int), rows=np.arange(60))


def card_without_pin(older: Path, out: Path) -> None:
    card = json.loads((out / "student" / "student.json").read_text())
    del card["ledger"]
    (out / "student" / "student.json").write_text(json.dumps(card))


def key_removed(older: Path, out: Path) -> None:
    (out / "private" / "key").unlink()


def trigger_added(older: Path, out: Path) -> None:
    """What would be charged from now on would be written down as nothing."""
    with sqlite3.connect(out / "ledger.db") as db:
        db.execute("CREATE TRIGGER helper AFTER INSERT ON runs BEGIN DELETE FROM charges; END")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (charges_deleted, "was changed, removed or moved"),
        (older_without_head, "is not the ledger that labels.npz was released from"),
        (older_with_its_head, "is not the ledger that labels.npz was released from"),
        (no_ledger, "ledger"),
        (head_missing, "ledger.head: is missing"),
        (older_and_labels_removed, "is not the ledger that student/student.json was released from"),
        (labels_without_pin, "labels.npz: is damaged"),
        (card_without_pin, "student.json: is damaged"),
        (key_removed, "key is gone"),
        (trigger_added, "other tables or triggers"),
    ],
)
def test_a_spoilt_run_neither_goes_on_nor_verifies(
    spoil: Callable[[Path, Path], None], words: str, copies: Path
) -> None:
    out = copies / "after"
    spoil(copies / "before", out)
    with pytest.raises(RunError, match=words):
        run(out, resume=True)
    with pytest.raises(RunError, match=words):
        verify(str(out))


def test_labels_that_are_not_the_stored_ones_are_refused(copies: Path) -> None:
    labels_edited(copies, copies / "after")
    with pytest.raises(RunError, match="differs from the answers in the ledger"):
        run(copies / "after", resume=True)


def test_a_finished_run_goes_on_and_stays_as_it_is(copies: Path) -> None:
    published = read_labels(copies / "after" / "labels.npz")
    assert published is not None
    before = (copies / "after" / "labels.npz").read_bytes()
    assert run(copies / "after", resume=True) == published.labels.tolist()
    assert (copies / "after" / "labels.npz").read_bytes() == before
    verify(str(copies / "after"))


def test_pins_tell_nothing_but_a_number_and_letters(runs: Path) -> None:
    card = json.loads((runs / "after" / "student" / "student.json").read_text())
    assert set(card["ledger"]) == {"link", "code"}
    assert card["ledger"]["code"].isalpha()
    pins = published_pins(runs / "after")
    assert pins["labels.npz"] == pins["student/student.json"]
    with sqlite3.connect(f"file:{runs / 'after' / 'ledger.db'}?mode=ro", uri=True) as db:
        last = db.execute("SELECT link, mac FROM chain ORDER BY link DESC LIMIT 1").fetchone()
    assert pins["labels.npz"] == last


def test_a_whole_run_rolled_back_is_found_by_its_anchor(runs: Path, tmp_path: Path) -> None:
    """Labels, student, ledger and head: all as they were before anything was released."""
    shutil.copytree(runs / "before", tmp_path / "run")
    shutil.copy(runs / "anchor", tmp_path / "anchor")
    (tmp_path / "run" / "private" / "anchor").write_text(str(tmp_path / "anchor"))
    with pytest.raises(RunError, match="rolled back, or another copy"):
        run(tmp_path / "run", resume=True, anchor=tmp_path / "anchor")
    with pytest.raises(RunError, match="is not the ledger that the anchor"):
        verify(str(tmp_path / "run"))
    with pytest.raises(RunError, match="begun with the anchor"):
        run(tmp_path / "run", resume=True, anchor=tmp_path / "other")


def test_an_anchor_that_is_gone_is_missed(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "after", tmp_path / "run")
    (tmp_path / "run" / "private" / "anchor").write_text(str(tmp_path / "gone"))
    with pytest.raises(RunError, match="anchor holds nothing of it"):
        run(tmp_path / "run", resume=True, anchor=tmp_path / "gone")
    assert not (tmp_path / "gone").exists()


# In storage.


def test_links_missing_at_the_end_in_storage_are_found(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    labels = run(url)
    verify(url)
    assert run(url, resume=True) == labels
    storage = open_storage(url)
    names = storage.names(FOLDER)
    kept = dict(storage.read_all(names))
    for left in (3, len(names) - 2):  # before any charge; before the owner who resumed and the labels' pin
        for name in names[left:]:
            storage.remove(name)
        with pytest.raises(RunError, match=r"is not the ledger that labels\.npz was released from"):
            verify(url)
        with pytest.raises(RunError, match=r"is not the ledger that labels\.npz was released from"):
            run(url, resume=True)
        assert storage.names(FOLDER) == names[:left]
        storage.write(kept)
    verify(url)


def test_a_stored_run_that_is_rolled_back_whole_is_found_by_its_anchor(tmp_path: Path) -> None:
    url, anchor = f"file://{tmp_path}/store", f"file://{tmp_path}/anchor"
    run(url, anchor=anchor)
    verify(url)
    storage = open_storage(url)
    for name in [*storage.names(FOLDER)[3:], "labels.npz", *storage.names("student"), *storage.names("plots")]:
        storage.remove(name)
    with pytest.raises(RunError, match="is not the ledger that the anchor"):
        verify(url)
    with pytest.raises(RunError, match="rolled back, or another copy"):
        run(url, resume=True)


# The ledger alone, of a run here and in storage: nothing is trained.


def publish(path: Path, pin: Pin) -> None:
    write_labels(path, Labels(np.array([1]), np.array([0]), pin), ("a", "b"))


def test_an_older_ledger_with_its_own_head_neither_goes_on_nor_verifies(tmp_path: Path) -> None:
    with Run.create(tmp_path / "run", config()) as run:
        kept = (run.ledger_file, run.ledger_head)
        ledger_opener(voters_of(config()), run)().close()
        for path in kept:
            shutil.copy(path, tmp_path / path.name)
        ledger = ledger_opener(voters_of(config()), run)()
        ledgers.pay(ledger, [b"a"], [1])
        publish(run.labels_file, ledger.head())
        ledger.close()
        verify(str(run.path))
        for path in kept:
            shutil.copy(tmp_path / path.name, path)
        with pytest.raises(RunError, match=REFUSED):
            ledger_opener(voters_of(config()), run)()
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
    with Run.create(tmp_path / "run", config()) as run:
        anchor = anchor_of(config(), run, Path(), str(tmp_path / "anchor"), print)
        ledger_opener(voters_of(config()), run, anchor=anchor)().close()
        verify(str(run.path))
        for path in (run.ledger_file, run.ledger_head):
            shutil.copy(path, tmp_path / path.name)
        ledger = ledger_opener(voters_of(config()), run, anchor=anchor)()
        ledgers.pay(ledger, [b"a"], [1])
        ledger.close()
        for path in (run.ledger_file, run.ledger_head):
            shutil.copy(tmp_path / path.name, path)
    with pytest.raises(RunError, match="is not the ledger that the anchor"):
        verify(str(tmp_path / "run"))
    with (
        Run.create(tmp_path / "run", config(), resume=True) as run,
        pytest.raises(RunError, match="rolled back, or another copy"),
    ):
        ledger_opener(voters_of(config()), run, anchor=anchor_of(config(), run, Path(), None, print))()
