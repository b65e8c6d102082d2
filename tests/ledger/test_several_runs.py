"""Several runs, mechanisms and ensembles through one ledger: nobody spends, or gives out, what is another's."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.ledgers import KEY, LIMITS, opened, pay

from pate import pipeline
from pate.config import Config, parse_config
from pate.data._sources import load
from pate.errors import BudgetExceeded, RunError
from pate.ledger import Charge, Ledger, Limits, SharedBudget, SharedLedger
from pate.runs._run_ledger import ledger_opener, shared_ledger
from pate.runs.run import Run, Version
from pate.voters import voters_of

BUDGET = SharedBudget(order=8.0, epsilon=3.0, delta=1e-5)


@pytest.fixture
def shared(tmp_path: Path) -> SharedLedger:
    return SharedLedger.create(tmp_path / "shared", BUDGET)


def entered(shared: SharedLedger, run: str, limits: Limits) -> Ledger:
    return Ledger(shared.db, shared.key, shared.head, run, limits, BUDGET)


def test_answers_charges_and_limits_are_a_runs_own(shared: SharedLedger) -> None:
    first, second = (entered(shared, run, Limits(3, 3, run, 0.0, 0.001)) for run in ("one", "two"))
    pay(first, [b"a", b"b"], [1, 1])
    assert second.stored([b"a"]) == {}
    assert (first.spent(), second.spent()) == (Charge(2, 2), Charge(0, 0))
    pay(second, [b"a"], [2])
    assert (first.stored([b"a"]), second.stored([b"a"])) == ({b"a": 1}, {b"a": 2})
    assert (first.spent(), second.spent()) == (Charge(2, 2), Charge(1, 1))
    assert (first.room(), second.room()) == (1, 2)


def test_a_query_that_is_not_answered_costs_its_test(shared: SharedLedger) -> None:
    ledger = entered(shared, "run", Limits(100, 100, "m", rdp_asked=0.01, rdp_answered=0.1))
    before = ledger.rdp_left()
    pay(ledger, [b"a", b"b", b"c"], [-1, -1, 4])
    assert before - ledger.rdp_left() == pytest.approx(3 * 0.01 + 0.1)


def test_the_second_of_two_writers_waits_outside(shared: SharedLedger) -> None:
    """It must not look at the room before the first has spent of it."""
    first, second = (entered(shared, run, Limits(3, 3, "m", 0.0, 0.001)) for run in ("one", "two"))
    second._db.execute("PRAGMA busy_timeout = 20")
    inside = False
    with first.batch(1):
        with pytest.raises(RunError, match="locked; nothing was released"), second.batch(1):
            inside = True
        first.charge_and_store([b"a"], [1], Charge(1, 1))
    assert not inside
    pay(second, [b"a"], [2])


@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_key_that_group_or_others_can_read_is_refused(shared: SharedLedger, mode: int) -> None:
    (shared.folder / "key").chmod(mode)
    with pytest.raises(RunError, match="others can read it"):
        SharedLedger.at(shared.folder)


def test_limits_hold_for_their_mechanism(tmp_path: Path) -> None:
    opened(tmp_path).close()
    for other in ("GNMax(sigma=1.0)", "LNMax(scale=8.0)"):
        with pytest.raises(RunError, match="limits are fixed before the first query"):
            opened(tmp_path, limits=Limits(LIMITS.max_queries, LIMITS.max_answers, other))


def test_what_an_earlier_ensemble_spent_stays_spent(tmp_path: Path) -> None:
    pay(opened(tmp_path), [b"a", b"b"], [1, -1])
    later = Ledger(tmp_path / "ledger.db", KEY, tmp_path / "ledger.head", "run", LIMITS, ensemble=2)
    assert later.spent() == Charge(2, 1)
    assert later.room() == LIMITS.max_answers - 1
    assert later.stored([b"a", b"b"]) == {b"a": 1, b"b": -1}
    assert later.from_earlier_ensembles()
    assert not opened(tmp_path).from_earlier_ensembles()


# What a config makes of it.


def config(ledger: dict[str, str] | None = None) -> Config:
    content = {
        "n_teachers": 20,
        "data": {"source": "digits"},
        "teachers": [{"name": "sklearn.svm.SVC"}],
        "mechanism": {"name": "confident_gnmax", "threshold": 12, "sigma1": 40, "sigma2": 20},
        "budget": {"max_queries": 10, "ledger": ledger},
        "student": {"name": "supervised"},
        "backend": "local",
    }
    return parse_config(content)


def test_a_run_pays_for_tests_and_answers(shared: SharedLedger, tmp_path: Path) -> None:
    sharing = config({"path": "shared", "id": shared.id})
    mechanism = sharing.build_mechanism()
    with Run.create(tmp_path / "run", sharing) as directory:
        ledger = ledger_opener(voters_of(sharing), directory, tmp_path)()
    assert (ledger.limits.rdp_asked, ledger.limits.rdp_answered) == mechanism.rdp_per_query(BUDGET.order)
    assert ledger.limits.rdp_asked > 0
    with pytest.raises(RunError, match=f"is the ledger {shared.id}, not ledger-00"):
        shared_ledger(config({"path": "shared", "id": "ledger-00"}), tmp_path / "run", tmp_path)


def test_new_answers_come_from_the_ensemble_there_is(tmp_path: Path) -> None:
    own = config()
    with Run.create(tmp_path / "run", own) as directory:
        ledger_opener(voters_of(own), directory)().close()
        Version(version=3).store(directory)
        assert ledger_opener(voters_of(own), directory)().ensemble == 3


def test_a_joint_ledger_that_is_not_there_is_missed_before_anything_is_made(tmp_path: Path) -> None:
    sharing = config({"path": "nowhere", "id": "ledger-00"})
    untrainable = {"estimator": "sklearn.linear_model.LogisticRegression", "params": {"penalty": "l1"}}
    # what is tried later would be told first
    sharing = sharing.model_copy(update={"student": sharing.student.model_copy(update={"params": untrainable})})
    public, records = load(sharing.data, None, tmp_path)
    with pytest.raises(RunError, match="there is no shared ledger"):
        pipeline.run(sharing, tmp_path / "run", public=public, private=records, config_dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_fits_nobody_is_trained(shared: SharedLedger, tmp_path: Path) -> None:
    """Another run has used the joint budget up; there is neither a teacher nor a student in this one's directory."""
    other = entered(shared, "other", Limits(1, 1, "m", 0.0, BUDGET.rdp))
    pay(other, [b"a"], [1])
    sharing = config({"path": "shared", "id": shared.id})
    public, records = load(sharing.data, None, tmp_path)
    with pytest.raises(BudgetExceeded, match="other runs on the same data have used it up"):
        pipeline.run(sharing, tmp_path / "run", public=public, private=records, config_dir=tmp_path, pages=False)
    assert not (tmp_path / "run" / "private" / "votes.npz").exists()
    assert not (tmp_path / "run" / "private" / "teachers").exists()
