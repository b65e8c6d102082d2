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
from support.ledgers import KEY, LIMITS, check, opened, pay, tampered
from support.small_data import LOGISTIC, STORED_VOTES, digits_with_votes

from pate import pipeline
from pate.cli._look import verify as verify_command
from pate.config import Config, parse_config
from pate.errors import RunError
from pate.ledger import Charge, Ledger
from pate.ledger._chain import identity
from pate.ledger._stored import FOLDER
from pate.runs._run_ledger import anchor_of, ledger_opener, published_pins, read_labels
from pate.runs.run import Run
from pate.storage import open_storage
from pate.voters import voters_of

data = cache(partial(digits_with_votes, 20))


def config() -> Config:
    content = {"n_teachers": 20, "mechanism": {"name": "gnmax", "sigma": 20}, "budget": {"max_queries": 60}}
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
    tampered(out, "DELETE FROM answers", "DELETE FROM charges")
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
        verify_command(str(out))


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
    verify_command(str(copies / "after"))


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
        verify_command(str(tmp_path / "run"))
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
    verify_command(url)
    assert run(url, resume=True) == labels
    storage = open_storage(url)
    names = storage.names(FOLDER)
    kept = dict(storage.read_all(names))
    for left in (3, len(names) - 2):  # before any charge; before the owner who resumed and the labels' pin
        for name in names[left:]:
            storage.remove(name)
        with pytest.raises(RunError, match=r"is not the ledger that labels\.npz was released from"):
            verify_command(url)
        with pytest.raises(RunError, match=r"is not the ledger that labels\.npz was released from"):
            run(url, resume=True)
        assert storage.names(FOLDER) == names[:left]
        storage.write(kept)
    verify_command(url)


def test_a_stored_run_that_is_rolled_back_whole_is_found_by_its_anchor(tmp_path: Path) -> None:
    url, anchor = f"file://{tmp_path}/store", f"file://{tmp_path}/anchor"
    run(url, anchor=anchor)
    verify_command(url)
    storage = open_storage(url)
    for name in [*storage.names(FOLDER)[3:], "labels.npz", *storage.names("student"), *storage.names("plots")]:
        storage.remove(name)
    with pytest.raises(RunError, match="is not the ledger that the anchor"):
        verify_command(url)
    with pytest.raises(RunError, match="rolled back, or another copy"):
        run(url, resume=True)


# Two copies of a ledger.


def anchored(folder: Path, anchor: Path | str) -> Ledger:
    return Ledger(folder / "ledger.db", KEY, folder / "ledger.head", "run", LIMITS, anchor=str(anchor))


@pytest.fixture(params=["file", "storage"])
def anchor(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "anchor") if request.param == "file" else f"file://{tmp_path}/anchor"


@pytest.fixture
def two(anchor: str, tmp_path: Path) -> tuple[Path, Path]:
    """A run that released one label, and a copy of it."""
    (tmp_path / "one").mkdir()
    ledger = anchored(tmp_path / "one", anchor)
    pay(ledger, [b"a"], [1])
    ledger.close()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    return tmp_path / "one", tmp_path / "two"


def test_of_two_copies_that_go_on_one_is_refused(two: tuple[Path, Path], anchor: str) -> None:
    first = anchored(two[0], anchor)
    pay(first, [b"b"], [2])
    with pytest.raises(RunError, match="another copy"):
        anchored(two[1], anchor)
    pay(first, [b"c"], [3])


def test_of_two_copies_open_at_once_one_releases(two: tuple[Path, Path], anchor: str) -> None:
    first, second = (anchored(folder, anchor) for folder in two)
    pay(first, [b"b"], [2])
    with pytest.raises(RunError, match=r"another copy .*nothing was released"):
        pay(second, [b"b"], [7])
    pay(first, [b"c"], [3])
    first.close()
    assert anchored(two[0], anchor).stored([b"a", b"b", b"c"]) == {b"a": 1, b"b": 2, b"c": 3}
    with pytest.raises(RunError, match="another copy"):
        anchored(two[1], anchor)


def test_an_anchor_is_no_farther_than_the_ledger_after_a_crash(two: tuple[Path, Path], tmp_path: Path) -> None:
    """Killed after the commit and before the anchor: the answer is paid for, and told by the next."""
    ledger = opened(two[0])  # commits and knows of no anchor
    pay(ledger, [b"b"], [2])
    ledger.close()
    again = anchored(two[0], tmp_path / "anchor" if (tmp_path / "anchor").is_file() else f"file://{tmp_path}/anchor")
    assert again.stored([b"b"]) == {b"b": 2}
    pay(again, [b"c"], [3])
    assert check(two[0]) == 5


def test_a_line_that_a_crash_tore_is_no_entry(tmp_path: Path) -> None:
    ledger = anchored(tmp_path, tmp_path / "anchor")
    pay(ledger, [b"a"], [1])
    ledger.close()
    with (tmp_path / "anchor").open("a") as file:
        file.write('{"ledger": "' + identity(KEY) + '", "link": 4, "ma')
    ledger = anchored(tmp_path, tmp_path / "anchor")
    pay(ledger, [b"b"], [2])
    ledger.close()
    lines = (tmp_path / "anchor").read_text().splitlines()
    assert [json.loads(line)["link"] for line in lines if line.endswith("}")] == [1, 2, 3, 4]
    assert anchored(tmp_path, tmp_path / "anchor").spent() == Charge(2, 2)
    (tmp_path / "anchor").write_text('{"ledger": {}}}\n')
    with pytest.raises(RunError, match="the anchor is damaged"):
        anchored(tmp_path, tmp_path / "anchor")
    assert (tmp_path / "anchor").stat().st_mode & 0o077 == 0


def test_one_file_anchors_several_ledgers(tmp_path: Path) -> None:
    for name, key in (("one", b"1" * 32), ("two", b"2" * 32)):
        (tmp_path / name).mkdir()
        places = (tmp_path / name / "ledger.db", key, tmp_path / name / "ledger.head")
        for query in (b"a", b"b"):
            ledger = Ledger(*places, "run", LIMITS, anchor=str(tmp_path / "anchor"))
            pay(ledger, [query], [1])
            ledger.close()


def test_an_anchor_that_cannot_be_written_releases_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="anchor cannot be opened"):
        anchored(tmp_path, tmp_path / "no" / "folder" / "anchor")
