"""What the chain vouches for: every row, in one order, of one history."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from support.ledgers import KEY, LIMITS, check, opened, pay, tampered

from pate.errors import RunError
from pate.ledger import Ledger
from pate.ledger._chain import identity


def two_histories(folder: Path) -> tuple[Path, Path]:
    """A ledger and a copy of it that went on by itself: links 1 to 3 are the same, 4 and 5 are not."""
    (folder / "one").mkdir()
    ledger = opened(folder / "one")
    pay(ledger, [b"a"], [1])
    ledger.close()
    shutil.copytree(folder / "one", folder / "two")
    for name, label in (("one", 1), ("two", 2)):
        ledger = opened(folder / name)
        for query in (b"b", b"c"):
            pay(ledger, [query], [label])
        ledger.close()
    return folder / "one", folder / "two"


def test_rows_of_another_history_are_found(tmp_path: Path) -> None:
    """Link 4 with its charge and answer is the copy's: sound by itself, and the links after it are as they were."""
    one, two = two_histories(tmp_path)
    with sqlite3.connect(two / "ledger.db") as db:
        mac = db.execute("SELECT mac FROM chain WHERE link = 4").fetchone()[0].hex()
        at = db.execute("SELECT at FROM charges WHERE charge = 2").fetchone()[0]
    tampered(
        one,
        "UPDATE answers SET label = 2 WHERE query = x'62'",
        f"UPDATE charges SET at = '{at}' WHERE charge = 2",
        f"UPDATE chain SET mac = x'{mac}' WHERE link = 4",
    )
    with pytest.raises(RunError, match="link 5 of the chain"):
        check(one)


def test_a_pin_of_another_history_is_not_held(tmp_path: Path) -> None:
    """Both have a link 5: its code tells them apart."""
    one, two = two_histories(tmp_path)
    pin = opened(one).head()
    assert pin.link == 5
    with pytest.raises(RunError, match=r"is not the ledger that labels\.npz was released from"):
        Ledger(two / "ledger.db", KEY, two / "ledger.head", "run", LIMITS, pins={"labels.npz": pin})


def test_an_answer_without_a_charge_is_found(tmp_path: Path) -> None:
    pay(opened(tmp_path), [b"a"], [1])
    tampered(tmp_path, "INSERT INTO answers VALUES (1, x'7a', 3, 99)")
    with pytest.raises(RunError, match="answers that were never charged"):
        check(tmp_path)


def test_an_index_that_misses_answers_is_found(tmp_path: Path) -> None:
    """Every row is as it was written, and whoever looks for an answer by its charge does not find it."""
    ledger = opened(tmp_path)
    pay(ledger, [b"a"], [1])
    ledger.close()
    with sqlite3.connect(tmp_path / "ledger.db") as db:
        db.execute("CREATE TABLE empty (x)")
        db.execute("CREATE INDEX nobody ON empty (x)")
        db.execute("PRAGMA writable_schema = ON")
        db.execute(
            "UPDATE sqlite_master SET rootpage = (SELECT rootpage FROM sqlite_master WHERE name = 'nobody') "
            "WHERE name = 'answers_by_charge'"
        )
        db.execute("DELETE FROM sqlite_master WHERE name IN ('empty', 'nobody')")
    with pytest.raises(RunError, match="is damaged"):
        check(tmp_path)


def test_a_head_that_is_gone_is_missed_once_something_was_released(tmp_path: Path) -> None:
    """Before that there is nothing that an older copy could answer again."""
    head = tmp_path / "ledger.head"
    opened(tmp_path).close()
    head.unlink()
    pay(opened(tmp_path), [b"a"], [1])
    head.unlink()
    for look in (opened, check):
        with pytest.raises(RunError, match=r"ledger\.head: is missing"):
            look(tmp_path)


def test_a_trigger_that_somebody_added_is_found(tmp_path: Path) -> None:
    pay(opened(tmp_path), [b"a"], [1])
    with sqlite3.connect(tmp_path / "ledger.db") as db:
        db.execute("CREATE TRIGGER helper AFTER INSERT ON charges BEGIN SELECT 1; END")
    for look in (opened, check):
        with pytest.raises(RunError, match="other tables or triggers"):
            look(tmp_path)


def test_an_identity_tells_nothing_of_the_key() -> None:
    keys = [bytes([n]) * 32 for n in range(50)]
    names = [identity(key) for key in keys]
    assert len(set(names)) == len(keys)
    for key, name in zip(keys, names, strict=True):
        assert key[:4].hex() not in name


# An anchor.


def anchored(folder: Path) -> Ledger:
    return Ledger(folder / "ledger.db", KEY, folder / "ledger.head", "run", LIMITS, anchor=str(folder / "anchor"))


def test_an_anchor_that_gets_shorter_releases_nothing(tmp_path: Path) -> None:
    ledger = anchored(tmp_path)
    pay(ledger, [b"a"], [1])
    lines = (tmp_path / "anchor").read_text().splitlines(keepends=True)
    (tmp_path / "anchor").write_text(lines[0])
    with pytest.raises(RunError, match="shorter than it was; nothing was released"):
        pay(ledger, [b"b"], [1])


def test_a_line_of_an_anchor_that_cannot_be_read_is_no_line_less(tmp_path: Path) -> None:
    anchored(tmp_path).close()
    with (tmp_path / "anchor").open("a") as file:
        file.write(json.dumps({"ledger": identity(KEY), "link": 3}) + "\n")
    with pytest.raises(RunError, match="the anchor is damaged"):
        anchored(tmp_path)


def test_an_anchor_that_is_gone_is_missed(tmp_path: Path) -> None:
    ledger = anchored(tmp_path)
    pay(ledger, [b"a"], [1])
    ledger.close()
    (tmp_path / "anchor").unlink()
    with pytest.raises(RunError, match="its anchor holds nothing of it"):
        anchored(tmp_path)
    assert not (tmp_path / "anchor").exists()
