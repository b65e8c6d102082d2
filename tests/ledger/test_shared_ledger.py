"""A ledger that runs share: made once, whole or not at all, and found by its identity."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from pate.errors import PateError, RunError
from pate.ledger import Charge, Ledger, Limits, SharedBudget, SharedLedger
from pate.ledger._chain import verify

BUDGET = SharedBudget(order=8.0, epsilon=3.0, delta=1e-5)
AT_ONCE = 5

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
    for attempt in range(3):
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


def test_another_identity_a_lost_key_and_an_open_one_are_refused(tmp_path: Path) -> None:
    shared, other = SharedLedger.create(tmp_path / "shared", BUDGET), SharedLedger.create(tmp_path / "other", BUDGET)
    assert shared.id != other.id
    with pytest.raises(RunError, match=f"is the ledger {shared.id}, not {other.id}"):
        SharedLedger.at(shared.folder, other.id)
    shutil.copy(other.folder / "key", shared.folder / "key")  # the right identity for the wrong file
    with pytest.raises(RunError, match="link 1 "):
        SharedLedger.at(shared.folder, other.id).budget()
    (other.folder / "key").chmod(0o644)
    with pytest.raises(RunError, match="others can read it"):
        SharedLedger.at(other.folder)
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


def test_copies_of_a_run_are_one_run(tmp_path: Path) -> None:
    """Both resumed: in a shared ledger they have the same answers, and the second of two writers is refused."""
    from pate.config import parse_config
    from pate.runs._run_ledger import ledger_opener
    from pate.runs.run import Run
    from pate.voters import voters_of

    shared = SharedLedger.create(tmp_path / "shared", BUDGET)
    content = {"n_teachers": 20, "mechanism": {"name": "gnmax", "sigma": 40}, "data": {"source": "digits"}}
    content |= {"teachers": [{"name": "sklearn.svm.SVC"}], "student": {"name": "supervised"}}
    content |= {"budget": {"max_queries": 10, "ledger": {"path": "shared", "id": shared.id}}}
    config = parse_config(content)
    with Run.create(tmp_path / "one", config, resume=False) as directory:
        first = ledger_opener(voters_of(config), directory, tmp_path)()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    with Run.create(tmp_path / "two", config, resume=True) as directory:
        second = ledger_opener(voters_of(config), directory, tmp_path)()
    with first.batch(1):
        first.charge_and_store([b"a"], [1], Charge(1, 1))
    assert second.stored([b"a"]) == {b"a": 1}
    with pytest.raises(RunError, match="nothing was released"), second.batch(1):
        second.charge_and_store([b"a"], [2], Charge(1, 1))
    assert first.spent() == second.spent() == Charge(1, 1)


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
