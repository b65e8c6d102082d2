"""The ledger: append only, one transaction, never over its limits, and on disk before anybody goes on."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.ledgers import KEY, LIMITS, check, opened, pay

from pate.errors import BudgetExceeded, RunError
from pate.ledger import Charge, Ledger, Limits, SharedBudget, SharedLedger, connect
from pate.ledger._chain import json_pin, verify
from pate.storage._files import KEY_BYTES, create_key, read_key, write_atomically


def test_answers_and_charges_come_back(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    pay(ledger, [b"a", b"b", b"c"], [1, -1, 2], unstable=1)
    ledger.close()
    again = opened(tmp_path)
    assert again.stored([b"a", b"b", b"c", b"d"]) == {b"a": 1, b"b": -1, b"c": 2}
    assert again.spent() == Charge(3, 2, 1)
    assert again.room() == 58
    assert check(tmp_path) == 3  # the budget, the run and the charge
    for path in tmp_path.iterdir():
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_batch_over_the_limit_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    entered = False
    with pytest.raises(BudgetExceeded, match="60 would"), ledger.batch(61):
        entered = True
    assert not entered
    assert ledger.spent() == Charge(0, 0)


def test_whatever_goes_wrong_in_a_batch_nothing_is_stored(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    with pytest.raises(KeyboardInterrupt), ledger.batch(1):
        ledger.charge_and_store([b"a"], [1], Charge(1, 1))
        raise KeyboardInterrupt
    assert ledger.stored([b"a"]) == {}
    assert ledger.spent() == Charge(0, 0)
    with pytest.raises(RuntimeError, match="batch"):
        ledger.charge_and_store([b"a"], [1], Charge(1, 1))


def test_a_second_answer_to_a_query_is_refused_with_its_charge(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    pay(ledger, [b"a"], [1])
    with pytest.raises(RunError, match="nothing was released"):
        pay(ledger, [b"b", b"a"], [2, 2])
    assert ledger.stored([b"a", b"b"]) == {b"a": 1}
    assert ledger.spent() == Charge(1, 1)


@pytest.mark.parametrize("table", ["budget", "runs", "charges", "answers", "chain"])
def test_rows_cannot_be_changed_or_removed(tmp_path: Path, table: str) -> None:
    pay(opened(tmp_path), [b"a"], [1])
    column = {"budget": "delta", "chain": "mac"}.get(table, "run")
    with sqlite3.connect(tmp_path / "ledger.db") as db:
        replace = f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}"
        for statement in (f"UPDATE {table} SET {column} = 5", f"DELETE FROM {table}", replace):
            with pytest.raises(sqlite3.IntegrityError, match="append only"):
                db.execute(statement)


OTHER_LIMITS = {
    "max_queries": 101,
    "max_answers": 59,
    "mechanism": "GNMax(sigma=1.0)",
    "rdp_asked": 0.1,
    "rdp_answered": 0.1,
}
OTHER_BUDGETS = {"order": 9.0, "epsilon": 3.5, "delta": 2e-5}
BUDGET = SharedBudget(order=8.0, epsilon=3.0, delta=1e-5)


def test_limits_and_joint_budgets_are_fixed_before_the_first_query(tmp_path: Path) -> None:
    """Each of their figures: a mechanism with less noise costs more, and so does a query whose price was lowered."""
    assert OTHER_LIMITS.keys() == {field.name for field in fields(Limits)}
    assert OTHER_BUDGETS.keys() == {field.name for field in fields(SharedBudget)}
    opened(tmp_path).close()
    for name, value in OTHER_LIMITS.items():
        with pytest.raises(RunError, match="limits are fixed before the first query"):
            opened(tmp_path, limits=replace(LIMITS, **{name: value}))
    with pytest.raises(RunError, match="was made for no shared budget"):
        opened(tmp_path, shared=BUDGET)
    shared = SharedLedger.create(tmp_path / "shared", BUDGET)
    others = [None, *(replace(BUDGET, **{name: value}) for name, value in OTHER_BUDGETS.items())]
    for other in others:
        with pytest.raises(RunError, match=r"was made for SharedBudget\(.*which cannot be changed"):
            Ledger(shared.db, shared.key, shared.head, "run", LIMITS, other)
    assert (check(tmp_path), verify(shared.db, shared.key, shared.head)) == (2, 1)  # nothing was entered


# What goes through it.


RUNS = {
    "one": Limits(100, 60, "m", rdp_asked=1 / 64, rdp_answered=1 / 32),
    "two": Limits(40, 30, "m", rdp_answered=1 / 16),
}


class LedgerMachine(RuleBasedStateMachine):
    """Charges, crashes, reopening, asking again and asking too much, by one run or by two that share a budget.

    Against dictionaries of what was told. Prices are powers of two, so that their sums are exact.
    """

    @initialize(shared=st.booleans())
    def begin(self, shared: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="pate-ledger-"))
        self.shared = SharedLedger.create(self.folder / "shared", BUDGET) if shared else None
        self.answers: dict[str, dict[bytes, int]] = {name: {} for name in (RUNS if shared else ["one"])}
        self.ledgers = {name: self.open(name) for name in self.answers}

    def open(self, name: str) -> Ledger:
        if self.shared is None:
            return opened(self.folder, name, RUNS[name])
        return Ledger(self.shared.db, self.shared.key, self.shared.head, name, RUNS[name], BUDGET)

    def charge(self, name: str) -> Charge:
        told = self.answers[name]
        return Charge(len(told), sum(label >= 0 for label in told.values()))

    def cost(self, name: str, charge: Charge) -> float:
        return charge.asked * RUNS[name].rdp_asked + charge.answered * RUNS[name].rdp_answered

    def fits(self, name: str, n: int) -> bool:
        """Whether n more are sure to fit: all of them may be answered, and each is asked and answered then."""
        spent, limits = self.charge(name), RUNS[name]
        if self.shared is not None:
            joint = sum(self.cost(one, self.charge(one)) for one in self.answers)
            if joint + self.cost(name, Charge(n, n)) > BUDGET.rdp:
                return False
        return spent.asked + n <= limits.max_queries and spent.answered + n <= limits.max_answers

    @rule(data=st.data(), numbers=st.lists(st.integers(0, 150), min_size=1, max_size=30, unique=True))
    def ask(self, data: st.DataObject, numbers: list[int]) -> None:
        name = data.draw(st.sampled_from(sorted(self.answers)))
        batch = [b"%d" % number for number in numbers]
        told = {query: label for query, label in self.answers[name].items() if query in batch}
        assert self.ledgers[name].stored(batch) == told
        new = [query for query in batch if query not in told]
        if not new:
            return
        labels = data.draw(st.lists(st.integers(-1, 3), min_size=len(new), max_size=len(new)))
        try:
            pay(self.ledgers[name], new, labels)
        except BudgetExceeded:
            assert not self.fits(name, len(new))
            return
        assert self.fits(name, len(new))
        self.answers[name] |= dict(zip(new, labels, strict=True))

    @rule(number=st.integers(151, 160))
    def crash_in_a_batch(self, number: int) -> None:
        ledger = self.ledgers["one"]
        if not ledger.room():
            return
        with pytest.raises(ZeroDivisionError), ledger.batch(1):
            ledger.charge_and_store([b"%d" % number], [1], Charge(1, 1))
            raise ZeroDivisionError

    @rule(closed=st.booleans())
    def reopen(self, closed: bool) -> None:
        """Closed, or the process is lost: then the old connection is simply dropped."""
        for name in self.answers:
            if closed:
                self.ledgers[name].close()
            self.ledgers[name] = self.open(name)

    @invariant()
    def holds_what_was_paid_for(self) -> None:
        for name, told in self.answers.items():
            ledger = self.ledgers[name]
            assert ledger.stored(list(told)) == told
            assert ledger.spent() == self.charge(name)
            assert not self.fits(name, ledger.room() + 1)
            assert not ledger.room() or self.fits(name, ledger.room())
        if self.shared is None:
            check(self.folder)
        else:
            left = BUDGET.rdp - sum(self.cost(name, self.charge(name)) for name in self.answers)
            assert self.ledgers["one"].rdp_left() == left >= 0
            verify(self.shared.db, self.shared.key, self.shared.head)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            for ledger in self.ledgers.values():
                ledger.close()
            shutil.rmtree(self.folder)


LedgerMachine.TestCase.settings = settings(
    max_examples=15,
    stateful_step_count=12,
    deadline=None,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a dozen steps need no shrinking, which takes minutes
)
TestLedgerMachine = LedgerMachine.TestCase


_WRITER = """
import sys
from pathlib import Path
from pate.ledger import Charge, Ledger, Limits
folder = Path(sys.argv[1])
ledger = Ledger(folder / "ledger.db", b"k" * 32, folder / "ledger.head", "run", Limits(10**9, 10**9, "m"))
start = ledger.spent().asked
for i in range(start, start + 10**6, 5):
    ids = [b"%d" % (i + j) for j in range(5)]
    with ledger.batch(5):
        ledger.charge_and_store(ids, [i % 10] * 5, Charge(5, 5))
    print(i, flush=True)
