"""A ledger that runs share: made once, whole or not at all, found by its identity, and a joint budget that holds."""

from __future__ import annotations

import ctypes
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.ledgers import KEY, LIMITS, opened, pay

from pate import pipeline
from pate.accounting.composition import SAMPLER_SHARES, RdpGuarantee
from pate.config import Config, parse_config
from pate.data._sources import load
from pate.errors import BudgetExceeded, ConfigError, PateError, RunError
from pate.ledger import Charge, Ledger, Limits, SharedBudget, SharedLedger
from pate.ledger._chain import verify
from pate.ledger.ledger import DRAWS_PER_RUN, RUNS_SHARING
from pate.noise.integer import TV_ERROR_PER_DRAW
from pate.runs._run_ledger import ledger_opener, shared_ledger
from pate.runs.run import Run, Version
from pate.voters import voters_of

BUDGET = SharedBudget(order=8.0, epsilon=3.0, delta=1e-5)
AT_ONCE = 5


@pytest.fixture
def shared(tmp_path: Path) -> SharedLedger:
    return SharedLedger.create(tmp_path / "shared", BUDGET)


def entered(shared: SharedLedger, run: str, limits: Limits) -> Ledger:
    return Ledger(shared.db, shared.key, shared.head, run, limits, BUDGET)


_TOGETHER = """
import json, os, sys, time
from pathlib import Path
from pate.errors import PateError
from pate.ledger import Charge, Ledger, Limits, SharedBudget, SharedLedger
folder, words, n, what = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
if what == "begins":
    from pate.config import load_config
    from pate.runs.run import Run
    config = load_config()
LIMITS = Limits(100, 100, "m", 0.0, 0.001)

def pay(ledger, me):
    for i in range(3):
        with ledger.batch(1):
            ledger.charge_and_store([b"%d" % (10 * me + i)], [me], Charge(1, 1))
    ledger.close()

def creates(me):
    print(SharedLedger.create(folder / "shared", SharedBudget(8.0, 3.0, 1e-5)).id)

def starts(me):
    shared = SharedLedger.at(folder / "shared", sys.argv[5])
    pay(Ledger(shared.db, shared.key, shared.head, f"run {me}", LIMITS, shared.budget()), me)

def opens(me):
    pay(Ledger(folder / "ledger.db", b"k" * 32, folder / "ledger.head", "run", Limits(100, 100, "m")), me)

def begins(me):  # who gets in stays until all others have tried
    with Run.create(folder / "run", config, resume=False) as directory:
        key = directory.key
        print(key.hex(), flush=True)
        os.read(end[0], 1)
        assert directory.key == key

def child(me):
    for stream, name in (1, "out"), (2, "err"):
        os.dup2(os.open(words / f"{me}.{name}", os.O_CREAT | os.O_WRONLY), stream)
    os.close(go[1])
    os.close(end[1])
    os.read(go[0], 1)  # nothing comes: it ends when the other side is closed, for all at the same moment
    try:
        globals()[what](me)
    except PateError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    sys.exit(0)

go, end = os.pipe(), os.pipe()
left = {}
for me in range(n):
    pid = os.fork()
    if not pid:
        child(me)
    left[pid] = me
time.sleep(0.1)  # until all wait
os.close(go[1])
statuses, until = {}, time.monotonic() + 30
while left:
    if len(left) == 1 or time.monotonic() > until:
        os.close(end[1]) if end else None
        end = None
    pid, status = os.waitpid(-1, os.WNOHANG)
    if pid:
        statuses[left.pop(pid)] = os.waitstatus_to_exitcode(status)
    time.sleep(0.005)
print(json.dumps([statuses[me] for me in range(n)]))
"""


