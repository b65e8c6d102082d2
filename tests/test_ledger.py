"""The ledger: append only, one transaction, never over the limits, whatever is killed."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pate.errors import BudgetExceeded, RunError
from pate.ledger import Charge, Ledger, Limits

LIMITS = Limits(asked=100, answered=60, mechanism="GNMax(sigma=8.0)")


def test_answers_and_charges_come_back(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db", LIMITS)
    ledger.charge_and_store([b"a", b"b", b"c"], [1, -1, 2], Charge(3, 2))
    ledger.close()
    again = Ledger(tmp_path / "ledger.db", LIMITS)
    assert again.stored([b"a", b"b", b"c", b"d"]) == {b"a": 1, b"b": -1, b"c": 2}
    assert again.spent() == Charge(3, 2)
    assert again.room() == 58
    assert (tmp_path / "ledger.db").stat().st_mode & 0o077 == 0


def test_a_batch_over_the_limit_is_refused_whole(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db", LIMITS)
    with pytest.raises(BudgetExceeded, match="60 would"):
        ledger.check(Charge(61, 61))
    with pytest.raises(BudgetExceeded):
        ledger.charge_and_store([bytes([i]) for i in range(61)], [0] * 61, Charge(61, 61))
    assert ledger.spent() == Charge(0, 0)
    assert ledger.stored([b"\0"]) == {}


def test_a_second_answer_to_a_query_is_refused_with_its_charge(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger.db", LIMITS)
    ledger.charge_and_store([b"a"], [1], Charge(1, 1))
    with pytest.raises(RunError, match="nothing was released"):
        ledger.charge_and_store([b"b", b"a"], [2, 2], Charge(2, 2))
    assert ledger.stored([b"a", b"b"]) == {b"a": 1}
    assert ledger.spent() == Charge(1, 1)


@pytest.mark.parametrize(
    "statement", ["UPDATE answers SET label = 5", "DELETE FROM charges", "UPDATE limits SET asked = 9"]
)
def test_rows_cannot_be_changed_or_removed(tmp_path: Path, statement: str) -> None:
    ledger = Ledger(tmp_path / "ledger.db", LIMITS)
    ledger.charge_and_store([b"a"], [1], Charge(1, 1))
    ledger.close()
    with sqlite3.connect(tmp_path / "ledger.db") as db, pytest.raises(sqlite3.IntegrityError, match="append only"):
        db.execute(statement)


def test_other_limits_are_refused(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.db", LIMITS).close()
    with pytest.raises(RunError, match="fixed before the first query"):
        Ledger(tmp_path / "ledger.db", Limits(101, 60, LIMITS.mechanism))


def test_a_file_that_is_no_ledger_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"not a database" * 100)
    with pytest.raises(RunError, match=r"ledger\.db.*nothing was released"):
        Ledger(tmp_path / "ledger.db", LIMITS)


@given(batches=st.lists(st.lists(st.integers(-1, 9), min_size=1, max_size=20), max_size=12))
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_never_shrinks_and_never_exceeds_its_limits(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[int]]
) -> None:
    path = tmp_path_factory.mktemp("ledger") / "ledger.db"
    spent = Charge(0, 0)
    for number, labels in enumerate(batches):
        ledger = Ledger(path, LIMITS)
        cost = Charge(len(labels), sum(label >= 0 for label in labels))
        try:
            ledger.charge_and_store([bytes([number, i]) for i in range(len(labels))], labels, cost)
            spent = Charge(spent.asked + cost.asked, spent.answered + cost.answered)
        except BudgetExceeded:
            assert spent.asked + cost.asked > 100 or spent.answered + cost.answered > 60
        assert ledger.spent() == spent
        ledger.close()


_WRITER = """
import sys
from pathlib import Path
from pate.ledger import Charge, Ledger, Limits
ledger = Ledger(Path(sys.argv[1]), Limits(10**9, 10**9, "m"))
start = ledger.spent().asked
for i in range(start, start + 10**6, 5):
    ids = [b"%d" % (i + j) for j in range(5)]
    ledger.charge_and_store(ids, [i % 10] * 5, Charge(5, 5))
    print(i, flush=True)
"""


def test_kill_nine_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    for round_number in range(5):
        writer = subprocess.Popen([sys.executable, "-c", _WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        acknowledged = int(writer.stdout.readline())
        time.sleep(0.05 * (round_number + 1))
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read().split()
        writer.wait(timeout=30)
        if rest:
            acknowledged = int(rest[-1]) if rest[-1].isdigit() else acknowledged
        ledger = Ledger(path, Limits(10**9, 10**9, "m"))
        spent = ledger.spent()
        ledger.close()
        with sqlite3.connect(path) as db:
            answers = db.execute("SELECT COUNT(*) FROM answers").fetchone()[0]
        assert answers == spent.asked
        assert spent.asked >= acknowledged + 5
