"""Every system call that changes the ledger's files, made to fail or to be the last: the invariants hold after each."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from pate.ledger import Ledger, Limits
from pate.ledger.chain import verify

_PAYS = """
import sys
from pathlib import Path
from pate.errors import PateError
from pate.ledger import Charge, Ledger, Limits
folder = Path(sys.argv[1])
try:
    ledger = Ledger(folder / "ledger.db", b"k" * 32, folder / "ledger.head", "run", Limits(100, 100, "m"))
    for i in range(ledger.spent().asked, 12, 4):
        ids = [b"%d" % (i + j) for j in range(4)]
        with ledger.batch(4):
            ledger.charge_and_store(ids, [i] * 4, Charge(4, 4))
        print(i, flush=True)
except PateError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
"""


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler and Linux to make a shim of the system calls")
    library = tmp_path_factory.mktemp("shim") / "fault_shim.so"
    source = Path(__file__).parent / "fault_shim.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True, timeout=60)
    return library


def pay(folder: Path, shim: Path, at: int, kills: bool, log: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"LD_PRELOAD": str(shim), "FAULT_DIR": str(folder), "FAULT_AT": str(at)}
    environment |= {"FAULT_KILL": "1" if kills else "0"} | ({"FAULT_LOG": str(log)} if log else {})
    command = [sys.executable, "-c", _PAYS, str(folder)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


def number_of_calls(tmp_path: Path, shim: Path) -> int:
    (tmp_path / "clean").mkdir()
    shown = pay(tmp_path / "clean", shim, 0, kills=False, log=tmp_path / "calls")
    assert shown.returncode == 0, shown.stderr
    return int((tmp_path / "calls").read_text())


def invariants_hold(folder: Path, acknowledged: list[int]) -> None:
    """What was acknowledged is stored with its charge; every answer has one; and the run can go on to its end."""
    ledger = Ledger(folder / "ledger.db", b"k" * 32, folder / "ledger.head", "run", Limits(100, 100, "m"))
    spent = ledger.spent()
    for i in acknowledged:
        assert ledger.stored([b"%d" % (i + j) for j in range(4)]) == {b"%d" % (i + j): i for j in range(4)}
    ledger.close()
    with sqlite3.connect(folder / "ledger.db") as db:
        assert db.execute("SELECT COUNT(*) FROM answers").fetchone()[0] == spent.asked
    verify(folder / "ledger.db", b"k" * 32, folder / "ledger.head")


def try_every(step: int, kills: bool, tmp_path: Path, shim: Path) -> int:
    """How many of the calls, failing or fatal, ended the process; the invariants are asserted after each."""
    calls = number_of_calls(tmp_path, shim)
    assert calls > 30
    failed = 0
    for at in range(1, calls + 1, step):
        folder = tmp_path / f"at{at}"
        folder.mkdir()
        shown = pay(folder, shim, at, kills)
        assert shown.returncode in ((0, -9) if kills else (0, 2)), shown.stderr
        assert "Traceback" not in shown.stderr
        failed += shown.returncode != 0
        invariants_hold(folder, [int(line) for line in shown.stdout.split()])
        rest = pay(folder, shim, 0, kills=False)
        assert rest.returncode == 0, rest.stderr
        assert verify(folder / "ledger.db", b"k" * 32, folder / "ledger.head") == 5
        shutil.rmtree(folder)
    return failed


@pytest.mark.parametrize("kills", [False, True], ids=["fails", "kills"])
def test_some_calls_that_matter(kills: bool, tmp_path: Path, shim: Path) -> None:
    assert try_every(5, kills, tmp_path, shim) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kills", [False, True], ids=["fails", "kills"])
def test_every_call_that_matters(kills: bool, tmp_path: Path, shim: Path) -> None:
    assert try_every(1, kills, tmp_path, shim) > 0