def at_once(folder: Path, what: str, *arguments: str) -> list[tuple[int, str, str]]:
    """Status and words of processes that do the same thing at the same moment."""
    with tempfile.TemporaryDirectory() as words:
        command = [sys.executable, "-c", _TOGETHER, str(folder), words, str(AT_ONCE), what, *arguments]
        shown = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert shown.returncode == 0, shown.stderr
        told = [[(Path(words) / f"{me}.{name}").read_text() for name in ("out", "err")] for me in range(AT_ONCE)]
    return [(status, out, error) for status, (out, error) in zip(json.loads(shown.stdout), told, strict=True)]


def test_of_many_who_create_it_at_once_one_does(tmp_path: Path) -> None:
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        ended = at_once(folder, "creates")
        assert sorted(status for status, _, _ in ended) == [0] + [2] * (AT_ONCE - 1), ended
        for status, words, error in ended:
            if status:
                assert error == f"{folder}/shared: is there already; use it as it is, or name another place\n"
            else:
                assert SharedLedger.at(folder / "shared", words.strip()).budget() == BUDGET
        assert [path.name for path in folder.iterdir()] == ["shared"]
        assert {path.name for path in (folder / "shared").iterdir()} >= {"key", "ledger.db", "head"}
        for path in (folder / "shared", *(folder / "shared").iterdir()):
            assert path.stat().st_mode & 0o077 == 0


def test_many_runs_that_start_at_once_all_get_in(tmp_path: Path) -> None:
    shared = SharedLedger.create(tmp_path / "shared", BUDGET)
    ended = at_once(tmp_path, "starts", shared.id)
    assert [status for status, _, _ in ended] == [0] * AT_ONCE, ended
    assert verify(shared.db, shared.key, shared.head) == 1 + AT_ONCE + 3 * AT_ONCE


def test_many_who_open_a_new_ledger_at_once_all_get_in(tmp_path: Path) -> None:
    ended = at_once(tmp_path, "opens")
    assert [status for status, _, _ in ended] == [0] * AT_ONCE, ended
    assert verify(tmp_path / "ledger.db", b"k" * 32, tmp_path / "ledger.head") == 2 + 3 * AT_ONCE


def test_of_many_runs_begun_in_one_place_one_draws_the_key(tmp_path: Path) -> None:
    ended = at_once(tmp_path, "begins")
    assert sorted(status for status, _, _ in ended) == [0] + [2] * (AT_ONCE - 1), ended
    for status, _, error in ended:
        assert error.count("\n") == (status == 2), error
        assert not status or "is not empty" in error or "another pate is at work" in error


def test_a_ledger_is_never_made_on_the_side(tmp_path: Path) -> None:
    limits = Limits(10, 10, "m", 0.0, 0.001)
    with pytest.raises(RunError, match="unable to open"):
        Ledger(tmp_path / "ledger.db", b"k" * 32, tmp_path / "head", "run", limits, BUDGET)
    with pytest.raises(RunError, match="there is no shared ledger"):
        SharedLedger.at(tmp_path / "none")
    assert list(tmp_path.iterdir()) == []


def test_another_identity_and_a_lost_key_are_refused(tmp_path: Path) -> None:
    shared, other = SharedLedger.create(tmp_path / "shared", BUDGET), SharedLedger.create(tmp_path / "other", BUDGET)
    assert shared.id != other.id
    with pytest.raises(RunError, match=f"is the ledger {shared.id}, not {other.id}"):
        SharedLedger.at(shared.folder, other.id)
    shutil.copy(other.folder / "key", shared.folder / "key")  # the right identity for the wrong file
    with pytest.raises(RunError, match="link 1 "):
        SharedLedger.at(shared.folder, other.id).budget()
    (other.folder / "key").unlink()
    with pytest.raises(RunError, match="key is gone"):
        SharedLedger.at(other.folder)


