"""The ledger: append only, one transaction, never over its limits, whatever is killed, and nothing changed unseen."""

from __future__ import annotations

import math
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from support.ledgers import LIMITS, check, opened, pay, tampered

from pate.accounting.composition import SAMPLER_SHARES
from pate.errors import BudgetExceeded, ConfigError, RunError
from pate.ledger import Charge, Ledger, Limits, SharedBudget, SharedLedger
from pate.ledger._chain import verify
from pate.ledger.ledger import DRAWS_PER_RUN, RUNS_SHARING
from pate.noise.integer import TV_ERROR_PER_DRAW


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


def test_other_limits_and_other_budgets_are_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with pytest.raises(RunError, match="fixed before the first query"):
        opened(tmp_path, limits=Limits(101, 60, LIMITS.mechanism))
    with pytest.raises(RunError, match="no shared budget"):
        opened(tmp_path, shared=SharedBudget(8.0, 5.0, 1e-5))


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


def test_a_locked_database_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


# Who changed it.


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


def test_a_closed_ledger_is_one_file(tmp_path: Path) -> None:
    ledger = opened(tmp_path)
    pay(ledger, [b"a"], [1])
    ledger.close()
    (tmp_path / "copy").mkdir()
    for name in ("ledger.db", "ledger.head"):
        shutil.copy(tmp_path / name, tmp_path / "copy" / name)
    assert opened(tmp_path / "copy").stored([b"a"]) == {b"a": 1}


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


# Several runs on the same data.


def test_runs_that_share_a_ledger_add_up_under_one_filter(tmp_path: Path) -> None:
    budget = SharedBudget(order=8.0, epsilon=3.0, delta=1e-5)
    shared = SharedLedger.create(tmp_path / "shared", budget)
    limits = Limits(100, 100, "m", rdp_asked=0.0, rdp_answered=budget.rdp / 50.5)
    first, second = (Ledger(shared.db, shared.key, shared.head, run, limits, budget) for run in ("one", "two"))
    pay(first, [b"%d" % i for i in range(30)], [1] * 30)
    assert first.room() == second.room() == 20
    with pytest.raises(BudgetExceeded, match="20 would"):
        pay(second, [b"%d" % i for i in range(21)], [1] * 21)
    pay(second, [b"%d" % i for i in range(20)], [1] * 20)
    assert first.room() == 0
    assert first.stored([b"0"]) == second.stored([b"0"]) == {b"0": 1}
    assert first.rdp_left() >= 0
    assert verify(shared.db, shared.key, shared.head) == 1 + 2 + 2


def test_the_filter_matches_dp_accountings_conversion() -> None:
    from dp_accounting.rdp import compute_epsilon

    shared = SharedBudget(order=8.0, epsilon=3.0, delta=1e-5)
    assert compute_epsilon([8.0], [shared.rdp], 1e-5 * (1 - SAMPLER_SHARES[0]))[0] == pytest.approx(3.0, rel=1e-12)


@pytest.mark.parametrize(("epsilon", "delta"), [(3.0, 1e-5), (12.0, 1e-7), (20.0, 1e-5)])
def test_the_joint_delta_covers_the_noise_that_all_runs_can_draw(epsilon: float, delta: float) -> None:
    """(ε, δ₀)-DP of ideal noise, and (1 + e^ε)·τ for each of 2⁵⁰ draws, come to δ at most."""
    shared = SharedBudget(order=8.0, epsilon=epsilon, delta=delta)
    log_left = (math.log1p(-1 / 8) - (epsilon - shared.rdp)) * 7 - math.log(8)  # δ₀ of the conversion
    sampler = (1 + math.exp(epsilon)) * RUNS_SHARING * DRAWS_PER_RUN * TV_ERROR_PER_DRAW
    assert math.exp(log_left) + sampler <= delta * (1 + 1e-12)


def test_a_joint_budget_that_no_sampler_covers_allows_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is left"):
        SharedLedger.create(tmp_path / "shared", SharedBudget(order=8.0, epsilon=60.0, delta=1e-5))


