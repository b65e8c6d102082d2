"""What the chain vouches for: every row, in one order, of one history, and that nobody goes back behind its anchor."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import pytest
from support.ledgers import KEY, LIMITS, check, opened, pay, tampered

from pate.errors import RunError
from pate.ledger import Charge, Ledger
from pate.ledger._chain import identity, verify
from pate.storage import _FileStorage


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
    pins = {"labels.npz": opened(two).head(), "student/student.json": pin}
    with pytest.raises(RunError, match=r"is not the ledger that student/student\.json was released from"):
        verify(two / "ledger.db", KEY, two / "ledger.head", pins)


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


@pytest.mark.parametrize(
    "statements",
    [
        ["UPDATE answers SET label = 7 WHERE query = x'61'"],
        ["UPDATE charges SET asked = 0 WHERE charge = 1"],
        ["UPDATE runs SET max_queries = 1000000"],
        ["UPDATE budget SET epsilon = 50"],
        ["DELETE FROM answers WHERE query = x'62'"],
        ["DELETE FROM answers WHERE charge = 1", "DELETE FROM charges WHERE charge = 1"],
        [
            "DELETE FROM answers WHERE charge = 3",
            "DELETE FROM charges WHERE charge = 3",
            "DELETE FROM chain WHERE link = 5",
        ],
        ["DELETE FROM chain WHERE link = 4"],
        ["INSERT INTO charges VALUES (9, 1, 1, 1, 0, 0.0, 'now', 1)"],
        ["INSERT INTO answers VALUES (1, x'7a', 3, 1)"],
        [
            "UPDATE answers SET charge = 99 WHERE charge = 1",
            "UPDATE answers SET charge = 1 WHERE charge = 2",
            "UPDATE answers SET charge = 2 WHERE charge = 99",
        ],
    ],
)
def test_a_changed_ledger_is_found(tmp_path: Path, statements: list[str]) -> None:
    ledger = opened(tmp_path)
    for query in (b"a", b"b", b"c"):
        pay(ledger, [query], [1])
    ledger.close()
    assert check(tmp_path) == 5
    tampered(tmp_path, *statements)
    for look in (check, opened):
        with pytest.raises(RunError, match=r"ledger\.db"):
            look(tmp_path)


def test_an_older_copy_of_the_file_is_found_and_not_used(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    pay(ledger, [b"a"], [1])
    ledger.close()
    shutil.copy(tmp_path / "ledger.db", tmp_path / "old.db")
    ledger = opened(tmp_path)
    pay(ledger, [b"b"], [1])
    ledger.close()
    (tmp_path / "old.db").rename(tmp_path / "ledger.db")
    for suffix in ("-wal", "-shm"):
        (tmp_path / f"ledger.db{suffix}").unlink(missing_ok=True)
    with pytest.raises(RunError, match="older"):
        check(tmp_path)
    with pytest.raises(RunError, match="older"):
        opened(tmp_path)


def test_a_ledger_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    pay(ledger, [b"a"], [1])
    ledger.close()
    (tmp_path / "ledger.db").unlink()
    with pytest.raises(RunError, match="not the ledger last written here"):
        opened(tmp_path)


def test_a_ledger_under_another_key_is_found(tmp_path: Path) -> None:
    pay(opened(tmp_path), [b"a"], [1])
    with pytest.raises(RunError, match="link 1"):
        verify(tmp_path / "ledger.db", b"j" * 32, tmp_path / "ledger.head")


def test_a_head_that_fell_behind_in_a_crash_catches_up(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    behind = (tmp_path / "ledger.head").read_text()
    pay(ledger, [b"a"], [1])
    ledger.close()
    (tmp_path / "ledger.head").write_text(behind)  # killed between the commit and the head
    assert opened(tmp_path).stored([b"a"]) == {b"a": 1}
    assert (tmp_path / "ledger.head").read_text() != behind
    assert check(tmp_path) == 3


# An anchor, and copies of a ledger that has one.


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


@pytest.mark.parametrize("ahead", [1, 2])
def test_of_two_copies_that_go_on_one_is_refused(ahead: int, two: tuple[Path, Path], anchor: str) -> None:
    """Whether it has another link where the anchor ends, or fell behind it and has none there."""
    first = anchored(two[0], anchor)
    for number in range(ahead):
        pay(first, [b"b%d" % number], [2])
    with pytest.raises(RunError, match="another copy"):
        anchored(two[1], anchor)
    pay(first, [b"c"], [3])


@pytest.mark.parametrize("ahead", [1, 2])
def test_of_two_copies_open_at_once_one_releases(ahead: int, two: tuple[Path, Path], anchor: str) -> None:
    first, second = (anchored(folder, anchor) for folder in two)
    told = {b"a": 1} | {b"b%d" % number: 2 for number in range(ahead)}
    for query in list(told)[1:]:
        pay(first, [query], [2])
    with pytest.raises(RunError, match=r"another copy .*nothing was released"):
        pay(second, [b"b0"], [7])
    pay(first, [b"c"], [3])
    first.close()
    told |= {b"c": 3}
    assert anchored(two[0], anchor).stored(list(told)) == told
    with pytest.raises(RunError, match="another copy"):
        anchored(two[1], anchor)


def test_an_anchor_that_overwrites_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two copies each would find its own link there."""

    def overwrites(self: _FileStorage, name: str, content: bytes) -> bool:
        self.write({name: content})
        return True

    monkeypatch.setattr(_FileStorage, "create", overwrites)
    with pytest.raises(RunError, match="overwrites what is there, so it is no anchor"):
        anchored(tmp_path, f"file://{tmp_path}/anchor")


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


def test_an_anchor_that_gets_shorter_releases_nothing(tmp_path: Path) -> None:
    ledger = anchored(tmp_path, tmp_path / "anchor")
    pay(ledger, [b"a"], [1])
    lines = (tmp_path / "anchor").read_text().splitlines(keepends=True)
    (tmp_path / "anchor").write_text(lines[0])
    with pytest.raises(RunError, match="shorter than it was; nothing was released"):
        pay(ledger, [b"b"], [1])


def test_a_line_of_an_anchor_that_cannot_be_read_is_no_line_less(tmp_path: Path) -> None:
    anchored(tmp_path, tmp_path / "anchor").close()
    with (tmp_path / "anchor").open("a") as file:
        file.write(json.dumps({"ledger": identity(KEY), "link": 3}) + "\n")
    with pytest.raises(RunError, match="the anchor is damaged"):
        anchored(tmp_path, tmp_path / "anchor")


def test_an_anchor_that_is_gone_is_missed(tmp_path: Path) -> None:
    ledger = anchored(tmp_path, tmp_path / "anchor")
    pay(ledger, [b"a"], [1])
    ledger.close()
    (tmp_path / "anchor").unlink()
    with pytest.raises(RunError, match="its anchor holds nothing of it"):
        anchored(tmp_path, tmp_path / "anchor")
    assert not (tmp_path / "anchor").exists()