@pytest.mark.parametrize(
    ("order", "epsilon", "delta", "word"),
    [
        (8.0, 0.0, 1e-5, "epsilon"),
        (8.0, float("nan"), 1e-5, "epsilon"),
        (8.0, float("inf"), 1e-5, "epsilon"),
        (8.0, 3.0, 0.0, "delta"),
        (8.0, 3.0, 1.0, "delta"),
        (1.0, 3.0, 1e-5, "order"),
        (float("inf"), 3.0, 1e-5, "order"),
        (2.0, 1.0, 1e-5, "raise the order"),
    ],
)
def test_a_budget_that_is_none_makes_nothing(
    order: float, epsilon: float, delta: float, word: str, tmp_path: Path
) -> None:
    with pytest.raises(PateError, match=word):
        SharedLedger.create(tmp_path / "shared", SharedBudget(order, epsilon, delta))
    assert list(tmp_path.iterdir()) == []


_LOOKS = """
import sys
from pate.cli import main
folder = sys.argv[1]
for command in ("show", "verify"):
    sys.argv = ["pate", "ledger", command, folder]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""


def bound_by_permissions() -> None:
    """In a process of root about to be: it may no longer write where it says that nobody may."""
    if os.geteuid() == 0:
        for dac_override in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
            ctypes.CDLL(None).prctl(24, dac_override, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.skipif(sys.platform != "linux", reason="root is bound by permissions on Linux only, and only if it asks")
@pytest.mark.parametrize("closed", [True, False], ids=["closed", "with a write-ahead log"])
def test_a_ledger_where_nothing_can_be_written_is_shown_and_verified(closed: bool, tmp_path: Path) -> None:
    shared = SharedLedger.create(tmp_path / "shared", BUDGET)
    ledger = Ledger(shared.db, shared.key, shared.head, "run", Limits(10, 10, "m", 0.0, 0.01), BUDGET)
    with ledger.batch(1):
        ledger.charge_and_store([b"a"], [1], Charge(1, 1))
    if closed:
        ledger.close()
    readable = tmp_path / "medium"
    shutil.copytree(shared.folder, readable, ignore=shutil.ignore_patterns("*-shm"))
    for path in (*readable.iterdir(), readable):
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        shown = subprocess.run(
            [sys.executable, "-c", _LOOKS, str(readable)],
            capture_output=True,
            text=True,
            timeout=60,
            preexec_fn=bound_by_permissions,
        )
    finally:
        readable.chmod(0o700)
    assert shown.returncode == 0, shown.stderr
    assert shown.stderr == ""
    assert "asked 1 of 10" in shown.stdout
    assert shown.stdout.endswith("3 links, unchanged\n")
    assert not (readable / "ledger.db-shm").exists()


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
    assert shared.epsilon_of(shared.rdp) == pytest.approx(epsilon)  # what is told of it when all of it is spent


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


def test_what_an_earlier_ensemble_spent_stays_spent(tmp_path: Path) -> None:
    pay(opened(tmp_path), [b"a", b"b"], [1, -1])
    later = Ledger(tmp_path / "ledger.db", KEY, tmp_path / "ledger.head", "run", LIMITS, ensemble=2)
    assert later.spent() == Charge(2, 1)
    assert later.room() == LIMITS.max_answers - 1
    assert later.stored([b"a", b"b"]) == {b"a": 1, b"b": -1}
    assert later.from_earlier_ensembles()
    assert not opened(tmp_path).from_earlier_ensembles()


# What a config makes of it.


def config_of(ledger: dict[str, str] | None = None, **changes: object) -> Config:
    content = {
        "n_teachers": 20,
        "data": {"source": "digits"},
        "teachers": [{"name": "sklearn.svm.SVC"}],
        "mechanism": {"name": "confident_gnmax", "threshold": 12, "sigma1": 40, "sigma2": 20},
        "budget": {"max_queries": 10, "max_answers": 4, "ledger": ledger},
        "student": {"name": "supervised"},
        "backend": "local",
    }
    return parse_config(content)


def test_a_run_pays_for_tests_and_answers(shared: SharedLedger, tmp_path: Path) -> None:
    sharing = config_of({"path": "shared", "id": shared.id})
    with Run.create(tmp_path / "run", sharing) as directory:
        ledger = ledger_opener(voters_of(sharing), directory, tmp_path)()
    asked, answered = ledger.limits.rdp_asked, ledger.limits.rdp_answered
    mechanism = sharing.build_mechanism()
    assert (asked, answered) == mechanism.rdp_per_query(BUDGET.order, 10, 4)
    whole = mechanism.worst_case(10, 4)
    assert isinstance(whole, RdpGuarantee)
    assert 10 * asked + 4 * answered >= whole.rdp_at(BUDGET.order) * (1 - 1e-9) > 0
    with pytest.raises(RunError, match=f"is the ledger {shared.id}, not ledger-00"):
        shared_ledger(config_of({"path": "shared", "id": "ledger-00"}), tmp_path / "run", tmp_path)
    with pytest.raises(ConfigError, match="a ledger that runs share stays on one machine"):
        shared_ledger(sharing, f"file://{tmp_path}/store", tmp_path)


def test_a_round_of_neighbours_pays_for_a_record_that_changes(shared: SharedLedger, tmp_path: Path) -> None:
    """Three votes go and three come: six counts change by 1, under Gaussian noise; the dearest round counts."""
    near = {
        "voters": "neighbours",
        "neighbours": {
            "votes_per_record": 3,
            "rounds": [{"cells": 10, "sigma": 40}, {"cells": 20, "sigma": 20}],
        },
        "mechanism": {"name": "gnmax", "sigma": 60},
        "budget": {"ledger": {"path": "shared", "id": shared.id}},
    }
    sharing = parse_config({"data": {"source": "digits"}, "student": {"name": "supervised"}} | near)
    with Run.create(tmp_path / "run", sharing) as directory:
        ledger = ledger_opener(voters_of(sharing), directory, tmp_path)()
    pay(ledger, [b"first"], [1])
    assert BUDGET.rdp - ledger.rdp_left() >= 6 * BUDGET.order / (2 * 20**2) * (1 - 1e-12)
    assert ledger.limits.max_queries == 2


def test_copies_of_a_run_are_one_run_and_other_runs_are_others(shared: SharedLedger, tmp_path: Path) -> None:
    """Copies that are both resumed have the same answers, and the second of two writers is refused."""
    sharing = config_of({"path": "shared", "id": shared.id})

    def begun(name: str, resume: bool = False) -> Ledger:
        with Run.create(tmp_path / name, sharing, resume=resume) as directory:
            return ledger_opener(voters_of(sharing), directory, tmp_path)()

    first, other = begun("one"), begun("other")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    second = begun("two", resume=True)
    pay(first, [b"a"], [1])
    assert second.stored([b"a"]) == {b"a": 1}
    with pytest.raises(RunError, match="nothing was released"):
        pay(second, [b"a"], [2])
    assert first.spent() == second.spent() == Charge(1, 1)
    assert (other.stored([b"a"]), other.spent()) == ({}, Charge(0, 0))


def test_new_answers_come_from_the_ensemble_there_is(tmp_path: Path) -> None:
    own = config_of()
    with Run.create(tmp_path / "run", own) as directory:
        ledger_opener(voters_of(own), directory)().close()
        Version(version=3).store(directory)
        assert ledger_opener(voters_of(own), directory)().ensemble == 3


def test_a_joint_ledger_that_is_not_there_is_missed_before_anything_is_made(tmp_path: Path) -> None:
    sharing = config_of({"path": "nowhere", "id": "ledger-00"})
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
    sharing = config_of({"path": "shared", "id": shared.id})
    public, records = load(sharing.data, None, tmp_path)
    with pytest.raises(BudgetExceeded, match="other runs on the same data have used it up"):
        pipeline.run(sharing, tmp_path / "run", public=public, private=records, config_dir=tmp_path, pages=False)
    assert not (tmp_path / "run" / "private" / "votes.npz").exists()
    assert not (tmp_path / "run" / "private" / "teachers").exists()