"""


def writer(folder: Path) -> subprocess.Popen[str]:
    """A process that stores batch after batch, and says so after each."""
    return subprocess.Popen([sys.executable, "-c", _WRITER, str(folder)], stdout=subprocess.PIPE, text=True)


def test_kill_nine_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    for batches in (1, 7, 30):
        process = writer(tmp_path)
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(batches)]
        os.kill(process.pid, signal.SIGKILL)
        told += process.stdout.read().split("\n")[:-1]  # whole lines only
        process.wait(timeout=30)
        ledger = opened(tmp_path, limits=Limits(10**9, 10**9, "m"))
        spent = ledger.spent()
        ledger.close()
        with sqlite3.connect(tmp_path / "ledger.db") as db:
            answers = db.execute("SELECT COUNT(*) FROM answers").fetchone()[0]
        assert answers == spent.asked >= int(told[-1]) + 5
        check(tmp_path)


def test_verify_is_not_fooled_by_a_writer_at_work(tmp_path: Path) -> None:
    process = writer(tmp_path)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        links = [check(tmp_path) for _ in range(40)]
        for _ in range(50):
            process.stdout.readline()
        links.append(check(tmp_path))
    finally:
        process.kill()
        process.communicate(timeout=30)
    assert links == sorted(links)
    assert links[-1] > links[0]


def test_a_clock_that_goes_back_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are written for people; order and limits come from row numbers and the chain."""
    from pate.ledger import ledger as module

    path, key, head, limits = tmp_path / "l.db", b"k" * 32, tmp_path / "head", Limits(3, 3, "m")
    for number, moment in enumerate(["2030-01-01T00:00:00+00:00", "1999-01-01T00:00:00+00:00", "1970-01-01T00:00:00"]):
        monkeypatch.setattr(module, "now", lambda moment=moment: moment)
        ledger = Ledger(path, key, head, "run", limits)
        with ledger.batch(1):
            ledger.charge_and_store([bytes([number]) * 16], [number], Charge(1, 1))
        assert ledger.spent().asked == number + 1
        ledger.close()
    assert verify(path, key, head) == 5
    ledger = Ledger(path, key, head, "run", limits)
    with pytest.raises(BudgetExceeded), ledger.batch(1):
        pass


