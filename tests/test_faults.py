"""Every system call that changes the ledger's files, made to fail or to be the last: the invariants hold after each."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.command_line import Ended

from pate.ledger import Ledger, Limits
from pate.ledger._chain import verify

_PAYS = """
import json, os, sys
from pathlib import Path
from pate.errors import PateError
from pate.ledger import Charge, Ledger, Limits

def pay(folder):
    ledger = Ledger(folder / "ledger.db", b"k" * 32, folder / "ledger.head", "run", Limits(100, 100, "m"))
    for i in range(ledger.spent().asked, 12, 4):
        ids = [b"%d" % (i + j) for j in range(4)]
        with ledger.batch(4):
            ledger.charge_and_store(ids, [i] * 4, Charge(4, 4))
        print(i, flush=True)

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if child:
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    for stream, name in (1, "out"), (2, "err"):
        os.dup2(os.open(Path(order["said"]) / name, os.O_CREAT | os.O_WRONLY | os.O_TRUNC), stream)
    os.environ |= order["environment"]  # the shim looks there at every call
    try:
        pay(Path(order["environment"]["FAULT_DIR"]))
    except PateError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    sys.exit(0)
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


@dataclass(frozen=True)
class Payer:
    """A process with the shim that has loaded everything; a child of its own pays each time."""

    process: subprocess.Popen[str]
    said: Path

    def pay(self, folder: Path, at: int, kills: bool, log: Path | None = None) -> Ended:
        environment = {"FAULT_DIR": str(folder), "FAULT_AT": str(at), "FAULT_KILL": "1" if kills else "0"}
        environment |= {"FAULT_LOG": str(log)} if log else {}
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps({"said": str(self.said), "environment": environment}), file=self.process.stdin, flush=True)
        status = int(self.process.stdout.readline())
        return Ended(status, (self.said / "out").read_text(), (self.said / "err").read_text())


@pytest.fixture(scope="module")
def payer(shim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Payer]:
    command = [sys.executable, "-c", _PAYS]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"LD_PRELOAD": str(shim)}
    ) as process:
        yield Payer(process, tmp_path_factory.mktemp("said"))
        process.kill()


def number_of_calls(tmp_path: Path, payer: Payer) -> int:
    (tmp_path / "clean").mkdir()
    shown = payer.pay(tmp_path / "clean", 0, kills=False, log=tmp_path / "calls")
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


def try_every(step: int, kills: bool, tmp_path: Path, payer: Payer) -> int:
    """How many of the calls, failing or fatal, ended the process; the invariants are asserted after each."""
    calls = number_of_calls(tmp_path, payer)
    assert calls > 30
    failed = 0
    for at in range(1, calls + 1, step):
        folder = tmp_path / f"at{at}"
        folder.mkdir()
        shown = payer.pay(folder, at, kills)
        assert shown.returncode in ((0, -9) if kills else (0, 2)), shown.stderr
        assert "Traceback" not in shown.stderr
        failed += shown.returncode != 0
        invariants_hold(folder, [int(line) for line in shown.stdout.split()])
        rest = payer.pay(folder, 0, kills=False)
        assert rest.returncode == 0, rest.stderr
        assert verify(folder / "ledger.db", b"k" * 32, folder / "ledger.head") == 5
        shutil.rmtree(folder)
    return failed


@pytest.mark.parametrize("kills", [False, True], ids=["fails", "kills"])
def test_some_calls_that_matter(kills: bool, tmp_path: Path, payer: Payer) -> None:
    assert try_every(5, kills, tmp_path, payer) > 0


@pytest.mark.slow
@pytest.mark.parametrize("kills", [False, True], ids=["fails", "kills"])
def test_every_call_that_matters(kills: bool, tmp_path: Path, payer: Payer) -> None:
    assert try_every(1, kills, tmp_path, payer) > 0