def test_a_shared_ledger_takes_no_more_runs_than_its_delta_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pate.ledger.ledger.RUNS_SHARING", 2)
    budget = SharedBudget(order=8.0, epsilon=3.0, delta=1e-5)
    shared = SharedLedger.create(tmp_path / "shared", budget)
    limits = Limits(100, 100, "m", rdp_asked=0.0, rdp_answered=0.01)
    for name in ("one", "two", "one"):
        Ledger(shared.db, shared.key, shared.head, name, limits, budget).close()
    with pytest.raises(RunError, match="2 runs share it"):
        Ledger(shared.db, shared.key, shared.head, "three", limits, budget)


class LedgerMachine(RuleBasedStateMachine):
    """Charges, crashes, reopening, asking again and asking too much, against a dictionary and two counters."""

    queries = Bundle("queries")

    @initialize(tmp=st.just(None))
    def begin(self, tmp: None) -> None:
        import tempfile

        self.folder = Path(tempfile.mkdtemp(prefix="pate-ledger-"))
        self.ledger = opened(self.folder)
        self.answers: dict[bytes, int] = {}
        self.asked = self.answered = 0

    @rule(target=queries, query=st.binary(min_size=1, max_size=2))
    def new_query(self, query: bytes) -> bytes:
        return query

    @rule(batch=st.lists(queries, min_size=1, max_size=30, unique=True), label=st.integers(-1, 9))
    def ask(self, batch: list[bytes], label: int) -> None:
        new = [query for query in batch if query not in self.ledger.stored(batch)]
        if not new:
            return
        fits = self.asked + len(new) <= 100 and self.answered + len(new) <= 60
        try:
            pay(self.ledger, new, [label] * len(new))
        except BudgetExceeded:
            assert not fits
            return
        assert fits
        self.answers |= dict.fromkeys(new, label)
        self.asked += len(new)
        self.answered += len(new) * (label >= 0)

    @rule(batch=st.lists(queries, min_size=1, max_size=5, unique=True))
    def crash_in_a_batch(self, batch: list[bytes]) -> None:
        new = [query for query in batch if query not in self.answers]
        if len(new) > self.ledger.room() or not new:
            return
        with pytest.raises(ZeroDivisionError), self.ledger.batch(len(new)):
            self.ledger.charge_and_store(new, [1] * len(new), Charge(len(new), len(new)))
            raise ZeroDivisionError

    @rule()
    def reopen(self) -> None:
        self.ledger.close()
        self.ledger = opened(self.folder)

    @rule()
    def lose_the_process(self) -> None:
        self.ledger = opened(self.folder)  # the old connection is simply dropped

    @invariant()
    def holds_what_was_paid_for(self) -> None:
        assert self.ledger.stored(list(self.answers)) == self.answers
        assert self.ledger.spent() == Charge(self.asked, self.answered)
        check(self.folder)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.ledger.close()
            shutil.rmtree(self.folder)


LedgerMachine.TestCase.settings = settings(max_examples=15, stateful_step_count=15, deadline=None)
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


def test_kill_nine_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    for round_number in range(5):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        acknowledged = int(writer.stdout.readline())
        time.sleep(0.05 * (round_number + 1))
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read().split("\n")[:-1]  # whole lines only
        writer.wait(timeout=30)
        acknowledged = int(rest[-1]) if rest else acknowledged
        ledger = opened(tmp_path, limits=Limits(10**9, 10**9, "m"))
        spent = ledger.spent()
        ledger.close()
        with sqlite3.connect(tmp_path / "ledger.db") as db:
            answers = db.execute("SELECT COUNT(*) FROM answers").fetchone()[0]
        assert answers == spent.asked >= acknowledged + 5
        check(tmp_path)


def test_verify_is_not_fooled_by_a_writer_at_work(tmp_path: Path) -> None:
    writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert writer.stdout is not None
        writer.stdout.readline()
        links = [check(tmp_path) for _ in range(60)]
    finally:
        writer.kill()
        writer.communicate(timeout=30)
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