# On disk.

FULL = 2  # SQLite's number for "a commit is on disk when it returns, whatever happens to the machine"


def test_every_commit_is_on_disk_when_it_returns(tmp_path: Path) -> None:
    db = connect(tmp_path / "ledger.db")
    assert db.execute("PRAGMA synchronous").fetchone() == (FULL,)
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.close()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files and folders that were brought to disk since, in order; a file that was renamed by its old name."""
    names: list[str] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        names.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    return names


def test_a_file_is_on_disk_before_it_has_its_name_and_the_name_is_too(tmp_path: Path, synced: list[str]) -> None:
    write_atomically(tmp_path / "head", lambda path: path.write_text("x"))
    assert synced == ["head.partial", tmp_path.name]


def test_head_and_anchor_are_on_disk_before_a_batch_ends(tmp_path: Path, synced: list[str]) -> None:
    places = (tmp_path / "ledger.db", KEY, tmp_path / "ledger.head")
    ledger = Ledger(*places, "run", LIMITS, anchor=str(tmp_path / "anchor"))
    synced.clear()
    pay(ledger, [b"a"], [1])
    assert synced == ["ledger.head.partial", tmp_path.name, "anchor"]
    assert (tmp_path / "ledger.head").read_text() == json_pin(ledger.head())


def test_the_head_moves_with_a_sanitised_figure_too(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    before = ledger.head()
    ledger.release_once(lambda: {"epsilon": 1.0})
    assert ledger.head() != before
    assert (tmp_path / "ledger.head").read_text() == json_pin(ledger.head())


def test_a_sanitised_figure_is_drawn_once(tmp_path: Path) -> None:
    drawn = iter([1.0, 2.0])
    for _ in range(2):
        assert opened(tmp_path).release_once(lambda: {"epsilon": next(drawn)}) == {"epsilon": 1.0}


def test_a_file_that_cannot_be_written_whole_stays_as_it_was(tmp_path: Path) -> None:
    def fails(path: Path) -> None:
        path.write_text("half")
        raise OSError

    write_atomically(tmp_path / "head", lambda path: path.write_text("whole"))
    with pytest.raises(OSError):
        write_atomically(tmp_path / "head", fails)
    assert (tmp_path / "head").read_text() == "whole"


def test_a_key_is_drawn_once_and_for_its_owner(tmp_path: Path) -> None:
    create_key(tmp_path / "key")
    first = read_key(tmp_path / "key")
    create_key(tmp_path / "key")
    assert read_key(tmp_path / "key") == first
    assert len(first) == KEY_BYTES
    assert (tmp_path / "key").stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


# What happens to the file.


def test_a_file_that_is_no_ledger_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database" * 100)
    with pytest.raises(RunError, match=r"ledger\.db.*nothing was released"):
        opened(tmp_path)


def test_a_truncated_file_is_one_clear_line(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    for i in range(50):
        pay(ledger, [b"%d" % i], [1])
    ledger.close()
    with (tmp_path / "ledger.db").open("r+b") as file:
        file.truncate(10_000)
    with pytest.raises(RunError, match=r"ledger\.db"):
        check(tmp_path)


@pytest.mark.parametrize("version", [0, 1, 3, 99])
def test_another_schema_is_refused(version: int, tmp_path: Path) -> None:
    opened(tmp_path).close()
    with sqlite3.connect(tmp_path / "ledger.db") as db:
        db.execute(f"PRAGMA user_version = {version}")
    for look in (opened, check):
        with pytest.raises(RunError, match=f"has schema {version}, .*use the pate it was made with"):
            look(tmp_path)


def test_a_locked_database_is_one_clear_line(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    ledger._db.execute("PRAGMA busy_timeout = 50")
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(RunError, match="locked; nothing was released"):
        pay(ledger, [b"a"], [1])
    other.execute("ROLLBACK")
    pay(ledger, [b"a"], [1])


def test_a_full_disk_stores_nothing(tmp_path: Path) -> None:
    """SQLite's own page limit stands in for the disk: the same error code, on the same path."""
    ledger = opened(tmp_path)
    pages = ledger._db.execute("PRAGMA page_count").fetchone()[0]
    ledger._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    before = 0
    with pytest.raises(RunError, match="full; nothing was released"):
        for i in range(60):
            pay(ledger, [b"%d" % i + b"x" * 1000], [1])
            before += 1
    assert ledger.spent().asked == before
    ledger.close()
    assert opened(tmp_path).spent().asked == before
    assert check(tmp_path) == before + 2


def test_a_closed_ledger_is_one_file(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    pay(ledger, [b"a"], [1])
    ledger.close()
    (tmp_path / "copy").mkdir()
    for name in ("ledger.db", "ledger.head"):
        shutil.copy(tmp_path / name, tmp_path / "copy" / name)
    assert opened(tmp_path / "copy").stored([b"a"]) == {b"a": 1}
